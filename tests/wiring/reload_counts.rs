//! What a reload keeps beside breakers and slots: requests that passed, calls of the hour, tokens of the minute, what an adaptive limit has
//! learnt; and that its other settings act at once, or, where one of them cannot be, not at all.

use std::sync::Arc;

use serde_json::json;
use watertight::{
    policy::{
        adaptive::{limit::Reason, settings::AdaptiveSettings},
        bulkhead::KeptFrom,
        compartment::settings::{
            CompartmentSettings, FeatureSettings, KeptShare, Rates, TenantSettings, TierSettings, UnknownTenant,
        },
        crowd::CallerScope,
        ladder::{Rung, RungRule},
        tokens::draw::AccountId,
        volume::VolumeSettings,
    },
    runtime::{
        adaptive::LimitEvent,
        builder::StartError,
        call::CallContext,
        callers::CallerSettings,
        engine::Runtime,
        ladders::{LadderSettings, Ladders},
        parts::Parts,
        settings::ProviderSettings,
    },
};

use crate::{
    kit::{Answer, Scripted, agent, builder, call, call_later, code, name, pass, provider, settle},
    support::{call_with, detail, hold, s},
};

const OK: &str = "OK";

/// An agent `draft` on a provider `local` of these settings.
fn on(local: ProviderSettings, backend: &Arc<Scripted>) -> Parts {
    Parts::new().provider(local).agent(agent("draft", "local"), backend.clone())
}

async fn started(parts: Parts) -> Runtime {
    builder().parts(parts).start().await.unwrap()
}

/// How many of `calls` calls pass, one after the other; the others are refused with `refusal`.
async fn passing(runtime: &Runtime, context: &CallContext, calls: usize, refusal: &str) -> usize {
    let mut passed = 0;
    for _ in 0..calls {
        match code(&call_with(runtime, "draft", context.clone()).await).as_str() {
            OK => passed += 1,
            other => assert_eq!(other, refusal),
        }
    }
    passed
}

fn per_minute(requests: Option<u32>) -> Rates {
    Rates { requests_per_minute: requests, ..Rates::default() }
}

#[tokio::test(start_paused = true)]
async fn requests_of_a_provider_stay_counted_under_another_limit() {
    let backend = Scripted::always(Answer::Good);
    let limited = |requests| on(ProviderSettings { rates: per_minute(requests), ..provider("local") }, &backend);
    let runtime = started(limited(Some(10))).await;
    let local = CallContext::default();
    assert_eq!(passing(&runtime, &local, 8, "RATE_LIMITED").await, 8);
    // As often as it is reloaded: 8 are used, then 20, then as many as there are.
    for (limit, passed) in [(10, 2), (10, 0), (20, 10), (5, 0), (10, 5), (20, 10)] {
        runtime.reload(limited(Some(limit))).await.unwrap();
        assert_eq!(passing(&runtime, &local, 15, "RATE_LIMITED").await, passed, "{limit}");
    }
    // The provider goes and comes: it is the same one.
    let elsewhere = Parts::new().provider(provider("other")).agent(agent("draft", "other"), backend.clone());
    runtime.reload(elsewhere).await.unwrap();
    assert_eq!(passing(&runtime, &local, 15, "RATE_LIMITED").await, 15);
    runtime.reload(limited(Some(20))).await.unwrap();
    assert_eq!(passing(&runtime, &local, 1, "RATE_LIMITED").await, 0);
    runtime.reload(limited(None)).await.unwrap();
    assert_eq!(passing(&runtime, &local, 50, "RATE_LIMITED").await, 50, "no limit any more");
    runtime.reload(limited(None)).await.unwrap();
    runtime.reload(limited(Some(20))).await.unwrap();
    assert_eq!(passing(&runtime, &local, 5, "RATE_LIMITED").await, 0, "what was used under the one before still is");
}

#[tokio::test(start_paused = true)]
async fn requests_of_features_and_tenants_stay_counted_under_another_limit() {
    let backend = Scripted::always(Answer::Good);
    let limited = |feature, tier| {
        let chat = FeatureSettings { rates: per_minute(feature), ..FeatureSettings::new(name("chat")) };
        let tier = TierSettings { rates: per_minute(tier), ..TierSettings::new(name("free")) };
        let acme = TenantSettings { name: name("acme"), tier: name("free") };
        on(provider("local"), &backend).compartments(CompartmentSettings {
            features: vec![chat],
            tiers: vec![tier],
            tenants: vec![acme],
            unknown_tenant: UnknownTenant::Shared(name("free")),
            ..CompartmentSettings::default()
        })
    };
    let by = |tenant: &str| CallContext {
        feature: Some("chat".to_owned()),
        tenant: Some(tenant.to_owned()),
        ..CallContext::default()
    };
    let runtime = started(limited(Some(20), Some(6))).await;
    assert_eq!(passing(&runtime, &by("acme"), 4, "RATE_LIMITED").await, 4);
    runtime.reload(limited(Some(20), Some(5))).await.unwrap();
    assert_eq!(passing(&runtime, &by("acme"), 9, "RATE_LIMITED").await, 1, "4 of its 5 were used");
    assert_eq!(passing(&runtime, &by("else"), 9, "RATE_LIMITED").await, 5, "others have their own");
    runtime.reload(limited(Some(12), Some(50))).await.unwrap();
    assert_eq!(passing(&runtime, &by("acme"), 9, "RATE_LIMITED").await, 2, "10 of the feature's 12 were used");
    runtime.reload(limited(Some(12), Some(50))).await.unwrap();
    let refused = call_with(&runtime, "draft", by("acme")).await;
    assert_eq!((code(&refused), detail(&refused, "limit")), ("RATE_LIMITED".into(), "feature:chat".into()));
    // The feature's limit goes, then the feature, the tier's goes too; all of it comes back within the minute.
    for (feature, tier) in [(None, Some(50)), (None, None), (Some(12), Some(5))] {
        runtime.reload(on(provider("local"), &backend)).await.unwrap();
        runtime.reload(limited(feature, tier)).await.unwrap();
    }
    assert_eq!(passing(&runtime, &by("acme"), 3, "RATE_LIMITED").await, 0);
    pass(s(60)).await;
    assert_eq!(passing(&runtime, &by("acme"), 9, "RATE_LIMITED").await, 5);
}

#[tokio::test(start_paused = true)]
async fn the_hour_of_a_caller_goes_on_under_another_volume_guard() {
    let backend = Scripted::always(Answer::Good);
    let guarded = |calls_per_hour: Option<u32>| {
        let volume = calls_per_hour.map(VolumeSettings::of_calls);
        on(provider("local"), &backend).callers(CallerSettings { volume, scope: CallerScope::Caller })
    };
    let acme = CallContext { tenant: Some("acme".to_owned()), ..CallContext::default() };
    let runtime = started(guarded(Some(10))).await;
    assert_eq!(passing(&runtime, &acme, 6, "CALL_VOLUME_EXCEEDED").await, 6);
    runtime.reload(guarded(Some(7))).await.unwrap();
    assert_eq!(passing(&runtime, &acme, 3, "CALL_VOLUME_EXCEEDED").await, 1, "6 of its 7 were used");
    let shut = runtime.callers()[0].volume.shut.unwrap();
    pass(s(60)).await;
    runtime.reload(guarded(Some(1_000))).await.unwrap();
    assert_eq!(passing(&runtime, &acme, 3, "CALL_VOLUME_EXCEEDED").await, 0, "who is shut stays so for its half hour");
    // Also where the guard goes and comes back meanwhile.
    runtime.reload(guarded(None)).await.unwrap();
    assert_eq!(passing(&runtime, &acme, 3, "CALL_VOLUME_EXCEEDED").await, 3);
    runtime.reload(guarded(Some(1_000))).await.unwrap();
    assert_eq!(passing(&runtime, &acme, 3, "CALL_VOLUME_EXCEEDED").await, 0);
    assert_eq!(runtime.callers()[0].volume.shut.unwrap().0, shut.0);
    assert!(runtime.lift_caller("tenant:acme").unwrap());
    assert_eq!(passing(&runtime, &acme, 3, "CALL_VOLUME_EXCEEDED").await, 3);
    runtime.reload(guarded(None)).await.unwrap();
    assert_eq!(passing(&runtime, &acme, 2_000, "CALL_VOLUME_EXCEEDED").await, 2_000);
}

#[tokio::test(start_paused = true)]
async fn tokens_of_the_minute_stay_in_a_budget_of_another_size() {
    let backend = Scripted::always(Answer::Good);
    let budgeted = |tokens| {
        let rates = Rates { tokens_per_minute: Some(tokens), ..Rates::default() };
        on(ProviderSettings { rates, ..provider("local") }, &backend)
    };
    let runtime = started(budgeted(100_000)).await;
    assert_eq!(code(&call(&runtime, "draft").await), OK);
    let account = AccountId::Provider(name("local"));
    let used = runtime.token_budget(&account).unwrap().used;
    assert!(used > 0);
    runtime.reload(budgeted(used)).await.unwrap();
    let shown = runtime.token_budget(&account).unwrap();
    assert_eq!((shown.limit, shown.used), (used, used));
    assert_eq!(code(&call(&runtime, "draft").await), "TOKEN_BUDGET_EXHAUSTED");
    pass(s(60)).await;
    runtime.reload(budgeted(100_000)).await.unwrap();
    assert_eq!((runtime.token_budget(&account).unwrap().used, code(&call(&runtime, "draft").await)), (0, OK.into()));
    // The budget goes, then the provider with it, while calls hold some of it; within the minute it is what it was.
    let (_, held) = hold(&runtime, "draft", &backend, 2).await;
    let before = runtime.token_budget(&account).unwrap();
    assert!(before.reserved > 0 && before.used > before.reserved);
    runtime.reload(on(provider("local"), &backend)).await.unwrap();
    assert_eq!(runtime.token_budget(&account), None);
    let elsewhere = Parts::new().provider(provider("other")).agent(agent("draft", "other"), backend.clone());
    runtime.reload(elsewhere).await.unwrap();
    pass(s(10)).await;
    runtime.reload(budgeted(before.used)).await.unwrap();
    let after = runtime.token_budget(&account).unwrap();
    assert_eq!((after.limit, after.used, after.reserved), (before.used, before.used, before.reserved));
    backend.now(Answer::Good);
    assert_eq!(code(&call(&runtime, "draft").await), "TOKEN_BUDGET_EXHAUSTED");
    drop(held);
    settle().await;
    assert_eq!(runtime.token_budget(&account).unwrap().reserved, 0);
    // What is gone for longer than its minute begins anew.
    runtime.reload(on(provider("local"), &backend)).await.unwrap();
    pass(s(60)).await;
    runtime.reload(budgeted(100_000)).await.unwrap();
    assert_eq!(runtime.token_budget(&account).unwrap().used, 0);
}

fn adaptive(min: u32, max: u32) -> ProviderSettings {
    let settings = AdaptiveSettings { start: 4.clamp(min, max), min, max, ..AdaptiveSettings::default() };
    ProviderSettings { adaptive: Some(settings), ..provider("local") }
}

/// How many calls are let in at once.
async fn room(runtime: &Runtime, backend: &Scripted) -> usize {
    let (admitted, held) = hold(runtime, "draft", backend, 10).await;
    drop(held);
    settle().await;
    admitted
}

#[tokio::test(start_paused = true)]
async fn an_adaptive_limit_keeps_what_it_has_learnt() {
    let backend = Scripted::always(Answer::Good);
    let runtime = started(on(adaptive(1, 8), &backend)).await;
    let mut events = runtime.limit_events();
    let mut said = || -> Vec<_> {
        let of = |event: LimitEvent| (event.change.from, event.change.to, event.change.reason);
        std::iter::from_fn(|| events.try_recv().ok()).map(of).collect()
    };
    backend.now(Answer::status(429).after(s(1)));
    let busy = call_later(&runtime, "draft");
    pass(s(2)).await;
    assert_eq!(code(&busy.await.unwrap()), "AGENT_ERROR");
    assert_eq!(said(), [(4, 3, Reason::Busy)]);
    // Not touched: it stays, and nobody is told anything.
    runtime.reload(on(adaptive(1, 8), &backend)).await.unwrap();
    assert_eq!((room(&runtime, &backend).await, said()), (3, Vec::new()));
    // Two of the three good answers that one more takes come before a reload, the third after it.
    pass(s(10)).await;
    backend.now(Answer::Good.after(s(1)));
    let mut calls = vec![call_later(&runtime, "draft"), call_later(&runtime, "draft")];
    settle().await;
    backend.now(Answer::Good.after(s(2)));
    calls.push(call_later(&runtime, "draft"));
    pass(s(1)).await;
    runtime.reload(on(adaptive(1, 8), &backend)).await.unwrap();
    assert!(said().is_empty());
    pass(s(1)).await;
    for call in calls {
        assert_eq!(code(&call.await.unwrap()), OK);
    }
    assert_eq!(said(), [(3, 4, Reason::FullUse)]);
    // Other bounds: as little as they ask for.
    for (min, max, change) in [(1, 4, None), (1, 2, Some((4, 2))), (1, 8, None), (5, 8, Some((2, 5)))] {
        runtime.reload(on(adaptive(min, max), &backend)).await.unwrap();
        let want: Vec<_> = change.into_iter().map(|(from, to)| (from, to, Reason::Reload)).collect();
        assert_eq!(said(), want, "{min} to {max}");
    }
    assert_eq!(room(&runtime, &backend).await, 5);
    // A fixed number instead, and back.
    runtime.reload(on(ProviderSettings { slots: Some(7), ..provider("local") }, &backend)).await.unwrap();
    assert_eq!(room(&runtime, &backend).await, 7);
    runtime.reload(on(adaptive(1, 8), &backend)).await.unwrap();
    assert_eq!(room(&runtime, &backend).await, 4, "it begins where it is told to");
}

/// A share that a reload gives to a class holds for every limit after it.
#[tokio::test(start_paused = true)]
async fn what_classes_keep_follows_an_adaptive_limit_after_a_reload() {
    const CRITICAL: usize = 0;
    let backend = Scripted::always(Answer::Good);
    let runtime = started(on(adaptive(1, 8), &backend)).await;
    let mut settings = CompartmentSettings::default();
    settings.classes.kept[CRITICAL] = KeptShare { share: 0.5, kept_from: KeptFrom::All };
    runtime.reload(on(adaptive(1, 8), &backend).compartments(settings)).await.unwrap();
    assert_eq!(room(&runtime, &backend).await, 2, "half of 4 is kept");
    pass(s(10)).await;
    backend.now(Answer::status(429).after(s(1)));
    let busy = call_later(&runtime, "draft");
    pass(s(2)).await;
    assert_eq!(code(&busy.await.unwrap()), "AGENT_ERROR");
    assert_eq!(room(&runtime, &backend).await, 2, "1 of 3 is kept");
}

#[tokio::test(start_paused = true)]
async fn a_ladder_acts_at_once_and_one_that_cannot_be_changes_nothing() {
    let backend = Scripted::always(Answer::status(500));
    let laddered = |rungs: &[Rung]| {
        let rungs = rungs.iter().copied().map(RungRule::of).collect();
        let default = Some(Arc::new(json!("stated")));
        let ladder = LadderSettings { rungs, default, ..LadderSettings::default() };
        Ladders { agents: [(name("draft"), ladder)].into(), ..Ladders::default() }
    };
    let runtime = started(on(provider("local"), &backend)).await;
    assert_eq!(code(&call(&runtime, "draft").await), "AGENT_ERROR");
    runtime.reload(on(provider("local"), &backend).ladders(laddered(&[Rung::Default]))).await.unwrap();
    assert_eq!(call(&runtime, "draft").await.unwrap().output, json!("stated"));
    // There is no journal to keep calls in.
    let rates = per_minute(Some(1));
    let bad = on(ProviderSettings { rates, ..provider("local") }, &backend).ladders(laddered(&[Rung::Deferred]));
    assert_eq!(runtime.reload(bad).await.unwrap_err(), StartError::NoQueue);
    for _ in 0..3 {
        assert_eq!(call(&runtime, "draft").await.unwrap().output, json!("stated"), "and no limit of requests");
    }
}
