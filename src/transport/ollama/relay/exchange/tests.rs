//! Relayed exchanges with an Ollama server over real sockets.

use std::sync::Arc;

use serde_json::json;
use tokio::sync::mpsc;

use super::*;
use crate::{
    model::raw_object::RawObject,
    runtime::{
        ports::{Backend, TokioClock},
        relay::{RELAY_PIECES_MAX, RelayKind, RelayPiece, StreamUsage},
    },
    transport::{
        client::ProviderOptions,
        fake_server::{FakeServer, Step, answer},
        ollama::{backend::OllamaAgent, settings::OllamaSettings},
        openai::settings::OpenAiSettings,
        test_attempt,
    },
};

const STREAM: RelayForm = RelayForm::Stream { usage: StreamUsage::Unwanted };
const WITH_USAGE: RelayForm = RelayForm::Stream { usage: StreamUsage::Wanted };
const ASKED: &str = r#"{"model":"gpt","messages":[{"role":"user","content":"사진 3장"}]}"#;
const DONE: &str = "{\"message\":{\"content\":\"\"},\"done\":true,\"done_reason\":\"stop\",\"prompt_eval_count\":5,\"eval_count\":3}\n";

/// What reached the caller, and how it ended.
struct Relayed {
    ended: Result<Reply, AttemptFailure>,
    began: bool,
    frames: Vec<String>,
    whole: Option<Value>,
}

impl Relayed {
    /// The deltas of the frames.
    fn deltas(&self) -> Vec<Value> {
        let data = self.frames.iter().filter_map(|frame| frame.strip_prefix("data: "));
        let chunks = data.filter_map(|data| serde_json::from_str::<Value>(data).ok());
        chunks.filter_map(|chunk| chunk.pointer("/choices/0/delta").cloned()).collect()
    }
}

async fn relayed(server: &FakeServer, form: RelayForm, upstream: StreamUpstream, body: &str) -> Relayed {
    let client = ProviderClient::try_new(&ProviderOptions::at(&server.base_url)).unwrap();
    let asked = OpenAiSettings { model: "m:8b".to_owned(), stream_upstream: upstream, ..OpenAiSettings::default() };
    let settings = OllamaSettings { asked, ..OllamaSettings::default() };
    let agent = OllamaAgent::try_new(Arc::new(client), settings).unwrap();
    let (out, mut pieces) = mpsc::channel(RELAY_PIECES_MAX);
    let body = Arc::new(RawObject::try_new(body.as_bytes().to_vec()).unwrap());
    let relay = Relay { kind: RelayKind::Chat, form, body, out, fallback: None, degraded: None, earlier: 0 };
    let attempt = AttemptRequest { relay: Some(relay), ..test_attempt::request(Value::Null) };
    let progress = Progress::start(Arc::new(TokioClock::start()), None);
    assert!(agent.relays());
    let ended = agent.attempt(&attempt, &progress).await;
    drop(attempt);
    let mut relayed = Relayed { ended, began: false, frames: Vec::new(), whole: None };
    while let Some(piece) = pieces.recv().await {
        match piece {
            RelayPiece::Began(_) => relayed.began = true,
            RelayPiece::Frame(bytes) => relayed.frames.push(String::from_utf8(bytes.to_vec()).unwrap()),
            RelayPiece::Whole(bytes) => relayed.whole = Some(serde_json::from_slice(&bytes).unwrap()),
        }
    }
    relayed
}

fn lines(text: &str) -> Vec<Step> {
    let head = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: application/x-ndjson\r\n\r\n";
    vec![Step::Send(head.to_vec()), Step::Send(text.as_bytes().to_vec())]
}

fn said(text: &str) -> String {
    format!("{}\n", json!({"message": {"role": "assistant", "content": text}, "done": false}))
}

fn json_answer(status: u16, body: &str) -> Vec<Step> {
    answer(status, "content-type: application/json\r\n", body)
}

#[tokio::test]
async fn a_stream_becomes_a_stream() {
    for (form, frames) in [(STREAM, 4), (WITH_USAGE, 5)] {
        let server = FakeServer::start(vec![lines(&(said("초") + &said("안") + DONE))]).await;
        let got = relayed(&server, form, StreamUpstream::Always, ASKED).await;
        assert!(got.began);
        assert_eq!(got.frames.len(), frames, "{:?}", got.frames);
        assert_eq!(got.deltas(), [json!({"role": "assistant", "content": "초"}), json!({"content": "안"}), json!({})]);
        assert_eq!(got.frames.last().map(String::as_str), Some("data: [DONE]\n\n"));
        assert!(got.frames[2].contains("\"finish_reason\":\"stop\""), "{:?}", got.frames);
        assert_eq!(got.frames[3].contains("\"total_tokens\":8"), form == WITH_USAGE);
        let reply = got.ended.unwrap();
        assert_eq!(
            reply.usage,
            Some(Usage { prompt_tokens: 5, output_tokens: 3, estimated: false, ..Usage::default() })
        );
        assert_eq!(reply.finish_reason.as_deref(), Some("stop"));
    }
}

#[tokio::test]
async fn a_plain_answer_however_it_came() {
    let whole = r#"{"message":{"role":"assistant","content":"초안"},"done":true,"done_reason":"length","prompt_eval_count":5,"eval_count":3}"#;
    let streamed = lines(&(said("초") + &said("안") + &DONE.replace("stop", "length")));
    for (steps, upstream, asks_for_stream) in [
        (streamed, StreamUpstream::Always, true),
        (json_answer(200, whole), StreamUpstream::AsAsked, false),
        (json_answer(200, whole), StreamUpstream::Always, true),
    ] {
        let server = FakeServer::start(vec![steps]).await;
        let got = relayed(&server, RelayForm::Whole, upstream, ASKED).await;
        let answer = got.whole.unwrap();
        assert_eq!(answer["object"], "chat.completion");
        let message = json!({"role": "assistant", "content": "초안"});
        assert_eq!(answer["choices"], json!([{"index": 0, "message": message, "finish_reason": "length"}]));
        assert_eq!(answer["usage"], json!({"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}));
        assert_eq!(server.bodies()[0]["stream"], json!(asks_for_stream));
        assert_eq!((got.began, got.ended.unwrap().finish_reason.as_deref()), (false, Some("length")));
    }
}

#[tokio::test]
async fn tools_are_called_through_it() {
    let call =
        r#"{"message":{"content":"","tool_calls":[{"id":"t1","function":{"name":"look","arguments":{"at":[1]}}}]}}"#;
    let tool =
        json!({"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}});
    let asked = format!(r#"{{"model":"gpt","tools":[{tool}],"messages":[{{"role":"user","content":"x"}}]}}"#);
    let server = FakeServer::start(vec![lines(&format!("{call}\n{DONE}"))]).await;
    let got = relayed(&server, RelayForm::Whole, StreamUpstream::Always, &asked).await;
    let answer = got.whole.unwrap();
    let choice = &answer["choices"][0];
    assert_eq!((&choice["finish_reason"], &choice["message"]["content"]), (&json!("tool_calls"), &Value::Null));
    let called = &choice["message"]["tool_calls"][0];
    assert_eq!(
        (&called["id"], &called["function"]),
        (&json!("t1"), &json!({"name": "look", "arguments": "{\"at\":[1]}"}))
    );
    assert_eq!(server.bodies()[0]["tools"], json!([tool]), "tools go on as they came");
}

#[tokio::test]
async fn failures_before_the_first_output_reach_nobody() {
    let load = r#"{"message":{"role":"assistant","content":""},"done":true,"done_reason":"load"}"#;
    let busy = r#"{"error":"server busy, please try again.  maximum pending requests exceeded"}"#;
    for (steps, want) in [
        (lines(""), Ending::StreamCut),
        (lines("{\"error\":\"it broke\"}\n"), Ending::status(502)),
        (json_answer(200, load), Ending::NoDraft),
        (lines(&format!("{load}\n")), Ending::NoDraft),
        (json_answer(503, busy), Ending::status(429)),
        (json_answer(200, "<html>"), Ending::BadReply),
    ] {
        let shown = format!("{steps:?}");
        for form in [STREAM, RelayForm::Whole] {
            let server = FakeServer::start(vec![steps.clone()]).await;
            let got = relayed(&server, form, StreamUpstream::Always, ASKED).await;
            let failure = got.ended.unwrap_err();
            assert_eq!((&failure.ending, got.began, got.frames.len()), (&want, false, 0), "{shown}");
            assert_eq!(got.whole, None);
            assert_eq!(failure.usage.unwrap_or_default(), Usage::default(), "{shown}");
        }
    }
}

#[tokio::test]
async fn failures_after_it_keep_what_was_said_and_end_without_a_mark() {
    for (rest, want) in [
        ("", Ending::StreamCut),
        ("{\"error\":\"an error was encountered while running the model\"}\n", Ending::status(502)),
        ("<html>\n", Ending::BadReply),
    ] {
        let server = FakeServer::start(vec![lines(&(said("초") + rest))]).await;
        let got = relayed(&server, STREAM, StreamUpstream::Always, ASKED).await;
        assert_eq!(got.deltas(), [json!({"role": "assistant", "content": "초"})]);
        assert!(got.began && got.frames.len() == 1, "{:?}", got.frames);
        let failure = got.ended.unwrap_err();
        assert_eq!(failure.ending, want);
        assert!(failure.usage.is_some_and(|usage| usage.estimated && usage.output_tokens == 1));
    }
}

#[tokio::test]
async fn a_caller_that_leaves_ends_the_work() {
    let mut steps = lines(&said("a"));
    steps.push(Step::UntilClosed);
    let mut server = FakeServer::start(vec![steps]).await;
    tokio::select! {
        _ = relayed(&server, STREAM, StreamUpstream::Always, ASKED) => panic!("nothing ends this answer"),
        () = server.has_requests(1) => {}
    }
    assert!(server.sees_client_leave().await);
}
