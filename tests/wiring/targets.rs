//! An agent with several targets: who is asked, in which order, for which failures the next one is, and what each part leaves behind.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
};

use proptest::prelude::*;
use watertight::{
    model::facts::{Ending, QuotaReset},
    model::reply::AttemptFailure,
    policy::{
        breaker::state::{Reason, StateName},
        fallback::Rank,
    },
    runtime::{
        call::{CallContext, CallError, CallReply},
        engine::{Part, Runtime},
        settings::{AgentSettings, ProviderSettings, TargetSettings},
        supervisor::BreakerAct,
    },
};

use crate::{
    kit::{Answer, Scripted, agent, builder, call, call_later, code, name, pass, provider, settle},
    support::{Call, call_with, codes, detail, ms, refused_connection, s, state},
};

const FIRST: &str = "agent:draft";
const SECOND: &str = "agent:draft:b/y";

/// Agent `draft` at `a/x` first and at `b/y`, `c/z`, ... after it, each on a provider of its own.
async fn ranked(
    settings: AgentSettings,
    providers: Vec<ProviderSettings>,
    ranks: &[(u32, u32)],
) -> (Runtime, Vec<Arc<Scripted>>) {
    let rank = |at: usize| Rank { order: ranks[at].0, weight: ranks[at].1 };
    let backends: Vec<Arc<Scripted>> = ranks.iter().map(|_| Scripted::always(Answer::Good)).collect();
    let model = |at: usize| ["x", "y", "z", "u"][at].to_owned();
    let further = (1..ranks.len()).map(|at| {
        let target = TargetSettings { provider: providers[at].name.clone(), model: Some(model(at)), rank: rank(at) };
        (target, Arc::clone(&backends[at]) as Arc<_>)
    });
    let settings = AgentSettings { provider: providers[0].name.clone(), model: Some(model(0)), ..settings };
    let mut builder = builder();
    for provider in providers.clone() {
        builder = builder.provider(provider);
    }
    let builder = builder.agent_with_targets(settings, rank(0), backends[0].clone(), further.collect());
    (builder.start().await.unwrap(), backends)
}

fn keyed(of: &str) -> ProviderSettings {
    ProviderSettings { key: Some(name("main")), ..provider(of) }
}

/// Two targets, one after the other.
async fn two(settings: AgentSettings) -> (Runtime, Vec<Arc<Scripted>>) {
    ranked(settings, vec![keyed("a"), keyed("b")], &[(1, 1), (2, 1)]).await
}

fn counts(backends: &[Arc<Scripted>]) -> Vec<usize> {
    backends.iter().map(|backend| backend.count()).collect()
}

/// Who was tried, with which code and status.
fn tries(result: &Result<CallReply, CallError>) -> Vec<(String, String, Option<u16>)> {
    let tries = match result {
        Ok(reply) => &reply.tries,
        Err(error) => &error.tries,
    };
    tries.iter().map(|tried| (tried.target.to_string(), tried.error_code.to_string(), tried.status)).collect()
}

fn open(runtime: &Runtime, breaker: &str) {
    runtime.act(breaker, BreakerAct::ForceOpen).unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_first_answers_and_nobody_else_is_asked() {
    let (runtime, backends) = two(agent("draft", "a")).await;
    let reply = call(&runtime, "draft").await.unwrap();
    assert_eq!((&*reply.target, reply.fallback, reply.tries.len()), ("a/x", None, 0));
    assert_eq!(counts(&backends), [1, 0]);
}

#[tokio::test(start_paused = true)]
async fn the_next_answers_for_a_failure_that_is_counted_where_it_happened() {
    let (runtime, backends) = two(agent("draft", "a")).await;
    backends[0].now(Answer::status(503));
    let result = call(&runtime, "draft").await;
    assert_eq!(tries(&result), [("a/x".into(), "AGENT_ERROR".into(), Some(503))]);
    let reply = result.unwrap();
    assert_eq!((&*reply.target, reply.fallback.as_deref(), reply.attempts.len()), ("b/y", Some("b/y"), 2));
    assert_eq!(counts(&backends), [1, 1]);
    let count = |of: &str| runtime.breaker(of).unwrap().counts;
    assert_eq!((count(FIRST).entries, count(FIRST).failed), (1, 1));
    assert_eq!((count(SECOND).entries, count(SECOND).failed), (1, 0));
    let ids: Vec<String> = backends.iter().map(|backend| backend.requests.lock().unwrap()[0].call_id.clone()).collect();
    assert_eq!(ids[0], ids[1], "one call, one id");
}

#[tokio::test(start_paused = true)]
async fn reasons_of_the_table_reach_the_walk() {
    let spent = || {
        let quota_spent = Some(QuotaReset::In(s(3_600)));
        let ending = Ending::Status {
            status: 429,
            retryable: None,
            content_filter: false,
            context_too_long: false,
            quota_spent,
        };
        Answer::Fail(AttemptFailure::new(ending, "spent"))
    };
    let too_long = Ending::Status {
        status: 400,
        retryable: None,
        content_filter: false,
        context_too_long: true,
        quota_spent: None,
    };
    let after_content = Answer::Content(Box::new(Answer::status(503)));
    for (what, answer, goes_on) in [
        ("network", refused_connection(), true),
        ("timeout", Answer::Hang, true),
        ("bad reply", Answer::ending(Ending::BadReply), true),
        ("5xx", Answer::status(500), true),
        ("429", Answer::status(429), true),
        ("quota", spent(), true),
        ("key rejected", Answer::status(401), true),
        ("warming", Answer::ending(Ending::OwnRefusal), true),
        ("invalid", Answer::status(400), false),
        ("context too long", Answer::ending(too_long), false),
        ("after content", after_content, false),
        ("panic", Answer::Panic, false),
    ] {
        let (runtime, backends) = two(agent("draft", "a")).await;
        backends[0].now(answer);
        assert_eq!(call(&runtime, "draft").await.is_ok(), goes_on, "{what}");
        assert_eq!(counts(&backends), [1, usize::from(goes_on)], "{what}");
        settle().await;
        assert_eq!(runtime.agent("draft").unwrap().in_flight(), 0, "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_target_is_passed_over_and_learns_nothing() {
    for breaker in [FIRST, "key:a/main"] {
        let (runtime, backends) = two(agent("draft", "a")).await;
        open(&runtime, breaker);
        settle().await;
        let result = call(&runtime, "draft").await;
        assert_eq!(tries(&result), [("a/x".into(), "AGENT_CIRCUIT_OPEN".into(), None)]);
        assert_eq!(result.unwrap().fallback.as_deref(), Some("b/y"));
        assert_eq!((counts(&backends), runtime.breaker(FIRST).unwrap().counts.entries), (vec![0, 1], 0));
    }
}

/// B10 at a group: too many requests with one key stay with it, and the other target serves.
#[tokio::test(start_paused = true)]
async fn a_keys_breaker_shuts_its_target_only() {
    let (runtime, backends) = two(agent("draft", "a")).await;
    backends[0].now(Answer::status(429));
    assert_eq!(codes(&runtime, "draft", 20).await, [("OK".to_owned(), 20)].into());
    assert_eq!((state(&runtime, "key:a/main"), state(&runtime, FIRST)), (StateName::Open, StateName::Closed));
    assert_eq!(counts(&backends), [10, 20], "asked until its breaker knew enough");
}

#[tokio::test(start_paused = true)]
async fn a_provider_without_slots_is_passed_over() {
    let small = ProviderSettings { slots: Some(1), ..provider("a") };
    let (runtime, backends) = ranked(agent("draft", "a"), vec![small, provider("b")], &[(1, 1), (2, 1)]).await;
    backends[0].now(Answer::Hang);
    let held = Call(call_later(&runtime, "draft"));
    settle().await;
    let result = call(&runtime, "draft").await;
    assert_eq!(tries(&result), [("a/x".into(), "AGENT_BULKHEAD_FULL".into(), None)]);
    assert!(result.is_ok());
    backends[1].now(Answer::Hang);
    let _more: Vec<Call> = (0..9).map(|_| Call(call_later(&runtime, "draft"))).collect();
    settle().await;
    let full = call(&runtime, "draft").await;
    assert_eq!((code(&full), detail(&full, "compartment")), ("AGENT_BULKHEAD_FULL".into(), FIRST.into()));
    drop(held);
}

/// The agent's only slot goes with the call from target to target.
#[tokio::test(start_paused = true)]
async fn one_slot_is_enough_for_all_targets() {
    let mut settings = agent("draft", "a");
    settings.slots = 1;
    let (runtime, backends) = two(settings).await;
    backends[0].now(Answer::status(500));
    backends[1].now(Answer::Hang);
    let held = Call(call_later(&runtime, "draft"));
    settle().await;
    assert_eq!((counts(&backends), runtime.agent("draft").unwrap().in_flight()), (vec![1, 1], 1));
    assert_eq!(code(&call(&runtime, "draft").await), "AGENT_BULKHEAD_FULL");
    drop(held);
    settle().await;
    assert_eq!(runtime.agent("draft").unwrap().in_flight(), 0);
    assert_eq!(backends[1].running.load(Ordering::SeqCst), 0, "leaving aborts the target that is under way");
}

/// B40: none is left. One refusal with the earliest wait, judged by nobody.
#[tokio::test(start_paused = true)]
async fn when_all_refuse_the_earliest_wait_is_told() {
    let mut settings = agent("draft", "a");
    settings.breaker.consecutive_failures = Some(1);
    settings.breaker.calls_min = 10;
    let (runtime, backends) = two(settings).await;
    backends[0].now(Answer::status(500));
    assert_eq!(code(&call(&runtime, "draft").await), "OK");
    pass(s(10)).await;
    backends[1].now(Answer::status(500));
    assert_eq!(code(&call(&runtime, "draft").await), "AGENT_ERROR");
    assert_eq!((state(&runtime, FIRST), state(&runtime, SECOND)), (StateName::Open, StateName::Open));
    pass(s(13)).await;
    let before = [FIRST, SECOND].map(|of| runtime.breaker(of).unwrap());
    let error = call(&runtime, "draft").await.unwrap_err();
    let envelope = &error.envelope;
    assert_eq!((envelope.http_status, envelope.retry_after), (503, Some(7.0)));
    assert_eq!(envelope.details["tries"].as_array().unwrap().len(), 2);
    assert!(error.nothing_sent && !error.exhausted);
    assert_eq!([FIRST, SECOND].map(|of| runtime.breaker(of).unwrap()), before, "not counted again");
}

/// B41: the first error is kept, each target is asked once, and each makes no more attempts than its own plan.
#[tokio::test(start_paused = true)]
async fn when_all_fail_the_first_error_is_kept_with_all_tries() {
    let mut settings = agent("draft", "a");
    settings.retry.attempts_max = 2;
    let (runtime, backends) = ranked(settings, ["a", "b", "c"].map(provider).into(), &[(1, 1), (2, 1), (3, 1)]).await;
    backends[0].now(Answer::status(500));
    backends[1].now(Answer::status(429));
    backends[2].now(Answer::status(400));
    let result = call(&runtime, "draft").await;
    let want = [("a/x", 500), ("b/y", 429), ("c/z", 400)];
    assert_eq!(tries(&result), want.map(|(target, status)| (target.into(), "AGENT_ERROR".into(), Some(status))));
    let error = result.unwrap_err();
    assert_eq!((error.envelope.http_status, error.target.as_deref()), (500, Some("a/x")));
    assert_eq!((&error.envelope.details["attempts"], error.attempts.len()), (&5.into(), 5));
    assert_eq!(error.envelope.details["tries"][1]["status"], 429);
    assert_eq!(counts(&backends), [2, 2, 1]);
    assert!(!error.nothing_sent);
}

#[tokio::test(start_paused = true)]
async fn retries_of_all_targets_come_out_of_one_budget() {
    let mut settings = agent("draft", "a");
    (settings.retry.attempts_max, settings.retry.budget_min, settings.retry.budget_share) = (3, 2, 0.0);
    let (runtime, backends) = two(settings).await;
    backends.iter().for_each(|backend| backend.now(Answer::status(500)));
    let _ = call(&runtime, "draft").await;
    assert_eq!(counts(&backends), [3, 1], "two retries in all");
}

/// A target that only got the rest of the time is not blamed for it.
#[tokio::test(start_paused = true)]
async fn one_call_timeout_holds_over_all_targets() {
    let mut settings = agent("draft", "a");
    (settings.timeouts.attempt, settings.timeouts.call) = (Some(s(60)), s(90));
    let (runtime, backends) = two(settings).await;
    backends.iter().for_each(|backend| backend.now(Answer::Hang));
    let began = tokio::time::Instant::now();
    let result = call(&runtime, "draft").await;
    assert_eq!((code(&result), began.elapsed()), ("AGENT_TIMEOUT".into(), s(90)));
    let failed = |of: &str| runtime.breaker(of).unwrap().counts.failed;
    assert_eq!((failed(FIRST), failed(SECOND)), (1, 0));
    let deadline = Some(runtime.clock().now().after(s(30)));
    let began = tokio::time::Instant::now();
    let result = call_with(&runtime, "draft", CallContext { deadline, ..CallContext::default() }).await;
    assert_eq!((code(&result), began.elapsed()), ("DEADLINE_EXCEEDED".into(), s(30)));
    assert_eq!(counts(&backends), [2, 1], "whoever has no time left asks nobody else");
}

#[tokio::test(start_paused = true)]
async fn equals_share_by_weight() {
    let settings = agent("draft", "a");
    let providers = ["a", "b", "c"].map(provider).into();
    let (runtime, backends) = ranked(settings, providers, &[(1, 3), (1, 1), (2, 9)]).await;
    for _ in 0..400 {
        assert_eq!(code(&call(&runtime, "draft").await), "OK");
    }
    let counts = counts(&backends);
    assert!((270..=330).contains(&counts[0]) && counts[2] == 0, "{counts:?}");
    assert_eq!(counts[0] + counts[1], 400);
}

#[tokio::test(start_paused = true)]
async fn shared_slots_are_never_exceeded() {
    let mut settings = agent("draft", "a");
    settings.slots = 3;
    let (runtime, backends) = ranked(settings, vec![provider("a"), provider("b")], &[(1, 1), (1, 1)]).await;
    backends[0].now(Answer::status(400).after(ms(50)));
    backends[1].now(Answer::Good.after(ms(70)));
    let handle = runtime.agent("draft").unwrap();
    let calls: Vec<_> = (0..40).map(|_| call_later(&runtime, "draft")).collect();
    settle().await;
    assert_eq!((handle.in_flight(), handle.mailbox_depth()), (3, 0));
    let running = || backends.iter().map(|backend| backend.running.load(Ordering::SeqCst)).sum::<u32>();
    for _ in 0..20 {
        assert!(running() <= 3 && handle.in_flight() <= 3);
        pass(ms(10)).await;
    }
    let mut ends: BTreeMap<String, usize> = BTreeMap::new();
    for call in calls {
        *ends.entry(code(&call.await.unwrap())).or_default() += 1;
    }
    assert_eq!(ends["AGENT_BULKHEAD_FULL"], 37);
    assert_eq!(handle.in_flight(), 0);
}

/// A trial of the first target that its provider's slots refuse goes back, and the next target answers.
#[tokio::test(start_paused = true)]
async fn trials_come_back_when_another_layer_refuses() {
    let small = ProviderSettings { slots: Some(1), ..keyed("a") };
    let mut settings = agent("draft", "a");
    (settings.breaker.trials, settings.breaker.consecutive_failures) = (2, Some(1));
    settings.timeouts.attempt = Some(s(100));
    let (runtime, backends) = ranked(settings, vec![small, keyed("b")], &[(1, 1), (2, 1)]).await;
    backends[0].now(Answer::status(500));
    assert_eq!(code(&call(&runtime, "draft").await), "OK");
    assert_eq!(state(&runtime, FIRST), StateName::Open);
    pass(s(31)).await;
    assert_eq!(state(&runtime, FIRST), StateName::HalfOpen);
    // One trial takes the provider's one slot; the other one finds none, again and again.
    backends[0].now(Answer::Hang);
    let held = Call(call_later(&runtime, "draft"));
    settle().await;
    assert_eq!(counts(&backends), [2, 1]);
    for _ in 0..5 {
        let result = call(&runtime, "draft").await;
        assert_eq!(tries(&result), [("a/x".into(), "AGENT_BULKHEAD_FULL".into(), None)]);
    }
    assert_eq!(counts(&backends), [2, 6]);
    drop(held);
    settle().await;
    backends[0].now(Answer::Good);
    assert_eq!(call(&runtime, "draft").await.unwrap().fallback, None);
}

#[tokio::test(start_paused = true)]
async fn an_actor_that_dies_with_the_call_queued_sends_it_on() {
    let (runtime, backends) = two(agent("draft", "a")).await;
    runtime.crash(Part::Agent("draft")).unwrap();
    let reply =
        runtime.agent("draft").unwrap().call(watertight::runtime::call::CallRequest::of(serde_json::Value::Null)).await;
    assert_eq!(code(&reply), "OK");
    assert_eq!(counts(&backends).iter().sum::<usize>(), 1);
}

#[tokio::test(start_paused = true)]
async fn all_targets_can_be_looked_at() {
    let (runtime, _) = two(agent("draft", "a")).await;
    open(&runtime, SECOND);
    settle().await;
    let views = runtime.agents();
    assert_eq!(views.len(), 1);
    let targets: Vec<_> = views[0].targets.iter().map(|view| (&*view.target, view.breaker.state)).collect();
    assert_eq!(targets, [("a/x", StateName::Closed), ("b/y", StateName::ForcedOpen)]);
    assert_eq!(runtime.breaker(SECOND).unwrap().state, StateName::ForcedOpen);
}

/// B40, a group of one: one 429 shuts nothing, 25 x 500 open the breaker.
#[tokio::test(start_paused = true)]
async fn a_group_of_one_is_as_ever() {
    let backend = Scripted::always(Answer::status(429));
    let runtime = crate::kit::one_agent(agent("draft", "local"), backend.clone()).await;
    let mut events = runtime.breaker_events();
    assert_eq!(code(&call(&runtime, "draft").await), "AGENT_ERROR");
    assert_eq!(state(&runtime, FIRST), StateName::Closed);
    backend.now(Answer::status(500));
    codes(&runtime, "draft", 25).await;
    assert_eq!(crate::support::changes(&mut events), [(FIRST.to_owned(), StateName::Open, Reason::Consecutive)]);
    let error = call(&runtime, "draft").await.unwrap_err();
    assert!(error.tries.is_empty() && !error.envelope.details.contains_key("tries"));
}

#[tokio::test(start_paused = true)]
async fn a_sick_target_is_passed_over_and_the_first_comes_back() {
    let (runtime, backends) = two(agent("draft", "a")).await;
    backends[0].now(refused_connection());
    for _ in 0..5 {
        assert_eq!(call(&runtime, "draft").await.unwrap().fallback.as_deref(), Some("b/y"));
    }
    assert_eq!((state(&runtime, FIRST), state(&runtime, SECOND)), (StateName::Open, StateName::Closed));
    let reply = call(&runtime, "draft").await.unwrap();
    assert_eq!((counts(&backends), reply.attempts.len()), (vec![5, 6], 1), "an open gate costs no attempt");
    backends[0].now(Answer::Good);
    pass(s(31)).await;
    for _ in 0..5 {
        assert_eq!(call(&runtime, "draft").await.unwrap().fallback, None);
    }
    assert_eq!(state(&runtime, FIRST), StateName::Closed);
}

fn any_answer() -> impl Strategy<Value = u8> {
    0_u8..10
}

fn answer_of(kind: u8) -> Answer {
    match kind {
        0 => Answer::status(500),
        1 => Answer::status(429),
        2 => Answer::status(400),
        3 => refused_connection(),
        4 => Answer::ending(Ending::BadReply),
        5 => Answer::Content(Box::new(Answer::status(502))),
        6 => Answer::Hang,
        7 => Answer::Panic,
        _ => Answer::Good.after(ms(5)),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever targets do and whenever callers leave: one series of attempts a target and call, and every count comes back to zero.
    #[test]
    fn each_target_at_most_once_and_nothing_is_kept(
        kinds in prop::collection::vec(any_answer(), 3..=3),
        orders in prop::collection::vec(1_u32..3, 3..=3),
        leave in prop::option::of(0_u64..120_000),
        slots in 1_u32..4,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let mut settings = agent("draft", "a");
            settings.slots = slots;
            let providers = ["a", "b", "c"].map(|of| ProviderSettings { slots: Some(2), ..keyed(of) }).into();
            let ranks: Vec<(u32, u32)> = orders.iter().map(|order| (*order, 1)).collect();
            let (runtime, backends) = ranked(settings, providers, &ranks).await;
            for (backend, kind) in backends.iter().zip(&kinds) {
                backend.now(answer_of(*kind));
            }
            let calls: Vec<_> = (0..4).map(|_| call_later(&runtime, "draft")).collect();
            settle().await;
            let handle = runtime.agent("draft").unwrap();
            assert!(handle.in_flight() <= slots);
            if let Some(leave) = leave {
                pass(ms(leave)).await;
                calls.iter().for_each(tokio::task::JoinHandle::abort);
            }
            for call in calls {
                if let Ok(Err(error)) = call.await {
                    let targets: std::collections::HashSet<_> = error.tries.iter().map(|tried| &tried.target).collect();
                    assert_eq!(targets.len(), error.tries.len());
                }
            }
            pass(s(300)).await;
            for backend in &backends {
                let mut asked: BTreeMap<String, usize> = BTreeMap::new();
                for request in backend.requests.lock().unwrap().iter() {
                    *asked.entry(request.call_id.clone()).or_default() += 1;
                }
                assert!(asked.values().all(|times| *times == 1), "{asked:?}");
                assert_eq!(backend.running.load(Ordering::SeqCst), 0);
            }
            assert_eq!((handle.in_flight(), handle.mailbox_depth()), (0, 0));
            // Every slot of every provider is there again.
            for breaker in [FIRST, SECOND, "agent:draft:c/z", "key:a/main", "key:b/main", "key:c/main"] {
                runtime.act(breaker, BreakerAct::Reset).unwrap();
            }
            settle().await;
            backends.iter().for_each(|backend| backend.now(Answer::Hang));
            let before: Vec<usize> = backends.iter().map(|backend| backend.count()).collect();
            let held: Vec<Call> = (0..4).map(|_| Call(call_later(&runtime, "draft"))).collect();
            settle().await;
            let asked: usize = backends.iter().zip(before).map(|(backend, before)| backend.count() - before).sum();
            assert_eq!(asked, slots.min(4) as usize);
            drop(held);
        });
    }
}
