//! One entry of the deferred queue as a row, there and back.

use rusqlite::{Connection, OptionalExtension as _, Row};

use crate::{
    journal::{
        fault::Fault,
        number::{from_sql, to_sql},
        pack::{pack, unpack},
    },
    runtime::deferred::store::{
        DeferredCall, DeferredEntry, DeferredHead, DeferredResult, DeferredStatus, Delivery, DeliveryStatus, Ticket,
    },
};

/// Every status and the number that stands for it in the file: never changed, only added to.
const STATUSES: [(DeferredStatus, i64); 5] = [
    (DeferredStatus::Waiting, 0),
    (DeferredStatus::Done, 1),
    (DeferredStatus::Failed, 2),
    (DeferredStatus::Expired, 3),
    (DeferredStatus::Cancelled, 4),
];

/// The same for deliveries.
const DELIVERIES: [(DeliveryStatus, i64); 3] =
    [(DeliveryStatus::Waiting, 0), (DeliveryStatus::Delivered, 1), (DeliveryStatus::GivenUp, 2)];

/// What is read of an entry, with its delivery.
pub(super) const COLUMNS: &str = "deferred.deferred, deferred.tenant, deferred.head, deferred.status, deferred.attempts,
    deferred.refusals, deferred.due_ms, deferred.lease_ms, deferred.ended_ms, deferred.result, push.status, push.attempts,
    push.http_status, push.error, push.at_ms";

/// Where it is read from.
pub(super) const TABLES: &str = "deferred LEFT JOIN deferred_push AS push ON push.deferred = deferred.deferred";

pub(super) fn status_number(status: DeferredStatus) -> i64 {
    STATUSES.iter().find(|(known, _)| *known == status).map_or(0, |(_, number)| *number)
}

fn status_of(number: i64) -> DeferredStatus {
    STATUSES.iter().find(|(_, known)| *known == number).map_or(DeferredStatus::Waiting, |(status, _)| *status)
}

pub(super) fn delivery_number(status: DeliveryStatus) -> i64 {
    DELIVERIES.iter().find(|(known, _)| *known == status).map_or(0, |(_, number)| *number)
}

fn delivery_of(number: i64) -> DeliveryStatus {
    DELIVERIES.iter().find(|(_, known)| *known == number).map_or(DeliveryStatus::Waiting, |(status, _)| *status)
}

/// A row before its packed parts are read.
pub(super) struct Found {
    /// Its place: grows with every entry.
    pub(super) row: i64,
    pub(super) tenant: i64,
    head: Vec<u8>,
    status: i64,
    attempts: u32,
    refusals: u32,
    due_ms: i64,
    lease_ms: Option<i64>,
    ended_ms: Option<i64>,
    result: Option<Vec<u8>>,
    push: Option<Delivery>,
}

impl Found {
    pub(super) fn of(row: &Row<'_>) -> rusqlite::Result<Self> {
        let push = match row.get::<_, Option<i64>>(10)? {
            None => None,
            Some(status) => Some(Delivery {
                status: delivery_of(status),
                attempts: row.get(11)?,
                http_status: row.get(12)?,
                error: row.get(13)?,
                at_ms: row.get::<_, Option<i64>>(14)?.map(from_sql),
            }),
        };
        Ok(Self {
            row: row.get(0)?,
            tenant: row.get(1)?,
            head: row.get(2)?,
            status: row.get(3)?,
            attempts: row.get(4)?,
            refusals: row.get(5)?,
            due_ms: row.get(6)?,
            lease_ms: row.get(7)?,
            ended_ms: row.get(8)?,
            result: row.get(9)?,
            push,
        })
    }

    pub(super) fn entry(self) -> Result<DeferredEntry, Fault> {
        let result = match self.result {
            Some(packed) => Some(serde_json::from_slice(&unpack(&packed)?)?),
            None => None,
        };
        Ok(DeferredEntry {
            head: head_of(&self.head)?,
            status: status_of(self.status),
            attempts: self.attempts,
            refusals: self.refusals,
            due_ms: from_sql(self.due_ms),
            leased: self.lease_ms.is_some(),
            ended_ms: self.ended_ms.map(from_sql),
            result,
            delivery: self.push,
        })
    }
}

pub(super) fn head_of(packed: &[u8]) -> Result<DeferredHead, Fault> {
    Ok(serde_json::from_slice(&unpack(packed)?)?)
}

/// A call of its two parts.
pub(super) fn call_of(head: &[u8], work: &[u8]) -> Result<DeferredCall, Fault> {
    Ok(DeferredCall { head: head_of(head)?, work: serde_json::from_slice(&unpack(work)?)? })
}

pub(super) fn packed(result: &DeferredResult) -> Result<Vec<u8>, Fault> {
    Ok(pack(&serde_json::to_vec(result)?))
}

/// The entry of this id, whosever it is.
pub(super) fn find(connection: &Connection, id: &str) -> Result<Option<Found>, Fault> {
    let sql = format!("SELECT {COLUMNS} FROM {TABLES} WHERE deferred.id = ?1");
    let mut statement = connection.prepare_cached(&sql)?;
    Ok(statement.query_row([id], Found::of).optional()?)
}

/// The entry that a tenant's call of this agent and key is kept as, with the hash of what it asks.
pub(super) fn known(
    connection: &Connection,
    tenant: i64,
    agent: i64,
    key: &str,
) -> Result<Option<(Ticket, Option<String>)>, Fault> {
    let sql = "SELECT id, due_ms, expires_ms, request_hash FROM deferred WHERE tenant = ?1 AND agent = ?2 AND key = ?3";
    let mut statement = connection.prepare_cached(sql)?;
    let ticket = |row: &Row<'_>| {
        let ticket = Ticket { id: row.get(0)?, due_ms: from_sql(row.get(1)?), expires_ms: from_sql(row.get(2)?) };
        Ok((ticket, row.get(3)?))
    };
    Ok(statement.query_row((tenant, agent, key), ticket).optional()?)
}

/// So many entries wait: of this tenant, or of all.
pub(super) fn waiting(connection: &Connection, tenant: Option<i64>) -> Result<u64, Fault> {
    let waiting = status_number(DeferredStatus::Waiting);
    let count: i64 = match tenant {
        None => connection
            .prepare_cached("SELECT count(*) FROM deferred WHERE status = ?1")?
            .query_row([waiting], |row| row.get(0))?,
        Some(tenant) => connection
            .prepare_cached("SELECT count(*) FROM deferred WHERE status = ?1 AND tenant = ?2")?
            .query_row([waiting, tenant], |row| row.get(0))?,
    };
    Ok(from_sql(count))
}

/// Ends an entry; what was asked goes, and somebody is told of the end where that was asked for.
pub(super) fn end(
    connection: &Connection,
    row: i64,
    status: DeferredStatus,
    result: &DeferredResult,
    at_ms: u64,
) -> Result<(), Fault> {
    let sql = "UPDATE deferred SET status = ?2, result = ?3, ended_ms = ?4, owner = NULL, lease_ms = NULL, work = NULL
        WHERE deferred = ?1";
    connection.prepare_cached(sql)?.execute((row, status_number(status), packed(result)?, to_sql(at_ms)))?;
    let sql = "INSERT OR IGNORE INTO deferred_push (deferred, status, attempts, due_ms, generation)
        SELECT deferred, 0, 0, ?2, 0 FROM deferred WHERE deferred = ?1 AND pushed = 1";
    connection.prepare_cached(sql)?.execute((row, to_sql(at_ms)))?;
    Ok(())
}
