//! A provider's requests a minute are what is really sent to it: each attempt, warm-up and trial is one, and nothing that was not sent.

use std::sync::{Arc, atomic::Ordering};

use watertight::{
    model::facts::Ending,
    policy::{
        breaker::{settings::Probe, state::StateName},
        compartment::settings::Rates,
        fallback::Rank,
        retry_settings::RetrySettings,
    },
    runtime::{
        call::CallContext,
        engine::Runtime,
        settings::{AgentSettings, ProviderSettings, TargetSettings},
    },
};

use crate::{
    kit::{
        Answer, Scripted, agent, builder, call, call_later, code, model_server::ModelServer, name, pass, provider,
        settle,
    },
    support::{Call, codes, detail, hold, ms, refused_connection, s, state},
};

fn limited(of: &str, requests_per_minute: u32) -> ProviderSettings {
    let rates = Rates { requests_per_minute: Some(requests_per_minute), ..Rates::default() };
    ProviderSettings { rates, ..provider(of) }
}

/// Three attempts, and retries enough.
fn stubborn(of: &str) -> AgentSettings {
    let mut settings = agent(of, "local");
    settings.retry = RetrySettings { attempts_max: 3, budget_min: 1_000, ..RetrySettings::default() };
    settings.breaker.consecutive_failures = None;
    settings.breaker.calls_min = 20;
    settings
}

async fn one_on(local: ProviderSettings, settings: AgentSettings, backend: &Arc<Scripted>) -> Runtime {
    builder().provider(local).agent(settings, backend.clone()).start().await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn retries_count_as_what_they_are() {
    let backend = Scripted::always(Answer::status(500));
    let runtime = one_on(limited("local", 6), stubborn("draft"), &backend).await;
    let began = tokio::time::Instant::now();
    let mut sent = Vec::new();
    while began.elapsed() < s(60) {
        let failed = call(&runtime, "draft").await.unwrap_err();
        if failed.envelope.error_code.as_str() == "RATE_LIMITED" {
            assert!(failed.nothing_sent && failed.attempts.is_empty());
        } else {
            // A retry for which no request is free is not made, and the call ends with the error that it has.
            assert_eq!(failed.envelope.error_code.as_str(), "AGENT_ERROR");
            assert!((1..=3).contains(&failed.attempts.len()));
        }
        sent.push((began.elapsed(), backend.count()));
        pass(ms(500)).await;
    }
    // Six at once, and then one each ten seconds.
    for (at, requests) in sent {
        assert!(requests as f64 <= 6.0 + at.as_secs_f64() / 10.0, "{requests} after {at:?}");
    }
    assert!(backend.count() >= 11, "{}", backend.count());
}

#[tokio::test(start_paused = true)]
async fn a_further_target_takes_its_own_providers_requests() {
    let backends = [Scripted::always(Answer::status(500)), Scripted::always(Answer::Good)];
    let rank = |order| Rank { order, weight: 1 };
    let further = TargetSettings { provider: name("spare"), model: Some("y".into()), rank: rank(2) };
    let settings = AgentSettings { model: Some("x".into()), ..stubborn("draft") };
    let builder = builder().provider(limited("local", 100)).provider(limited("spare", 2));
    let builder = builder.agent_with_targets(
        settings,
        rank(1),
        backends[0].clone(),
        vec![(further, backends[1].clone() as Arc<_>)],
    );
    let runtime = builder.start().await.unwrap();
    assert_eq!(codes(&runtime, "draft", 3).await, [("OK".to_owned(), 2), ("AGENT_ERROR".to_owned(), 1)].into());
    assert_eq!((backends[0].count(), backends[1].count()), (9, 2));
}

#[tokio::test(start_paused = true)]
async fn a_warm_up_is_a_request_too() {
    let server = ModelServer::start(s(2));
    let settings = AgentSettings { model: Some("qwen".into()), ..agent("draft", "local") };
    let start = |requests| builder().provider(limited("local", requests)).agent(settings.clone(), server.model("qwen"));
    // The load of 45 s lets less than one request of the minute become due: the call that paid for it comes again.
    let runtime = start(1).start().await.unwrap();
    let refused = call(&runtime, "draft").await;
    assert_eq!((code(&refused), detail(&refused, "limit")), ("RATE_LIMITED".to_owned(), "provider:local".to_owned()));
    let refused = refused.unwrap_err();
    assert!(refused.nothing_sent && !refused.exhausted);
    assert!((15.0..=19.0).contains(&refused.envelope.retry_after.unwrap()), "{:?}", refused.envelope.retry_after);
    assert_eq!(state(&runtime, "agent:draft"), StateName::Closed);
    pass(s(16)).await;
    assert_eq!(code(&call(&runtime, "draft").await), "OK");
    assert_eq!(server.counts(), (1, 0, 1));
    // Warm already, so that the warm-up takes no time: two requests of three, and then one.
    let runtime = start(3).start().await.unwrap();
    assert_eq!(codes(&runtime, "draft", 3).await, [("OK".to_owned(), 2), ("RATE_LIMITED".to_owned(), 1)].into());
    assert_eq!((server.warm_ups.load(Ordering::SeqCst), server.attempts.lock().unwrap().len()), (2, 3));
}

#[tokio::test(start_paused = true)]
async fn trials_of_the_supervisors_count_and_those_that_ask_nothing_do_not() {
    for (probe, left) in [(Probe::Health, 9), (Probe::Request, 10)] {
        let server = ModelServer::start(s(1));
        let mut ill = AgentSettings { model: Some("qwen".into()), ..agent("draft", "local") };
        ill.breaker.probe = probe;
        let mut local = limited("local", 10);
        local.breaker.consecutive_failures = None;
        let nothing_to_ask = Scripted::always(refused_connection());
        let well = Scripted::always(Answer::Good);
        let builder = builder().provider(local).agent(agent("review", "local"), well);
        let builder =
            if left == 9 { builder.agent(ill, server.model("qwen")) } else { builder.agent(ill, nothing_to_ask) };
        let runtime = builder.start().await.unwrap();
        server.is_down.store(true, Ordering::SeqCst);
        for _ in 0..5 {
            assert_eq!(code(&call(&runtime, "draft").await), "AGENT_NETWORK_ERROR");
        }
        // Half-open after half a minute: the five requests are made up for, and the first trial is one if it asks anything.
        pass(ms(30_500)).await;
        assert_eq!(state(&runtime, "agent:draft"), StateName::HalfOpen, "{probe:?}");
        let passed = codes(&runtime, "review", 12).await;
        assert_eq!(passed["OK"], left, "{probe:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_admitted_and_not_sent_goes_back() {
    let backend = Scripted::always(Answer::Good);
    let mut settings = agent("draft", "local");
    settings.slots = 50;
    let runtime = one_on(limited("local", 5), settings, &backend).await;
    let handle = runtime.agent("draft").unwrap();
    for _ in 0..40 {
        handle.admit_and_release(&CallContext::default()).unwrap();
    }
    // A call that is cancelled before its first attempt begins has sent nothing.
    for _ in 0..40 {
        let later = Call(call_later(&runtime, "draft"));
        drop(later);
        settle().await;
    }
    assert_eq!(backend.count(), 0);
    // One that is cancelled while it is asked has.
    let (sent, held) = hold(&runtime, "draft", &backend, 3).await;
    drop(held);
    settle().await;
    backend.now(Answer::ending(Ending::status(400)));
    assert_eq!(sent, 3);
    assert_eq!(
        codes(&runtime, "draft", 3).await,
        [("AGENT_ERROR".to_owned(), 2), ("RATE_LIMITED".to_owned(), 1)].into()
    );
}
