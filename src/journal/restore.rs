//! Runs as they are read back: for a new owner after a restart, and whole for whoever goes on from a run's results. A run that cannot
//! be read does not hold up the others.

use std::{collections::HashMap, sync::Arc};

use rusqlite::{Connection, OptionalExtension as _, types::Value as Sql};

use super::{
    fault::Fault,
    number::{from_sql, name_text, run_id_of, run_key, to_sql},
    pack::unpack,
    slot::{Contents, Slot, hash_of, value_of},
    work::Within,
    written::{WrittenEnd, WrittenRecord, WrittenRun, ends_of, events_of},
};
use crate::{
    model::{event::Event, run::RunRecord},
    runtime::journal::{Ended, Idempotency, JournalError, RunAccepted, StoredRun},
    workflow::{check::Agents, checked::Workflow, stored::from_text_for},
};

/// A run's row.
pub(super) struct Row {
    run: i64,
    key: Sql,
    tenant: i64,
    feature: i64,
    workflow: i64,
    number: i64,
    generation: i64,
    created_ms: i64,
    deadline_ms: i64,
    started_ms: Option<i64>,
    accepted: Vec<u8>,
}

const ROW: &str =
    "SELECT run, run_id, tenant, feature, workflow, number, generation, created_ms, deadline_ms, started_ms, accepted
    FROM run JOIN story USING (run)";

impl Row {
    fn of(row: &rusqlite::Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            run: row.get(0)?,
            key: row.get(1)?,
            tenant: row.get(2)?,
            feature: row.get(3)?,
            workflow: row.get(4)?,
            number: row.get(5)?,
            generation: row.get(6)?,
            created_ms: row.get(7)?,
            deadline_ms: row.get(8)?,
            started_ms: row.get(9)?,
            accepted: row.get(10)?,
        })
    }
}

/// Versions of workflows that were read already.
pub(super) type Workflows = HashMap<i64, Arc<Workflow>>;

/// A run that could not be read, and why.
pub(super) struct Unreadable {
    pub(super) run: i64,
    pub(super) run_id: String,
    pub(super) why: JournalError,
}

/// Takes over all runs that are not over: whoever held them can write no more.
pub(super) fn take_over(within: &mut Within<'_>) -> Result<(Vec<StoredRun>, Vec<Unreadable>), Fault> {
    let connection = within.connection;
    connection.prepare_cached("UPDATE run SET generation = generation + 1 WHERE ended_ms IS NULL")?.execute([])?;
    let mut statement = connection.prepare(&format!("{ROW} WHERE ended_ms IS NULL ORDER BY run"))?;
    let rows: Vec<Row> = statement.query_map([], Row::of)?.collect::<Result<_, _>>()?;
    let (mut workflows, mut runs, mut unreadable) = (Workflows::new(), Vec::new(), Vec::new());
    for row in rows {
        let (run, run_id) = (row.run, run_id_of(row.key.clone()));
        match stored_run(connection, row, &mut workflows) {
            Ok(stored) => runs.push(stored),
            Err(Fault::Own(why)) => unreadable.push(Unreadable { run, run_id, why }),
            Err(fault) => return Err(fault),
        }
    }
    Ok((runs, unreadable))
}

fn stored_run(connection: &Connection, row: Row, workflows: &mut Workflows) -> Result<StoredRun, Fault> {
    let (run, started_ms, generation) = (row.run, row.started_ms.map(from_sql), from_sql(row.generation));
    let accepted = accepted_of(connection, row, workflows)?;
    let (mut ended, mut events) = (Vec::new(), Vec::new());
    let mut statement = connection.prepare_cached("SELECT events, ended FROM entry WHERE run = ?1 ORDER BY entry")?;
    let mut rows = statement.query([run])?;
    while let Some(entry) = rows.next()? {
        let blob = |place| entry.get_ref(place)?.as_blob().map_err(rusqlite::Error::from);
        events.extend(events_of(blob(0)?, &accepted.run_id, 0, usize::MAX)?);
        for end in ends_of(blob(1)?)? {
            ended.push(ended_of(connection, end)?);
        }
    }
    Ok(StoredRun { accepted, generation, started_ms, ended, events })
}

/// A run as it was accepted, over or not.
pub(super) fn accepted(connection: &Connection, key: Sql) -> Result<Option<RunAccepted>, Fault> {
    let mut statement = connection.prepare_cached(&format!("{ROW} WHERE run_id = ?1"))?;
    match statement.query_row([key], Row::of).optional()? {
        Some(row) => Ok(Some(accepted_of(connection, row, &mut Workflows::new())?)),
        None => Ok(None),
    }
}

fn accepted_of(connection: &Connection, row: Row, workflows: &mut Workflows) -> Result<RunAccepted, Fault> {
    let written: WrittenRun = serde_json::from_slice(&unpack(&row.accepted)?)?;
    let mut owner = written.owner;
    owner.tenant = name_text(connection, row.tenant)?;
    owner.feature = name_text(connection, row.feature)?;
    let workflow = if let Some(workflow) = workflows.get(&row.workflow) {
        Arc::clone(workflow)
    } else {
        let workflow = Arc::new(workflow_of(connection, row.workflow)?);
        workflows.insert(row.workflow, Arc::clone(&workflow));
        workflow
    };
    let input = written.input.into_iter().map(|(name, slot)| Ok((name, value_of(connection, slot)?)));
    let mut statement =
        connection.prepare_cached("SELECT key, request_hash FROM idempotency WHERE run_id = ?1 AND tenant = ?2")?;
    let idempotency = statement
        .query_row((&row.key, row.tenant), |found| Ok(Idempotency { key: found.get(0)?, request_hash: found.get(1)? }))
        .optional()?;
    Ok(RunAccepted {
        run_id: run_id_of(row.key),
        number: from_sql(row.number),
        owner,
        workflow,
        input: input.collect::<Result<_, Fault>>()?,
        created_ms: from_sql(row.created_ms),
        deadline_ms: from_sql(row.deadline_ms),
        idempotency,
        origin: written.origin,
        seeds: written.seeds.into_iter().map(|seed| ended_of(connection, seed)).collect::<Result<_, _>>()?,
    })
}

/// A version of a workflow. Its agents may be gone: a call to one fails by itself.
fn workflow_of(connection: &Connection, number: i64) -> Result<Workflow, Fault> {
    let mut statement = connection.prepare_cached("SELECT hash, text FROM workflow WHERE workflow = ?1")?;
    let found: Option<(String, Vec<u8>)> =
        statement.query_row([number], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
    let corrupt = |text: String| Fault::Own(JournalError::Corrupt(text));
    let (hash, packed) = found.ok_or_else(|| corrupt(format!("workflow number {number} is missing")))?;
    let text = String::from_utf8(unpack(&packed)?).map_err(|error| corrupt(format!("workflow {hash}: {error}")))?;
    let workflow = from_text_for(&text, Agents::Any).map_err(|error| corrupt(format!("workflow {hash}: {error}")))?;
    if workflow.hash() == hash {
        Ok(workflow)
    } else {
        Err(corrupt(format!("workflow {hash} has the hash {}", workflow.hash())))
    }
}

fn ended_of(connection: &Connection, written: WrittenEnd) -> Result<Ended, Fault> {
    let mut ended = written.ended;
    ended.record.output = written.output.map(|slot| value_of(connection, slot)).transpose()?;
    Ok(ended)
}

/// The final record of a run that is over.
pub(super) fn record(connection: &Connection, key: Sql) -> Result<Option<RunRecord>, Fault> {
    let mut statement = connection
        .prepare_cached("SELECT record FROM run JOIN story USING (run) WHERE run_id = ?1 AND record IS NOT NULL")?;
    let packed: Option<Vec<u8>> = statement.query_row([key], |row| row.get(0)).optional()?;
    let Some(packed) = packed else { return Ok(None) };
    let written: WrittenRecord = serde_json::from_slice(&unpack(&packed)?)?;
    let mut record = written.record;
    let value = |slot: Option<Slot>| slot.map(|slot| value_of(connection, slot)).transpose();
    record.output = value(written.output)?;
    for (step, slot) in record.steps.iter_mut().zip(written.outputs) {
        step.output = value(slot)?;
    }
    Ok(Some(record))
}

/// Events of a run after the id `after`, at most `max`.
pub(super) fn events_after(connection: &Connection, run_id: &str, after: u64, max: usize) -> Result<Vec<Event>, Fault> {
    let mut statement =
        connection.prepare_cached("SELECT run, events FROM run JOIN story USING (run) WHERE run_id = ?1")?;
    let found: Option<(i64, Option<Vec<u8>>)> =
        statement.query_row([run_key(run_id)], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
    let run = match found {
        None => return Ok(Vec::new()),
        Some((_, Some(packed))) => return Ok(events_of(&unpack(&packed)?, run_id, after, max)?),
        Some((run, None)) => run,
    };
    let mut events = Vec::new();
    let mut statement =
        connection.prepare_cached("SELECT events FROM entry WHERE run = ?1 AND event_last > ?2 ORDER BY entry")?;
    let mut rows = statement.query([run, to_sql(after)])?;
    while let Some(entry) = rows.next()?
        && events.len() < max
    {
        let text = entry.get_ref(0)?.as_blob().map_err(rusqlite::Error::from)?;
        events.extend(events_of(text, run_id, after, max - events.len())?);
    }
    Ok(events)
}

/// The id of a run's last event that is kept here; 0 where there is none.
pub(super) fn last_event(connection: &Connection, run_id: &str) -> Result<u64, Fault> {
    let mut statement =
        connection.prepare_cached("SELECT run, events FROM run JOIN story USING (run) WHERE run_id = ?1")?;
    let found: Option<(i64, Option<Vec<u8>>)> =
        statement.query_row([run_key(run_id)], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
    match found {
        None => Ok(0),
        Some((_, Some(packed))) => {
            let events = events_of(&unpack(&packed)?, run_id, 0, usize::MAX)?;
            Ok(events.last().map_or(0, |event| event.id))
        }
        Some((run, None)) => {
            let mut statement =
                connection.prepare_cached("SELECT coalesce(max(event_last), 0) FROM entry WHERE run = ?1")?;
            Ok(from_sql(statement.query_row([run], |row| row.get(0))?))
        }
    }
}

/// What the acceptance of a run names, by hash; the bytes are left out.
pub(super) fn contents_of_acceptance(written: &[u8]) -> Result<Contents, Fault> {
    let written: WrittenRun = serde_json::from_slice(written)?;
    let inputs = written.input.into_iter().map(|(_, slot)| slot);
    let seeds = written.seeds.into_iter().filter_map(|seed| seed.output);
    let mut contents = Contents::default();
    for slot in inputs.chain(seeds) {
        if let Slot::Apart(hash) = slot {
            contents.packed.insert(hash_of(&hash)?, Vec::new());
        }
    }
    Ok(contents)
}
