//! Agents on an Ollama server, over real sockets.

use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::{
    model::{facts::TimeoutKind, name::Name, raw_object::RawObject, reply::Usage},
    runtime::{
        call::CallRequest,
        engine::Runtime,
        ports::AttemptTimeouts,
        relay::{Relay, RelayForm},
        settings::{AgentSettings, ProviderSettings},
    },
    transport::{
        client::ProviderOptions,
        fake_server::{FakeServer, Step, answer},
        ollama::failure::{BUSY_CODE, MODEL_NOT_FOUND_CODE},
        openai::settings::OpenAiSettings,
        shared_cases,
        test_attempt::{request, unwatched, watched},
    },
};

fn settings() -> OllamaSettings {
    let asked = OpenAiSettings {
        model: "m:8b".to_owned(),
        prompt: "{{ input.notes }}".to_owned(),
        ..OpenAiSettings::default()
    };
    OllamaSettings { asked, ..OllamaSettings::default() }
}

fn agent(server: &FakeServer) -> OllamaAgent {
    let client = ProviderClient::try_new(&ProviderOptions::at(&server.base_url)).unwrap();
    OllamaAgent::try_new(Arc::new(client), settings()).unwrap()
}

fn notes() -> Value {
    json!({"notes": "사진 3장"})
}

fn head() -> Step {
    Step::Send(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: application/x-ndjson\r\n\r\n".to_vec())
}

fn send(text: &str) -> Step {
    Step::Send(text.as_bytes().to_vec())
}

fn said(text: &str) -> String {
    format!("{}\n", json!({"message": {"role": "assistant", "content": text}, "done": false}))
}

const DONE: &str = "{\"message\":{\"content\":\"\"},\"done\":true,\"done_reason\":\"stop\",\"prompt_eval_count\":26,\"eval_count\":3}\n";

fn json_answer(status: u16, body: &str) -> Vec<Step> {
    answer(status, "content-type: application/json; charset=utf-8\r\n", body)
}

#[tokio::test]
async fn an_answer_in_lines() {
    let server = FakeServer::start(vec![vec![head(), send(&(said("초") + &said("안 ") + &said("끝") + DONE))]]).await;
    let done = watched(&agent(&server), &request(notes())).await;
    assert_eq!(done.pieces, ["초", "안 ", "끝"]);
    assert_eq!(done.reply().output, json!({"text": "초안 끝"}));
    assert_eq!(
        done.reply().usage,
        Some(Usage { prompt_tokens: 26, output_tokens: 3, estimated: false, ..Usage::default() })
    );
    assert_eq!((done.reply().finish_reason.as_deref(), done.reply().status), (Some("stop"), Some(200)));
    let sent = server.requests().concat();
    assert!(sent.starts_with("POST /api/chat HTTP/1.1\r\n"), "{sent}");
    assert!(!sent.contains("x-watertight"), "{sent}");
    let body = &server.bodies()[0];
    assert_eq!(
        (&body["options"]["num_ctx"], &body["keep_alive"], &body["stream"]),
        (&json!(8192), &json!("300s"), &json!(true))
    );
}

/// TRAPS B33 over a socket: its bytes in the reads of the case, and without a last line end.
#[tokio::test]
async fn b33_lines_that_were_cut_anywhere() {
    let Some(sizes) = shared_cases::text("cases/B33/read_sizes.json") else { return };
    let sizes: Vec<usize> = serde_json::from_str(&sizes).unwrap();
    for file in ["stream.bin", "no_final_newline.bin"] {
        let Some(bytes) = shared_cases::bytes(&format!("cases/B33/{file}")) else { return };
        let mut steps = vec![head()];
        let mut rest = bytes.as_slice();
        for size in &sizes {
            let (piece, behind) = rest.split_at((*size).min(rest.len()));
            steps.extend([Step::Send(piece.to_vec()), Step::Pause(Duration::from_millis(5))]);
            rest = behind;
        }
        let server = FakeServer::start(vec![steps]).await;
        let done = watched(&agent(&server), &request(notes())).await;
        assert_eq!(done.reply().output, json!({"text": "초안 끝"}), "{file}");
        assert_eq!(
            done.reply().usage,
            Some(Usage { prompt_tokens: 26, output_tokens: 3, estimated: false, ..Usage::default() })
        );
    }
    let Some(bytes) = shared_cases::bytes("cases/B33/error_line.bin") else { return };
    let server = FakeServer::start(vec![vec![head(), Step::Send(bytes)]]).await;
    let done = watched(&agent(&server), &request(notes())).await;
    assert_eq!((done.pieces.as_slice(), done.committed), (["초".to_owned()].as_slice(), true));
    let failure = done.failure();
    assert_eq!((&failure.ending, failure.status), (&Ending::status(502), Some(200)));
    assert_eq!(failure.usage.map(|usage| usage.output_tokens), Some(1));
}

/// TRAPS B34: what the server says when it only loaded or put away its model, one object over many lines as in the case.
#[tokio::test]
async fn b34_no_draft() {
    for file in ["answer_chat.json", "answer_unload.json"] {
        let Some(text) = shared_cases::text(&format!("cases/B34/{file}")) else { return };
        let server = FakeServer::start(vec![json_answer(200, &text)]).await;
        let done = unwatched(&agent(&server), &request(notes())).await;
        assert_eq!(
            (&done.failure().ending, done.failure().usage),
            (&Ending::NoDraft, Some(Usage::default())),
            "{file}"
        );
        assert!(!done.committed);
    }
    let server = FakeServer::start(vec![json_answer(200, "{}")]).await;
    let done = unwatched(&agent(&server), &request(json!({"notes": "  "}))).await;
    assert_eq!((done.failure().upstream_code.as_deref(), server.requests().len()), (Some("invalid_input"), 0));
}

#[tokio::test]
async fn answers_that_are_none() {
    for (steps, want, pieces) in [
        (vec![head(), send(&said("Hel"))], Ending::StreamCut, 1),
        (vec![head()], Ending::StreamCut, 0),
        (vec![head(), send(&(said("Hel") + "{\"mess"))], Ending::StreamCut, 1),
        (vec![head(), send("<html>\n")], Ending::BadReply, 0),
        (vec![head(), send("[1]\n")], Ending::BadReply, 0),
        (json_answer(200, "<html>"), Ending::BadReply, 0),
        (json_answer(200, r#"{"message":{"content":"a"},"done":false}"#), Ending::StreamCut, 0),
        (json_answer(200, r#"{"error":"out of memory"}"#), Ending::status(502), 0),
        (
            json_answer(503, r#"{"error":"server busy, please try again.  maximum pending requests exceeded"}"#),
            Ending::status(429),
            0,
        ),
        (json_answer(404, r#"{"error":"model 'm:8b' not found"}"#), Ending::status(404), 0),
    ] {
        let shown = format!("{steps:?}");
        let server = FakeServer::start(vec![steps]).await;
        let done = watched(&agent(&server), &request(notes())).await;
        assert_eq!((&done.failure().ending, done.pieces.len()), (&want, pieces), "{shown}");
    }
}

#[tokio::test]
async fn codes_of_a_busy_server_and_of_a_missing_model() {
    for (status, body, code) in [
        (503, r#"{"error":"server busy, please try again.  maximum pending requests exceeded"}"#, BUSY_CODE),
        (404, r#"{"error":"model \"m:8b\" not found, try pulling it first"}"#, MODEL_NOT_FOUND_CODE),
    ] {
        let server = FakeServer::start(vec![json_answer(status, body)]).await;
        let done = unwatched(&agent(&server), &request(notes())).await;
        assert_eq!((done.failure().upstream_code.as_deref(), done.failure().status), (Some(code), Some(status)));
    }
}

/// Some servers and proxies send lines under the name of one value.
#[tokio::test]
async fn lines_under_another_name() {
    let server = FakeServer::start(vec![json_answer(200, &(said("초") + &said("안") + DONE))]).await;
    let done = unwatched(&agent(&server), &request(notes())).await;
    assert_eq!(done.reply().output, json!({"text": "초안"}));
}

#[tokio::test]
async fn the_clocks_of_a_stream_are_kept() {
    let soon = Duration::from_millis(60);
    let timeouts = AttemptTimeouts { first_token: Some(soon), stall: Some(soon) };
    for (steps, want) in [
        (vec![Step::UntilClosed], TimeoutKind::FirstToken),
        (vec![head(), Step::UntilClosed], TimeoutKind::FirstToken),
        (vec![head(), send(&said("a")), Step::UntilClosed], TimeoutKind::Stall),
    ] {
        let mut server = FakeServer::start(vec![steps]).await;
        let request = AttemptRequest { timeouts, ..request(notes()) };
        let done = watched(&agent(&server), &request).await;
        assert_eq!(done.failure().ending, Ending::Timeout { timeout: want });
        assert!(server.sees_client_leave().await, "the connection must be closed");
    }
}

#[tokio::test]
async fn a_caller_that_leaves_ends_the_work() {
    let mut server = FakeServer::start(vec![vec![head(), send(&said("a")), Step::UntilClosed]]).await;
    let agent = agent(&server);
    let request = request(notes());
    tokio::select! {
        _ = unwatched(&agent, &request) => panic!("nothing ends this answer"),
        () = server.has_requests(1) => {}
    }
    assert!(server.sees_client_leave().await);
}

/// TRAPS B34 on a cold server: what would not be sent costs nobody the loading of a model, and nobody else is told to wait for it.
#[tokio::test]
async fn what_would_not_be_sent_loads_no_model() {
    let server = FakeServer::start(vec![json_answer(200, "{}")]).await;
    let name = |text: &str| Name::try_new(text).unwrap();
    let model = AgentSettings { model: Some("m:8b".to_owned()), ..AgentSettings::new(name("a"), name("local")) };
    let builder = Runtime::builder().seed(7).provider(ProviderSettings::new(name("local")));
    let runtime = builder.agent(model, Arc::new(agent(&server))).start().await.unwrap();
    let handle = runtime.agent("a").unwrap();
    let relayed = |kind: RelayKind, body: Value| {
        let (out, _) = tokio::sync::mpsc::channel(1);
        let body = Arc::new(RawObject::try_new(body.to_string().into_bytes()).unwrap());
        let relay = Relay { kind, form: RelayForm::Whole, body, out, fallback: None, degraded: None, earlier: 0 };
        CallRequest { relay: Some(relay), ..CallRequest::of(Value::Null) }
    };
    let user = json!([{"role": "user", "content": "hi"}]);
    for (call, status) in [
        (CallRequest::of(json!({"notes": "  "})), 400),
        (CallRequest::of(json!({"notes": "word ".repeat(20_000)})), 413),
        (relayed(RelayKind::Chat, json!({"messages": [{"role": "system", "content": "x"}]})), 400),
        (relayed(RelayKind::Chat, json!({"messages": user, "n": 2})), 400),
        (relayed(RelayKind::Chat, json!({"messages": user, "max_tokens": 9_000})), 413),
        (relayed(RelayKind::Embeddings, json!({"input": [1, 2]})), 400),
        (relayed(RelayKind::Embeddings, json!({"input": "word ".repeat(20_000)})), 413),
    ] {
        let error = handle.call(call).await.unwrap_err();
        let envelope = &error.envelope;
        assert_eq!((envelope.http_status, envelope.retryable), (status, false), "{envelope:?}");
        assert!(error.nothing_sent && error.attempts.is_empty() && error.exhausted, "{error:?}");
        assert!(server.requests().is_empty(), "{envelope:?}: {:?}", server.requests());
    }
    assert_eq!((handle.in_flight(), runtime.breaker("agent:a").unwrap().counts.entries), (0, 0));
    // One that can be sent has its model loaded first, and is not told that somebody else does so.
    let _ = handle.call(CallRequest::of(notes())).await;
    assert!(server.requests().len() > 1, "{:?}", server.requests());
}

/// What is reserved for an answer is what the request goes out with.
#[test]
fn an_answer_is_taken_for_what_it_may_have() {
    let client = Arc::new(ProviderClient::try_new(&ProviderOptions::at("http://127.0.0.1:9")).unwrap());
    for (own_cap, body, want) in [
        (Some(300), json!({"messages": []}), Some(300)),
        (Some(300), json!({"messages": [], "max_tokens": null}), Some(300)),
        (Some(300), json!({"messages": [], "max_tokens": 50}), Some(50)),
        (Some(300), json!({"messages": [], "max_completion_tokens": 700}), Some(700)),
        (None, json!({"messages": []}), None),
    ] {
        let asked = OpenAiSettings { max_output_tokens: own_cap, ..settings().asked };
        let agent = OllamaAgent::try_new(Arc::clone(&client), OllamaSettings { asked, ..settings() }).unwrap();
        let relay = Arc::new(RawObject::try_new(body.to_string().into_bytes()).unwrap());
        let of = |kind| Asked { input: Arc::new(Value::Null), relay: Some((kind, Arc::clone(&relay))) };
        let reserved = |kind| agent.estimate(&of(kind), None).unwrap().output_max;
        assert_eq!(reserved(RelayKind::Chat), want, "{body}");
        assert_eq!(reserved(RelayKind::Embeddings), Some(0), "vectors are no answer");
    }
}
