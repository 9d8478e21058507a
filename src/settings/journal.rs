//! `[journal]` and `[journal.retention]`: where runs are written down, what that survives, and how long they are kept.

use std::{path::PathBuf, time::Duration};

use super::{
    keep::{keep, keep_or_for_ever},
    reader::Reader,
};

/// The smallest limit of a journal's file: below that the tables alone would fill it.
const SIZE_BYTES_MIN: u64 = 1024 * 1024;
/// The largest: 16 TiB.
pub const SIZE_BYTES_MAX: u64 = 16 * 1024 * 1024 * 1024 * 1024;
/// The most threads that answer queries.
const READERS_MAX: u64 = 32;
/// Where the journal lies unless the configuration says otherwise.
pub const PATH_DEFAULT: &str = ".watertight/journal.db";

/// After which kind of accident what was called durable is still there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SurvivesWord {
    /// The death of the process.
    Process,
    /// Power loss.
    Power,
}

/// `[journal]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalTable {
    /// The database file; a relative path starts at the configuration's folder.
    pub path: PathBuf,
    /// What a commit survives.
    pub survives: SurvivesWord,
    /// The largest that the file may grow, in bytes.
    pub size_max: Option<u64>,
    /// Threads that answer queries.
    pub readers: usize,
    /// How long the same idempotency key means the same run.
    pub idempotency_keep: Duration,
    /// How long a starting process waits for the one that it follows.
    pub lock_wait: Duration,
    /// How long what is over is kept.
    pub retention: RetentionTable,
}

/// `[journal.retention]`; `None` = for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetentionTable {
    /// Runs that completed.
    pub completed: Option<Duration>,
    /// Runs that failed or ran out of time.
    pub failed: Option<Duration>,
    /// Runs that were cancelled.
    pub cancelled: Option<Duration>,
    /// The usage ledger.
    pub usage: Option<Duration>,
    /// Dead letters.
    pub dead_letters: Option<Duration>,
    /// Calls that were put off, from their end on.
    pub deferred: Option<Duration>,
    /// Bytes in use, past which the oldest finished runs go early.
    pub size_budget: Option<u64>,
}

const fn days(days: u64) -> Duration {
    Duration::from_secs(days * 24 * 3_600)
}

/// Reads `[journal]`.
pub(super) fn read_journal(root: &mut Reader<'_, '_>) -> JournalTable {
    let mut reader = root.table("journal");
    let path = reader.text("path").unwrap_or(PATH_DEFAULT).to_owned();
    if path.trim().is_empty() {
        reader.refuse("path", "must name a file");
    }
    reader.explain("path", path.as_str());
    let words = [("process", SurvivesWord::Process), ("power", SurvivesWord::Power)];
    let survives = reader.choice("survives", SurvivesWord::Process, &words, &[]);
    let size_max = bytes_or_none(&mut reader, "size_max");
    let readers = reader.whole("readers", 1, READERS_MAX).and_then(|count| usize::try_from(count).ok()).unwrap_or(2);
    reader.explain("readers", readers.to_string());
    let idempotency_keep = keep(&mut reader, "idempotency_keep", days(1));
    let lock_wait = reader.duration_from_zero("lock_wait", Duration::ZERO);
    let retention = read_retention(&mut reader);
    if let (Some(size_max), Some(budget)) = (size_max, retention.size_budget)
        && budget > size_max
    {
        reader.refuse("size_max", format!("is less than journal.retention.size_budget = {budget}"));
    }
    reader.finish(&[]);
    JournalTable { path: PathBuf::from(path), survives, size_max, readers, idempotency_keep, lock_wait, retention }
}

fn read_retention(journal: &mut Reader<'_, '_>) -> RetentionTable {
    let mut reader = journal.table("retention");
    let retention = RetentionTable {
        completed: keep_or_for_ever(&mut reader, "completed", Some(days(30))),
        failed: keep_or_for_ever(&mut reader, "failed", Some(days(30))),
        cancelled: keep_or_for_ever(&mut reader, "cancelled", Some(days(7))),
        usage: keep_or_for_ever(&mut reader, "usage", Some(days(400))),
        dead_letters: keep_or_for_ever(&mut reader, "dead_letters", Some(days(90))),
        deferred: keep_or_for_ever(&mut reader, "deferred", Some(days(7))),
        size_budget: bytes_or_none(&mut reader, "size_budget"),
    };
    reader.finish(&[]);
    retention
}

fn bytes_or_none(reader: &mut Reader<'_, '_>, key: &'static str) -> Option<u64> {
    let bytes = reader.whole(key, SIZE_BYTES_MIN, SIZE_BYTES_MAX);
    reader.explain(key, bytes.map_or("off".to_owned(), |bytes| bytes.to_string()));
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::tests::Given;

    #[test]
    fn defaults_and_a_full_table() {
        let plain = Given::config("").load().unwrap().journal;
        assert_eq!((plain.path, plain.survives), (PathBuf::from(PATH_DEFAULT), SurvivesWord::Process));
        assert_eq!((plain.idempotency_keep, plain.size_max), (days(1), None));
        let text = "[journal]\npath = 'runs.db'\nsurvives = 'power'\nsize_max = 2000000\nreaders = 4\nidempotency_keep = '36h'\n\
            lock_wait = '30s'\n[journal.retention]\ncompleted = '2d'\nfailed = 'off'\ncancelled = '1h'\nusage = '3650d'\n\
            dead_letters = '90m'\ndeferred = '3d'\nsize_budget = 1500000\n";
        let full = Given::config(text).load().unwrap().journal;
        let retention = RetentionTable {
            completed: Some(days(2)),
            failed: None,
            cancelled: Some(Duration::from_secs(3_600)),
            usage: Some(days(3_650)),
            dead_letters: Some(Duration::from_secs(5_400)),
            deferred: Some(days(3)),
            size_budget: Some(1_500_000),
        };
        let wanted = JournalTable {
            path: PathBuf::from("runs.db"),
            survives: SurvivesWord::Power,
            size_max: Some(2_000_000),
            readers: 4,
            idempotency_keep: Duration::from_secs(36 * 3_600),
            lock_wait: Duration::from_secs(30),
            retention,
        };
        assert_eq!(full, wanted);
    }

    #[test]
    fn mistakes_are_named() {
        for (text, line) in [
            ("survives = 'fire'", "journal.survives = \"fire\": must be one of process, power"),
            ("path = ''", "journal.path = \"\": must name a file"),
            ("size_max = 5", "journal.size_max = 5: must be a whole number from 1048576 to 17592186044416"),
            ("readers = 0", "journal.readers = 0: must be a whole number from 1 to 32"),
            ("sync = 'power'", "journal.sync = \"power\": unknown key"),
            (
                "retention.completed = '1.5d'",
                "journal.retention.completed = \"1.5d\": must be a whole number of days, as in \"30d\", or as in \"36h\"",
            ),
            ("retention.completed = '0d'", "journal.retention.completed = \"0d\": must be longer than 0"),
            ("retention.failed = '9999d'", "journal.retention.failed = \"9999d\": must be at most 3660 days"),
            ("retention.usage = 30", "journal.retention.usage = 30: must be a text in quotes"),
        ] {
            let error = Given::config(&format!("[journal]\n{text}\n")).load().unwrap_err().to_string();
            assert_eq!(error, format!("w.toml:2: {line}"));
        }
        let error =
            Given::config("[journal]\nsize_max = 2000000\nretention.size_budget = 3000000\n").load().unwrap_err();
        assert_eq!(
            error.to_string(),
            "w.toml:2: journal.size_max = 2000000: is less than journal.retention.size_budget = 3000000"
        );
    }
}
