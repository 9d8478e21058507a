//! Other settings for a runtime that runs.

use std::sync::{Arc, atomic::Ordering};

use watertight::{
    model::name::Name,
    policy::breaker::state::StateName,
    runtime::{
        builder::StartError,
        call::CallRequest,
        parts::Parts,
        reload::report::ReloadReport,
        settings::{AgentSettings, ProviderSettings, TargetSettings},
    },
};

use crate::{
    kit::{Answer, Scripted, agent, builder, call, call_later, code, name, one_agent, pass, provider, settle},
    support::{Call, changes, codes, hold, ms, s, state},
};

fn parts(agents: impl IntoIterator<Item = AgentSettings>, backend: &Arc<Scripted>) -> Parts {
    let parts = Parts::new().provider(provider("local"));
    agents.into_iter().fold(parts, |parts, agent| parts.agent(agent, backend.clone()))
}

fn names(names: &[Name]) -> Vec<&str> {
    names.iter().map(Name::as_str).collect()
}

/// B45: open at 0 s, another threshold at 5 s, settings that cannot be at 6 s.
#[tokio::test(start_paused = true)]
async fn an_open_breaker_stays_open_for_as_long_as_it_said() {
    let backend = Scripted::always(Answer::status(500));
    let mut settings = agent("draft", "local");
    settings.retry.attempts_max = 1;
    settings.breaker.open_jitter = 0.0;
    let runtime = one_agent(settings.clone(), backend.clone()).await;
    let mut events = runtime.breaker_events();
    codes(&runtime, "draft", 5).await;
    assert_eq!(state(&runtime, "agent:draft"), StateName::Open);
    pass(s(5)).await;
    settings.breaker.failure_share = 0.9;
    settings.breaker.open = s(300);
    let report = runtime.reload(parts([settings.clone()], &backend)).await.unwrap();
    assert_eq!((names(&report.changed), report.added.len() + report.removed.len()), (vec!["draft"], 0));
    pass(s(1)).await;
    let mut broken = settings.clone();
    broken.breaker.failure_share = f64::NAN;
    let error = runtime.reload(parts([broken], &backend)).await.unwrap_err();
    assert!(
        matches!(&error, StartError::Setting { name, broken } if name.as_str() == "draft" && broken.key() == "failure_share")
    );
    assert_eq!(code(&call(&runtime, "draft").await), "AGENT_CIRCUIT_OPEN");
    pass(s(23)).await;
    assert_eq!(state(&runtime, "agent:draft"), StateName::Open);
    pass(s(1)).await;
    assert_eq!(state(&runtime, "agent:draft"), StateName::HalfOpen);
    assert_eq!(changes(&mut events).len(), 2, "opened once, half-open once");
}

#[tokio::test(start_paused = true)]
async fn a_bad_reload_changes_nothing() {
    let backend = Scripted::always(Answer::Good);
    let runtime = one_agent(agent("draft", "local"), backend.clone()).await;
    let good = || parts([agent("draft", "local")], &backend);
    let stranger = name("nowhere");
    let twice = good().agent(agent("draft", "local"), backend.clone());
    let nowhere = good().agent(AgentSettings::new(name("review"), stranger), backend.clone());
    let mut shares = provider("small");
    shares.slots = Some(1);
    shares.guaranteed = vec![(name("review"), 2)];
    let shares = good().provider(shares).agent(agent("review", "small"), backend.clone());
    let mut many = agent("review", "local");
    many.slots = u32::MAX;
    let many = good().agent(many, backend.clone());
    for bad in [twice, nowhere, shares, many] {
        assert!(runtime.reload(bad).await.is_err());
        assert!(runtime.agent("review").is_none() && runtime.breaker("agent:review").is_err());
        assert_eq!(runtime.agents().len(), 1);
        assert_eq!(code(&call(&runtime, "draft").await), "OK");
    }
    assert_eq!(runtime.reload(good()).await.unwrap(), ReloadReport::default());
}

#[tokio::test(start_paused = true)]
async fn caps_change_under_calls_that_are_on_their_way() {
    let backend = Scripted::always(Answer::Good);
    let mut settings = agent("draft", "local");
    settings.slots = 4;
    let runtime = one_agent(settings.clone(), backend.clone()).await;
    let (admitted, calls) = hold(&runtime, "draft", &backend, 9).await;
    assert_eq!(admitted, 4);
    let mut later = Vec::new();
    for (slots, more, in_flight) in [(2, 0, 4), (6, 2, 6), (0, 0, 6), (7, 1, 7)] {
        settings.slots = slots;
        runtime.reload(parts([settings.clone()], &backend)).await.unwrap();
        let (admitted, held) = hold(&runtime, "draft", &backend, 3).await;
        later.extend(held);
        assert_eq!((admitted, runtime.agent("draft").unwrap().in_flight()), (more, in_flight), "{slots} slots");
    }
    drop(calls);
    settle().await;
    assert_eq!(runtime.agent("draft").unwrap().in_flight(), 3, "what was begun before the reloads gave back");
}

#[tokio::test(start_paused = true)]
async fn who_is_gone_is_not_found_and_runs_dry() {
    let backend = Scripted::always(Answer::Good.after(s(5)));
    let runtime = one_agent(agent("draft", "local"), backend.clone()).await;
    let handle = runtime.agent("draft").unwrap();
    let running = Call(call_later(&runtime, "draft"));
    settle().await;
    let report = runtime.reload(parts([agent("review", "local")], &backend)).await.unwrap();
    assert_eq!((names(&report.removed), names(&report.added)), (vec!["draft"], vec!["review"]));
    assert!(runtime.agent("draft").is_none());
    assert_eq!(runtime.agents().iter().map(|view| view.name.as_str()).collect::<Vec<_>>(), ["review"]);
    assert!(runtime.breaker("agent:draft").is_err());
    assert!(runtime.gone_labels().iter().any(|(key, value)| *key == "agent" && &**value == "draft"));
    assert_eq!(code(&handle.call(CallRequest::of(serde_json::Value::Null)).await), "NOT_FOUND");
    assert_eq!(code(&call(&runtime, "review").await), "OK");
    assert_eq!(code(&running.end().await), "OK", "it ends as it began");
    pass(s(5)).await;
    assert_eq!(handle.in_flight(), 0);
    // It comes back: its actor had ended, a new one works for it.
    let report = runtime.reload(parts([agent("draft", "local")], &backend)).await.unwrap();
    assert_eq!((names(&report.removed), names(&report.added)), (vec!["review"], vec!["draft"]));
    assert!(!runtime.gone_labels().iter().any(|(_, value)| &**value == "draft" || &**value == "agent:draft"));
    assert_eq!(code(&handle.call(CallRequest::of(serde_json::Value::Null)).await), "OK", "an old handle finds it");
}

#[tokio::test(start_paused = true)]
async fn an_open_breaker_survives_that_its_agent_is_gone_for_a_while() {
    let backend = Scripted::always(Answer::status(500));
    let mut settings = agent("draft", "local");
    settings.retry.attempts_max = 1;
    let runtime = one_agent(settings.clone(), backend.clone()).await;
    codes(&runtime, "draft", 5).await;
    runtime.reload(parts([agent("review", "local")], &backend)).await.unwrap();
    pass(s(3)).await;
    runtime.reload(parts([settings], &backend)).await.unwrap();
    assert_eq!(state(&runtime, "agent:draft"), StateName::Open);
    assert_eq!(code(&call(&runtime, "draft").await), "AGENT_CIRCUIT_OPEN");
}

#[tokio::test(start_paused = true)]
async fn another_model_is_another_target_with_a_breaker_of_its_own() {
    let ill = Scripted::always(Answer::status(500));
    let mut settings = agent("draft", "local");
    settings.retry.attempts_max = 1;
    settings.model = Some("small".into());
    let runtime = one_agent(settings.clone(), ill.clone()).await;
    codes(&runtime, "draft", 5).await;
    let well = Scripted::always(Answer::Good);
    let mut large = settings.clone();
    large.model = Some("large".into());
    runtime.reload(parts([large.clone()], &well)).await.unwrap();
    assert_eq!(state(&runtime, "agent:draft"), StateName::Closed);
    assert_eq!(code(&call(&runtime, "draft").await), "OK");
    // The ill one comes back as a further target: it is still open, under the name that it has there.
    let further = TargetSettings {
        provider: name("local"),
        model: Some("small".into()),
        rank: watertight::policy::fallback::Rank { order: 1, weight: 1 },
    };
    let both = Parts::new().provider(provider("local")).agent_with_targets(
        large,
        watertight::policy::fallback::Rank { order: 0, weight: 1 },
        well.clone(),
        vec![(further, ill.clone())],
    );
    runtime.reload(both).await.unwrap();
    assert_eq!(state(&runtime, "agent:draft:local/small"), StateName::Open);
    assert_eq!(
        (state(&runtime, "agent:draft"), code(&call(&runtime, "draft").await)),
        (StateName::Closed, "OK".into())
    );
}

#[tokio::test(start_paused = true)]
async fn a_callers_place_in_line_ends_with_its_agent() {
    use watertight::policy::compartment::settings::{CompartmentSettings, FeatureSettings};
    let chat = FeatureSettings { max_wait: s(60), ..FeatureSettings::new(name("chat")) };
    let usual = watertight::policy::compartment::settings::UnknownFeature::Is(name("chat"));
    let lines = CompartmentSettings { features: vec![chat], unknown_feature: usual, ..CompartmentSettings::default() };
    let backend = Scripted::always(Answer::Good.after(s(20)));
    let mut settings = agent("draft", "local");
    settings.slots = 1;
    let builder = builder().provider(provider("local")).agent(settings.clone(), backend.clone());
    let runtime = builder.compartments(lines.clone()).start().await.unwrap();
    let first = Call(call_later(&runtime, "draft"));
    settle().await;
    let waiting: Vec<Call> = (0..3).map(|_| Call(call_later(&runtime, "draft"))).collect();
    settle().await;
    assert_eq!(backend.count(), 1);
    // A larger cap lets the first two of them in.
    settings.slots = 3;
    runtime.reload(parts([settings], &backend).compartments(lines.clone())).await.unwrap();
    settle().await;
    assert_eq!(backend.count(), 3);
    runtime.reload(parts([agent("review", "local")], &backend).compartments(lines)).await.unwrap();
    assert_eq!(code(&first.end().await), "OK");
    let mut ends = Vec::new();
    for call in waiting {
        ends.push(code(&call.end().await));
    }
    ends.sort();
    assert_eq!(ends, ["NOT_FOUND", "OK", "OK"]);
}

/// A thousand reloads while two hundred calls are on their way: caps up and down, agents in and out.
#[tokio::test(start_paused = true)]
async fn a_thousand_reloads_under_load_lose_nothing() {
    const AGENTS: [&str; 4] = ["style", "draft", "review", "meta"];
    let mut dice = fastrand::Rng::with_seed(7);
    let backend = Scripted::always(Answer::Good.after(ms(700)));
    let ill = Scripted::always(Answer::status(500));
    let mut sick = agent("sick", "other");
    sick.retry.attempts_max = 1;
    sick.breaker.open = s(3_600);
    sick.breaker.open_max = s(3_600);
    sick.breaker.open_jitter = 0.0;
    let make = |caps: [u32; 4], here: [bool; 4], shared: Option<u32>, sick: &AgentSettings| {
        let local = ProviderSettings { slots: shared, ..provider("local") };
        let parts = Parts::new().provider(local).provider(provider("other")).agent(sick.clone(), ill.clone());
        AGENTS.into_iter().zip(caps).zip(here).filter(|(_, here)| *here).fold(parts, |parts, ((name, slots), _)| {
            parts.agent(AgentSettings { slots, ..agent(name, "local") }, backend.clone())
        })
    };
    let start = builder().provider(provider("other")).agent(sick.clone(), ill.clone());
    let runtime = Arc::new(start.start().await.unwrap());
    codes(&runtime, "sick", 5).await;
    // Calls in flight as they were last seen: what is gone lets nobody in.
    let mut seen = [0; 4];
    let mut calls: Vec<Call> = Vec::new();
    let (mut ended, mut refused, mut missing) = (0_usize, 0_usize, 0_usize);
    for round in 0..1_000_u32 {
        let here = [true, dice.bool(), dice.u8(0..4) > 0, dice.u8(0..10) > 0];
        let next: [u32; 4] = std::array::from_fn(|_| dice.u32(0..80));
        sick.breaker.failure_share = 0.5 + f64::from(round % 5) / 10.0;
        let shared = dice.bool().then(|| dice.u32(20..200));
        runtime.reload(make(next, here, shared, &sick)).await.unwrap();
        while calls.len() < 200 {
            let name = AGENTS[dice.usize(0..4)];
            let Some(handle) = runtime.agent(name) else {
                missing += 1;
                break;
            };
            calls.push(Call(tokio::spawn(async move { handle.call(CallRequest::of(serde_json::Value::Null)).await })));
        }
        settle().await;
        for (at, name) in AGENTS.into_iter().enumerate() {
            let Some(handle) = runtime.agent(name) else { continue };
            let bound = next[at].max(seen[at]);
            assert!(handle.in_flight() <= bound, "round {round}: {name} has {} of {bound}", handle.in_flight());
            seen[at] = handle.in_flight();
        }
        assert_eq!(state(&runtime, "agent:sick"), StateName::Open, "round {round}");
        tokio::time::advance(ms(dice.u64(1..60))).await;
        settle().await;
        let (done, open): (Vec<Call>, Vec<Call>) = calls.into_iter().partition(|call| call.0.is_finished());
        calls = open;
        for call in done {
            match code(&call.end().await).as_str() {
                "OK" => ended += 1,
                "AGENT_BULKHEAD_FULL" => refused += 1,
                other => panic!("round {round}: {other}"),
            }
        }
    }
    for call in calls {
        match code(&call.end().await).as_str() {
            "OK" => ended += 1,
            "AGENT_BULKHEAD_FULL" => refused += 1,
            other => panic!("at the end: {other}"),
        }
    }
    assert!(ended > 2_000 && refused > 2_000 && missing > 0, "{ended} {refused} {missing}");
    runtime.reload(make([10; 4], [true; 4], None, &sick)).await.unwrap();
    pass(s(2)).await;
    for view in runtime.agents() {
        assert_eq!((view.in_flight, view.mailbox_depth, view.restarts), (0, 0, 0), "{}", view.name);
    }
    assert_eq!(backend.running.load(Ordering::SeqCst), 0);
    for name in AGENTS {
        assert_eq!(code(&call(&runtime, name).await), "OK");
    }
    assert_eq!(code(&call(&runtime, "sick").await), "AGENT_CIRCUIT_OPEN");
}
