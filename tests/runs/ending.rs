//! Every way out of a run: deadline, cancel, failure, the runtime's stop. Nothing goes on behind it, and nobody waits for ever.

use std::sync::Arc;

use serde_json::Map;
use tokio::time::Instant;
use watertight::{
    model::run::{RunStatus, StepStatus},
    policy::breaker::state::StateName,
    runtime::{run_handle::RunHandle, supervisor::BreakerAct},
    workflow::plan::why::Why,
};

use crate::{
    kit::{Answer, Scripted, call_later, settle},
    support::{
        alone, answering, assert_idle, chain, chain_text, end, ms, runtime, s, start, start_until, step, whole,
        workflow,
    },
};

#[tokio::test(start_paused = true)]
async fn the_deadline_holds_whatever_an_agent_does() {
    let (runtime, backends) = answering(&["a", "b"], Answer::Good).await;
    for ill in [Answer::Hang, Answer::Content(Box::new(Answer::Hang))] {
        backends[1].now(ill);
        let began = Instant::now();
        let run = start_until(&runtime, &chain(&["a", "b"]), Map::new(), None, Some(s(20)));
        let record = end(&run).await;
        assert_eq!((record.status, began.elapsed()), (RunStatus::TimedOut, s(20)));
        assert_eq!(record.error.clone().unwrap().error_code.as_str(), "DEADLINE_EXCEEDED");
        assert_eq!(step(&record, "a").status, StepStatus::Succeeded);
        assert_eq!(step(&record, "b").status, StepStatus::Cancelled);
        settle().await;
        assert_idle(&runtime, &backends);
    }
    let breaker = runtime.breaker("agent:b").unwrap();
    assert_eq!(breaker.state, StateName::Closed, "a run's deadline says nothing about the agent");
}

#[tokio::test(start_paused = true)]
async fn a_steps_own_timeout_is_its_own() {
    let (runtime, backends) = answering(&["a"], Answer::Hang).await;
    let text = "[[step]]\nid = \"a\"\nagent = \"a\"\ntimeout = \"5s\"\non = { deadline = \"default\" }\ndefault = 1\n";
    let began = Instant::now();
    let record = end(&start(&runtime, &workflow("output = \"steps.a.output\"", text))).await;
    assert_eq!((record.status, began.elapsed()), (RunStatus::CompletedDegraded, s(5)));
    assert_eq!((record.output.clone().unwrap(), record.degraded[0].cause.as_str()), (1.into(), "deadline"));
    settle().await;
    assert_idle(&runtime, &backends);
}

/// Runs in every state that a live run can be in.
async fn in_every_state() -> (watertight::runtime::engine::Runtime, Vec<Arc<Scripted>>, Vec<RunHandle>) {
    let again = Scripted::always(Answer::status_after(503, s(9)));
    let backends =
        vec![Scripted::always(Answer::Hang), Scripted::always(Answer::Hang), Scripted::always(Answer::Good), again];
    let mut retrying = alone("d", 5);
    retrying.retry.attempts_max = 3;
    let agents = [alone("a", 5), alone("b", 1), alone("c", 5), retrying];
    let runtime = runtime(agents.into_iter().zip(backends.iter().cloned()).collect()).await;
    runtime.act("agent:c", BreakerAct::ForceOpen).unwrap();
    settle().await;
    drop(call_later(&runtime, "b"));
    settle().await;
    let runs: Vec<RunHandle> = ["a", "b", "c", "d"].iter().map(|agent| start(&runtime, &chain(&[agent]))).collect();
    settle().await;
    let states: Vec<&str> = runs
        .iter()
        .map(|run| match run.why() {
            Some(Why::Call { .. }) => "call",
            Some(Why::Line { .. }) => "line",
            Some(Why::Parked { .. }) => "parked",
            _ => "unexplained",
        })
        .collect();
    assert_eq!(states, ["call", "line", "parked", "call"]);
    (runtime, backends, runs)
}

#[tokio::test(start_paused = true)]
async fn a_cancel_reaches_whatever_a_run_waits_for() {
    let (runtime, backends, runs) = in_every_state().await;
    let began = Instant::now();
    for run in &runs {
        run.cancel();
        run.cancel();
        let record = end(run).await;
        assert_eq!(record.status, RunStatus::Cancelled);
        assert_eq!(record.error.clone().unwrap().error_code.as_str(), "CANCELLED");
        run.cancel();
    }
    settle().await;
    assert!(began.elapsed() < ms(10), "at once: {:?}", began.elapsed());
    for (at, backend) in backends.iter().enumerate() {
        let direct = u32::from(at == 1);
        assert_eq!(backend.running.load(std::sync::atomic::Ordering::SeqCst), direct, "{at}: upstream work goes on");
    }
    assert_eq!(backends[3].count(), 1, "a wait between attempts ends too");
    for run in &runs {
        whole(run, &*run.finished().await);
    }
    drop(runtime);
}

#[tokio::test(start_paused = true)]
async fn a_stop_ends_every_run() {
    let (runtime, backends, runs) = in_every_state().await;
    runtime.stop(s(1)).await;
    for run in &runs {
        let record = tokio::time::timeout(s(1), end(run)).await.expect("a run that nobody ends");
        assert!(matches!(record.status, RunStatus::Cancelled | RunStatus::Failed), "{:?}", record.status);
    }
    settle().await;
    assert!(backends.iter().all(|backend| backend.running.load(std::sync::atomic::Ordering::SeqCst) == 0));
}

#[tokio::test(start_paused = true)]
async fn so_does_dropping_the_runtime() {
    let (runtime, backends, runs) = in_every_state().await;
    let late = start(&runtime, &chain(&["a"]));
    drop(runtime);
    for run in runs.iter().chain([&late]) {
        tokio::time::timeout(s(1), run.finished()).await.expect("a run that nobody ends");
    }
    settle().await;
    assert!(backends.iter().all(|backend| backend.running.load(std::sync::atomic::Ordering::SeqCst) == 0));
}

#[tokio::test(start_paused = true)]
async fn a_failure_leaves_healthy_siblings_their_time() {
    let (runtime, backends) = answering(&["a", "b", "c"], Answer::Good).await;
    backends[0].now(Answer::status(422));
    backends[1].now(Answer::Good.after(s(10)));
    let text = chain_text(&["a", "c"]) + "[[step]]\nid = \"b\"\nagent = \"b\"\n";
    let began = Instant::now();
    let run = start(&runtime, &workflow("", &text));
    let record = end(&run).await;
    assert_eq!((record.status, began.elapsed()), (RunStatus::Failed, s(10)));
    assert_eq!(step(&record, "b").status, StepStatus::Succeeded, "paid for, so kept");
    assert!(step(&record, "b").output.is_some());
    let collateral = step(&record, "c");
    assert_eq!(collateral.status, StepStatus::Cancelled);
    assert_eq!(collateral.error.clone().unwrap().details["culprit"], "a");
    let error = record.error.clone().unwrap();
    assert_eq!((error.error_code.as_str(), error.http_status, error.retryable), ("AGENT_ERROR", 422, false));
    assert_eq!(error.details["step"], "a");
}

#[tokio::test(start_paused = true)]
async fn no_reply_is_an_error_and_never_done() {
    let (runtime, backends) = answering(&["a"], Answer::Panic).await;
    let record = end(&start(&runtime, &chain(&["a"]))).await;
    assert_eq!(record.status, RunStatus::Failed);
    assert_eq!(record.error.clone().unwrap().error_code.as_str(), "AGENT_RESTARTED");
    assert_eq!(step(&record, "a").attempts.len(), 1, "every exchange has its record");
    backends[0].now(Answer::Good);
    assert_eq!(end(&start(&runtime, &chain(&["a"]))).await.status, RunStatus::Completed);
}
