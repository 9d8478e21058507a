//! One process a journal: a lock on a file beside it, held as long as the journal is open and let go by the system when the process
//! dies in whatever way. The file tells who holds it; what it tells is for people, the lock alone decides.

use std::{
    fs::{File, OpenOptions},
    io::{Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use rustix::fs::{FlockOperation, flock};

use super::settings::system_ms;
use crate::runtime::journal::JournalError;

/// How often a lock that another process holds is tried again.
const TRY_EVERY: Duration = Duration::from_millis(20);
/// Nobody else on this machine reads a journal that is made here.
const OWNER_ONLY: u32 = 0o600;
/// What stands before the owner's process id in its record.
const PROCESS: &str = "pid ";
/// What stands before the owner's address in its record.
const ADDRESS: &str = " address ";
/// Of the owner's record so many bytes are read.
const OWNER_BYTES_MAX: u64 = 200;

/// The lock; dropping it lets go. When its file was last changed is when its owner is last known to have lived.
#[derive(Debug)]
pub(super) struct OwnerLock {
    #[allow(dead_code, reason = "held for its lock")]
    file: File,
    sign: SignOfLife,
}

/// The lock's file as a sign of life. It holds no lock.
#[derive(Debug, Clone)]
pub(super) struct SignOfLife {
    path: PathBuf,
    /// Unix milliseconds; of the owner before this one.
    before_ms: Option<u64>,
}

impl SignOfLife {
    /// When the owner before this one is last known to have lived, in Unix milliseconds.
    pub(super) const fn before_ms(&self) -> Option<u64> {
        self.before_ms
    }

    /// This owner lives. Blocks for a moment.
    pub(super) fn note(&self) -> std::io::Result<()> {
        OpenOptions::new().append(true).open(&self.path)?.set_modified(SystemTime::now())
    }
}

/// The lock file of a journal. The database follows links, so whoever comes by another name meets the same lock. Blocks.
pub(super) fn lock_path(journal: &Path) -> PathBuf {
    let mut name = journal.canonicalize().unwrap_or_else(|_| journal.to_owned()).into_os_string();
    name.push(".lock");
    PathBuf::from(name)
}

/// The journal's own path, past all links to it, so that whoever names it in whatever way meets the same lock. Makes an empty file where
/// there is none: a link may lead to it. A file with a second name is refused: its log stands beside one of them only. Blocks.
pub(super) fn true_path(journal: &Path) -> Result<PathBuf, JournalError> {
    let failed = |error: std::io::Error| JournalError::Failed(format!("{}: {error}", journal.display()));
    // Only where it is missing: closing a second handle of a database lets go of the locks of the first.
    if !journal.try_exists().map_err(failed)? {
        // What people wrote stands in it. Its log and index beside it are made like it.
        OpenOptions::new().append(true).create(true).mode(OWNER_ONLY).open(journal).map_err(failed)?;
    }
    let path = journal.canonicalize().map_err(failed)?;
    let found = path.metadata().map_err(failed)?;
    if !found.is_file() {
        return Err(JournalError::Failed(format!("{} is no file", path.display())));
    }
    let names = found.nlink();
    if names > 1 {
        let text = format!("{} has {names} names (hard links); a journal must have one", path.display());
        return Err(JournalError::Failed(text));
    }
    Ok(path)
}

impl OwnerLock {
    /// The sign of life that goes with it.
    pub(super) fn sign(&self) -> SignOfLife {
        self.sign.clone()
    }

    /// Takes the lock of the journal at `journal`, waiting at most `wait` for whoever holds it; its holder is reached at `address`. Blocks.
    pub(super) fn take(journal: &Path, wait: Duration, address: Option<&str>) -> Result<Self, JournalError> {
        let path = lock_path(journal);
        let failed = |error: std::io::Error| JournalError::Failed(format!("{}: {error}", path.display()));
        // Not truncated: until the lock is ours, what stands there is the owner's.
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).map_err(failed)?;
        let until = Instant::now() + wait;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < until => std::thread::sleep(TRY_EVERY),
                Err(rustix::io::Errno::WOULDBLOCK) => return Err(JournalError::Held(owner(&mut file, journal))),
                Err(error) => return Err(failed(error.into())),
            }
        }
        let changed = file.metadata().and_then(|metadata| metadata.modified()).ok();
        let changed = changed.filter(|_| file.metadata().is_ok_and(|metadata| metadata.len() > 0));
        let reached = address.map(|address| format!("{ADDRESS}{address}")).unwrap_or_default();
        let record = format!("{PROCESS}{} started_ms {}{reached}\n", std::process::id(), system_ms());
        file.set_len(0).and_then(|()| file.seek(SeekFrom::Start(0))).map_err(failed)?;
        file.write_all(record.as_bytes()).map_err(failed)?;
        let before_ms = changed.and_then(|changed| changed.duration_since(UNIX_EPOCH).ok());
        let before_ms = before_ms.and_then(|since| u64::try_from(since.as_millis()).ok());
        Ok(Self { file, sign: SignOfLife { path, before_ms } })
    }
}

/// The process that holds the journal at `journal`, as far as the lock's file tells. Blocks for a moment.
pub(super) fn holder_process_id(journal: &Path) -> Option<u32> {
    let text = record_of(journal)?;
    text.strip_prefix(PROCESS)?.split(' ').next()?.parse().ok()
}

fn record_of(journal: &Path) -> Option<String> {
    let mut text = String::new();
    File::open(lock_path(journal)).ok()?.take(OWNER_BYTES_MAX).read_to_string(&mut text).ok()?;
    Some(text)
}

/// The address of whoever holds the journal at `journal`, as far as the lock's file tells. Blocks for a moment.
pub(super) fn holder_address(journal: &Path) -> Option<String> {
    let text = record_of(journal)?;
    let (_, address) = text.trim().split_once(ADDRESS)?;
    (!address.is_empty()).then(|| address.to_owned())
}

/// Who holds the lock, as far as the file tells.
fn owner(file: &mut File, journal: &Path) -> String {
    let mut text = String::new();
    let read = file.seek(SeekFrom::Start(0)).and_then(|_| file.take(OWNER_BYTES_MAX).read_to_string(&mut text));
    let known = read.is_ok() && text.starts_with(PROCESS);
    let who = if known { text.trim().to_owned() } else { "pid unknown".to_owned() };
    format!("{} belongs to {who}", journal.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_no_journal() {
        let folder = tempfile::tempdir().unwrap();
        let Err(JournalError::Failed(told)) = true_path(folder.path()) else { panic!("it was taken") };
        assert!(told.ends_with("is no file"), "{told}");
    }

    #[test]
    fn the_next_owner_is_told_when_the_last_one_was_alive() {
        let folder = tempfile::tempdir().unwrap();
        let journal = folder.path().join("journal.db");
        let first = OwnerLock::take(&journal, Duration::ZERO, None).unwrap();
        assert_eq!(first.sign().before_ms(), None, "nobody was there");
        let before = system_ms();
        first.sign().note().unwrap();
        drop(first);
        let told = OwnerLock::take(&journal, Duration::ZERO, None).unwrap().sign().before_ms().unwrap();
        // File systems tell times coarsely.
        assert!(told + 2_000 >= before && told <= system_ms() + 2_000, "{told} {before}");
    }

    #[test]
    fn whoever_finds_it_held_is_told_by_whom_and_where() {
        let folder = tempfile::tempdir().unwrap();
        let journal = folder.path().join("journal.db");
        assert_eq!(holder_address(&journal), None);
        for (address, want) in [(None, None), (Some("http://127.0.0.1:7800"), Some("http://127.0.0.1:7800"))] {
            let _held = OwnerLock::take(&journal, Duration::ZERO, address).unwrap();
            let Err(JournalError::Held(told)) = OwnerLock::take(&journal, Duration::ZERO, None) else {
                panic!("twice")
            };
            assert!(told.contains(&format!("pid {}", std::process::id())), "{told}");
            assert_eq!(holder_process_id(&journal), Some(std::process::id()));
            assert_eq!((holder_address(&journal).as_deref(), told.contains("address http")), (want, want.is_some()));
        }
    }

    #[test]
    #[cfg(unix)]
    fn a_link_to_a_journal_is_held_by_its_owner_too() {
        let folder = tempfile::tempdir().unwrap();
        let (journal, link) = (folder.path().join("journal.db"), folder.path().join("elsewhere.db"));
        // Before there is a journal its name is all that there is.
        drop(OwnerLock::take(&journal, Duration::ZERO, None).unwrap());
        std::fs::write(&journal, b"").unwrap();
        std::os::unix::fs::symlink(&journal, &link).unwrap();
        let held = OwnerLock::take(&journal, Duration::ZERO, None).unwrap();
        assert!(matches!(OwnerLock::take(&link, Duration::ZERO, None), Err(JournalError::Held(_))));
        drop(held);
        assert!(OwnerLock::take(&link, Duration::ZERO, None).is_ok());
    }
}
