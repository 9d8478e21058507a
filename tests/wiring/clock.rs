//! A clock that shows Unix time: nothing in the runtime takes moments for small numbers, and they stay comparable over restarts.

use std::sync::Arc;

use watertight::{
    policy::breaker::state::{Reason, StateName},
    runtime::{
        engine::{Part, Runtime},
        ports::{Clock, TokioClock},
    },
};

use crate::{
    kit::{Answer, Scripted, agent, builder, call, code, pass, provider, settle},
    support::{changes, codes, detail, hold, ms, s, state},
};

/// A runtime with one agent `draft` whose moments are Unix times.
async fn runtime_of_today(backend: &Arc<Scripted>) -> Runtime {
    let clock = Arc::new(TokioClock::since_unix_epoch());
    let mut settings = agent("draft", "local");
    settings.retry.attempts_max = 2;
    builder().clock(clock).provider(provider("local")).agent(settings, backend.clone()).start().await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn moments_are_unix_times_and_follow_tokios_time() {
    let system = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis();
    let (clock, other) = (TokioClock::since_unix_epoch(), TokioClock::start());
    let began = clock.now();
    assert!(u128::from(began.millis()).abs_diff(system) < 60_000, "{began:?}");
    tokio::time::sleep(s(90)).await;
    assert_eq!(clock.now().since(began), s(90));
    assert_eq!(clock.unix_ms(clock.now()), clock.now().millis());
    // A moment before this clock was started, as a run of an earlier process has it, keeps its date.
    assert_eq!(clock.unix_ms(began.before(s(3_600))) + 3_600_000, began.millis());
    assert!(clock.unix_ms(clock.now()).abs_diff(other.unix_ms(other.now())) < 60_000, "both tell the same date");
    // The next process starts later and sees what was written down before it as past.
    assert!(TokioClock::since_unix_epoch().now() > began);
}

#[tokio::test(start_paused = true)]
async fn a_breaker_opens_tries_and_closes_at_todays_date() {
    let backend = Scripted::always(Answer::status(503));
    let runtime = runtime_of_today(&backend).await;
    let mut events = runtime.breaker_events();
    codes(&runtime, "draft", 5).await;
    let refused = call(&runtime, "draft").await;
    let wait = refused.unwrap_err().envelope.retry_after.unwrap();
    assert!((29.0..=30.0).contains(&wait), "{wait}");
    pass(s(29)).await;
    assert_eq!(state(&runtime, "agent:draft"), StateName::Open);
    pass(ms(1_100)).await;
    assert_eq!(state(&runtime, "agent:draft"), StateName::HalfOpen);
    // Trials that never answer fail by their timeout: attempts end after 60 s, calls after 180 s.
    let (admitted, held) = hold(&runtime, "draft", &backend, 20).await;
    assert_eq!(admitted, 5);
    pass(s(61)).await;
    assert_eq!(state(&runtime, "agent:draft"), StateName::Open);
    drop(held);
    pass(s(30)).await;
    backend.now(Answer::Good);
    assert_eq!(codes(&runtime, "draft", 5).await, [("OK".to_owned(), 5)].into());
    let seen: Vec<_> = changes(&mut events).into_iter().map(|(_, to, reason)| (to, reason)).collect();
    assert_eq!(
        seen,
        [
            (StateName::Open, Reason::Consecutive),
            (StateName::HalfOpen, Reason::OpenElapsed),
            (StateName::Open, Reason::FailureShare),
            (StateName::HalfOpen, Reason::OpenElapsed),
            (StateName::Closed, Reason::TrialsPassed),
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn slots_budgets_and_ledgers_count_at_todays_date() {
    let backend = Scripted::always(Answer::Good);
    let runtime = runtime_of_today(&backend).await;
    let (admitted, held) = hold(&runtime, "draft", &backend, 10).await;
    assert_eq!(admitted, 10);
    pass(s(3)).await;
    let full = call(&runtime, "draft").await.unwrap_err();
    // All slots are held for 3 s by now, and nothing is known of how long they usually are: about as long again.
    assert_eq!(full.envelope.error_code.as_str(), "AGENT_BULKHEAD_FULL");
    assert!((3.0..=6.0).contains(&full.envelope.retry_after.unwrap()), "{:?}", full.envelope.retry_after);
    drop(held);
    settle().await;
    // A retry is allowed, and its budget counts it.
    backend.now(Answer::status(503));
    assert_eq!(call(&runtime, "draft").await.unwrap_err().attempts.len(), 2);
    for _ in 0..6 {
        runtime.crash(Part::Agent("draft")).unwrap();
        settle().await;
    }
    assert_eq!(detail(&call(&runtime, "draft").await, "reason"), "crash_loop");
    pass(s(62)).await;
    backend.now(Answer::Good);
    assert_eq!(code(&call(&runtime, "draft").await), "OK");
}
