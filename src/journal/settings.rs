//! What a journal is opened with. It reads no configuration; whoever assembles the program fills it in.

use std::{path::PathBuf, sync::Arc, time::Duration};

/// Where the time of retention, expiry and records comes from: Unix milliseconds.
pub type NowMs = Arc<dyn Fn() -> u64 + Send + Sync>;

/// After which kind of accident what was called durable is still there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Survives {
    /// The death of the process, `kill -9` too. What the machine loses with its power may be the last moments.
    Process,
    /// Power loss: every commit waits for the disk.
    Power,
}

/// How long what is over is kept. `None` = for ever, or until the size budget needs the room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Runs that completed, degraded ones too.
    pub completed: Option<Duration>,
    /// Runs that failed or ran out of time.
    pub failed: Option<Duration>,
    /// Runs that were cancelled.
    pub cancelled: Option<Duration>,
    /// Lines of the usage ledger.
    pub usage: Option<Duration>,
    /// Dead letters.
    pub dead_letters: Option<Duration>,
    /// Calls that were put off, from their end on.
    pub deferred: Option<Duration>,
    /// Files that no run names.
    pub unused_files: Option<Duration>,
    /// So many bytes of the file may be in use; past that the oldest finished runs go early.
    pub size_budget: Option<u64>,
}

impl Default for Retention {
    fn default() -> Self {
        let days = |days: u64| Some(Duration::from_secs(days * 24 * 3_600));
        Self {
            completed: days(30),
            failed: days(30),
            cancelled: days(7),
            usage: days(400),
            dead_letters: days(90),
            deferred: days(7),
            unused_files: days(1),
            size_budget: None,
        }
    }
}

/// What a journal is opened with.
#[derive(Clone)]
pub struct JournalSettings {
    /// The database file. `-wal`, `-shm` and `.lock` stand beside it.
    pub path: PathBuf,
    /// The folder of files' bytes.
    pub files: PathBuf,
    /// What a commit survives.
    pub survives: Survives,
    /// The file never grows over so many bytes; new runs are refused a little earlier, so that running ones can end.
    pub size_max: Option<u64>,
    /// How long what is over is kept.
    pub retention: Retention,
    /// How long the same idempotency key means the same run.
    pub idempotency_keep: Duration,
    /// How long to wait for another process to let go of the journal.
    pub lock_wait: Duration,
    /// Where whoever opens it is reached, for whoever finds it held; `None` = nowhere.
    pub address: Option<String>,
    /// Threads that answer queries while the writer is busy.
    pub readers: usize,
    /// The time.
    pub now_ms: NowMs,
}

impl JournalSettings {
    /// The usual settings for a journal in this file.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        Self {
            files: path.with_extension("files"),
            path,
            survives: Survives::Process,
            size_max: None,
            retention: Retention::default(),
            idempotency_keep: Duration::from_secs(24 * 3_600),
            lock_wait: Duration::ZERO,
            address: None,
            readers: 2,
            now_ms: Arc::new(system_ms),
        }
    }
}

impl std::fmt::Debug for JournalSettings {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("JournalSettings").field("path", &self.path).finish_non_exhaustive()
    }
}

/// Unix milliseconds of the machine's clock.
pub(super) fn system_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
