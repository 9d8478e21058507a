//! What the journal costs: entries that become durable, whole runs of four steps with sixteen in flight, and the bytes that a step
//! takes on the disk. The file lies in the system's folder for temporary files; where that is no disk, `TMPDIR` names one.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a bench that cannot be set up has no figure")]

mod kit;

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use criterion::Criterion;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use watertight::{
    journal::{
        journal::SqliteJournal,
        settings::{JournalSettings, Survives},
    },
    model::{
        event::{Event, EventType},
        run::{AttemptRecord, RunRecord, RunStatus, RunTokens, StepRecord, StepStatus},
    },
    runtime::journal::{Acceptance, Batch, Ended, EndedScope, Entry, Journal as _, RunAccepted, RunOwner},
    workflow::{
        builder::{StepBuilder, WorkflowBuilder},
        checked::Workflow,
        definition::InputKind,
    },
};

const STEPS: [&str; 4] = ["photos", "draft", "review", "meta"];
const IN_FLIGHT: u64 = 16;
const MEASURED_RUNS: u64 = 10_000;
/// Unix milliseconds, as good as any.
const BEGAN_MS: u64 = 1_790_000_000_000;

static RUNS: AtomicU64 = AtomicU64::new(0);

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let tokio = kit::two_workers();
    let workflow = Arc::new(four_steps());
    let mut group = criterion.benchmark_group("journal");
    for (word, survives) in [("process", Survives::Process), ("power", Survives::Power)] {
        let folder = tempfile::tempdir().unwrap();
        let journal = open(folder.path(), survives);
        for beside in [1, IN_FLIGHT] {
            kit::row(&mut group, &format!("run_of_4_steps/{word}/{beside}_in_flight"), 1, |iterations| {
                kit::beside_each_other(&tokio, beside, iterations, |share| {
                    let (journal, workflow) = (Arc::clone(&journal), Arc::clone(&workflow));
                    async move {
                        for _ in 0..share {
                            run(&journal, &workflow).await;
                        }
                    }
                });
            });
        }
        tokio.block_on(journal.close());
    }
    group.finish();
    bytes_of_a_step(&tokio, &workflow);
}

fn open(folder: &std::path::Path, survives: Survives) -> Arc<SqliteJournal> {
    SqliteJournal::open(JournalSettings { survives, ..JournalSettings::at(folder.join("journal.db")) }).unwrap()
}

/// Writes ten thousand runs and looks at the file.
fn bytes_of_a_step(tokio: &tokio::runtime::Runtime, workflow: &Arc<Workflow>) {
    let folder = tempfile::tempdir().unwrap();
    let journal = open(folder.path(), Survives::Process);
    kit::beside_each_other(tokio, IN_FLIGHT, MEASURED_RUNS, |share| {
        let (journal, workflow) = (Arc::clone(&journal), Arc::clone(workflow));
        async move {
            for _ in 0..share {
                run(&journal, &workflow).await;
            }
        }
    });
    tokio.block_on(journal.close());
    let bytes = std::fs::metadata(folder.path().join("journal.db")).unwrap().len();
    let steps = MEASURED_RUNS * STEPS.len() as u64;
    let outputs: usize = STEPS.iter().map(|step| output(step, 0).to_string().len()).sum();
    println!(
        "{MEASURED_RUNS} runs of {} steps: {bytes} bytes, {:.0} a step with its output of {} bytes on average",
        STEPS.len(),
        bytes as f64 / steps as f64,
        outputs / STEPS.len()
    );
}

fn four_steps() -> Workflow {
    let agents: BTreeSet<_> = STEPS.map(kit::name).into();
    let steps = STEPS.map(|step| StepBuilder::new(step, step).input([("notes", "input.notes")]));
    let workflow = WorkflowBuilder::new("line").input("notes", InputKind::Text).output("steps.meta.output");
    steps.into_iter().fold(workflow, WorkflowBuilder::step).build(&agents).unwrap()
}

/// A short output that no other run has.
fn output(step: &str, number: u64) -> Value {
    json!({ "text": format!("{step} of run {number}"), "score": number % 100 })
}

/// One run as the runtime writes it: nothing goes on before what was written is durable.
async fn run(journal: &SqliteJournal, workflow: &Arc<Workflow>) {
    let number = RUNS.fetch_add(1, Ordering::Relaxed);
    let run_id = uuid::Uuid::now_v7().to_string();
    accept(journal, workflow, &run_id, number).await;
    let mut events = Events { run_id: run_id.clone(), last: 0 };
    let mut steps = Vec::new();
    let mut batch = vec![events.next(EventType::RunStarted, None, json!({ "workflow": "line" }))];
    for step in STEPS {
        batch.push(events.next(EventType::StepStarted, Some(step), json!({ "index": null, "iteration": 0 })));
        durable(journal, &run_id, std::mem::take(&mut batch)).await;
        let record = step_record(step, number);
        let facts = json!({ "index": null, "iteration": 0, "status": "succeeded", "output_bytes": 40 });
        let ended = Ended {
            scope: EndedScope::Item,
            record: record.clone(),
            cause: None,
            usage: None,
            at_ms: BEGAN_MS + number,
        };
        batch.push(Entry::Ended(Box::new(ended)));
        batch.push(events.next(EventType::StepFinished, Some(step), facts));
        steps.push(record);
    }
    batch.push(events.next(EventType::RunFinished, None, json!({ "status": "completed" })));
    batch.push(Entry::Finished(Box::new(run_record(&run_id, number, workflow, steps))));
    durable(journal, &run_id, batch).await;
}

struct Events {
    run_id: String,
    last: u64,
}

impl Events {
    fn next(&mut self, kind: EventType, step: Option<&str>, data: Value) -> Entry {
        self.last += 1;
        let (run_id, step) = (self.run_id.clone(), step.map(ToOwned::to_owned));
        Entry::Event(Event { id: self.last, ts_ms: BEGAN_MS + self.last, kind, run_id, step, data })
    }
}

async fn accept(journal: &SqliteJournal, workflow: &Arc<Workflow>, run_id: &str, number: u64) {
    let accepted = RunAccepted {
        run_id: run_id.to_owned(),
        number,
        owner: RunOwner { tenant: Some("acme".into()), feature: Some("chat".into()), ..RunOwner::default() },
        workflow: Arc::clone(workflow),
        input: json!({ "notes": format!("a walk, number {number}") }).as_object().unwrap().clone(),
        created_ms: BEGAN_MS + number,
        deadline_ms: BEGAN_MS + number + 900_000,
        idempotency: None,
        origin: None,
        seeds: Vec::new(),
    };
    let (told, when_told) = oneshot::channel();
    journal.accept(Arc::new(accepted), Box::new(move |result| told.send(result).unwrap()));
    assert_eq!(when_told.await.unwrap(), Ok(Acceptance::New));
}

async fn durable(journal: &SqliteJournal, run_id: &str, entries: Vec<Entry>) {
    let (told, when_told) = oneshot::channel();
    let batch = Batch { run_id: run_id.into(), generation: 0, entries };
    journal.append(batch, Box::new(move || told.send(()).unwrap()));
    when_told.await.unwrap();
}

fn step_record(step: &str, number: u64) -> StepRecord {
    let attempt = AttemptRecord {
        started_ms: BEGAN_MS + number,
        duration_ms: number % 1_000,
        status: Some(200),
        error_code: None,
        retry_after: None,
    };
    StepRecord {
        id: step.to_owned(),
        agent: step.to_owned(),
        index: None,
        iteration: 0,
        status: StepStatus::Succeeded,
        started_ms: Some(BEGAN_MS + number),
        duration_ms: Some(number % 1_000),
        attempts: vec![attempt],
        refusals: Vec::new(),
        tokens: None,
        cost: None,
        degraded: None,
        error: None,
        output: Some(output(step, number)),
    }
}

fn run_record(run_id: &str, number: u64, workflow: &Workflow, steps: Vec<StepRecord>) -> RunRecord {
    RunRecord {
        run_id: run_id.to_owned(),
        workflow: "line".to_owned(),
        workflow_hash: workflow.hash().to_owned(),
        rerun_of: None,
        status: RunStatus::Completed,
        created_ms: BEGAN_MS + number,
        started_ms: Some(BEGAN_MS + number),
        ended_ms: Some(BEGAN_MS + number + 4_000),
        duration_ms: Some(4_000),
        tokens: RunTokens::default(),
        cost: None,
        currency: None,
        output: steps.last().and_then(|step| step.output.clone()),
        steps,
        degraded: Vec::new(),
        error: None,
    }
}
