//! Telling somebody of an entry's end: which tellings are due, and how each went.

use super::row::{COLUMNS, Found, TABLES, delivery_number};
use crate::{
    journal::{
        fault::Fault,
        number::{from_sql, to_sql},
        work::Within,
    },
    runtime::deferred::store::{DeliveryStatus, Lease, PushDue, PushSettled},
};

/// Takes what is due, the longest due first, and says when the next one is.
pub(super) fn take(within: &mut Within<'_>, lease: &Lease) -> Result<(Vec<PushDue>, Option<u64>), Fault> {
    let connection = within.connection;
    let sql = format!(
        "SELECT {COLUMNS}, push.generation FROM {TABLES}
            WHERE push.status = 0 AND push.due_ms <= ?1 AND (push.lease_ms IS NULL OR push.lease_ms <= ?1)
            ORDER BY push.due_ms, push.deferred LIMIT ?2"
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let found = statement
        .query_map((to_sql(lease.now_ms), to_sql(lease.count_max as u64)), |row| {
            Ok((Found::of(row)?, row.get::<_, i64>(15)?))
        })?
        .collect::<Result<Vec<_>, _>>()?;
    let mut due = Vec::with_capacity(found.len());
    for (found, generation) in found {
        let (row, generation) = (found.row, generation.saturating_add(1));
        let Ok(entry) = found.entry() else {
            // Nobody can be told of what cannot be read.
            let sql = "UPDATE deferred_push SET status = ?2 WHERE deferred = ?1";
            connection.prepare_cached(sql)?.execute((row, delivery_number(DeliveryStatus::GivenUp)))?;
            continue;
        };
        let sql = "UPDATE deferred_push SET owner = ?2, lease_ms = ?3, generation = ?4 WHERE deferred = ?1";
        connection.prepare_cached(sql)?.execute((row, &lease.owner, to_sql(lease.until_ms), generation))?;
        let attempts = entry.delivery.as_ref().map_or(0, |delivery| delivery.attempts);
        due.push(PushDue { entry, attempts, generation: from_sql(generation) });
    }
    let sql = "SELECT min(max(due_ms, coalesce(lease_ms, 0))) FROM deferred_push
        WHERE status = 0 AND coalesce(owner, '') <> ?1";
    let next: Option<i64> = connection.prepare_cached(sql)?.query_row([&lease.owner], |row| row.get(0))?;
    Ok((due, next.map(from_sql)))
}

/// Writes down how a telling went; `false` if the lease is not the present one.
pub(super) fn settle(within: &mut Within<'_>, id: &str, generation: u64, settled: &PushSettled) -> Result<bool, Fault> {
    let sql =
        "UPDATE deferred_push SET status = ?3, attempts = attempts + 1, due_ms = ?4, http_status = ?5, error = ?6,
            at_ms = ?7, owner = NULL, lease_ms = NULL
        WHERE deferred = (SELECT deferred FROM deferred WHERE id = ?1) AND generation = ?2 AND status = 0
            AND owner IS NOT NULL";
    let changed = within.connection.prepare_cached(sql)?.execute((
        id,
        to_sql(generation),
        delivery_number(settled.status),
        to_sql(settled.due_ms),
        settled.http_status,
        &settled.error,
        to_sql(settled.at_ms),
    ))?;
    Ok(changed > 0)
}
