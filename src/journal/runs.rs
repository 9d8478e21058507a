//! Runs as they are written: accepted, gone on, ended.

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension as _, types::Value as Sql};

use super::{
    dead_letters::end_waiting,
    fault::Fault,
    files::table as files,
    number::{run_id_of, run_key, status_number, to_sql},
    pack::{pack, unpack},
    slot::{self, Contents},
    work::{OnRefusal, Within, Work},
    written::{Finished, WrittenBatch},
};
use crate::{
    model::run::RunStatus,
    runtime::journal::{
        Acceptance, FIRST_GENERATION, Idempotency, JournalError, RunAccepted, WhenAccepted, WhenDurable,
    },
    workflow::stored::to_text,
};

/// The acceptance of a run.
pub(super) struct Accept {
    pub(super) run: Arc<RunAccepted>,
    /// As it is written.
    pub(super) body: Vec<u8>,
    pub(super) contents: Contents,
    pub(super) idempotency_keep_ms: u64,
    pub(super) outcome: Result<Acceptance, JournalError>,
    pub(super) accepted: WhenAccepted,
}

impl Work for Accept {
    fn on_refusal(&self) -> OnRefusal {
        OnRefusal::TellAtOnce
    }

    fn bytes(&self) -> usize {
        self.body.len() + self.contents.bytes()
    }

    fn run(&mut self, within: &mut Within<'_>) -> Result<(), Fault> {
        self.outcome = self.accept(within)?;
        Ok(())
    }

    fn end(self: Box<Self>, result: Result<(), JournalError>) {
        (self.accepted)(result.and(self.outcome));
    }
}

/// What an earlier request of this tenant under the same key makes of another one.
pub(super) fn earlier(
    connection: &Connection,
    tenant: i64,
    promise: &Idempotency,
    now_ms: u64,
) -> Result<Option<Acceptance>, Fault> {
    let mut statement = connection.prepare_cached(
        "SELECT request_hash, run_id FROM idempotency WHERE tenant = ?1 AND key = ?2 AND expires_ms > ?3",
    )?;
    let found: Option<(String, Sql)> =
        statement.query_row((tenant, &promise.key, to_sql(now_ms)), |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
    Ok(found.map(|(request_hash, key)| {
        let run_id = run_id_of(key);
        if request_hash == promise.request_hash {
            Acceptance::Replayed { run_id }
        } else {
            Acceptance::Conflict { run_id }
        }
    }))
}

impl Accept {
    fn accept(&self, within: &mut Within<'_>) -> Result<Result<Acceptance, JournalError>, Fault> {
        let run = &*self.run;
        let tenant = within.names.number(within.connection, run.owner.tenant.as_deref())?;
        if let Some(promise) = &run.idempotency
            && let Some(earlier) = earlier(within.connection, tenant, promise, within.now_ms)?
        {
            return Ok(Ok(earlier));
        }
        if within.is_nearly_full {
            return Ok(Err(JournalError::Full("what is left of size_max is kept for runs under way".to_owned())));
        }
        if let Some(file_id) = files::missing_file(within, tenant, &run.input)? {
            return Ok(Err(JournalError::NoFile { file_id }));
        }
        let feature = within.names.number(within.connection, run.owner.feature.as_deref())?;
        let workflow = self.workflow(within)?;
        let key = run_key(&run.run_id);
        let row: i64 = within
            .connection
            .prepare_cached(
                "INSERT INTO run (run_id, tenant, feature, workflow, status, number, generation, created_ms, deadline_ms)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9) RETURNING run",
            )?
            .query_row(
                (
                    &key,
                    tenant,
                    feature,
                    workflow,
                    status_number(RunStatus::Queued),
                    to_sql(run.number),
                    to_sql(FIRST_GENERATION),
                    to_sql(run.created_ms),
                    to_sql(run.deadline_ms),
                ),
                |row| row.get(0),
            )?;
        within
            .connection
            .prepare_cached("INSERT INTO story (run, accepted) VALUES (?1, ?2)")?
            .execute((row, &self.body))?;
        slot::store(within.connection, row, &self.contents)?;
        files::name_files(within, row, tenant, &run.input)?;
        if let Some(promise) = &run.idempotency {
            let expires_ms = within.now_ms.saturating_add(self.idempotency_keep_ms);
            within
                .connection
                .prepare_cached("INSERT OR REPLACE INTO idempotency VALUES (?1, ?2, ?3, ?4, ?5)")?
                .execute((tenant, &promise.key, &promise.request_hash, &key, to_sql(expires_ms)))?;
        }
        Ok(Ok(Acceptance::New))
    }

    /// The number of the run's workflow; each version is stored once.
    fn workflow(&self, within: &mut Within<'_>) -> Result<i64, Fault> {
        let workflow = &self.run.workflow;
        let mut statement = within.connection.prepare_cached("SELECT workflow FROM workflow WHERE hash = ?1")?;
        if let Some(number) = statement.query_row([workflow.hash()], |row| row.get(0)).optional()? {
            return Ok(number);
        }
        let name = within.names.number(within.connection, Some(workflow.name().as_str()))?;
        let text = pack(to_text(workflow).as_bytes());
        let mut statement = within
            .connection
            .prepare_cached("INSERT INTO workflow (hash, name, text) VALUES (?1, ?2, ?3) RETURNING workflow")?;
        Ok(statement.query_row((workflow.hash(), name, text), |row| row.get(0))?)
    }
}

/// Entries of a run.
pub(super) struct Append {
    pub(super) run_id: Arc<str>,
    pub(super) generation: u64,
    pub(super) batch: WrittenBatch,
    /// Dropped instead of called where the generation is over.
    pub(super) durable: Option<WhenDurable>,
    /// Whether the last try found that the entries belong to an earlier owner, or that their run is over.
    pub(super) is_stale: bool,
}

impl Work for Append {
    fn on_refusal(&self) -> OnRefusal {
        OnRefusal::Keep
    }

    fn bytes(&self) -> usize {
        self.batch.bytes() + size_of::<Self>()
    }

    fn run(&mut self, within: &mut Within<'_>) -> Result<(), Fault> {
        let mut statement = within
            .connection
            .prepare_cached("SELECT run, generation, ended_ms IS NOT NULL FROM run WHERE run_id = ?1")?;
        let found: Option<(i64, i64, bool)> = statement
            .query_row([run_key(&self.run_id)], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
            .optional()?;
        self.is_stale = match found {
            Some((row, generation, false)) if generation == to_sql(self.generation) => {
                write_batch(within, row, &self.batch)?;
                false
            }
            _ => true,
        };
        Ok(())
    }

    fn end(self: Box<Self>, result: Result<(), JournalError>) {
        if let (Ok(()), false, Some(durable)) = (result, self.is_stale, self.durable) {
            durable();
        }
    }
}

pub(super) fn write_batch(within: &mut Within<'_>, row: i64, batch: &WrittenBatch) -> Result<(), Fault> {
    let connection = within.connection;
    if let Some(finished) = &batch.finished {
        return finish(within, row, batch, finished);
    }
    slot::store(connection, row, &batch.contents)?;
    connection
        .prepare_cached(
            "INSERT INTO entry (run, entry, event_last, events, ended) VALUES
             (?1, 1 + coalesce((SELECT max(entry) FROM entry WHERE run = ?1), 0), ?2, ?3, ?4)",
        )?
        .execute((row, to_sql(batch.event_last), &batch.events, &batch.ended))?;
    if batch.status.is_some() || batch.started_ms.is_some() {
        connection
            .prepare_cached(
                "UPDATE run SET status = coalesce(?2, status), started_ms = coalesce(started_ms, ?3) WHERE run = ?1",
            )?
            .execute((row, batch.status.map(status_number), batch.started_ms.map(to_sql)))?;
    }
    Ok(())
}

/// Packs a run that is over: one record, one text of all events, nothing else.
fn finish(within: &mut Within<'_>, row: i64, batch: &WrittenBatch, finished: &Finished) -> Result<(), Fault> {
    let connection = within.connection;
    let mut events = Vec::new();
    let mut statement = connection.prepare_cached("SELECT events FROM entry WHERE run = ?1 ORDER BY entry")?;
    let mut rows = statement.query([row])?;
    while let Some(entry) = rows.next()? {
        events.extend_from_slice(entry.get_ref(0)?.as_blob().map_err(rusqlite::Error::from)?);
    }
    events.extend_from_slice(&batch.events);
    connection.prepare_cached("DELETE FROM entry WHERE run = ?1")?.execute([row])?;
    connection.prepare_cached("UPDATE story SET record = ?2, events = ?3 WHERE run = ?1")?.execute((
        row,
        &finished.record,
        pack(&events),
    ))?;
    slot::store(connection, row, &finished.contents)?;
    connection
        .prepare_cached("UPDATE run SET status = ?2, started_ms = ?3, ended_ms = ?4 WHERE run = ?1")?
        .execute((row, status_number(finished.status), finished.started_ms.map(to_sql), to_sql(finished.ended_ms)))?;
    end_waiting(connection, row)?;
    release_all_but(within, row, &finished.contents)
}

/// Outputs that only ends named go; those of the record and of the acceptance stay.
fn release_all_but(within: &Within<'_>, row: i64, record: &Contents) -> Result<(), Fault> {
    let connection = within.connection;
    let named: i64 = connection
        .prepare_cached("SELECT count(*) FROM run_content WHERE run = ?1")?
        .query_row([row], |found| found.get(0))?;
    if named == i64::try_from(record.packed.len()).unwrap_or(i64::MAX) {
        return Ok(());
    }
    let accepted: Vec<u8> = connection
        .prepare_cached("SELECT accepted FROM story WHERE run = ?1")?
        .query_row([row], |found| found.get(0))?;
    let mut kept = super::restore::contents_of_acceptance(&unpack(&accepted)?)?;
    kept.packed.extend(record.packed.keys().map(|hash| (*hash, Vec::new())));
    slot::release(connection, row, &kept)
}
