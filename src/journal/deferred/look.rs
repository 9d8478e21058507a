//! What people ask of the deferred queue: an entry, a page of entries, that one is wanted no more. Whose entries are meant is said with
//! every question.

use rusqlite::Connection;

use super::row::{self, COLUMNS, Found, TABLES, status_number};
use crate::{
    journal::{
        fault::Fault,
        journal::SqliteJournal,
        number::{find_name, to_sql},
        query::TenantScope,
        row_cursor::{List, RowCursor},
        work::Within,
    },
    runtime::{
        deferred::store::{DeferredEntry, DeferredResult, DeferredStatus},
        journal::JournalError,
    },
};

/// The most entries of a page.
pub const ENTRIES_MAX: usize = 1_000;

/// What became of a wish to cancel an entry.
#[derive(Debug, Clone, PartialEq)]
pub enum Cancelling {
    /// It is cancelled.
    Done,
    /// It was over before.
    Over(DeferredStatus),
    /// There is no such entry in this scope.
    NotFound,
}

/// Which entries are meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeferredFilter {
    /// Whose.
    pub scope: TenantScope,
    /// Only in this state.
    pub status: Option<DeferredStatus>,
    /// Where the page before ended.
    pub before: Option<RowCursor>,
    /// At most so many; [`ENTRIES_MAX`] is the most.
    pub count_max: usize,
}

/// Entries, and where the next ones begin.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DeferredPage {
    /// The newest first.
    pub entries: Vec<DeferredEntry>,
    /// `None` = there are no more.
    pub next: Option<RowCursor>,
}

impl SqliteJournal {
    /// An entry; `None` if there is none in this scope.
    pub async fn deferred(&self, scope: TenantScope, id: &str) -> Result<Option<DeferredEntry>, JournalError> {
        let id = id.to_owned();
        self.ask(move |connection| match row::find(connection, &id)? {
            Some(found) if scope.sees(connection, found.tenant)? => Ok(Some(found.entry()?)),
            _ => Ok(None),
        })
        .await
    }

    /// The newest entries that fit, without their results.
    pub async fn deferred_entries(&self, filter: DeferredFilter) -> Result<DeferredPage, JournalError> {
        self.ask(move |connection| list(connection, &filter)).await
    }

    /// So many calls wait in the queue.
    pub async fn deferred_waiting(&self) -> Result<u64, JournalError> {
        self.ask(|connection| row::waiting(connection, None)).await
    }

    /// Ends an entry that is not over as cancelled; whoever works on it can change it no more.
    pub async fn cancel_deferred(&self, scope: TenantScope, id: &str) -> Result<Cancelling, JournalError> {
        let id = id.to_owned();
        self.write(move |within| cancel(within, &scope, &id)).await
    }
}

fn list(connection: &Connection, filter: &DeferredFilter) -> Result<DeferredPage, Fault> {
    let (condition, tenant) = match &filter.scope {
        TenantScope::All => ("?2 IS NOT NULL", 0),
        TenantScope::One(tenant) => match find_name(connection, tenant.as_deref())? {
            Some(tenant) => ("deferred.tenant = ?2", tenant),
            None => return Ok(DeferredPage::default()),
        },
    };
    let status = filter.status.map_or(-1, status_number);
    // Results may be large.
    let columns = COLUMNS.replace("deferred.result", "NULL");
    let sql = format!(
        "SELECT {columns} FROM {TABLES} WHERE deferred.deferred < ?1 AND {condition} AND (?3 < 0 OR deferred.status = ?3)
            ORDER BY deferred.deferred DESC LIMIT ?4"
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let count_max = filter.count_max.min(ENTRIES_MAX);
    let values = (RowCursor::row_before(filter.before), tenant, status, to_sql(count_max as u64));
    let found = statement.query_map(values, Found::of)?.collect::<Result<Vec<_>, _>>()?;
    let last = found.last().filter(|_| found.len() >= count_max);
    let next = last.map(|last| RowCursor::after(List::Deferred, last.row));
    Ok(DeferredPage { entries: found.into_iter().map(Found::entry).collect::<Result<_, _>>()?, next })
}

fn cancel(within: &mut Within<'_>, scope: &TenantScope, id: &str) -> Result<Cancelling, Fault> {
    let Some(found) = row::find(within.connection, id)? else { return Ok(Cancelling::NotFound) };
    if !scope.sees(within.connection, found.tenant)? {
        return Ok(Cancelling::NotFound);
    }
    let row = found.row;
    let entry = found.entry()?;
    if entry.status != DeferredStatus::Waiting {
        return Ok(Cancelling::Over(entry.status));
    }
    let result = DeferredResult { output: None, usage: None, target: None, error: Some(entry.head.error) };
    row::end(within.connection, row, DeferredStatus::Cancelled, &result, within.now_ms)?;
    // Whoever cancels knows.
    within.connection.prepare_cached("DELETE FROM deferred_push WHERE deferred = ?1")?.execute([row])?;
    Ok(Cancelling::Done)
}
