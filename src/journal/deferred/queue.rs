//! The deferred queue as the runtime's port wants it. All writes are on the journal's one thread, so of two who take an entry one gets it.

use std::sync::{Arc, atomic::Ordering};

use rusqlite::{Connection, OptionalExtension as _, Row};

use super::{
    in_hand::InHand,
    push,
    row::{self, call_of, head_of},
};
use crate::{
    journal::{
        fault::Fault,
        journal::SqliteJournal,
        number::{from_sql, run_key, to_sql},
        pack::pack,
        work::Within,
    },
    runtime::{
        deferred::store::{
            Again, DeferredCall, DeferredHead, DeferredResult, DeferredStatus, DeferredStore, Due, Lease, PushDue,
            PushSettled, Put, QueueBounds, Settled, Taken,
        },
        journal::JournalError,
        ports::BoxFuture,
    },
};

/// Entries that are too old and end in one go; the rest follows with the next look.
const EXPIRED_AT_ONCE: usize = 256;

impl DeferredStore for SqliteJournal {
    fn put(&self, call: DeferredCall, bounds: QueueBounds) -> BoxFuture<'_, Result<Put, JournalError>> {
        let packed = serde_json::to_vec(&call.head).and_then(|head| Ok((head, serde_json::to_vec(&call.work)?)));
        let (head, work) = match packed {
            Ok((head, work)) => (pack(&head), pack(&work)),
            Err(error) => return Box::pin(async move { Err(JournalError::Failed(error.to_string())) }),
        };
        Box::pin(self.write(move |within| put(within, &call.head, (&head, &work), bounds)))
    }

    fn take_over(&self, owner: &str) -> BoxFuture<'_, Result<u64, JournalError>> {
        let owner = owner.to_owned();
        Box::pin(self.write(move |within| {
            let sql = "UPDATE deferred SET owner = NULL, lease_ms = NULL, generation = generation + 1
                WHERE status = 0 AND owner IS NOT NULL AND owner <> ?1";
            let entries = within.connection.prepare_cached(sql)?.execute([&owner])?;
            let sql = "UPDATE deferred_push SET owner = NULL, lease_ms = NULL, generation = generation + 1
                WHERE status = 0 AND owner IS NOT NULL AND owner <> ?1";
            within.connection.prepare_cached(sql)?.execute([&owner])?;
            Ok(entries as u64)
        }))
    }

    fn take_due(&self, lease: Lease) -> BoxFuture<'_, Result<Due, JournalError>> {
        let turn = Arc::clone(&self.deferred_turn);
        Box::pin(self.write(move |within| {
            let (due, last) = take_due(within, &lease, turn.load(Ordering::Relaxed))?;
            // Where the transaction is lost after all, somebody loses a turn and nothing else.
            turn.store(last, Ordering::Relaxed);
            Ok(due)
        }))
    }

    fn settle(&self, id: &str, generation: u64, settled: Settled) -> BoxFuture<'_, Result<bool, JournalError>> {
        let id = id.to_owned();
        Box::pin(self.write(move |within| settle(within, &id, generation, &settled)))
    }

    fn take_pushes(&self, lease: Lease) -> BoxFuture<'_, Result<(Vec<PushDue>, Option<u64>), JournalError>> {
        Box::pin(self.write(move |within| push::take(within, &lease)))
    }

    fn settle_push(
        &self,
        id: &str,
        generation: u64,
        settled: PushSettled,
    ) -> BoxFuture<'_, Result<bool, JournalError>> {
        let id = id.to_owned();
        Box::pin(self.write(move |within| push::settle(within, &id, generation, &settled)))
    }
}

fn put(
    within: &mut Within<'_>,
    call: &DeferredHead,
    (head, work): (&[u8], &[u8]),
    bounds: QueueBounds,
) -> Result<Put, Fault> {
    let connection = within.connection;
    let tenant = within.names.number(connection, call.owner.tenant.as_deref())?;
    let agent = within.names.number(connection, Some(&call.agent))?;
    if let Some((ticket, hash)) = row::known(connection, tenant, agent, &call.idempotency_key)? {
        return Ok(if hash == call.request_hash { Put::Known(ticket) } else { Put::Conflict });
    }
    if within.is_nearly_full {
        return Err(JournalError::Full("no room for one more call that is made later".to_owned()).into());
    }
    if row::waiting(connection, None)? >= bounds.entries_max {
        return Ok(Put::Full { bound: "deferred" });
    }
    if row::waiting(connection, Some(tenant))? >= bounds.tenant_entries_max {
        return Ok(Put::Full { bound: "deferred of this tenant" });
    }
    let sql =
        "INSERT INTO deferred (id, tenant, agent, key, request_hash, status, created_ms, due_ms, expires_ms, attempts,
            refusals, generation, pushed, head, work, run_id)
        VALUES (?1, ?2, ?3, ?4, ?5, 0, ?6, ?7, ?8, 0, 0, 0, ?9, ?10, ?11, ?12)";
    connection.prepare_cached(sql)?.execute((
        &call.id,
        tenant,
        agent,
        &call.idempotency_key,
        &call.request_hash,
        to_sql(call.created_ms),
        to_sql(call.due_ms),
        to_sql(call.expires_ms),
        call.pushed,
        head,
        work,
        call.run_id.as_deref().map(run_key),
    ))?;
    Ok(Put::New)
}

/// Takes away what a run put off, whether it is over or not: nobody makes it any more, and nothing tells of it.
pub(in crate::journal) fn remove_of_run(connection: &Connection, run_id: &str) -> Result<(), Fault> {
    let key = run_key(run_id);
    let pushes = "DELETE FROM deferred_push WHERE deferred IN (SELECT deferred FROM deferred WHERE run_id = ?1)";
    connection.prepare_cached(pushes)?.execute([&key])?;
    connection.prepare_cached("DELETE FROM deferred WHERE run_id = ?1")?.execute([&key])?;
    Ok(())
}

/// A row that is taken.
struct Ready {
    row: i64,
    head: Vec<u8>,
    work: Vec<u8>,
    attempts: u32,
    refusals: u32,
    generation: i64,
    agent: i64,
}

impl Ready {
    fn of(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            row: row.get(0)?,
            head: row.get(1)?,
            work: row.get(2)?,
            attempts: row.get(3)?,
            refusals: row.get(4)?,
            generation: row.get(5)?,
            agent: row.get(6)?,
        })
    }
}

/// The entry that is made next: the longest due one of the tenant whose turn comes after `last`. Who put off much does not stand before
/// who put off little, and who has as much in hand as one may have is passed over.
fn next_in_turn(connection: &Connection, last: i64, now: i64, in_hand: &InHand) -> Result<Option<(i64, Ready)>, Fault> {
    // Numbers, and seldom more than one of them: there are few such statements.
    let (agents, tenants) = in_hand.passed_over();
    let of_tenants = format!(
        "SELECT min(tenant) FROM deferred WHERE status = 0 AND tenant > ?1 AND tenant <= ?2 AND tenant NOT IN ({tenants})"
    );
    let of_entries = format!(
        "SELECT deferred, head, work, attempts, refusals, generation, agent FROM deferred
        WHERE status = 0 AND tenant = ?1 AND due_ms <= ?2 AND (lease_ms IS NULL OR lease_ms <= ?2) AND agent NOT IN ({agents})
        ORDER BY due_ms, deferred LIMIT 1"
    );
    for (mut after, until) in [(last, i64::MAX), (i64::MIN, last)] {
        loop {
            let next: Option<i64> =
                connection.prepare_cached(&of_tenants)?.query_row([after, until], |row| row.get(0))?;
            let Some(tenant) = next else { break };
            after = tenant;
            let found = connection.prepare_cached(&of_entries)?.query_row([tenant, now], Ready::of).optional()?;
            if let Some(found) = found {
                return Ok(Some((tenant, found)));
            }
        }
    }
    Ok(None)
}

/// What is due, and the tenant whose turn was the last one.
fn take_due(within: &mut Within<'_>, lease: &Lease, mut last: i64) -> Result<(Due, i64), Fault> {
    let now = to_sql(lease.now_ms);
    let mut due = Due { expired: end_expired(within, lease)?, ..Due::default() };
    let mut in_hand = InHand::of(within, &lease.held)?;
    while due.taken.len() < lease.count_max {
        let Some((tenant, found)) = next_in_turn(within.connection, last, now, &in_hand)? else { break };
        last = tenant;
        let call = match call_of(&found.head, &found.work) {
            Ok(call) => call,
            // One that cannot be read is nobody's to make; it must not stand before all others for ever.
            Err(fault) => {
                let error = JournalError::from(fault).to_string();
                tracing::error!(row = found.row, error, "a call that was put off cannot be read");
                let result = DeferredResult { output: None, usage: None, target: None, error: None };
                row::end(within.connection, found.row, DeferredStatus::Failed, &result, lease.now_ms)?;
                continue;
            }
        };
        let generation = found.generation.saturating_add(1);
        let sql = "UPDATE deferred SET owner = ?2, lease_ms = ?3, generation = ?4 WHERE deferred = ?1";
        let values = (found.row, &lease.owner, to_sql(lease.until_ms), generation);
        within.connection.prepare_cached(sql)?.execute(values)?;
        in_hand.add(found.agent, tenant);
        let (attempts, refusals) = (found.attempts, found.refusals);
        due.taken.push(Taken { call, attempts, refusals, generation: from_sql(generation) });
    }
    due.waiting = row::waiting(within.connection, None)?;
    due.next_ms = next_ms(within.connection, lease, &in_hand)?;
    Ok((due, last))
}

/// When the next entry is due that is not passed over: whoever ends something of those that are looks by itself.
fn next_ms(connection: &Connection, lease: &Lease, in_hand: &InHand) -> Result<Option<u64>, Fault> {
    let (agents, tenants) = in_hand.passed_over();
    let sql = format!(
        "SELECT min(max(due_ms, coalesce(lease_ms, 0))) FROM deferred
        WHERE status = 0 AND coalesce(owner, '') <> ?1 AND agent NOT IN ({agents}) AND tenant NOT IN ({tenants})"
    );
    let next: Option<i64> = connection.prepare_cached(&sql)?.query_row([&lease.owner], |row| row.get(0))?;
    Ok(next.map(from_sql))
}

/// Ends what is too old and that nobody works on. How many.
fn end_expired(within: &mut Within<'_>, lease: &Lease) -> Result<u64, Fault> {
    let sql = "SELECT deferred, head FROM deferred
        WHERE status = 0 AND expires_ms <= ?1 AND (lease_ms IS NULL OR lease_ms <= ?1) LIMIT ?2";
    let rows: Vec<(i64, Vec<u8>)> = within
        .connection
        .prepare_cached(sql)?
        .query_map((to_sql(lease.now_ms), to_sql(EXPIRED_AT_ONCE as u64)), |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<Result<_, _>>()?;
    for (row, head) in &rows {
        // What it was put off for is what it ends with.
        let error = head_of(head).ok().map(|head| head.error);
        let result = DeferredResult { output: None, usage: None, target: None, error };
        row::end(within.connection, *row, DeferredStatus::Expired, &result, lease.now_ms)?;
    }
    Ok(rows.len() as u64)
}

fn settle(within: &mut Within<'_>, id: &str, generation: u64, settled: &Settled) -> Result<bool, Fault> {
    let connection = within.connection;
    let sql = "SELECT deferred FROM deferred WHERE id = ?1 AND generation = ?2 AND status = 0 AND owner IS NOT NULL";
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query((id, to_sql(generation)))?;
    let Some(found) = rows.next()? else { return Ok(false) };
    let row: i64 = found.get(0)?;
    drop(rows);
    match settled {
        Settled::Again { due_ms, why } => {
            let (sent, refused) = match why {
                Again::Refused => (0, 1),
                Again::Failed => (1, 0),
                Again::LetGo => (0, 0),
            };
            let sql =
                "UPDATE deferred SET due_ms = ?2, attempts = attempts + ?3, refusals = refusals + ?4, owner = NULL,
                lease_ms = NULL WHERE deferred = ?1";
            connection.prepare_cached(sql)?.execute((row, to_sql(*due_ms), sent, refused))?;
        }
        Settled::Ended { status, sent, result, at_ms } => {
            let sql = "UPDATE deferred SET attempts = attempts + ?2 WHERE deferred = ?1";
            connection.prepare_cached(sql)?.execute((row, sent))?;
            row::end(connection, row, *status, result, *at_ms)?;
        }
    }
    Ok(true)
}
