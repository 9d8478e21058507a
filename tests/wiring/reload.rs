//! Other settings for a runtime that runs.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
};

use watertight::{
    model::{
        name::Name,
        reply::{AttemptFailure, Reply},
    },
    policy::{breaker::state::StateName, compartment::settings::Rates, tokens::draw::AccountId},
    runtime::{
        builder::StartError,
        call::CallRequest,
        engine::Runtime,
        handle::AgentHandle,
        parts::Parts,
        ports::{AttemptRequest, Backend, BoxFuture, Progress},
        reload::report::ReloadReport,
        settings::{AgentSettings, ProviderSettings, TargetSettings},
    },
};

use crate::{
    kit::{Answer, Scripted, agent, builder, call, call_later, code, name, one_agent, pass, provider, settle},
    support::{Call, FOUR, changes, codes, hold, ms, s, state},
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

/// A backend at an address.
struct At(&'static str, Arc<Scripted>);

impl Backend for At {
    fn attempt<'a>(
        &'a self,
        request: &'a AttemptRequest,
        progress: &'a Progress,
    ) -> BoxFuture<'a, Result<Reply, AttemptFailure>> {
        self.1.attempt(request, progress)
    }

    fn stands_at(&self) -> Option<Arc<str>> {
        Some(self.0.into())
    }
}

/// Another server behind the same name: failures of the one before open nothing for it, but who was told when to come back is not told
/// otherwise.
#[tokio::test(start_paused = true)]
async fn another_server_begins_with_an_empty_window_and_an_open_breaker_stays_open() {
    let backend = Scripted::always(Answer::status(500));
    let mut settings = agent("draft", "local");
    settings.retry.attempts_max = 1;
    let at = |place: &'static str| {
        let both = [settings.clone(), AgentSettings { name: name("review"), ..settings.clone() }];
        let parts = Parts::new().provider(provider("local"));
        both.into_iter().fold(parts, |parts, agent| parts.agent(agent, Arc::new(At(place, backend.clone()))))
    };
    let runtime = builder().provider(provider("local")).agent(settings.clone(), Arc::new(At("a", backend.clone())));
    let runtime = runtime.start().await.unwrap();
    let failed = |breaker: &str| runtime.breaker(breaker).unwrap().counts.failed;
    runtime.reload(at("a")).await.unwrap();
    codes(&runtime, "draft", 2).await;
    runtime.reload(at("a")).await.unwrap();
    assert_eq!((failed("agent:draft"), failed("provider:local")), (2, 2), "the same place");
    backend.now(Answer::status(500).after(s(1)));
    let late = Call(call_later(&runtime, "draft"));
    settle().await;
    runtime.reload(at("b")).await.unwrap();
    assert_eq!(code(&late.end().await), "AGENT_ERROR");
    settle().await;
    assert_eq!((failed("agent:draft"), failed("provider:local")), (0, 0), "what the old place did, and still does");
    backend.now(Answer::status(500));
    codes(&runtime, "draft", 4).await;
    assert_eq!(state(&runtime, "agent:draft"), StateName::Closed, "four, and two or three elsewhere");
    codes(&runtime, "draft", 1).await;
    assert_eq!(state(&runtime, "agent:draft"), StateName::Open);
    pass(s(10)).await;
    runtime.reload(at("c")).await.unwrap();
    backend.now(Answer::Good);
    pass(s(19)).await;
    assert_eq!(code(&call(&runtime, "draft").await), "AGENT_CIRCUIT_OPEN");
    pass(s(1)).await;
    assert_eq!(state(&runtime, "agent:draft"), StateName::HalfOpen);
    codes(&runtime, "draft", 2).await;
    runtime.reload(at("d")).await.unwrap();
    codes(&runtime, "draft", 2).await;
    assert_eq!(state(&runtime, "agent:draft"), StateName::HalfOpen, "its trials are of the new place, all of them");
    codes(&runtime, "draft", 1).await;
    assert_eq!(state(&runtime, "agent:draft"), StateName::Closed);
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
    let is_gone =
        |label: &str| runtime.gone_gauges().iter().any(|gone| gone.labels.iter().any(|(_, value)| &**value == label));
    assert!(is_gone("draft") && is_gone("agent:draft"));
    assert_eq!(code(&handle.call(CallRequest::of(serde_json::Value::Null)).await), "NOT_FOUND");
    assert_eq!(code(&call(&runtime, "review").await), "OK");
    assert_eq!(code(&running.end().await), "OK", "it ends as it began");
    pass(s(5)).await;
    assert_eq!(handle.in_flight(), 0);
    // It comes back: its actor had ended, a new one works for it.
    let report = runtime.reload(parts([agent("draft", "local")], &backend)).await.unwrap();
    assert_eq!((names(&report.removed), names(&report.added)), (vec!["review"], vec!["draft"]));
    assert!(!is_gone("draft") && !is_gone("agent:draft"));
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

/// What ends of calls were.
#[derive(Default)]
struct Ends(BTreeMap<String, usize>);

impl Ends {
    /// No call is lost: each has an answer, or a refusal of one of these guards.
    async fn take(&mut self, call: Call) {
        let code = code(&call.end().await);
        let known = ["OK", "AGENT_BULKHEAD_FULL", "RATE_LIMITED", "TOKEN_BUDGET_EXHAUSTED"].contains(&code.as_str());
        assert!(known, "{code}");
        *self.0.entry(code).or_default() += 1;
    }

    fn of(&self, code: &str) -> usize {
        self.0.get(code).copied().unwrap_or_default()
    }
}

/// The settings of one round.
struct Round {
    caps: [u32; 4],
    here: [bool; 4],
    shared: Option<u32>,
    requests_per_minute: u32,
    tokens_per_minute: u64,
}

impl Round {
    const REQUESTS_MAX: u32 = 9_000;

    fn drawn(dice: &mut fastrand::Rng) -> Self {
        Self {
            caps: std::array::from_fn(|_| dice.u32(0..80)),
            here: [true, dice.bool(), dice.u8(0..4) > 0, dice.u8(0..10) > 0],
            shared: dice.bool().then(|| dice.u32(20..200)),
            requests_per_minute: dice.u32(1_000..Self::REQUESTS_MAX),
            tokens_per_minute: dice.u64(10_000..300_000),
        }
    }

    /// Everything is there, and nobody is refused.
    fn quiet() -> Self {
        let (requests_per_minute, tokens_per_minute) = (Self::REQUESTS_MAX, 10_000_000);
        Self { caps: [10; 4], here: [true; 4], shared: None, requests_per_minute, tokens_per_minute }
    }

    fn parts(&self, backend: &Arc<Scripted>) -> Parts {
        let rates = Rates {
            requests_per_minute: Some(self.requests_per_minute),
            tokens_per_minute: Some(self.tokens_per_minute),
            ..Rates::default()
        };
        let local = ProviderSettings { slots: self.shared, rates, ..provider("local") };
        let agents = FOUR.into_iter().zip(self.caps).zip(self.here).filter(|(_, here)| *here);
        agents.fold(Parts::new().provider(local), |parts, ((name, slots), _)| {
            parts.agent(AgentSettings { slots, ..agent(name, "local") }, backend.clone())
        })
    }
}

/// What was seen at the end of a round.
#[derive(Default)]
struct Seen {
    in_flight: [u32; 4],
    used: u64,
}

impl Seen {
    /// Counts are what really is under way, nothing is over the larger of its old and its new limit.
    fn look(&mut self, round: &Round, runtime: &Runtime, handles: &[AgentHandle], backend: &Scripted) {
        for (at, handle) in handles.iter().enumerate() {
            // What is gone lets nobody in.
            let cap = if round.here[at] { round.caps[at] } else { 0 };
            let (now, bound) = (handle.in_flight(), cap.max(self.in_flight[at]));
            assert!(now <= bound, "{} has {now} of {bound}", FOUR[at]);
            assert!(handle.mailbox_depth() <= now);
        }
        let before: u32 = self.in_flight.iter().sum();
        self.in_flight = std::array::from_fn(|at| handles[at].in_flight());
        let now: u32 = self.in_flight.iter().sum();
        let bound = round.shared.unwrap_or(u32::MAX).max(before);
        assert!(now <= bound, "the provider has {now} of {bound}");
        assert_eq!(now, backend.running.load(Ordering::SeqCst), "neither too few nor too many");
        let budget = runtime.token_budget(&AccountId::Provider(name("local"))).unwrap();
        assert_eq!(budget.limit, round.tokens_per_minute);
        let bound = budget.limit.max(self.used);
        assert!(budget.used <= bound && budget.reserved <= budget.used, "{budget:?}");
        assert_eq!(budget.reserved > 0, now > 0, "{budget:?}");
        self.used = budget.used;
    }
}

/// A thousand reloads while two hundred calls are on their way: caps, limits and budgets up and down, agents in and out.
#[tokio::test(start_paused = true)]
async fn a_thousand_reloads_under_load_lose_nothing() {
    let mut dice = fastrand::Rng::with_seed(7);
    let backend = Scripted::always(Answer::Good.after(ms(700)));
    let ill = Scripted::always(Answer::status(500));
    let mut sick = agent("sick", "other");
    sick.breaker.open = s(3_600);
    sick.breaker.open_max = s(3_600);
    sick.breaker.open_jitter = 0.0;
    let with_sick =
        |parts: Parts, sick: &AgentSettings| parts.provider(provider("other")).agent(sick.clone(), ill.clone());
    let start = builder().parts(with_sick(Round::quiet().parts(&backend), &sick));
    let runtime = Arc::new(start.start().await.unwrap());
    codes(&runtime, "sick", 5).await;
    let handles: Vec<AgentHandle> = FOUR.iter().map(|name| runtime.agent(name).unwrap()).collect();
    let (mut seen, mut ends, mut missing, began) = (Seen::default(), Ends::default(), 0, tokio::time::Instant::now());
    let mut calls: Vec<Call> = Vec::new();
    for round in 0..1_000_u32 {
        let settings = Round::drawn(&mut dice);
        sick.breaker.failure_share = 0.5 + f64::from(round % 5) / 10.0;
        runtime.reload(with_sick(settings.parts(&backend), &sick)).await.unwrap();
        while calls.len() < 200 {
            let at = dice.usize(0..4);
            if !settings.here[at] {
                // By an old handle too: it is not found, and counted nowhere.
                let gone = handles[at].call(CallRequest::of(serde_json::Value::Null)).await;
                assert_eq!((code(&gone).as_str(), runtime.agent(FOUR[at]).is_none()), ("NOT_FOUND", true));
                missing += 1;
                break;
            }
            let handle = handles[at].clone();
            calls.push(Call(tokio::spawn(async move { handle.call(CallRequest::of(serde_json::Value::Null)).await })));
        }
        settle().await;
        seen.look(&settings, &runtime, &handles, &backend);
        assert_eq!(state(&runtime, "agent:sick"), StateName::Open, "round {round}");
        tokio::time::advance(ms(dice.u64(1..60))).await;
        settle().await;
        let (done, open): (Vec<Call>, Vec<Call>) = calls.into_iter().partition(|call| call.0.is_finished());
        calls = open;
        for call in done {
            ends.take(call).await;
        }
    }
    let took = began.elapsed();
    for call in calls {
        ends.take(call).await;
    }
    println!("{:?}, {missing} not found, {took:?}", ends.0);
    assert!(ends.0.values().all(|count| *count > 100) && ends.0.len() == 4 && missing > 0, "each guard had its say");
    // The bucket was full once, and what came due since is what its highest limit gives.
    let due = f64::from(Round::REQUESTS_MAX) * (1.0 + took.as_secs_f64() / 60.0);
    assert!(ends.of("OK") as f64 <= due, "{} of {due}", ends.of("OK"));
    runtime.reload(with_sick(Round::quiet().parts(&backend), &sick)).await.unwrap();
    pass(s(2)).await;
    for view in runtime.agents() {
        assert_eq!((view.in_flight, view.mailbox_depth, view.restarts), (0, 0, 0), "{}", view.name);
    }
    seen.look(&Round::quiet(), &runtime, &handles, &backend);
    assert_eq!((seen.in_flight, ill.count()), ([0; 4], 5), "nothing reached who is ill");
    pass(s(60)).await;
    seen.used = 0;
    seen.look(&Round::quiet(), &runtime, &handles, &backend);
    for name in FOUR {
        assert_eq!(code(&call(&runtime, name).await), "OK");
    }
    assert_eq!(code(&call(&runtime, "sick").await), "AGENT_CIRCUIT_OPEN");
}
