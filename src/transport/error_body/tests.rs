//! Error answers of known kinds, by their shape, and the recorded ones of a real server.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::transport::{shared_cases, sse::SseEvent};

const HEAD: AnswerHead = AnswerHead { status: 200, retry_after: None, should_retry: None };

fn answer(status: u16, body: &[u8]) -> AttemptFailure {
    failure_of_answer(AnswerHead { status, ..HEAD }, body, &ErrorPointers::default())
}

fn inside(value: &Value) -> Option<AttemptFailure> {
    failure_inside_success(HEAD, value, &ErrorPointers::default(), Beside::Promised)
}

fn status_of(failure: &AttemptFailure) -> u16 {
    let Ending::Status { status, .. } = failure.ending else { panic!("{failure:?}") };
    status
}

/// (retryable, content filter, context too long, quota spent)
fn said_of(failure: &AttemptFailure) -> (Option<bool>, bool, bool, bool) {
    let Ending::Status { retryable, content_filter, context_too_long, quota_spent, .. } = failure.ending else {
        panic!("{failure:?}")
    };
    (retryable, content_filter, context_too_long, quota_spent.is_some())
}

#[test]
fn messages_and_codes() {
    for (status, body, code, message) in [
        // Ours, nested and flat, both ways of writing.
        (503, r#"{"error":{"error_code":"LOAD_SHED","message":"busy","http_status":503}}"#, Some("LOAD_SHED"), "busy"),
        (503, r#"{"errorCode":"STYLE_DOWN","httpStatus":503,"message":"no style"}"#, Some("STYLE_DOWN"), "no style"),
        // OpenAI's, the code a string, a number or null.
        (
            401,
            r#"{"error":{"message":"no","type":"invalid_request_error","code":"invalid_api_key"}}"#,
            Some("invalid_api_key"),
            "no",
        ),
        (
            400,
            r#"{"error":{"message":"no","type":"invalid_request_error","code":400}}"#,
            Some("invalid_request_error"),
            "no",
        ),
        (
            429,
            r#"{"error":{"message":"no","type":"insufficient_quota","code":null}}"#,
            Some("insufficient_quota"),
            "no",
        ),
        (
            503,
            r#"{"error":{"message":"Loading model","type":"unavailable_error","code":503}}"#,
            Some("unavailable_error"),
            "Loading model",
        ),
        // Anthropic's.
        (
            529,
            r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#,
            Some("overloaded_error"),
            "Overloaded",
        ),
        // RFC 9457.
        (
            403,
            r#"{"type":"https://example.org/out-of-credit","title":"No credit","detail":"30 < 50","status":403}"#,
            Some("https://example.org/out-of-credit"),
            "30 < 50",
        ),
        (404, r#"{"type":"about:blank","title":"Not Found","status":404}"#, None, "Not Found"),
        // Spring Boot.
        (
            500,
            r#"{"timestamp":"2026-10-21T07:28:00Z","status":500,"error":"Internal Server Error","message":"db","path":"/a"}"#,
            None,
            "db",
        ),
        (404, r#"{"timestamp":1,"status":404,"error":"Not Found","message":"","path":"/a"}"#, None, "Not Found"),
        // FastAPI.
        (404, r#"{"detail":"Item not found"}"#, None, "Item not found"),
        (
            422,
            r#"{"detail":[{"loc":["body","photos",0],"msg":"field required","type":"missing"},{"loc":["query"],"msg":"bad","type":"x"}]}"#,
            None,
            "body.photos.0: field required; query: bad",
        ),
        (409, r#"{"detail":{"error_code":"BUSY","message":"later","retryable":true}}"#, Some("BUSY"), "later"),
        // Google's.
        (
            429,
            r#"[{"error":{"code":429,"message":"slow","status":"RESOURCE_EXHAUSTED"}}]"#,
            Some("RESOURCE_EXHAUSTED"),
            "slow",
        ),
        // Ollama's, OAuth's.
        (404, r#"{"error":"model 'x' not found"}"#, None, "model 'x' not found"),
        (400, r#"{"error":"invalid_grant","error_description":"expired"}"#, Some("invalid_grant"), "expired"),
        // No JSON.
        (502, "<html><head><title>502 Bad\n Gateway</title></head><body>x</body></html>", None, "502 Bad Gateway"),
        (400, "<html>bad gateway page</html>", None, "bad gateway page"),
        (500, "upstream\n exploded", None, "upstream exploded"),
        (500, r#""just text""#, None, "just text"),
        (500, "", None, "HTTP 500 that says nothing"),
        (500, "{}", None, "HTTP 500 that says nothing"),
        (500, "[]", None, "HTTP 500 that says nothing"),
        (500, r#"{"error":{}}"#, None, "HTTP 500 that says nothing"),
    ] {
        let failure = answer(status, body.as_bytes());
        assert_eq!(
            (failure.upstream_code.as_deref(), failure.message.as_str(), failure.status, status_of(&failure)),
            (code, message, Some(status), status),
            "{body}"
        );
    }
}

#[test]
fn what_is_said_of_the_error() {
    let silent = (None, false, false, false);
    for (status, body, want) in [
        (400, json!({"error": {"code": "content_filter"}, "retryable": false}), (Some(false), true, false, false)),
        (400, json!({"error": {"code": "context_length_exceeded"}}), (None, false, true, false)),
        (400, json!({"error": {"code": 400, "type": "exceed_context_size_error"}}), (None, false, true, false)),
        (
            400,
            json!({"error": {"code": "x", "innererror": {"code": "ResponsibleAIPolicyViolation"}}}),
            (None, true, false, false),
        ),
        (409, json!({"error": {"code": "BUSY"}, "retryable": true}), (Some(true), false, false, false)),
        (
            409,
            json!({"error": {"code": "BUSY", "retryable": true}, "retryable": false}),
            (Some(true), false, false, false),
        ),
        (409, json!({"error": {"code": "BUSY", "retryable": "yes"}}), silent),
        (429, json!({"error": {"code": "insufficient_quota"}}), (None, false, false, true)),
        (429, json!({"error": {"code": "rate_limit_exceeded"}}), silent),
        (503, json!({"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}}), silent),
    ] {
        assert_eq!(said_of(&answer(status, body.to_string().as_bytes())), want, "{body}");
    }
}

#[test]
fn waits_and_texts_for_a_screen() {
    let seconds = |seconds| Some(Duration::from_secs_f64(seconds));
    for (header, body, want) in [
        (None, json!({"error": {"retry_after": 21.4}}), seconds(21.4)),
        (None, json!({"retryAfter": "3"}), seconds(3.0)),
        (seconds(22.0), json!({"error": {"retry_after": 21.4}}), seconds(22.0)),
        (seconds(1.0), json!({"error": {"retry_after": 21.4}}), seconds(21.4)),
        (seconds(5.0), json!({"error": {"retry_after": -3}}), seconds(5.0)),
        (None, json!({"error": {"retry_after": "soon"}}), None),
    ] {
        let head = AnswerHead { status: 503, retry_after: header, should_retry: None };
        let failure = failure_of_answer(head, body.to_string().as_bytes(), &ErrorPointers::default());
        assert_eq!(failure.retry_after, want, "{body}");
    }
    let failure = answer(503, r#"{"error":{"errorCode":"X","userMessage":"잠시만요"}}"#.as_bytes());
    assert_eq!(failure.user_message.as_deref(), Some("잠시만요"));
    let spent = AnswerHead { status: 429, retry_after: seconds(60.0), should_retry: None };
    let failure = failure_of_answer(spent, br#"{"error":{"code":"insufficient_quota"}}"#, &ErrorPointers::default());
    let Ending::Status { quota_spent, .. } = failure.ending else { panic!() };
    assert_eq!(quota_spent, Some(QuotaReset::In(Duration::from_secs(60))));
}

#[test]
fn heads() {
    let headers: [(&str, &[u8]); 2] = [("Retry-After", b"7"), ("X-Should-Retry", b"false")];
    let want = AnswerHead { status: 503, retry_after: Some(Duration::from_secs(7)), should_retry: Some(false) };
    assert_eq!(AnswerHead::read(503, &headers, 0), want);
    let failure = failure_of_answer(want, b"{}", &ErrorPointers::default());
    assert_eq!((failure.should_retry, failure.retry_after), (Some(false), want.retry_after));
}

#[test]
fn limits() {
    let body = json!({"error": {"message": "아".repeat(5_000), "code": "c".repeat(5_000)}}).to_string();
    let failure = answer(500, body.as_bytes());
    assert_eq!(failure.message.chars().count(), MESSAGE_CHARS_MAX);
    assert_eq!(failure.upstream_code.unwrap().len(), UPSTREAM_CODE_CHARS_MAX);
}

#[test]
fn errors_inside_a_good_status() {
    for (body, want) in [
        (json!({"error": {"code": "server_error", "message": "upstream busy"}}), Some((502, Some(200)))),
        (json!({"error": {"code": 429, "message": "slow"}}), Some((429, Some(429)))),
        (json!({"error": {"code": "429"}}), Some((429, Some(429)))),
        (json!({"error": {"code": 200, "type": "overloaded_error"}}), Some((503, Some(200)))),
        (json!({"type": "error", "error": {"type": "overloaded_error"}}), Some((503, Some(200)))),
        (json!({"error": {"error_code": "LOAD_SHED", "http_status": 503}}), Some((503, Some(503)))),
        (json!({"errorCode": "STYLE_BAD", "httpStatus": 422}), Some((422, Some(422)))),
        (json!({"error": "boom"}), Some((502, Some(200)))),
        (json!({"error": null}), None),
        (json!({"error": ""}), None),
        (json!({"error": {}}), None),
        (json!({"error": false, "output": 1}), None),
        (json!({"output": {"error": "in the text"}}), None),
        (json!([1]), None),
        (json!("error"), None),
    ] {
        let got = inside(&body).map(|failure| (status_of(&failure), failure.status));
        assert_eq!(got, want, "{body}");
    }
}

/// A shape alone is an error only where nothing that was promised stands beside it.
#[test]
fn errors_by_their_shape() {
    use Beside::{Anything, Named, Nothing, Promised};
    let of = |value: &Value, beside| failure_inside_success(HEAD, value, &ErrorPointers::default(), beside);
    // (in place of an answer, among frames that may say anything)
    for (body, instead, among) in [
        (
            json!({"object": "error", "message": "boom", "type": "BadRequestError", "code": 400}),
            Some((400, Some(400))),
            Some((400, Some(400))),
        ),
        (json!({"object": "error", "type": "RateLimitError"}), Some((429, Some(200))), Some((429, Some(200)))),
        (
            json!({"type": "about:blank", "title": "Bad Request", "detail": "no model", "status": 400}),
            Some((400, Some(400))),
            Some((400, Some(400))),
        ),
        (json!({"title": "Gone", "status": 410, "x": 1}), Some((410, Some(410))), Some((410, Some(410)))),
        (json!({"message": "boom", "code": 400}), Some((400, Some(400))), Some((400, Some(400)))),
        (json!({"msg": "boom", "code": "503", "data": null}), Some((503, Some(503))), Some((503, Some(503)))),
        (json!({"detail": {"message": "later"}, "status_code": 429}), Some((429, Some(429))), Some((429, Some(429)))),
        (json!({"detail": "boom"}), Some((502, Some(200))), None),
        (json!({"detail": {"code": 409, "message": "busy"}}), Some((409, Some(409))), None),
        (json!({"detail": [{"loc": ["body"], "msg": "field required"}]}), Some((400, Some(200))), None),
        (json!({"type": "https://x/overloaded", "title": "a", "detail": "b"}), Some((503, Some(200))), None),
        (json!({"message": "slow down", "code": "rate_limit_exceeded"}), Some((429, Some(200))), None),
        (json!([{"error": {"code": 429, "status": "RESOURCE_EXHAUSTED"}}]), Some((429, Some(429))), None),
        // What is none: nothing is wrong, or nobody says what.
        (json!({"message": "ok", "code": 200}), None, None),
        (json!({"message": "done", "code": "success"}), None, None),
        (json!({"message": "done", "code": "0"}), None, None),
        (json!({"code": 400}), None, None),
        (json!({"status": 500, "message": " ", "detail": ""}), None, None),
        (json!({"message": "boom"}), None, None),
        (json!({"detail": "high", "width": 400}), None, None),
        (json!({"detail": ""}), None, None),
        (json!({"object": "chat.completion.chunk", "created": 1}), None, None),
        (json!([{"detail": "boom"}]), None, None),
        (json!([]), None, None),
        (json!("detail"), None, None),
        (json!({}), None, None),
    ] {
        let seen = |beside| of(&body, beside).map(|failure| (status_of(&failure), failure.status));
        assert_eq!((seen(Nothing), seen(Anything), seen(Promised)), (instead, among, None), "{body}");
        assert!(of(&body, Named).is_some(), "{body}");
    }
    assert!(of(&Value::Null, Named).is_none());
}

#[test]
fn events_that_are_named_errors() {
    let event = |event: &str, data: &str, closed| SseEvent {
        event: event.to_owned(),
        data: data.to_owned(),
        closed,
        ..SseEvent::default()
    };
    for (name, data, closed, want) in [
        ("error", r#"{"message":"boom","code":500}"#, true, Some((500, "boom"))),
        ("error", r#"{"message":"boom"}"#, false, Some((502, "boom"))),
        ("error", r#"{"error":{"code":429,"message":"slow"}}"#, true, Some((429, "slow"))),
        ("error", r#"{"message":"slow","type":"rate_limit_error"}"#, true, Some((429, "slow"))),
        ("error", "out of\n memory", true, Some((502, "out of memory"))),
        ("error", "{}", true, Some((502, "HTTP 502 that says nothing"))),
        ("error", r#"{"message":"bo"#, false, None),
        ("error", "null", true, None),
        ("", r#"{"message":"boom","code":500}"#, true, None),
        ("errors", "boom", true, None),
    ] {
        let failure = failure_of_error_event(HEAD, &event(name, data, closed), &ErrorPointers::default());
        let got = failure.as_ref().map(|failure| (status_of(failure), failure.message.as_str()));
        assert_eq!(got, want, "{name} {data}");
    }
}

#[test]
fn mapped_pointers_win() {
    let pointer = |text| Some(JsonPointer::try_new(text).unwrap());
    let pointers = ErrorPointers {
        error_code: pointer("/fault/0/id"),
        message: pointer("/fault/0/words"),
        retryable: pointer("/fault/0/again"),
        retry_after: pointer("/fault/0/in"),
    };
    let body = json!({"fault": [{"id": "E7", "words": "no ink", "again": true, "in": 4}], "message": "other"});
    let failure = failure_of_answer(AnswerHead { status: 418, ..HEAD }, body.to_string().as_bytes(), &pointers);
    assert_eq!(failure.upstream_code.as_deref(), Some("E7"));
    assert_eq!(failure.message, "no ink");
    assert_eq!(failure.retry_after, Some(Duration::from_secs(4)));
    assert_eq!(said_of(&failure).0, Some(true));
    assert_eq!(status_of(&failure_inside_success(HEAD, &body, &pointers, Beside::Promised).unwrap()), 502);
    assert_eq!(failure_inside_success(HEAD, &json!({"fault": []}), &pointers, Beside::Nothing), None);
}

/// The reading part of the case: statuses, flags and the envelope's word; the verdict is the supervisor's.
#[test]
fn the_case_of_classified_answers() {
    let Some(lines) = shared_cases::text("cases/B06/responses.jsonl") else { return };
    let mut read = 0;
    for line in lines.lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let id = case["id"].as_str().unwrap();
        let Some(status) = case["status"].as_u64() else { continue };
        let status = u16::try_from(status).unwrap();
        let body = case["body"].as_str().map_or_else(|| case["body"].to_string(), str::to_owned);
        let failure = if status == 200 { inside(&case["body"]) } else { Some(answer(status, body.as_bytes())) };
        let got = failure.map(|failure| (status_of(&failure), said_of(&failure)));
        let silent = (None, false, false, false);
        let want = match id {
            "r01" => Some((400, (Some(false), true, false, false))),
            "r02" => Some((400, (None, false, true, false))),
            "r03" => Some((404, (Some(false), false, false, false))),
            "r04" => Some((422, (Some(false), false, false, false))),
            "r05" => Some((409, (Some(true), false, false, false))),
            "r06" => Some((429, silent)),
            "r07" => Some((429, (None, false, false, true))),
            "r08" => Some((503, silent)),
            "r09" => Some((529, silent)),
            "r14" => Some((502, silent)),
            "r17" => Some((400, silent)),
            "r18" => Some((401, (Some(false), false, false, false))),
            _ => None,
        };
        assert_eq!(got, want, "{id}");
        read += 1;
    }
    assert!(read >= 12, "{read}");
}

/// Every error answer that was recorded from a real model server.
#[test]
fn recorded_error_answers() {
    for (name, file) in shared_cases::json_files("llm_fixtures") {
        let Some(status) = file["response"]["status"].as_u64().filter(|status| *status >= 400) else { continue };
        let status = u16::try_from(status).unwrap();
        let failure = answer(status, file["response"]["body_text"].as_str().unwrap().as_bytes());
        let error = &file["response"]["body_json"]["error"];
        assert_eq!(status_of(&failure), status, "{name}");
        assert_eq!(
            Some(failure.message.replace(' ', "")),
            error["message"].as_str().map(|text| text.split_whitespace().collect()),
            "{name}"
        );
        assert_eq!(failure.upstream_code.as_deref(), error["type"].as_str(), "{name}");
        let overflow = name.contains("context_overflow");
        assert_eq!(said_of(&failure), (None, false, overflow, false), "{name}");
        // The same error in a frame of a 200 keeps its status, because it names it by number.
        assert_eq!(status_of(&inside(&file["response"]["body_json"]).unwrap()), status, "{name}");
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let key = prop_oneof![
        "error|detail|errors|code|type|status|message|retryable|retry_after|http_status|loc|msg".prop_map(String::from),
        "[a-z]{1,3}".prop_map(String::from),
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[ -~가]{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((key.clone(), inner), 0..5)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn any_bytes_give_the_status_they_came_with(status in 400_u16..600, body in prop::collection::vec(any::<u8>(), 0..200)) {
        let failure = answer(status, &body);
        prop_assert_eq!(status_of(&failure), status);
        prop_assert!(!failure.message.is_empty());
    }

    #[test]
    fn any_json_is_read(status in 400_u16..600, body in any_json()) {
        let failure = answer(status, body.to_string().as_bytes());
        prop_assert_eq!(status_of(&failure), status);
        for beside in [Beside::Promised, Beside::Anything, Beside::Nothing, Beside::Named] {
            let Some(failure) = failure_inside_success(HEAD, &body, &ErrorPointers::default(), beside) else { continue };
            prop_assert!((400..600).contains(&status_of(&failure)));
        }
    }

    #[test]
    fn any_page_is_read(body in "<[<>a-zA-Z/ 가]{0,60}") {
        let failure = answer(500, body.as_bytes());
        prop_assert!(!failure.message.contains('<') || !body.contains('>'));
    }
}
