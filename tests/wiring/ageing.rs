//! Attempts in flight that are slow by now count as slow by now.

use watertight::{
    policy::{
        breaker::state::{Reason, StateName},
        slow::SlowBy,
    },
    runtime::engine::Runtime,
};

use crate::{
    kit::{Answer, Scripted, agent, call_later, code, one_agent, pass, settle},
    support::{Call, changes, codes, hold, ms, s, state},
};

fn counts(runtime: &Runtime) -> (u32, u32, u32, u32) {
    let counts = runtime.breaker("agent:draft").unwrap().counts;
    (counts.entries, counts.finished, counts.failed, counts.slow)
}

/// B08: 20 calls hang; open by 31 s, each counted once.
#[tokio::test(start_paused = true)]
async fn calls_that_hang_are_seen_at_the_threshold() {
    let mut settings = agent("draft", "local");
    settings.slots = 20;
    let backend = Scripted::always(Answer::Hang);
    let runtime = one_agent(settings, backend.clone()).await;
    let mut events = runtime.breaker_events();
    let (admitted, held) = hold(&runtime, "draft", &backend, 20).await;
    assert_eq!(admitted, 20);
    pass(s(30)).await;
    assert_eq!(state(&runtime, "agent:draft"), StateName::Closed, "exactly 30.000 s is not slow");
    pass(s(1)).await;
    assert_eq!(changes(&mut events), [("agent:draft".to_owned(), StateName::Open, Reason::SlowShare)]);
    // Their ends change nothing any more: half-open at its time, with all its trials.
    pass(s(30)).await;
    for call in held {
        assert_eq!(code(&call.end().await), "AGENT_TIMEOUT");
    }
    settle().await;
    assert_eq!(state(&runtime, "agent:draft"), StateName::HalfOpen);
    assert_eq!(hold(&runtime, "draft", &backend, 20).await.0, 5);
}

#[tokio::test(start_paused = true)]
async fn a_call_counts_once_and_leaves_if_it_comes_to_nothing() {
    for (answer, want) in [
        (Answer::Good, (1, 1, 0, 1)),
        (Answer::status(503), (1, 1, 1, 1)),
        (Answer::status(404), (0, 0, 0, 0)),
        (Answer::Panic, (0, 0, 0, 0)),
    ] {
        let backend = Scripted::always(answer.clone().after(s(40)));
        let runtime = one_agent(agent("draft", "local"), backend.clone()).await;
        let slow = Call(call_later(&runtime, "draft"));
        pass(s(35)).await;
        assert_eq!(counts(&runtime), (1, 0, 0, 1), "{answer:?} pending");
        drop(slow.end().await);
        settle().await;
        assert_eq!(counts(&runtime), want, "{answer:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_whose_first_content_came_in_time_is_not_slow() {
    let run = async |slow_by: SlowBy, answer: Answer| {
        let mut settings = agent("draft", "local");
        (settings.slow_by, settings.timeouts.attempt) = (slow_by, None);
        let backend = Scripted::always(answer);
        let runtime = one_agent(settings, backend.clone()).await;
        let call = Call(call_later(&runtime, "draft"));
        pass(s(100)).await;
        let pending = counts(&runtime).3;
        let ended = code(&call.end().await);
        settle().await;
        (pending, counts(&runtime).3, ended)
    };
    let stream = |first: u64| Answer::Content(Box::new(Answer::Good.after(s(120)))).after(s(first));
    assert_eq!(run(SlowBy::FirstToken, stream(29)).await, (0, 0, "OK".into()));
    assert_eq!(run(SlowBy::FirstToken, stream(31)).await, (1, 1, "OK".into()));
    assert_eq!(run(SlowBy::Total, stream(1)).await, (1, 1, "OK".into()));
    assert_eq!(run(SlowBy::Pace(5.0), stream(1)).await, (1, 1, "OK".into()), "one token in 120 s is a crawl");
}

/// 1.6: three tries of 12 s are three normal tries.
#[tokio::test(start_paused = true)]
async fn slow_is_a_matter_of_one_attempt() {
    let mut settings = agent("draft", "local");
    (settings.retry.attempts_max, settings.retry.retry_below) = (3, s(20));
    let backend = Scripted::always(Answer::status(503).after(s(12)));
    let runtime = one_agent(settings, backend.clone()).await;
    assert_eq!(codes(&runtime, "draft", 1).await, [("AGENT_ERROR".to_owned(), 1)].into());
    assert_eq!((backend.count(), counts(&runtime)), (3, (1, 1, 1, 0)));
}

#[tokio::test(start_paused = true)]
async fn exactly_the_threshold_is_in_time() {
    for (took, slow) in [(s(30), 0), (s(30) + ms(2), 1)] {
        let backend = Scripted::always(Answer::Good.after(took));
        let runtime = one_agent(agent("draft", "local"), backend.clone()).await;
        codes(&runtime, "draft", 1).await;
        assert_eq!(counts(&runtime), (1, 1, 0, slow), "{took:?}");
    }
}
