//! What went wrong while writing or reading, and whether it was the disk's doing (tried again) or the entry's own (it alone is dropped).

use rusqlite::ErrorCode;

use crate::runtime::journal::JournalError;

/// What can be done about pages that are damaged. The file is told by its key: who asked over HTTP is no business of where it lies.
const DAMAGED: &str = "pages of the file that journal.path names are damaged; stop the service, see `PRAGMA integrity_check`, save what `.recover` saves or put a backup back (docs/journal.md)";

/// A write or read that did not succeed.
#[derive(Debug)]
pub(super) enum Fault {
    /// The database says so.
    Database(rusqlite::Error),
    /// We say so of the entry.
    Own(JournalError),
    /// We say so of the file as a whole.
    Place(JournalError),
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        Self::Database(error)
    }
}

impl From<JournalError> for Fault {
    fn from(error: JournalError) -> Self {
        Self::Own(error)
    }
}

impl From<serde_json::Error> for Fault {
    fn from(error: serde_json::Error) -> Self {
        Self::Own(JournalError::Corrupt(format!("an entry is not readable: {error}")))
    }
}

impl Fault {
    /// True where the same write alone would fail just as well, on any disk: it is too large, or breaks a rule of the file.
    pub(super) fn is_of_the_entry(&self) -> bool {
        let code = match self {
            Self::Database(error) => error.sqlite_error_code(),
            Self::Own(_) => return true,
            Self::Place(_) => return false,
        };
        match code {
            Some(code) => {
                matches!(code, ErrorCode::TooBig | ErrorCode::ConstraintViolation | ErrorCode::TypeMismatch)
            }
            // An error of the library and not of the database: a value that cannot be bound or read.
            None => true,
        }
    }
}

impl From<Fault> for JournalError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Own(error) | Fault::Place(error) => error,
            Fault::Database(error) => {
                let text = error.to_string();
                match error.sqlite_error_code() {
                    Some(ErrorCode::DiskFull) => Self::Full(text),
                    Some(ErrorCode::DatabaseCorrupt) => Self::Corrupt(format!("{text}: {DAMAGED}")),
                    Some(ErrorCode::NotADatabase) => Self::Corrupt(text),
                    _ => Self::Failed(text),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_pages_are_told_with_file_and_next_step() {
        let of = |code| {
            JournalError::from(Fault::Database(rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), None)))
        };
        for (code, says_so) in [
            (rusqlite::ffi::SQLITE_CORRUPT, true),
            (rusqlite::ffi::SQLITE_NOTADB, false),
            (rusqlite::ffi::SQLITE_FULL, false),
        ] {
            let said = of(code).to_string();
            let named = ["journal.path", "integrity_check", "docs/journal.md"].iter().all(|word| said.contains(word));
            assert_eq!(named, says_so, "{said}");
        }
    }
}
