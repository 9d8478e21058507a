//! What goes: one run with all that belongs to it, all data of a tenant, and what has been kept long enough. The usage ledger's lines
//! stay when runs go; they name no run.

use rusqlite::OptionalExtension as _;

use super::{
    deferred::queue as deferred,
    fault::Fault,
    files::table as files,
    number::{find_name, run_key, status_number, status_of, to_sql},
    query::TenantScope,
    settings::Retention,
    shut_callers,
    slot::{self, Contents},
    work::Within,
};
use crate::model::run::RunStatus;

/// Of a dead letter: its run is not over, and waits for what an operator does with it. Such a letter is named by its run first.
const IS_WAITED_FOR: &str = "EXISTS (SELECT 1 FROM run WHERE run.ended_ms IS NULL
    AND (lower(hex(run.run_id)) = replace(substr(dead_letter.id, 1, 36), '-', '')
         OR run.run_id || ':' = substr(dead_letter.id, 1, length(run.run_id) + 1)))";

/// What became of a request to delete a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deletion {
    /// It is gone with everything that belonged to it.
    Done,
    /// There is no such run in this scope.
    NotFound,
    /// It is not over, but in this state; cancel it first.
    NotOver(RunStatus),
}

/// Deletes a run that is over.
pub(super) fn delete_run(within: &mut Within<'_>, scope: &TenantScope, run_id: &str) -> Result<Deletion, Fault> {
    let mut statement = within
        .connection
        .prepare_cached("SELECT run, tenant, ended_ms IS NOT NULL, status FROM run WHERE run_id = ?1")?;
    let found: Option<(i64, i64, bool, i64)> = statement
        .query_row([run_key(run_id)], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))
        .optional()?;
    let Some((run, tenant, is_over, status)) = found else { return Ok(Deletion::NotFound) };
    if !scope.sees(within.connection, tenant)? {
        return Ok(Deletion::NotFound);
    }
    if !is_over {
        return Ok(Deletion::NotOver(status_of(status)));
    }
    // What killed keeps the run's words.
    let letters = "DELETE FROM dead_letter WHERE run_id = ?1";
    within.connection.prepare_cached(letters)?.execute([run_key(run_id)])?;
    // What it put off would still be asked and paid for, and tells of its input. One that goes by its age leaves what it promised.
    deferred::remove_of_run(within.connection, run_id)?;
    // Whoever has it deleted wants nothing of it to be left.
    within.connection.prepare_cached("DELETE FROM idempotency WHERE run_id = ?1")?.execute([run_key(run_id)])?;
    remove_run(within, run)?;
    Ok(Deletion::Done)
}

/// Deletes at most `max` finished runs of a tenant, then its files, captures and dead letters. How many runs went.
pub(super) fn delete_tenant(within: &mut Within<'_>, tenant: Option<&str>, max: usize) -> Result<usize, Fault> {
    if let Some(tenant) = tenant {
        shut_callers::remove_tenant(within, tenant)?;
    }
    let Some(tenant) = find_name(within.connection, tenant)? else { return Ok(0) };
    let runs = numbers(
        within,
        "SELECT run FROM run WHERE tenant = ?1 AND ended_ms IS NOT NULL LIMIT ?2",
        (tenant, to_sql(max as u64)),
    )?;
    for run in &runs {
        remove_run(within, *run)?;
    }
    if runs.len() < max {
        let files = numbers(within, "SELECT file FROM file WHERE tenant = ?1 AND runs = 0", [tenant])?;
        for file in files {
            files::remove(within, file)?;
        }
        let of_live_runs = "(SELECT run_id FROM run WHERE tenant = ?1)";
        for table in ["capture", "capture_read"] {
            let sql =
                format!("DELETE FROM {table} WHERE tenant = ?1 AND (run_id IS NULL OR run_id NOT IN {of_live_runs})");
            within.connection.prepare_cached(&sql)?.execute([tenant])?;
        }
        let sql = format!("DELETE FROM dead_letter WHERE tenant = ?1 AND NOT {IS_WAITED_FOR}");
        within.connection.prepare_cached(&sql)?.execute([tenant])?;
        let pushes = "DELETE FROM deferred_push WHERE deferred IN (SELECT deferred FROM deferred WHERE tenant = ?1)";
        within.connection.prepare_cached(pushes)?.execute([tenant])?;
        within.connection.prepare_cached("DELETE FROM deferred WHERE tenant = ?1")?.execute([tenant])?;
        let sql = format!("DELETE FROM idempotency WHERE tenant = ?1 AND run_id NOT IN {of_live_runs}");
        within.connection.prepare_cached(&sql)?.execute([tenant])?;
    }
    Ok(runs.len())
}

fn numbers(within: &Within<'_>, sql: &str, values: impl rusqlite::Params) -> Result<Vec<i64>, Fault> {
    let mut statement = within.connection.prepare_cached(sql)?;
    let found = statement.query_map(values, |row| row.get(0))?.collect::<Result<_, _>>()?;
    Ok(found)
}

/// Takes a run away with everything that belongs to it, but for what its idempotency key promised: that holds for its own time, also
/// where the run is kept shorter, so that the same request is never paid twice.
fn remove_run(within: &mut Within<'_>, run: i64) -> Result<(), Fault> {
    slot::release(within.connection, run, &Contents::default())?;
    files::release_files(within, run)?;
    for sql in [
        "DELETE FROM capture WHERE run_id = (SELECT run_id FROM run WHERE run = ?1)",
        "DELETE FROM capture_read WHERE run_id = (SELECT run_id FROM run WHERE run = ?1)",
        "DELETE FROM entry WHERE run = ?1",
        "DELETE FROM story WHERE run = ?1",
        "DELETE FROM run WHERE run = ?1",
    ] {
        within.connection.prepare_cached(sql)?.execute([run])?;
    }
    Ok(())
}

/// Removes at most `max` runs that have been kept long enough. Whether none are left.
pub(super) fn expire_runs(within: &mut Within<'_>, retention: &Retention, max: usize) -> Result<bool, Fault> {
    let kept = [
        (RunStatus::Completed, retention.completed),
        (RunStatus::CompletedDegraded, retention.completed),
        (RunStatus::Failed, retention.failed),
        (RunStatus::TimedOut, retention.failed),
        (RunStatus::Cancelled, retention.cancelled),
    ];
    let mut left = max;
    for (status, keep) in kept {
        let Some(keep) = keep else { continue };
        let before = before(within, keep);
        let sql = "SELECT run FROM run WHERE status = ?1 AND ended_ms IS NOT NULL AND ended_ms < ?2 ORDER BY ended_ms LIMIT ?3";
        let runs = numbers(within, sql, (status_number(status), before, to_sql(left as u64)))?;
        for run in &runs {
            remove_run(within, *run)?;
        }
        left -= runs.len();
    }
    Ok(left > 0)
}

fn before(within: &Within<'_>, keep: std::time::Duration) -> i64 {
    to_sql(within.now_ms.saturating_sub(u64::try_from(keep.as_millis()).unwrap_or(u64::MAX)))
}

/// Removes at most `max` of the oldest finished runs while more bytes are in use than the budget allows. Whether it is kept.
pub(super) fn keep_budget(within: &mut Within<'_>, budget: u64, max: usize) -> Result<bool, Fault> {
    let figure = |name: &str| within.connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let used = (figure("page_count")? - figure("freelist_count")?) * figure("page_size")?;
    if used <= to_sql(budget) {
        return Ok(true);
    }
    let sql = "SELECT run FROM run WHERE ended_ms IS NOT NULL ORDER BY run LIMIT ?1";
    let runs = numbers(within, sql, [to_sql(max as u64)])?;
    for run in &runs {
        remove_run(within, *run)?;
    }
    Ok(runs.is_empty())
}

/// Removes at most `max` files that no run ever named in time. Whether none are left.
pub(super) fn expire_files(within: &mut Within<'_>, retention: &Retention, max: usize) -> Result<bool, Fault> {
    let Some(keep) = retention.unused_files else { return Ok(true) };
    let sql = "SELECT file FROM file WHERE runs = 0 AND created_ms < ?1 LIMIT ?2";
    let files = numbers(within, sql, (before(within, keep), to_sql(max as u64)))?;
    for file in &files {
        files::remove(within, *file)?;
    }
    Ok(files.len() < max)
}

/// Removes at most `max` rows each of what has its own time: idempotency keys, captures, dead letters, days of the ledger.
pub(super) fn expire_rest(within: &mut Within<'_>, retention: &Retention, max: usize) -> Result<bool, Fault> {
    const DAY_MS: u64 = 24 * 3_600 * 1_000;
    let (now, most) = (to_sql(within.now_ms), to_sql(max as u64));
    let connection = within.connection;
    let mut done = true;
    let mut delete = |sql: &str, before: i64| -> Result<(), Fault> {
        let gone = connection.prepare_cached(sql)?.execute([before, most])?;
        done &= gone < max;
        Ok(())
    };
    delete(
        "DELETE FROM idempotency WHERE (tenant, key) IN (SELECT tenant, key FROM idempotency WHERE expires_ms <= ?1 LIMIT ?2)",
        now,
    )?;
    delete("DELETE FROM capture WHERE capture IN (SELECT capture FROM capture WHERE expires_ms <= ?1 LIMIT ?2)", now)?;
    if let Some(keep) = retention.dead_letters {
        let old = format!("SELECT letter FROM dead_letter WHERE at_ms < ?1 AND NOT {IS_WAITED_FOR} LIMIT ?2");
        delete(&format!("DELETE FROM dead_letter WHERE letter IN ({old})"), before(within, keep))?;
    }
    if let Some(keep) = retention.deferred {
        let ended = before(within, keep);
        let old = "SELECT deferred FROM deferred WHERE ended_ms < ?1 AND deferred NOT IN
            (SELECT deferred FROM deferred_push WHERE status = 0) LIMIT ?2";
        let pushes = format!("DELETE FROM deferred_push WHERE deferred IN ({old})");
        connection.prepare_cached(&pushes)?.execute([ended, most])?;
        delete(&format!("DELETE FROM deferred WHERE deferred IN ({old})"), ended)?;
    }
    if let Some(keep) = retention.usage {
        let day = to_sql(within.now_ms.saturating_sub(u64::try_from(keep.as_millis()).unwrap_or(u64::MAX)) / DAY_MS);
        let sql = "DELETE FROM usage WHERE (day, tenant, feature, agent, model, currency) IN
            (SELECT day, tenant, feature, agent, model, currency FROM usage WHERE day < ?1 LIMIT ?2)";
        delete(sql, day)?;
    }
    Ok(shut_callers::expire(within, max)? && done)
}
