//! What the ledger says of answers whose usage is told oddly, or not at all.

use axum::body::to_bytes;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::support::{SAID, STOP, STREAM, accounted, accounting, ask, post};
use crate::transport::{
    fake_server::{FakeServer, answer, stream},
    shared_cases,
};

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
