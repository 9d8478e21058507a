//! A service in front of a server in the test's hand, in the shapes that the tests of the gateway want it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use crate::{
    journal::{
        files::store::{FileSettings, FileStore},
        journal::SqliteJournal,
        settings::JournalSettings,
    },
    model::name::Name,
    policy::ladder::{Effect, LighterTarget, Rung, RungRule},
    runtime::{
        builder::RuntimeBuilder,
        deferred::settings::DeferredSettings,
        engine::Runtime,
        ladders::{LadderSettings, Ladders, Notice},
        ports::TokioClock,
        settings::{AgentSettings, ProviderSettings, Timeouts},
    },
    serve::{
        access::keys::KeyRing,
        gateway::{door, models::Gateway},
        router::router,
        state::{AppState, Running},
        tests::support::{self, without_runs},
    },
    settings::serve::ServeSettings,
    transport::{
        client::{ProviderClient, ProviderOptions},
        fake_server::FakeServer,
        openai::{
            backend::OpenAiAgent,
            settings::{OpenAiSettings, StreamUpstream},
        },
    },
};
use axum::{
    Router,
    body::{Body, to_bytes},
    http::{Request, Response},
};
use serde_json::{Value, json};
use tower::ServiceExt as _;

pub(super) const SAID: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"ok \"}}]}\n\n";
pub(super) const STOP: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
pub(super) const WHOLE: &str = r#"{"choices":[{"message":{"content":"ok"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1}, "x":1.50}"#;

pub(super) fn state() -> AppState {
    state_of(ServeSettings::default())
}

pub(super) fn state_of(settings: ServeSettings) -> AppState {
    support::state_of(settings, KeyRing::default(), BTreeMap::new())
}

/// A service with agent `fast` (also `gpt`) in front of `server`, whose calls are tried so often.
pub(super) async fn serving(server: &FakeServer, attempts_max: u32) -> Router {
    let builder = Runtime::builder().seed(7);
    let (agents, client) = agents(builder, server, attempts_max);
    let state = state();
    state.door.open(without_runs(agents.start().await.unwrap()));
    routes(state, client)
}

/// The same with an agent that is set up otherwise.
pub(super) async fn serving_as(server: &FakeServer, change: impl FnOnce(&mut AgentSettings)) -> Router {
    let (agents, client) = agents_as(Runtime::builder().seed(7), server, change);
    let state = state_of(ServeSettings { body_bytes_max: 64 * 1024, ..ServeSettings::default() });
    state.door.open(without_runs(agents.start().await.unwrap()));
    routes(state, client)
}

/// The same with a usage ledger.
pub(super) async fn accounting(server: &FakeServer, attempts_max: u32) -> (Router, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let journal = SqliteJournal::open(JournalSettings::at(folder.path().join("journal.db"))).unwrap();
    let builder =
        Runtime::builder().seed(7).clock(Arc::new(TokioClock::since_unix_epoch())).call_log(journal.usage_log(None));
    let (agents, client) = agents(builder, server, attempts_max);
    let runtime = Arc::new(agents.start().await.unwrap());
    let files = Arc::new(FileStore::new(Arc::clone(&journal), FileSettings::default()));
    let state = state();
    state.door.open(Arc::new(Running { runtime, journal, files }));
    (routes(state, client), folder)
}

/// The one sum of the ledger, once it knows of so many calls.
pub(super) async fn accounted(service: &Router, calls: u64) -> Value {
    for _ in 0..3_000 {
        let request = Request::get("/v1/usage").body(Body::empty()).unwrap();
        let got: Value = serde_json::from_str(&text(service.clone().oneshot(request).await.unwrap()).await).unwrap();
        if got["data"][0]["calls"] == calls {
            return got["data"][0].clone();
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the ledger never knew of {calls} calls")
}

/// The same with agent `light` on a provider of its own that stands in for `fast`, a journal that keeps what is put off, and every rung
/// in this order.
pub(super) async fn laddered(server: &FakeServer, rungs: &[Rung]) -> (Router, Arc<Runtime>, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let journal = SqliteJournal::open(JournalSettings::at(folder.path().join("journal.db"))).unwrap();
    let ladder = LadderSettings {
        rungs: rungs.iter().copied().map(RungRule::of).collect(),
        lighter: vec![LighterTarget { agent: name("light"), context_tokens: None, effect: Effect::None }],
        default: Some(Arc::new(json!("stated"))),
        notice: Some(Arc::new(Notice { ko: None, en: Some("Back soon".to_owned()) })),
    };
    let ladders = Ladders { agents: [(name("fast"), ladder)].into(), ..Ladders::default() };
    let builder = Runtime::builder()
        .seed(7)
        .clock(Arc::new(TokioClock::since_unix_epoch()))
        .ladders(ladders)
        .deferred(Arc::clone(&journal) as Arc<_>, DeferredSettings::default(), None)
        .provider(ProviderSettings::new(name("beside")));
    let (builder, client) = agents(builder, server, 1);
    let light =
        OpenAiAgent::try_new(Arc::clone(&client), OpenAiSettings { model: "tiny".to_owned(), ..asked() }).unwrap();
    let builder = builder.agent(AgentSettings::new(name("light"), name("beside")), Arc::new(light));
    let runtime = Arc::new(builder.start().await.unwrap());
    let files = Arc::new(FileStore::new(Arc::clone(&journal), FileSettings::default()));
    let state = state();
    state.door.open(Arc::new(Running { runtime: Arc::clone(&runtime), journal, files }));
    (routes(state, client), runtime, folder)
}

pub(super) fn name(text: &str) -> Name {
    Name::try_new(text).unwrap()
}

pub(super) fn asked() -> OpenAiSettings {
    OpenAiSettings {
        model: "qwen".to_owned(),
        prompt: "x".to_owned(),
        stream_upstream: StreamUpstream::AsAsked,
        ..OpenAiSettings::default()
    }
}

pub(super) fn agents(
    builder: RuntimeBuilder,
    server: &FakeServer,
    attempts_max: u32,
) -> (RuntimeBuilder, Arc<ProviderClient>) {
    agents_as(builder, server, |agent| agent.retry.attempts_max = attempts_max)
}

/// Agent `fast`, shaped as a test wants it.
pub(super) fn agents_as(
    builder: RuntimeBuilder,
    server: &FakeServer,
    shape: impl FnOnce(&mut AgentSettings),
) -> (RuntimeBuilder, Arc<ProviderClient>) {
    let client = Arc::new(ProviderClient::try_new(&ProviderOptions::at(&format!("{}/v1", server.base_url))).unwrap());
    let backend = OpenAiAgent::try_new(Arc::clone(&client), asked()).unwrap();
    let mut agent = AgentSettings::new(name("fast"), name("local"));
    agent.timeouts =
        Timeouts { first_token: Some(Duration::from_secs(5)), stall: Some(Duration::from_secs(5)), ..agent.timeouts };
    shape(&mut agent);
    let builder = builder.provider(ProviderSettings::new(name("local")));
    (builder.agent(agent, Arc::new(backend)), client)
}

pub(super) fn routes(state: AppState, client: Arc<ProviderClient>) -> Router {
    let fast = Name::try_new("fast").unwrap();
    let mut gateway = Gateway::default();
    gateway.add_model("fast", &fast);
    gateway.add_model("gpt", &fast);
    gateway.add_service(&fast, client);
    router(state, door::routes(gateway))
}

pub(super) fn post(path: &str, body: &str) -> Request<Body> {
    let request = Request::post(path).header("content-type", "application/json");
    request.header("authorization", "Bearer sk-the-clients-own").body(Body::from(body.to_owned())).unwrap()
}

pub(super) fn ask(form: &str) -> Request<Body> {
    post("/v1/chat/completions", &format!(r#"{{"model":"gpt","messages":[]{form}}}"#))
}

pub(super) fn header<'a>(answer: &'a Response<Body>, name: &str) -> &'a str {
    answer.headers().get(name).map_or("", |value| value.to_str().unwrap())
}

pub(super) async fn text(answer: Response<Body>) -> String {
    String::from_utf8(to_bytes(answer.into_body(), usize::MAX).await.unwrap().to_vec()).unwrap()
}

pub(super) const STREAM: &str = r#","stream":true"#;
