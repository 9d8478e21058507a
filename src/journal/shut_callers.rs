//! Callers whose volume guards are shut: kept over restarts, so that a loop is not let go by one. Whether a guard is still shut is not
//! decided here.

use rusqlite::Connection;

use super::{
    fault::Fault,
    journal::SqliteJournal,
    number::{from_sql, to_sql},
    pack::{pack, unpack},
    work::{Kept, Within},
};
use crate::{
    policy::volume::{HOUR, SHUT_FOR_MAX},
    runtime::journal::ShutCaller,
};

impl SqliteJournal {
    pub(super) fn put_shut(&self, caller: ShutCaller) {
        let seconds = match serde_json::to_vec(&caller.seconds) {
            Ok(seconds) => pack(&seconds),
            Err(error) => {
                tracing::error!(%error, caller = caller.name, "a caller's shut guard cannot be written");
                return;
            }
        };
        let bytes = seconds.len();
        let act = move |within: &mut Within<'_>| -> Result<(), Fault> {
            let sql = "INSERT OR REPLACE INTO shut_caller (caller, since_ms, seconds) VALUES (?1, ?2, ?3)";
            let row = (&caller.name, to_sql(caller.since_ms), &seconds);
            within.connection.prepare_cached(sql)?.execute(row)?;
            Ok(())
        };
        self.queue(Box::new(Kept(act, bytes)));
    }

    pub(super) fn remove_shut(&self, name: &str) {
        let name = name.to_owned();
        let act = move |within: &mut Within<'_>| -> Result<(), Fault> {
            within.connection.prepare_cached("DELETE FROM shut_caller WHERE caller = ?1")?.execute([&name])?;
            Ok(())
        };
        self.queue(Box::new(Kept(act, 0)));
    }
}

/// All of them. What cannot be read is told, and its caller begins anew: a service that does not start would be worse.
pub(super) fn all(connection: &Connection) -> Result<Vec<ShutCaller>, Fault> {
    let mut statement = connection.prepare_cached("SELECT caller, since_ms, seconds FROM shut_caller")?;
    let mut rows = statement.query([])?;
    let mut callers = Vec::new();
    while let Some(row) = rows.next()? {
        let (name, packed): (String, Vec<u8>) = (row.get(0)?, row.get(2)?);
        let seconds = unpack(&packed).and_then(|seconds| Ok(serde_json::from_slice(&seconds)?));
        if let Ok(seconds) = seconds {
            callers.push(ShutCaller { name, since_ms: from_sql(row.get(1)?), seconds });
        } else {
            tracing::error!(caller = name, "what is kept of a caller's shut guard cannot be read");
        }
    }
    Ok(callers)
}

/// Removes at most `max` that no setting can hold shut any more; true where none is left.
pub(super) fn expire(within: &mut Within<'_>, max: usize) -> Result<bool, Fault> {
    let longest_ms = u64::try_from((HOUR + SHUT_FOR_MAX).as_millis()).unwrap_or(u64::MAX);
    let before = to_sql(within.now_ms.saturating_sub(longest_ms));
    let sql = "DELETE FROM shut_caller WHERE caller IN (SELECT caller FROM shut_caller WHERE since_ms < ?1 LIMIT ?2)";
    let gone = within.connection.prepare_cached(sql)?.execute([before, to_sql(max as u64)])?;
    Ok(gone < max)
}

/// Removes what is kept of a tenant.
pub(super) fn remove_tenant(within: &mut Within<'_>, tenant: &str) -> Result<(), Fault> {
    let sql = "DELETE FROM shut_caller WHERE caller = 'tenant:' || ?1";
    within.connection.prepare_cached(sql)?.execute([tenant])?;
    Ok(())
}
