//! The shapes in which runs lie in the file. They are made on the caller's thread, before anything waits for the disk, so that what an
//! entry weighs is known when it is taken. Outputs stand in slots; what the tables' columns say is not said again.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::slot::{Contents, Slot};
use crate::{
    model::{
        event::{Event, EventType},
        run::{RunRecord, RunStatus},
    },
    runtime::journal::{Batch, Ended, Entry, Origin, RunAccepted, RunOwner},
};

/// An acceptance, but for what stands in columns.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct WrittenRun {
    /// Tenant and feature stand in columns.
    pub(super) owner: RunOwner,
    pub(super) input: Vec<(String, Slot)>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) origin: Option<Origin>,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub(super) seeds: Vec<WrittenEnd>,
}

/// An end.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct WrittenEnd {
    /// Its record's output is `None`.
    pub(super) ended: Ended,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) output: Option<Slot>,
}

/// An event without its run.
#[derive(Debug, Serialize, Deserialize)]
struct WrittenEvent {
    i: u64,
    t: u64,
    k: EventType,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    s: Option<String>,
    #[serde(skip_serializing_if = "Value::is_null", default)]
    d: Value,
}

/// A record; the outputs of its steps and its own are `None` in it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct WrittenRecord {
    pub(super) record: RunRecord,
    pub(super) output: Option<Slot>,
    pub(super) outputs: Vec<Option<Slot>>,
}

/// A batch, ready for the disk.
#[derive(Debug, Default)]
pub(super) struct WrittenBatch {
    /// One line of JSON each.
    pub(super) events: Vec<u8>,
    pub(super) event_last: u64,
    /// One line of JSON each.
    pub(super) ended: Vec<u8>,
    pub(super) contents: Contents,
    pub(super) started_ms: Option<u64>,
    /// Where the run stands after it, if it tells.
    pub(super) status: Option<RunStatus>,
    pub(super) finished: Option<Finished>,
}

/// The end of a run.
#[derive(Debug)]
pub(super) struct Finished {
    pub(super) status: RunStatus,
    pub(super) started_ms: Option<u64>,
    pub(super) ended_ms: u64,
    pub(super) record: Vec<u8>,
    /// All that the record names.
    pub(super) contents: Contents,
}

impl WrittenBatch {
    /// A batch's entries.
    pub(super) fn of(batch: Batch) -> Result<Self, serde_json::Error> {
        let mut written = Self::default();
        for entry in batch.entries {
            match entry {
                Entry::Ended(ended) => {
                    let end = WrittenEnd::of(*ended, &mut written.contents)?;
                    line(&mut written.ended, &end)?;
                }
                Entry::Event(event) => written.event(event)?,
                Entry::Finished(record) => written.finished = Some(Finished::of(*record)?),
            }
        }
        Ok(written)
    }

    fn event(&mut self, event: Event) -> Result<(), serde_json::Error> {
        match event.kind {
            EventType::RunStarted | EventType::RunResumed => self.status = Some(RunStatus::Running),
            EventType::RunParked => self.status = Some(RunStatus::Parked),
            EventType::StepStarted if self.started_ms.is_none() => self.started_ms = Some(event.ts_ms),
            _ => {}
        }
        self.event_last = event.id;
        line(
            &mut self.events,
            &WrittenEvent { i: event.id, t: event.ts_ms, k: event.kind, s: event.step, d: event.data },
        )
    }

    /// Bytes in memory.
    pub(super) fn bytes(&self) -> usize {
        let finished = self.finished.as_ref().map_or(0, |finished| finished.record.len() + finished.contents.bytes());
        self.events.len() + self.ended.len() + self.contents.bytes() + finished
    }
}

impl Finished {
    fn of(mut record: RunRecord) -> Result<Self, serde_json::Error> {
        let mut contents = Contents::default();
        let mut put = |value: Option<Value>| value.map(|value| contents.put(value)).transpose();
        let output = put(record.output.take())?;
        let outputs = record.steps.iter_mut().map(|step| put(step.output.take())).collect::<Result<_, _>>()?;
        let (status, started_ms) = (record.status, record.started_ms);
        let ended_ms = record.ended_ms.unwrap_or(record.created_ms);
        let record = serde_json::to_vec(&WrittenRecord { record, output, outputs })?;
        Ok(Self { status, started_ms, ended_ms, record: super::pack::pack(&record), contents })
    }
}

impl WrittenEnd {
    pub(super) fn of(mut ended: Ended, contents: &mut Contents) -> Result<Self, serde_json::Error> {
        let output = ended.record.output.take().map(|output| contents.put(output)).transpose()?;
        Ok(Self { ended, output })
    }
}

impl WrittenRun {
    /// An acceptance and what it names.
    pub(super) fn of(accepted: &RunAccepted) -> Result<(Self, Contents), serde_json::Error> {
        let mut contents = Contents::default();
        let input = &accepted.input;
        let input = input.iter().map(|(name, value)| Ok((name.clone(), contents.put(value.clone())?)));
        let input = input.collect::<Result<_, serde_json::Error>>()?;
        let seeds = accepted.seeds.iter().map(|seed| WrittenEnd::of(seed.clone(), &mut contents));
        let seeds = seeds.collect::<Result<_, _>>()?;
        let owner = RunOwner { tenant: None, feature: None, ..accepted.owner.clone() };
        Ok((Self { owner, input, origin: accepted.origin.clone(), seeds }, contents))
    }
}

fn line(into: &mut Vec<u8>, value: &impl Serialize) -> Result<(), serde_json::Error> {
    serde_json::to_writer(&mut *into, value)?;
    into.push(b'\n');
    Ok(())
}

/// The lines of `text`, each read.
fn lines<T: serde::de::DeserializeOwned>(text: &[u8]) -> impl Iterator<Item = Result<T, serde_json::Error>> {
    text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(serde_json::from_slice)
}

/// The ends of `text`.
pub(super) fn ends_of(text: &[u8]) -> Result<Vec<WrittenEnd>, serde_json::Error> {
    lines(text).collect()
}

/// The events of `text` after the id `after`, at most `max`.
pub(super) fn events_of(text: &[u8], run_id: &str, after: u64, max: usize) -> Result<Vec<Event>, serde_json::Error> {
    let later = lines::<WrittenEvent>(text).filter(|event| event.as_ref().map_or(true, |event| event.i > after));
    later
        .take(max)
        .map(|event| {
            event.map(|WrittenEvent { i, t, k, s, d }| Event {
                id: i,
                ts_ms: t,
                kind: k,
                run_id: run_id.to_owned(),
                step: s,
                data: d,
            })
        })
        .collect()
}
