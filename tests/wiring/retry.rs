//! Attempts inside a call: by envelope, in virtual time, inside one slot and one verdict.

use std::{sync::Arc, time::Duration};

use watertight::{
    model::facts::{Ending, TimeoutKind},
    policy::breaker::state::StateName,
    runtime::{call::CallContext, engine::Runtime, settings::AgentSettings, supervisor::BreakerAct},
};

use crate::{
    kit::{Answer, Scripted, agent, call, call_later, code, one_agent, pass, settle},
    support::{Call, call_with, codes, ms, s, state},
};

async fn retrying(answer: Answer, change: impl FnOnce(&mut AgentSettings)) -> (Runtime, Arc<Scripted>) {
    let mut settings = agent("draft", "local");
    settings.retry.attempts_max = 4;
    settings.retry.budget_min = 100;
    change(&mut settings);
    let backend = Scripted::always(answer);
    (one_agent(settings, backend.clone()).await, backend)
}

fn counts(runtime: &Runtime) -> (u32, u32) {
    let counts = runtime.breaker("agent:draft").unwrap().counts;
    (counts.entries, counts.failed)
}

/// B38: four attempts are four requests, one verdict, and outer layers are told.
#[tokio::test(start_paused = true)]
async fn four_attempts_are_four_requests_and_one_verdict() {
    for status in [429, 503] {
        let (runtime, backend) = retrying(Answer::status(status), |_| ()).await;
        let failed = call(&runtime, "draft").await.unwrap_err();
        assert_eq!((backend.count(), failed.attempts.len()), (4, 4));
        assert_eq!(failed.envelope.details["attempts"], 4);
        assert!(failed.exhausted && !failed.nothing_sent);
        assert_eq!(failed.envelope.http_status, status);
        assert_eq!(counts(&runtime), (1, 1));
        let requests = backend.requests.lock().unwrap().clone();
        assert!(requests.iter().all(|request| request.idempotency_key == requests[0].idempotency_key));
        assert_eq!(requests.iter().map(|request| request.attempt).collect::<Vec<_>>(), [1, 2, 3, 4]);
        assert_eq!(requests.iter().map(|request| &request.call_id).collect::<std::collections::HashSet<_>>().len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn another_call_has_another_idempotency_key_unless_the_caller_brings_one() {
    let (runtime, backend) = retrying(Answer::Good, |_| ()).await;
    codes(&runtime, "draft", 2).await;
    let context = || CallContext { idempotency_key: Some("mine".into()), ..CallContext::default() };
    for _ in 0..2 {
        call_with(&runtime, "draft", context()).await.unwrap();
    }
    let keys: Vec<String> =
        backend.requests.lock().unwrap().iter().map(|request| request.idempotency_key.clone()).collect();
    assert_ne!(keys[0], keys[1]);
    assert_eq!(keys[2..], ["mine", "mine"]);
}

#[tokio::test(start_paused = true)]
async fn an_asked_pause_is_kept_to_the_millisecond() {
    for (asked, waited) in [(s(3), s(3)), (ms(1_500), ms(1_500)), (s(10), s(10)), (ms(1), ms(50))] {
        let (runtime, backend) = retrying(Answer::Good, |_| ()).await;
        let answer = Answer::status_after(429, asked);
        backend.now(answer.clone());
        let running = Call(call_later(&runtime, "draft"));
        settle().await;
        tokio::time::sleep(waited - ms(1)).await;
        settle().await;
        assert_eq!(backend.count(), 1, "{asked:?}");
        backend.now(Answer::Good);
        tokio::time::sleep(ms(1)).await;
        settle().await;
        assert_eq!(backend.count(), 2, "{asked:?}");
        let reply = running.end().await.unwrap();
        assert_eq!(reply.attempts[0].retry_after, Some(asked.as_secs_f64()));
        assert_eq!(
            reply.attempts[1].started_ms - reply.attempts[0].started_ms,
            u64::try_from(waited.as_millis()).unwrap()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_longer_pause_is_not_slept_in_the_slot() {
    let (runtime, backend) = retrying(Answer::status_after(503, s(11)), |_| ()).await;
    let before = tokio::time::Instant::now();
    let failed = call(&runtime, "draft").await.unwrap_err();
    assert_eq!((backend.count(), before.elapsed()), (1, Duration::ZERO));
    assert_eq!(failed.envelope.retry_after, Some(11.0));
    assert!(failed.envelope.retryable && !failed.exhausted);
}

#[tokio::test(start_paused = true)]
async fn what_is_not_worth_repeating_is_not_repeated() {
    let content = |then: Answer| Answer::Content(Box::new(then));
    for (what, answer, attempts, ended) in [
        ("client error", Answer::status(422), 1, "AGENT_ERROR"),
        ("own timeout", Answer::Hang, 1, "AGENT_TIMEOUT"),
        ("timeout of the backend", Answer::ending(Ending::Timeout { timeout: TimeoutKind::Stall }), 1, "AGENT_TIMEOUT"),
        ("just short enough", Answer::status(503).after(s(5)), 4, "AGENT_ERROR"),
        ("too long", Answer::status(503).after(ms(5_001)), 1, "AGENT_ERROR"),
        ("bad reply", Answer::ending(Ending::BadReply), 2, "AGENT_BAD_REPLY"),
        ("cut after the first content", content(Answer::ending(Ending::StreamCut)), 1, "AGENT_BAD_REPLY"),
        ("503 after the first content", content(Answer::status(503)), 1, "AGENT_ERROR"),
        ("cut before the first content", Answer::ending(Ending::StreamCut), 4, "AGENT_BAD_REPLY"),
        ("a shape of the caller's", Answer::ending(Ending::CallerShape), 1, "AGENT_BAD_REPLY"),
        ("panic", Answer::Panic, 1, "AGENT_RESTARTED"),
    ] {
        let (runtime, backend) = retrying(answer, |_| ()).await;
        let failed = call(&runtime, "draft").await;
        assert_eq!((backend.count(), code(&failed).as_str()), (attempts, ended), "{what}");
        let failed = failed.unwrap_err();
        assert_eq!(failed.attempts.len(), attempts, "{what}");
        assert!(!failed.nothing_sent, "{what}: something was sent");
    }
}

/// B31: nothing that was passed on is sent twice.
#[tokio::test(start_paused = true)]
async fn pieces_reach_the_listener_once() {
    let (runtime, backend) = retrying(Answer::Good, |_| ()).await;
    let (sender, mut pieces) = tokio::sync::mpsc::channel(16);
    backend.now(Answer::Content(Box::new(Answer::ending(Ending::StreamCut))));
    let request = watertight::runtime::call::CallRequest {
        deltas: Some(sender),
        ..watertight::runtime::call::CallRequest::of(serde_json::Value::Null)
    };
    let failed = runtime.agent("draft").unwrap().call(request).await;
    assert_eq!(code(&failed), "AGENT_BAD_REPLY");
    let mut seen = 0;
    while pieces.recv().await.is_some() {
        seen += 1;
    }
    assert_eq!(seen, 1);
}

#[tokio::test(start_paused = true)]
async fn the_budget_bounds_retries_over_all_calls() {
    let (runtime, backend) = retrying(Answer::status(503), |settings| {
        settings.retry.budget_min = 3;
        settings.breaker.consecutive_failures = None;
        settings.breaker.calls_min = 20;
    })
    .await;
    codes(&runtime, "draft", 10).await;
    assert_eq!(backend.count(), 10 + 3, "20 % of 10 is less than the 3 that are always allowed");
    runtime.act("agent:draft", BreakerAct::Disable).unwrap();
    codes(&runtime, "draft", 90).await;
    assert_eq!(backend.count(), 100 + 20);
}

#[tokio::test(start_paused = true)]
async fn a_gate_that_shut_meanwhile_ends_the_retries() {
    for reopened in [false, true] {
        let (runtime, backend) =
            retrying(Answer::status_after(503, s(5)), |settings| settings.breaker.open = s(1)).await;
        let running = Call(call_later(&runtime, "draft"));
        settle().await;
        backend.now(Answer::status_after(503, s(20)));
        for _ in 0..5 {
            drop(call(&runtime, "draft").await);
        }
        assert_eq!(state(&runtime, "agent:draft"), StateName::Open);
        let before = backend.count();
        if reopened {
            pass(s(2)).await;
            assert_eq!(state(&runtime, "agent:draft"), StateName::HalfOpen, "and this call is none of its trials");
        }
        let failed = running.end().await.unwrap_err();
        assert_eq!((backend.count(), failed.attempts.len()), (before, 1));
        assert_eq!(failed.envelope.error_code.as_str(), "AGENT_ERROR");
    }
}

#[tokio::test(start_paused = true)]
async fn a_deadline_of_the_run_that_is_shorter_is_nobodys_fault() {
    let (runtime, _) = retrying(Answer::Hang, |_| ()).await;
    let deadline = runtime.clock().now().after(s(20));
    let context = CallContext { deadline: Some(deadline), ..CallContext::default() };
    let failed = call_with(&runtime, "draft", context.clone()).await;
    assert_eq!((code(&failed), counts(&runtime)), ("DEADLINE_EXCEEDED".into(), (0, 0)));
    assert_eq!(runtime.clock().now(), deadline);
    // And once it has passed nothing is sent at all.
    let refused = call_with(&runtime, "draft", context).await;
    assert_eq!(code(&refused), "DEADLINE_EXCEEDED");
    assert!(refused.unwrap_err().nothing_sent);
}

/// An impatient caller must not be able to open the breaker for everybody.
#[tokio::test(start_paused = true)]
async fn a_callers_own_timeout_is_a_deadline_of_the_caller() {
    let (runtime, backend) = retrying(Answer::Good.after(s(2)), |_| ()).await;
    for timeout in [ms(0), ms(500)] {
        for _ in 0..20 {
            let context = CallContext { timeout: Some(timeout), ..CallContext::default() };
            assert_eq!(code(&call_with(&runtime, "draft", context).await), "DEADLINE_EXCEEDED");
        }
    }
    assert_eq!((counts(&runtime), backend.count()), ((0, 0), 20));
    // One that is longer than the attempt's own does not excuse the agent.
    backend.now(Answer::Hang);
    let context = CallContext { timeout: Some(s(100)), ..CallContext::default() };
    assert_eq!(code(&call_with(&runtime, "draft", context).await), "AGENT_TIMEOUT");
    assert_eq!(counts(&runtime), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn our_own_call_timeout_is_the_agents_fault() {
    let (runtime, backend) = retrying(Answer::Hang, |settings| settings.timeouts.attempt = None).await;
    let before = tokio::time::Instant::now();
    assert_eq!(code(&call(&runtime, "draft").await), "AGENT_TIMEOUT");
    assert_eq!((before.elapsed(), backend.count(), counts(&runtime)), (s(180), 1, (1, 1)));
}

#[tokio::test(start_paused = true)]
async fn attempts_and_pauses_stay_inside_the_call() {
    let (runtime, backend) = retrying(Answer::status_after(503, s(4)).after(s(4)), |settings| {
        settings.timeouts.call = s(10);
        settings.retry.attempts_max = 10;
    })
    .await;
    let before = tokio::time::Instant::now();
    let failed = call(&runtime, "draft").await;
    // Attempts at 0 and 8 s; the second is cut at 10 s.
    assert_eq!((backend.count(), before.elapsed(), code(&failed).as_str()), (2, s(10), "AGENT_TIMEOUT"));
    let deadlines: Vec<u64> =
        backend.requests.lock().unwrap().iter().map(|request| request.deadline.as_secs()).collect();
    assert_eq!(deadlines, [10, 2]);
}
