//! Callers in the line, and compartments of features, tenants and classes, through the actors.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;
use watertight::{
    model::name::Name,
    policy::{
        bulkhead::KeptFrom,
        compartment::settings::{
            CompartmentSettings, FeatureSettings, KeptShare, TenantSettings, TierSettings, UnknownFeature,
            UnknownTenant,
        },
    },
    runtime::{
        call::{CallContext, CallError, CallReply, CallRequest},
        engine::{Part, Runtime},
        supervisor::BreakerAct,
    },
};

use crate::{
    kit::{Answer, Scripted, agent, builder, code, name, provider, settle},
    support::{detail, ms, s},
};

type Calling = tokio::task::JoinHandle<Result<CallReply, CallError>>;

fn feature(of: &str, slots: u32, max_wait: Duration) -> FeatureSettings {
    FeatureSettings { slots: Some(slots), max_wait, ..FeatureSettings::new(name(of)) }
}

/// One agent with so many slots behind these compartments.
async fn world(slots: u32, compartments: CompartmentSettings) -> (Runtime, Arc<Scripted>) {
    let backend = Scripted::always(Answer::Good.after(s(10)));
    let mut settings = agent("draft", "local");
    settings.slots = slots;
    let builder = builder().provider(provider("local")).compartments(compartments).agent(settings, backend.clone());
    (builder.start().await.unwrap(), backend)
}

fn context(feature: &str, tenant: &str, class: &str) -> CallContext {
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    CallContext { feature: some(feature), tenant: some(tenant), priority: some(class), ..CallContext::default() }
}

fn calling(runtime: &Runtime, context: CallContext) -> Calling {
    let handle = runtime.agent("draft").unwrap();
    let request = CallRequest { context, ..CallRequest::of(serde_json::json!({})) };
    tokio::spawn(async move { handle.call(request).await })
}

fn one_feature(slots: u32, max_wait: Duration) -> CompartmentSettings {
    CompartmentSettings { features: vec![feature("chat", slots, max_wait)], ..CompartmentSettings::default() }
}

#[tokio::test(start_paused = true)]
async fn whoever_lacks_a_slot_waits_and_gets_it_without_a_gap() {
    let (runtime, backend) = world(1, one_feature(10, s(60))).await;
    let began = Instant::now();
    let calls: Vec<Calling> = (0..3).map(|_| calling(&runtime, context("chat", "", ""))).collect();
    for call in calls {
        assert_eq!(code(&call.await.unwrap()), "OK");
    }
    assert_eq!((began.elapsed(), backend.count()), (s(30), 3), "one after the other, without a gap");
    settle().await;
    assert_eq!(runtime.agent("draft").unwrap().in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn patience_ends_with_the_refusal_and_the_deadline_runs_in_the_line() {
    let (runtime, backend) = world(1, one_feature(10, s(4))).await;
    let first = calling(&runtime, context("chat", "", ""));
    settle().await;
    let began = Instant::now();
    let refused = calling(&runtime, context("chat", "", "")).await.unwrap();
    assert_eq!((code(&refused), began.elapsed()), ("AGENT_BULKHEAD_FULL".to_owned(), s(4)));
    let deadline = runtime.clock().now().after(s(2));
    let late = CallContext { deadline: Some(deadline), ..context("chat", "", "") };
    let began = Instant::now();
    assert_eq!(code(&calling(&runtime, late).await.unwrap()), "DEADLINE_EXCEEDED");
    assert_eq!(began.elapsed(), s(2));
    assert_eq!(code(&first.await.unwrap()), "OK");
    assert_eq!(backend.count(), 1, "who was refused was never sent");
}

/// B12: callers who wait and leave take nothing with them.
#[tokio::test(start_paused = true)]
async fn leavers_cost_nothing() {
    let (runtime, backend) = world(8, one_feature(100, s(60))).await;
    backend.now(Answer::Hang);
    let held: Vec<Calling> = (0..8).map(|_| calling(&runtime, context("chat", "", ""))).collect();
    settle().await;
    let waiting: Vec<Calling> = (0..8).map(|_| calling(&runtime, context("chat", "", ""))).collect();
    tokio::time::sleep(ms(100)).await;
    for call in held.iter().chain(&waiting) {
        call.abort();
    }
    settle().await;
    assert_eq!(runtime.agent("draft").unwrap().in_flight(), 0);
    backend.now(Answer::Good);
    let again: Vec<Calling> = (0..8).map(|_| calling(&runtime, context("chat", "", ""))).collect();
    for call in again {
        assert_eq!(code(&call.await.unwrap()), "OK");
    }
}

#[tokio::test(start_paused = true)]
async fn gates_and_stop_are_asked_again_behind_the_line() {
    let (runtime, backend) = world(1, one_feature(10, s(60))).await;
    let first = calling(&runtime, context("chat", "", ""));
    settle().await;
    let waiting = calling(&runtime, context("chat", "", ""));
    settle().await;
    runtime.act("agent:draft", BreakerAct::ForceOpen).unwrap();
    assert_eq!(code(&first.await.unwrap()), "OK");
    assert_eq!(code(&waiting.await.unwrap()), "AGENT_CIRCUIT_OPEN", "the gate shut while it waited");
    settle().await;
    assert_eq!((backend.count(), runtime.agent("draft").unwrap().in_flight()), (1, 0));
    runtime.act("agent:draft", BreakerAct::Auto).unwrap();
    settle().await;
    let first = calling(&runtime, context("chat", "", ""));
    settle().await;
    let waiting = calling(&runtime, context("chat", "", ""));
    settle().await;
    let stopping = tokio::spawn(runtime.stop(s(60)));
    assert_eq!(code(&waiting.await.unwrap()), "SHUTTING_DOWN", "nobody waits for a node that stops");
    assert_eq!(code(&first.await.unwrap()), "OK");
    stopping.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_line_is_bounded_and_a_death_of_the_actor_keeps_it() {
    let mut compartments = one_feature(10, s(60));
    compartments.features[0].line_max = 2;
    let (runtime, _) = world(1, compartments).await;
    let first = calling(&runtime, context("chat", "", ""));
    settle().await;
    let waiting: Vec<Calling> = (0..2).map(|_| calling(&runtime, context("chat", "", ""))).collect();
    settle().await;
    let began = Instant::now();
    let refused = calling(&runtime, context("chat", "", "")).await.unwrap();
    assert_eq!((code(&refused), began.elapsed()), ("AGENT_BULKHEAD_FULL".to_owned(), s(0)), "at once");
    runtime.crash(Part::Agent("draft")).unwrap();
    runtime.crash(Part::Supervisor).unwrap();
    assert_eq!(code(&first.await.unwrap()), "OK");
    for call in waiting {
        assert_eq!(code(&call.await.unwrap()), "OK");
    }
}

/// A line full of low classes is no wall for a high one: the youngest of the lowest gives way, and is told so at once.
#[tokio::test(start_paused = true)]
async fn a_high_class_finds_a_place_in_a_line_full_of_low_ones() {
    let mut compartments = one_feature(10, s(60));
    compartments.features[0].line_max = 3;
    let (runtime, _) = world(1, compartments).await;
    let mut low = Vec::new();
    for class in ["background", "background", "batch", "background"] {
        low.push(calling(&runtime, context("chat", "", class)));
        settle().await;
    }
    let refused = calling(&runtime, context("chat", "", "background")).await.unwrap();
    assert_eq!(code(&refused), "AGENT_BULKHEAD_FULL");
    assert_eq!(refused.unwrap_err().envelope.details["line_max"], 3);
    let began = Instant::now();
    let first = calling(&runtime, context("chat", "", "critical"));
    settle().await;
    let youngest = low.pop().unwrap().await.unwrap();
    assert_eq!((code(&youngest), began.elapsed()), ("AGENT_BULKHEAD_FULL".into(), s(0)), "told at once");
    assert!(youngest.unwrap_err().envelope.message.contains("the line for slots is full (3 wait)"));
    let second = calling(&runtime, context("chat", "", "interactive"));
    settle().await;
    assert!(
        low[1].is_finished() && !low[2].is_finished(),
        "the batch call is of a higher class than the background one"
    );
    let refused = calling(&runtime, context("chat", "", "background")).await.unwrap();
    assert_eq!(code(&refused), "AGENT_BULKHEAD_FULL", "nobody gives way to its like");
    for call in [low.remove(0), first, second, low.pop().unwrap()] {
        assert_eq!(code(&call.await.unwrap()), "OK");
    }
}

/// A tenant that is alone has all of a line; others find room in it, however many flood it, and who makes room is told at once.
#[tokio::test(start_paused = true)]
async fn floods_of_others_do_not_fill_a_line_for_a_tenant() {
    let chat = FeatureSettings { max_wait: s(60), line_max: 20, ..FeatureSettings::new(name("chat")) };
    let tier = TierSettings { slots: Some(2), max_wait: s(60), ..TierSettings::new(name("free")) };
    let tenant = |of: &str| TenantSettings { name: name(of), tier: name("free") };
    let compartments = CompartmentSettings {
        features: vec![chat],
        tiers: vec![tier],
        tenants: vec![tenant("acme"), tenant("beta"), tenant("gamma")],
        ..CompartmentSettings::default()
    };
    let (runtime, _) = world(6, compartments).await;
    let flood = |of: &'static str| (0..60).map(|_| calling(&runtime, context("chat", of, ""))).collect::<Vec<_>>();
    let waiting = |calls: &[Calling]| calls.iter().filter(|call| !call.is_finished()).count();
    let acme = flood("acme");
    settle().await;
    assert_eq!(waiting(&acme), 22, "two run, and all of the line waits");
    let beta = flood("beta");
    settle().await;
    assert_eq!((waiting(&acme), waiting(&beta)), (12, 12), "half of the line each");
    let gamma: Vec<Calling> = (0..4).map(|_| calling(&runtime, context("chat", "gamma", ""))).collect();
    settle().await;
    assert_eq!((waiting(&acme), waiting(&beta), waiting(&gamma)), (11, 11, 4));
    for call in gamma {
        assert_eq!(code(&call.await.unwrap()), "OK");
    }
    let refused = acme.into_iter().next_back().unwrap().await.unwrap().unwrap_err().envelope;
    assert!(refused.message.contains("the line for slots is full (20 wait)"), "{}", refused.message);
}

/// Where there is no slot at all, nothing can come free.
#[tokio::test(start_paused = true)]
async fn nobody_waits_for_what_has_no_slots() {
    for (of_agent, of_feature) in [(0, 10), (3, 0)] {
        let (runtime, backend) = world(of_agent, one_feature(of_feature, s(60))).await;
        let began = Instant::now();
        assert_eq!(code(&calling(&runtime, context("chat", "", "")).await.unwrap()), "AGENT_BULKHEAD_FULL");
        assert_eq!((began.elapsed(), backend.count()), (s(0), 0), "{of_agent} {of_feature}");
    }
}

#[tokio::test(start_paused = true)]
async fn each_count_is_a_cap_of_its_own_and_is_named() {
    let tier = TierSettings { slots: Some(4), ..TierSettings::new(name("free")) };
    let mut chat = feature("chat", 3, Duration::ZERO);
    chat.ratio = Some(0.5);
    let tenant = |of: &str| TenantSettings { name: name(of), tier: name("free") };
    let compartments = CompartmentSettings {
        features: vec![chat, feature("batch", 10, Duration::ZERO)],
        tiers: vec![tier],
        tenants: vec![tenant("acme"), tenant("beta")],
        ..CompartmentSettings::default()
    };
    let (runtime, backend) = world(6, compartments).await;
    backend.now(Answer::Hang);
    let mut held = Vec::new();
    for (feature, tenant, want) in [
        ("chat", "acme", None),
        ("chat", "acme", None),
        // Half of a tenant's four slots are its chat's.
        ("chat", "acme", Some("cell:chat/acme")),
        ("chat", "beta", None),
        ("chat", "beta", Some("feature:chat")),
        ("batch", "acme", None),
        ("batch", "acme", None),
        ("batch", "acme", Some("tenant:acme")),
        ("batch", "beta", None),
        ("batch", "beta", Some("agent:draft")),
    ] {
        let call = calling(&runtime, context(feature, tenant, ""));
        settle().await;
        match want {
            None => {
                assert!(!call.is_finished(), "{feature} {tenant}");
                held.push(call);
            }
            Some(compartment) => {
                let refused = call.await.unwrap();
                assert_eq!(
                    (code(&refused), detail(&refused, "compartment")),
                    ("AGENT_BULKHEAD_FULL".into(), compartment.into())
                );
            }
        }
    }
    for (feature, tenant, word) in
        [("chta", "acme", "feature"), ("", "acme", "feature"), ("chat", "gamma", "tenant"), ("chat", "", "tenant")]
    {
        let refused = calling(&runtime, context(feature, tenant, "")).await.unwrap();
        assert_eq!((code(&refused), detail(&refused, "compartment")), ("INVALID_REQUEST".into(), word.into()));
    }
    held.iter().for_each(Calling::abort);
    settle().await;
    assert_eq!(runtime.agent("draft").unwrap().in_flight(), 0);
}

/// TRAPS 0.15, 2.17: names that a caller chooses never make a compartment of their own.
#[tokio::test(start_paused = true)]
async fn strangers_share_one_compartment_where_they_are_let_in() {
    let compartments = CompartmentSettings {
        features: vec![feature("usual", 3, Duration::ZERO)],
        tiers: vec![TierSettings { slots: Some(2), ..TierSettings::new(name("free")) }],
        unknown_feature: UnknownFeature::Is(name("usual")),
        unknown_tenant: UnknownTenant::Shared(name("free")),
        ..CompartmentSettings::default()
    };
    let (runtime, backend) = world(100, compartments).await;
    backend.now(Answer::Hang);
    let held: Vec<Calling> =
        (0..100).map(|number| calling(&runtime, context(&format!("f{number}"), &format!("t{number}"), ""))).collect();
    settle().await;
    assert_eq!(held.iter().filter(|call| !call.is_finished()).count(), 2, "a hundred strangers are one tenant");
    held.iter().for_each(Calling::abort);
}

#[tokio::test(start_paused = true)]
async fn tenants_of_their_own_are_bounded_in_number_and_idle_ones_make_room() {
    let compartments = CompartmentSettings {
        tiers: vec![TierSettings { slots: Some(1), ..TierSettings::new(name("free")) }],
        unknown_tenant: UnknownTenant::Own(name("free")),
        tenants_max: 3,
        ..CompartmentSettings::default()
    };
    let (runtime, backend) = world(100, compartments).await;
    backend.now(Answer::Hang);
    let held: Vec<Calling> = (0..3).map(|number| calling(&runtime, context("", &format!("t{number}"), ""))).collect();
    settle().await;
    let refused = calling(&runtime, context("", "t3", "")).await.unwrap();
    assert_eq!((code(&refused), detail(&refused, "compartment")), ("AGENT_BULKHEAD_FULL".into(), "tenants".into()));
    held[0].abort();
    settle().await;
    backend.now(Answer::Good);
    for number in 3..200 {
        assert_eq!(code(&calling(&runtime, context("", &format!("t{number}"), "")).await.unwrap()), "OK");
        settle().await;
    }
    held.iter().for_each(Calling::abort);
}

/// B53, the first half: low classes that fill every hole leave a high one its share.
#[tokio::test(start_paused = true)]
async fn a_high_class_keeps_its_share_and_a_low_one_its_minimum() {
    let mut compartments = CompartmentSettings::default();
    compartments.classes.kept[1] = KeptShare { share: 0.3, kept_from: KeptFrom::Lower };
    compartments.classes.kept[4] = KeptShare { share: 0.1, kept_from: KeptFrom::All };
    let (runtime, backend) = world(10, compartments).await;
    backend.now(Answer::Hang);
    let try_class = async |class: &str, count: usize| {
        let calls: Vec<Calling> = (0..count).map(|_| calling(&runtime, context("", "", class))).collect();
        settle().await;
        calls.into_iter().filter(|call| !call.is_finished()).collect::<Vec<_>>()
    };
    let batch = try_class("batch", 20).await;
    let interactive = try_class("interactive", 20).await;
    let background = try_class("background", 20).await;
    assert_eq!((batch.len(), interactive.len(), background.len()), (6, 3, 1));
    batch.iter().chain(&interactive).chain(&background).for_each(Calling::abort);
    settle().await;
    let interactive = try_class("interactive", 20).await;
    let background = try_class("background", 20).await;
    assert_eq!((interactive.len(), background.len()), (9, 1));
    interactive.iter().chain(&background).for_each(Calling::abort);
}

#[tokio::test(start_paused = true)]
async fn a_provider_keeps_a_features_share() {
    let mut chat = FeatureSettings::new(name("chat"));
    chat.guaranteed = vec![(name("local"), 3)];
    let features = vec![chat, FeatureSettings::new(name("batch"))];
    let compartments = CompartmentSettings { features, ..CompartmentSettings::default() };
    let backend = Scripted::always(Answer::Hang);
    let mut local = provider("local");
    (local.slots, local.guaranteed) = (Some(5), vec![(Name::try_new("draft").unwrap(), 0)]);
    let builder = builder().provider(local).compartments(compartments).agent(agent("draft", "local"), backend.clone());
    let runtime = builder.start().await.unwrap();
    let batch: Vec<Calling> = (0..10).map(|_| calling(&runtime, context("batch", "", ""))).collect();
    settle().await;
    let chat: Vec<Calling> = (0..10).map(|_| calling(&runtime, context("chat", "", ""))).collect();
    settle().await;
    let running = |calls: &[Calling]| calls.iter().filter(|call| !call.is_finished()).count();
    assert_eq!((running(&batch), running(&chat)), (2, 3));
    batch.iter().chain(&chat).for_each(Calling::abort);
}
