//! The calls that had begun and not ended when their process was gone, as a run's events tell of them, and what becomes of them.

use std::time::Duration;

use serde_json::{Value as Json, json};

use super::action::StepKey;
use crate::{
    model::{
        event::{Event, EventType},
        run::RefusalRecord,
    },
    policy::suspects::{BEAT, BLAMES_MAX, Guilt, Seen, Sentence, sentences},
    workflow::checked::Workflow,
};

/// Says of a call that is begun again after the restart: it was cut by a node that stopped of itself, and killed nobody.
pub(super) const NODE_STOPS: &str = "node_stops";
/// Says of a call that is begun again: no other suspect runs beside it.
pub(super) const ALONE: &str = "alone";
/// Why a run is resumed in another life of the process.
const RESTART: &str = "restart";
/// The calls that are held back after a restart, in `run.resumed`.
const SUSPECTS: &str = "suspects";

/// A call that had begun and not ended when whoever made it was gone.
#[derive(Debug, Clone, PartialEq)]
pub struct OpenCall {
    /// Which.
    pub key: StepKey,
    /// Unix milliseconds of its first start.
    pub started_ms: u64,
    /// What refused it so far.
    pub refusals: Vec<RefusalRecord>,
    /// How far it had come.
    pub stage: OpenStage,
    /// Unix milliseconds since which it was on trial when the process died, if it was.
    pub tried_ms: Option<u64>,
    /// What was seen of it before this death.
    pub seen: Seen,
    /// What becomes of it; it is free until it is judged.
    pub sentence: Sentence,
}

/// Why a call waits for an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doubt {
    /// It may have acted, and must not act twice.
    ActsOnce,
    /// The process died with it too often.
    Kills(Guilt),
}

/// How far a call had come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenStage {
    /// It may have been sent.
    UnderWay,
    /// It was refused by us and waited: nothing was sent.
    Refused,
}

/// The calls that had begun and not ended, by a run's events.
pub fn open_calls(workflow: &Workflow, events: &[Event]) -> Vec<OpenCall> {
    let mut open: Vec<OpenCall> = Vec::new();
    for event in events {
        if event.kind == EventType::RunResumed && event.data["reason"] == RESTART {
            read_suspects(workflow, event, &mut open);
            continue;
        }
        let Some(key) = key_of(workflow, event) else { continue };
        let place = open.iter().position(|call| call.key == key);
        match (event.kind, place) {
            (EventType::StepStarted, None) => open.push(OpenCall {
                key,
                started_ms: event.ts_ms,
                refusals: Vec::new(),
                stage: OpenStage::UnderWay,
                tried_ms: None,
                seen: Seen { deaths: 1, ..Seen::default() },
                sentence: Sentence::Free,
            }),
            (EventType::StepStarted, Some(place)) => {
                let call = &mut open[place];
                (call.stage, call.seen.deaths) = (OpenStage::UnderWay, call.seen.deaths + 1);
                call.tried_ms = (event.data[ALONE] == true).then_some(event.ts_ms);
            }
            (EventType::StepRetried, Some(place)) if event.data[NODE_STOPS] == true => {
                let call = &mut open[place];
                (call.tried_ms, call.seen.deaths) = (None, call.seen.deaths.saturating_sub(1));
            }
            (EventType::StepRefused, Some(place)) => {
                let call = &mut open[place];
                (call.stage, call.seen, call.tried_ms) = (OpenStage::Refused, Seen::default(), None);
                call.refusals.push(RefusalRecord {
                    at_ms: event.ts_ms,
                    error_code: event.data["error_code"].as_str().unwrap_or_default().to_owned(),
                    retry_after: event.data["retry_after"].as_f64(),
                });
            }
            (EventType::StepFinished | EventType::StepSkipped, Some(place)) => {
                open.remove(place);
            }
            _ => {}
        }
    }
    open
}

/// Judges the calls of all runs that one death cut off. `alive_ms` is when the process is last known to have lived, in Unix milliseconds.
pub fn judge(open: &mut [Vec<OpenCall>], alive_ms: Option<u64>) {
    let all = || open.iter().flatten().filter(|call| call.stage == OpenStage::UnderWay);
    let seen_at_death = |call: &OpenCall| {
        let lived = |since: u64| Duration::from_millis(alive_ms?.saturating_sub(since)).checked_add(BEAT);
        Seen { tried: call.tried_ms.map(|since| lived(since).unwrap_or(Duration::MAX)), ..call.seen }
    };
    let seen: Vec<Seen> = all().map(seen_at_death).collect();
    let calls = open.iter_mut().flatten().filter(|call| call.stage == OpenStage::UnderWay);
    for (call, sentence) in calls.zip(sentences(&seen)) {
        call.sentence = sentence;
    }
}

/// The facts of `run.resumed` after a restart: which of its calls are held back, so that the next restart knows.
pub(super) fn resumed_data(workflow: &Workflow, open: &[OpenCall]) -> Json {
    let mut data = json!({ "reason": RESTART });
    let suspects: Vec<Json> = open.iter().filter_map(|call| suspect_data(workflow, call)).collect();
    if !suspects.is_empty() {
        data[SUSPECTS] = Json::Array(suspects);
    }
    data
}

fn suspect_data(workflow: &Workflow, call: &OpenCall) -> Option<Json> {
    let (blamed, quiet) = match call.sentence {
        Sentence::Try { blamed, quiet } => (blamed, quiet),
        Sentence::PutAside(Guilt::Blamed) => (BLAMES_MAX, Duration::ZERO),
        Sentence::PutAside(Guilt::Deaths) | Sentence::Free => return None,
    };
    let StepKey { step, index, iteration } = call.key;
    let step = workflow.steps.get(step)?.id();
    let quiet_ms = u64::try_from(quiet.as_millis()).unwrap_or(u64::MAX);
    Some(json!({ "step": step, "index": index, "iteration": iteration, "blamed": blamed, "quiet_ms": quiet_ms }))
}

/// Another life begins: nobody is on trial yet, and those who are held back have the blame that they were given.
fn read_suspects(workflow: &Workflow, event: &Event, open: &mut [OpenCall]) {
    for call in open.iter_mut() {
        (call.tried_ms, call.seen.blamed, call.seen.quiet) = (None, 0, Duration::ZERO);
    }
    for suspect in event.data[SUSPECTS].as_array().into_iter().flatten() {
        let key = suspect["step"].as_str().and_then(|step| key_in(workflow, step, suspect));
        let Some(call) = open.iter_mut().find(|call| Some(call.key) == key) else { continue };
        call.seen.blamed = suspect["blamed"].as_u64().and_then(|blamed| u32::try_from(blamed).ok()).unwrap_or_default();
        call.seen.quiet = Duration::from_millis(suspect["quiet_ms"].as_u64().unwrap_or_default());
    }
}

/// The call that an event is about; none for the events of a `map` as a whole.
fn key_of(workflow: &Workflow, event: &Event) -> Option<StepKey> {
    key_in(workflow, event.step.as_deref()?, &event.data)
}

fn key_in(workflow: &Workflow, id: &str, data: &Json) -> Option<StepKey> {
    let step = workflow.steps.iter().position(|step| step.id() == id)?;
    let index = data["index"].as_u64().and_then(|index| u32::try_from(index).ok());
    let iteration = u32::try_from(data["iteration"].as_u64()?).ok()?;
    (workflow.steps[step].map.is_some() == index.is_some()).then_some(StepKey { step, index, iteration })
}
