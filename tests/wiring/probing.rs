//! Half-open breakers that the supervisor tries by itself, one trial every open time, where the configuration asks for it.

use std::sync::{Arc, atomic::Ordering};

use watertight::{
    model::facts::Ending,
    policy::{
        breaker::{settings::Probe, state::StateName},
        compartment::settings::{CompartmentSettings, FeatureSettings, TierSettings},
        volume::VolumeSettings,
    },
    runtime::{
        call::{CallContext, CallError, CallReply},
        callers::CallerSettings,
        engine::{Part, Runtime},
        settings::AgentSettings,
    },
};

use crate::{
    kit::{Answer, Scripted, agent, builder, code, model_server::ModelServer, name, pass, provider, settle},
    support::{call_with, s, state},
};

async fn one_on(server: &Arc<ModelServer>, probe: Probe) -> Runtime {
    let mut settings = AgentSettings { model: Some("qwen".into()), ..agent("draft", "local") };
    settings.breaker.probe = probe;
    // Callers have to name both; the supervisor is none of them.
    let compartments = CompartmentSettings {
        features: vec![FeatureSettings::new(name("chat"))],
        tiers: vec![TierSettings { slots: Some(1), ..TierSettings::new(name("free")) }],
        ..CompartmentSettings::default()
    };
    let guarded = CallerSettings { volume: Some(VolumeSettings::of_calls(100)), ..CallerSettings::default() };
    let builder = builder().provider(provider("local")).compartments(compartments).callers(guarded);
    builder.agent(settings, server.model("qwen")).start().await.unwrap()
}

/// A call of the program's own.
async fn call(runtime: &Runtime, agent: &str) -> Result<CallReply, CallError> {
    call_with(runtime, agent, CallContext::own()).await
}

/// Five refused connections, then half-open.
async fn fall_ill(server: &ModelServer, runtime: &Runtime) {
    server.is_down.store(true, Ordering::SeqCst);
    for _ in 0..5 {
        assert_eq!(code(&call(runtime, "draft").await), "AGENT_NETWORK_ERROR");
    }
    assert_eq!(state(runtime, "agent:draft"), StateName::Open);
    server.is_down.store(false, Ordering::SeqCst);
}

#[tokio::test(start_paused = true)]
async fn nobody_calls_and_it_closes_by_itself() {
    for (probe, loads) in [(Probe::Health, 0), (Probe::Request, 1)] {
        let server = ModelServer::start(s(1));
        let runtime = one_on(&server, probe).await;
        fall_ill(&server, &runtime).await;
        pass(s(30)).await;
        assert_eq!(state(&runtime, "agent:draft"), StateName::HalfOpen);
        // One at once, one every 30 s; three good ones of five decide it.
        pass(s(29)).await;
        assert_eq!(state(&runtime, "agent:draft"), StateName::HalfOpen, "{probe:?}");
        pass(s(130)).await;
        assert_eq!(state(&runtime, "agent:draft"), StateName::Closed, "{probe:?}");
        assert_eq!(server.loads.load(Ordering::SeqCst), loads, "{probe:?}");
        assert_eq!(server.attempts.lock().unwrap().len(), 0, "no call was made");
        assert_eq!(runtime.callers()[0].volume.admitted, 5, "nobody is charged for a trial of the supervisor's");
        assert_eq!(runtime.agent("draft").unwrap().in_flight(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn off_means_that_it_stays_half_open() {
    let server = ModelServer::start(s(1));
    let runtime = one_on(&server, Probe::Off).await;
    fall_ill(&server, &runtime).await;
    pass(s(3_600)).await;
    assert_eq!((state(&runtime, "agent:draft"), server.warm_ups.load(Ordering::SeqCst)), (StateName::HalfOpen, 5));
}

#[tokio::test(start_paused = true)]
async fn one_that_is_still_ill_opens_again_and_is_tried_again() {
    let server = ModelServer::start(s(1));
    let runtime = one_on(&server, Probe::Health).await;
    fall_ill(&server, &runtime).await;
    server.is_down.store(true, Ordering::SeqCst);
    let mut events = runtime.breaker_events();
    pass(s(600)).await;
    let mut seen = Vec::new();
    while let Ok(event) = events.try_recv() {
        seen.push(event.transition.to);
    }
    let opened = seen.iter().filter(|state| **state == StateName::Open).count();
    assert!((2..=7).contains(&opened) && !seen.contains(&StateName::Closed), "{seen:?}");
    server.is_down.store(false, Ordering::SeqCst);
    pass(s(300)).await;
    assert_eq!(state(&runtime, "agent:draft"), StateName::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_backend_without_anything_to_ask_gives_the_trial_back() {
    for probe in [Probe::Health, Probe::Request] {
        let backend = Scripted::always(Answer::ending(Ending::Network { connected: false }));
        let mut settings = agent("draft", "local");
        settings.breaker.probe = probe;
        let builder = builder().provider(provider("local")).agent(settings, backend.clone());
        let runtime = builder.start().await.unwrap();
        for _ in 0..5 {
            drop(call(&runtime, "draft").await);
        }
        pass(s(400)).await;
        assert_eq!((state(&runtime, "agent:draft"), backend.count()), (StateName::HalfOpen, 5), "{probe:?}");
        backend.now(Answer::Good);
        for _ in 0..3 {
            assert_eq!(code(&call(&runtime, "draft").await), "OK");
        }
        assert_eq!(state(&runtime, "agent:draft"), StateName::Closed);
    }
}

#[tokio::test(start_paused = true)]
async fn probing_survives_the_supervisor_and_ends_with_the_runtime() {
    let server = ModelServer::start(s(1));
    let runtime = one_on(&server, Probe::Health).await;
    fall_ill(&server, &runtime).await;
    pass(s(31)).await;
    runtime.crash(Part::Supervisor).unwrap();
    settle().await;
    pass(s(200)).await;
    assert_eq!(state(&runtime, "agent:draft"), StateName::Closed);
    fall_ill(&server, &runtime).await;
    pass(s(31)).await;
    let began = tokio::time::Instant::now();
    runtime.stop(s(60)).await;
    assert_eq!(began.elapsed(), s(0), "nobody waits for a trial that nobody asked for");
}

#[tokio::test(start_paused = true)]
async fn a_provider_is_tried_through_its_agents() {
    let server = ModelServer::start(s(1));
    let mut local = provider("local");
    local.breaker.probe = Probe::Health;
    let mut builder = builder().provider(local);
    for of in ["style", "draft"] {
        let settings = AgentSettings { model: Some("qwen".into()), ..agent(of, "local") };
        builder = builder.agent(settings, server.model("qwen"));
    }
    let runtime = builder.start().await.unwrap();
    server.is_down.store(true, Ordering::SeqCst);
    for of in ["style", "draft", "style"] {
        drop(call(&runtime, of).await);
    }
    assert_eq!(state(&runtime, "provider:local"), StateName::Open);
    server.is_down.store(false, Ordering::SeqCst);
    pass(s(200)).await;
    assert_eq!(state(&runtime, "provider:local"), StateName::Closed);
}
