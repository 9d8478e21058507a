//! Streams of the gateway: how they end, who stops them, and what they may go down to before their first content.

use std::time::Duration;

use serde_json::Value;
use tower::ServiceExt as _;

use super::support::{SAID, STOP, STREAM, ask, header, laddered, serving, text};
use crate::{
    policy::ladder::Rung,
    transport::fake_server::{FakeServer, Step, answer, stream, stream_head},
};

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
            assert_eq!(event["error"]["watertight"]["trace_id"].as_str().map(str::len), Some(32), "{event}");
        }
        assert_eq!(server.requests().len(), 1, "nothing is repeated once it is out");
    }
}

/// However a server says under a 200 that it failed: nobody takes half a text for a whole one.
#[tokio::test]
async fn errors_of_every_maker_inside_a_200() {
    for (error, status) in [
        ("error: {\"code\":500,\"message\":\"boom\",\"type\":\"server_error\"}\n\n", 500),
        ("event: error\ndata: {\"message\":\"boom\",\"code\":503}\n\n", 503),
        ("data: {\"object\":\"error\",\"message\":\"boom\",\"code\":400}\n\n", 400),
        ("data: {\"detail\":\"boom\"}\n\n", 502),
        (
            "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"error\",\"error\":{\"code\":502,\"message\":\"boom\"}}]}\n\n",
            502,
        ),
    ] {
        for (form, said) in [(STREAM, SAID), (STREAM, ""), ("", SAID), ("", "")] {
            let sent = [said, error, "data: [DONE]\n\n"].concat();
            let server = FakeServer::start(vec![stream(&sent)]).await;
            let answer = serving(&server, 1).await.oneshot(ask(form)).await.unwrap();
            let is_begun = form == STREAM && !said.is_empty();
            assert_eq!(answer.status().as_u16(), if is_begun { 200 } else { status }, "{form} {sent}");
            let text = text(answer).await;
            assert_eq!((text.starts_with(SAID), text.contains("[DONE]")), (is_begun, false), "{text}");
            let told: Value = serde_json::from_str(text.trim_end().rsplit("data: ").next().unwrap()).unwrap();
            assert!(told["error"]["message"].as_str().unwrap().contains("boom"), "{text}");
        }
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
        assert_eq!(header(&answer, "x-watertight-attempts"), requests.to_string(), "of all targets: {first}");
        let body = text(answer).await;
        assert_eq!((told.0.as_str(), server.requests().len()), (word, requests), "{first} {wanted}: {body}");
        assert_eq!(body.contains("[DONE]"), word == "lighter", "{first} {wanted}: {body}");
        assert_eq!(told.1 == 200, body.contains("ok "), "{first} {wanted}: {body}");
        if requests == 2 {
            assert_eq!(server.bodies()[1]["model"], "tiny", "in the lighter model's own name");
        }
    }
}
