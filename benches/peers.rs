//! The same scenarios that scripts for other runtimes play (a pipeline of four steps that do nothing, alone and sixteen beside each
//! other; a fan-out of a hundred that is joined), as one JSON line each with the same keys, so that they can be read side by side.
//!
//!   cargo bench --bench peers -- [--runs 2000] [--fan-runs 200] [--journal FILE]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a bench that cannot be set up has no figure"
)]

mod kit;

use std::{
    collections::{BTreeSet, HashMap},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::{Map, Value, json};
use watertight::{
    journal::{journal::SqliteJournal, settings::JournalSettings},
    model::{name::Name, run::RunStatus},
    runtime::{accept::NewRun, builder::RuntimeBuilder, engine::Runtime, journal::RunOwner, ports::TokioClock},
    workflow::{
        builder::{StepBuilder, WorkflowBuilder},
        checked::Workflow,
        definition::{InputKind, MapDefinition},
    },
};

const AGENTS: [&str; 4] = ["style", "draft", "review", "meta"];
const BESIDE: u64 = 16;
const WIDTH: u64 = 100;
const WARM_UP: u64 = 10;

/// Where runs are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Memory,
    Sqlite,
}

impl Mode {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Sqlite => "sqlite",
        }
    }
}

/// A scenario's runs and how they are driven.
struct Scenario {
    name: &'static str,
    runs: u64,
    beside: u64,
    steps: u64,
    workflow: Arc<Workflow>,
    input: Value,
}

fn main() {
    let options = options();
    let number = |name: &str, default: u64| options.get(name).map_or(default, |text| text.parse().unwrap());
    let (runs, fan_runs) = (number("--runs", 2_000), number("--fan-runs", 200));
    let journal = options.get("--journal").cloned();
    let tokio = kit::two_workers();
    let runtime = Arc::new(tokio.block_on(start(journal.as_deref())));
    let mode = if journal.is_some() { Mode::Sqlite } else { Mode::Memory };
    let four = Arc::new(four_steps());
    let items: Vec<u64> = (0..WIDTH).collect();
    let pipeline = |name, beside| Scenario {
        name,
        runs,
        beside,
        steps: 4,
        workflow: Arc::clone(&four),
        input: json!({ "notes": "a walk" }),
    };
    let fan = Scenario {
        name: "fanout100_join",
        runs: fan_runs,
        beside: 1,
        steps: WIDTH,
        workflow: Arc::new(fan_out()),
        input: json!({ "items": items }),
    };
    for scenario in [pipeline("pipeline4_seq", 1), pipeline("pipeline4_conc", BESIDE), fan] {
        play(&tokio, &runtime, mode, &Scenario { runs: WARM_UP, ..copy(&scenario) });
        let (cpu, wall) = (kit::cpu_time(), Instant::now());
        let mut times = play(&tokio, &runtime, mode, &scenario);
        let (cpu, wall) = (kit::cpu_time().saturating_sub(cpu), wall.elapsed());
        println!("{}", row(&scenario, mode, &mut times, cpu, wall));
    }
}

fn copy(scenario: &Scenario) -> Scenario {
    Scenario { workflow: Arc::clone(&scenario.workflow), input: scenario.input.clone(), ..*scenario }
}

/// `--name value` pairs; what cargo itself passes on is left alone.
fn options() -> HashMap<String, String> {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    words.chunks(2).map(|pair| (pair[0].clone(), pair.get(1).cloned().unwrap_or_default())).collect()
}

async fn start(journal: Option<&str>) -> Runtime {
    let add =
        |builder: RuntimeBuilder, name: &&str| builder.agent(kit::agent(name, kit::PLENTY), Arc::new(kit::Nothing));
    let builder = AGENTS.iter().fold(kit::builder(), add);
    let builder = match journal {
        Some(path) => {
            let journal = SqliteJournal::open(JournalSettings::at(path)).unwrap();
            builder.clock(Arc::new(TokioClock::since_unix_epoch())).journal(journal)
        }
        None => builder,
    };
    builder.start().await.unwrap()
}

/// Plays all runs of a scenario and gives back how long each took.
fn play(tokio: &tokio::runtime::Runtime, runtime: &Arc<Runtime>, mode: Mode, scenario: &Scenario) -> Vec<Duration> {
    let times = Arc::new(Mutex::new(Vec::new()));
    let left = Arc::new(AtomicU64::new(scenario.runs));
    tokio.block_on(async {
        let workers: Vec<_> = (0..scenario.beside)
            .map(|_| {
                let (runtime, workflow) = (Arc::clone(runtime), Arc::clone(&scenario.workflow));
                let (times, left, input) = (Arc::clone(&times), Arc::clone(&left), scenario.input.clone());
                tokio::spawn(async move {
                    while left.fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(1)).is_ok() {
                        let began = Instant::now();
                        run(&runtime, mode, &workflow, &input).await;
                        times.lock().unwrap().push(began.elapsed());
                    }
                })
            })
            .collect();
        for worker in workers {
            worker.await.unwrap();
        }
    });
    let times = times.lock().unwrap();
    times.clone()
}

async fn run(runtime: &Runtime, mode: Mode, workflow: &Arc<Workflow>, input: &Value) {
    let input: Map<String, Value> = input.as_object().cloned().unwrap();
    let run = if mode == Mode::Sqlite {
        let new = NewRun {
            workflow: Arc::clone(workflow),
            input,
            deadline: None,
            owner: RunOwner::default(),
            idempotency: None,
        };
        runtime.accept_run(new).await.unwrap().handle.unwrap()
    } else {
        runtime.start_run(kit::run_request(Arc::clone(workflow), input)).unwrap()
    };
    let record = run.finished().await;
    assert_eq!(record.status, RunStatus::Completed, "{:?}", record.error);
}

fn row(scenario: &Scenario, mode: Mode, times: &mut [Duration], cpu: Duration, wall: Duration) -> Value {
    let runs = scenario.runs as f64;
    let milliseconds = |time: Duration| (time.as_secs_f64() * 1e7).round() / 1e4;
    let tenths = |value: f64| (value * 10.0).round() / 10.0;
    let mean = times.iter().sum::<Duration>().div_f64(runs);
    json!({
        "engine": "watertight",
        "version": env!("CARGO_PKG_VERSION"),
        "mode": mode.as_str(),
        "scenario": scenario.name,
        "runs": scenario.runs,
        "conc": scenario.beside,
        "p50_ms": milliseconds(kit::percentile(times, 0.50)),
        "p95_ms": milliseconds(kit::percentile(times, 0.95)),
        "p99_ms": milliseconds(kit::percentile(times, 0.99)),
        "mean_ms": milliseconds(mean),
        "runs_per_s": tenths(runs / wall.as_secs_f64()),
        "step_us": tenths(wall.as_secs_f64() * 1e6 / runs / scenario.steps as f64),
        "cpu_us_per_run": tenths(cpu.as_secs_f64() * 1e6 / runs),
        "cpu_us_per_step": tenths(cpu.as_secs_f64() * 1e6 / runs / scenario.steps as f64),
        "rss_mib": tenths(resident_mib()),
    })
}

/// The most memory this process has had, in MiB.
fn resident_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = peak.and_then(|text| text.trim().trim_end_matches("kB").trim().parse::<f64>().ok());
    kib.unwrap_or_default() / 1024.0
}

fn agents() -> BTreeSet<Name> {
    AGENTS.iter().map(|agent| kit::name(agent)).collect()
}

fn four_steps() -> Workflow {
    WorkflowBuilder::new("four")
        .deadline(Duration::from_secs(60))
        .input("notes", InputKind::Text)
        .step(StepBuilder::new("style", "style").input([("notes", "input.notes")]))
        .step(StepBuilder::new("draft", "draft").input([("style", "steps.style.output")]))
        .step(StepBuilder::new("review", "review").input([("draft", "steps.draft.output")]))
        .step(StepBuilder::new("meta", "meta").input([("review", "steps.review.output")]))
        .output([("meta", "steps.meta.output")])
        .build(&agents())
        .unwrap()
}

fn fan_out() -> Workflow {
    WorkflowBuilder::new("fan")
        .deadline(Duration::from_secs(60))
        .input("items", InputKind::Json)
        .step(
            StepBuilder::new("style", "style").input([("item", "item")]).map(MapDefinition::new("input.items", "item")),
        )
        .output([("all", "steps.style.output")])
        .build(&agents())
        .unwrap()
}
