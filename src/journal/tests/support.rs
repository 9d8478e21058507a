//! What all tests of the journal share: a folder, a journal in it, made-up runs.

use std::{
    collections::BTreeSet,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::{
    journal::{journal::SqliteJournal, settings::JournalSettings},
    model::{
        event::{Event, EventType},
        name::Name,
        run::{RunRecord, RunStatus, RunTokens, StepRecord, StepStatus},
    },
    runtime::journal::{
        Acceptance, Batch, Ended, EndedScope, Entry, Idempotency, Journal as _, JournalError, RunAccepted, RunOwner,
    },
    workflow::{
        builder::{StepBuilder, WorkflowBuilder},
        checked::Workflow,
        definition::InputKind,
    },
};

pub(in crate::journal) const T0: u64 = 1_790_000_000_000;

/// A journal in a folder of its own, with a clock in the test's hand.
pub(in crate::journal) struct Place {
    pub(in crate::journal) folder: tempfile::TempDir,
    pub(in crate::journal) now: Arc<AtomicU64>,
    workflow: Arc<Workflow>,
}

impl Place {
    pub(in crate::journal) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { folder, now: Arc::new(AtomicU64::new(T0)), workflow: Arc::new(workflow("line")) }
    }

    pub(in crate::journal) fn path(&self) -> PathBuf {
        self.folder.path().join("journal.db")
    }

    pub(in crate::journal) fn settings(&self) -> JournalSettings {
        let now = Arc::clone(&self.now);
        JournalSettings { now_ms: Arc::new(move || now.load(Ordering::Relaxed)), ..JournalSettings::at(self.path()) }
    }

    pub(in crate::journal) fn open(&self) -> Arc<SqliteJournal> {
        SqliteJournal::open(self.settings()).unwrap()
    }

    pub(in crate::journal) fn pass_ms(&self, milliseconds: u64) {
        self.now.fetch_add(milliseconds, Ordering::Relaxed);
    }

    pub(in crate::journal) fn run(&self, run_id: &str) -> RunAccepted {
        RunAccepted {
            run_id: run_id.to_owned(),
            number: 7,
            owner: RunOwner { tenant: Some("acme".into()), feature: Some("chat".into()), ..RunOwner::default() },
            workflow: Arc::clone(&self.workflow),
            input: json!({ "notes": "a walk" }).as_object().unwrap().clone(),
            created_ms: self.now.load(Ordering::Relaxed),
            deadline_ms: self.now.load(Ordering::Relaxed) + 60_000,
            idempotency: None,
            origin: None,
            seeds: Vec::new(),
        }
    }
}

pub(in crate::journal) fn workflow(name: &str) -> Workflow {
    let agents: BTreeSet<Name> = ["draft", "review"].map(|name| Name::try_new(name).unwrap()).into();
    WorkflowBuilder::new(name)
        .input("notes", InputKind::Text)
        .step(StepBuilder::new("draft", "draft").input([("notes", "input.notes")]))
        .step(StepBuilder::new("review", "review").input([("draft", "steps.draft.output")]))
        .output("steps.review.output")
        .build(&agents)
        .unwrap()
}

#[allow(clippy::unnecessary_wraps, reason = "as a run's field wants it")]
pub(in crate::journal) fn promise(key: &str, request: &str) -> Option<Idempotency> {
    Some(Idempotency { key: key.into(), request_hash: request.into() })
}

pub(in crate::journal) async fn accept(journal: &SqliteJournal, run: RunAccepted) -> Result<Acceptance, JournalError> {
    let (told, when_told) = oneshot::channel();
    journal.accept(Arc::new(run), Box::new(move |result| told.send(result).unwrap()));
    when_told.await.unwrap()
}

/// Appends, and waits until it is durable; `false` where that will never be.
pub(in crate::journal) async fn append(
    journal: &SqliteJournal,
    run_id: &str,
    generation: u64,
    entries: Vec<Entry>,
) -> bool {
    append_later(journal, run_id, generation, entries).await.is_ok()
}

pub(in crate::journal) fn append_later(
    journal: &SqliteJournal,
    run_id: &str,
    generation: u64,
    entries: Vec<Entry>,
) -> oneshot::Receiver<()> {
    let (told, when_told) = oneshot::channel();
    let batch = Batch { run_id: run_id.into(), generation, entries };
    journal.append(batch, Box::new(move || told.send(()).unwrap_or_default()));
    when_told
}

pub(in crate::journal) fn event(run_id: &str, id: u64, kind: EventType) -> Entry {
    let step = kind.as_str().starts_with("step.").then(|| "draft".to_owned());
    let data = json!({ "index": null, "iteration": 0, "number": id });
    Entry::Event(Event { id, ts_ms: T0 + id, kind, run_id: run_id.to_owned(), step, data })
}

pub(in crate::journal) fn step(id: &str, output: Value) -> StepRecord {
    StepRecord {
        id: id.to_owned(),
        agent: id.to_owned(),
        index: None,
        iteration: 0,
        status: StepStatus::Succeeded,
        started_ms: Some(T0 + 1),
        duration_ms: Some(20),
        attempts: Vec::new(),
        refusals: Vec::new(),
        tokens: None,
        cost: None,
        degraded: None,
        error: None,
        output: Some(output),
    }
}

pub(in crate::journal) fn ended(id: &str, output: Value) -> Ended {
    Ended { scope: EndedScope::Item, record: step(id, output), cause: None, usage: None, at_ms: T0 + 21 }
}

pub(in crate::journal) fn end_entry(id: &str, output: Value) -> Entry {
    Entry::Ended(Box::new(ended(id, output)))
}

pub(in crate::journal) fn record(run_id: &str, status: RunStatus, steps: Vec<StepRecord>, ended_ms: u64) -> RunRecord {
    RunRecord {
        run_id: run_id.to_owned(),
        workflow: "line".into(),
        workflow_hash: "x".into(),
        rerun_of: None,
        status,
        created_ms: T0,
        started_ms: Some(T0 + 1),
        ended_ms: Some(ended_ms),
        duration_ms: Some(ended_ms - T0),
        tokens: RunTokens::default(),
        cost: None,
        currency: None,
        output: steps.last().and_then(|step| step.output.clone()),
        steps,
        degraded: Vec::new(),
        error: None,
    }
}

pub(in crate::journal) fn finished(record: RunRecord) -> Entry {
    Entry::Finished(Box::new(record))
}

/// Accepts a run and lets it end at once, as the clock stands.
pub(in crate::journal) async fn whole_run(place: &Place, journal: &SqliteJournal, run: RunAccepted, status: RunStatus) {
    let run_id = run.run_id.clone();
    assert_eq!(accept(journal, run).await, Ok(Acceptance::New));
    let record = record(&run_id, status, vec![step("draft", json!("text"))], place.now.load(Ordering::Relaxed));
    assert!(append(journal, &run_id, 0, vec![event(&run_id, 1, EventType::RunFinished), finished(record)]).await);
}
