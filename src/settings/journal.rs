//! `[journal]`: where runs are written down, what that survives, and how long what is over is kept.

use std::{path::PathBuf, time::Duration};

use super::reader::Reader;

/// The longest that anything is kept by configuration: ten years.
const KEEP_DAYS_MAX: u64 = 3_650;
/// No size limit of the journal can be set lower: an empty one needs some.
const SIZE_BYTES_MIN: u64 = 16 * 1024 * 1024;
/// ... or higher.
const SIZE_BYTES_MAX: u64 = 1 << 50;
const HOURS_MAX: u64 = 24 * 365;
const READERS_MAX: u64 = 64;

/// Where a journal is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JournalMode {
    /// In a file that outlives the process.
    File,
    /// In a folder of its own that goes with the process: nothing is kept.
    Memory,
}

/// After which accident what was called durable is still there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JournalSurvives {
    /// The death of the process.
    Process,
    /// Power loss.
    Power,
}

/// How the journal is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalSettings {
    /// Where it is.
    pub mode: JournalMode,
    /// The file; relative to the configuration.
    pub path: PathBuf,
    /// What a commit survives.
    pub survives: JournalSurvives,
    /// Bytes that the file may have.
    pub size_max: Option<u64>,
    /// Bytes of the file that may be in use before the oldest finished runs go early.
    pub size_budget: Option<u64>,
    /// Days that runs that completed are kept; `None` = for ever.
    pub completed_days: Option<u64>,
    /// Days that runs that failed or ran out of time are kept.
    pub failed_days: Option<u64>,
    /// Days that cancelled runs are kept.
    pub cancelled_days: Option<u64>,
    /// Days that lines of the usage ledger are kept.
    pub usage_days: Option<u64>,
    /// Days that dead letters are kept.
    pub dead_letter_days: Option<u64>,
    /// Hours that files are kept that no run names.
    pub unused_file_hours: Option<u64>,
    /// How long an idempotency key means the same run.
    pub idempotency_keep: Duration,
    /// Threads that answer queries.
    pub readers: u32,
}

impl Default for JournalSettings {
    fn default() -> Self {
        Self {
            mode: JournalMode::File,
            path: PathBuf::from(".watertight/journal.db"),
            survives: JournalSurvives::Process,
            size_max: None,
            size_budget: None,
            completed_days: Some(30),
            failed_days: Some(30),
            cancelled_days: Some(7),
            usage_days: Some(400),
            dead_letter_days: Some(90),
            unused_file_hours: Some(24),
            idempotency_keep: Duration::from_secs(24 * 3_600),
            readers: 2,
        }
    }
}

/// Reads `[journal]`.
pub(super) fn read_journal(root: &mut Reader<'_, '_>) -> JournalSettings {
    let fallback = JournalSettings::default();
    let mut reader = root.table("journal");
    let modes = [("file", JournalMode::File), ("memory", JournalMode::Memory)];
    let survives = [("process", JournalSurvives::Process), ("power", JournalSurvives::Power)];
    let mode = reader.choice("mode", fallback.mode, &modes, &[]);
    let path = match reader.text("path") {
        Some("") => {
            reader.refuse("path", "must be the path of a file");
            None
        }
        path => path.map(PathBuf::from),
    };
    if path.is_some() && mode == JournalMode::Memory {
        reader.refuse("path", "means nothing with mode = \"memory\"");
    }
    let path = path.unwrap_or(fallback.path);
    reader.explain("path", path.display().to_string());
    let readers = reader.whole("readers", 1, READERS_MAX).and_then(|readers| u32::try_from(readers).ok());
    let readers = readers.unwrap_or(fallback.readers);
    reader.explain("readers", readers.to_string());
    let settings = JournalSettings {
        mode,
        path,
        survives: reader.choice("survives", fallback.survives, &survives, &[]),
        size_max: bounded(&mut reader, "size_max", None, SIZE_BYTES_MIN, SIZE_BYTES_MAX),
        size_budget: bounded(&mut reader, "size_budget", None, SIZE_BYTES_MIN, SIZE_BYTES_MAX),
        completed_days: bounded(&mut reader, "completed_days", fallback.completed_days, 1, KEEP_DAYS_MAX),
        failed_days: bounded(&mut reader, "failed_days", fallback.failed_days, 1, KEEP_DAYS_MAX),
        cancelled_days: bounded(&mut reader, "cancelled_days", fallback.cancelled_days, 1, KEEP_DAYS_MAX),
        usage_days: bounded(&mut reader, "usage_days", fallback.usage_days, 1, KEEP_DAYS_MAX),
        dead_letter_days: bounded(&mut reader, "dead_letter_days", fallback.dead_letter_days, 1, KEEP_DAYS_MAX),
        unused_file_hours: bounded(&mut reader, "unused_file_hours", fallback.unused_file_hours, 1, HOURS_MAX),
        idempotency_keep: reader.duration("idempotency_keep", fallback.idempotency_keep),
        readers,
    };
    reader.finish(&[]);
    settings
}

/// A whole number within bounds, or `"off"`.
fn bounded(
    reader: &mut Reader<'_, '_>,
    key: &'static str,
    default: Option<u64>,
    min: u64,
    max: u64,
) -> Option<u64> {
    let value = if reader.is_word(key, "off") { None } else { reader.whole(key, min, max).or(default) };
    reader.know(&[key]);
    reader.explain(key, value.map_or_else(|| "off".to_owned(), |value| value.to_string()));
    value
}
