//! Existing services behind the guards of their agents: what passes, what is judged, and what the caller alone is to blame for.

use std::time::Duration;

use axum::{
    body::{Body, to_bytes},
    http::Request,
};
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::support::{
    WHOLE, accounted, accounting, agents_as, ask, header, laddered, routes, serving, serving_as, state, text,
};
use crate::{
    policy::{
        breaker::{settings::Mode, state::StateName},
        ladder::Rung,
    },
    runtime::{
        engine::Runtime,
        settings::{AgentSettings, Timeouts},
        supervisor::BreakerAct,
    },
    serve::{
        listener::{server::listen, settings::ListenerSettings},
        tests::support::{until, without_runs},
    },
    transport::fake_server::{FakeServer, Step, answer},
};

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

/// Which pages read our answers and how a call went is ours to say.
#[tokio::test]
async fn a_services_word_is_not_taken_for_ours() {
    let said = "access-control-allow-origin: *\r\naccess-control-allow-credentials: true\r\nx-watertight-degraded: default\r\n\
                x-watertight-agent: other\r\nx-own: yes\r\n";
    let server = FakeServer::start(vec![answer(200, said, "{}")]).await;
    let service = serving(&server, 3).await;
    let answer = service.oneshot(Request::get("/agents/fast/x").body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!((header(&answer, "x-own"), header(&answer, "x-watertight-agent")), ("yes", "fast"));
    for name in ["access-control-allow-origin", "access-control-allow-credentials", "x-watertight-degraded"] {
        assert!(!answer.headers().contains_key(name), "{name}");
    }
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
            // On a busy machine an attempt of 100 ms fails now and then, and that is not what is asked here.
            agent.breaker.mode = Mode::Disabled;
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
    assert_eq!((header(&refused, "retry-after"), header(&refused, "x-should-retry")), ("", "false"));
    let body: Value = serde_json::from_str(&text(refused).await).unwrap();
    assert_eq!(body["error"]["error_code"], "AGENT_CIRCUIT_OPEN");
    assert_eq!(body["error"]["retryable"], true, "a later call can succeed");
    assert_ne!(body["error"]["user_message"], "Back soon");
    assert_eq!(server.requests().len(), 1, "nobody else was asked");
    let kept = service.clone().oneshot(Request::get("/v1/deferred").body(Body::empty()).unwrap()).await.unwrap();
    let kept: Value = serde_json::from_str(&text(kept).await).unwrap();
    assert_eq!(kept["data"], json!([]));
    // The same agent, asked in a shape that is read here, has that ladder.
    let answered = service.clone().oneshot(ask("")).await.unwrap();
    assert_eq!((answered.status().as_u16(), header(&answered, "x-watertight-degraded")), (200, "lighter"));
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

/// A stream whose pieces take longer together than an attempt may is no failure of its service, and neither is a client that takes its time.
#[tokio::test]
async fn an_answer_that_flows_outlives_the_timeout_of_an_attempt() {
    let chunk = |text: &str| Step::Send(format!("{:x}\r\n{text}\r\n", text.len()).into_bytes());
    let mut steps = vec![Step::Send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_vec())];
    for _ in 0..12 {
        steps.extend([chunk("piece "), Step::Pause(Duration::from_millis(50))]);
    }
    steps.push(Step::Send(b"0\r\n\r\n".to_vec()));
    let server = FakeServer::start(vec![steps]).await;
    let service = serving_as(&server, |agent| {
        agent.timeouts = Timeouts { attempt: Some(Duration::from_millis(300)), stall: None, ..agent.timeouts };
    })
    .await;
    for pause_ms in [0, 400] {
        let got = service.clone().oneshot(Request::get("/agents/fast/x").body(Body::empty()).unwrap()).await.unwrap();
        let mut body = got.into_body().into_data_stream();
        let mut bytes = 0;
        while let Some(piece) = futures_util::StreamExt::next(&mut body).await {
            bytes += piece.expect("it does not break off").len();
            if bytes == "piece ".len() {
                tokio::time::sleep(Duration::from_millis(pause_ms)).await;
            }
        }
        assert_eq!(bytes, 12 * "piece ".len());
    }
}

/// What we end ourselves is told where its form can tell it, and has no end elsewhere: nobody takes a part for the whole.
#[tokio::test]
async fn an_answer_that_is_ended_before_its_end_says_so() {
    let begun = |kind: &str, text: &str| {
        let head = format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n");
        vec![Step::Send(format!("{head}{:x}\r\n{text}\r\n", text.len()).into_bytes()), Step::UntilClosed]
    };
    let events = "text/event-stream; charset=utf-8";
    for (kind, text_sent, is_told) in [
        (events, "data: 1\n\n", true),
        (events, "data: 1\n\ndata: 2", false),
        ("application/json", "{\"a\":1}", false),
        ("text/plain", "line\n\n", false),
    ] {
        for stops in [true, false] {
            let server = FakeServer::start(vec![begun(kind, text_sent)]).await;
            let stall = if stops { Duration::from_secs(60) } else { Duration::from_millis(50) };
            let (agents, client) = agents_as(Runtime::builder().seed(7), &server, |agent| {
                agent.timeouts.stall = Some(stall);
            });
            let state = state();
            state.door.open(without_runs(agents.start().await.unwrap()));
            let service = routes(state.clone(), client);
            let traced = Request::get("/agents/fast/x")
                .header("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
            let got = service.oneshot(traced.body(Body::empty()).unwrap()).await.unwrap();
            let mut body = got.into_body().into_data_stream();
            let mut next = async || futures_util::StreamExt::next(&mut body).await;
            assert_eq!(next().await.unwrap().unwrap(), text_sent);
            if stops {
                state.ending.last_words.cancel();
            }
            let last = next().await.expect("not just an end");
            assert_eq!(last.is_ok(), is_told, "{kind} {text_sent:?}");
            if let Ok(last) = last {
                let last = String::from_utf8(last.to_vec()).unwrap();
                let told =
                    last.strip_prefix("event: error\ndata: ").and_then(|told| told.strip_suffix("\n\n")).unwrap();
                let told: Value = serde_json::from_str(told).unwrap();
                let code = if stops { "SHUTTING_DOWN" } else { "AGENT_TIMEOUT" };
                assert_eq!(told["error"]["error_code"], code);
                assert_eq!(told["error"]["trace_id"], "0af7651916cd43dd8448eb211c80319c");
                assert!(next().await.is_none());
            }
        }
    }
}

/// Over a socket nobody asks for more once the bytes are out that the head told of: an answer is judged all the same, whatever its form.
#[tokio::test]
async fn answers_are_judged_however_their_end_is_told() {
    let chunked = |status: u16| {
        let head = format!("HTTP/1.1 {status} X\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n");
        vec![Step::Send(format!("{head}2\r\nok\r\n0\r\n\r\n").into_bytes())]
    };
    let bare = |head: &str| vec![Step::Send(format!("HTTP/1.1 {head}\r\nconnection: close\r\n\r\n").into_bytes())];
    let far = "retry-after: 3600\r\n";
    for (method, upstream, good, failed) in [
        ("GET", answer(200, "", "well"), 1, 0),
        ("GET", answer(200, "", ""), 1, 0),
        ("GET", answer(200, "", &"x".repeat(300_000)), 1, 0),
        ("GET", chunked(200), 1, 0),
        ("GET", answer(500, "", "ill"), 0, 1),
        ("GET", answer(500, "", ""), 0, 1),
        ("GET", chunked(500), 0, 1),
        ("GET", answer(404, "", "none"), 0, 0),
        ("GET", answer(429, far, "{}"), 0, 1),
        ("GET", answer(200, "content-type: application/json\r\n", r#"{"error":{"code":503,"message":"x"}}"#), 0, 1),
        ("GET", bare("204 No Content"), 1, 0),
        ("GET", bare("304 Not Modified\r\ncontent-length: 99"), 1, 0),
        ("HEAD", bare("200 OK\r\ncontent-length: 99"), 1, 0),
        ("HEAD", bare("503 Busy\r\ncontent-length: 99"), 0, 1),
        ("HEAD", bare("200 OK\r\ntransfer-encoding: chunked"), 1, 0),
    ] {
        let server = FakeServer::start(vec![upstream.clone()]).await;
        let (agents, client) = agents_as(Runtime::builder().seed(7), &server, |_| {});
        let state = state();
        state.door.open(without_runs(agents.start().await.unwrap()));
        let socket = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let service = listen(socket, routes(state.clone(), client), ListenerSettings::default()).unwrap();
        let url = format!("http://{}/agents/fast/x", service.address());
        let asked = reqwest::Client::new().request(method.parse().unwrap(), url).send().await.unwrap();
        assert!(asked.bytes().await.is_ok(), "{method} {upstream:?}");
        let running = state.door.now().unwrap();
        let counts = || running.runtime.breaker("agent:fast").unwrap().counts;
        if good + failed > 0 {
            until("it is judged", || counts().finished > 0).await;
        }
        assert_eq!((counts().good, counts().failed), (good, failed), "{method} {upstream:?}");
        until("its slot is free", || running.runtime.agent("fast").unwrap().in_flight() == 0).await;
    }
}

/// What comes packed though nobody asked for it goes back as it came, with the header that says so.
#[tokio::test]
async fn a_packed_answer_stays_packed() {
    // `gzip` of "packed", and something that is no gzip at all.
    let packed = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\xff+HL\xceNM\x01\x00\x10\xb4\xf6!\x06\x00\x00\x00";
    for bytes in [packed.as_slice(), b"\xff\x00no gzip"] {
        let head = format!("HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: {}\r\n\r\n", bytes.len());
        let server = FakeServer::start(vec![vec![Step::Send([head.as_bytes(), bytes].concat())]]).await;
        let service = serving(&server, 1).await;
        let request = Request::get("/agents/fast/x").header("accept-encoding", "gzip, br").body(Body::empty()).unwrap();
        let got = service.oneshot(request).await.unwrap();
        assert_eq!(
            (header(&got, "content-encoding"), header(&got, "content-length")),
            ("gzip", bytes.len().to_string().as_str())
        );
        assert_eq!(to_bytes(got.into_body(), usize::MAX).await.unwrap(), bytes);
        assert!(server.requests().concat().contains("accept-encoding: identity\r\n"));
    }
}

/// A client learns the status that its service gave, and what came before an answer broke off, even where all of it comes at once.
#[tokio::test]
async fn what_came_before_an_answer_broke_off_goes_out() {
    for (sent, got) in [("", ""), ("2\r\nok\r\n", "ok")] {
        let broken = format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{sent}zz\r\n");
        let server = FakeServer::start(vec![vec![Step::Send(broken.into_bytes())]]).await;
        let service = serving(&server, 1).await;
        let socket = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let service = listen(socket, service, ListenerSettings::default()).unwrap();
        let url = format!("http://{}/agents/fast/x", service.address());
        let mut asked = reqwest::Client::new().get(url).send().await.unwrap();
        assert_eq!(asked.status().as_u16(), 200);
        let mut bytes = Vec::new();
        let end = loop {
            match asked.chunk().await {
                Ok(Some(piece)) => bytes.extend_from_slice(&piece),
                end => break end,
            }
        };
        assert!(end.is_err(), "it does not look whole");
        assert_eq!(String::from_utf8(bytes).unwrap(), got);
    }
}
