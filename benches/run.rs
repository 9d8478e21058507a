//! What runs cost in memory, event log on: four steps in a row, alone and sixteen beside each other, and a step over a hundred items.
#![allow(clippy::unwrap_used, reason = "a bench that cannot be set up has no figure")]

mod kit;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use criterion::Criterion;
use serde_json::{Value, json};
use watertight::{
    model::{name::Name, run::RunStatus},
    runtime::engine::Runtime,
    workflow::{
        builder::{StepBuilder, WorkflowBuilder},
        checked::Workflow,
        definition::{InputKind, MapDefinition},
    },
};

const AGENTS: [&str; 4] = ["photos", "draft", "review", "meta"];
const IN_FLIGHT: u64 = 16;
const ITEMS: u64 = 100;

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let tokio = kit::two_workers();
    let runtime = Arc::new(tokio.block_on(kit::nothing_doers(&AGENTS)));
    let mut group = criterion.benchmark_group("run");
    let four = Arc::new(four_steps());
    for beside in [1, IN_FLIGHT] {
        kit::row(&mut group, &format!("4_steps/{beside}_in_flight"), 1, |iterations| {
            kit::beside_each_other(&tokio, beside, iterations, |share| {
                let (runtime, workflow) = (Arc::clone(&runtime), Arc::clone(&four));
                async move {
                    for _ in 0..share {
                        run(&runtime, &workflow, json!({ "notes": "a walk" })).await;
                    }
                }
            });
        });
    }
    let fan = Arc::new(fan_out());
    let items: Vec<u64> = (0..ITEMS).collect();
    kit::row(&mut group, &format!("fan_out/{ITEMS}_items"), 1, |iterations| {
        kit::beside_each_other(&tokio, 1, iterations, |share| {
            let (runtime, workflow, items) = (Arc::clone(&runtime), Arc::clone(&fan), items.clone());
            async move {
                for _ in 0..share {
                    run(&runtime, &workflow, json!({ "items": items })).await;
                }
            }
        });
    });
    group.finish();
    criterion.final_summary();
}

/// One run from start to end; it must succeed.
async fn run(runtime: &Runtime, workflow: &Arc<Workflow>, input: Value) {
    let Value::Object(input) = input else { return };
    let request = kit::run_request(Arc::clone(workflow), input);
    let record = runtime.start_run(request).unwrap().finished().await;
    assert_eq!(record.status, RunStatus::Completed, "{:?}", record.error);
}

fn agents() -> BTreeSet<Name> {
    AGENTS.iter().map(|agent| kit::name(agent)).collect()
}

/// Four steps, each of which takes the output of the one before.
fn four_steps() -> Workflow {
    WorkflowBuilder::new("four")
        .deadline(Duration::from_secs(60))
        .input("notes", InputKind::Text)
        .step(StepBuilder::new("photos", "photos").input([("notes", "input.notes")]))
        .step(StepBuilder::new("draft", "draft").input([("photos", "steps.photos.output")]))
        .step(StepBuilder::new("review", "review").input([("draft", "steps.draft.output")]))
        .step(StepBuilder::new("meta", "meta").input([("review", "steps.review.output")]))
        .output([("meta", "steps.meta.output")])
        .build(&agents())
        .unwrap()
}

/// One step over a list, and its outputs.
fn fan_out() -> Workflow {
    WorkflowBuilder::new("fan")
        .deadline(Duration::from_secs(60))
        .input("items", InputKind::Json)
        .step(
            StepBuilder::new("photos", "photos")
                .input([("item", "item")])
                .map(MapDefinition::new("input.items", "item")),
        )
        .output([("all", "steps.photos.output")])
        .build(&agents())
        .unwrap()
}
