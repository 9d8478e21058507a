//! Slots in front of the mailbox: who gets one, and that each comes back exactly once.

use std::time::Duration;

use watertight::{
    policy::breaker::state::StateName,
    runtime::{engine::Part, settings::ProviderSettings},
};

use crate::{
    kit::{Answer, Scripted, agent, builder, call, call_later, code, name, one_agent, pass, provider, settle},
    support::{Call, agents_on, codes, detail, hold, ms, s, state},
};

#[tokio::test(start_paused = true)]
async fn a_burst_of_200_against_10_slots() {
    let backend = Scripted::always(Answer::Good.after(Duration::from_secs(1)));
    let runtime = one_agent(agent("draft", "local"), backend.clone()).await;
    let handle = runtime.agent("draft").unwrap();
    let calls: Vec<_> = (0..200).map(|_| call_later(&runtime, "draft")).collect();
    settle().await;
    assert!(handle.mailbox_depth() <= 10);
    let mut codes = std::collections::BTreeMap::new();
    for call in calls {
        *codes.entry(code(&call.await.unwrap())).or_insert(0) += 1;
    }
    settle().await;
    assert_eq!(codes, [("AGENT_BULKHEAD_FULL".to_owned(), 190), ("OK".to_owned(), 10)].into());
    assert_eq!(handle.in_flight(), 0);
    assert_eq!(code(&call(&runtime, "draft").await), "OK");
}

#[tokio::test(start_paused = true)]
async fn a_cap_admits_exactly_itself() {
    for (cap, callers, admitted) in [(0, 3, 0), (1, 2, 1), (5, 6, 5)] {
        let mut settings = agent("draft", "local");
        settings.slots = cap;
        let backend = Scripted::always(Answer::Good);
        let runtime = one_agent(settings, backend.clone()).await;
        let (got, held) = hold(&runtime, "draft", &backend, callers).await;
        assert_eq!(got, admitted, "cap {cap}");
        let refused = call(&runtime, "draft").await;
        assert_eq!(
            (code(&refused), detail(&refused, "compartment")),
            ("AGENT_BULKHEAD_FULL".into(), "agent:draft".into())
        );
        let retry_after = refused.unwrap_err().envelope.retry_after.unwrap();
        assert!((1.0..=10.0).contains(&retry_after), "{retry_after}");
        drop(held);
        settle().await;
        assert_eq!(runtime.agent("draft").unwrap().in_flight(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_mailbox_of_one_starts_and_works() {
    let mut settings = agent("draft", "local");
    settings.slots = 1;
    let backend = Scripted::always(Answer::Good);
    let runtime = one_agent(settings, backend.clone()).await;
    assert_eq!(codes(&runtime, "draft", 100).await, [("OK".to_owned(), 100)].into());
    assert_eq!(backend.peak.load(std::sync::atomic::Ordering::SeqCst), 1);
    runtime.crash(Part::Agent("draft")).unwrap();
    settle().await;
    assert_eq!(code(&call(&runtime, "draft").await), "OK");
}

#[tokio::test(start_paused = true)]
async fn a_hundred_thousand_refused_senders_wait_for_nothing() {
    let backend = Scripted::always(Answer::Good);
    let runtime = one_agent(agent("draft", "local"), backend.clone()).await;
    let (admitted, held) = hold(&runtime, "draft", &backend, 10).await;
    assert_eq!(admitted, 10);
    let handle = runtime.agent("draft").unwrap();
    let before = tokio::time::Instant::now();
    for _ in 0..100_000 {
        // One poll each: a refusal never waits.
        let refused = futures_util::FutureExt::now_or_never(
            handle.call(watertight::runtime::call::CallRequest::of(serde_json::Value::Null)),
        );
        assert_eq!(code(&refused.unwrap()), "AGENT_BULKHEAD_FULL");
        assert!(handle.mailbox_depth() <= 10);
    }
    assert_eq!((before.elapsed(), handle.in_flight(), backend.count()), (Duration::ZERO, 10, 10));
    // A crash gets through at once, however many came by; those that run go on.
    runtime.crash(Part::Agent("draft")).unwrap();
    settle().await;
    assert_eq!(runtime.agents()[0].restarts, 1);
    drop(held);
    settle().await;
    assert_eq!(handle.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn agents_of_a_provider_keep_their_guaranteed_shares() {
    let local = || ProviderSettings { slots: Some(4), ..provider("local") };
    let two = || vec![agent("draft", "local"), agent("review", "local")];
    let check = async |local: ProviderSettings, first: usize, second: usize| {
        let (runtime, backends) = agents_on(local, two()).await;
        let (got, held) = hold(&runtime, "draft", &backends[0], 20).await;
        assert_eq!(got, first);
        let refused = call(&runtime, "draft").await;
        assert_eq!(detail(&refused, "compartment"), "provider:local");
        let (got, more) = hold(&runtime, "review", &backends[1], 20).await;
        assert_eq!(got, second);
        drop((held, more));
        settle().await;
        // Both are back: the other way round it is the same.
        let (got, _held) = hold(&runtime, "review", &backends[1], 20).await;
        assert!(got >= second);
    };
    check(local(), 2, 2).await;
    check(ProviderSettings { slots: Some(5), ..local() }, 3, 2).await;
    check(ProviderSettings { slots: Some(1), ..local() }, 1, 0).await;
    check(ProviderSettings { guaranteed: vec![(name("draft"), 3)], ..local() }, 3, 1).await;
    check(ProviderSettings { guaranteed: vec![(name("draft"), 0), (name("review"), 0)], ..local() }, 4, 0).await;
}

#[tokio::test(start_paused = true)]
async fn a_refusal_further_in_gives_the_providers_slot_back() {
    let mut small = agent("draft", "local");
    small.slots = 1;
    let local = ProviderSettings {
        slots: Some(4),
        guaranteed: vec![(name("draft"), 0), (name("review"), 0)],
        ..provider("local")
    };
    let (runtime, backends) = agents_on(local, vec![small, agent("review", "local")]).await;
    let (admitted, _held) = hold(&runtime, "draft", &backends[0], 50).await;
    assert_eq!(admitted, 1);
    let (admitted, _more) = hold(&runtime, "review", &backends[1], 10).await;
    assert_eq!(admitted, 3, "49 refusals of `draft` left no trace at the provider");
}

#[tokio::test(start_paused = true)]
async fn a_slot_comes_back_however_a_call_ends() {
    let panic = Answer::Panic.after(ms(10));
    for (what, answer, leave_after) in [
        ("answer", Answer::Good.after(s(1)), None),
        ("error", Answer::status(503).after(s(1)), None),
        ("timeout", Answer::Hang, None),
        ("panic", panic, None),
        ("cancel before the first poll of the attempt", Answer::Hang, Some(ms(0))),
        ("cancel while running", Answer::Hang, Some(s(1))),
        ("cancel while waiting for a retry", Answer::status_after(503, s(5)), Some(s(2))),
    ] {
        let mut settings = agent("draft", "local");
        (settings.slots, settings.retry.attempts_max) = (1, 3);
        let backend = Scripted::always(answer);
        let runtime = one_agent(settings, backend.clone()).await;
        let running = Call(call_later(&runtime, "draft"));
        settle().await;
        assert_eq!(runtime.agent("draft").unwrap().in_flight(), 1, "{what}");
        let sent = backend.count();
        match leave_after {
            Some(wait) => {
                pass(wait).await;
                drop(running);
            }
            None => drop(running.end().await),
        }
        settle().await;
        assert_eq!(runtime.agent("draft").unwrap().in_flight(), 0, "{what}");
        assert_eq!(backend.running.load(std::sync::atomic::Ordering::SeqCst), 0, "{what}: aborted upstream");
        if leave_after.is_some() {
            pass(s(30)).await;
            assert_eq!(backend.count(), sent, "{what}: nothing further is sent");
        }
        backend.now(Answer::Good);
        assert_eq!(code(&call(&runtime, "draft").await), "OK", "{what}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocking_work_keeps_its_slot_until_the_thread_ends() {
    let mut settings = agent("draft", "local");
    settings.slots = 1;
    let backend = Scripted::always(Answer::Block(ms(400)));
    let runtime = one_agent(settings, backend.clone()).await;
    let handle = runtime.agent("draft").unwrap();
    let left = tokio::time::timeout(ms(40), call(&runtime, "draft")).await;
    assert!(left.is_err());
    assert_eq!(code(&call(&runtime, "draft").await), "AGENT_BULKHEAD_FULL", "the thread still works");
    backend.now(Answer::Good);
    for _ in 0..200 {
        if handle.in_flight() == 0 {
            break;
        }
        tokio::time::sleep(ms(10)).await;
    }
    assert_eq!(code(&call(&runtime, "draft").await), "OK");
}

#[tokio::test(start_paused = true)]
async fn calls_that_are_refused_for_slots_give_their_trials_back_everywhere() {
    let local = ProviderSettings { key: Some(name("main")), ..provider("local") };
    let mut small = agent("draft", "local");
    small.slots = 2;
    let (runtime, backends) = agents_on(local, vec![small, agent("review", "local")]).await;
    for of in ["provider:local", "key:local/main", "agent:draft"] {
        half_open(&runtime, of, &backends).await;
        let (admitted, held) = hold(&runtime, "draft", &backends[0], 40).await;
        assert_eq!(admitted, 2, "{of}: 38 found no slot");
        drop(held);
        settle().await;
        backends[0].now(Answer::Good);
        assert_eq!(codes(&runtime, "draft", 5).await, [("OK".to_owned(), 5)].into(), "{of}");
        assert_eq!(state(&runtime, of), StateName::Closed, "{of}");
    }
}

/// Brings one breaker to half-open and everything else to closed.
async fn half_open(runtime: &watertight::runtime::engine::Runtime, of: &str, backends: &[std::sync::Arc<Scripted>]) {
    use watertight::runtime::supervisor::BreakerAct;
    match of {
        "provider:local" => {
            crate::support::all(backends, &crate::support::refused_connection());
            let _ = (call(runtime, "draft").await, call(runtime, "review").await, call(runtime, "draft").await);
        }
        "agent:draft" => {
            backends[0].now(Answer::ending(watertight::model::facts::Ending::BadReply));
            codes(runtime, "draft", 5).await;
        }
        _ => {
            backends[0].now(Answer::status(429));
            codes(runtime, "draft", 10).await;
        }
    }
    assert_eq!(state(runtime, of), StateName::Open, "{of}");
    pass(s(30)).await;
    assert_eq!(state(runtime, of), StateName::HalfOpen, "{of}");
    for other in ["provider:local", "key:local/main", "agent:draft", "agent:review"] {
        if other != of {
            runtime.act(other, BreakerAct::Reset).unwrap();
        }
    }
    settle().await;
}

#[tokio::test(start_paused = true)]
async fn a_flood_at_a_half_open_gate_leaves_the_supervisor_no_backlog() {
    let mut small = agent("draft", "local");
    small.slots = 1;
    let backend = Scripted::always(Answer::status(503));
    let runtime = builder().provider(provider("local")).agent(small, backend.clone()).start().await.unwrap();
    codes(&runtime, "draft", 5).await;
    pass(s(30)).await;
    let (admitted, held) = hold(&runtime, "draft", &backend, 1).await;
    assert_eq!(admitted, 1);
    let handle = runtime.agent("draft").unwrap();
    for _ in 0..10_000 {
        let refused = futures_util::FutureExt::now_or_never(
            handle.call(watertight::runtime::call::CallRequest::of(serde_json::Value::Null)),
        );
        assert_eq!(code(&refused.unwrap()), "AGENT_BULKHEAD_FULL");
    }
    drop(held);
    // One round of the scheduler is enough for the cancel, its outcome and the supervisor: nothing stands before it.
    settle().await;
    assert_eq!(handle.in_flight(), 0);
    backend.now(Answer::Good);
    assert_eq!(codes(&runtime, "draft", 5).await, [("OK".to_owned(), 5)].into());
    assert_eq!(state(&runtime, "agent:draft"), StateName::Closed);
}
