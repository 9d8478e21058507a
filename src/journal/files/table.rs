//! Files in the database: whose they are, what they are, which runs name them. An id is random and given to one upload of one tenant;
//! the same bytes sent twice lie on the disk once and have two ids.

use std::collections::BTreeSet;

use rusqlite::{Connection, OptionalExtension as _};
use serde_json::{Map, Value};

use crate::{
    journal::{
        fault::Fault,
        number::{find_name, from_sql, to_sql},
        query::TenantScope,
        slot::Hash,
        work::Within,
    },
    model::file_id::{self, is_file_id},
    runtime::journal::JournalError,
};

/// A file that was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredFile {
    /// Random; names this upload.
    pub id: String,
    /// Whose it is.
    pub tenant: Option<String>,
    /// The name for people: no path, no control characters.
    pub name: String,
    /// What the bytes are, by themselves.
    pub media_type: String,
    /// Their number.
    pub bytes: u64,
    /// SHA-256 of them.
    pub hash: [u8; 32],
    /// Unix milliseconds.
    pub created_ms: u64,
    /// Runs that name it.
    pub runs: u64,
}

/// Writes a new file down. Bytes that lost their last owner in this same transaction have one again.
pub(in crate::journal) fn insert(within: &mut Within<'_>, file: &StoredFile) -> Result<(), Fault> {
    within.unowned.retain(|hash| *hash != file.hash);
    let tenant = within.names.number(within.connection, file.tenant.as_deref())?;
    within
        .connection
        .prepare_cached(
            "INSERT INTO file (id, tenant, name, type, bytes, hash, created_ms, runs) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 0)",
        )?
        .execute((
            &file.id,
            tenant,
            &file.name,
            &file.media_type,
            to_sql(file.bytes),
            file.hash,
            to_sql(file.created_ms),
        ))?;
    Ok(())
}

/// A file by its id, if it is within the scope.
pub(in crate::journal) fn find(
    connection: &Connection,
    scope: &TenantScope,
    id: &str,
) -> Result<Option<StoredFile>, Fault> {
    let mut statement = connection.prepare_cached(
        "SELECT file.tenant, name.text, file.name, type, bytes, hash, created_ms, runs
         FROM file LEFT JOIN name ON name.name = file.tenant WHERE id = ?1",
    )?;
    let found = statement
        .query_row([id], |row| {
            let file = StoredFile {
                id: id.to_owned(),
                tenant: row.get(1)?,
                name: row.get(2)?,
                media_type: row.get(3)?,
                bytes: from_sql(row.get(4)?),
                hash: row.get::<_, Hash>(5)?,
                created_ms: from_sql(row.get(6)?),
                runs: from_sql(row.get(7)?),
            };
            Ok((row.get::<_, i64>(0)?, file))
        })
        .optional()?;
    let Some((tenant, file)) = found else { return Ok(None) };
    let is_seen = match scope {
        TenantScope::All => true,
        TenantScope::One(own) => find_name(connection, own.as_deref())? == Some(tenant),
    };
    Ok(is_seen.then_some(file))
}

/// Notes that a run names the files in its input. Only files of its own tenant: another's id in a text is a text like any other.
pub(in crate::journal) fn name_files(
    within: &Within<'_>,
    run: i64,
    tenant: i64,
    input: &Map<String, Value>,
) -> Result<(), Fault> {
    for id in Named::of(input).all {
        let mut statement = within.connection.prepare_cached("SELECT file FROM file WHERE id = ?1 AND tenant = ?2")?;
        let Some(file) = statement.query_row((id, tenant), |row| row.get::<_, i64>(0)).optional()? else { continue };
        within.connection.prepare_cached("INSERT INTO run_file VALUES (?1, ?2)")?.execute([run, file])?;
        within.connection.prepare_cached("UPDATE file SET runs = runs + 1 WHERE file = ?1")?.execute([file])?;
    }
    Ok(())
}

/// Ids of files that stand in an input.
#[derive(Default)]
struct Named<'v> {
    /// Wherever they stand.
    all: BTreeSet<&'v str>,
    /// Those that make an object a file: they were there when the run was asked for, and its calls cannot be made without them.
    as_files: BTreeSet<&'v str>,
}

impl<'v> Named<'v> {
    fn of(input: &'v Map<String, Value>) -> Self {
        let mut named = Self::default();
        input.values().for_each(|value| named.collect(value));
        named
    }

    /// Bounded in depth by what an input may have.
    fn collect(&mut self, value: &'v Value) {
        match value {
            Value::String(text) if is_file_id(text) => {
                self.all.insert(text);
            }
            Value::Array(items) => items.iter().for_each(|item| self.collect(item)),
            Value::Object(fields) => {
                self.as_files.extend(file_id::of_object(fields));
                fields.values().for_each(|field| self.collect(field));
            }
            _ => {}
        }
    }
}

/// A file of the input that is not there any more, or never was this tenant's. Whoever asked for the run was told of a file that has
/// been deleted since; the run could do nothing but fail. Asked in the transaction that writes the run down: from then on the file is kept.
pub(in crate::journal) fn missing_file(
    within: &Within<'_>,
    tenant: i64,
    input: &Map<String, Value>,
) -> Result<Option<String>, Fault> {
    let mut statement = within.connection.prepare_cached("SELECT 1 FROM file WHERE id = ?1 AND tenant = ?2")?;
    for id in Named::of(input).as_files {
        if !statement.exists((id, tenant))? {
            return Ok(Some(id.to_owned()));
        }
    }
    Ok(None)
}

/// A run lets go of its files; those that no other run names go with it.
pub(in crate::journal) fn release_files(within: &mut Within<'_>, run: i64) -> Result<(), Fault> {
    let connection = within.connection;
    let mut statement = connection.prepare_cached("SELECT file FROM run_file WHERE run = ?1")?;
    let files: Vec<i64> = statement.query_map([run], |row| row.get(0))?.collect::<Result<_, _>>()?;
    connection.prepare_cached("DELETE FROM run_file WHERE run = ?1")?.execute([run])?;
    for file in files {
        let runs: i64 = connection
            .prepare_cached("UPDATE file SET runs = runs - 1 WHERE file = ?1 RETURNING runs")?
            .query_row([file], |row| row.get(0))?;
        if runs <= 0 {
            remove(within, file)?;
        }
    }
    Ok(())
}

/// Removes a file; its bytes go if nobody else sent the same.
pub(in crate::journal) fn remove(within: &mut Within<'_>, file: i64) -> Result<(), Fault> {
    let connection = within.connection;
    let hash: Option<Hash> = connection
        .prepare_cached("DELETE FROM file WHERE file = ?1 RETURNING hash")?
        .query_row([file], |row| row.get(0))
        .optional()?;
    let Some(hash) = hash else { return Ok(()) };
    let others: i64 =
        connection.prepare_cached("SELECT count(*) FROM file WHERE hash = ?1")?.query_row([hash], |row| row.get(0))?;
    if others == 0 {
        within.unowned.push(hash);
    }
    Ok(())
}

/// The same by its id.
pub(in crate::journal) fn remove_by_id(within: &mut Within<'_>, id: &str) -> Result<(), Fault> {
    let mut statement = within.connection.prepare_cached("SELECT file FROM file WHERE id = ?1")?;
    match statement.query_row([id], |row| row.get(0)).optional()? {
        Some(file) => remove(within, file),
        None => Ok(()),
    }
}

/// Files of a tenant, and how many bytes they have.
pub(in crate::journal) fn holdings(within: &mut Within<'_>, tenant: Option<&str>) -> Result<(u64, u64), Fault> {
    let tenant = within.names.number(within.connection, tenant)?;
    let mut statement =
        within.connection.prepare_cached("SELECT count(*), coalesce(sum(bytes), 0) FROM file WHERE tenant = ?1")?;
    Ok(statement.query_row([tenant], |row| Ok((from_sql(row.get(0)?), from_sql(row.get(1)?))))?)
}

/// What a disk says about bytes that could not be moved.
pub(in crate::journal) fn disk_fault(error: &std::io::Error) -> Fault {
    let text = format!("a file's bytes: {error}");
    Fault::Own(if error.kind() == std::io::ErrorKind::StorageFull {
        JournalError::Full(text)
    } else {
        JournalError::Failed(text)
    })
}
