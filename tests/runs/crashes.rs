//! Actors of the centre die in the midst of runs: no call is lost or made twice, no event is missing, every run ends once.

use std::sync::Arc;

use serde_json::json;
use watertight::{
    model::run::RunStatus,
    runtime::{
        call::{CallContext, CallRequest},
        engine::{Part, Runtime},
    },
    workflow::{checked::Workflow, plan::why::Why},
};

use crate::{
    kit::{Answer, Scripted, call_later, settle},
    support::{
        alone, answering, assert_called_once, assert_idle, callers, chain, end, ms, runtime, s, start, start_with,
        workflow,
    },
};

/// A list, a chain and a revision: 12 calls by four agents.
fn everything() -> Arc<Workflow> {
    workflow(
        "output = \"steps.draft.output\"",
        r#"[inputs]
list = "json"
[[step]]
id = "facts"
agent = "a"
in = "item"
map = { over = "input.list", as = "item", parallel = 3 }
[[step]]
id = "draft"
agent = "b"
in = { facts = "steps.facts.output", before = "revision.candidate if revision else none" }
[[step]]
id = "review"
agent = "c"
in = "steps.draft.output"
revise = { step = "draft", until = "output.score >= 80", max = 2 }
[[step]]
id = "meta"
agent = "d"
needs = ["review"]
"#,
    )
}

async fn four() -> (Runtime, Vec<Arc<Scripted>>) {
    let backends = vec![
        Scripted::always(Answer::Good.after(ms(30))),
        Scripted::always(Answer::Good.after(ms(110))),
        Scripted::new(|request, _| {
            let score = if request.idempotency_key.ends_with("/1") { 90 } else { 50 };
            Answer::Say(json!({ "score": score })).after(ms(20))
        }),
        Scripted::always(Answer::Good.after(ms(40))),
    ];
    let agents = ["a", "b", "c", "d"].iter().zip(&backends);
    (runtime(agents.map(|(of, backend)| (alone(of, 4), backend.clone())).collect()).await, backends)
}

#[tokio::test(start_paused = true)]
async fn one_death_in_the_midst_changes_nothing() {
    for part in [Part::Orchestrator, Part::Supervisor] {
        let (runtime, backends) = four().await;
        let run = start_with(&runtime, &everything(), json!({ "list": [1, 2, 3] }), None);
        tokio::time::sleep(ms(15)).await;
        runtime.crash(part).unwrap();
        let record = end(&run).await;
        assert_eq!((record.status, record.duration_ms), (RunStatus::Completed, Some(360)), "{part:?}");
        assert_called_once(&backends);
        settle().await;
        assert_idle(&runtime, &backends);
    }
}

#[tokio::test(start_paused = true)]
async fn deaths_all_along_lose_nothing() {
    for parts in [&[Part::Orchestrator][..], &[Part::Supervisor], &[Part::Orchestrator, Part::Supervisor]] {
        let (runtime, backends) = four().await;
        let runtime = Arc::new(runtime);
        let runs: Vec<_> =
            (0..50).map(|_| start_with(&runtime, &everything(), json!({ "list": [1, 2, 3] }), None)).collect();
        let crashing = {
            let (runtime, parts) = (runtime.clone(), parts.to_vec());
            tokio::spawn(async move {
                // As many as the root takes for normal; beyond it restarts slow down.
                for turn in 0..18 {
                    tokio::time::sleep(ms(97 + turn * 29 % 100)).await;
                    for part in &parts {
                        runtime.crash(*part).unwrap();
                    }
                }
            })
        };
        for run in &runs {
            let ended = tokio::time::timeout(s(600), end(run)).await;
            let record = ended.unwrap_or_else(|_| panic!("{parts:?}: stuck in {:?}", run.why()));
            assert_eq!(record.status, RunStatus::Completed, "{parts:?}");
            assert_eq!(record.steps.iter().map(|step| step.attempts.len()).sum::<usize>(), 8, "{parts:?}");
        }
        crashing.await.unwrap();
        assert_called_once(&backends);
        let calls: Vec<usize> = backends.iter().map(|backend| backend.count()).collect();
        assert_eq!(calls, [150, 100, 100, 50], "{parts:?}");
        tokio::time::sleep(s(61)).await;
        assert_idle(&runtime, &backends);
    }
}

#[tokio::test(start_paused = true)]
async fn restarts_slow_down_but_go_on() {
    for part in [Part::Orchestrator, Part::Supervisor] {
        let (runtime, backends) = four().await;
        let run = start_with(&runtime, &everything(), json!({ "list": [1, 2, 3] }), None);
        for _ in 0..30 {
            runtime.crash(part).unwrap();
            tokio::time::sleep(ms(20)).await;
        }
        let record = end(&run).await;
        assert_eq!(record.status, RunStatus::Completed, "{part:?}");
        assert!(record.duration_ms.is_some_and(|took| took < 120_000), "{part:?}: {:?}", record.duration_ms);
        assert_called_once(&backends);
    }
}

#[tokio::test(start_paused = true)]
async fn a_death_between_a_slot_and_the_line_wakes_the_line() {
    let backend = Scripted::always(Answer::Good.after(s(1)));
    let runtime = runtime(vec![(alone("a", 1), backend.clone())]).await;
    let runs: Vec<_> = (0..5).map(|_| start(&runtime, &chain(&["a"]))).collect();
    settle().await;
    for _ in 0..5 {
        // The message of the freed slot comes behind the crash and dies with the mailbox.
        tokio::time::sleep(ms(999)).await;
        runtime.crash(Part::Orchestrator).unwrap();
        tokio::time::sleep(ms(1)).await;
    }
    for run in &runs {
        assert_eq!(end(run).await.status, RunStatus::Completed);
    }
    assert_called_once(&[backend]);
}

#[tokio::test(start_paused = true)]
async fn nobody_jumps_the_line_while_the_orchestrator_is_away() {
    let backend = Scripted::always(Answer::Hang);
    let runtime = runtime(vec![(alone("a", 1), backend.clone())]).await;
    let holder = call_later(&runtime, "a");
    settle().await;
    let older = start(&runtime, &chain(&["a"]));
    settle().await;
    // So many deaths that the next start takes its time.
    for _ in 0..25 {
        runtime.crash(Part::Orchestrator).unwrap();
        settle().await;
    }
    // Nobody hears of the slot that is free now; the younger run is the first to ask for it.
    backend.now(Answer::Good);
    holder.abort();
    settle().await;
    let younger = start(&runtime, &chain(&["a"]));
    settle().await;
    assert_eq!(younger.why(), Some(Why::Start), "the orchestrator is away");
    for run in [&older, &younger] {
        assert_eq!(end(run).await.status, RunStatus::Completed);
    }
    assert_eq!(callers(&backend), [older.id(), younger.id()]);
}

#[tokio::test(start_paused = true)]
async fn an_agents_actor_that_dies_takes_no_call_under_way_with_it() {
    let (runtime, backends) = four().await;
    let run = start_with(&runtime, &everything(), json!({ "list": [1, 2, 3] }), None);
    for _ in 0..3 {
        tokio::time::sleep(ms(25)).await;
        for agent in ["a", "b", "c", "d"] {
            runtime.crash(Part::Agent(agent)).unwrap();
        }
    }
    assert_eq!(end(&run).await.status, RunStatus::Completed);
    assert_called_once(&backends);
}

/// A step whose attempt panics is sent once: nothing in a run sends it again, so it cannot kill twice by itself.
#[tokio::test(start_paused = true)]
async fn a_poisonous_step_does_not_loop() {
    let (runtime, backends) = answering(&["a"], Answer::Panic).await;
    let run = start(&runtime, &chain(&["a"]));
    let record = end(&run).await;
    let error = record.error.clone().unwrap();
    assert_eq!((record.status, error.error_code.as_str()), (RunStatus::Failed, "AGENT_RESTARTED"));
    tokio::time::sleep(s(3_600)).await;
    assert_eq!(backends[0].count(), 1);
    // A re-send of the same step, as a resumed run makes it, is the last one; a step knows its place in the run.
    let key = backends[0].requests.lock().unwrap()[0].idempotency_key.clone();
    for want in ["INTERNAL", "INTERNAL"] {
        let context = CallContext {
            run_id: Some(run.id().to_owned()),
            idempotency_key: Some(key.clone()),
            ..CallContext::default()
        };
        let request = CallRequest { context, ..CallRequest::of(serde_json::Value::Null) };
        let error = runtime.agent("a").unwrap().call(request).await.unwrap_err();
        assert_eq!(error.envelope.error_code.as_str(), want);
    }
    let letters = runtime.dead_letters();
    assert_eq!((letters[0].run_id.as_deref(), letters[0].step.as_deref()), (Some(run.id()), Some("a/-/0")));
    assert_eq!(backends[0].count(), 2);
}
