//! Numbers, ids and names as the database keeps them: 64-bit signed, ids of runs in 16 bytes, names as small numbers.

use std::collections::HashMap;

use rusqlite::{Connection, OptionalExtension as _, types::Value as Sql};
use uuid::Uuid;

use super::fault::Fault;
use crate::model::run::RunStatus;

/// So many names are remembered; more are asked for each time.
const NAMES_KEPT_MAX: usize = 10_000;

/// As the database keeps it; larger numbers do not occur and saturate.
pub(super) fn to_sql(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Back again.
pub(super) fn from_sql(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// A run's id as its key: 16 bytes where it is a UUID in its usual form, else its text.
pub(super) fn run_key(run_id: &str) -> Sql {
    let mut buffer = Uuid::encode_buffer();
    match Uuid::parse_str(run_id) {
        Ok(uuid) if *uuid.hyphenated().encode_lower(&mut buffer) == *run_id => Sql::Blob(uuid.as_bytes().to_vec()),
        _ => Sql::Text(run_id.to_owned()),
    }
}

/// The id of a key.
pub(super) fn run_id_of(key: Sql) -> String {
    match key {
        Sql::Blob(bytes) => Uuid::from_slice(&bytes).map(|uuid| uuid.hyphenated().to_string()).unwrap_or_default(),
        Sql::Text(text) => text,
        _ => String::new(),
    }
}

/// Every status and the number that stands for it in the file: never changed, only added to.
const STATUSES: [(RunStatus, i64); 8] = [
    (RunStatus::Queued, 0),
    (RunStatus::Running, 1),
    (RunStatus::Parked, 2),
    (RunStatus::Completed, 3),
    (RunStatus::CompletedDegraded, 4),
    (RunStatus::Failed, 5),
    (RunStatus::Cancelled, 6),
    (RunStatus::TimedOut, 7),
];

pub(super) fn status_number(status: RunStatus) -> i64 {
    STATUSES.iter().find(|(known, _)| *known == status).map_or(0, |(_, number)| *number)
}

pub(super) fn status_of(number: i64) -> RunStatus {
    STATUSES.iter().find(|(_, known)| *known == number).map_or(RunStatus::Queued, |(status, _)| *status)
}

/// The numbers of names that the writer has met. Emptied when a transaction is rolled back: its numbers never were.
#[derive(Debug, Default)]
pub(super) struct Names {
    known: HashMap<String, i64>,
}

impl Names {
    /// The number of `text`, a new one if need be; 0 for none.
    pub(super) fn number(&mut self, connection: &Connection, text: Option<&str>) -> Result<i64, Fault> {
        let Some(text) = text else { return Ok(0) };
        if let Some(number) = self.known.get(text) {
            return Ok(*number);
        }
        let number = match find_name(connection, Some(text))? {
            Some(number) => number,
            None => connection
                .prepare_cached("INSERT INTO name (text) VALUES (?1) RETURNING name")?
                .query_row([text], |row| row.get(0))?,
        };
        if self.known.len() < NAMES_KEPT_MAX {
            self.known.insert(text.to_owned(), number);
        }
        Ok(number)
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        self.known.clear();
    }
}

/// The number of a name, `None` if nothing has it; 0 for none.
pub(super) fn find_name(connection: &Connection, text: Option<&str>) -> Result<Option<i64>, Fault> {
    let Some(text) = text else { return Ok(Some(0)) };
    let mut statement = connection.prepare_cached("SELECT name FROM name WHERE text = ?1")?;
    Ok(statement.query_row([text], |row| row.get(0)).optional()?)
}

/// The name of a number.
pub(super) fn name_text(connection: &Connection, number: i64) -> Result<Option<String>, Fault> {
    if number == 0 {
        return Ok(None);
    }
    let mut statement = connection.prepare_cached("SELECT text FROM name WHERE name = ?1")?;
    Ok(statement.query_row([number], |row| row.get(0)).optional()?)
}
