//! Embeddings over real sockets.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::*;
use crate::{
    model::raw_object::RawObject,
    runtime::{
        ports::{Backend, Progress, TokioClock},
        relay::{RELAY_PIECES_MAX, RelayForm, RelayKind},
    },
    transport::{
        client::ProviderOptions,
        fake_server::{FakeServer, Step, answer},
        ollama::{backend::OllamaAgent, settings::OllamaSettings},
        openai::settings::OpenAiSettings,
        test_attempt::request,
    },
};

fn json_answer(body: &str) -> Vec<Step> {
    answer(200, "content-type: application/json\r\n", body)
}

async fn embedded(server: &FakeServer, body: &str) -> (Result<Reply, AttemptFailure>, Option<Value>) {
    let client = ProviderClient::try_new(&ProviderOptions::at(&server.base_url)).unwrap();
    let asked = OpenAiSettings { model: "nomic".to_owned(), ..OpenAiSettings::default() };
    let settings = OllamaSettings { asked, num_ctx: 2_048, ..OllamaSettings::default() };
    let agent = OllamaAgent::try_new(Arc::new(client), settings).unwrap();
    let (out, mut pieces) = mpsc::channel(RELAY_PIECES_MAX);
    let body = Arc::new(RawObject::try_new(body.as_bytes().to_vec()).unwrap());
    let relay = Relay {
        kind: RelayKind::Embeddings,
        form: RelayForm::Whole,
        body,
        out,
        fallback: None,
        degraded: None,
        earlier: 0,
    };
    let attempt = AttemptRequest { relay: Some(relay), ..request(Value::Null) };
    let progress = Progress::start(Arc::new(TokioClock::start()), None);
    let ended = agent.attempt(&attempt, &progress).await;
    drop(attempt);
    let whole = match pieces.recv().await {
        Some(RelayPiece::Whole(bytes)) => Some(serde_json::from_slice(&bytes).unwrap()),
        _ => None,
    };
    (ended, whole)
}

const TOLD: &str = r#"{"model":"nomic","embeddings":[[0.5,-1.25],[1,2]],"prompt_eval_count":7}"#;

#[tokio::test]
async fn texts_become_vectors() {
    for (encoding, first) in [("", json!([0.5, -1.25])), (r#","encoding_format":"base64""#, json!("AAAAPwAAoL8="))] {
        let server = FakeServer::start(vec![json_answer(TOLD)]).await;
        let asked = format!(r#"{{"model":"gpt","input":["a","b"],"dimensions":2{encoding}}}"#);
        let (ended, whole) = embedded(&server, &asked).await;
        let whole = whole.unwrap();
        assert_eq!((&whole["data"][0]["embedding"], &whole["data"][1]["index"]), (&first, &json!(1)));
        assert_eq!(
            (&whole["object"], &whole["usage"]),
            (&json!("list"), &json!({"prompt_tokens": 7, "total_tokens": 7}))
        );
        assert_eq!(
            ended.unwrap().usage,
            Some(Usage { prompt_tokens: 7, output_tokens: 0, estimated: false, ..Usage::default() })
        );
        let want = json!({
            "model": "nomic", "input": ["a", "b"], "truncate": false, "dimensions": 2, "options": {"num_ctx": 2048},
            "keep_alive": "300s",
        });
        assert_eq!(server.bodies(), [want]);
        assert!(server.requests().concat().starts_with("POST /api/embed HTTP/1.1\r\n"));
    }
}

#[tokio::test]
async fn what_is_refused_and_what_is_no_answer() {
    let long = format!(r#"{{"input":"{}"}}"#, "word and word ".repeat(4_000));
    let one = r#"{"input":"a"}"#;
    for (body, told, want, requests) in [
        ("{}", TOLD, 400, 0),
        (r#"{"input":[]}"#, TOLD, 400, 0),
        (r#"{"input":""}"#, TOLD, 400, 0),
        (r#"{"input":[1,2]}"#, TOLD, 400, 0),
        (r#"{"input":"a","encoding_format":"hex"}"#, TOLD, 400, 0),
        (long.as_str(), TOLD, 413, 0),
        (one, r#"{"error":"input length exceeds maximum context length"}"#, 400, 1),
        (one, TOLD, 0, 1),
        (one, "{}", 0, 1),
        (one, r#"{"embeddings":[[]]}"#, 0, 1),
        (one, r#"{"embeddings":[["x"]]}"#, 0, 1),
        (one, "<html>", 0, 1),
    ] {
        let server = FakeServer::start(vec![json_answer(told)]).await;
        let (ended, whole) = embedded(&server, body).await;
        let status = match ended.unwrap_err().ending {
            Ending::Status { status, .. } => status,
            Ending::BadReply => 0,
            other => panic!("{body:.60}: {other:?}"),
        };
        assert_eq!((status, server.requests().len(), whole), (want, requests, None), "{body:.60} {told}");
    }
}

#[tokio::test]
async fn a_usage_that_was_not_told_is_counted() {
    let server = FakeServer::start(vec![json_answer(r#"{"embeddings":[[1.0]]}"#)]).await;
    let (ended, whole) = embedded(&server, r#"{"input":"abcdef"}"#).await;
    assert!(ended.unwrap().usage.is_some_and(|usage| usage.estimated && usage.prompt_tokens == 2));
    assert!(whole.is_some());
}
