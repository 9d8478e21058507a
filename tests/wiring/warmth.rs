//! Cold models: one warm-up, which nobody's leaving ends; the others are sent away at once; no breaker takes a load for an illness.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use serde_json::Value;
use watertight::model::reply::{AttemptFailure, Reply};
use watertight::{
    model::facts::{Ending, TimeoutKind},
    policy::{
        breaker::state::StateName,
        compartment::settings::{CompartmentSettings, FeatureSettings, UnknownFeature},
        retry_settings::RetrySettings,
        warmth::machine::Belief,
    },
    runtime::{
        call::{CallContext, CallRequest},
        engine::{AgentView, Runtime, WarmthView},
        parts::Parts,
        ports::{AttemptRequest, Backend, BoxFuture, ColdStart, Progress, WarmUp},
        settings::{AgentSettings, LoadedModels, ProviderSettings, WarmUpWhen, WarmthSettings},
    },
};

use crate::{
    kit::{
        Answer, Scripted, agent, builder, call, call_later, code, model_server::ModelServer, model_server::ServedModel,
        name, pass, provider, settle,
    },
    support::{Call, FOUR, call_with, changes, ms, s, state},
};

/// An agent with the timeouts of B35: 30 s an attempt, three of them.
fn impatient(of: &str) -> AgentSettings {
    let mut settings = agent(of, "local");
    settings.timeouts.attempt = Some(s(30));
    settings.breaker.slow_call = s(20);
    settings.retry = RetrySettings { attempts_max: 3, ..RetrySettings::default() };
    settings.model = Some("qwen".to_owned());
    settings
}

/// Four agents on the models of one server, which takes so many calls at once.
async fn four_on(server: &Arc<ModelServer>, models: [&'static str; 4], slots: Option<u32>) -> Runtime {
    let local =
        ProviderSettings { slots, guaranteed: Vec::new(), loaded_models: LoadedModels::AtMost(1), ..provider("local") };
    let mut builder = builder().provider(local);
    for (of, model) in FOUR.into_iter().zip(models) {
        let settings = AgentSettings { model: Some(model.to_owned()), ..impatient(of) };
        builder = builder.agent(settings, server.model(model));
    }
    builder.start().await.unwrap()
}

fn view(runtime: &Runtime, of: &str) -> AgentView {
    runtime.agents().into_iter().find(|agent| agent.name.as_str() == of).unwrap()
}

fn warmth(runtime: &Runtime, of: &str) -> WarmthView {
    view(runtime, of).warmth.unwrap()
}

fn belief(runtime: &Runtime, of: &str) -> Belief {
    warmth(runtime, of).state
}

/// B35: a load of 45 s that is aborted when its caller leaves, attempts of 30 s, three tries, four agents.
#[tokio::test(start_paused = true)]
async fn a_cold_start_is_paid_once() {
    let server = ModelServer::start(s(2));
    let runtime = four_on(&server, ["qwen"; 4], None).await;
    let mut events = runtime.breaker_events();
    assert_eq!(belief(&runtime, "style"), Belief::Unknown);
    let first = Call(call_later(&runtime, "style"));
    settle().await;
    for (waited, left) in [(0, 45.0), (20, 25.0), (24, 1.0)] {
        pass(s(waited)).await;
        for of in FOUR {
            let refused = call(&runtime, of).await.unwrap_err();
            let envelope = &refused.envelope;
            assert_eq!(
                (envelope.error_code.as_str(), envelope.http_status, envelope.retryable),
                ("AGENT_WARMING", 503, true)
            );
            assert_eq!(envelope.retry_after, Some(left), "{of} after {waited} s more");
            assert_eq!(envelope.details["model"], "local/qwen");
            assert!(refused.nothing_sent && !refused.exhausted);
        }
    }
    assert_eq!((belief(&runtime, "meta"), warmth(&runtime, "meta").retry_after), (Belief::Warming, Some(1.0)));
    assert_eq!(code(&first.end().await), "OK", "its patience begins when the model is there");
    for of in FOUR {
        assert_eq!(code(&call(&runtime, of).await), "OK");
    }
    assert_eq!(server.counts(), (1, 0, 1), "one load, none aborted, one warm-up");
    assert_eq!(belief(&runtime, "draft"), Belief::Warm);
    // Unused for five minutes it is let go, and paid for once more.
    pass(s(301)).await;
    assert_eq!(belief(&runtime, "draft"), Belief::Cold);
    let again = Call(call_later(&runtime, "draft"));
    settle().await;
    assert_eq!(code(&call(&runtime, "review").await), "AGENT_WARMING");
    assert_eq!(code(&again.end().await), "OK");
    assert_eq!(server.counts(), (2, 0, 2));
    assert_eq!(changes(&mut events), []);
    for breaker in ["provider:local", "agent:style", "agent:draft", "agent:review", "agent:meta"] {
        let counts = runtime.breaker(breaker).unwrap().counts;
        assert_eq!((counts.failed, counts.slow), (0, 0), "{breaker}");
    }
}

/// The same four agents on another server, or on a model that is loaded otherwise.
fn four_again(server: &Arc<ModelServer>, loads_as: &'static str) -> Parts {
    let local = ProviderSettings { loaded_models: LoadedModels::AtMost(1), ..provider("local") };
    FOUR.into_iter().fold(Parts::new().provider(local), |parts, of| {
        let served = ServedModel { loads_as, ..(*server.model("qwen")).clone() };
        parts.agent(impatient(of), Arc::new(served))
    })
}

/// A reload that puts another server behind the provider's name, or has the model loaded otherwise: nothing is known of it there, one call
/// warms it up, and what is still heard of the old one changes nothing.
#[tokio::test(start_paused = true)]
async fn what_was_learnt_of_another_place_says_nothing_of_this_one() {
    let (old, new) = (ModelServer::start(s(2)), ModelServer::start(s(2)));
    let runtime = four_on(&old, ["qwen"; 4], None).await;
    assert_eq!(code(&call(&runtime, "style").await), "OK");
    let late = Call(call_later(&runtime, "style"));
    settle().await;
    runtime.reload(four_again(&old, "usual")).await.unwrap();
    assert_eq!(belief(&runtime, "draft"), Belief::Warm, "nothing is other than it was");
    runtime.reload(four_again(&new, "usual")).await.unwrap();
    assert_eq!(belief(&runtime, "draft"), Belief::Unknown);
    let first = Call(call_later(&runtime, "draft"));
    settle().await;
    assert_eq!(code(&late.end().await), "OK", "it ends where it was begun");
    assert_eq!(belief(&runtime, "draft"), Belief::Warming, "and says nothing of the new place");
    for of in FOUR {
        assert_eq!(code(&call(&runtime, of).await), "AGENT_WARMING");
    }
    assert_eq!(code(&first.end().await), "OK");
    assert_eq!((old.counts(), new.counts()), ((1, 0, 1), (1, 0, 1)), "each loaded once, none aborted");
    runtime.reload(four_again(&new, "larger")).await.unwrap();
    assert_eq!(belief(&runtime, "draft"), Belief::Unknown);
    assert_eq!(code(&call(&runtime, "meta").await), "OK");
    assert_eq!((belief(&runtime, "draft"), new.counts().2), (Belief::Warm, 2));
    for of in FOUR {
        let counts = runtime.breaker(&format!("agent:{of}")).unwrap().counts;
        assert_eq!((counts.failed, counts.slow), (0, 0), "{of}");
    }
}

/// Whoever waits for a load at a place that is not asked any more asks at the new one; the old load ends by itself.
#[tokio::test(start_paused = true)]
async fn who_waits_for_a_model_that_moved_away_waits_no_longer() {
    let (old, new) = (ModelServer::start(s(2)), ModelServer::start(s(2)));
    let chat = FeatureSettings { max_wait: s(600), ..FeatureSettings::new(name("chat")) };
    let compartments = || CompartmentSettings {
        features: vec![chat.clone()],
        unknown_feature: UnknownFeature::Is(name("chat")),
        ..CompartmentSettings::default()
    };
    old.is_stuck.store(true, Ordering::SeqCst);
    let runtime = builder()
        .provider(provider("local"))
        .compartments(compartments())
        .agent(impatient("draft"), old.model("qwen"))
        .start()
        .await
        .unwrap();
    let loads = Call(call_later(&runtime, "draft"));
    settle().await;
    let waits = Call(call_later(&runtime, "draft"));
    pass(s(5)).await;
    let parts = Parts::new().provider(provider("local")).compartments(compartments());
    runtime.reload(parts.agent(impatient("draft"), new.model("qwen"))).await.unwrap();
    let began = tokio::time::Instant::now();
    assert_eq!(code(&waits.end().await), "OK");
    assert_eq!(began.elapsed(), s(47), "one load and one answer at the new place");
    assert_eq!((belief(&runtime, "draft"), new.counts()), (Belief::Warm, (1, 0, 1)));
    drop(loads);
}

/// What the above is worth: nobody looks after the model, and it never gets warm.
#[tokio::test(start_paused = true)]
async fn without_warm_ups_the_same_load_is_aborted_again_and_again() {
    let server = ModelServer::start(s(2));
    let local = ProviderSettings { slots: Some(1), ..provider("local") };
    let mut builder = builder().provider(local);
    for of in FOUR {
        let warmth = WarmthSettings { when: WarmUpWhen::Off, ..WarmthSettings::default() };
        builder = builder.agent(AgentSettings { warmth, ..impatient(of) }, server.model("qwen"));
    }
    let runtime = builder.start().await.unwrap();
    for _ in 0..3 {
        for of in FOUR {
            assert_ne!(code(&call(&runtime, of).await), "OK");
        }
    }
    let (loads, aborted, warm_ups) = server.counts();
    assert_eq!((loads, warm_ups), (0, 0));
    assert!(aborted >= 3 && state(&runtime, "provider:local") == StateName::Open, "{aborted}");
    assert_eq!(view(&runtime, "style").warmth, None);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_leaves_is_let_go_and_the_warm_up_goes_on() {
    let server = ModelServer::start(s(2));
    let runtime = four_on(&server, ["qwen"; 4], Some(1)).await;
    let leaver = Call(call_later(&runtime, "style"));
    pass(s(10)).await;
    drop(leaver);
    settle().await;
    assert_eq!(view(&runtime, "style").in_flight, 1, "its slots are taken until the server is free");
    let refused = call(&runtime, "draft").await;
    assert_eq!((code(&refused), refused.unwrap_err().envelope.retry_after), ("AGENT_WARMING".into(), Some(35.0)));
    pass(s(36)).await;
    assert_eq!((server.counts(), view(&runtime, "style").in_flight), ((1, 0, 1), 0));
    assert_eq!(code(&call(&runtime, "draft").await), "OK");
    assert_eq!(server.counts(), (1, 0, 1));
    let counts = runtime.breaker("agent:style").unwrap().counts;
    assert_eq!(counts.entries, 0, "leaving is neutral");
}

#[tokio::test(start_paused = true)]
async fn a_deadline_lets_the_caller_go_at_its_time() {
    let server = ModelServer::start(s(2));
    let runtime = four_on(&server, ["qwen"; 4], Some(1)).await;
    let began = tokio::time::Instant::now();
    for timeout in [false, true] {
        let context = if timeout {
            CallContext { timeout: Some(s(5)), ..CallContext::default() }
        } else {
            CallContext { deadline: Some(runtime.clock().now().after(s(20))), ..CallContext::default() }
        };
        let late = call_with(&runtime, "style", context).await;
        assert_eq!(code(&late), if timeout { "AGENT_WARMING" } else { "DEADLINE_EXCEEDED" });
        assert_eq!(began.elapsed(), s(20), "let go at its time, or sent away at once");
    }
    pass(s(26)).await;
    assert_eq!((server.counts(), belief(&runtime, "style")), ((1, 0, 1), Belief::Warm));
    assert_eq!(runtime.breaker("agent:style").unwrap().counts.entries, 0);
}

#[tokio::test(start_paused = true)]
async fn a_warm_up_that_never_ends_is_one_failure() {
    for leaves in [false, true] {
        let server = ModelServer::start(s(2));
        server.is_stuck.store(true, Ordering::SeqCst);
        let runtime = four_on(&server, ["qwen"; 4], Some(1)).await;
        let waiting = Call(call_later(&runtime, "style"));
        for minute in 0..3 {
            pass(s(59)).await;
            assert_eq!(code(&call(&runtime, "draft").await), "AGENT_WARMING", "minute {minute}");
        }
        if leaves {
            drop(waiting);
            pass(s(4)).await;
        } else {
            let failed = waiting.end().await.unwrap_err();
            assert_eq!((failed.envelope.error_code.as_str(), failed.exhausted), ("AGENT_TIMEOUT", true));
            assert_eq!(failed.attempts.len(), 0);
            settle().await;
        }
        for breaker in ["provider:local", "agent:style"] {
            let counts = runtime.breaker(breaker).unwrap().counts;
            assert_eq!((counts.failed, counts.entries), (1, 1), "{breaker}, leaves: {leaves}");
        }
        assert_eq!(runtime.breaker("agent:draft").unwrap().counts.entries, 0);
        assert_eq!((belief(&runtime, "style"), view(&runtime, "style").in_flight), (Belief::Cold, 0));
        // Whoever comes next tries once more.
        server.is_stuck.store(false, Ordering::SeqCst);
        assert_eq!(code(&call(&runtime, "draft").await), "OK");
        assert_eq!(server.counts(), (1, 1, 2));
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_down_is_noticed_after_three_calls_whoever_makes_them() {
    let server = ModelServer::start(s(2));
    server.is_down.store(true, Ordering::SeqCst);
    let runtime = four_on(&server, ["qwen"; 4], Some(1)).await;
    for of in ["style", "style", "meta"] {
        assert_eq!(code(&call(&runtime, of).await), "AGENT_NETWORK_ERROR");
    }
    assert_eq!(state(&runtime, "provider:local"), StateName::Open);
    assert_eq!(code(&call(&runtime, "draft").await), "AGENT_CIRCUIT_OPEN");
    assert_eq!(belief(&runtime, "draft"), Belief::Unknown);
    // Its first trial is the one that warms up, and no trial is failed by the load.
    server.is_down.store(false, Ordering::SeqCst);
    pass(s(30)).await;
    let trial = Call(call_later(&runtime, "draft"));
    settle().await;
    assert_eq!(code(&call(&runtime, "style").await), "AGENT_WARMING");
    assert_eq!(code(&trial.end().await), "OK");
    for _ in 0..2 {
        assert_eq!(code(&call(&runtime, "style").await), "OK");
    }
    assert_eq!((state(&runtime, "provider:local"), server.loads.load(Ordering::SeqCst)), (StateName::Closed, 1));
}

#[tokio::test(start_paused = true)]
async fn models_that_throw_each_other_out_are_counted() {
    let server = ModelServer::start(s(2));
    let runtime = four_on(&server, ["a", "b", "a", "b"], Some(1)).await;
    for round in 0..3 {
        for of in ["style", "draft"] {
            assert_eq!(code(&call(&runtime, of).await), "OK", "round {round}");
        }
    }
    // Six loads, and each but the first threw out a model that was wanted again.
    assert_eq!(server.counts(), (6, 0, 6));
    assert_eq!((warmth(&runtime, "style").swaps, warmth(&runtime, "draft").swaps), (3, 2));
    assert_eq!((belief(&runtime, "review"), belief(&runtime, "meta")), (Belief::Cold, Belief::Warm));
    // Who has the same model throws out nobody.
    for _ in 0..3 {
        assert_eq!(code(&call(&runtime, "meta").await), "OK");
    }
    assert_eq!((server.counts().0, warmth(&runtime, "draft").swaps), (6, 2));
}

/// Nobody said how many models the server keeps: the swap is seen where the load happens.
#[tokio::test(start_paused = true)]
async fn a_swap_that_nobody_could_know_of_is_seen_on_the_way() {
    let server = ModelServer::start(s(2));
    let mut builder = builder().provider(provider("local"));
    for (of, model) in [("style", "a"), ("draft", "b")] {
        builder = builder.agent(AgentSettings { model: Some(model.into()), ..agent(of, "local") }, server.model(model));
    }
    let runtime = builder.start().await.unwrap();
    let mut events = runtime.breaker_events();
    for _ in 0..4 {
        for of in ["style", "draft"] {
            assert_eq!(code(&call(&runtime, of).await), "OK");
        }
    }
    assert_eq!(server.counts(), (8, 0, 2), "believed to be warm, so no further warm-up");
    assert_eq!((warmth(&runtime, "style").swaps, warmth(&runtime, "draft").swaps), (3, 3));
    assert_eq!(changes(&mut events), []);
    for of in ["agent:style", "agent:draft"] {
        assert_eq!(runtime.breaker(of).unwrap().counts.slow, 0, "a load is no slowness");
    }
}

/// A server that says that it is loading, as llama.cpp does.
struct Telling {
    inner: Arc<Scripted>,
    warm_up: Arc<Scripted>,
}

impl Backend for Telling {
    fn attempt<'a>(
        &'a self,
        request: &'a AttemptRequest,
        progress: &'a Progress,
    ) -> BoxFuture<'a, Result<Reply, AttemptFailure>> {
        self.inner.attempt(request, progress)
    }

    fn cold_start(&self) -> ColdStart {
        ColdStart::Told
    }

    fn warm_up(&self) -> BoxFuture<'_, Result<WarmUp, AttemptFailure>> {
        Box::pin(async move {
            let number = self.warm_up.attempts.fetch_add(1, Ordering::SeqCst);
            if number < 20 { Err(AttemptFailure::new(Ending::Loading, "Loading model")) } else { Ok(WarmUp::WasLoaded) }
        })
    }
}

fn telling(answer: Answer) -> Arc<Telling> {
    Arc::new(Telling { inner: Scripted::always(answer), warm_up: Scripted::always(Answer::Good) })
}

async fn two_on(backend: &Arc<Telling>, warmth: WarmthSettings) -> Runtime {
    let mut builder = builder().provider(provider("local"));
    for of in ["style", "draft"] {
        builder = builder.agent(AgentSettings { warmth, ..agent(of, "local") }, backend.clone());
    }
    builder.start().await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_server_that_never_says_that_it_is_loading_gets_no_warm_up() {
    let backend = telling(Answer::Good);
    let runtime = two_on(&backend, WarmthSettings::default()).await;
    for _ in 0..5 {
        assert_eq!(code(&call(&runtime, "style").await), "OK");
    }
    backend.inner.now(Answer::status(503));
    assert_eq!(code(&call(&runtime, "style").await), "AGENT_ERROR");
    assert_eq!((backend.warm_up.count(), belief(&runtime, "draft")), (0, Belief::Warm));
    assert_eq!(runtime.breaker("agent:style").unwrap().counts.failed, 1);
}

#[tokio::test(start_paused = true)]
async fn the_call_that_is_told_of_a_load_waits_for_it_and_is_made_again() {
    let backend = telling(Answer::ending(Ending::Loading));
    let runtime = two_on(&backend, WarmthSettings::default()).await;
    let first = Call(call_later(&runtime, "style"));
    pass(s(15)).await;
    assert_eq!(code(&call(&runtime, "draft").await), "AGENT_WARMING");
    backend.inner.now(Answer::Good);
    let answered = first.end().await.unwrap();
    // One that was turned away by the server, one that it answered: no failure, and no retry.
    assert_eq!(answered.attempts.len(), 2);
    assert_eq!((backend.warm_up.count(), backend.inner.count()), (21, 2), "asked each second until it was there");
    settle().await;
    let counts = runtime.breaker("agent:style").unwrap().counts;
    assert_eq!((counts.failed, counts.slow, counts.entries), (0, 0, 1));
    // One that says so for ever gets no call stuck: each gives up after two more warm-ups.
    backend.inner.now(Answer::ending(Ending::Loading));
    let stuck = call(&runtime, "style").await.unwrap_err();
    assert_eq!((stuck.envelope.error_code.as_str(), stuck.attempts.len()), ("AGENT_WARMING", 3));
}

#[tokio::test(start_paused = true)]
async fn where_nobody_looks_after_the_model_the_word_is_an_error_like_any() {
    let backend = telling(Answer::ending(Ending::Loading));
    let runtime = two_on(&backend, WarmthSettings { when: WarmUpWhen::Off, ..WarmthSettings::default() }).await;
    assert_eq!(code(&call(&runtime, "style").await), "AGENT_ERROR");
    assert_eq!((backend.warm_up.count(), runtime.breaker("agent:style").unwrap().counts.failed), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_model_that_is_always_warmed_up_or_known_to_go_is_warmed_before_the_first_call() {
    let always = WarmthSettings { when: WarmUpWhen::Always, ..WarmthSettings::default() };
    let goes = WarmthSettings { keeps_for: Some(s(300)), ..WarmthSettings::default() };
    for (warmth, again) in [(always, 21), (goes, 22)] {
        let backend = telling(Answer::Good);
        let runtime = two_on(&backend, warmth).await;
        assert_eq!(code(&call(&runtime, "style").await), "OK");
        assert_eq!((backend.warm_up.count(), backend.inner.count()), (21, 1));
        pass(s(301)).await;
        assert_eq!(code(&call(&runtime, "draft").await), "OK");
        assert_eq!(backend.warm_up.count(), again, "{warmth:?}");
    }
}

/// Calls that were out when the server began to load anew: neither their age nor their timeouts say anything.
#[tokio::test(start_paused = true)]
async fn what_was_under_way_while_the_model_was_loaded_is_excused() {
    let timeout = Answer::ending(Ending::Timeout { timeout: TimeoutKind::FirstToken });
    for (answer, late) in [(Answer::Hang, 60), (timeout.after(s(50)), 50), (Answer::Good.after(s(50)), 50)] {
        let backend = telling(answer.clone());
        let runtime = two_on(&backend, WarmthSettings::default()).await;
        let mut events = runtime.breaker_events();
        let early: Vec<_> = (0..10).map(|_| Call(call_later(&runtime, "style"))).collect();
        pass(s(25)).await;
        backend.inner.now(Answer::ending(Ending::Loading));
        let cold = Call(call_later(&runtime, "draft"));
        pass(s(1)).await;
        backend.inner.now(Answer::Good);
        pass(s(late)).await;
        assert_eq!(code(&cold.end().await), "OK");
        for call in early {
            let want = if matches!(answer, Answer::After(_, ref then) if matches!(**then, Answer::Good)) {
                "OK"
            } else {
                "AGENT_TIMEOUT"
            };
            assert_eq!(code(&call.end().await), want);
        }
        settle().await;
        assert_eq!(changes(&mut events), [], "{answer:?}");
        for breaker in ["agent:style", "provider:local"] {
            let counts = runtime.breaker(breaker).unwrap().counts;
            assert_eq!((counts.failed, counts.slow), (0, 0), "{breaker} {answer:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_timed_out_has_the_model_asked_for_again() {
    let server = ModelServer::start(s(2));
    let runtime = four_on(&server, ["qwen"; 4], None).await;
    assert_eq!(code(&call(&runtime, "style").await), "OK");
    // Somebody else had it thrown out: the attempt's own load takes longer than its time.
    let other = ServedModel { server: Arc::clone(&server), model: "b", loads_as: "", cold_start: ColdStart::Never };
    other.warm_up().await.unwrap();
    assert_eq!(code(&call(&runtime, "style").await), "AGENT_TIMEOUT");
    assert_eq!((server.aborted.load(Ordering::SeqCst), belief(&runtime, "style")), (1, Belief::Unknown));
    assert_eq!(code(&call(&runtime, "style").await), "OK", "warmed up now, in its own time");
    assert_eq!(server.counts().1, 1);
}

/// A backend whose warm-up panics at first.
struct Fragile(AtomicBool);

impl Backend for Fragile {
    fn attempt<'a>(&'a self, _: &'a AttemptRequest, _: &'a Progress) -> BoxFuture<'a, Result<Reply, AttemptFailure>> {
        Box::pin(std::future::ready(Ok(Reply::of(Value::Null))))
    }

    fn cold_start(&self) -> ColdStart {
        ColdStart::OnDemand { keeps_for: None }
    }

    fn warm_up(&self) -> BoxFuture<'_, Result<WarmUp, AttemptFailure>> {
        assert!(self.0.swap(true, Ordering::SeqCst), "scripted panic");
        Box::pin(std::future::ready(Ok(WarmUp::Loaded)))
    }
}

#[tokio::test(start_paused = true)]
async fn a_warm_up_that_panics_leaves_nobody_waiting() {
    let backend = Arc::new(Fragile(false.into()));
    let runtime = builder().provider(provider("local")).agent(agent("draft", "local"), backend).start().await.unwrap();
    assert_eq!(code(&call(&runtime, "draft").await), "AGENT_RESTARTED");
    assert_eq!(belief(&runtime, "draft"), Belief::Cold);
    assert_eq!(code(&call(&runtime, "draft").await), "OK");
    assert_eq!(runtime.breaker("agent:draft").unwrap().counts.failed, 0, "a panic is no failure of the place");
}

#[tokio::test(start_paused = true)]
async fn a_stop_waits_for_whoever_still_wants_the_model_and_for_nobody_else() {
    for leaves in [false, true] {
        let server = ModelServer::start(s(2));
        let runtime = four_on(&server, ["qwen"; 4], None).await;
        let waiting = Call(call_later(&runtime, "style"));
        pass(s(10)).await;
        let began = tokio::time::Instant::now();
        if leaves {
            drop(waiting);
            runtime.stop(s(100)).await;
            assert_eq!(began.elapsed(), s(0));
        } else {
            runtime.stop(s(100)).await;
            assert_eq!((began.elapsed(), code(&waiting.end().await)), (s(37), "OK".into()));
        }
    }
}

/// A thousand callers at once, in whatever order: one warm-up, and each has its answer or its refusal at once.
#[tokio::test(start_paused = true)]
async fn a_crowd_pays_once() {
    let server = ModelServer::start(ms(1));
    let runtime = four_on(&server, ["qwen"; 4], None).await;
    let handle = runtime.agent("style").unwrap();
    let calls: Vec<_> = (0..1_000)
        .map(|_| {
            let handle = handle.clone();
            tokio::spawn(async move { handle.call(CallRequest::of(Value::Null)).await })
        })
        .collect();
    let mut codes = std::collections::BTreeMap::new();
    for call in calls {
        *codes.entry(code(&call.await.unwrap())).or_insert(0) += 1;
    }
    assert_eq!((server.counts(), codes["OK"]), ((1, 0, 1), 1), "{codes:?}");
    assert_eq!(codes.values().sum::<i32>(), 1_000);
    assert!(codes.keys().all(|code| ["OK", "AGENT_WARMING", "AGENT_BULKHEAD_FULL"].contains(&code.as_str())));
}

/// Where a line is configured, callers wait in it for the model, as long as it allows and no longer; bounded, and everything asked anew.
#[tokio::test(start_paused = true)]
async fn callers_wait_for_the_model_where_a_line_is_configured() {
    let server = ModelServer::start(s(1));
    let patient = FeatureSettings { max_wait: s(120), ..FeatureSettings::new(name("chat")) };
    let hasty = FeatureSettings { max_wait: s(20), ..FeatureSettings::new(name("batch")) };
    let compartments = CompartmentSettings { features: vec![patient, hasty], ..CompartmentSettings::default() };
    let local = ProviderSettings { slots: Some(1), loaded_models: LoadedModels::AtMost(1), ..provider("local") };
    let mut builder = builder().provider(local).compartments(compartments);
    for of in ["style", "draft"] {
        builder = builder.agent(impatient(of), server.model("qwen"));
    }
    let runtime = builder.start().await.unwrap();
    let began = tokio::time::Instant::now();
    let later = |of: &str, feature: &str, deadline: Option<u64>| {
        let deadline = deadline.map(|seconds| runtime.clock().now().after(s(seconds)));
        let context = CallContext { feature: Some(feature.to_owned()), deadline, ..CallContext::default() };
        let (handle, request) = (runtime.agent(of).unwrap(), CallRequest { context, ..CallRequest::of(Value::Null) });
        Call(tokio::spawn(async move { handle.call(request).await }))
    };
    // All in the same moment: one of them warms up, the others find that before they take anything.
    let waiting: Vec<_> = (0..5).map(|at| later(["style", "draft"][at % 2], "chat", None)).collect();
    let (hasty, late) = (later("draft", "batch", None), later("style", "chat", Some(30)));
    let leaver = later("draft", "chat", None);
    pass(s(10)).await;
    drop(leaver);
    assert_eq!((code(&hasty.end().await), began.elapsed()), ("AGENT_WARMING".into(), s(20)));
    assert_eq!((code(&late.end().await), began.elapsed()), ("DEADLINE_EXCEEDED".into(), s(30)));
    for call in waiting {
        assert_eq!(code(&call.end().await), "OK");
    }
    assert_eq!((began.elapsed(), server.counts()), (s(50), (1, 0, 1)), "45 s for the load, one second each");
    assert_eq!(server.peak.load(Ordering::SeqCst), 1);
    settle().await;
    assert!(runtime.agents().iter().all(|agent| agent.in_flight == 0));
}

/// A crowd beyond what a line holds is sent away.
#[tokio::test(start_paused = true)]
async fn no_more_wait_for_a_model_than_there_is_room_for() {
    let server = ModelServer::start(ms(1));
    let chat = FeatureSettings { max_wait: s(120), line_max: 100_000, ..FeatureSettings::new(name("chat")) };
    let compartments = CompartmentSettings { features: vec![chat], ..CompartmentSettings::default() };
    let builder = builder().provider(provider("local")).compartments(compartments);
    let runtime = builder.agent(impatient("draft"), server.model("qwen")).start().await.unwrap();
    let calls: Vec<_> = (0..1_500)
        .map(|_| {
            let context = CallContext { feature: Some("chat".to_owned()), ..CallContext::default() };
            let (handle, request) =
                (runtime.agent("draft").unwrap(), CallRequest { context, ..CallRequest::of(Value::Null) });
            tokio::spawn(async move { handle.call(request).await })
        })
        .collect();
    let mut codes = std::collections::BTreeMap::new();
    for call in calls {
        *codes.entry(code(&call.await.unwrap())).or_insert(0) += 1;
    }
    assert_eq!(codes, [("AGENT_WARMING".to_owned(), 499), ("OK".to_owned(), 1_001)].into());
    assert_eq!(server.counts(), (1, 0, 1));
}
