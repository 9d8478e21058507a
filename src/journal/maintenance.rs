//! What the writer does when it has nothing else to do, and now and then although it has: one small chore at a time, each in a
//! transaction of its own. It never holds entries up for long.

use std::time::{Duration, Instant};

use rusqlite::Connection;

use super::{
    fault::Fault,
    files::disk::Disk,
    remove::{expire_files, expire_rest, expire_runs, keep_budget},
    schema::BUSY_TIMEOUT,
    settings::JournalSettings,
    slot::Hash,
    work::Within,
};

/// Runs, files or rows that one chore takes at most.
const ROWS_MAX: usize = 64;
/// Pages that one chore gives back to the disk at most.
const PAGES_MAX: i64 = 256;
/// Once all chores found nothing to do, they rest for so long.
const REST: Duration = Duration::from_secs(30);
/// Even a busy journal does a chore this often.
const OVERDUE: Duration = Duration::from_secs(1);

/// One piece of tidying; true where nothing of its kind is left.
pub(super) type Chore = Box<dyn FnMut(&mut Within<'_>) -> Result<bool, Fault>>;

/// Whose turn it is.
#[derive(Debug)]
pub(super) struct Maintenance {
    turn: usize,
    /// Contents that begin with this byte are looked at next.
    shard: u8,
    idle_turns: usize,
    last: Instant,
    rest_until: Instant,
}

const CHORES: usize = 6;

impl Maintenance {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self { turn: 0, shard: 0, idle_turns: 0, last: now, rest_until: now }
    }

    /// Whether the last chore is so long ago that entries must wait for one.
    pub(super) fn is_overdue(&self) -> bool {
        let now = Instant::now();
        now >= self.rest_until && now.saturating_duration_since(self.last) >= OVERDUE
    }

    /// The next chore, unless all are done for now.
    pub(super) fn next(&mut self, connection: &Connection, settings: &JournalSettings) -> Option<Chore> {
        if Instant::now() < self.rest_until {
            return None;
        }
        let retention = settings.retention;
        let chore: Chore = match self.turn % CHORES {
            0 => Box::new(move |within| expire_runs(within, &retention, ROWS_MAX)),
            1 => Box::new(move |within| expire_rest(within, &retention, ROWS_MAX)),
            2 => Box::new(move |within| expire_files(within, &retention, ROWS_MAX)),
            3 => match retention.size_budget {
                Some(budget) => Box::new(move |within| keep_budget(within, budget, ROWS_MAX)),
                None => Box::new(|_| Ok(true)),
            },
            4 => {
                let disk = Disk::at(settings.files.clone());
                disk.remove_abandoned();
                let contents = disk.settled(self.shard);
                self.shard = self.shard.wrapping_add(1);
                Box::new(move |within| forget_unowned(within, &contents))
            }
            _ => {
                empty_log(connection);
                Box::new(give_pages_back)
            }
        };
        Some(chore)
    }

    /// A chore was done; `nothing_left` of its kind.
    pub(super) fn did(&mut self, nothing_left: bool) {
        let now = Instant::now();
        self.last = now;
        if nothing_left {
            self.turn = (self.turn + 1) % CHORES;
            self.idle_turns += 1;
        } else {
            self.idle_turns = 0;
        }
        if self.idle_turns >= CHORES {
            self.idle_turns = 0;
            self.rest_until = now + REST;
        }
    }
}

/// Carries the log over into the file and empties it, so that what was deleted stands in neither. Waits for nobody: while somebody still
/// reads the log it is only carried over, and emptied another time.
fn empty_log(connection: &Connection) {
    let _ = connection.busy_timeout(Duration::ZERO);
    let _ = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
    let _ = connection.busy_timeout(BUSY_TIMEOUT);
}

/// Free pages at the end of the file go back to the disk, a few at a time.
fn give_pages_back(within: &mut Within<'_>) -> Result<bool, Fault> {
    let free: i64 = within.connection.pragma_query_value(None, "freelist_count", |row| row.get(0))?;
    // A few free pages are about to be used again.
    if free <= PAGES_MAX {
        return Ok(true);
    }
    within.connection.execute_batch(&format!("PRAGMA incremental_vacuum({PAGES_MAX})"))?;
    Ok(false)
}

/// Contents that lie on the disk and that no file has.
fn forget_unowned(within: &mut Within<'_>, contents: &[Hash]) -> Result<bool, Fault> {
    for hash in contents {
        let mut statement = within.connection.prepare_cached("SELECT count(*) FROM file WHERE hash = ?1")?;
        let files: i64 = statement.query_row([hash], |row| row.get(0))?;
        if files == 0 {
            within.unowned.push(*hash);
        }
    }
    Ok(true)
}
