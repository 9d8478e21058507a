//! A run that can no longer be read ends, and says why: nobody waits for it for ever, and the others go on.

use super::{
    fault::Fault,
    number::{from_sql, name_text},
    restore::Unreadable,
    runs::write_batch,
    work::Within,
    written::WrittenBatch,
};
use crate::{
    model::{
        envelope::{Envelope, ErrorCode},
        event::{Event, EventType},
        run::{RunRecord, RunStatus, RunTokens},
    },
    runtime::journal::{Batch, Entry},
};

/// Ends a run that cannot be read, as failed.
pub(super) fn give_up(within: &mut Within<'_>, unreadable: &Unreadable) -> Result<(), Fault> {
    let Unreadable { run, run_id, why } = unreadable;
    tracing::error!(run_id, error = %why, "a run cannot be taken over and is given up");
    let connection = within.connection;
    let (created_ms, started_ms, name, hash): (i64, Option<i64>, Option<i64>, Option<String>) = connection
        .prepare_cached(
            "SELECT created_ms, started_ms, name, hash FROM run LEFT JOIN workflow USING (workflow) WHERE run = ?1",
        )?
        .query_row([run], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))?;
    let last: i64 = connection
        .prepare_cached("SELECT coalesce(max(event_last), 0) FROM entry WHERE run = ?1")?
        .query_row([run], |row| row.get(0))?;
    let error = Envelope { run_id: Some(run_id.clone()), ..Envelope::new(ErrorCode::Internal, why.to_string()) };
    let ended_ms = within.now_ms;
    let record = RunRecord {
        run_id: run_id.clone(),
        workflow: name_text(connection, name.unwrap_or(0))?.unwrap_or_default(),
        workflow_hash: hash.unwrap_or_default(),
        rerun_of: None,
        status: RunStatus::Failed,
        created_ms: from_sql(created_ms),
        started_ms: started_ms.map(from_sql),
        ended_ms: Some(ended_ms),
        duration_ms: Some(ended_ms.saturating_sub(from_sql(created_ms))),
        tokens: RunTokens::default(),
        cost: None,
        currency: None,
        output: None,
        steps: Vec::new(),
        degraded: Vec::new(),
        error: Some(error.clone()),
    };
    let event = Event {
        id: from_sql(last) + 1,
        ts_ms: ended_ms,
        kind: EventType::RunFinished,
        run_id: run_id.clone(),
        step: None,
        data: serde_json::json!({ "status": RunStatus::Failed, "error": error }),
    };
    let entries = vec![Entry::Event(event), Entry::Finished(Box::new(record))];
    let batch = WrittenBatch::of(Batch { run_id: run_id.as_str().into(), generation: 0, entries })?;
    write_batch(within, *run, &batch)
}
