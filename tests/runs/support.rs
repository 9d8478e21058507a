//! Workflows in few words, runs of them, and what must hold of every run.

use std::{
    collections::BTreeSet,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use serde_json::{Map, Value, json};
use watertight::{
    model::{
        event::{Event, EventType},
        run::{RunRecord, RunStatus, StepStatus},
    },
    runtime::{
        call::CallContext,
        engine::Runtime,
        run_handle::{RunHandle, RunRequest},
        settings::AgentSettings,
    },
    workflow::{check, checked::Workflow},
};

use crate::kit::{Answer, Scripted, agent, builder, name, provider};

/// A workflow from the rest of its head (whatever output is fine where none is named) and its further tables.
pub fn workflow(head: &str, steps: &str) -> Arc<Workflow> {
    let agents: BTreeSet<_> = ["a", "b", "c", "d"].into_iter().map(name).collect();
    let head = if head.contains("output") { head.to_owned() } else { format!("output = \"none\"\n{head}") };
    let text = format!("[workflow]\nname = \"test\"\n{head}\n{steps}");
    Arc::new(check::load("test.toml", text.as_bytes(), &agents).unwrap_or_else(|error| panic!("{error}\n{text}")))
}

/// One step an agent, each after the one before.
pub fn chain(agents: &[&str]) -> Arc<Workflow> {
    workflow("", &chain_text(agents))
}

/// The steps of a chain.
pub fn chain_text(agents: &[&str]) -> String {
    let mut text = String::new();
    for (at, agent) in agents.iter().enumerate() {
        let needs = at.checked_sub(1).map(|before| format!("needs = [\"{}\"]\n", agents[before])).unwrap_or_default();
        text.push_str(&format!("[[step]]\nid = \"{agent}\"\nagent = \"{agent}\"\n{needs}"));
    }
    text
}

/// A runtime with agents of one provider that nobody else leans on each, and their backends.
pub async fn runtime(agents: Vec<(AgentSettings, Arc<Scripted>)>) -> Runtime {
    let mut builder = builder();
    for (settings, backend) in agents {
        builder = builder.provider(provider(settings.provider.as_str())).agent(settings, backend);
    }
    builder.start().await.unwrap()
}

/// An agent on a provider of its own.
pub fn alone(of: &str, slots: u32) -> AgentSettings {
    AgentSettings { slots, ..agent(of, &format!("{of}-host")) }
}

/// Agents with 10 slots each that all answer like this.
pub async fn answering(agents: &[&str], answer: Answer) -> (Runtime, Vec<Arc<Scripted>>) {
    let backends: Vec<Arc<Scripted>> = agents.iter().map(|_| Scripted::always(answer.clone())).collect();
    let agents = agents.iter().zip(&backends).map(|(of, backend)| (alone(of, 10), backend.clone()));
    (runtime(agents.collect()).await, backends)
}

/// Starts a run without inputs.
pub fn start(runtime: &Runtime, workflow: &Arc<Workflow>) -> RunHandle {
    start_with(runtime, workflow, json!({}), None)
}

/// Starts a run.
pub fn start_with(runtime: &Runtime, workflow: &Arc<Workflow>, input: Value, priority: Option<&str>) -> RunHandle {
    let Value::Object(input) = input else { panic!("inputs have names") };
    start_until(runtime, workflow, input, priority, None)
}

/// Starts a run that may take only so long.
pub fn start_until(
    runtime: &Runtime,
    workflow: &Arc<Workflow>,
    input: Map<String, Value>,
    priority: Option<&str>,
    deadline: Option<Duration>,
) -> RunHandle {
    let context = CallContext { priority: priority.map(str::to_owned), ..CallContext::default() };
    runtime.start_run(RunRequest { workflow: workflow.clone(), input, deadline, context }).unwrap()
}

/// Waits for a run's end and checks what must hold of every run.
pub async fn end(run: &RunHandle) -> Arc<RunRecord> {
    let record = run.finished().await;
    whole(run, &record);
    record
}

/// What must hold of every run that is over.
pub fn whole(run: &RunHandle, record: &RunRecord) {
    let events = run.events_after(0);
    let ids: Vec<u64> = events.iter().map(|event| event.id).collect();
    assert_eq!(ids, (1..=events.len() as u64).collect::<Vec<_>>(), "no gap, no repetition");
    assert!(record.status.is_terminal() && run.status() == Some(record.status));
    assert!(run.why().is_none(), "what is over waits for nothing");
    let finished = events.iter().filter(|event| event.kind == EventType::RunFinished).count();
    assert_eq!((finished, events.last().unwrap().kind), (1, EventType::RunFinished), "once, last: {events:#?}");
    assert_eq!(events.last().unwrap().data["status"], record.status.as_str());
    assert!(events.windows(2).all(|pair| pair[0].ts_ms <= pair[1].ts_ms), "in the order of time");
    assert_eq!(events.iter().filter(|event| event.kind == EventType::RunStarted).count(), 1);
    for step in &record.steps {
        assert!(!matches!(step.status, StepStatus::Running | StepStatus::Pending), "a hole: {step:?}");
    }
    for event in events.iter().filter(|event| event.kind == EventType::StepStarted) {
        let ends = |other: &&Event| {
            matches!(other.kind, EventType::StepFinished | EventType::StepSkipped)
                && other.step == event.step
                && other.data["index"] == event.data["index"]
                && other.data["iteration"] == event.data["iteration"]
        };
        assert_eq!(events.iter().filter(ends).count(), 1, "one end of {event:?}");
    }
    if record.status == RunStatus::Completed {
        assert!(record.error.is_none() && record.degraded.is_empty());
    }
}

/// A step's first record.
pub fn step<'a>(record: &'a RunRecord, id: &str) -> &'a watertight::model::run::StepRecord {
    record.steps.iter().find(|step| step.id == id).unwrap()
}

/// The kinds of a run's events, with their steps.
pub fn kinds(run: &RunHandle) -> Vec<String> {
    let shown = |event: Event| match event.step {
        Some(step) => format!("{} {step}", event.kind.as_str()),
        None => event.kind.as_str().to_owned(),
    };
    run.events_after(0).into_iter().map(shown).collect()
}

/// The runs that an agent was called for, in the order of the calls.
pub fn callers(backend: &Scripted) -> Vec<String> {
    backend.requests.lock().unwrap().iter().filter_map(|request| request.run_id.clone()).collect()
}

/// Nothing is under way, and nothing is held.
pub fn assert_idle(runtime: &Runtime, backends: &[Arc<Scripted>]) {
    for backend in backends {
        assert_eq!(backend.running.load(Ordering::SeqCst), 0, "an attempt goes on");
    }
    for agent in runtime.agents() {
        assert_eq!((agent.in_flight, agent.mailbox_depth), (0, 0), "{}", agent.name);
    }
}

/// No call was made twice.
pub fn assert_called_once(backends: &[Arc<Scripted>]) {
    for backend in backends {
        let requests = backend.requests.lock().unwrap();
        let keys: BTreeSet<&str> = requests.iter().map(|request| request.idempotency_key.as_str()).collect();
        assert_eq!(keys.len(), requests.len(), "a call was made twice");
    }
}

/// Seconds.
pub const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Milliseconds.
pub const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}
