//! Five agents as processes under one runtime of the library: one dies or falls ill, the others feel nothing, and it comes back by
//! itself.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tokio::sync::broadcast;
use watertight::{
    model::name::Name,
    policy::breaker::{
        settings::{BreakerSettings, WindowKind},
        state::{Reason, StateName},
    },
    runtime::{
        book::BreakerEvent,
        call::CallRequest,
        engine::Runtime,
        settings::{AgentSettings, ProviderSettings},
    },
    transport::{
        client::{ProviderClient, ProviderOptions},
        http_agent::{backend::HttpAgent, mapping::HttpMapping},
    },
};

use crate::{
    process::{Agent, BOUND, five},
    project::{example, folder, text},
};

const OPEN: Duration = Duration::from_secs(1);

fn name(text: &str) -> Name {
    Name::try_new(text).unwrap()
}

/// Breakers as documented, but for times that a test can wait for.
fn breaker(open: Duration) -> BreakerSettings {
    BreakerSettings { open, open_jitter: 0.0, slow_call: Duration::from_millis(150), ..BreakerSettings::default() }
}

/// The library over these processes, each a provider of its own.
async fn runtime(agents: &[Agent], change: impl Fn(&mut AgentSettings)) -> Runtime {
    let mut builder = Runtime::builder().seed(7);
    for agent in agents {
        let client = Arc::new(ProviderClient::try_new(&ProviderOptions::at(&agent.url())).unwrap());
        let backend = Arc::new(HttpAgent::try_new(client, &HttpMapping::default()).unwrap());
        let mut settings = AgentSettings::new(name(agent.name), name(agent.name));
        settings.breaker = breaker(OPEN);
        settings.retry.attempts_max = 1;
        settings.timeouts.attempt = Some(Duration::from_millis(400));
        change(&mut settings);
        builder = builder.provider(ProviderSettings::new(name(agent.name))).agent(settings, backend);
    }
    builder.start().await.unwrap()
}

fn input(agent: &str) -> Value {
    match agent {
        "photos" => {
            json!({ "photos": [{ "name": "a.jpg", "file_id": format!("file-{}", "0".repeat(32)), "path": text(&example("input/photos/01-tumuli.jpg")) }] })
        }
        "style" => json!({ "notes": "A day at the sea. The wind was cold.", "language": "en" }),
        "draft" => json!({ "notes": "A day at the sea. The wind was cold.", "language": "en" }),
        _ => json!({ "draft": "A day at the sea. The wind was cold.", "language": "en" }),
    }
}

/// One call as its caller saw it.
#[derive(Debug, Clone)]
struct Seen {
    at: Instant,
    took: Duration,
    code: String,
}

/// Callers of all agents without a pause, until dropped.
struct Traffic {
    seen: Arc<Mutex<BTreeMap<String, Vec<Seen>>>>,
    over: Arc<AtomicBool>,
}

impl Traffic {
    fn start(runtime: &Runtime) -> Self {
        let (seen, over) = (Arc::new(Mutex::new(BTreeMap::<_, Vec<Seen>>::new())), Arc::new(AtomicBool::new(false)));
        for view in runtime.agents() {
            for _ in 0..2 {
                let handle = runtime.agent(view.name.as_str()).unwrap();
                let (seen, over, name) = (Arc::clone(&seen), Arc::clone(&over), view.name.to_string());
                tokio::spawn(async move {
                    while !over.load(Ordering::Relaxed) {
                        let at = Instant::now();
                        let result = handle.call(CallRequest::of(input(&name))).await;
                        let code = result.map_or_else(|error| error.envelope.error_code.to_string(), |_| "OK".into());
                        let call = Seen { at, took: at.elapsed(), code };
                        seen.lock().unwrap().entry(name.clone()).or_default().push(call);
                        tokio::time::sleep(Duration::from_millis(2)).await;
                    }
                });
            }
        }
        Self { seen, over }
    }

    fn of(&self, agent: &str) -> Vec<Seen> {
        self.seen.lock().unwrap().get(agent).cloned().unwrap_or_default()
    }

    fn codes(&self, agent: &str, since: Instant) -> Vec<String> {
        self.of(agent).into_iter().filter(|call| call.at >= since).map(|call| call.code).collect()
    }

    /// The median of good calls of an agent in a time.
    fn median(&self, agent: &str, from: Instant, to: Instant) -> Duration {
        let calls = self.of(agent).into_iter().filter(|call| call.at >= from && call.at < to && call.code == "OK");
        let mut took: Vec<Duration> = calls.map(|call| call.took).collect();
        took.sort_unstable();
        assert!(took.len() >= 20, "{agent}: {} calls", took.len());
        took[took.len() / 2]
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

/// Waits for something within the bound of all tests.
#[track_caller]
fn eventually(what: &str, holds: impl Fn() -> bool) -> impl Future<Output = ()> {
    let what = what.to_owned();
    async move {
        let began = Instant::now();
        while !holds() {
            assert!(began.elapsed() < BOUND, "never: {what}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

fn state(runtime: &Runtime, agent: &str) -> StateName {
    runtime.breaker(&format!("agent:{agent}")).unwrap().state
}

fn changes(events: &mut broadcast::Receiver<BreakerEvent>) -> Vec<BreakerEvent> {
    std::iter::from_fn(|| events.try_recv().ok()).collect()
}

/// The first code that is not good, and whether the gate shut afterwards.
fn ill_then_shut(codes: &[String]) -> (String, bool) {
    let ill = codes.iter().position(|code| code != "OK").unwrap();
    let shut = codes[ill..].iter().any(|code| code == "AGENT_CIRCUIT_OPEN");
    (codes[ill].clone(), shut)
}

/// The others went on as before: no failure, and medians that stay.
#[track_caller]
fn assert_others_felt_nothing(traffic: &Traffic, ill: &str, quiet: (Instant, Instant), sick: (Instant, Instant)) {
    for other in ["photos", "style", "draft", "review", "meta"].into_iter().filter(|other| *other != ill) {
        let codes = traffic.codes(other, quiet.0);
        assert!(codes.iter().all(|code| code == "OK"), "{other}: {codes:?}");
        let (before, during) = (traffic.median(other, quiet.0, quiet.1), traffic.median(other, sick.0, sick.1));
        let ratio = during.as_secs_f64() / before.as_secs_f64();
        assert!(ratio < 3.0, "{other}: {before:?} before, {during:?} while {ill} was ill");
    }
}

async fn all_have_calls(traffic: &Traffic, since: Instant) {
    for agent in ["photos", "style", "draft", "review", "meta"] {
        eventually("thirty calls", || traffic.codes(agent, since).len() >= 30).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_nine_of_one_of_five() {
    let mut agents = five(None);
    let runtime = runtime(&agents, |_| {}).await;
    let mut events = runtime.breaker_events();
    let traffic = Traffic::start(&runtime);
    let begin = Instant::now();
    all_have_calls(&traffic, begin).await;
    let killed = Instant::now();
    let address = agents[1].address;
    agents[1].kill();
    eventually("refusals of the dead", || {
        traffic.codes("style", killed).iter().filter(|code| *code == "AGENT_CIRCUIT_OPEN").count() >= 20
    })
    .await;
    all_have_calls(&traffic, killed).await;
    let sick_end = Instant::now();
    let (first, shut) = ill_then_shut(&traffic.codes("style", killed));
    assert_eq!((first.as_str(), shut), ("AGENT_NETWORK_ERROR", true));
    assert_others_felt_nothing(&traffic, "style", (begin, killed), (killed, sick_end));
    // A refusal costs nothing: it never waits for the dead.
    let refused: Vec<Duration> =
        traffic.of("style").iter().filter(|call| call.code == "AGENT_CIRCUIT_OPEN").map(|call| call.took).collect();
    assert!(refused.iter().min().is_some_and(|least| *least < Duration::from_millis(5)), "{:?}", refused.iter().min());
    agents[1] = Agent::start_at("style", address, None);
    let back = Instant::now();
    eventually("closed again", || state(&runtime, "style") == StateName::Closed).await;
    eventually("good calls again", || traffic.codes("style", back).iter().any(|code| code == "OK")).await;
    let path: Vec<(String, StateName)> =
        changes(&mut events).iter().map(|event| (event.breaker.to_string(), event.transition.to)).collect();
    assert!(path.iter().all(|(breaker, _)| breaker == "agent:style"), "{path:?}");
    let states: Vec<StateName> = path.into_iter().map(|(_, state)| state).collect();
    assert_eq!(states.first(), Some(&StateName::Open));
    assert_eq!(states[states.len() - 2..], [StateName::HalfOpen, StateName::Closed], "{states:?}");
}

async fn falls_ill(script: &str, code: &str, reasons: &[Reason], change: impl Fn(&mut AgentSettings)) {
    let scripts = folder(&[("ill.toml", script)]);
    let script: &Path = &scripts.path().join("ill.toml");
    let agents = five(Some(("draft", script)));
    let runtime = runtime(&agents, change).await;
    let mut events = runtime.breaker_events();
    let traffic = Traffic::start(&runtime);
    let begin = Instant::now();
    eventually("an open breaker", || state(&runtime, "draft") == StateName::Open).await;
    let opened = Instant::now();
    eventually("half-open and closed", || state(&runtime, "draft") == StateName::Closed).await;
    let closed = Instant::now();
    all_have_calls(&traffic, closed).await;
    let codes = traffic.codes("draft", begin);
    let (_, shut) = ill_then_shut(&codes);
    assert!(shut && codes.iter().any(|seen| seen == code), "{code}: {codes:?}");
    assert_others_felt_nothing(&traffic, "draft", (closed, Instant::now()), (opened, closed));
    let changes = changes(&mut events);
    assert!(changes.iter().all(|event| &*event.breaker == "agent:draft"), "{changes:?}");
    assert!(reasons.contains(&changes[0].transition.reason), "{:?}", changes[0].transition);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_answers_503() {
    let script = "[[phase]]\ncalls = 60\nlatency = \"5ms\"\n[[phase]]\nfor = \"1500ms\"\nerror_share = 1.0\n[[phase]]\nlatency = \"5ms\"\n";
    falls_ill(script, "AGENT_ERROR", &[Reason::Consecutive], |_| {}).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_hangs() {
    let script = "[[phase]]\ncalls = 60\nlatency = \"5ms\"\n[[phase]]\nfor = \"2s\"\nhang_share = 1.0\n[[phase]]\nlatency = \"5ms\"\n";
    falls_ill(script, "AGENT_TIMEOUT", &[Reason::Consecutive, Reason::SlowShare], |_| {}).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_crawls() {
    let script = "[[phase]]\ncalls = 60\nlatency = \"5ms\"\n[[phase]]\nfor = \"4s\"\nlatency = \"250ms\"\n[[phase]]\nlatency = \"5ms\"\n";
    falls_ill(script, "OK", &[Reason::SlowShare], |settings| {
        settings.breaker.window = WindowKind::Calls(10);
        settings.breaker.calls_min = 5;
    })
    .await;
}

/// One agent by a script, and its runtime.
async fn one(script: &str, open: Duration) -> (tempfile::TempDir, Agent, Runtime) {
    let scripts = folder(&[("script.toml", script)]);
    let agent = Agent::start("meta", Some(&scripts.path().join("script.toml")));
    let runtime = runtime(std::slice::from_ref(&agent), |settings| {
        settings.breaker.open = open;
        settings.breaker.consecutive_failures = None;
    })
    .await;
    (scripts, agent, runtime)
}

async fn call(runtime: &Runtime) -> String {
    let result = runtime.agent("meta").unwrap().call(CallRequest::of(input("meta"))).await;
    result.map_or_else(|error| error.envelope.error_code.to_string(), |_| "OK".to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_4xx_opens_nothing() {
    for status in [404, 422] {
        let script =
            format!("[[phase]]\ncalls = 300\nclient_error_share = 1.0\nclient_error_status = {status}\n[[phase]]\n");
        let (_scripts, _agent, runtime) = one(&script, OPEN).await;
        let mut events = runtime.breaker_events();
        for _ in 0..300 {
            assert_eq!(call(&runtime).await, "AGENT_ERROR");
        }
        assert_eq!(call(&runtime).await, "OK");
        assert!(changes(&mut events).is_empty() && state(&runtime, "meta") == StateName::Closed, "{status}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_of_5xx_opens_for_its_time_and_recovers() {
    // The numbers of the documentation, once in real time: every other call of ten fails, and it stays open for 30 s.
    let open = Duration::from_secs(30);
    let pair = "[[phase]]\ncalls = 1\n[[phase]]\ncalls = 1\nerror_share = 1.0\n";
    let script = format!("seed = 3\n{}[[phase]]\n", pair.repeat(5));
    let (_scripts, _agent, runtime) = one(&script, open).await;
    let mut events = runtime.breaker_events();
    let began = Instant::now();
    while state(&runtime, "meta") != StateName::Open {
        assert!(began.elapsed() < BOUND, "it never opened");
        call(&runtime).await;
    }
    assert_eq!(call(&runtime).await, "AGENT_CIRCUIT_OPEN");
    tokio::time::sleep(open).await;
    eventually("half-open by itself", || state(&runtime, "meta") == StateName::HalfOpen).await;
    while state(&runtime, "meta") != StateName::Closed {
        assert!(began.elapsed() < open + BOUND);
        assert_eq!(call(&runtime).await, "OK");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let changes = changes(&mut events);
    let states: Vec<StateName> = changes.iter().map(|event| event.transition.to).collect();
    assert_eq!(states, [StateName::Open, StateName::HalfOpen, StateName::Closed]);
    assert_eq!(changes[0].transition.reason, Reason::FailureShare);
    assert!(changes[0].transition.value.is_some_and(|share| share >= 0.5));
    let was_open = changes[1].transition.at.since(changes[0].transition.at);
    assert!(was_open >= open && was_open < open * 2, "{was_open:?}");
}
