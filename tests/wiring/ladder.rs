//! The ladder over real actors: what stands in for a refused or failed call, and what is left of it. The rules are tested where they
//! stand (`policy/ladder`).

use std::{collections::HashMap, sync::Arc, time::Duration};

use serde_json::{Value, json};
use watertight::{
    model::{envelope::ErrorCode, facts::Ending, run::Cause},
    policy::{
        breaker::state::StateName,
        compartment::settings::{CompartmentSettings, FeatureSettings, Rates, UnknownFeature},
        crowd::CallerScope,
        fallback::Rank,
        ladder::{Effect, LighterTarget, Rung, RungRule},
        volume::VolumeSettings,
    },
    runtime::{
        builder::StartError,
        call::{CallContext, CallError, CallReply, CallRequest, LadderUse},
        callers::CallerSettings,
        deferred::{
            settings::{DeferredSettings, PushSettings},
            store::{DeferredStatus, DeliveryStatus, QueueBounds},
        },
        engine::Runtime,
        ladders::{LadderSettings, Ladders, Notice},
        parts::Parts,
        ports::TokioClock,
        reload::report::ReloadReport,
        settings::{AgentSettings, LoadedModels, ProviderSettings, TargetSettings},
        supervisor::BreakerAct,
    },
};

use crate::{
    budgets::Metered,
    fake_queue::{FakePush, FakeQueue},
    kit::{Answer, Scripted, agent, builder, call, code, model_server::ModelServer, name, pass, provider, settle},
    support::{call_with, s},
};

fn rungs(rungs: &[Rung]) -> Vec<RungRule> {
    rungs.iter().copied().map(RungRule::of).collect()
}

fn lighter(agent: &str) -> LighterTarget {
    LighterTarget { agent: name(agent), context_tokens: None, effect: Effect::None }
}

/// A ladder with everything on it.
fn whole(on: &[Rung]) -> LadderSettings {
    LadderSettings {
        rungs: rungs(on),
        lighter: vec![lighter("small"), lighter("tiny")],
        default: Some(Arc::new(json!({ "text": "stated" }))),
        notice: Some(Arc::new(Notice { ko: Some("잠시 쉬어 갑니다".into()), en: Some("Back soon".into()) })),
    }
}

fn of_draft(ladder: LadderSettings) -> Ladders {
    Ladders { agents: [(name("draft"), ladder)].into(), features: HashMap::new() }
}

struct World {
    runtime: Runtime,
    draft: Arc<Scripted>,
    small: Arc<Scripted>,
    tiny: Arc<Scripted>,
}

/// `draft` with `small` and `tiny` to stand in for it, each on a provider of its own.
async fn world_with(
    ladders: Ladders,
    draft: AgentSettings,
    queue: Option<(Arc<FakeQueue>, DeferredSettings, Option<Arc<FakePush>>)>,
) -> World {
    let [main, small, tiny] = [(), (), ()].map(|()| Scripted::always(Answer::Good));
    let mut builder = builder()
        .clock(Arc::new(TokioClock::since_unix_epoch()))
        .provider(provider("a"))
        .provider(provider("b"))
        .provider(provider("c"))
        .agent(draft, main.clone())
        .agent(agent("small", "b"), small.clone())
        .agent(agent("tiny", "c"), tiny.clone())
        .ladders(ladders);
    if let Some((store, settings, push)) = queue {
        builder = builder.deferred(store, settings, push.map(|push| push as Arc<_>));
    }
    World { runtime: builder.start().await.unwrap(), draft: main, small, tiny }
}

impl World {
    /// The same with these ladders from now on.
    async fn reload(&self, ladders: Ladders) -> Result<ReloadReport, StartError> {
        self.reload_with(ladders, CompartmentSettings::default()).await
    }

    /// The same with these features.
    async fn reload_with(
        &self,
        ladders: Ladders,
        compartments: CompartmentSettings,
    ) -> Result<ReloadReport, StartError> {
        let parts = Parts::new().provider(provider("a")).provider(provider("b")).provider(provider("c"));
        let parts = parts.agent(agent("draft", "a"), self.draft.clone()).agent(agent("small", "b"), self.small.clone());
        self.runtime
            .reload(
                parts
                    .agent(agent("tiny", "c"), self.tiny.clone())
                    .ladders(ladders)
                    .compartments(compartments)
                    .deferred(settings()),
            )
            .await
    }
}

async fn world(ladder: LadderSettings) -> World {
    world_with(of_draft(ladder), agent("draft", "a"), None).await
}

fn action(result: &Result<CallReply, CallError>) -> Option<(Cause, Rung)> {
    let degraded = match result {
        Ok(reply) => reply.degraded.as_deref(),
        Err(error) => error.degraded.as_deref(),
    };
    degraded.map(|degraded| (degraded.cause, degraded.action))
}

fn codes_of(result: &Result<CallReply, CallError>) -> Vec<String> {
    let tries = match result {
        Ok(reply) => &reply.tries,
        Err(error) => &error.tries,
    };
    tries.iter().map(|tried| format!("{} {}", tried.target, tried.error_code)).collect()
}

/// The only slot of a provider is that of the very call that is stood in for: it is back before anybody else is asked.
#[tokio::test(start_paused = true)]
async fn a_lighter_model_on_a_server_of_one_slot_is_asked() {
    let [main, small] = [Answer::status(500), Answer::Good].map(Scripted::always);
    let ladder = LadderSettings { lighter: vec![lighter("small")], ..whole(&[Rung::Lighter]) };
    let mut draft = agent("draft", "a");
    draft.retry.attempts_max = 1;
    let runtime = builder()
        .provider(ProviderSettings { slots: Some(1), ..provider("a") })
        .agent(draft, main.clone())
        .agent(agent("small", "a"), small.clone())
        .ladders(of_draft(ladder))
        .start()
        .await
        .unwrap();
    for turn in 1..=3 {
        let got = runtime.agent("draft").unwrap().call(CallRequest::of(json!({}))).await;
        assert_eq!((code(&got), small.count()), ("OK".to_owned(), turn), "{got:?}");
        settle().await;
    }
}

/// The loader refuses such ladders; whoever builds them in Rust gets each place asked once all the same.
#[tokio::test(start_paused = true)]
async fn no_place_is_asked_twice_by_way_of_other_agents() {
    let at = |name: &str, provider: &str, model: &str| {
        let mut settings = agent(name, provider);
        settings.model = Some(model.to_owned());
        settings.retry.attempts_max = 1;
        settings
    };
    let [draft, first, again, same] = [(), (), (), ()].map(|()| Scripted::always(Answer::status(500)));
    let further =
        TargetSettings { provider: name("a"), model: Some("x".to_owned()), rank: Rank { order: 2, weight: 1 } };
    let runtime = builder()
        .provider(provider("a"))
        .provider(provider("b"))
        .agent(at("draft", "a", "x"), draft.clone())
        .agent_with_targets(
            at("small", "b", "s"),
            Rank { order: 1, weight: 1 },
            first.clone(),
            vec![(further, again.clone() as Arc<_>)],
        )
        .agent(at("tiny", "a", "x"), same.clone())
        .ladders(of_draft(whole(&[Rung::Lighter])))
        .start()
        .await
        .unwrap();
    let result = call(&runtime, "draft").await;
    assert_eq!(code(&result), "AGENT_ERROR");
    assert_eq!((draft.count(), first.count(), again.count(), same.count()), (1, 1, 0, 0), "{:?}", codes_of(&result));
    assert_eq!(codes_of(&result), ["a/x AGENT_ERROR", "b/s AGENT_ERROR", "tiny NOT_FOUND"]);
}

#[tokio::test(start_paused = true)]
async fn a_failed_call_is_answered_by_a_lighter_target_that_says_so() {
    let world = world(whole(&[Rung::Lighter])).await;
    world.draft.now(Answer::status(500));
    world.small.now(Answer::status(503));
    let result = call(&world.runtime, "draft").await;
    assert_eq!(action(&result), Some((Cause::Error, Rung::Lighter)));
    assert_eq!(codes_of(&result), ["a AGENT_ERROR", "b AGENT_ERROR"]);
    let reply = result.unwrap();
    assert_eq!((&*reply.target, reply.fallback.as_deref()), ("c", Some("c")));
    assert_eq!(reply.attempts.len(), 3, "what was tried was paid for");
    assert_eq!(reply.degraded.unwrap().error.http_status, 500, "the first error is kept");
    assert_eq!((world.draft.count(), world.small.count(), world.tiny.count()), (1, 1, 1), "each once");
    // A good call is no business of the ladder.
    world.draft.now(Answer::Good);
    let good = call(&world.runtime, "draft").await;
    assert!(action(&good).is_none() && good.unwrap().tries.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_refused_call_goes_down_too_and_the_guards_below_are_their_own() {
    let narrow = AgentSettings { slots: 0, ..agent("draft", "a") };
    let world = world_with(of_draft(whole(&[Rung::Lighter])), narrow, None).await;
    let full = call(&world.runtime, "draft").await;
    assert_eq!(action(&full), Some((Cause::BulkheadFull, Rung::Lighter)));
    world.runtime.act("agent:draft", BreakerAct::ForceOpen).unwrap();
    world.runtime.act("agent:small", BreakerAct::ForceOpen).unwrap();
    settle().await;
    let shut = call(&world.runtime, "draft").await;
    assert_eq!(action(&shut), Some((Cause::CircuitOpen, Rung::Lighter)));
    assert_eq!(&*shut.unwrap().target, "c");
    assert_eq!((world.draft.count(), world.small.count(), world.tiny.count()), (0, 1, 1));
}

#[tokio::test(start_paused = true)]
async fn the_first_error_comes_back_when_nobody_answers() {
    let world = world(whole(&[Rung::Lighter])).await;
    world.draft.now(Answer::ending(Ending::Network { connected: false }));
    world.small.now(Answer::status(500));
    world.tiny.now(Answer::status(400));
    let result = call(&world.runtime, "draft").await;
    assert_eq!(code(&result), "AGENT_NETWORK_ERROR");
    let error = result.unwrap_err();
    assert_eq!(error.tries.len(), 3);
    assert_eq!(error.envelope.details["tries"].as_array().unwrap().len(), 3);
    assert_eq!(error.envelope.details["attempts"], 3);
    assert!(error.degraded.is_none());
}

#[tokio::test(start_paused = true)]
async fn the_requests_own_fault_and_a_begun_answer_are_left_alone() {
    let world = world(whole(&[Rung::Lighter, Rung::Default, Rung::Notice])).await;
    world.draft.now(Answer::status(400));
    let fault = call(&world.runtime, "draft").await;
    assert_eq!((code(&fault).as_str(), action(&fault)), ("AGENT_ERROR", None));
    // The first piece is out, and then the stream breaks off.
    world.draft.now(Answer::Content(Box::new(Answer::ending(Ending::StreamCut))));
    let (deltas, mut pieces) = tokio::sync::mpsc::channel(4);
    let request = CallRequest { deltas: Some(deltas), ..CallRequest::of(Value::Null) };
    let cut = world.runtime.agent("draft").unwrap().call(request).await;
    assert_eq!((pieces.recv().await.as_deref(), action(&cut)), (Some("piece"), None));
    assert_eq!((code(&cut).as_str(), world.small.count()), ("AGENT_BAD_REPLY", 0));
}

#[tokio::test(start_paused = true)]
async fn a_lighter_target_that_began_to_answer_is_the_last() {
    let world = world(whole(&[Rung::Lighter, Rung::Default])).await;
    world.draft.now(Answer::status(500));
    world.small.now(Answer::Content(Box::new(Answer::ending(Ending::StreamCut))));
    let (deltas, _pieces) = tokio::sync::mpsc::channel(4);
    let request = CallRequest { deltas: Some(deltas), ..CallRequest::of(Value::Null) };
    let cut = world.runtime.agent("draft").unwrap().call(request).await;
    assert_eq!((code(&cut).as_str(), world.tiny.count()), ("AGENT_ERROR", 0));
    assert_eq!(cut.unwrap_err().tries.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn who_wants_only_the_agents_own_answer_gets_it_or_the_error() {
    let world = world(whole(&[Rung::Lighter, Rung::Default])).await;
    world.draft.now(Answer::status(500));
    let context = CallContext { ladder: LadderUse::Never, ..CallContext::default() };
    let own = call_with(&world.runtime, "draft", context).await;
    assert_eq!((code(&own).as_str(), action(&own), world.small.count()), ("AGENT_ERROR", None, 0));
}

#[tokio::test(start_paused = true)]
async fn a_default_answers_and_a_notice_is_an_error_for_people() {
    let world = world(whole(&[Rung::Default])).await;
    world.draft.now(Answer::status(503));
    let stated = call(&world.runtime, "draft").await;
    assert_eq!(action(&stated), Some((Cause::Error, Rung::Default)));
    let reply = stated.unwrap();
    assert_eq!((reply.output, reply.attempts.len()), (json!({ "text": "stated" }), 1));
    world.reload(of_draft(whole(&[Rung::Notice]))).await.unwrap();
    let noticed = call(&world.runtime, "draft").await;
    assert_eq!(action(&noticed), Some((Cause::Error, Rung::Notice)));
    let envelope = noticed.unwrap_err().envelope;
    assert_eq!((envelope.error_code, envelope.user_message.as_str()), (ErrorCode::AgentError, "Back soon"));
    let korean = envelope.in_language(watertight::model::language::Language::Ko);
    assert_eq!(korean.user_message, "잠시 쉬어 갑니다");
}

#[tokio::test(start_paused = true)]
async fn a_feature_has_a_ladder_of_its_own() {
    let chat = LadderSettings { rungs: rungs(&[Rung::Notice]), ..LadderSettings::default() };
    let features = [(name("chat"), chat)].into();
    let ladders = Ladders { features, ..of_draft(whole(&[Rung::Lighter])) };
    let world = world_with(ladders, agent("draft", "a"), None).await;
    world.draft.now(Answer::status(500));
    let of = |feature: &str| CallContext { feature: Some(feature.to_owned()), ..CallContext::default() };
    let chat = call_with(&world.runtime, "draft", of("chat")).await;
    assert_eq!((action(&chat), world.small.count()), (Some((Cause::Error, Rung::Notice)), 0));
    assert_eq!(chat.unwrap_err().envelope.user_message, "Back soon", "the agent's own text where the feature has none");
    let other = call_with(&world.runtime, "draft", of("search")).await;
    assert_eq!(action(&other), Some((Cause::Error, Rung::Lighter)));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_does_not_fit_is_not_taken_there() {
    let mut ladder = whole(&[Rung::Lighter]);
    ladder.lighter[0].context_tokens = Some(100);
    ladder.lighter[1].effect = Effect::Evicts;
    let world = world(ladder).await;
    world.draft.now(Answer::status(500));
    let handle = world.runtime.agent("draft").unwrap();
    let long = handle.call(CallRequest::of(json!({ "text": "lorem ipsum ".repeat(500) }))).await;
    assert_eq!((world.small.count(), world.tiny.count()), (0, 0));
    assert_eq!(codes_of(&long)[1..], ["small TOKEN_REQUEST_TOO_LARGE", "tiny AGENT_WARMING"]);
    let picture = json!({ "text": "short", "image": format!("data:image/png;base64,{}", "A".repeat(100_000)) });
    let short = handle.call(CallRequest::of(picture)).await;
    assert_eq!((action(&short), world.small.count()), (Some((Cause::Error, Rung::Lighter)), 1));
}

/// The window has to hold the lighter model's own prompt and its longest answer too, as far as its adapter can count them.
#[tokio::test(start_paused = true)]
async fn a_window_holds_prompt_and_answer() {
    for (window, want) in [(299, "tiny"), (300, "small")] {
        let mut ladder = whole(&[Rung::Lighter]);
        ladder.lighter[0].context_tokens = Some(window);
        let draft = Scripted::always(Answer::status(500));
        let mut builder = builder().ladders(of_draft(ladder)).provider(provider("a")).agent(agent("draft", "a"), draft);
        for (of, place) in [("small", "small"), ("tiny", "tiny")] {
            builder = builder.provider(provider(place));
            builder = builder.agent(agent(of, place), Metered::of(Scripted::always(Answer::Good)));
        }
        let runtime = builder.start().await.unwrap();
        assert_eq!(&*call(&runtime, "draft").await.unwrap().target, want, "{window}");
    }
}

/// TRAPS part 3, 26 and 37: a budget that is used up is a reason to go elsewhere, for each way of being used up; and whoever is asked
/// instead has a budget of its own, which refuses as any does.
#[tokio::test(start_paused = true)]
async fn a_budget_that_is_used_up_is_a_reason_to_go_elsewhere() {
    let once = |code| {
        let mut rates = Rates::default();
        match code {
            ErrorCode::RateLimited => rates.requests_per_minute = Some(1),
            _ => rates.tokens_per_minute = Some(300),
        }
        rates
    };
    for used_up in [ErrorCode::RateLimited, ErrorCode::TokenBudgetExhausted] {
        let backends = [(); 3].map(|()| Metered::of(Scripted::always(Answer::Good)));
        let mut builder = builder().ladders(of_draft(whole(&[Rung::Lighter])));
        for (at, (of, place)) in [("draft", "a"), ("small", "b"), ("tiny", "c")].into_iter().enumerate() {
            let rates = if of == "tiny" { Rates::default() } else { once(used_up) };
            builder = builder.provider(ProviderSettings { rates, ..provider(place) });
            builder = builder.agent(agent(of, place), backends[at].clone());
        }
        let runtime = builder.start().await.unwrap();
        assert!(action(&call(&runtime, "draft").await).is_none());
        let second = call(&runtime, "draft").await;
        assert_eq!(action(&second), Some((Cause::Budget, Rung::Lighter)), "{used_up}");
        let third = call(&runtime, "draft").await;
        assert_eq!(codes_of(&third)[..2], [format!("a {used_up}"), format!("small {used_up}")], "{third:?}");
        assert_eq!((action(&third), &*third.unwrap().target), (Some((Cause::Budget, Rung::Lighter)), "c"));
        assert_eq!(backends.each_ref().map(|backend| backend.count()), [1, 1, 1]);
    }
}

/// A call is one of its caller's and its feature's, whoever answers it in the end: an outage that the ladder carries shuts out nobody.
#[tokio::test(start_paused = true)]
async fn a_call_that_a_lighter_model_answers_is_one_call() {
    const CALLS: u32 = 6;
    let feature = FeatureSettings {
        rates: Rates { requests_per_minute: Some(CALLS), ..Rates::default() },
        ..FeatureSettings::new(name("chat"))
    };
    for main_admits in [true, false] {
        let [main, small] = [Answer::status(500), Answer::Good].map(Scripted::always);
        let runtime = builder()
            .compartments(CompartmentSettings { features: vec![feature.clone()], ..CompartmentSettings::default() })
            .callers(CallerSettings { volume: Some(VolumeSettings::of_calls(CALLS)), scope: CallerScope::Caller })
            .provider(provider("a"))
            .provider(provider("b"))
            .agent(agent("draft", "a"), main.clone())
            .agent(agent("small", "b"), small.clone())
            .ladders(of_draft(whole(&[Rung::Lighter])))
            .start()
            .await
            .unwrap();
        let act = if main_admits { BreakerAct::Disable } else { BreakerAct::ForceOpen };
        runtime.act("agent:draft", act).unwrap();
        settle().await;
        let context = || CallContext { feature: Some("chat".into()), ..CallContext::default() };
        for nth in 1..=CALLS {
            let result = call_with(&runtime, "draft", context()).await;
            assert!(result.is_ok(), "the main one admits: {main_admits}, call {nth}: {result:?}");
        }
        let refused = call_with(&runtime, "draft", context()).await;
        assert!(refused.is_err(), "the main one admits: {main_admits}: each of them counts once, whoever is asked");
        assert_eq!(small.count(), CALLS as usize);
    }
}

/// A feature's ladder is that of every call that is counted as the feature's, by whatever name or none.
#[tokio::test(start_paused = true)]
async fn strangers_go_down_the_ladder_of_the_feature_that_they_count_as() {
    let of_batch = LadderSettings { rungs: rungs(&[Rung::Default]), ..whole(&[]) };
    let ladders = Ladders {
        agents: [(name("draft"), whole(&[Rung::Lighter]))].into(),
        features: [(name("batch"), of_batch)].into(),
    };
    let compartments = CompartmentSettings {
        features: ["chat", "batch"].map(|of| FeatureSettings::new(name(of))).into(),
        unknown_feature: UnknownFeature::Is(name("batch")),
        ..CompartmentSettings::default()
    };
    let [main, small] = [Answer::status(500), Answer::Good].map(Scripted::always);
    let runtime = builder()
        .compartments(compartments)
        .provider(provider("a"))
        .provider(provider("b"))
        .agent(agent("draft", "a"), main)
        .agent(agent("small", "b"), small)
        .ladders(ladders)
        .start()
        .await
        .unwrap();
    let by = [
        (Some("chat"), Rung::Lighter),
        (Some("batch"), Rung::Default),
        (Some("odd"), Rung::Default),
        (None, Rung::Default),
    ];
    for (feature, want) in by {
        runtime.act("agent:draft", BreakerAct::Reset).unwrap();
        settle().await;
        let context = CallContext { feature: feature.map(str::to_owned), ..CallContext::default() };
        let result = call_with(&runtime, "draft", context).await;
        assert_eq!(action(&result).map(|(_, rung)| rung), Some(want), "{feature:?}");
    }
}

/// However many stand in for an agent, a call stands in line once: what is left of its patience is all that the next one gets of it.
#[tokio::test(start_paused = true)]
async fn one_call_is_one_stay_in_line() {
    let feature = FeatureSettings { max_wait: s(2), ..FeatureSettings::new(name("chat")) };
    let mut builder = builder()
        .compartments(CompartmentSettings { features: vec![feature], ..CompartmentSettings::default() })
        .ladders(of_draft(whole(&[Rung::Lighter])));
    for (of, place) in [("draft", "a"), ("small", "b"), ("tiny", "c")] {
        let mut settings = agent(of, place);
        settings.slots = 1;
        builder = builder.provider(provider(place)).agent(settings, Scripted::always(Answer::Hang));
    }
    let runtime = builder.start().await.unwrap();
    let context = || CallContext { feature: Some("chat".into()), ..CallContext::default() };
    for of in ["draft", "small", "tiny"] {
        let front = runtime.agent(of).unwrap();
        let request = CallRequest { context: context(), ..CallRequest::of(Value::Null) };
        tokio::spawn(async move { front.call(request).await });
    }
    settle().await;
    let asked = tokio::time::Instant::now();
    let refused = call_with(&runtime, "draft", context()).await;
    assert_eq!(code(&refused), "AGENT_BULKHEAD_FULL");
    assert!((s(2)..s(3)).contains(&asked.elapsed()), "{:?}", asked.elapsed());
}

/// Whoever is named twice is asked once, and the agent itself is not asked again by its own ladder.
#[tokio::test(start_paused = true)]
async fn each_target_is_asked_once() {
    let mut ladder = whole(&[Rung::Lighter]);
    ladder.lighter = ["small", "draft", "small", "tiny", "tiny"].map(lighter).to_vec();
    let world = world(ladder).await;
    for backend in [&world.draft, &world.small, &world.tiny] {
        backend.now(Answer::status(500));
    }
    let result = call(&world.runtime, "draft").await;
    assert_eq!(code(&result), "AGENT_ERROR");
    assert_eq!((world.draft.count(), world.small.count(), world.tiny.count()), (1, 1, 1));
    assert_eq!(codes_of(&result).len(), 3);
}

/// What an answer from below costs is seen where it happened: the lighter one's breaker opens by its own failures, and a call that it
/// answers is no failure of its own because the main one failed.
#[tokio::test(start_paused = true)]
async fn each_rung_is_judged_by_what_it_did_itself() {
    let world = world(whole(&[Rung::Lighter])).await;
    world.draft.now(Answer::status(500));
    for _ in 0..5 {
        assert_eq!(action(&call(&world.runtime, "draft").await), Some((Cause::Error, Rung::Lighter)));
    }
    settle().await;
    let state = |breaker: &str| world.runtime.breaker(breaker).unwrap().state;
    assert_eq!((state("agent:draft"), state("agent:small")), (StateName::Open, StateName::Closed));
    world.small.now(Answer::status(500));
    for _ in 0..5 {
        assert_eq!(action(&call(&world.runtime, "draft").await), Some((Cause::CircuitOpen, Rung::Lighter)));
    }
    settle().await;
    let asked = world.small.count();
    assert_eq!((state("agent:small"), state("agent:tiny")), (StateName::Open, StateName::Closed));
    let result = call(&world.runtime, "draft").await;
    assert_eq!(codes_of(&result), ["a AGENT_CIRCUIT_OPEN", "small AGENT_CIRCUIT_OPEN"]);
    assert_eq!((world.small.count(), &*result.unwrap().target), (asked, "c"));
}

/// A server that keeps one model: the rung that would throw the main one out is left out, and whoever comes back to it pays no load.
#[tokio::test(start_paused = true)]
async fn a_lighter_model_does_not_push_the_main_one_out() {
    for (effect, answered, loads) in [(Effect::Evicts, false, 1), (Effect::None, true, 3)] {
        let server = ModelServer::start(s(1));
        let mut ladder = whole(&[Rung::Lighter]);
        ladder.lighter = vec![LighterTarget { effect, ..lighter("small") }];
        let local = ProviderSettings { slots: Some(1), loaded_models: LoadedModels::AtMost(1), ..provider("local") };
        let mut builder = builder().provider(local).ladders(of_draft(ladder));
        for (of, model) in [("draft", "large"), ("small", "small")] {
            builder =
                builder.agent(AgentSettings { model: Some(model.into()), ..agent(of, "local") }, server.model(model));
        }
        let runtime = builder.start().await.unwrap();
        assert_eq!(code(&call(&runtime, "draft").await), "OK");
        runtime.act("agent:draft", BreakerAct::ForceOpen).unwrap();
        settle().await;
        let refused = call(&runtime, "draft").await;
        assert_eq!(refused.is_ok(), answered, "{effect:?}: {refused:?}");
        if !answered {
            assert_eq!(codes_of(&refused).last().map(String::as_str), Some("small AGENT_WARMING"));
        }
        runtime.act("agent:draft", BreakerAct::Auto).unwrap();
        settle().await;
        assert_eq!(code(&call(&runtime, "draft").await), "OK");
        assert_eq!(server.counts().0, loads, "{effect:?}");
    }
}

fn settings() -> DeferredSettings {
    DeferredSettings {
        jitter: 0.0,
        attempts_max: 3,
        expires_after: Duration::from_secs(3_600),
        ..DeferredSettings::default()
    }
}

async fn deferring(queue: &Arc<FakeQueue>, settings: DeferredSettings, push: Option<Arc<FakePush>>) -> World {
    let ladders = of_draft(whole(&[Rung::Deferred]));
    world_with(ladders, agent("draft", "a"), Some((Arc::clone(queue), settings, push))).await
}

async fn put_off(world: &World, context: CallContext) -> CallError {
    world.draft.now(Answer::status(503));
    let error = call_with(&world.runtime, "draft", context).await.unwrap_err();
    assert!(error.deferred.is_some() && error.exhausted, "{error:?}");
    error
}

#[tokio::test(start_paused = true)]
async fn a_ladder_that_puts_off_needs_a_place_to_keep_calls() {
    let refused = builder()
        .provider(provider("a"))
        .agent(agent("draft", "a"), Scripted::always(Answer::Good))
        .ladders(of_draft(whole(&[Rung::Deferred])))
        .start()
        .await;
    assert!(matches!(refused, Err(StartError::NoQueue)));
    let world = world(whole(&[Rung::Notice])).await;
    let refused = world.reload(of_draft(whole(&[Rung::Deferred]))).await;
    assert!(matches!(refused, Err(StartError::NoQueue)));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_was_put_off_is_made_when_its_time_has_come() {
    let queue = FakeQueue::new();
    let push = FakePush::from(3);
    let quick = PushSettings { backoff: s(10), ..PushSettings::default() };
    let world = deferring(&queue, DeferredSettings { push: quick, ..settings() }, Some(push.clone())).await;
    let context = CallContext {
        tenant: Some("acme".into()),
        feature: Some("batch".into()),
        idempotency_key: Some("key-1".into()),
        ..CallContext::default()
    };
    let ticket = put_off(&world, context.clone()).await.deferred.unwrap();
    assert_eq!(ticket.expires_ms - ticket.due_ms, 55 * 60 * 1_000);
    // The same call again is the same entry.
    assert_eq!(put_off(&world, context).await.deferred.unwrap().id, ticket.id);
    world.draft.now(Answer::Good);
    let before = world.draft.count();
    pass(s(299)).await;
    assert_eq!(world.draft.count(), before, "not before its time");
    pass(s(2)).await;
    assert_eq!(world.draft.count(), before + 1);
    let entry = &queue.entries()[0];
    assert_eq!((entry.status, entry.attempts, entry.refusals), (DeferredStatus::Done, 1, 0));
    let made = world.draft.requests.lock().unwrap().last().unwrap().clone();
    assert_eq!((made.idempotency_key.as_str(), made.priority.as_deref()), ("key-1", Some("background")));
    assert_eq!((made.tenant.as_deref(), made.feature.as_deref()), (Some("acme"), Some("batch")));
    // Its end is told until it is taken.
    pass(s(31)).await;
    let told: Vec<u32> = push.told().iter().map(|(_, attempt)| *attempt).collect();
    assert_eq!(told, [1, 2, 3]);
    let (view, _) = &push.told()[2];
    assert_eq!(
        (view.id.as_str(), view.status, view.output.is_some()),
        (ticket.id.as_str(), DeferredStatus::Done, true)
    );
    let delivery = queue.entries()[0].delivery.clone().unwrap();
    assert_eq!((delivery.status, delivery.attempts), (DeliveryStatus::Delivered, 3));
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_no_attempt_and_failures_are_counted_to_their_end() {
    let queue = FakeQueue::new();
    let world = deferring(&queue, settings(), None).await;
    put_off(&world, CallContext::default()).await;
    world.runtime.act("agent:draft", BreakerAct::ForceOpen).unwrap();
    let sent = world.draft.count();
    pass(s(20 * 60 + 5)).await;
    let entry = &queue.entries()[0];
    assert_eq!(
        (entry.status, entry.attempts, entry.refusals),
        (DeferredStatus::Waiting, 0, 4),
        "one refusal each delay"
    );
    assert_eq!(world.draft.count(), sent);
    world.runtime.act("agent:draft", BreakerAct::Auto).unwrap();
    world.runtime.act("agent:draft", BreakerAct::Auto).unwrap();
    pass(s(20 * 60)).await;
    let entry = &queue.entries()[0];
    assert_eq!((entry.status, entry.attempts), (DeferredStatus::Failed, 3), "attempts_max");
    assert_eq!(world.draft.count(), sent + 3);
    assert_eq!(entry.result.as_ref().unwrap().error.as_ref().unwrap().error_code, ErrorCode::AgentError);
}

/// A file that is half edited, or a name that is mistyped for minutes, must not empty the queue.
#[tokio::test(start_paused = true)]
async fn a_name_that_a_reload_takes_away_is_waited_for() {
    let queue = FakeQueue::new();
    let world = deferring(&queue, settings(), None).await;
    let ladders = || of_draft(whole(&[Rung::Deferred]));
    let chat =
        || CompartmentSettings { features: vec![FeatureSettings::new(name("chat"))], ..CompartmentSettings::default() };
    world.reload_with(ladders(), chat()).await.unwrap();
    put_off(&world, CallContext { feature: Some("chat".into()), ..CallContext::default() }).await;
    let sent = world.draft.count();
    world.draft.now(Answer::Good);
    let refused = |refusals: u32| {
        let entry = &queue.entries()[0];
        assert_eq!((entry.status, entry.attempts, entry.refusals), (DeferredStatus::Waiting, 0, refusals), "{entry:?}");
    };
    // The feature is called something else.
    let talk =
        CompartmentSettings { features: vec![FeatureSettings::new(name("talk"))], ..CompartmentSettings::default() };
    world.reload_with(ladders(), talk).await.unwrap();
    pass(s(301)).await;
    refused(1);
    // Its agent is gone as well.
    let parts = Parts::new().provider(provider("b")).agent(agent("small", "b"), world.small.clone());
    world.runtime.reload(parts.compartments(chat()).deferred(settings())).await.unwrap();
    pass(s(301)).await;
    refused(2);
    world.reload_with(ladders(), chat()).await.unwrap();
    pass(s(301)).await;
    let entry = &queue.entries()[0];
    assert_eq!((entry.status, entry.attempts), (DeferredStatus::Done, 1));
    assert_eq!(world.draft.count(), sent + 1);
    // For ever is until it is too old.
    put_off(&world, CallContext { feature: Some("chat".into()), ..CallContext::default() }).await;
    let gone =
        CompartmentSettings { features: vec![FeatureSettings::new(name("talk"))], ..CompartmentSettings::default() };
    world.reload_with(ladders(), gone).await.unwrap();
    pass(s(3_700)).await;
    assert_eq!(queue.entries()[1].status, DeferredStatus::Expired);
}

#[tokio::test(start_paused = true)]
async fn what_is_too_old_is_made_no_more() {
    let queue = FakeQueue::new();
    let world = deferring(&queue, settings(), None).await;
    put_off(&world, CallContext::default()).await;
    world.runtime.act("agent:draft", BreakerAct::ForceOpen).unwrap();
    pass(s(3_700)).await;
    assert_eq!(queue.entries()[0].status, DeferredStatus::Expired);
    world.runtime.act("agent:draft", BreakerAct::Auto).unwrap();
    let sent = world.draft.count();
    pass(s(3_600)).await;
    assert_eq!(world.draft.count(), sent);
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_passes_the_call_on_to_the_next_rung() {
    let queue = FakeQueue::new();
    let bounds = QueueBounds { entries_max: 1, tenant_entries_max: 1 };
    let ladders = of_draft(whole(&[Rung::Deferred, Rung::Default]));
    let full = DeferredSettings { bounds, entry_bytes_max: 2_000, ..settings() };
    let world = world_with(ladders, agent("draft", "a"), Some((queue.clone(), full, None))).await;
    world.draft.now(Answer::status(500));
    let large = CallRequest::of(json!("x".repeat(3_000)));
    let too_large = world.runtime.agent("draft").unwrap().call(large).await;
    assert_eq!(action(&too_large), Some((Cause::Error, Rung::Default)), "what is too large is not kept");
    assert!(call(&world.runtime, "draft").await.unwrap_err().deferred.is_some());
    let second = call(&world.runtime, "draft").await;
    assert_eq!(action(&second), Some((Cause::Error, Rung::Default)));
    assert_eq!(codes_of(&second)[1..], ["deferred AGENT_BULKHEAD_FULL"]);
    assert_eq!(queue.entries().len(), 1);
}

/// Who put off many calls to an agent that hangs keeps nobody else from having one made.
#[tokio::test(start_paused = true)]
async fn an_agent_that_hangs_does_not_hold_every_place() {
    let queue = FakeQueue::new();
    let ladders = Ladders {
        agents: ["draft", "small"].map(|agent| (name(agent), whole(&[Rung::Deferred]))).into(),
        features: HashMap::new(),
    };
    let few = DeferredSettings { parallel: 2, ..settings() };
    let world = world_with(ladders, agent("draft", "a"), Some((queue.clone(), few, None))).await;
    let of = |tenant: &str| CallContext { tenant: Some(tenant.into()), ..CallContext::default() };
    for _ in 0..4 {
        put_off(&world, of("x")).await;
    }
    pass(s(10)).await;
    world.small.now(Answer::status(503));
    assert!(call_with(&world.runtime, "small", of("y")).await.unwrap_err().deferred.is_some());
    world.draft.now(Answer::Hang);
    world.small.now(Answer::Good);
    let sent = world.draft.count();
    pass(s(292)).await;
    assert_eq!(world.draft.count() - sent, 1);
    pass(s(10)).await;
    let status = |at: usize| queue.entries()[at].status;
    assert_eq!((status(0), status(4)), (DeferredStatus::Waiting, DeferredStatus::Done));
    // Those that stood behind come when the one before them is over.
    world.draft.now(Answer::Good);
    pass(s(3_000)).await;
    assert!(queue.entries().iter().all(|entry| entry.status == DeferredStatus::Done), "{:?}", queue.entries());
}

#[tokio::test(start_paused = true)]
async fn so_many_are_made_at_once_and_a_stop_leaves_the_rest() {
    let queue = FakeQueue::new();
    let world = deferring(&queue, DeferredSettings { parallel: 3, ..settings() }, None).await;
    for _ in 0..5 {
        put_off(&world, CallContext::default()).await;
    }
    let sent = world.draft.count();
    world.draft.now(Answer::Hang);
    pass(s(301)).await;
    assert_eq!(world.draft.count() - sent, 2, "one place is another agent's");
    world.runtime.stop(Duration::ZERO).await;
    let waiting = queue.entries().iter().filter(|entry| entry.status == DeferredStatus::Waiting).count();
    assert_eq!(waiting, 5, "nothing is lost");
    // The next life takes them all up, with the same keys.
    let keys: Vec<String> = queue.calls().iter().map(|call| call.head.idempotency_key.clone()).collect();
    let next = deferring(&queue, settings(), None).await;
    pass(s(301)).await;
    let done = queue.entries().iter().filter(|entry| entry.status == DeferredStatus::Done).count();
    assert_eq!((done, next.draft.count()), (5, 5));
    let mut made: Vec<String> =
        next.draft.requests.lock().unwrap().iter().map(|request| request.idempotency_key.clone()).collect();
    made.sort();
    let mut keys = keys;
    keys.sort();
    assert_eq!(made, keys);
}
