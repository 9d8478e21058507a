//! Calls that were put aside, until an operator decides.

use rusqlite::{Connection, OptionalExtension as _};

use super::{
    fault::Fault,
    journal::SqliteJournal,
    number::{find_name, run_id_of, run_key, to_sql},
    pack::{pack, unpack},
    query::TenantScope,
    row_cursor::{List, RowCursor},
    work::{Kept, Within},
};
use crate::runtime::journal::{DeadLetter, JournalError};

/// The most letters of one answer.
pub const LETTERS_MAX: usize = 1_000;

impl SqliteJournal {
    /// The newest letters of a scope, at most `max`, from where the page before ended; and where the next ones begin.
    pub async fn dead_letters(
        &self,
        scope: TenantScope,
        before: Option<RowCursor>,
        max: usize,
    ) -> Result<(Vec<DeadLetter>, Option<RowCursor>), JournalError> {
        self.ask(move |connection| list(connection, &scope, before, max.min(LETTERS_MAX))).await
    }

    /// A letter; `None` if there is none in this scope.
    pub async fn dead_letter(&self, scope: TenantScope, id: &str) -> Result<Option<DeadLetter>, JournalError> {
        let id = id.to_owned();
        self.ask(move |connection| find(connection, &scope, &id)).await
    }

    /// Takes a letter out and gives it to whoever asked first: of two who would replay it, one gets it.
    pub async fn take_dead_letter(&self, scope: TenantScope, id: &str) -> Result<Option<DeadLetter>, JournalError> {
        let id = id.to_owned();
        self.write(move |within| {
            let letter = find(within.connection, &scope, &id)?;
            within
                .connection
                .prepare_cached("DELETE FROM dead_letter WHERE id = ?1 AND ?2")?
                .execute((&id, letter.is_some()))?;
            Ok(letter)
        })
        .await
    }

    pub(super) fn put_letter(&self, letter: DeadLetter) {
        let body = match serde_json::to_vec(&letter) {
            Ok(body) => pack(&body),
            Err(error) => {
                tracing::error!(%error, letter = letter.id, "a dead letter cannot be written");
                return;
            }
        };
        let bytes = body.len();
        let (id, at_ms, tenant) = (letter.id, to_sql(letter.at_ms), letter.owner.tenant);
        let run = letter.run_id.as_deref().map(run_key);
        let act = move |within: &mut Within<'_>| -> Result<(), Fault> {
            let tenant = within.names.number(within.connection, tenant.as_deref())?;
            // A letter that is put aside once more is the same letter.
            let sql =
                "INSERT OR REPLACE INTO dead_letter (id, tenant, at_ms, body, run_id) VALUES (?1, ?2, ?3, ?4, ?5)";
            within.connection.prepare_cached(sql)?.execute((&id, tenant, at_ms, &body, &run))?;
            Ok(())
        };
        self.queue(Box::new(Kept(act, bytes)));
    }
}

/// Takes away what waited for an operator in this run, which is over: there is nothing left that could be let go on. Such letters are
/// named by their run first.
pub(super) fn end_waiting(connection: &Connection, run: i64) -> Result<(), Fault> {
    let mut statement = connection.prepare_cached("SELECT run_id FROM run WHERE run = ?1")?;
    let run_id = run_id_of(statement.query_row([run], |row| row.get(0))?);
    // The sign after the colon.
    let (from, to) = (format!("{run_id}:"), format!("{run_id};"));
    connection.prepare_cached("DELETE FROM dead_letter WHERE id > ?1 AND id < ?2")?.execute((from, to))?;
    Ok(())
}

fn find(connection: &Connection, scope: &TenantScope, id: &str) -> Result<Option<DeadLetter>, Fault> {
    let mut statement = connection.prepare_cached("SELECT tenant, body FROM dead_letter WHERE id = ?1")?;
    let found: Option<(i64, Vec<u8>)> = statement.query_row([id], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
    match found {
        Some((tenant, body)) if scope.sees(connection, tenant)? => Ok(Some(serde_json::from_slice(&unpack(&body)?)?)),
        _ => Ok(None),
    }
}

fn list(
    connection: &Connection,
    scope: &TenantScope,
    before: Option<RowCursor>,
    max: usize,
) -> Result<(Vec<DeadLetter>, Option<RowCursor>), Fault> {
    let (condition, tenant) = match scope {
        TenantScope::All => ("?2 IS NOT NULL", 0),
        TenantScope::One(tenant) => match find_name(connection, tenant.as_deref())? {
            Some(tenant) => ("tenant = ?2", tenant),
            None => return Ok((Vec::new(), None)),
        },
    };
    let sql =
        format!("SELECT body, letter FROM dead_letter WHERE letter < ?1 AND {condition} ORDER BY letter DESC LIMIT ?3");
    let mut statement = connection.prepare_cached(&sql)?;
    let mut rows = statement.query((RowCursor::row_before(before), tenant, to_sql(max as u64)))?;
    let (mut letters, mut last) = (Vec::new(), None);
    while let Some(row) = rows.next()? {
        letters.push(serde_json::from_slice(&unpack(&row.get::<_, Vec<u8>>(0)?)?)?);
        last = Some(RowCursor::after(List::DeadLetters, row.get(1)?));
    }
    let next = last.filter(|_| letters.len() >= max);
    Ok((letters, next))
}
