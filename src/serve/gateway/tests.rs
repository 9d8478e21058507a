//! The gateway's routes as a client sees them, in front of a server in the test's hand.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    body::{Body, to_bytes},
    http::{Request, Response},
};
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::{door, models::Gateway};
use crate::{
    journal::{
        files::store::{FileSettings, FileStore},
        journal::SqliteJournal,
        settings::JournalSettings,
    },
    model::name::Name,
    policy::{
        breaker::state::StateName,
        ladder::{Effect, LighterTarget, Rung, RungRule},
    },
    runtime::{
        builder::RuntimeBuilder,
        deferred::settings::DeferredSettings,
        engine::Runtime,
        function_agent::{AgentFailure, CallInfo, FunctionAgent},
        ladders::{LadderSettings, Ladders, Notice},
        ports::TokioClock,
        settings::{AgentSettings, ProviderSettings, Timeouts},
        supervisor::BreakerAct,
    },
    serve::{
        access::{keys::KeyRing, signature::Signer},
        caps::Caps,
        router::router,
        state::{AppState, Door, Ending, Running, Service},
        tests::support::{until, without_runs},
    },
    settings::{general::Limits, serve::ServeSettings},
    transport::{
        client::{ProviderClient, ProviderOptions},
        fake_server::{FakeServer, Step, answer, stream, stream_head},
        openai::{
            backend::OpenAiAgent,
            settings::{OpenAiSettings, StreamUpstream},
        },
        shared_cases,
    },
};

mod budgets;

const SAID: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"ok \"}}]}\n\n";
const STOP: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
const WHOLE: &str = r#"{"choices":[{"message":{"content":"ok"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1}, "x":1.50}"#;

fn state() -> AppState {
    state_of(ServeSettings::default())
}

fn state_of(settings: ServeSettings) -> AppState {
    AppState::new(Service {
        caps: Caps::new(&settings),
        settings,
        keys: KeyRing::default(),
        language: crate::model::language::Language::En,
        limits: Limits::default(),
        workflows: std::collections::BTreeMap::new(),
        door: Door::default(),
        run_deadline: None,
        signer: Signer::of_chance().unwrap(),
        ending: Ending::default(),
        config: crate::serve::operator::config::ConfigDesk::new(
            crate::serve::operator::config::ConfigInForce::default(),
        )
        .0,
        metrics: None,
    })
}

/// A service with agent `fast` (also `gpt`) in front of `server`, whose calls are tried so often.
async fn serving(server: &FakeServer, attempts_max: u32) -> Router {
    let builder = Runtime::builder().seed(7);
    let (agents, client) = agents(builder, server, attempts_max);
    let state = state();
    state.door.open(without_runs(agents.start().await.unwrap()));
    routes(state, client)
}

/// The same with an agent that is set up otherwise.
async fn serving_as(server: &FakeServer, change: impl FnOnce(&mut AgentSettings)) -> Router {
    let (agents, client) = agents_as(Runtime::builder().seed(7), server, change);
    let state = state_of(ServeSettings { body_bytes_max: 64 * 1024, ..ServeSettings::default() });
    state.door.open(without_runs(agents.start().await.unwrap()));
    routes(state, client)
}

/// The same with a usage ledger.
async fn accounting(server: &FakeServer, attempts_max: u32) -> (Router, tempfile::TempDir) {
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
async fn accounted(service: &Router, calls: u64) -> Value {
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
async fn laddered(server: &FakeServer, rungs: &[Rung]) -> (Router, Arc<Runtime>, tempfile::TempDir) {
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

fn name(text: &str) -> Name {
    Name::try_new(text).unwrap()
}

fn asked() -> OpenAiSettings {
    OpenAiSettings {
        model: "qwen".to_owned(),
        prompt: "x".to_owned(),
        stream_upstream: StreamUpstream::AsAsked,
        ..OpenAiSettings::default()
    }
}

fn agents(builder: RuntimeBuilder, server: &FakeServer, attempts_max: u32) -> (RuntimeBuilder, Arc<ProviderClient>) {
    agents_as(builder, server, |agent| agent.retry.attempts_max = attempts_max)
}

/// Agent `fast`, shaped as a test wants it.
fn agents_as(
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

fn routes(state: AppState, client: Arc<ProviderClient>) -> Router {
    let fast = Name::try_new("fast").unwrap();
    let mut gateway = Gateway::default();
    gateway.add_model("fast", &fast);
    gateway.add_model("gpt", &fast);
    gateway.add_service(&fast, client);
    router(state, door::routes(gateway))
}

fn post(path: &str, body: &str) -> Request<Body> {
    let request = Request::post(path).header("content-type", "application/json");
    request.header("authorization", "Bearer sk-the-clients-own").body(Body::from(body.to_owned())).unwrap()
}

fn ask(form: &str) -> Request<Body> {
    post("/v1/chat/completions", &format!(r#"{{"model":"gpt","messages":[]{form}}}"#))
}

fn header<'a>(answer: &'a Response<Body>, name: &str) -> &'a str {
    answer.headers().get(name).map_or("", |value| value.to_str().unwrap())
}

async fn text(answer: Response<Body>) -> String {
    String::from_utf8(to_bytes(answer.into_body(), usize::MAX).await.unwrap().to_vec()).unwrap()
}

const STREAM: &str = r#","stream":true"#;

#[tokio::test]
async fn a_plain_answer_and_what_is_told_of_it() {
    let server = FakeServer::start(vec![answer(200, "content-type: application/json\r\n", WHOLE)]).await;
    let service = serving(&server, 1).await;
    let answer = service.clone().oneshot(ask("")).await.unwrap();
    assert_eq!((answer.status().as_u16(), header(&answer, "x-watertight-agent")), (200, "fast"));
    assert_eq!((header(&answer, "x-watertight-attempts"), header(&answer, "x-watertight-fallback")), ("1", ""));
    assert!(!header(&answer, "x-watertight-call-id").is_empty());
    assert!(header(&answer, "x-watertight-overhead-ms").parse::<f64>().unwrap() < 1_000.0);
    assert_eq!(text(answer).await, WHOLE);
    assert!(!server.requests().concat().contains("sk-the-clients-own"), "a client's key is nobody's business upstream");
}

#[tokio::test]
async fn errors_keep_status_wait_and_words() {
    let error = |status: u16, headers: &str| {
        answer(status, headers, r#"{"error":{"message":"mock","type":"mock","code":"x"}}"#)
    };
    for (status, headers, attempts, retry_after, kind, should_retry) in [
        (429, "retry-after: 2\r\n", 1, "2", "rate_limit_error", "false"),
        (500, "", 2, "", "server_error", "false"),
        (400, "", 3, "", "invalid_request_error", "false"),
    ] {
        let server = FakeServer::start(vec![error(status, headers)]).await;
        let service = serving(&server, attempts).await;
        let answer = service.clone().oneshot(ask("")).await.unwrap();
        assert_eq!(answer.status().as_u16(), status);
        assert_eq!((header(&answer, "retry-after"), header(&answer, "x-should-retry")), (retry_after, should_retry));
        let tried = if status == 400 { "1".to_owned() } else { attempts.to_string() };
        assert_eq!(header(&answer, "x-watertight-attempts"), tried);
        let body: Value = serde_json::from_str(&text(answer).await).unwrap();
        assert_eq!((&body["error"]["type"], &body["error"]["code"]), (&json!(kind), &json!("x")));
        assert_eq!(body["error"]["watertight"]["error_code"], "AGENT_ERROR");
    }
}

/// B44: whatever names are asked for, the metrics know those of the configuration.
#[tokio::test]
async fn names_that_nobody_configured_make_no_series() {
    let (Some(known), Some(requests), Some(burst)) = (
        shared_cases::text("cases/B44/known_models.json"),
        shared_cases::text("cases/B44/requests.jsonl"),
        shared_cases::text("cases/B44/burst.json"),
    ) else {
        return;
    };
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    let page = recorder.handle();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let known: Vec<Name> =
        serde_json::from_str::<Vec<String>>(&known).unwrap().iter().map(|name| Name::try_new(name).unwrap()).collect();
    let mut builder = Runtime::builder().seed(7).provider(ProviderSettings::new(Name::try_new("local").unwrap()));
    let mut gateway = Gateway::default();
    for name in &known {
        let echo = |input: Value, _: CallInfo| async move { Ok::<_, AgentFailure>(input) };
        let settings = AgentSettings::new(name.clone(), Name::try_new("local").unwrap());
        builder = builder.agent(settings, Arc::new(FunctionAgent::new(echo)));
        gateway.add_model(name.as_str(), name);
    }
    let runtime = builder.start().await.unwrap();
    crate::serve::metrics::begin_with_zero(known.iter(), std::iter::empty());
    let state = state();
    state.door.open(without_runs(runtime));
    let service = router(state, door::routes(gateway));
    let ask = async |model: &str| {
        let body = json!({ "model": model, "messages": [{ "role": "user", "content": "x" }] }).to_string();
        let answer = service.clone().oneshot(post("/v1/chat/completions", &body)).await.unwrap();
        let status = answer.status().as_u16();
        (status, serde_json::from_str::<Value>(&text(answer).await).unwrap())
    };
    let unknown = async |model: &str| {
        let (status, body) = ask(model).await;
        let envelope = &body["error"]["watertight"];
        assert!(matches!(status, 400 | 404), "{model:?}: {status}");
        assert_eq!(envelope["retryable"], false, "{model:?}");
    };
    for line in requests.lines() {
        let request: Value = serde_json::from_str(line).unwrap();
        let model = request["model"].as_str().unwrap();
        if known.iter().any(|name| name.as_str() == model) {
            ask(model).await;
        } else {
            unknown(model).await;
        }
    }
    let burst: Value = serde_json::from_str(&burst).unwrap();
    for name in 0..burst["unique_names"].as_u64().unwrap() {
        unknown(&burst["template"].as_str().unwrap().replace("{i}", &name.to_string())).await;
    }
    let page = page.render();
    let mut agents = std::collections::BTreeSet::new();
    for line in page.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let (series, value) = line.rsplit_once(' ').unwrap();
        assert!(value.parse::<f64>().is_ok(), "{line}");
        let labels = series.split_once('{').map_or("", |(_, labels)| labels.strip_suffix('}').unwrap());
        for (label, value) in labels.split("\",").filter_map(|pair| pair.split_once("=\"")) {
            if label == "agent" {
                agents.insert(value.trim_end_matches('"').to_owned());
            }
        }
    }
    let names: std::collections::BTreeSet<String> = known.iter().map(|name| name.as_str().to_owned()).collect();
    assert_eq!(agents, names, "each has its own, and nobody else has one");
    for odd in ["typo-", "gpt-4o-mimi", "모델", "xxxxxxxx"] {
        assert!(!page.contains(odd), "{odd}");
    }
    assert!(
        page.contains("watertight_breaker_state{breaker=\"agent:style\",state=\"closed\"} 1"),
        "breakers are as they were"
    );
}

/// B38: four tries of ours and a client that does as it is told make four requests.
#[tokio::test]
async fn layers_of_retries_do_not_multiply() {
    let server = FakeServer::start(vec![answer(500, "", "{}")]).await;
    let service = serving(&server, 4).await;
    for tried in 1..=4 {
        let answer = service.clone().oneshot(ask("")).await.unwrap();
        if header(&answer, "x-should-retry") == "false" {
            assert_eq!(tried, 1);
            break;
        }
    }
    assert_eq!(server.requests().len(), 4);
}

#[tokio::test]
async fn streams_that_end_well_and_that_do_not() {
    let error = "data: {\"error\":{\"message\":\"mid-stream\",\"type\":\"server_error\",\"code\":\"500\"}}\n\n";
    for (sent, whole) in [
        (vec![SAID, STOP, "data: [DONE]\n\n"], true),
        (vec![SAID, SAID, SAID], false),
        (vec![SAID, error, "data: [DONE]\n\n"], false),
    ] {
        let server = FakeServer::start(vec![stream(&sent.concat())]).await;
        let service = serving(&server, 3).await;
        let answer = service.clone().oneshot(ask(STREAM)).await.unwrap();
        assert_eq!((answer.status().as_u16(), header(&answer, "content-type")), (200, "text/event-stream"));
        let text = text(answer).await;
        assert!(text.starts_with(SAID), "{text}");
        assert_eq!(text.ends_with("data: [DONE]\n\n"), whole, "{text}");
        assert_eq!(text.contains("[DONE]"), whole, "{text}");
        if !whole {
            let last = text.trim_end().rsplit("data: ").next().unwrap();
            let event: Value = serde_json::from_str(last).unwrap();
            assert_eq!(event["error"]["type"], "server_error", "{event}");
        }
        assert_eq!(server.requests().len(), 1, "nothing is repeated once it is out");
    }
}

#[tokio::test]
async fn a_stream_that_fails_before_its_content_is_an_error_with_its_status() {
    let busy = "data: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"busy\"}}\n\n";
    let server = FakeServer::start(vec![stream(busy)]).await;
    let service = serving(&server, 1).await;
    let answer = service.clone().oneshot(ask(STREAM)).await.unwrap();
    assert_eq!((answer.status().as_u16(), header(&answer, "content-type")), (503, "application/json"));
    let server = FakeServer::start(vec![stream(busy), stream(&[SAID, STOP].concat())]).await;
    let service = serving(&server, 2).await;
    let answer = service.clone().oneshot(ask(STREAM)).await.unwrap();
    assert_eq!((answer.status().as_u16(), header(&answer, "x-watertight-attempts")), (200, "2"));
}

/// B32: whoever leaves stops the other side within a second: plain, a stream, a stream before its first token, a retry's wait.
#[tokio::test]
async fn who_leaves_stops_the_model() {
    for (form, steps) in [
        ("", vec![Step::UntilClosed]),
        (STREAM, vec![Step::UntilClosed]),
        (STREAM, vec![stream_head(), Step::Send(SAID.as_bytes().to_vec()), Step::UntilClosed]),
    ] {
        let mut server = FakeServer::start(vec![steps]).await;
        let service = serving(&server, 1).await;
        let asking = async {
            let answer = service.clone().oneshot(ask(form)).await.unwrap();
            text(answer).await
        };
        assert!(tokio::time::timeout(Duration::from_millis(300), asking).await.is_err());
        assert!(server.sees_client_leave().await, "{form}");
    }
    let server = FakeServer::start(vec![answer(503, "retry-after: 1\r\n", "{}")]).await;
    let waiting = serving(&server, 3).await.oneshot(ask(""));
    assert!(tokio::time::timeout(Duration::from_millis(300), waiting).await.is_err());
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    assert_eq!(server.requests().len(), 1, "nothing further is sent for whoever left");
}

#[tokio::test]
async fn requests_that_cannot_be() {
    let server = FakeServer::start(vec![]).await;
    let service = serving(&server, 1).await;
    let chat = "/v1/chat/completions";
    for (path, body, status, param) in [
        (chat, "{", 400, Value::Null),
        (chat, "[]", 400, Value::Null),
        (chat, "{\"model\":\"gpt\",\"messages\":[],\"model\":\"x\"}", 400, Value::Null),
        (chat, "{\"messages\":[]}", 400, json!("model")),
        (chat, "{\"model\":\"gpt-9\",\"messages\":[]}", 404, json!("model")),
        ("/v1/embeddings", "{\"model\":\"gpt\"}", 400, json!("input")),
    ] {
        let answer = service.clone().oneshot(post(path, body)).await.unwrap();
        assert_eq!(answer.status().as_u16(), status, "{body}");
        let told: Value = serde_json::from_str(&text(answer).await).unwrap();
        assert_eq!(
            (&told["error"]["type"], &told["error"]["param"]),
            (&json!("invalid_request_error"), &param),
            "{body}"
        );
        if status == 404 {
            assert_eq!(told["error"]["code"], "model_not_found");
            assert!(told["error"]["message"].as_str().unwrap().contains("fast, gpt"), "{told}");
        }
    }
    assert!(server.requests().is_empty());
    let get = |path: &str| Request::get(path).body(Body::empty()).unwrap();
    let listed: Value =
        serde_json::from_str(&text(service.clone().oneshot(get("/v1/models")).await.unwrap()).await).unwrap();
    assert_eq!((&listed["data"][0]["id"], &listed["data"][1]["owned_by"]), (&json!("fast"), &json!("fast")));
    assert_eq!(service.clone().oneshot(get("/v1/models/gpt")).await.unwrap().status().as_u16(), 200);
    assert_eq!(service.clone().oneshot(get("/v1/models/none")).await.unwrap().status().as_u16(), 404);
    for path in ["/v1/models/%ff", "/agents/%ff/x"] {
        let answer = service.clone().oneshot(get(path)).await.unwrap();
        assert_eq!(answer.status().as_u16(), 400, "{path}");
        let told: Value = serde_json::from_str(&text(answer).await).unwrap();
        assert!(told["error"]["message"].as_str().unwrap().contains("Invalid UTF-8"), "{path}: {told}");
    }
}

#[tokio::test]
async fn an_existing_service_behind_its_guards() {
    let odd = "content-type: text/plain\r\nx-own: yes\r\n";
    let server = FakeServer::start(vec![answer(418, odd, "teapot \u{1F980}")]).await;
    let service = serving(&server, 3).await;
    let request = Request::patch("/agents/fast/a%20b/c?x=1&y=%2F")
        .header("x-mine", "1")
        .header("connection", "x-hop")
        .header("x-hop", "1")
        .header("x-watertight-tenant", "acme")
        .body(Body::from("bytes"))
        .unwrap();
    let answer = service.clone().oneshot(request).await.unwrap();
    assert_eq!((answer.status().as_u16(), header(&answer, "x-own")), (418, "yes"));
    assert_eq!(header(&answer, "x-watertight-agent"), "fast");
    assert_eq!(text(answer).await, "teapot \u{1F980}");
    let sent = server.requests().concat();
    assert!(sent.starts_with("PATCH /v1/a%20b/c?x=1&y=%2F HTTP/1.1\r\n"), "{sent}");
    assert!(
        sent.contains("x-mine: 1\r\n") && !sent.contains("x-hop") && sent.contains("x-watertight-tenant: acme"),
        "{sent}"
    );
    for climbing in [
        "/agents/fast/../x",
        "/agents/fast/a/%2e%2E/x",
        "/agents/fast/..%2fx",
        "/agents/fast/a/..%5cx",
        "/agents/none/x",
    ] {
        let request = Request::get(climbing).body(Body::empty()).unwrap();
        assert_eq!(service.clone().oneshot(request).await.unwrap().status().as_u16(), 404, "{climbing}");
    }
    assert_eq!(server.requests().len(), 1);
}

/// Whatever a caller brings: its deadline, its broken body, its large one. Nobody else may feel it.
#[tokio::test]
async fn what_a_caller_does_is_no_failure_of_the_service_behind() {
    let broken = || {
        let pieces = [Ok(axum::body::Bytes::from_static(b"first")), Err(std::io::Error::other("gone"))];
        Body::from_stream(futures_util::stream::iter(pieces))
    };
    let large =
        || Body::from_stream(futures_util::stream::repeat_with(|| Ok::<_, std::io::Error>(vec![b'x'; 1 << 12])));
    let kinds: [(&str, u16, &str, &dyn Fn() -> Body); 3] = [
        ("5", 504, "DEADLINE_EXCEEDED", &Body::empty),
        ("60000", 400, "INVALID_REQUEST", &broken),
        ("60000", 413, "INVALID_REQUEST", &large),
    ];
    for (deadline_ms, status, code, body) in kinds {
        let server = FakeServer::start(vec![vec![Step::UntilClosed]]).await;
        let service = serving_as(&server, |_| {}).await;
        for _ in 0..8 {
            let request = Request::post("/agents/fast/x").header("x-watertight-deadline-ms", deadline_ms);
            let got = service.clone().oneshot(request.body(body()).unwrap()).await.unwrap();
            assert_eq!(got.status().as_u16(), status, "{code}");
            let told: Value = serde_json::from_str(&text(got).await).unwrap();
            assert_eq!(told["error"]["error_code"], code);
        }
        // An open breaker would refuse it at once, with another code.
        let request = Request::get("/agents/fast/x").header("x-watertight-deadline-ms", "200");
        let got = service.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        let told: Value = serde_json::from_str(&text(got).await).unwrap();
        assert_eq!(told["error"]["error_code"], "DEADLINE_EXCEEDED", "after {code}: {told}");
    }
}

/// An answer that has begun and goes no further, or goes on and on, holds its slot no longer than any other.
#[tokio::test]
async fn an_answer_that_stalls_is_given_up() {
    let head = || Step::Send(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nabc".to_vec());
    let short = Duration::from_millis(100);
    for (stall, attempt) in
        [(short, None), (Duration::from_secs(600), Some(short)), (short, Some(Duration::from_secs(600)))]
    {
        let server = FakeServer::start(vec![vec![head(), Step::UntilClosed], answer(200, "", "well")]).await;
        let one_slot = |agent: &mut AgentSettings| {
            agent.slots = 1;
            agent.timeouts = Timeouts { stall: Some(stall), attempt, ..agent.timeouts };
        };
        let service = serving_as(&server, one_slot).await;
        let ask = || Request::get("/agents/fast/x").body(Body::empty()).unwrap();
        let got = service.clone().oneshot(ask()).await.unwrap();
        let body = tokio::time::timeout(Duration::from_secs(30), to_bytes(got.into_body(), usize::MAX)).await;
        assert!(body.expect("it is given up").is_err(), "{stall:?} {attempt:?}");
        let mut status = 0;
        for _ in 0..300 {
            status = service.clone().oneshot(ask()).await.unwrap().status().as_u16();
            if status == 200 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(status, 200, "its slot is free again: {stall:?} {attempt:?}");
    }
}

/// Between the two moments of a reload the gateway knows a name that the runtime does not.
#[tokio::test]
async fn a_model_whose_agent_is_on_its_way_is_not_found() {
    let server = FakeServer::start(vec![]).await;
    let (agents, _) = agents(Runtime::builder().seed(7), &server, 1);
    let state = state();
    state.door.open(without_runs(agents.start().await.unwrap()));
    let mut gateway = Gateway::default();
    gateway.add_model("gone", &Name::try_new("gone").unwrap());
    let service = router(state, door::routes(gateway));
    let answer = service.oneshot(post("/v1/chat/completions", r#"{"model":"gone","messages":[]}"#)).await.unwrap();
    assert_eq!(answer.status().as_u16(), 404);
    assert!(text(answer).await.contains("model_not_found"));
}

#[tokio::test]
async fn another_protocol_is_no_answer() {
    let switching = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n".to_vec();
    let server = FakeServer::start(vec![vec![Step::Send(switching)]]).await;
    let service = serving(&server, 1).await;
    let request = Request::get("/agents/fast/x").header("proxy-connection", "keep-alive").body(Body::empty()).unwrap();
    let got = service.oneshot(request).await.unwrap();
    assert_eq!(got.status().as_u16(), 502);
    assert!(text(got).await.contains("AGENT_BAD_REPLY"));
    assert!(!server.requests().concat().contains("proxy-connection"));
}

/// What is paid for with our key stands in the ledger, whichever way it went.
#[tokio::test]
async fn what_is_passed_through_is_accounted_for() {
    let server = FakeServer::start(vec![answer(200, "", "well"), answer(500, "", "ill")]).await;
    let (service, _folder) = accounting(&server, 1).await;
    for status in [200, 500] {
        let request = Request::get("/agents/fast/x").body(Body::empty()).unwrap();
        let got = service.clone().oneshot(request).await.unwrap();
        assert_eq!(got.status().as_u16(), status);
        let _ = text(got).await;
    }
    let sum = accounted(&service, 2).await;
    assert_eq!((&sum["failures"], &sum["refusals"]), (&json!(1), &json!(0)), "{sum}");
}

#[tokio::test]
async fn who_leaves_a_service_stops_it_too() {
    let head = Step::Send(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nabc".to_vec());
    for steps in [vec![Step::UntilClosed], vec![head, Step::UntilClosed]] {
        let mut server = FakeServer::start(vec![steps]).await;
        let service = serving(&server, 1).await;
        let asking = async {
            let answer =
                service.clone().oneshot(Request::get("/agents/fast/x").body(Body::empty()).unwrap()).await.unwrap();
            to_bytes(answer.into_body(), usize::MAX).await
        };
        assert!(tokio::time::timeout(Duration::from_millis(300), asking).await.is_err());
        assert!(server.sees_client_leave().await);
    }
}

/// Nobody here reads what passes through, so nothing can stand in for it: the service's own answer goes out as it is, and a refusal of
/// ours as what it is, whatever the agent's ladder says.
#[tokio::test]
async fn what_passes_through_goes_down_no_ladder() {
    let json = "content-type: application/json\r\n";
    let server = FakeServer::start(vec![answer(503, "x-own: yes\r\n", "ill"), answer(200, json, WHOLE)]).await;
    let (service, runtime, _folder) = laddered(&server, &Rung::ALL).await;
    let pass = || Request::get("/agents/fast/x").body(Body::empty()).unwrap();
    let ill = service.clone().oneshot(pass()).await.unwrap();
    assert_eq!((ill.status().as_u16(), header(&ill, "x-own"), header(&ill, "x-watertight-degraded")), (503, "yes", ""));
    assert_eq!(text(ill).await, "ill");
    runtime.act("agent:fast", BreakerAct::ForceOpen).unwrap();
    until("the gate is shut", || {
        runtime.breaker("agent:fast").is_ok_and(|breaker| breaker.state == StateName::ForcedOpen)
    })
    .await;
    let refused = service.clone().oneshot(pass()).await.unwrap();
    assert_eq!((refused.status().as_u16(), header(&refused, "x-watertight-degraded")), (503, ""));
    assert_eq!(header(&refused, "location"), "");
    let body: Value = serde_json::from_str(&text(refused).await).unwrap();
    assert_eq!(body["error"]["error_code"], "AGENT_CIRCUIT_OPEN");
    assert_ne!(body["error"]["user_message"], "Back soon");
    assert_eq!(server.requests().len(), 1, "nobody else was asked");
    let kept = service.clone().oneshot(Request::get("/v1/deferred").body(Body::empty()).unwrap()).await.unwrap();
    let kept: Value = serde_json::from_str(&text(kept).await).unwrap();
    assert_eq!(kept["data"], json!([]));
    // The same agent, asked in a shape that is read here, has that ladder.
    let answered = service.clone().oneshot(ask("")).await.unwrap();
    assert_eq!((answered.status().as_u16(), header(&answered, "x-watertight-degraded")), (200, "lighter"));
}

/// TRAPS part 3, 28 and 29: a stream is committed by content, not by its first frame; then nobody else answers, and neither does anybody
/// where the caller wants no ladder.
#[tokio::test]
async fn a_stream_goes_down_its_ladder_until_its_first_content() {
    let role = "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n";
    let error = "data: {\"error\":{\"code\":503,\"message\":\"overloaded\"}}\n\n";
    let good = stream(&format!("{SAID}{STOP}data: [DONE]\n\n"));
    for (first, wanted, requests, word) in [
        (format!("{role}{error}"), "on", 2, "lighter"),
        (role.to_owned(), "on", 2, "lighter"),
        (format!("{role}{SAID}{error}"), "on", 1, ""),
        (format!("{role}{error}"), "off", 1, ""),
    ] {
        let server = FakeServer::start(vec![stream(&first), good.clone()]).await;
        let (service, _runtime, _folder) = laddered(&server, &[Rung::Lighter]).await;
        let mut request = ask(STREAM);
        request.headers_mut().insert("x-watertight-ladder", wanted.parse().unwrap());
        let answer = service.oneshot(request).await.unwrap();
        let told = (header(&answer, "x-watertight-degraded").to_owned(), answer.status().as_u16());
        let body = text(answer).await;
        assert_eq!((told.0.as_str(), server.requests().len()), (word, requests), "{first} {wanted}: {body}");
        assert_eq!(body.contains("[DONE]"), word == "lighter", "{first} {wanted}: {body}");
        assert_eq!(told.1 == 200, body.contains("ok "), "{first} {wanted}: {body}");
        if requests == 2 {
            assert_eq!(server.bodies()[1]["model"], "tiny", "in the lighter model's own name");
        }
    }
}

/// TRAPS B34: a model that was loaded or unloaded has said nothing. A request without a user's message is the caller's business: it goes
/// on as it is.
#[tokio::test]
async fn a_model_that_was_only_loaded_has_not_answered_and_costs_nothing() {
    let json = "content-type: application/json\r\n";
    let whole = |why: &str| {
        let body = format!(r#"{{"choices":[{{"message":{{"content":""}},"finish_reason":"{why}"}}]}}"#);
        answer(200, json, &body)
    };
    let streamed = |why: &str| {
        stream(&format!(
            "data: {{\"choices\":[{{\"index\":0,\"delta\":{{}},\"finish_reason\":\"{why}\"}}]}}\n\ndata: [DONE]\n\n"
        ))
    };
    let mut cases =
        vec![("", whole("load")), ("", whole("unload")), (STREAM, streamed("load")), (STREAM, streamed("unload"))];
    for file in ["answer_chat.json", "answer_unload.json"] {
        let Some(body) = shared_cases::text(&format!("cases/B34/{file}")) else { break };
        // In its server's own words, and as one body though a stream was asked for.
        cases.extend(["", STREAM].map(|form| (form, answer(200, json, &body))));
    }
    for (form, upstream) in cases {
        let server = FakeServer::start(vec![upstream]).await;
        let (service, _folder) = accounting(&server, 5).await;
        let answer = service.clone().oneshot(ask(form)).await.unwrap();
        assert!(answer.status().is_server_error(), "{form}: {}", answer.status());
        assert_eq!(server.requests().len(), 2, "{form}: sent again once at most");
        let sum = accounted(&service, 1).await;
        assert_eq!(
            (&sum["failures"], &sum["prompt_tokens"], &sum["output_tokens"]),
            (&json!(1), &json!(0), &json!(0)),
            "{form}"
        );
    }
}

/// What the ledger says of one stream with a prompt of so many tokens, more or less.
async fn charged(text: &str, prompt_tokens: usize) -> Value {
    let server = FakeServer::start(vec![stream(text)]).await;
    let (service, _folder) = accounting(&server, 1).await;
    let prompt = "four".repeat(prompt_tokens);
    let body = format!(r#"{{"model":"gpt","messages":[{{"role":"user","content":"{prompt}"}}]{STREAM}}}"#);
    let answer = service.clone().oneshot(post("/v1/chat/completions", &body)).await.unwrap();
    assert_eq!(answer.status().as_u16(), 200);
    let _ = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
    assert!(server.requests()[0].contains("\"include_usage\":true"), "usage is asked for");
    accounted(&service, 1).await
}

/// TRAPS B20: a stream whose usage nobody tells is charged by our own count, and marked so.
#[tokio::test]
async fn a_stream_without_usage_is_charged_by_our_count() {
    let ours = format!("{}{STOP}data: [DONE]\n\n", SAID.repeat(5));
    for text in [Some(ours), shared_cases::text("cases/B20/stream.sse")].into_iter().flatten() {
        let sum = charged(&text, 1_200).await;
        let (prompt, output) = (sum["prompt_tokens"].as_u64().unwrap(), sum["output_tokens"].as_u64().unwrap());
        assert!(output >= 5 && (1_205..=3_000).contains(&(prompt + output)), "{sum}");
        assert_eq!(sum["estimated"], true, "{sum}");
    }
}

/// TRAPS B21: totals that a server tells as it goes are not added up, and not counted by us either.
#[tokio::test]
async fn running_totals_are_charged_once() {
    let usage = |output: u64| {
        format!("data: {{\"choices\":[],\"usage\":{{\"prompt_tokens\":25,\"completion_tokens\":{output}}}}}\n\n")
    };
    let (first, then, last) = (usage(1), usage(10), usage(15));
    let ours = format!("{first}{SAID}{then}{SAID}{last}{STOP}{last}data: [DONE]\n\n");
    for text in [Some(ours), shared_cases::text("cases/B21/stream.sse")].into_iter().flatten() {
        let sum = charged(&text, 1).await;
        assert_eq!((&sum["prompt_tokens"], &sum["output_tokens"]), (&json!(25), &json!(15)), "{sum}");
        assert_eq!(sum["estimated"], false, "{sum}");
    }
}

/// A body is read before anything is taken: one that breaks off is nothing that the service hears of.
#[tokio::test]
async fn a_body_that_breaks_off_does_not_reach_a_service() {
    let server = FakeServer::start(vec![answer(200, "", "fine")]).await;
    let service = serving(&server, 1).await;
    let pieces = [Ok(axum::body::Bytes::from_static(b"abc")), Err(std::io::Error::other("gone"))];
    let broken = Body::from_stream(futures_util::stream::iter(pieces));
    let broken = Request::post("/agents/fast/x").body(broken).unwrap();
    assert_eq!(service.clone().oneshot(broken).await.unwrap().status().as_u16(), 400);
    assert_eq!(server.requests().len(), 0, "nothing of it went on");
}

#[tokio::test]
async fn the_path_of_a_service_stays_as_it_is() {
    let server = FakeServer::start(vec![answer(200, "", "")]).await;
    let service = serving(&server, 1).await;
    for (asked, sent) in [
        ("/agents/fast//evil.com/x", "/v1//evil.com/x"),
        ("/agents/fast/", "/v1/"),
        ("/agents/fast", "/v1"),
        ("/agents/fast?a=1", "/v1?a=1"),
    ] {
        let request = Request::get(asked).body(Body::empty()).unwrap();
        assert_eq!(service.clone().oneshot(request).await.unwrap().status().as_u16(), 200, "{asked}");
        let got = server.requests().pop().unwrap();
        assert!(got.starts_with(&format!("GET {sent} HTTP/1.1\r\n")), "{got}");
    }
}
