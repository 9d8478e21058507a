//! Breaker-aware runs: parked before a shut gate, awake by themselves.

use std::sync::Arc;

use serde_json::Map;
use tokio::time::Instant;
use watertight::{
    model::run::RunStatus,
    policy::breaker::state::StateName,
    runtime::{
        engine::{Part, Runtime},
        supervisor::BreakerAct,
    },
    workflow::plan::why::Why,
};

use crate::{
    kit::{Answer, Scripted, call, call_later, settle},
    support::{
        alone, answering, assert_idle, callers, chain, chain_text, end, kinds, ms, runtime, s, start, start_until,
        step, workflow,
    },
};

/// Agents `a` and `b`, and `b`'s breaker is open for 30 s.
async fn with_b_open() -> (Runtime, Vec<Arc<Scripted>>) {
    let (runtime, backends) = answering(&["a", "b"], Answer::Good).await;
    open(&runtime, &backends[1], "b").await;
    (runtime, backends)
}

async fn open(runtime: &Runtime, backend: &Arc<Scripted>, agent: &str) {
    backend.now(Answer::status(503));
    for _ in 0..5 {
        assert!(call(runtime, agent).await.is_err());
    }
    backend.now(Answer::Good);
    backend.requests.lock().unwrap().clear();
    assert_eq!(runtime.breaker(&format!("agent:{agent}")).unwrap().state, StateName::Open);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_spent_while_a_gate_further_on_is_shut() {
    let (runtime, backends) = with_b_open().await;
    let began = Instant::now();
    let run = start(&runtime, &chain(&["a", "b"]));
    settle().await;
    let Some(Why::Parked { agent, wake_ms: Some(_), reason }) = run.why() else { panic!("{:?}", run.why()) };
    assert_eq!((agent.as_str(), reason.as_str()), ("b", "consecutive"));
    assert_eq!((run.record().status, backends[0].count()), (RunStatus::Parked, 0));
    let record = end(&run).await;
    assert_eq!((record.status, began.elapsed()), (RunStatus::Completed, s(30)));
    assert_eq!(kinds(&run)[..3], ["run.started", "run.parked b", "run.resumed"]);
    assert!(step(&record, "b").refusals.is_empty(), "it looked, so it was not refused");
    settle().await;
    assert_idle(&runtime, &backends);
}

#[tokio::test(start_paused = true)]
async fn a_gate_that_shuts_in_the_midst_parks_the_next_step() {
    let (runtime, backends) = answering(&["a", "b"], Answer::Good).await;
    backends[0].now(Answer::Good.after(s(10)));
    let began = Instant::now();
    let run = start(&runtime, &chain(&["a", "b"]));
    tokio::time::sleep(s(5)).await;
    open(&runtime, &backends[1], "b").await;
    tokio::time::sleep(s(6)).await;
    assert_eq!(run.record().status, RunStatus::Parked);
    let record = end(&run).await;
    assert_eq!((record.status, began.elapsed()), (RunStatus::Completed, s(35)));
    assert_eq!(backends[0].count(), 1, "what was finished is kept");
}

#[tokio::test(start_paused = true)]
async fn five_trials_go_to_the_oldest_parked_runs() {
    let (runtime, backends) = with_b_open().await;
    backends[1].now(Answer::Good.after(s(1)));
    let runs: Vec<_> = (0..20).map(|_| start(&runtime, &chain(&["b"]))).collect();
    settle().await;
    assert!(runs.iter().all(|run| run.record().status == RunStatus::Parked));
    tokio::time::sleep(ms(30_500)).await;
    assert_eq!(callers(&backends[1]), runs[..5].iter().map(|run| run.id().to_owned()).collect::<Vec<_>>());
    for run in &runs {
        assert_eq!(end(run).await.status, RunStatus::Completed);
    }
    assert_eq!(runtime.breaker("agent:b").unwrap().state, StateName::Closed);
    assert_eq!(callers(&backends[1]).len(), 20);
}

#[tokio::test(start_paused = true)]
async fn what_an_operator_shut_is_waited_for_until_they_open_it() {
    let (runtime, backends) = answering(&["a", "b"], Answer::Good).await;
    runtime.act("agent:b", BreakerAct::ForceOpen).unwrap();
    settle().await;
    let began = Instant::now();
    let run = start(&runtime, &chain(&["a", "b"]));
    tokio::time::sleep(s(100)).await;
    let Some(Why::Parked { wake_ms: None, reason, .. }) = run.why() else { panic!("{:?}", run.why()) };
    assert_eq!((reason.as_str(), backends[0].count()), ("forced", 0));
    runtime.act("agent:b", BreakerAct::Auto).unwrap();
    assert_eq!(end(&run).await.status, RunStatus::Completed);
    assert_eq!(began.elapsed(), s(100));
}

/// Its refusal says no time, so the gate's news alone wakes the run: it does not come back in vain.
#[tokio::test(start_paused = true)]
async fn a_call_that_a_forced_gate_refused_goes_on_once_an_operator_opens_it() {
    let busy = Scripted::always(Answer::Good.after(s(10)));
    let runtime = runtime(vec![(alone("b", 1), busy.clone())]).await;
    let other = call_later(&runtime, "b");
    settle().await;
    let began = Instant::now();
    let run = start(&runtime, &chain(&["b"]));
    settle().await;
    assert!(matches!(run.why(), Some(Why::Line { .. })), "{:?}", run.why());
    runtime.act("agent:b", BreakerAct::ForceOpen).unwrap();
    assert!(other.await.unwrap().is_ok());
    tokio::time::sleep(s(90)).await;
    let Some(Why::Parked { wake_ms: None, reason, .. }) = run.why() else { panic!("{:?}", run.why()) };
    assert_eq!((reason.as_str(), busy.count()), ("forced", 1));
    runtime.act("agent:b", BreakerAct::Auto).unwrap();
    let record = end(&run).await;
    assert_eq!((record.status, began.elapsed()), (RunStatus::Completed, s(110)));
    let refusals = &step(&record, "b").refusals;
    assert_eq!((refusals.len(), refusals[0].retry_after), (1, None));
}

#[tokio::test(start_paused = true)]
async fn news_of_a_gate_that_no_orchestrator_heard_is_not_lost() {
    let (runtime, _) = answering(&["a", "b"], Answer::Good).await;
    runtime.act("agent:b", BreakerAct::ForceOpen).unwrap();
    settle().await;
    let run = start(&runtime, &chain(&["a", "b"]));
    tokio::time::sleep(s(2)).await;
    assert_eq!(run.record().status, RunStatus::Parked);
    // The news comes behind the crash and dies with the mailbox.
    runtime.crash(Part::Orchestrator).unwrap();
    runtime.act("agent:b", BreakerAct::Auto).unwrap();
    let began = Instant::now();
    assert_eq!(end(&run).await.status, RunStatus::Completed);
    assert!(began.elapsed() < s(1), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_wake_after_the_deadline_is_not_waited_for() {
    let (runtime, backends) = with_b_open().await;
    let began = Instant::now();
    let run = start_until(&runtime, &chain(&["a", "b"]), Map::new(), None, Some(s(20)));
    let record = end(&run).await;
    assert_eq!((record.status, began.elapsed()), (RunStatus::Failed, ms(0)));
    let error = record.error.clone().unwrap();
    assert_eq!((error.error_code.as_str(), error.details["step"].as_str()), ("AGENT_CIRCUIT_OPEN", Some("b")));
    assert!(error.retryable && error.retry_after.is_some_and(|wait| (29.0..=31.0).contains(&wait)));
    assert_eq!(backends[0].count(), 0, "nothing was spent on a run that cannot end well");
}

#[tokio::test(start_paused = true)]
async fn a_step_that_need_not_wait_does_not() {
    let (runtime, backends) = with_b_open().await;
    let text = chain_text(&["a"])
        + "[[step]]\nid = \"b\"\nagent = \"b\"\nneeds = [\"a\"]\non = { circuit_open = \"default\" }\ndefault = { score = 0 }\n";
    let run = start(&runtime, &workflow("", &text));
    let began = Instant::now();
    let record = end(&run).await;
    assert_eq!((record.status, began.elapsed()), (RunStatus::CompletedDegraded, ms(0)));
    let b = step(&record, "b");
    assert_eq!((b.refusals.len(), b.refusals[0].error_code.as_str()), (1, "AGENT_CIRCUIT_OPEN"));
    assert_eq!((record.degraded[0].step.as_str(), record.degraded[0].action.as_str()), ("b", "default"));
    assert_eq!((backends[0].count(), callers(&backends[1]).len()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn sickness_of_one_agent_leaves_runs_of_others_alone() {
    let (well, ill) = (Scripted::always(Answer::Good.after(ms(20))), Scripted::always(Answer::status(503)));
    let runtime = runtime(vec![(alone("a", 10), well.clone()), (alone("b", 10), ill.clone())]).await;
    let text = chain_text(&["b"]).replace("agent = \"b\"", "agent = \"b\"\noptional = true");
    for _ in 0..30 {
        let ill = start(&runtime, &workflow("", &text));
        let well = start(&runtime, &chain(&["a"]));
        let began = Instant::now();
        assert_eq!(end(&well).await.status, RunStatus::Completed);
        assert_eq!(began.elapsed(), ms(20));
        assert_eq!(end(&ill).await.status, RunStatus::CompletedDegraded);
    }
    assert_eq!(runtime.breaker("agent:b").unwrap().state, StateName::Open);
    assert_eq!((ill.count(), well.count()), (5, 30));
}
