//! On half-open trials go to parked runs first: no person waits on a trial while a run can take it. And what is kept for them never stays
//! kept: whatever becomes of the run, of the orchestrator or of the gate, others get it.

use std::sync::Arc;

use watertight::{
    model::run::RunStatus,
    policy::breaker::{settings::HalfOpenBy, state::StateName},
    runtime::{
        engine::{Part, Runtime},
        run_handle::RunHandle,
        supervisor::BreakerAct,
    },
};

use crate::{
    kit::{Answer, Scripted, call, call_later, code, settle},
    support::{alone, callers, chain, chain_text, end, ms, runtime, s, start, workflow},
};

/// Agents `a` and `b`; `b` is open for 30 s, half-open by whom `by` says, and `runs` are parked at its step.
async fn parked(by: HalfOpenBy, runs: usize) -> (Runtime, Arc<Scripted>, Vec<RunHandle>) {
    let mut sick = alone("b", 20);
    sick.breaker.half_open_by = by;
    let backend = Scripted::always(Answer::status(503));
    let agents = vec![(alone("a", 20), Scripted::always(Answer::Good)), (sick, backend.clone())];
    let runtime = runtime(agents).await;
    for _ in 0..5 {
        assert!(call(&runtime, "b").await.is_err());
    }
    backend.requests.lock().unwrap().clear();
    backend.now(Answer::Good.after(s(1)));
    let runs: Vec<_> = (0..runs).map(|_| start(&runtime, &chain(&["b"]))).collect();
    settle().await;
    assert!(runs.iter().all(|run| run.record().status == RunStatus::Parked));
    (runtime, backend, runs)
}

/// So many direct callers at once: how many are let in. All others get the half-open refusal with at least a second to wait,
/// or an operator's with none.
async fn direct(runtime: &Runtime, calls: usize) -> usize {
    let calls: Vec<_> = (0..calls).map(|_| call_later(runtime, "b")).collect();
    settle().await;
    let mut admitted = 0;
    for call in calls {
        if !call.is_finished() {
            admitted += 1;
            continue;
        }
        let error = call.await.unwrap().unwrap_err();
        assert_eq!((error.envelope.error_code.as_str(), error.nothing_sent), ("AGENT_CIRCUIT_OPEN", true));
        let is_forced = error.envelope.details["reason"] == "forced";
        let waits = error.envelope.retry_after.is_some_and(|wait| wait >= 1.0);
        assert_eq!(waits, !is_forced, "{:?}", error.envelope);
    }
    admitted
}

#[tokio::test(start_paused = true)]
async fn callers_who_come_at_the_same_moment_stand_back() {
    for by in [HalfOpenBy::Timer, HalfOpenBy::FirstCall] {
        for count in [0, 1, 3, 5, 9] {
            let (runtime, backend, runs) = parked(by, count).await;
            // They ask again and again from before the gate's time on, each in a task of its own.
            tokio::time::sleep(ms(29_950)).await;
            let storm: Vec<_> = (0..20).map(|_| storm(&runtime)).collect();
            tokio::time::sleep(ms(150)).await;
            settle().await;
            let kept = count.min(5);
            let oldest: Vec<_> = runs[..kept].iter().map(|run| run.id().to_owned()).collect();
            let mut took = callers(&backend);
            took.sort_by_key(|id| runs.iter().position(|run| run.id() == id));
            assert_eq!(took, oldest, "{by:?}, {count} parked");
            assert_eq!(backend.requests.lock().unwrap().len(), 5, "{by:?}, {count} parked: exactly five in all");
            storm.iter().for_each(tokio::task::JoinHandle::abort);
            for run in &runs {
                assert_eq!(end(run).await.status, RunStatus::Completed);
            }
        }
    }
}

fn storm(runtime: &Runtime) -> tokio::task::JoinHandle<()> {
    let handle = runtime.agent("b").unwrap();
    tokio::spawn(async move {
        loop {
            let request = watertight::runtime::call::CallRequest::of(serde_json::Value::Null);
            if handle.call(request).await.is_err() {
                tokio::time::sleep(ms(1)).await;
            }
        }
    })
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_cancelled_before_leaves_its_trial_to_others() {
    let (runtime, _, runs) = parked(HalfOpenBy::FirstCall, 5).await;
    for run in &runs[..3] {
        run.cancel();
    }
    settle().await;
    drop(runs);
    tokio::time::sleep(ms(29_999)).await;
    // Two are still parked; the gate's time is over in a moment.
    runtime.crash(Part::Orchestrator).unwrap();
    tokio::time::sleep(ms(1)).await;
    assert_eq!(direct(&runtime, 20).await, 3);
}

#[tokio::test(start_paused = true)]
async fn a_dead_orchestrator_keeps_nobody_waiting_for_long() {
    let (runtime, backend, runs) = parked(HalfOpenBy::Timer, 5).await;
    // It dies so often that its last start waits for 16 s.
    for _ in 0..21 {
        runtime.crash(Part::Orchestrator).unwrap();
        settle().await;
    }
    for back_off in [1, 2, 4, 8] {
        tokio::time::sleep(s(back_off) + ms(10)).await;
        runtime.crash(Part::Orchestrator).unwrap();
        settle().await;
    }
    tokio::time::sleep(ms(30_005 - 15_040)).await;
    let opened = runtime.breaker("agent:b").unwrap();
    assert_eq!((opened.state, callers(&backend).len()), (StateName::HalfOpen, 0), "nobody takes what is kept");
    assert_eq!(direct(&runtime, 20).await, 0);
    tokio::time::sleep(ms(999)).await;
    assert_eq!(direct(&runtime, 20).await, 0);
    tokio::time::sleep(ms(1)).await;
    assert_eq!(direct(&runtime, 20).await, 5, "a second is the bound");
    for run in &runs {
        assert_eq!(end(run).await.status, RunStatus::Completed);
    }
}

#[tokio::test(start_paused = true)]
async fn an_orchestrator_that_dies_at_the_news_takes_nothing_along() {
    let (runtime, backend, runs) = parked(HalfOpenBy::Timer, 9).await;
    tokio::time::sleep(ms(29_999)).await;
    runtime.crash(Part::Orchestrator).unwrap();
    tokio::time::sleep(ms(200)).await;
    assert_eq!(callers(&backend).len(), 5, "its successor offers them");
    assert_eq!(direct(&runtime, 20).await, 0);
    for run in &runs {
        assert_eq!(end(run).await.status, RunStatus::Completed);
    }
    assert_eq!(runtime.breaker("agent:b").unwrap().state, StateName::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_supervisor_that_dies_half_open_gives_its_trials_to_parked_runs_anew() {
    let (runtime, backend, runs) = parked(HalfOpenBy::Timer, 3).await;
    backend.now(Answer::Hang);
    tokio::time::sleep(ms(30_100)).await;
    assert_eq!(callers(&backend).len(), 3);
    // Those three are lost with it; of five new trials none is kept, because nobody is parked any more.
    runtime.crash(Part::Supervisor).unwrap();
    settle().await;
    assert_eq!(direct(&runtime, 20).await, 5);
    drop(runs);
}

#[tokio::test(start_paused = true)]
async fn a_gate_that_is_forced_open_meanwhile_keeps_nothing() {
    let (runtime, backend, runs) = parked(HalfOpenBy::Timer, 5).await;
    tokio::time::sleep(ms(29_000)).await;
    runtime.act("agent:b", BreakerAct::ForceOpen).unwrap();
    tokio::time::sleep(s(60)).await;
    assert_eq!((direct(&runtime, 9).await, callers(&backend).len()), (0, 0));
    runtime.act("agent:b", BreakerAct::Auto).unwrap();
    settle().await;
    assert_eq!(direct(&runtime, 9).await, 9, "closed: everybody is let in");
    for run in &runs {
        assert_eq!(end(run).await.status, RunStatus::Completed);
    }
}

/// A run that is held before `a` because `b` is shut would not call `b` next: nothing is kept for it.
#[tokio::test(start_paused = true)]
async fn nothing_is_kept_for_a_run_that_is_not_at_the_agents_step() {
    let (runtime, backend, _) = parked(HalfOpenBy::FirstCall, 0).await;
    let run = start(&runtime, &chain(&["a", "b"]));
    settle().await;
    assert_eq!(run.record().status, RunStatus::Parked);
    tokio::time::sleep(ms(29_999)).await;
    runtime.crash(Part::Orchestrator).unwrap();
    tokio::time::sleep(ms(1)).await;
    assert_eq!(direct(&runtime, 20).await, 5);
    assert_eq!(end(&run).await.status, RunStatus::Completed);
    assert_eq!(callers(&backend).len(), 1);
}

/// A fresh run is a caller like any other: it does not get what is kept for those that have waited.
#[tokio::test(start_paused = true)]
async fn a_fresh_run_does_not_take_what_is_kept() {
    let (runtime, backend, runs) = parked(HalfOpenBy::FirstCall, 5).await;
    tokio::time::sleep(ms(29_999)).await;
    let text = chain_text(&["b"]).replace("agent = \"b\"", "agent = \"b\"\noptional = true");
    tokio::time::sleep(ms(1)).await;
    // Its start stands in the orchestrator's mailbox before any news of the gate.
    let fresh = start(&runtime, &workflow("", &text));
    tokio::time::sleep(ms(200)).await;
    let mut took = callers(&backend);
    took.sort_by_key(|id| runs.iter().position(|run| run.id() == id));
    assert_eq!(took, runs.iter().map(|run| run.id().to_owned()).collect::<Vec<_>>());
    for run in runs.iter().chain([&fresh]) {
        assert!(end(run).await.status.is_terminal());
    }
    assert_eq!(code(&call(&runtime, "b").await), "OK");
}
