//! Published gates and the supervisor behind them.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use watertight::{
    policy::breaker::{
        settings::HalfOpenBy,
        state::{Reason, StateName},
    },
    runtime::supervisor::BreakerAct,
};

use crate::{
    kit::{Answer, Scripted, agent, call, call_later, code, one_agent, pass, settle},
    support::{Call, changes, codes, detail, hold, s, state},
};

#[tokio::test(start_paused = true)]
async fn five_failures_in_a_row_open_it_five_trials_close_it() {
    let backend = Scripted::always(Answer::status(503));
    let runtime = one_agent(agent("draft", "local"), backend.clone()).await;
    for _ in 0..5 {
        assert_eq!(code(&call(&runtime, "draft").await), "AGENT_ERROR");
    }
    let refused = call(&runtime, "draft").await.unwrap_err();
    assert_eq!(refused.envelope.details["breaker"], "agent:draft");
    assert_eq!(refused.envelope.details["reason"], "consecutive");
    assert_eq!(refused.envelope.retry_after, Some(30.0));
    assert_eq!(backend.count(), 5);
    backend.now(Answer::Good.after(Duration::from_secs(1)));
    pass(Duration::from_secs(30)).await;
    assert_eq!(runtime.breaker("agent:draft").unwrap().state, StateName::HalfOpen);
    let calls: Vec<_> = (0..20).map(|_| call_later(&runtime, "draft")).collect();
    let mut good = 0;
    for call in calls {
        let result = call.await.unwrap();
        good += usize::from(result.is_ok());
        if let Err(error) = result {
            assert!(error.envelope.retry_after.unwrap() >= 1.0);
        }
    }
    settle().await;
    assert_eq!(good, 5);
    assert_eq!(runtime.breaker("agent:draft").unwrap().state, StateName::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_client_errors_opens_nothing_and_dilutes_nothing() {
    let backend = Scripted::new(|_, number| Answer::status(if number % 2 == 0 { 404 } else { 422 }));
    let runtime = one_agent(agent("draft", "local"), backend.clone()).await;
    assert_eq!(codes(&runtime, "draft", 500).await, [("AGENT_ERROR".to_owned(), 500)].into());
    let snapshot = runtime.breaker("agent:draft").unwrap();
    assert_eq!((snapshot.state, snapshot.counts.entries, snapshot.failure_share), (StateName::Closed, 0, None));
    // Nor do they hide a real outage.
    backend.now(Answer::status(500));
    codes(&runtime, "draft", 5).await;
    assert_eq!(state(&runtime, "agent:draft"), StateName::Open);
}

/// The proof that every rollout asks for: half of 20 calls answer 5xx; it opens for 30 s and recovers by itself.
#[tokio::test(start_paused = true)]
async fn half_5xx_opens_for_30_s_and_recovers_by_itself() {
    for by in [HalfOpenBy::Timer, HalfOpenBy::FirstCall] {
        let mut settings = agent("draft", "local");
        (settings.breaker.calls_min, settings.breaker.half_open_by) = (20, by);
        let backend = Scripted::new(|_, number| if number % 2 == 0 { Answer::status(502) } else { Answer::Good });
        let runtime = one_agent(settings, backend.clone()).await;
        let mut events = runtime.breaker_events();
        assert_eq!(codes(&runtime, "draft", 20).await, [("AGENT_ERROR".to_owned(), 10), ("OK".to_owned(), 10)].into());
        let opened = events.try_recv().unwrap().transition;
        assert_eq!((opened.reason, opened.value), (Reason::FailureShare, Some(0.5)));
        backend.now(Answer::Good);
        pass(s(30) - Duration::from_millis(1)).await;
        assert_eq!(code(&call(&runtime, "draft").await), "AGENT_CIRCUIT_OPEN", "not a millisecond early");
        pass(Duration::from_millis(1)).await;
        let (waiting, reason) = match by {
            HalfOpenBy::Timer => (StateName::HalfOpen, Reason::OpenElapsed),
            HalfOpenBy::FirstCall => (StateName::Open, Reason::FirstCall),
        };
        assert_eq!(state(&runtime, "agent:draft"), waiting);
        assert_eq!(codes(&runtime, "draft", 10).await, [("OK".to_owned(), 10)].into());
        let half_opened = events.try_recv().unwrap().transition;
        assert_eq!((half_opened.to, half_opened.reason), (StateName::HalfOpen, reason));
        assert_eq!(half_opened.at.since(opened.at).as_secs(), 30);
        let closed = changes(&mut events);
        assert_eq!(closed, [("agent:draft".to_owned(), StateName::Closed, Reason::TrialsPassed)]);
    }
}

#[tokio::test(start_paused = true)]
async fn late_results_of_an_earlier_generation_change_nothing() {
    let asked = std::sync::Arc::new(AtomicUsize::new(0));
    let seen = asked.clone();
    // The first five answer late and badly; the next five fail at once and open it.
    let backend = Scripted::new(move |_, number| {
        seen.fetch_add(1, Ordering::SeqCst);
        if number < 5 { Answer::status(503).after(s(25)) } else { Answer::status(503) }
    });
    let runtime = one_agent(agent("draft", "local"), backend.clone()).await;
    let late: Vec<_> = (0..5).map(|_| Call(call_later(&runtime, "draft"))).collect();
    settle().await;
    codes(&runtime, "draft", 5).await;
    let opened = runtime.breaker("agent:draft").unwrap();
    assert_eq!(opened.state, StateName::Open);
    for call in late {
        assert_eq!(code(&call.end().await), "AGENT_ERROR");
    }
    settle().await;
    assert_eq!(runtime.breaker("agent:draft").unwrap(), opened);
    pass(s(5)).await;
    assert_eq!(state(&runtime, "agent:draft"), StateName::HalfOpen, "the open time was not prolonged");
}

#[tokio::test(start_paused = true)]
async fn results_after_a_reset_change_nothing() {
    let backend = Scripted::always(Answer::status(503).after(s(20)));
    let runtime = one_agent(agent("draft", "local"), backend.clone()).await;
    for half_open_first in [false, true] {
        if half_open_first {
            backend.now(Answer::status(503));
            codes(&runtime, "draft", 5).await;
            pass(s(30)).await;
            backend.now(Answer::status(503).after(s(20)));
        }
        let late: Vec<_> = (0..5).map(|_| Call(call_later(&runtime, "draft"))).collect();
        settle().await;
        runtime.act("agent:draft", BreakerAct::Reset).unwrap();
        settle().await;
        for call in late {
            assert_eq!(code(&call.end().await), "AGENT_ERROR");
        }
        settle().await;
        let snapshot = runtime.breaker("agent:draft").unwrap();
        assert_eq!((snapshot.state, snapshot.counts.entries), (StateName::Closed, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn an_operators_word_holds() {
    let backend = Scripted::always(Answer::status(503));
    let runtime = one_agent(agent("draft", "local"), backend.clone()).await;
    let act = async |act: BreakerAct| {
        runtime.act("agent:draft", act).unwrap();
        settle().await;
    };
    act(BreakerAct::Disable).await;
    codes(&runtime, "draft", 50).await;
    assert_eq!((state(&runtime, "agent:draft"), backend.count()), (StateName::Disabled, 50));
    act(BreakerAct::MetricsOnly).await;
    codes(&runtime, "draft", 50).await;
    assert_eq!((state(&runtime, "agent:draft"), backend.count()), (StateName::MetricsOnly, 100));
    assert_eq!(runtime.breaker("agent:draft").unwrap().failure_share, Some(1.0));
    act(BreakerAct::ForceOpen).await;
    pass(s(3_600)).await;
    let refused = call(&runtime, "draft").await;
    assert_eq!((code(&refused), detail(&refused, "reason")), ("AGENT_CIRCUIT_OPEN".into(), "forced".into()));
    assert_eq!(refused.as_ref().unwrap_err().envelope.retry_after, None, "nobody knows when");
    backend.now(Answer::Good);
    act(BreakerAct::Auto).await;
    assert_eq!(code(&call(&runtime, "draft").await), "OK");
    let strange = runtime.act("agent:nobody", BreakerAct::Reset).unwrap_err();
    assert!(strange.to_string().contains("agent:nobody"));
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_leaves_is_neutral_unless_it_waited_longer_than_slow() {
    let mut settings = agent("draft", "local");
    (settings.timeouts.attempt, settings.breaker.slow_call) = (None, s(30));
    let backend = Scripted::always(Answer::Hang);
    let runtime = one_agent(settings, backend.clone()).await;
    for (after, entries, failed, slow) in [(Duration::from_millis(300), 0, 0, 0), (s(61), 1, 1, 1)] {
        let (_, held) = hold(&runtime, "draft", &backend, 1).await;
        pass(after).await;
        drop(held);
        settle().await;
        let counts = runtime.breaker("agent:draft").unwrap().counts;
        assert_eq!((counts.entries, counts.failed, counts.slow), (entries, failed, slow), "{after:?}");
    }
    // A stream that has content already says that it lives.
    backend.now(Answer::Content(Box::new(Answer::Hang)));
    let leaving = Call(call_later(&runtime, "draft"));
    pass(s(20)).await;
    drop(leaving);
    settle().await;
    assert_eq!(runtime.breaker("agent:draft").unwrap().counts.entries, 1);
}
