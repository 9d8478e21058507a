//! Telling somebody of an entry's end: which tellings are due, and how each went.

use rusqlite::Connection;

use super::{
    in_hand::InHand,
    row::{COLUMNS, Found, TABLES, delivery_number},
};
use crate::{
    journal::{
        fault::Fault,
        number::{from_sql, to_sql},
        work::Within,
    },
    runtime::deferred::store::{DeliveryStatus, Lease, PushDue, PushSettled},
};

/// Of so many tellings that are longest due those are chosen that are taken.
const LOOKED_AT_MAX: usize = 512;

/// Takes what is due: of whom the fewest are in hand, and of those the longest due. Whose receiver hangs has its share in hand and is passed
/// over. Says when the next one is due that is not.
pub(super) fn take(within: &mut Within<'_>, lease: &Lease) -> Result<(Vec<PushDue>, Option<u64>), Fault> {
    let mut in_hand = InHand::of(within, &lease.held)?;
    let connection = within.connection;
    let mut waiting = waiting(connection, lease, &in_hand)?;
    let mut due = Vec::with_capacity(waiting.len().min(lease.count_max));
    while due.len() < lease.count_max {
        // The first one of equals, and that is the longest due.
        let open = waiting.iter().enumerate().filter(|(_, (_, tenant))| in_hand.has_room(*tenant));
        let Some((at, _)) = open.min_by_key(|(_, (_, tenant))| in_hand.of_tenant(*tenant)) else { break };
        let (row, tenant) = waiting.remove(at);
        let sql = format!("SELECT {COLUMNS}, push.generation FROM {TABLES} WHERE deferred.deferred = ?1");
        let found =
            connection.prepare_cached(&sql)?.query_row([row], |row| Ok((Found::of(row)?, row.get::<_, i64>(15)?)));
        let (found, generation) = found?;
        let generation = generation.saturating_add(1);
        let Ok(entry) = found.entry() else {
            // Nobody can be told of what cannot be read.
            let sql = "UPDATE deferred_push SET status = ?2 WHERE deferred = ?1";
            connection.prepare_cached(sql)?.execute((row, delivery_number(DeliveryStatus::GivenUp)))?;
            continue;
        };
        let sql = "UPDATE deferred_push SET owner = ?2, lease_ms = ?3, generation = ?4 WHERE deferred = ?1";
        connection.prepare_cached(sql)?.execute((row, &lease.owner, to_sql(lease.until_ms), generation))?;
        in_hand.add_of_tenant(tenant);
        let attempts = entry.delivery.as_ref().map_or(0, |delivery| delivery.attempts);
        due.push(PushDue { entry, attempts, generation: from_sql(generation) });
    }
    let (_, tenants) = in_hand.passed_over();
    let sql = format!(
        "SELECT min(max(push.due_ms, coalesce(push.lease_ms, 0))) FROM {TABLES}
        WHERE push.status = 0 AND coalesce(push.owner, '') <> ?1 AND deferred.tenant NOT IN ({tenants})"
    );
    let next: Option<i64> = connection.prepare_cached(&sql)?.query_row([&lease.owner], |row| row.get(0))?;
    Ok((due, next.map(from_sql)))
}

/// What is due and may be taken, the longest due first: row and tenant.
fn waiting(connection: &Connection, lease: &Lease, in_hand: &InHand) -> Result<Vec<(i64, i64)>, Fault> {
    let (_, tenants) = in_hand.passed_over();
    let sql = format!(
        "SELECT deferred.deferred, deferred.tenant FROM deferred_push AS push
            JOIN deferred ON deferred.deferred = push.deferred
            WHERE push.status = 0 AND push.due_ms <= ?1 AND (push.lease_ms IS NULL OR push.lease_ms <= ?1)
                AND deferred.tenant NOT IN ({tenants})
            ORDER BY push.due_ms, push.deferred LIMIT ?2"
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let values = (to_sql(lease.now_ms), to_sql(LOOKED_AT_MAX as u64));
    let found = statement.query_map(values, |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(found.collect::<Result<_, _>>()?)
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
