//! Half-open: trials are taken, returned, timed out and counted.

use std::sync::Arc;

use watertight::{
    model::facts::Ending,
    policy::breaker::{
        settings::HalfOpenBy,
        state::{Reason, StateName},
    },
    runtime::engine::Runtime,
};

use crate::{
    kit::{Answer, Scripted, agent, call, code, one_agent, pass, settle},
    support::{changes, codes, detail, hold, ms, s, state},
};

/// An agent whose breaker is half-open.
async fn half_open(change: impl FnOnce(&mut watertight::runtime::settings::AgentSettings)) -> (Runtime, Arc<Scripted>) {
    let mut settings = agent("draft", "local");
    change(&mut settings);
    let by = settings.breaker.half_open_by;
    let backend = Scripted::always(Answer::status(503));
    let runtime = one_agent(settings, backend.clone()).await;
    codes(&runtime, "draft", 5).await;
    pass(s(30)).await;
    let want = if by == HalfOpenBy::Timer { StateName::HalfOpen } else { StateName::Open };
    assert_eq!(state(&runtime, "agent:draft"), want);
    (runtime, backend)
}

/// As many may pass as are given, and they close it.
async fn five_pass_and_close_it(runtime: &Runtime, backend: &Scripted, what: &str) {
    let (admitted, held) = hold(runtime, "draft", backend, 50).await;
    assert_eq!(admitted, 5, "{what}");
    drop(held);
    settle().await;
    backend.now(Answer::Good);
    assert_eq!(codes(runtime, "draft", 5).await, [("OK".to_owned(), 5)].into(), "{what}");
    assert_eq!(state(runtime, "agent:draft"), StateName::Closed, "{what}");
}

#[tokio::test(start_paused = true)]
async fn trials_that_end_without_a_verdict_can_be_taken_again() {
    for by in [HalfOpenBy::Timer, HalfOpenBy::FirstCall] {
        for (what, answer) in [
            ("ignored", Some(Answer::status(404))),
            ("panic", Some(Answer::Panic)),
            ("shape of the caller", Some(Answer::ending(Ending::CallerShape))),
            ("cancelled", None),
        ] {
            let (runtime, backend) = half_open(|settings| {
                settings.breaker.half_open_by = by;
                settings.restart.max = 100;
            })
            .await;
            for _ in 0..40 {
                if let Some(answer) = &answer {
                    backend.now(answer.clone());
                    assert_ne!(code(&call(&runtime, "draft").await), "AGENT_CIRCUIT_OPEN", "{what}");
                } else {
                    let (admitted, held) = hold(&runtime, "draft", &backend, 1).await;
                    assert_eq!(admitted, 1, "{what}");
                    pass(ms(300)).await;
                    drop(held);
                    settle().await;
                }
                assert_eq!(state(&runtime, "agent:draft"), StateName::HalfOpen, "{what}");
            }
            five_pass_and_close_it(&runtime, &backend, what).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn all_trials_taken_is_told_with_at_least_a_second() {
    let (runtime, backend) = half_open(|_| ()).await;
    let (_, _held) = hold(&runtime, "draft", &backend, 5).await;
    let mut waits = std::collections::BTreeSet::new();
    for _ in 0..20 {
        let refused = call(&runtime, "draft").await;
        assert_eq!((code(&refused), detail(&refused, "reason")), ("AGENT_CIRCUIT_OPEN".into(), "consecutive".into()));
        let wait = refused.unwrap_err().envelope.retry_after.unwrap();
        assert!((1.0..=2.0).contains(&wait));
        waits.insert(format!("{wait:.3}"));
    }
    assert!(waits.len() > 10, "spread: {waits:?}");
}

/// B01: trials that never answer are failed in time, and there are new ones after the next open time.
#[tokio::test(start_paused = true)]
async fn trials_that_hang_open_it_again() {
    let (runtime, backend) = half_open(|_| ()).await;
    let mut events = runtime.breaker_events();
    for round in 0..3 {
        let (admitted, held) = hold(&runtime, "draft", &backend, 20).await;
        assert_eq!(admitted, 5, "round {round}");
        pass(s(60)).await;
        assert_eq!(state(&runtime, "agent:draft"), StateName::Open, "round {round}");
        pass(s(30)).await;
        assert_eq!(state(&runtime, "agent:draft"), StateName::HalfOpen, "round {round}");
        drop(held);
        settle().await;
        let reasons: Vec<Reason> = changes(&mut events).into_iter().map(|(_, _, reason)| reason).collect();
        assert_eq!(reasons, [Reason::FailureShare, Reason::OpenElapsed], "round {round}");
    }
    five_pass_and_close_it(&runtime, &backend, "after all").await;
}

/// A trial may take as long as an attempt may: one with its own time left is not failed.
#[tokio::test(start_paused = true)]
async fn a_long_trial_that_may_be_long_counts() {
    let (runtime, backend) = half_open(|settings| {
        settings.timeouts.attempt = Some(s(170));
        settings.breaker.slow_call = s(160);
    })
    .await;
    backend.now(Answer::Good.after(s(150)));
    let calls: Vec<_> = (0..5).map(|_| crate::kit::call_later(&runtime, "draft")).collect();
    for call in calls {
        assert_eq!(code(&call.await.unwrap()), "OK");
    }
    settle().await;
    assert_eq!(state(&runtime, "agent:draft"), StateName::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_trial_makes_one_attempt() {
    let (runtime, backend) = half_open(|settings| settings.retry.attempts_max = 3).await;
    let before = backend.count();
    let failed = call(&runtime, "draft").await.unwrap_err();
    assert_eq!((backend.count() - before, failed.attempts.len()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_half_open_breaker_that_nobody_asks_stays_so_silently() {
    let (runtime, backend) = half_open(|_| ()).await;
    let mut events = runtime.breaker_events();
    pass(s(24 * 3_600)).await;
    assert_eq!(changes(&mut events), []);
    five_pass_and_close_it(&runtime, &backend, "a day later").await;
}
