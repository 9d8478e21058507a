//! The file's tables and how a file is opened: connection settings, the mark that it is ours, migrations. Forward only: a file of a
//! newer program is refused, a file of another program too.

use std::{path::Path, time::Duration};

use rusqlite::{Connection, OpenFlags};

use super::{
    fault::Fault,
    settings::{JournalSettings, Survives},
};
use crate::runtime::journal::JournalError;

/// Marks a file as ours: "WTJL".
const APPLICATION_ID: i64 = 0x5754_4A4C;
/// How long a statement waits for a lock of another connection.
pub(super) const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Statements that each connection keeps compiled.
const STATEMENTS_KEPT: usize = 128;
/// Pages in memory, in KiB, for each connection.
const CACHE_KIB: i64 = 16 * 1024;
/// Once so many pages stand in the log they are carried over into the file.
const CHECKPOINT_PAGES: i64 = 2_000;
/// Past so many bytes the log file is cut after it was carried over.
const LOG_BYTES_KEPT: i64 = 16 * 1024 * 1024;

/// One step for each version of the file. Only ever added to.
const MIGRATIONS: &[&str] =
    &[VERSION_1, DEFERRED, DEFERRED_TURNS, CURRENCIES, SHUT_CALLERS, LETTERS_OF_RUNS, DEFERRED_OF_RUNS, UNPRICED];

/// Runs are numbered in the order of their acceptance (`run.run`). Names are numbers everywhere; 0 is none.
const VERSION_1: &str = "
CREATE TABLE name (name INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE);
CREATE TABLE workflow (workflow INTEGER PRIMARY KEY, hash TEXT NOT NULL UNIQUE, name INTEGER NOT NULL, text BLOB NOT NULL);
CREATE TABLE content (
    content INTEGER PRIMARY KEY, hash BLOB NOT NULL UNIQUE, body BLOB NOT NULL, runs INTEGER NOT NULL);
CREATE TABLE run (
    run INTEGER PRIMARY KEY, run_id NOT NULL UNIQUE, tenant INTEGER NOT NULL, feature INTEGER NOT NULL,
    workflow INTEGER NOT NULL, status INTEGER NOT NULL, number INTEGER NOT NULL, generation INTEGER NOT NULL,
    created_ms INTEGER NOT NULL, deadline_ms INTEGER NOT NULL, started_ms INTEGER, ended_ms INTEGER);
CREATE INDEX run_tenant ON run (tenant);
CREATE INDEX run_live ON run (run) WHERE ended_ms IS NULL;
CREATE INDEX run_ended ON run (status, ended_ms) WHERE ended_ms IS NOT NULL;
CREATE TABLE story (run INTEGER PRIMARY KEY, accepted BLOB NOT NULL, record BLOB, events BLOB);
CREATE TABLE entry (
    run INTEGER NOT NULL, entry INTEGER NOT NULL, event_last INTEGER NOT NULL, events BLOB NOT NULL, ended BLOB NOT NULL,
    PRIMARY KEY (run, entry)) WITHOUT ROWID;
CREATE TABLE run_content (run INTEGER NOT NULL, content INTEGER NOT NULL, PRIMARY KEY (run, content)) WITHOUT ROWID;
CREATE TABLE idempotency (
    tenant INTEGER NOT NULL, key TEXT NOT NULL, request_hash TEXT NOT NULL, run_id NOT NULL, expires_ms INTEGER NOT NULL,
    PRIMARY KEY (tenant, key)) WITHOUT ROWID;
CREATE INDEX idempotency_expires ON idempotency (expires_ms);
CREATE INDEX idempotency_run ON idempotency (run_id);
CREATE TABLE dead_letter (
    letter INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, tenant INTEGER NOT NULL, at_ms INTEGER NOT NULL, body BLOB NOT NULL);
CREATE INDEX dead_letter_tenant ON dead_letter (tenant);
CREATE TABLE operator_mode (
    breaker TEXT PRIMARY KEY, mode TEXT NOT NULL, reason TEXT NOT NULL, set_ms INTEGER NOT NULL, set_by TEXT) WITHOUT ROWID;
CREATE TABLE usage (
    day INTEGER NOT NULL, tenant INTEGER NOT NULL, feature INTEGER NOT NULL, agent INTEGER NOT NULL, model INTEGER NOT NULL,
    calls INTEGER NOT NULL, failures INTEGER NOT NULL, refusals INTEGER NOT NULL, prompt_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL, estimated INTEGER NOT NULL, cost REAL,
    PRIMARY KEY (day, tenant, feature, agent, model)) WITHOUT ROWID;
CREATE TABLE capture (
    capture INTEGER PRIMARY KEY, tenant INTEGER NOT NULL, run_id, call_id TEXT NOT NULL, at_ms INTEGER NOT NULL,
    expires_ms INTEGER NOT NULL, body BLOB NOT NULL);
CREATE INDEX capture_run ON capture (run_id);
CREATE INDEX capture_expires ON capture (expires_ms);
CREATE TABLE capture_read (
    reading INTEGER PRIMARY KEY, run_id NOT NULL, tenant INTEGER NOT NULL, reader TEXT NOT NULL, at_ms INTEGER NOT NULL,
    captures INTEGER NOT NULL);
CREATE INDEX capture_read_run ON capture_read (run_id);
CREATE TABLE file (
    file INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, tenant INTEGER NOT NULL, name TEXT NOT NULL, type TEXT NOT NULL,
    bytes INTEGER NOT NULL, hash BLOB NOT NULL, created_ms INTEGER NOT NULL, runs INTEGER NOT NULL);
CREATE INDEX file_hash ON file (hash);
CREATE INDEX file_tenant ON file (tenant);
CREATE INDEX file_unused ON file (created_ms) WHERE runs = 0;
CREATE TABLE run_file (run INTEGER NOT NULL, file INTEGER NOT NULL, PRIMARY KEY (run, file)) WITHOUT ROWID;
";

/// Calls that are made later. One that is worked on has an owner; `pushed` says that somebody is told of its end.
const DEFERRED: &str = "
CREATE TABLE deferred (
    deferred INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, tenant INTEGER NOT NULL, agent INTEGER NOT NULL, key TEXT NOT NULL,
    request_hash TEXT, status INTEGER NOT NULL, created_ms INTEGER NOT NULL, due_ms INTEGER NOT NULL,
    expires_ms INTEGER NOT NULL, ended_ms INTEGER, attempts INTEGER NOT NULL, refusals INTEGER NOT NULL, owner TEXT,
    lease_ms INTEGER, generation INTEGER NOT NULL, pushed INTEGER NOT NULL, head BLOB NOT NULL, work BLOB,
    result BLOB);
CREATE UNIQUE INDEX deferred_key ON deferred (tenant, agent, key);
CREATE INDEX deferred_due ON deferred (due_ms) WHERE status = 0;
CREATE INDEX deferred_expires ON deferred (expires_ms) WHERE status = 0;
CREATE INDEX deferred_tenant ON deferred (status, tenant);
CREATE INDEX deferred_ended ON deferred (ended_ms) WHERE ended_ms IS NOT NULL;
CREATE TABLE deferred_push (
    deferred INTEGER PRIMARY KEY, status INTEGER NOT NULL, attempts INTEGER NOT NULL, due_ms INTEGER NOT NULL, owner TEXT,
    lease_ms INTEGER, generation INTEGER NOT NULL, http_status INTEGER, error TEXT, at_ms INTEGER);
CREATE INDEX deferred_push_due ON deferred_push (due_ms) WHERE status = 0;
";

/// Tenants take turns: each one's earliest entry is found without looking at the others'.
const DEFERRED_TURNS: &str = "CREATE INDEX deferred_turn ON deferred (tenant, due_ms) WHERE status = 0;";
/// Costs of different money stand on lines of their own, so that nobody adds them up. Columns of the key stand first: the integrity check of
/// `SQLite` 3.40 takes any other order for damage.
const CURRENCIES: &str = "
CREATE TABLE usage_by_currency (
    day INTEGER NOT NULL, tenant INTEGER NOT NULL, feature INTEGER NOT NULL, agent INTEGER NOT NULL, model INTEGER NOT NULL,
    currency INTEGER NOT NULL, calls INTEGER NOT NULL, failures INTEGER NOT NULL, refusals INTEGER NOT NULL,
    prompt_tokens INTEGER NOT NULL, output_tokens INTEGER NOT NULL, estimated INTEGER NOT NULL, cost REAL,
    PRIMARY KEY (day, tenant, feature, agent, model, currency)) WITHOUT ROWID;
INSERT INTO usage_by_currency
    SELECT day, tenant, feature, agent, model, 0, calls, failures, refusals, prompt_tokens, output_tokens, estimated, cost FROM usage;
DROP TABLE usage;
ALTER TABLE usage_by_currency RENAME TO usage;
";

/// Callers whose volume guards are shut, by their name as operators write it.
const SHUT_CALLERS: &str =
    "CREATE TABLE shut_caller (caller TEXT PRIMARY KEY, since_ms INTEGER NOT NULL, seconds BLOB NOT NULL);";

/// A letter's run, so that it goes with the run; unknown of older ones.
const LETTERS_OF_RUNS: &str = "
ALTER TABLE dead_letter ADD COLUMN run_id;
CREATE INDEX dead_letter_run ON dead_letter (run_id) WHERE run_id IS NOT NULL;
";

/// The run of a call that was put off, so that it goes with the run; unknown of older ones.
const DEFERRED_OF_RUNS: &str = "
ALTER TABLE deferred ADD COLUMN run_id;
CREATE INDEX deferred_run ON deferred (run_id) WHERE run_id IS NOT NULL;
";

/// Calls without a price beside those that have one; of older lines nobody knows.
const UNPRICED: &str = "ALTER TABLE usage ADD COLUMN unpriced INTEGER NOT NULL DEFAULT 0;";

/// The connection that writes, on a file that is ours and of this version.
pub(super) fn open_writer(settings: &JournalSettings) -> Result<Connection, JournalError> {
    let path = &settings.path;
    let open = || -> Result<Connection, Fault> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut connection = Connection::open_with_flags(path, flags)?;
        prepare(&connection)?;
        claim(&connection, path)?;
        let mode: String = connection.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0))?;
        if mode != "wal" {
            return Err(JournalError::Failed(format!("{}: no write-ahead log here ({mode})", path.display())).into());
        }
        let synchronous = match settings.survives {
            Survives::Process => "normal",
            Survives::Power => "full",
        };
        connection.pragma_update(None, "synchronous", synchronous)?;
        // Who has something deleted does not mean a page that still says it.
        connection.pragma_update_and_check(None, "secure_delete", "on", |_| Ok(()))?;
        connection.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
        connection.pragma_update(None, "journal_size_limit", LOG_BYTES_KEPT)?;
        migrate(&mut connection, path)?;
        if let Some(size_max) = settings.size_max {
            let page_bytes: i64 = connection.pragma_query_value(None, "page_size", |row| row.get(0))?;
            let pages = i64::try_from(size_max).unwrap_or(i64::MAX) / page_bytes.max(1);
            connection.pragma_update(None, "max_page_count", pages.max(1))?;
        }
        Ok(connection)
    };
    open().map_err(|fault| named(path, fault.into()))
}

/// Whether this program could take the file over from whoever holds it now: one of ours, of a version that is known here, which this
/// process may read and write. A file that is not there yet is as good. Changes nothing.
pub(super) fn look_ahead(path: &Path) -> Result<(), JournalError> {
    let look = || -> Result<(), Fault> {
        if !path.try_exists().map_err(|error| JournalError::Failed(error.to_string()))? {
            return Ok(());
        }
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags)?;
        prepare(&connection)?;
        if connection.is_readonly(rusqlite::MAIN_DB)? {
            return Err(JournalError::Failed("this process may not write it".to_owned()).into());
        }
        // One that was just made says nothing of itself yet.
        let tables: i64 = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
        if tables > 0 {
            check_owner(&connection, path)?;
        }
        check_version(&connection, path).map(drop)
    };
    look().map_err(|fault| named(path, fault.into()))
}

/// A connection that only reads.
pub(super) fn open_reader(path: &Path) -> Result<Connection, Fault> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    prepare(&connection)?;
    Ok(connection)
}

fn prepare(connection: &Connection) -> Result<(), Fault> {
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS_KEPT);
    connection.pragma_update(None, "cache_size", -CACHE_KIB)?;
    connection.pragma_update(None, "temp_store", "memory")?;
    // A statement that names a column in double quotes by mistake is an error, and a damaged schema is not trusted.
    connection.pragma_update(None, "trusted_schema", false)?;
    Ok(())
}

/// Makes an empty file ours; refuses one of another program.
fn claim(connection: &Connection, path: &Path) -> Result<(), Fault> {
    let tables: i64 = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    let application: i64 = connection.pragma_query_value(None, "application_id", |row| row.get(0))?;
    if tables == 0 && application == 0 {
        // Both must stand before the first table.
        connection.pragma_update(None, "auto_vacuum", "incremental")?;
        connection.pragma_update(None, "application_id", APPLICATION_ID)?;
        return Ok(());
    }
    check_owner(connection, path)
}

fn check_owner(connection: &Connection, path: &Path) -> Result<(), Fault> {
    let application: i64 = connection.pragma_query_value(None, "application_id", |row| row.get(0))?;
    if application == APPLICATION_ID {
        return Ok(());
    }
    Err(JournalError::Corrupt(format!("{} is a database of another program", path.display())).into())
}

/// The version of the file, if this program knows it.
fn check_version(connection: &Connection, path: &Path) -> Result<i64, Fault> {
    let version: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    let known = i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX);
    if (0..=known).contains(&version) {
        return Ok(version);
    }
    let text = format!("{}: version {version} of a newer program; this one knows {known}", path.display());
    Err(JournalError::Failed(text).into())
}

fn migrate(connection: &mut Connection, path: &Path) -> Result<(), Fault> {
    let version = check_version(connection, path)?;
    for (number, migration) in (1_i64..).zip(MIGRATIONS).filter(|(number, _)| *number > version) {
        let transaction = connection.transaction()?;
        transaction.execute_batch(migration)?;
        transaction.pragma_update(None, "user_version", number)?;
        transaction.commit()?;
    }
    Ok(())
}

fn named(path: &Path, error: JournalError) -> JournalError {
    let file = path.display().to_string();
    let with = |text: String| if text.contains(&file) { text } else { format!("{file}: {text}") };
    match error {
        JournalError::Full(text) => JournalError::Full(with(text)),
        JournalError::Held(text) => JournalError::Held(with(text)),
        JournalError::Corrupt(text) => JournalError::Corrupt(with(text)),
        JournalError::Failed(text) => JournalError::Failed(with(text)),
        error @ (JournalError::Closed | JournalError::NoFile { .. }) => error,
    }
}
