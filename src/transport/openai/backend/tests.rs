//! Agents on an OpenAI-compatible server, over real sockets.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::*;
use crate::{
    model::{
        facts::{Ending, TimeoutKind},
        reply::Usage,
    },
    runtime::{
        ports::{AttemptTimeouts, TokioClock},
        tally::{AnswerForm, Known},
    },
    transport::{
        client::{KeyPlace, ProviderOptions},
        fake_server::{FakeServer, Step, answer, stream, stream_head},
        openai::{
            probe::{MODELS_PATH, probe_models},
            settings::{ModelPath, OpenAiPaths, StreamUpstream},
        },
        secret::Secret,
        test_attempt::{request, unwatched, watched},
    },
};

fn settings() -> OpenAiSettings {
    OpenAiSettings {
        model: "qwen".to_owned(),
        prompt: "Notes: {{ input.notes }}".to_owned(),
        ..OpenAiSettings::default()
    }
}

fn client(server: &FakeServer) -> Arc<ProviderClient> {
    let options = ProviderOptions {
        key: Some(Secret::new("sk-secret-1")),
        ..ProviderOptions::at(&format!("{}/v1", server.base_url))
    };
    Arc::new(ProviderClient::try_new(&options).unwrap())
}

fn agent(server: &FakeServer, settings: OpenAiSettings) -> OpenAiAgent {
    OpenAiAgent::try_new(client(server), settings).unwrap()
}

fn notes() -> Value {
    json!({"notes": "바다"})
}

fn chat_answer(content: &str) -> Vec<Step> {
    let body = json!({
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": content}}],
        "usage": {"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17},
    });
    answer(200, "content-type: application/json\r\n", &body.to_string())
}

fn frame(text: &str) -> String {
    format!("data: {}\n\n", json!({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": null}]}))
}

const STOP: &str = "data: {\"choices\": [{\"index\": 0, \"delta\": {}, \"finish_reason\": \"stop\"}]}\n\n";

#[tokio::test]
async fn what_is_sent() {
    let server = FakeServer::start(vec![chat_answer("{\"a\": 1}")]).await;
    let schema = json!({"type": "object"});
    let settings = OpenAiSettings {
        system: Some("You write.".to_owned()),
        schema: Some(schema.clone()),
        max_output_tokens: Some(900),
        temperature: Some(0.5),
        seed: Some(7),
        extra: Map::from_iter([("top_p".to_owned(), json!(0.9))]),
        ..settings()
    };
    let done = unwatched(&agent(&server, settings), &request(notes())).await;
    assert_eq!(done.reply().output, json!({"a": 1}));
    let want = json!({
        "model": "qwen",
        "messages": [{"role": "system", "content": "You write."}, {"role": "user", "content": "Notes: 바다"}],
        "stream": true,
        "stream_options": {"include_usage": true},
        "max_tokens": 900,
        "temperature": 0.5,
        "seed": 7,
        "response_format": {"type": "json_schema", "json_schema": {"name": "output", "schema": schema}},
        "top_p": 0.9,
    });
    assert_eq!(server.bodies(), [want]);
    let sent = server.requests().concat();
    assert!(sent.starts_with("POST /v1/chat/completions HTTP/1.1\r\n"), "{sent}");
    assert!(
        sent.contains("authorization: Bearer sk-secret-1\r\n") && sent.contains("idempotency-key: run-1/draft/0/0\r\n")
    );
    assert!(!sent.contains("x-watertight-tenant"), "a vendor learns no tenants: {sent}");
}

/// The deployment stands in the path, the key in a header of its own, the version in the query: as examples/gateway/azure.toml says.
#[tokio::test]
async fn an_azure_deployment_is_asked_at_its_own_path() {
    let server = FakeServer::start(vec![chat_answer("{\"a\": 1}")]).await;
    let options = ProviderOptions {
        key: Some(Secret::new("azure-key-1")),
        key_place: KeyPlace::Header("api-key".to_owned()),
        query: vec![("api-version".to_owned(), Secret::new("2024-10-21"))],
        ..ProviderOptions::at(&server.base_url)
    };
    let paths =
        OpenAiPaths { chat: ModelPath::new("/openai/deployments/{model}/chat/completions"), ..OpenAiPaths::default() };
    let settings = OpenAiSettings { model: "my deployment/1".to_owned(), paths, ..settings() };
    let agent = OpenAiAgent::try_new(Arc::new(ProviderClient::try_new(&options).unwrap()), settings).unwrap();
    unwatched(&agent, &request(notes())).await.reply();
    let sent = server.requests().concat();
    let first = "POST /openai/deployments/my%20deployment%2F1/chat/completions?api-version=2024-10-21 HTTP/1.1\r\n";
    assert!(sent.starts_with(first) && sent.contains("api-key: azure-key-1\r\n"), "{sent}");
    assert!(!sent.to_ascii_lowercase().contains("authorization"), "{sent}");
}

#[tokio::test]
async fn a_server_is_asked_for_its_health_where_its_models_are() {
    for (paths, want) in [
        (OpenAiPaths::default(), "GET /v1/models HTTP/1.1\r\n"),
        (
            OpenAiPaths { models: ModelPath::new("/own/{model}/info"), ..OpenAiPaths::default() },
            "GET /v1/own/m/info HTTP/1.1\r\n",
        ),
    ] {
        let server = FakeServer::start(vec![answer(200, "", r#"{"data": []}"#)]).await;
        let agent = agent(&server, OpenAiSettings { model: "m".to_owned(), paths, ..settings() });
        agent.health().unwrap().await.unwrap();
        assert!(server.requests()[0].starts_with(want), "{want}: {:?}", server.requests());
    }
}

#[tokio::test]
async fn when_a_stream_is_asked_for() {
    let with_extra =
        |key: &str, value: Value| OpenAiSettings { extra: Map::from_iter([(key.to_owned(), value)]), ..settings() };
    let as_asked = || OpenAiSettings { stream_upstream: StreamUpstream::AsAsked, ..settings() };
    for (settings, unwatched_streams, watched_streams) in [
        (settings(), true, true),
        (as_asked(), false, true),
        (with_extra("n", json!(2)), false, true),
        (with_extra("n", json!(1)), true, true),
        (with_extra("logprobs", json!(true)), false, true),
        (with_extra("audio", json!({})), false, true),
    ] {
        let shown = format!("{settings:?}");
        let server = FakeServer::start(vec![chat_answer("a")]).await;
        let agent = agent(&server, settings);
        assert!(unwatched(&agent, &request(notes())).await.ended.is_ok());
        assert!(watched(&agent, &request(notes())).await.ended.is_ok());
        let streams: Vec<_> = server.bodies().iter().map(|body| body["stream"] == true).collect();
        assert_eq!(streams, [unwatched_streams, watched_streams], "{shown}");
    }
}

#[tokio::test]
async fn streams_and_whole_answers() {
    let usage = "data: {\"choices\": [], \"usage\": {\"prompt_tokens\": 12, \"completion_tokens\": 2}}\n\n";
    let told = Usage { prompt_tokens: 12, output_tokens: 2, estimated: false, ..Usage::default() };
    let text = format!("{}{}{STOP}{usage}data: [DONE]\n\n", frame("좋은 "), frame("글"));
    let server = FakeServer::start(vec![stream(&text)]).await;
    let done = watched(&agent(&server, settings()), &request(notes())).await;
    assert_eq!(done.pieces, ["좋은 ", "글"]);
    let reply = done.reply();
    assert_eq!((&reply.output, reply.usage), (&json!({"text": "좋은 글"}), Some(told)));
    assert_eq!((reply.finish_reason.as_deref(), reply.status), (Some("stop"), Some(200)));

    let server = FakeServer::start(vec![stream(&format!("{}{STOP}", frame("글")))]).await;
    let counted = unwatched(&agent(&server, settings()), &request(notes())).await.reply().usage.unwrap();
    assert!(counted.estimated && counted.output_tokens >= 1 && counted.prompt_tokens >= 4, "{counted:?}");

    let server = FakeServer::start(vec![chat_answer("글")]).await;
    let done = watched(&agent(&server, settings()), &request(notes())).await;
    assert_eq!((&done.reply().output, done.committed), (&json!({"text": "글"}), false));
}

#[tokio::test]
async fn failures() {
    let overflow = r#"{"error":{"code":400,"message":"request (5030 tokens) exceeds the available context size (2048 tokens)","type":"exceed_context_size_error"}}"#;
    let too_long = Ending::Status {
        status: 400,
        retryable: None,
        content_filter: false,
        context_too_long: true,
        quota_spent: None,
    };
    let error = "data: {\"error\": {\"code\": 502, \"message\": \"key sk-secret-1 lost\"}}\n\n";
    let chunked = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    let chunk = |text: &str| format!("{:x}\r\n{text}\r\n", text.len());
    let killed = |text: &str| vec![Step::Send(format!("{chunked}{}", chunk(text)).into_bytes())];
    for (steps, pieces, want) in [
        (
            answer(503, "", r#"{"error":{"message":"Loading model","type":"unavailable_error","code":503}}"#),
            0,
            Err(Ending::Loading),
        ),
        (answer(400, "", overflow), 0, Err(too_long)),
        (answer(200, "", r#"{"error":{"code":"server_error","message":"busy"}}"#), 0, Err(Ending::status(502))),
        (answer(200, "", r#"{"choices": []}"#), 0, Err(Ending::BadReply)),
        (answer(200, "", "<html>"), 0, Err(Ending::BadReply)),
        (stream(error), 0, Err(Ending::status(502))),
        (stream(&format!("{}{error}", frame("a"))), 1, Err(Ending::status(502))),
        (stream(&frame("a")), 1, Err(Ending::StreamCut)),
        (killed(&frame("a")), 1, Err(Ending::StreamCut)),
        (killed(&format!("{}{STOP}", frame("a"))), 1, Ok(json!({"text": "a"}))),
    ] {
        let server = FakeServer::start(vec![steps]).await;
        let done = watched(&agent(&server, settings()), &request(notes())).await;
        assert_eq!((done.pieces.len(), done.committed), (pieces, pieces > 0));
        if let Err(failure) = &done.ended {
            assert!(!failure.message.contains("secret"), "{failure:?}");
            assert_eq!(failure.usage.is_some(), pieces > 0, "what came was paid for: {failure:?}");
        }
        assert_eq!(done.ended.map(|reply| reply.output).map_err(|failure| failure.ending), want);
        assert_eq!(server.requests().len(), 1);
    }
}

#[tokio::test]
async fn outputs_that_miss_the_shape() {
    let schema = json!({"type": "object", "required": ["score"]});
    let server = FakeServer::start(vec![chat_answer("{\"points\": 1}")]).await;
    let settings = OpenAiSettings { schema: Some(schema), ..settings() };
    let done = unwatched(&agent(&server, settings), &request(notes())).await;
    assert_eq!(done.failure().ending, Ending::BadReply);
    assert_eq!(done.failure().usage.map(|usage| usage.output_tokens), Some(5));
}

#[tokio::test]
async fn an_attempt_may_bring_a_prompt_of_its_own() {
    let server = FakeServer::start(vec![chat_answer("ok")]).await;
    let agent = agent(&server, settings());
    let mut attempt = request(notes());
    attempt.prompt = Some("Short: {{ input.notes }}".into());
    assert!(unwatched(&agent, &attempt).await.ended.is_ok());
    assert_eq!(server.bodies()[0]["messages"], json!([{"role": "user", "content": "Short: 바다"}]));
    attempt.prompt = Some("{{ input.gone }}".into());
    assert!(unwatched(&agent, &attempt).await.ended.is_err());
}

#[tokio::test]
async fn a_prompt_that_cannot_be_filled_is_not_sent() {
    let server = FakeServer::start(vec![]).await;
    let done = unwatched(&agent(&server, settings()), &request(json!({"other": 1}))).await;
    let Ending::Status { status, retryable, .. } = done.failure().ending else { panic!("{done:?}") };
    assert_eq!((status, retryable, server.requests().len()), (400, Some(false), 0));
}

#[tokio::test]
async fn clocks() {
    let beat = [Step::Send(b": alive\n\n".to_vec()), Step::Pause(Duration::from_millis(40))];
    let beats: Vec<Step> = beat.iter().cycle().take(60).cloned().collect();
    let content = Step::Send(frame("a").into_bytes());
    let role =
        Step::Send(b"data: {\"choices\": [{\"delta\": {\"role\": \"assistant\", \"content\": null}}]}\n\n".to_vec());
    let hangs_after_stop =
        vec![stream_head(), content.clone(), Step::Send(STOP.as_bytes().to_vec()), Step::Pause(Duration::from_secs(9))];
    for (steps, want) in [
        (vec![Step::UntilClosed], Err(TimeoutKind::FirstToken)),
        ([vec![stream_head(), role], beats.clone()].concat(), Err(TimeoutKind::FirstToken)),
        ([vec![stream_head(), content], beats].concat(), Err(TimeoutKind::Stall)),
        (hangs_after_stop, Ok(json!({"text": "a"}))),
    ] {
        let server = FakeServer::start(vec![steps]).await;
        // The clock that is not asked is far away, so that a busy machine cannot make it ring first.
        let waits_for_content = want == Err(TimeoutKind::FirstToken);
        let timeouts = AttemptTimeouts {
            first_token: Some(Duration::from_millis(if waits_for_content { 200 } else { 20_000 })),
            stall: Some(Duration::from_millis(200)),
        };
        let request = AttemptRequest { timeouts, ..request(notes()) };
        let done = unwatched(&agent(&server, settings()), &request).await;
        let got = done.ended.map(|reply| reply.output).map_err(|failure| failure.ending);
        assert_eq!(got, want.map_err(|timeout| Ending::Timeout { timeout }));
    }
}

#[tokio::test]
async fn leaving_stops_the_work() {
    let started = vec![stream_head(), Step::Send(frame("a").into_bytes()), Step::UntilClosed];
    for (steps, stream_upstream) in [
        (vec![Step::UntilClosed], StreamUpstream::AsAsked),
        (vec![Step::UntilClosed], StreamUpstream::Always),
        (started, StreamUpstream::Always),
    ] {
        let mut server = FakeServer::start(vec![steps]).await;
        let agent = agent(&server, OpenAiSettings { stream_upstream, ..settings() });
        let attempt = tokio::spawn(async move { unwatched(&agent, &request(notes())).await });
        server.has_requests(1).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        attempt.abort();
        assert!(server.sees_client_leave().await);
    }
}

/// What whoever settles an attempt knows of one that its caller has left.
#[tokio::test]
async fn what_has_left_is_known() {
    let body = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{";
    let begun = || vec![Step::Send(body.as_bytes().to_vec()), Step::UntilClosed];
    let whole = Known::Sent(AnswerForm::Whole);
    for (steps, stream_upstream, want) in [
        (vec![Step::UntilClosed], StreamUpstream::AsAsked, [whole; 2]),
        (vec![Step::UntilClosed], StreamUpstream::Always, [Known::Sent(AnswerForm::Stream); 2]),
        (begun(), StreamUpstream::AsAsked, [whole; 2]),
        // A server that does not do what it is asked.
        (begun(), StreamUpstream::Always, [Known::Sent(AnswerForm::Stream), whole]),
    ] {
        let server = FakeServer::start(vec![steps]).await;
        let agent = agent(&server, OpenAiSettings { stream_upstream, ..settings() });
        let progress = Progress::start(Arc::new(TokioClock::start()), None);
        let request = request(notes());
        let until_known = async {
            server.has_requests(1).await;
            let first = progress.tally().known();
            while progress.tally().known() != want[1] {
                tokio::task::yield_now().await;
            }
            first
        };
        let first = tokio::select! {
            ended = agent.attempt(&request, &progress) => panic!("{ended:?}"),
            first = until_known => first,
        };
        assert!(want.contains(&first), "{first:?} of {want:?}");
    }
}

/// A connection that does not come to be takes no request.
#[tokio::test]
async fn nothing_has_left_before_there_is_a_connection() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    // Nobody answers there to the first word of TLS.
    let options = ProviderOptions::at(&format!("https://{}/v1", listener.local_addr().unwrap()));
    let client = Arc::new(ProviderClient::try_new(&options).unwrap());
    let settings = OpenAiSettings { stream_upstream: StreamUpstream::AsAsked, ..settings() };
    let agent = OpenAiAgent::try_new(client, settings).unwrap();
    let progress = Progress::start(Arc::new(TokioClock::start()), None);
    let request = request(notes());
    let greeted = async {
        let (mut socket, _) = listener.accept().await.unwrap();
        tokio::io::AsyncReadExt::read_u8(&mut socket).await.unwrap();
        socket
    };
    tokio::select! {
        ended = agent.attempt(&request, &progress) => panic!("{ended:?}"),
        socket = greeted => drop(socket),
    }
    assert_eq!(progress.tally().known(), Known::NotSent);
}

#[tokio::test]
async fn a_body_keeps_its_length() {
    let server = FakeServer::start(vec![chat_answer("a")]).await;
    unwatched(&agent(&server, settings()), &request(notes())).await.reply();
    let sent = server.requests().concat();
    let (head, body) = sent.split_once("\r\n\r\n").unwrap();
    assert!(head.contains(&format!("content-length: {}", body.len())) && !head.contains("transfer-encoding"), "{head}");
}

#[tokio::test]
async fn models() {
    let list = r#"{"object": "list", "data": [{"id": "qwen"}, {"id": "gemma"}, {}]}"#;
    let loading = r#"{"error":{"message":"Loading model","type":"unavailable_error","code":503}}"#;
    let server = FakeServer::start(vec![answer(200, "", list), answer(503, "", loading), answer(200, "", "{}")]).await;
    let client = client(&server);
    assert_eq!(probe_models(&client, MODELS_PATH).await.unwrap(), ["qwen", "gemma"]);
    assert!(server.requests()[0].starts_with("GET /v1/models HTTP/1.1\r\n"));
    assert_eq!(probe_models(&client, MODELS_PATH).await.unwrap_err().ending, Ending::status(503));
    assert_eq!(probe_models(&client, MODELS_PATH).await.unwrap_err().ending, Ending::BadReply);
}

fn loading() -> Vec<Step> {
    let body = json!({"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}});
    answer(503, "content-type: application/json\r\n", &body.to_string())
}

#[tokio::test]
async fn a_server_that_loads_its_model_is_not_ill() {
    let overloaded = json!({"error": {"message": "Loading model files failed", "code": 503}});
    let overloaded = answer(503, "content-type: application/json\r\n", &overloaded.to_string());
    let server = FakeServer::start(vec![loading(), overloaded, loading(), loading(), chat_answer("a")]).await;
    let agent = agent(&server, settings());
    assert_eq!(agent.cold_start(), ColdStart::Told);
    let attempt = request(notes());
    let failure = unwatched(&agent, &attempt).await.ended.unwrap_err();
    assert_eq!((failure.ending, failure.status), (Ending::Loading, Some(503)));
    let failure = unwatched(&agent, &attempt).await.ended.unwrap_err();
    assert_eq!(failure.ending, Ending::status(503), "only the exact word");
    assert_eq!(agent.health().unwrap().await.unwrap_err().ending, Ending::Loading);
    assert_eq!(agent.warm_up().await.unwrap_err().ending, Ending::Loading);
    assert_eq!(agent.warm_up().await, Ok(WarmUp::WasLoaded));
    let sent = server.requests().pop().unwrap();
    assert!(sent.starts_with("POST /v1/chat/completions HTTP/1.1\r\n"), "{sent}");
    let body: Value = serde_json::from_str(sent.split_once("\r\n\r\n").unwrap().1).unwrap();
    assert_eq!((&body["max_tokens"], &body["model"], &body["stream"]), (&json!(1), &json!("qwen"), &json!(false)));
}

#[tokio::test]
async fn how_a_warm_up_over_http_ends() {
    let refused = answer(400, "content-type: application/json\r\n", "{\"error\": {\"message\": \"embeddings only\"}}");
    let ill = answer(500, "", "no memory");
    let slow = [Step::Pause(Duration::from_millis(1_100))].into_iter().chain(chat_answer("a")).collect();
    let server = FakeServer::start(vec![refused, ill, slow]).await;
    let agent = agent(&server, settings());
    assert_eq!(agent.warm_up().await, Ok(WarmUp::WasLoaded), "it is there");
    assert_eq!(agent.warm_up().await.unwrap_err().ending, Ending::status(500));
    assert_eq!(agent.warm_up().await, Ok(WarmUp::Loaded), "it took its time");
}
