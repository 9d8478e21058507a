//! What is kept of exchanges over real sockets, and what never is.

use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::{
    runtime::{
        capture::CaptureSlot,
        ports::{AttemptRequest, Backend},
        relay::{Relay, RelayForm, RelayKind},
    },
    transport::{
        client::{ProviderClient, ProviderOptions},
        fake_server::{FakeServer, Step, answer, stream},
        http_agent::{backend::HttpAgent, mapping::HttpMapping},
        openai::{
            backend::OpenAiAgent,
            settings::{Answer, OpenAiPaths, OpenAiSettings, StreamUpstream},
        },
        secret::Secret,
        test_attempt::{Attempted, request, watched},
    },
};

const KEY: &str = "sk-0123456789";

fn client(server: &FakeServer) -> Arc<ProviderClient> {
    let options = ProviderOptions { key: Some(Secret::new(KEY)), ..ProviderOptions::at(&server.base_url) };
    Arc::new(ProviderClient::try_new(&options).unwrap())
}

fn openai(client: Arc<ProviderClient>) -> OpenAiAgent {
    let settings = OpenAiSettings {
        model: "qwen".to_owned(),
        system: Some("Write.".to_owned()),
        prompt: "Notes: {{ input.notes }}".to_owned(),
        prompt_file: None,
        schema: None,
        answer: Answer::Text,
        max_output_tokens: None,
        temperature: None,
        seed: None,
        stream_upstream: StreamUpstream::Always,
        extra: Map::new(),
        paths: OpenAiPaths::default(),
    };
    OpenAiAgent::try_new(client, settings).unwrap()
}

/// One attempt with a slot, and what is kept of it.
async fn kept(backend: &dyn Backend, request: AttemptRequest) -> (Attempted, Said) {
    let slot = CaptureSlot::default();
    let request = AttemptRequest { capture: Some(slot.clone()), ..request };
    let attempted = watched(backend, &request).await;
    (attempted, slot.get().unwrap().said())
}

#[tokio::test]
async fn a_models_stream_is_kept_with_its_prompt_and_text() {
    let frames = concat!(
        "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"좋은 \"}}]}\n\n",
        ": alive\n\n",
        "data: {\"choices\":[{\"delta\":{\"content\":\"글 sk-0123456789\"},\"finish_reason\":\"stop\"}]}\n\n",
        "data: [DONE]\n\n",
    );
    let server = FakeServer::start(vec![stream(frames)]).await;
    let agent = openai(client(&server));
    let (_, said) = kept(&agent, request(json!({"notes": format!("산책 {KEY}")}))).await;
    assert_eq!(said.answer.as_deref(), Some(frames.replace(KEY, "(hidden)").as_str()));
    assert_eq!(said.text.as_deref(), Some("좋은 글 (hidden)"));
    assert_eq!(
        said.prompt["body"]["messages"],
        json!([{"role": "system", "content": "Write."}, {"role": "user", "content": "Notes: 산책 (hidden)"}])
    );
    assert_eq!(said.prompt["headers"]["authorization"], "(hidden)");
    assert_eq!(said.prompt["method"], "POST");
    assert!(!format!("{said:?}").contains("sk-01"));
}

#[tokio::test]
async fn an_error_and_no_answer_at_all() {
    let told = format!(r#"{{"error":{{"message":"key {KEY} is wrong"}}}}"#);
    for (steps, want) in [
        (answer(401, "", &told), Some(told.replace(KEY, "(hidden)"))),
        (
            vec![Step::Send(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nha\xfflf".to_vec())],
            Some("ha\u{fffd}lf".to_owned()),
        ),
        (vec![], None),
    ] {
        let server = FakeServer::start(vec![steps]).await;
        let agent = HttpAgent::try_new(client(&server), &HttpMapping::default()).unwrap();
        let (attempted, said) = kept(&agent, request(json!({"notes": "산책"}))).await;
        attempted.failure();
        assert_eq!((said.answer, said.text), (want, None));
        assert_eq!(said.prompt["body"], json!({"input": {"notes": "산책"}}));
    }
}

#[tokio::test]
async fn a_relay_is_kept_without_its_pictures() {
    let whole = r#"{"choices":[{"message":{"role":"assistant","content":"a"},"finish_reason":"stop"}]}"#;
    let server = FakeServer::start(vec![answer(200, "content-type: application/json\r\n", whole)]).await;
    let agent = openai(client(&server));
    let body = r#"{"model":"x","n":2,"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,YWJj"}}]}]}"#;
    let (out, _answers) = tokio::sync::mpsc::channel(8);
    let body = Arc::new(crate::model::raw_object::RawObject::try_new(body.as_bytes().to_vec()).unwrap());
    let relay =
        Relay { kind: RelayKind::Chat, form: RelayForm::Whole, body, out, fallback: None, degraded: None, earlier: 0 };
    let asked = AttemptRequest { relay: Some(relay), ..request(Value::Null) };
    let (attempted, said) = kept(&agent, asked).await;
    attempted.reply();
    assert_eq!(said.answer.as_deref(), Some(whole));
    let url = &said.prompt["body"]["messages"][0]["content"][0]["image_url"]["url"];
    assert!(url.as_str().unwrap().starts_with("data:image/png;base64,(3 bytes, sha256 ba7816bf"), "{url}");
}

#[tokio::test]
async fn both_sides_are_bounded() {
    let long = "가".repeat(KEPT_PROMPT_BYTES_MAX / 2);
    let server = FakeServer::start(vec![answer(200, "", &json!({"output": long}).to_string())]).await;
    let agent = HttpAgent::try_new(client(&server), &HttpMapping::default()).unwrap();
    let (attempted, said) = kept(&agent, request(json!({"notes": long}))).await;
    assert_eq!(attempted.reply().output, json!(long), "nothing is taken away from the answer");
    let note = "\n(cut: not all of it is kept)";
    for (text, bytes_max) in [
        (said.answer.as_deref().unwrap(), KEPT_ANSWER_BYTES_MAX),
        (said.prompt["body"].as_str().unwrap(), KEPT_PROMPT_BYTES_MAX),
    ] {
        let text = text.strip_suffix(note).unwrap();
        assert!(text.len() <= bytes_max && text.len() > bytes_max - 4, "{}", text.len());
    }
}

#[test]
fn the_end_of_a_cut_answer_holds_no_begun_secret() {
    for kept in 0..=KEY.len() {
        let recording = Recording::answered(KEY, 1_000);
        recording.piece(&vec![b'.'; 1_000 - kept]);
        recording.piece(KEY.as_bytes());
        recording.piece(b"!");
        let answer = recording.said().answer.unwrap();
        assert!(!answer.contains("sk-012"), "{kept}: {answer}");
    }
}

#[test]
fn texts_of_streams_of_all_kinds() {
    for (frames, want) in [
        ("data: {\"delta\":\"a\"}\n\ndata: {\"delta\":\"b\"}\n\ndata: {\"output\":\"ab\"}\n\n", "ab"),
        (
            "event: x\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":\"a\"}}\n\n",
            "a",
        ),
        ("data: {\"choices\":[{\"text\":\"a\"}]}\n\ndata: no json\n\ndata: {\"choices\":[]}\n\n", "a"),
        (": nothing\n\n", ""),
        ("data: {\"delta\":\"a\"}\n\ndata: {\"delta\":\"b", "a"),
    ] {
        assert_eq!(stream_text(frames.as_bytes()), want, "{frames}");
    }
}

#[test]
fn texts_of_lines() {
    let line = |text: &str| format!("{{\"message\":{{\"content\":\"{text}\"}},\"done\":false}}\n");
    for (body, want) in [
        (line("초") + &line("안") + "{\"done\":true}", "초안"),
        ("{\"error\":\"it broke\"}\n".to_owned(), ""),
        (line("a") + "<html>\n" + &line("b"), "a"),
        (line("a") + "{\"message\":{\"content\":\"cut", "a"),
    ] {
        assert_eq!(lines_text(body.as_bytes()), want, "{body}");
    }
}

/// A signed URL is a key for a few minutes: neither the prompt nor an answer that repeats it, nor what was read of that, keeps it.
#[tokio::test]
async fn signatures_of_urls_are_not_kept() {
    let signature = "19c8f2a0b11.q1w2e3r4t5y6u7i8o9p0-AAAA_BBBBccccDDDDeeee";
    let url = format!("http://here/v1/files/file-1?signature={signature}");
    let echoed = json!({ "output": { "seen": url, "alone": signature } }).to_string();
    let server = FakeServer::start(vec![answer(200, "", &echoed)]).await;
    let agent = HttpAgent::try_new(client(&server), &HttpMapping::default()).unwrap();
    let slot = CaptureSlot::default();
    let asked = AttemptRequest { capture: Some(slot.clone()), ..request(json!({ "photo": { "url": url } })) };
    watched(&agent, &asked).await;
    let recorded = slot.get().unwrap();
    let said = recorded.said();
    let parsed = recorded.redact(json!({ "output": { "seen": url } }));
    for kept in [said.prompt.to_string(), said.answer.unwrap(), parsed.to_string()] {
        assert!(!kept.contains(signature) && kept.contains("(hidden)"), "{kept}");
        assert!(kept.contains("/v1/files/file-1?signature="), "{kept}");
    }
}
