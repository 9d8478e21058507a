//! The contract and mapped services over real sockets.

use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::{
    model::{facts::TimeoutKind, reply::Usage},
    runtime::ports::AttemptTimeouts,
    transport::{
        client::ProviderOptions,
        fake_server::{FakeServer, Step, answer, stream, stream_head},
        secret::Secret,
        test_attempt::{request, unwatched, watched},
    },
};

const SERVER_ERROR: Ending = Ending::status(502);

fn agent(server: &FakeServer, mapping: &HttpMapping) -> HttpAgent {
    let client = ProviderClient::try_new(&ProviderOptions::at(&server.base_url)).unwrap();
    HttpAgent::try_new(Arc::new(client), mapping).unwrap()
}

fn at_path(path: &str) -> HttpMapping {
    HttpMapping { path: path.to_owned(), ..HttpMapping::default() }
}

#[tokio::test]
async fn the_whole_contract_is_sent() {
    let server = FakeServer::start(vec![answer(
        200,
        "",
        r#"{"output": {"text": "좋은 글"}, "usage": {"prompt_tokens": 7, "output_tokens": 3}}"#,
    )])
    .await;
    let done = unwatched(&agent(&server, &at_path("/draft")), &request(json!({"notes": "바다"}))).await;
    let usage = Usage { prompt_tokens: 7, output_tokens: 3, estimated: false, ..Usage::default() };
    let want =
        Reply { output: json!({"text": "좋은 글"}), usage: Some(usage), finish_reason: None, status: Some(200) };
    assert_eq!(done.reply(), &want);
    let sent = server.requests().concat();
    for line in [
        "POST /draft HTTP/1.1",
        "content-type: application/json",
        "accept: application/json",
        "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "idempotency-key: run-1/draft/0/0",
        "x-watertight-call-id: call-1",
        "x-watertight-run-id: run-1",
        "x-watertight-attempt: 2",
        "x-watertight-deadline-ms: 12500",
        "x-watertight-tenant: acme",
        "x-watertight-feature: chat",
        "x-watertight-priority: batch",
    ] {
        assert!(sent.contains(&format!("{line}\r\n")), "{line} is missing in {sent}");
    }
    assert_eq!(server.bodies(), [json!({"input": {"notes": "바다"}})]);
}

#[tokio::test]
async fn whole_answers() {
    for (status, body, want) in [
        (200, r#"{"output": null}"#, Ok(Value::Null)),
        (201, r#"{"output": "a"}"#, Ok(json!("a"))),
        (200, r#"{"output": 1, "error": null}"#, Ok(json!(1))),
        (200, r#"{"text": "a"}"#, Err(Ending::BadReply)),
        (200, "fine", Err(Ending::BadReply)),
        (200, "", Err(Ending::BadReply)),
        (200, r#"{"output": "#, Err(Ending::BadReply)),
        // An output is kept as it was written, or not at all; what stands beside it is nobody's business.
        (200, r#"{"output": {"id": 12345678901234567890123}}"#, Err(Ending::BadReply)),
        (200, r#"{"output": [-0]}"#, Err(Ending::BadReply)),
        (200, r#"{"output": 1, "output": 1}"#, Err(Ending::BadReply)),
        (200, r#"{"output": {"a": 1, "a": 1}}"#, Err(Ending::BadReply)),
        (200, r#"{"output": "\ud83d"}"#, Err(Ending::BadReply)),
        (200, r#"{"output": 1e999}"#, Err(Ending::BadReply)),
        (200, r#"{"output": {"a": 1.50}, "id": -0}"#, Ok(json!({"a": 1.5}))),
        (200, r#"{"x": 1e999, "x": "\ud83d", "output": 7, "id": 12345678901234567890123}"#, Ok(json!(7))),
        (200, r#"{"error": {"error_code": "BUSY", "message": "\ud83d"}}"#, Err(SERVER_ERROR)),
        (200, r#"{"error": {"error_code": "BUSY"}}"#, Err(SERVER_ERROR)),
        (200, r#"{"errorCode": "BUSY", "httpStatus": 503}"#, Err(Ending::status(503))),
        (200, r#"{"title": "Bad Request", "status": 400}"#, Err(Ending::status(400))),
        (200, r#"{"message": "no", "code": 422, "data": null}"#, Err(Ending::status(422))),
        (200, r#"{"detail": "no"}"#, Err(SERVER_ERROR)),
        // What errors are made of stands beside an output.
        (200, r#"{"output": 1, "object": "error", "message": "no", "code": 400, "detail": "x"}"#, Ok(json!(1))),
        (503, r#"{"output": "a"}"#, Err(Ending::status(503))),
        (422, r#"{"detail": "no"}"#, Err(Ending::status(422))),
    ] {
        let server = FakeServer::start(vec![answer(status, "", body)]).await;
        let done = unwatched(&agent(&server, &at_path("/")), &request(json!({}))).await;
        assert_eq!(done.ended.map(|reply| reply.output).map_err(|failure| failure.ending), want, "{status} {body}");
    }
}

#[tokio::test]
async fn what_would_be_changed_is_named() {
    let mapped = HttpMapping { output: Some("/data/0/result".to_owned()), ..at_path("/") };
    for (mapping, body, want) in [
        (
            &at_path("/"),
            r#"{"output": {"ids": [1, 12345678901234567890123]}}"#,
            "the answer's output: ids[1]: 12345678901234567890123 would be changed on its way",
        ),
        (&at_path("/"), r#"{"output": 1, "output": 2}"#, "the answer's output: the member \"output\" stands twice"),
        (&at_path("/"), r#"{"output": {"a": 1, "a": 2}}"#, "the answer's output: the member \"a\" stands twice"),
        (
            &mapped,
            r#"{"data": [{"result": -0}], "x": -0}"#,
            "the answer's output: the number: -0 would be changed on its way",
        ),
        (&mapped, r#"{"data": [], "x": -0}"#, "the answer holds nothing at \"/data/0/result\""),
        (&at_path("/"), r#"{"x": -0}"#, "the answer holds no `output`"),
    ] {
        let server = FakeServer::start(vec![answer(200, "", body)]).await;
        let failure = unwatched(&agent(&server, mapping), &request(json!({}))).await.ended.unwrap_err();
        assert!(failure.message.starts_with(want), "{body}: {}", failure.message);
    }
}

#[tokio::test]
async fn streams() {
    let end = "data: {\"output\": {\"text\": \"ab\"}, \"usage\": {\"prompt_tokens\": 1, \"output_tokens\": 2}}\n\n";
    let deltas = "data: {\"delta\": \"a\"}\n\n: alive\n\ndata: {\"delta\": \"\"}\n\ndata: {\"delta\": \"b\"}\n\n";
    let error =
        "event: error\ndata: {\"error\": {\"error_code\": \"BUSY\", \"http_status\": 503, \"retryable\": true}}\n\n";
    let busy = Ending::Status {
        status: 503,
        retryable: Some(true),
        content_filter: false,
        context_too_long: false,
        quota_spent: None,
    };
    for (text, pieces, want) in [
        (format!("{deltas}{end}"), &["a", "b"][..], Ok(json!({"text": "ab"}))),
        (end.to_owned(), &[], Ok(json!({"text": "ab"}))),
        (end.trim_end().to_owned(), &[], Ok(json!({"text": "ab"}))),
        (deltas.to_owned(), &["a", "b"], Err(Ending::StreamCut)),
        (format!("{deltas}data: {{\"output\": {{\"te"), &["a", "b"], Err(Ending::StreamCut)),
        (String::new(), &[], Err(Ending::StreamCut)),
        (
            format!("data: {{\"delta\": \"a\\ud83d\"}}\n\ndata: {{\"delta\": \"\\ude00\"}}\n\n{end}"),
            &["a", "😀"],
            Ok(json!({"text": "ab"})),
        ),
        (format!("data: {{\"delta\": \"a\", \"x\": 1e999}}\n\n{end}"), &["a"], Ok(json!({"text": "ab"}))),
        ("data: {\"output\": {\"n\": -0}}\n\n".to_owned(), &[], Err(Ending::BadReply)),
        ("data: {\"output\": 1, \"output\": 2}\n\n".to_owned(), &[], Err(Ending::BadReply)),
        ("data: {\"output\": 1, \"x\": -0}\n\n".to_owned(), &[], Ok(json!(1))),
        (format!("{deltas}{error}"), &["a", "b"], Err(busy.clone())),
        (format!(": first\n\n{error}"), &[], Err(busy)),
        (
            format!("{deltas}error: {{\"code\": 503, \"message\": \"x\"}}\n\n{end}"),
            &["a", "b"],
            Err(Ending::status(503)),
        ),
        (format!("{deltas}event: error\ndata: no memory\n\n{end}"), &["a", "b"], Err(SERVER_ERROR)),
        (format!("data: {{\"message\": \"x\", \"code\": 503}}\n\n{end}"), &[], Err(Ending::status(503))),
        // Of its progress an agent may say what it likes.
        (
            format!("data: {{\"detail\": \"step 1\"}}\n\ndata: {{\"message\": \"x\", \"code\": \"STEP\"}}\n\n{end}"),
            &[],
            Ok(json!({"text": "ab"})),
        ),
        ("data: oops\n\n".to_owned(), &[], Err(Ending::BadReply)),
    ] {
        let server = FakeServer::start(vec![stream(&text)]).await;
        let done = watched(&agent(&server, &at_path("/")), &request(json!({}))).await;
        assert!(server.requests()[0].contains("accept: text/event-stream"));
        assert_eq!(done.pieces, pieces, "{text}");
        assert_eq!(done.committed, !pieces.is_empty(), "{text}");
        assert_eq!(done.ended.map(|reply| reply.output).map_err(|failure| failure.ending), want, "{text}");
    }
}

#[tokio::test]
async fn a_stream_that_was_not_asked_for_is_read_all_the_same() {
    let server = FakeServer::start(vec![stream("data: {\"delta\": \"a\"}\n\ndata: {\"output\": \"a\"}\n\n")]).await;
    let done = unwatched(&agent(&server, &at_path("/")), &request(json!({}))).await;
    assert_eq!(done.reply().output, json!("a"));
}

#[tokio::test]
async fn clocks_of_a_stream() {
    let first = Step::Send(b"data: {\"delta\": \"a\"}\n\n".to_vec());
    let alive = [Step::Send(b": alive\n\n".to_vec()), Step::Pause(Duration::from_millis(40))];
    let beats: Vec<Step> = alive.iter().cycle().take(60).cloned().collect();
    for (steps, want) in [
        (vec![Step::UntilClosed], TimeoutKind::FirstToken),
        ([vec![stream_head()], beats.clone()].concat(), TimeoutKind::FirstToken),
        ([vec![stream_head(), first], beats].concat(), TimeoutKind::Stall),
    ] {
        let server = FakeServer::start(vec![steps]).await;
        // The clock that is not asked is far away, so that a busy machine cannot make it ring first.
        let waits_for_content = want == TimeoutKind::FirstToken;
        let timeouts = AttemptTimeouts {
            first_token: Some(Duration::from_millis(if waits_for_content { 200 } else { 20_000 })),
            stall: Some(Duration::from_millis(200)),
        };
        let request = crate::runtime::ports::AttemptRequest { timeouts, ..request(json!({})) };
        let done = watched(&agent(&server, &at_path("/")), &request).await;
        assert_eq!(done.failure().ending, Ending::Timeout { timeout: want });
    }
}

#[tokio::test]
async fn a_mapped_service() {
    let text = |text: &str| Some(text.to_owned());
    let mapping = HttpMapping {
        method: text("PUT"),
        path: "/v2/generate".to_owned(),
        headers: vec![("x-token".to_owned(), Secret::new("token-secret"))],
        request: text(r#"{"prompt": {{ input.notes }}, "n": {{ input.photos | length }}}"#),
        output: text("/results/0/text"),
        usage: None,
        usage_prompt: text("/tokens/in"),
        usage_output: text("/tokens/out"),
        error_code: text("/fault/id"),
        message: text("/fault/words"),
        retryable: text("/fault/again"),
        retry_after: text("/fault/in"),
    };
    let server = FakeServer::start(vec![
        answer(200, "", r#"{"results": [{"text": "글"}], "tokens": {"in": 5, "out": 2}}"#),
        answer(200, "", r#"{"results": []}"#),
        answer(418, "", r#"{"fault": {"id": "E7", "words": "bad token-secret", "again": true, "in": 2}}"#),
        answer(200, "", r#"{"fault": {"id": "E8"}}"#),
    ])
    .await;
    let agent = agent(&server, &mapping);
    let request = request(json!({"notes": "say \"hi\"", "photos": [1, 2]}));
    let done = unwatched(&agent, &request).await;
    assert_eq!(done.reply().output, json!("글"));
    assert_eq!(done.reply().usage.map(|usage| (usage.prompt_tokens, usage.output_tokens)), Some((5, 2)));
    assert_eq!(server.bodies(), [json!({"prompt": "say \"hi\"", "n": 2})]);
    let sent = server.requests().concat();
    assert!(sent.starts_with("PUT /v2/generate ") && sent.contains("x-token: token-secret\r\n"), "{sent}");
    assert_eq!(unwatched(&agent, &request).await.failure().ending, Ending::BadReply);
    let failed = unwatched(&agent, &request).await;
    let failure = failed.failure();
    assert_eq!((failure.upstream_code.as_deref(), failure.message.as_str()), (Some("E7"), "bad ***"));
    assert_eq!(failure.retry_after, Some(Duration::from_secs(2)));
    assert_eq!(unwatched(&agent, &request).await.failure().ending, SERVER_ERROR);
}

/// What was used stands in one object, whose place is told.
#[tokio::test]
async fn a_mapped_usage() {
    let mapping = HttpMapping { usage: Some("/meta/used".to_owned()), ..at_path("/") };
    let ours = r#"{"output": 1, "meta": {"used": {"prompt_tokens": 5, "output_tokens": 2}}}"#;
    let open_ai = r#"{"output": 1, "meta": {"used": {"prompt_tokens": 7, "completion_tokens": 3}}}"#;
    let answers = [ours, open_ai, r#"{"output": 1}"#].map(|body| answer(200, "", body));
    let server = FakeServer::start(answers.to_vec()).await;
    let agent = agent(&server, &mapping);
    for want in [Some((5, 2)), Some((7, 3)), None] {
        let done = unwatched(&agent, &request(json!({}))).await;
        assert_eq!(done.reply().usage.map(|usage| (usage.prompt_tokens, usage.output_tokens)), want);
    }
}

#[tokio::test]
async fn inputs_that_cannot_be_sent() {
    let server = FakeServer::start(vec![]).await;
    for template in ["{\"a\": {{ input.absent }}}", "{\"a\": "] {
        let mapping = HttpMapping { request: Some(template.to_owned()), ..at_path("/") };
        let done = unwatched(&agent(&server, &mapping), &request(json!({}))).await;
        let Ending::Status { status, retryable, .. } = done.failure().ending else { panic!("{done:?}") };
        assert_eq!((status, retryable), (400, Some(false)), "{template}");
    }
    assert!(server.requests().is_empty(), "nothing is sent");
}

#[tokio::test]
async fn leaving_stops_the_work() {
    let first = Step::Send(b"data: {\"delta\": \"a\"}\n\n".to_vec());
    for steps in [vec![Step::UntilClosed], vec![stream_head(), first, Step::UntilClosed]] {
        let mut server = FakeServer::start(vec![steps]).await;
        let agent = agent(&server, &at_path("/"));
        let attempt = tokio::spawn(async move { watched(&agent, &request(json!({}))).await });
        server.has_requests(1).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        attempt.abort();
        assert!(server.sees_client_leave().await);
    }
}
