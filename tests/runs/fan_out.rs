//! Steps side by side, steps over a list, revisions: over actors.

use std::sync::atomic::Ordering;

use serde_json::{Value, json};
use tokio::time::Instant;
use watertight::model::run::{RunStatus, StepStatus};

use crate::{
    kit::{Answer, Scripted, settle},
    support::{
        alone, answering, assert_called_once, assert_idle, end, ms, runtime, s, start, start_with, step, workflow,
    },
};

fn mapped(parallel: u32, join: &str) -> std::sync::Arc<watertight::workflow::checked::Workflow> {
    workflow(
        "output = \"steps.m.output\"",
        &format!(
            "[inputs]\nlist = \"json\"\n[[step]]\nid = \"m\"\nagent = \"a\"\nin = \"item\"\nmap = {{ over = \"input.list\", as = \"item\", parallel = {parallel}, join = \"{join}\" }}\n"
        ),
    )
}

fn list(items: usize) -> Value {
    json!({ "list": (0..items).collect::<Vec<_>>() })
}

#[tokio::test(start_paused = true)]
async fn items_overlap_as_far_as_their_pace_allows() {
    let (runtime, backends) = answering(&["a"], Answer::Good.after(s(1))).await;
    let began = Instant::now();
    let record = end(&start_with(&runtime, &mapped(3, "all"), list(9), None)).await;
    assert_eq!((record.status, began.elapsed()), (RunStatus::Completed, s(3)));
    assert_eq!(backends[0].peak.load(Ordering::SeqCst), 3);
    let output = record.output.clone().unwrap();
    let inputs: Vec<u64> = output.as_array().unwrap().iter().map(|one| one["input"].as_u64().unwrap()).collect();
    assert_eq!(inputs, (0..9).collect::<Vec<_>>(), "the list's order");
    assert_called_once(&backends);
}

#[tokio::test(start_paused = true)]
async fn steps_start_as_soon_as_what_they_need_has_ended() {
    let (runtime, backends) = answering(&["a", "b", "c", "d"], Answer::Good.after(s(1))).await;
    backends[0].now(Answer::Good.after(s(10)));
    let text = "[[step]]\nid = \"a\"\nagent = \"a\"\n[[step]]\nid = \"b\"\nagent = \"b\"\n[[step]]\nid = \"c\"\nagent = \"c\"\nneeds = [\"b\"]\n[[step]]\nid = \"d\"\nagent = \"d\"\nneeds = [\"a\", \"c\"]\n";
    let began = Instant::now();
    let record = end(&start(&runtime, &workflow("", text))).await;
    assert_eq!((record.status, began.elapsed()), (RunStatus::Completed, s(11)));
    let begin = |id| step(&record, id).started_ms.unwrap() - record.created_ms;
    assert_eq!((begin("a"), begin("b"), begin("c"), begin("d")), (0, 0, 1_000, 10_000));
}

#[tokio::test(start_paused = true)]
async fn three_of_a_hundred_items_fail() {
    let ill = Scripted::new(|request, _| match request.input.as_u64() {
        Some(7 | 50 | 99) => Answer::status(422),
        _ => Answer::Good.after(ms(10)),
    });
    let runtime = runtime(vec![(alone("a", 10), ill.clone())]).await;
    let run = start_with(&runtime, &mapped(10, "all"), list(100), None);
    let record = end(&run).await;
    assert_eq!(record.status, RunStatus::Failed);
    let record = end(&start_with(&runtime, &mapped(10, "best_effort:60s"), list(100), None)).await;
    assert_eq!(record.status, RunStatus::CompletedDegraded);
    let output = record.output.clone().unwrap();
    let holes: Vec<usize> =
        output.as_array().unwrap().iter().enumerate().filter(|(_, one)| one.is_null()).map(|(at, _)| at).collect();
    assert_eq!(holes, [7, 50, 99]);
    let failed: Vec<usize> = record
        .steps
        .iter()
        .filter(|step| step.status == StepStatus::Failed && step.error.is_some())
        .map(|step| step.index.unwrap())
        .collect();
    assert_eq!((failed, record.steps.len()), (vec![7, 50, 99], 100), "no holes in the record");
}

#[tokio::test(start_paused = true)]
async fn best_effort_keeps_what_has_ended_and_aborts_the_rest() {
    let backend = Scripted::new(|request, _| match request.input.as_u64() {
        Some(0) => Answer::Hang,
        _ => Answer::Good.after(s(1)),
    });
    let runtime = runtime(vec![(alone("a", 10), backend.clone())]).await;
    let began = Instant::now();
    let record = end(&start_with(&runtime, &mapped(5, "best_effort:20s"), list(6), None)).await;
    assert_eq!((record.status, began.elapsed()), (RunStatus::CompletedDegraded, s(20)));
    assert_eq!(record.output.clone().unwrap().as_array().unwrap().iter().filter(|one| one.is_null()).count(), 1);
    settle().await;
    assert_idle(&runtime, &[backend]);
}

fn revised(max: u32) -> std::sync::Arc<watertight::workflow::checked::Workflow> {
    workflow(
        "output = \"steps.draft.output\"",
        &format!(
            "[[step]]\nid = \"draft\"\nagent = \"a\"\nin = {{ feedback = \"revision.feedback.score if revision else none\" }}\n[[step]]\nid = \"review\"\nagent = \"b\"\nin = \"steps.draft.output\"\nrevise = {{ step = \"draft\", until = \"output.score >= 80\", max = {max} }}\n"
        ),
    )
}

#[tokio::test(start_paused = true)]
async fn a_revision_returns_the_best_version() {
    for (scores, drafts, best) in [(vec![85], 1, 0), (vec![60, 70, 85], 3, 2), (vec![60, 75, 50, 40], 4, 1)] {
        let draft = Scripted::new(|_, number| Answer::Say(json!(number)).after(s(1)));
        let told = scores.clone();
        let review = Scripted::new(move |_, number| Answer::Say(json!({ "score": told[number] })));
        let runtime = runtime(vec![(alone("a", 10), draft.clone()), (alone("b", 10), review.clone())]).await;
        let record = end(&start(&runtime, &revised(3))).await;
        assert_eq!((record.status, draft.count()), (RunStatus::Completed, drafts), "{scores:?}");
        assert_eq!(record.output, Some(json!(best)), "{scores:?}");
        let seen: Vec<Value> =
            draft.requests.lock().unwrap().iter().map(|request| request.input["feedback"].clone()).collect();
        assert_eq!(seen[0], Value::Null);
        assert_eq!(seen[1..], scores[..drafts - 1].iter().map(|score| json!(score)).collect::<Vec<_>>());
        assert_called_once(&[draft, review]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_reviewer_that_goes_down_leaves_the_best_version_so_far() {
    let draft = Scripted::new(|_, number| Answer::Say(json!(number)));
    let review = Scripted::new(|_, number| match number {
        0 => Answer::Say(json!({ "score": 60 })),
        _ => Answer::status(503),
    });
    let runtime = runtime(vec![(alone("a", 10), draft.clone()), (alone("b", 10), review)]).await;
    let record = end(&start(&runtime, &revised(3))).await;
    assert_eq!((record.status, record.output.clone()), (RunStatus::CompletedDegraded, Some(json!(0))));
    assert_eq!(record.degraded[0].action, "best_so_far");
}
