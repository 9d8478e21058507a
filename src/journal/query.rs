//! Runs as they are looked for: heads of runs by id, pages of heads by filter. Whose runs are meant is said with every question. A page
//! may be short and still have a next one: no question looks at more than so many rows.

use rusqlite::{Connection, OptionalExtension as _, types::Value as Sql};
use serde::Serialize;

use super::{
    fault::Fault,
    number::{find_name, from_sql, name_text, run_id_of, run_key, status_of, to_sql},
    pack::unpack,
    row_cursor::{List, RowCursor},
    written::WrittenRun,
};
use crate::{
    model::run::RunStatus,
    runtime::journal::{Origin, RunOwner},
};

/// The most runs of a page.
pub const PAGE_MAX: usize = 1_000;
/// So many runs are looked at for one page.
const ROWS_LOOKED_AT_MAX: usize = 20_000;

/// Whose things are meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TenantScope {
    /// Those of this tenant; `None` = of no tenant, where there are none.
    One(Option<String>),
    /// Everybody's: for operators.
    All,
}

impl TenantScope {
    /// Whether things of the tenant with this number are within the scope.
    pub(super) fn sees(&self, connection: &Connection, tenant: i64) -> Result<bool, Fault> {
        match self {
            Self::All => Ok(true),
            Self::One(own) => Ok(find_name(connection, own.as_deref())? == Some(tenant)),
        }
    }
}

/// Which runs are meant. Everything that is `None` or empty does not narrow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunFilter {
    /// Whose.
    pub scope: TenantScope,
    /// Of the workflow by this name.
    pub workflow: Option<String>,
    /// Of this feature.
    pub feature: Option<String>,
    /// In one of these states.
    pub statuses: Vec<RunStatus>,
    /// Accepted at this time or later; Unix milliseconds.
    pub since_ms: Option<u64>,
    /// Accepted before this time; Unix milliseconds.
    pub until_ms: Option<u64>,
    /// After this place of the list.
    pub cursor: Option<RowCursor>,
    /// At most so many; [`PAGE_MAX`] is the most.
    pub count_max: usize,
}

impl RunFilter {
    /// The newest hundred runs of a scope.
    pub fn of(scope: TenantScope) -> Self {
        Self {
            scope,
            workflow: None,
            feature: None,
            statuses: Vec::new(),
            since_ms: None,
            until_ms: None,
            cursor: None,
            count_max: 100,
        }
    }
}

/// What a list shows of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RunSummary {
    /// Its id.
    pub run_id: String,
    /// Its workflow.
    pub workflow: String,
    /// The version of that workflow.
    pub workflow_hash: String,
    /// Where it stands.
    pub status: RunStatus,
    /// Whose it is.
    pub tenant: Option<String>,
    /// The feature.
    pub feature: Option<String>,
    /// Unix milliseconds.
    pub created_ms: u64,
    /// Of its first step.
    pub started_ms: Option<u64>,
    /// Of its end.
    pub ended_ms: Option<u64>,
}

/// A page of a list; the newest run comes first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunPage {
    /// The runs.
    pub runs: Vec<RunSummary>,
    /// Where the next page begins; `None` = there is none.
    pub next: Option<RowCursor>,
}

/// What is known of a run without looking into it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunHead {
    /// As in a list.
    pub summary: RunSummary,
    /// Whose it is, in full.
    pub owner: RunOwner,
    /// Unix milliseconds.
    pub deadline_ms: u64,
    /// The run that it goes on from, if it does.
    pub origin: Option<Origin>,
}

const HEAD: &str = "SELECT run.run, run_id, tenant, feature, status, created_ms, started_ms, ended_ms, workflow.name, hash, deadline_ms
    FROM run JOIN workflow USING (workflow)";

struct HeadRow {
    run: i64,
    key: Sql,
    tenant: i64,
    feature: i64,
    status: i64,
    created_ms: i64,
    started_ms: Option<i64>,
    ended_ms: Option<i64>,
    workflow: i64,
    hash: String,
    deadline_ms: i64,
}

impl HeadRow {
    fn of(row: &rusqlite::Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            run: row.get(0)?,
            key: row.get(1)?,
            tenant: row.get(2)?,
            feature: row.get(3)?,
            status: row.get(4)?,
            created_ms: row.get(5)?,
            started_ms: row.get(6)?,
            ended_ms: row.get(7)?,
            workflow: row.get(8)?,
            hash: row.get(9)?,
            deadline_ms: row.get(10)?,
        })
    }

    fn summary(self, connection: &Connection) -> Result<RunSummary, Fault> {
        Ok(RunSummary {
            run_id: run_id_of(self.key),
            workflow: name_text(connection, self.workflow)?.unwrap_or_default(),
            workflow_hash: self.hash,
            status: status_of(self.status),
            tenant: name_text(connection, self.tenant)?,
            feature: name_text(connection, self.feature)?,
            created_ms: from_sql(self.created_ms),
            started_ms: self.started_ms.map(from_sql),
            ended_ms: self.ended_ms.map(from_sql),
        })
    }
}

/// A filter with names as numbers.
struct Wanted {
    workflow: Option<i64>,
    feature: Option<i64>,
    statuses: Vec<RunStatus>,
    since_ms: Option<i64>,
    until_ms: Option<i64>,
}

impl Wanted {
    fn takes(&self, row: &HeadRow) -> bool {
        self.workflow.is_none_or(|workflow| workflow == row.workflow)
            && self.feature.is_none_or(|feature| feature == row.feature)
            && (self.statuses.is_empty() || self.statuses.contains(&status_of(row.status)))
            && self.since_ms.is_none_or(|since| row.created_ms >= since)
            && self.until_ms.is_none_or(|until| row.created_ms < until)
    }
}

/// A page of runs.
pub(super) fn list(connection: &Connection, filter: RunFilter) -> Result<RunPage, Fault> {
    let nothing = RunPage { runs: Vec::new(), next: None };
    let number = |name: Option<&str>| name.map(|name| find_name(connection, Some(name))).transpose();
    let (workflow, feature) = (number(filter.workflow.as_deref())?, number(filter.feature.as_deref())?);
    // A name that the file does not have is that of no run.
    if workflow == Some(None) || feature == Some(None) {
        return Ok(nothing);
    }
    let wanted = Wanted {
        workflow: workflow.flatten(),
        feature: feature.flatten(),
        statuses: filter.statuses,
        since_ms: filter.since_ms.map(to_sql),
        until_ms: filter.until_ms.map(to_sql),
    };
    let before = RowCursor::row_before(filter.cursor);
    let (sql, tenant) = match &filter.scope {
        TenantScope::All => (format!("{HEAD} WHERE run.run < ?1 AND ?2 IS NOT NULL ORDER BY run.run DESC"), 0),
        TenantScope::One(tenant) => match find_name(connection, tenant.as_deref())? {
            Some(tenant) => (format!("{HEAD} WHERE run.run < ?1 AND tenant = ?2 ORDER BY run.run DESC"), tenant),
            None => return Ok(nothing),
        },
    };
    let count_max = filter.count_max.clamp(1, PAGE_MAX);
    let mut statement = connection.prepare_cached(&sql)?;
    let mut rows = statement.query([before, tenant])?;
    let (mut runs, mut looked_at) = (Vec::new(), 0);
    while let Some(row) = rows.next()? {
        let row = HeadRow::of(row)?;
        let last = row.run;
        looked_at += 1;
        if wanted.takes(&row) {
            runs.push(row.summary(connection)?);
        }
        if runs.len() >= count_max || looked_at >= ROWS_LOOKED_AT_MAX {
            let next = rows.next()?.is_some().then(|| RowCursor::after(List::Runs, last));
            return Ok(RunPage { runs, next });
        }
    }
    Ok(RunPage { runs, next: None })
}

/// The head of a run, if it is within the scope.
pub(super) fn head(connection: &Connection, scope: &TenantScope, run_id: &str) -> Result<Option<RunHead>, Fault> {
    let mut statement = connection.prepare_cached(&format!("{HEAD} WHERE run_id = ?1"))?;
    let Some(row) = statement.query_row([run_key(run_id)], HeadRow::of).optional()? else { return Ok(None) };
    if !scope.sees(connection, row.tenant)? {
        return Ok(None);
    }
    let accepted: Vec<u8> = connection
        .prepare_cached("SELECT accepted FROM story WHERE run = ?1")?
        .query_row([row.run], |story| story.get(0))?;
    let written: WrittenRun = serde_json::from_slice(&unpack(&accepted)?)?;
    let deadline_ms = from_sql(row.deadline_ms);
    let summary = row.summary(connection)?;
    let owner = RunOwner { tenant: summary.tenant.clone(), feature: summary.feature.clone(), ..written.owner };
    Ok(Some(RunHead { summary, owner, deadline_ms, origin: written.origin }))
}
