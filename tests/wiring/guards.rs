//! Requests a minute and the volume guard in front of agents: who is refused, what a refusal costs, and that nothing refused further in
//! counts anywhere.

use watertight::{
    policy::{
        breaker::state::StateName,
        compartment::settings::{
            CompartmentSettings, FeatureSettings, Rates, TenantSettings, TierSettings, UnknownTenant,
        },
        crowd::CallerScope,
        volume::VolumeSettings,
    },
    runtime::{
        call::{CallContext, CallError, CallReply},
        callers::CallerSettings,
        engine::Runtime,
        settings::ProviderSettings,
    },
};

use crate::{
    kit::{Answer, Scripted, agent, builder, call, code, name, pass, provider, settle},
    support::{agents_on, call_with, codes, detail, hold, ms, s, state},
};

type Result = std::result::Result<CallReply, CallError>;

fn by(key: Option<&str>, tenant: Option<&str>) -> CallContext {
    CallContext { key_id: key.map(str::to_owned), tenant: tenant.map(str::to_owned), ..CallContext::default() }
}

fn guard(calls_per_hour: u32, scope: CallerScope) -> CallerSettings {
    CallerSettings { volume: Some(VolumeSettings::of_calls(calls_per_hour)), scope }
}

fn limited(requests_per_minute: u32) -> ProviderSettings {
    let rates = Rates { requests_per_minute: Some(requests_per_minute), ..Rates::default() };
    ProviderSettings { rates, ..provider("local") }
}

fn retry_after(result: &Result) -> f64 {
    result.as_ref().unwrap_err().envelope.retry_after.unwrap()
}

async fn guarded(callers: CallerSettings, slots: u32) -> (Runtime, std::sync::Arc<Scripted>) {
    let backend = Scripted::always(Answer::Good);
    let mut draft = agent("draft", "local");
    draft.slots = slots;
    let builder = builder().callers(callers).provider(provider("local")).agent(draft, backend.clone());
    (builder.start().await.unwrap(), backend)
}

#[tokio::test(start_paused = true)]
async fn a_loop_that_never_fails_is_stopped_and_nobody_else_feels_it() {
    let (runtime, backend) = guarded(guard(1_000, CallerScope::Caller), 10).await;
    let script = by(Some("nightly-script"), Some("acme"));
    for index in 0..1_500 {
        let result = call_with(&runtime, "draft", script.clone()).await;
        assert_eq!(code(&result), if index < 1_000 { "OK" } else { "CALL_VOLUME_EXCEEDED" }, "{index}");
        pass(ms(400)).await;
    }
    assert_eq!(backend.count(), 1_000);
    assert_eq!(code(&call_with(&runtime, "draft", by(Some("other"), Some("acme"))).await), "OK");
    assert_eq!(code(&call(&runtime, "draft").await), "OK");
    assert_eq!(state(&runtime, "agent:draft"), StateName::Closed, "the guard is a switch of its own");
    // 1,500 calls took ten minutes: neither half an hour of rest nor good answers of others open it before the hour is under its limit.
    pass(s(40 * 60)).await;
    let refused = call_with(&runtime, "draft", script.clone()).await;
    assert_eq!(code(&refused), "CALL_VOLUME_EXCEEDED");
    assert!((590.0..=602.0).contains(&retry_after(&refused)), "{}", retry_after(&refused));
    pass(s(602)).await;
    assert_eq!(code(&call_with(&runtime, "draft", script).await), "OK");
}

#[tokio::test(start_paused = true)]
async fn who_is_counted_together() {
    for (scope, same_tenant) in [(CallerScope::Caller, "OK"), (CallerScope::Tenant, "CALL_VOLUME_EXCEEDED")] {
        let (runtime, _) = guarded(guard(2, scope), 10).await;
        for _ in 0..2 {
            assert_eq!(code(&call_with(&runtime, "draft", by(Some("a"), Some("acme"))).await), "OK");
        }
        assert_eq!(code(&call_with(&runtime, "draft", by(Some("a"), Some("acme"))).await), "CALL_VOLUME_EXCEEDED");
        assert_eq!(code(&call_with(&runtime, "draft", by(Some("b"), Some("acme"))).await), same_tenant);
        assert_eq!(code(&call_with(&runtime, "draft", by(Some("c"), Some("brick"))).await), "OK");
        assert_eq!(code(&call_with(&runtime, "draft", by(None, None)).await), "OK");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_refused_further_in_counts_in_no_guard() {
    let (runtime, backend) = guarded(guard(3, CallerScope::Caller), 1).await;
    let (_, held) = hold(&runtime, "draft", &backend, 1).await;
    assert_eq!(codes(&runtime, "draft", 50).await, [("AGENT_BULKHEAD_FULL".to_owned(), 50)].into());
    let callers = runtime.callers();
    assert_eq!((callers.len(), callers[0].name.as_str(), callers[0].volume.admitted), (1, "local", 1));
    drop(held);
    settle().await;
    backend.now(Answer::Good);
    assert_eq!(
        codes(&runtime, "draft", 4).await,
        [("CALL_VOLUME_EXCEEDED".to_owned(), 2), ("OK".to_owned(), 2)].into()
    );
    assert!(runtime.lift_caller("local").unwrap());
    assert!(runtime.lift_caller("key:nobody").is_err());
    assert_eq!(code(&call(&runtime, "draft").await), "OK");
}

#[tokio::test(start_paused = true)]
async fn a_provider_gets_so_many_requests_a_minute() {
    let local = limited(2);
    let (runtime, backends) = agents_on(local, vec![agent("draft", "local"), agent("review", "local")]).await;
    assert_eq!(code(&call(&runtime, "draft").await), "OK");
    assert_eq!(code(&call(&runtime, "review").await), "OK");
    for _ in 0..30 {
        let refused = call(&runtime, "draft").await;
        assert_eq!(
            (code(&refused), detail(&refused, "limit")),
            ("RATE_LIMITED".to_owned(), "provider:local".to_owned())
        );
        assert!((30.0..=37.5).contains(&retry_after(&refused)), "{}", retry_after(&refused));
    }
    let waits: std::collections::BTreeSet<u64> =
        futures_util::future::join_all((0..8).map(|_| call(&runtime, "draft")))
            .await
            .iter()
            .map(|refused| retry_after(refused).to_bits())
            .collect();
    assert!(waits.len() > 4, "they do not all come back at once");
    assert_eq!((backends[0].count(), backends[1].count()), (1, 1));
    assert_eq!(state(&runtime, "agent:draft"), StateName::Closed);
    pass(s(30)).await;
    assert_eq!(codes(&runtime, "review", 2).await, [("OK".to_owned(), 1), ("RATE_LIMITED".to_owned(), 1)].into());
}

#[tokio::test(start_paused = true)]
async fn a_request_that_no_slot_was_free_for_is_given_back() {
    let local = limited(3);
    let mut draft = agent("draft", "local");
    draft.slots = 1;
    let (runtime, backends) = agents_on(local, vec![draft]).await;
    let (_, held) = hold(&runtime, "draft", &backends[0], 1).await;
    assert_eq!(codes(&runtime, "draft", 40).await, [("AGENT_BULKHEAD_FULL".to_owned(), 40)].into());
    drop(held);
    settle().await;
    backends[0].now(Answer::Good);
    assert_eq!(codes(&runtime, "draft", 3).await, [("OK".to_owned(), 2), ("RATE_LIMITED".to_owned(), 1)].into());
}

fn compartments() -> CompartmentSettings {
    let mut free = TierSettings::new(name("free"));
    free.rates.requests_per_minute = Some(2);
    let mut chat = FeatureSettings::new(name("chat"));
    chat.rates.requests_per_minute = Some(5);
    CompartmentSettings {
        features: vec![chat, FeatureSettings::new(name("batch"))],
        tiers: vec![free, TierSettings::new(name("paid"))],
        tenants: vec![
            TenantSettings { name: name("acme"), tier: name("free") },
            TenantSettings { name: name("other-free"), tier: name("free") },
            TenantSettings { name: name("brick"), tier: name("paid") },
        ],
        unknown_tenant: UnknownTenant::Shared(name("free")),
        ..CompartmentSettings::default()
    }
}

#[tokio::test(start_paused = true)]
async fn callers_by_their_tier_and_features_as_a_whole() {
    let backend = Scripted::always(Answer::Good);
    let runtime = builder()
        .compartments(compartments())
        .provider(provider("local"))
        .agent(agent("draft", "local"), backend.clone())
        .start()
        .await
        .unwrap();
    let ask = async |key: Option<&str>, tenant: &str, feature: &str| {
        let context = CallContext { feature: Some(feature.to_owned()), ..by(key, Some(tenant)) };
        let result = call_with(&runtime, "draft", context).await;
        if result.is_err() { detail(&result, "limit") } else { "OK".to_owned() }
    };
    // Each tenant of the tier has two, whichever keys it comes with; a key that acts for another one takes nothing from it.
    for (key, want) in [("a", "OK"), ("b", "OK"), ("a", "caller"), ("b", "caller")] {
        assert_eq!(ask(Some(key), "acme", "batch").await, want, "{key}");
    }
    for (key, want) in [("a", "OK"), ("a", "OK"), ("b", "caller")] {
        assert_eq!(ask(Some(key), "other-free", "batch").await, want, "{key}");
    }
    // Those who are not known share theirs.
    for (tenant, want) in [("x", "OK"), ("y", "OK"), ("z", "caller")] {
        assert_eq!(ask(None, tenant, "batch").await, want, "{tenant}");
    }
    // A tier without a limit has none; the feature as a whole has.
    for want in ["OK", "OK", "OK", "OK", "OK", "feature:chat"] {
        assert_eq!(ask(None, "brick", "chat").await, want);
    }
    assert_eq!(ask(None, "brick", "batch").await, "OK");
    // The caller's request was given back when its feature's was refused.
    pass(s(60)).await;
    for _ in 0..5 {
        assert_eq!(ask(None, "brick", "chat").await, "OK");
    }
    for _ in 0..10 {
        assert_eq!(ask(Some("c"), "acme", "chat").await, "feature:chat");
    }
    assert_eq!(ask(Some("c"), "acme", "batch").await, "OK");
}
