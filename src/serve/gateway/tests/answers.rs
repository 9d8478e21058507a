//! Plain answers of the gateway, its errors, and requests that cannot be.

use axum::{body::Body, http::Request};
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::support::{WHOLE, agents, ask, header, laddered, post, serving, state, text};
use crate::{
    model::name::Name,
    policy::breaker::state::StateName,
    runtime::{engine::Runtime, supervisor::BreakerAct},
    serve::{
        gateway::{door, models::Gateway},
        router::router,
        tests::support::{until, without_runs},
    },
    transport::fake_server::{FakeServer, answer},
};

#[tokio::test]
async fn a_plain_answer_and_what_is_told_of_it() {
    let server = FakeServer::start(vec![answer(200, "content-type: application/json\r\n", WHOLE)]).await;
    let service = serving(&server, 1).await;
    let answer = service.clone().oneshot(ask("")).await.unwrap();
    assert_eq!((answer.status().as_u16(), header(&answer, "x-watertight-agent")), (200, "fast"));
    assert_eq!((header(&answer, "x-watertight-attempts"), header(&answer, "x-watertight-fallback")), ("1", ""));
    assert!(!header(&answer, "x-watertight-call-id").is_empty());
    assert!(header(&answer, "x-watertight-overhead-ms").parse::<f64>().unwrap() < 1_000.0);
    assert_eq!(text(answer).await, WHOLE);
    assert!(!server.requests().concat().contains("sk-the-clients-own"), "a client's key is nobody's business upstream");
}

#[tokio::test]
async fn errors_keep_status_wait_and_words() {
    let error = |status: u16, headers: &str| {
        answer(status, headers, r#"{"error":{"message":"mock","type":"mock","code":"x"}}"#)
    };
    for (status, headers, attempts, retry_after, kind, should_retry) in [
        (429, "retry-after: 2\r\n", 1, "2", "rate_limit_error", "false"),
        (500, "", 2, "", "server_error", "false"),
        (400, "", 3, "", "invalid_request_error", "false"),
    ] {
        let server = FakeServer::start(vec![error(status, headers)]).await;
        let service = serving(&server, attempts).await;
        let answer = service.clone().oneshot(ask("")).await.unwrap();
        assert_eq!(answer.status().as_u16(), status);
        assert_eq!((header(&answer, "retry-after"), header(&answer, "x-should-retry")), (retry_after, should_retry));
        let tried = if status == 400 { "1".to_owned() } else { attempts.to_string() };
        assert_eq!(header(&answer, "x-watertight-attempts"), tried);
        let body: Value = serde_json::from_str(&text(answer).await).unwrap();
        assert_eq!((&body["error"]["type"], &body["error"]["code"]), (&json!(kind), &json!("x")));
        assert_eq!(body["error"]["watertight"]["error_code"], "AGENT_ERROR");
    }
}

/// Nobody knows when an operator opens it again: there is no time to come back at, so a client is told not to.
#[tokio::test]
async fn a_gate_that_was_forced_open_does_not_ask_for_another_try() {
    let server = FakeServer::start(vec![answer(500, "", "{}")]).await;
    let (service, runtime, _folder) = laddered(&server, &[]).await;
    runtime.act("agent:fast", BreakerAct::ForceOpen).unwrap();
    until("the gate is shut", || {
        runtime.breaker("agent:fast").is_ok_and(|breaker| breaker.state == StateName::ForcedOpen)
    })
    .await;
    let refused = service.clone().oneshot(ask("")).await.unwrap();
    let told = (refused.status().as_u16(), header(&refused, "retry-after"), header(&refused, "x-should-retry"));
    assert_eq!(told, (503, "", "false"));
    let body: Value = serde_json::from_str(&text(refused).await).unwrap();
    let envelope = &body["error"]["watertight"];
    assert_eq!((&envelope["error_code"], &envelope["retryable"]), (&json!("AGENT_CIRCUIT_OPEN"), &json!(true)));
    assert!(server.requests().is_empty());
}

/// B38: four tries of ours and a client that does as it is told make four requests.
#[tokio::test]
async fn layers_of_retries_do_not_multiply() {
    let server = FakeServer::start(vec![answer(500, "", "{}")]).await;
    let service = serving(&server, 4).await;
    for tried in 1..=4 {
        let answer = service.clone().oneshot(ask("")).await.unwrap();
        if header(&answer, "x-should-retry") == "false" {
            assert_eq!(tried, 1);
            break;
        }
    }
    assert_eq!(server.requests().len(), 4);
}

#[tokio::test]
async fn requests_that_cannot_be() {
    let server = FakeServer::start(vec![]).await;
    let service = serving(&server, 1).await;
    let chat = "/v1/chat/completions";
    for (path, body, status, param) in [
        (chat, "{", 400, Value::Null),
        (chat, "[]", 400, Value::Null),
        (chat, "{\"model\":\"gpt\",\"messages\":[],\"model\":\"x\"}", 400, Value::Null),
        (chat, "{\"messages\":[]}", 400, json!("model")),
        (chat, "{\"model\":\"gpt-9\",\"messages\":[]}", 404, json!("model")),
        ("/v1/embeddings", "{\"model\":\"gpt\"}", 400, json!("input")),
    ] {
        let answer = service.clone().oneshot(post(path, body)).await.unwrap();
        assert_eq!(answer.status().as_u16(), status, "{body}");
        let told: Value = serde_json::from_str(&text(answer).await).unwrap();
        assert_eq!(
            (&told["error"]["type"], &told["error"]["param"]),
            (&json!("invalid_request_error"), &param),
            "{body}"
        );
        if status == 404 {
            assert_eq!(told["error"]["code"], "model_not_found");
            assert!(told["error"]["message"].as_str().unwrap().contains("fast, gpt"), "{told}");
        }
    }
    assert!(server.requests().is_empty());
    let get = |path: &str| Request::get(path).body(Body::empty()).unwrap();
    let listed: Value =
        serde_json::from_str(&text(service.clone().oneshot(get("/v1/models")).await.unwrap()).await).unwrap();
    assert_eq!((&listed["data"][0]["id"], &listed["data"][1]["owned_by"]), (&json!("fast"), &json!("fast")));
    assert_eq!(service.clone().oneshot(get("/v1/models/gpt")).await.unwrap().status().as_u16(), 200);
    assert_eq!(service.clone().oneshot(get("/v1/models/none")).await.unwrap().status().as_u16(), 404);
    for path in ["/v1/models/%ff", "/agents/%ff/x"] {
        let answer = service.clone().oneshot(get(path)).await.unwrap();
        assert_eq!(answer.status().as_u16(), 400, "{path}");
        let told: Value = serde_json::from_str(&text(answer).await).unwrap();
        assert!(told["error"]["message"].as_str().unwrap().contains("Invalid UTF-8"), "{path}: {told}");
    }
}

/// Between the two moments of a reload the gateway knows a name that the runtime does not.
#[tokio::test]
async fn a_model_whose_agent_is_on_its_way_is_not_found() {
    let server = FakeServer::start(vec![]).await;
    let (agents, _) = agents(Runtime::builder().seed(7), &server, 1);
    let state = state();
    state.door.open(without_runs(agents.start().await.unwrap()));
    let mut gateway = Gateway::default();
    gateway.add_model("gone", &Name::try_new("gone").unwrap());
    let service = router(state, door::routes(gateway));
    let answer = service.oneshot(post("/v1/chat/completions", r#"{"model":"gone","messages":[]}"#)).await.unwrap();
    assert_eq!(answer.status().as_u16(), 404);
    assert!(text(answer).await.contains("model_not_found"));
}

/// One request has one key: of two nobody knows which is meant.
#[tokio::test]
async fn a_request_has_one_key_of_its_own() {
    let server = FakeServer::start(vec![answer(200, "content-type: application/json\r\n", WHOLE)]).await;
    let service = serving(&server, 1).await;
    for (keys, status) in [(&[][..], 200), (&["k1"], 200), (&["k1", "k1"], 200), (&["k1", "k2"], 400), (&[""], 400)] {
        let mut request = ask("");
        for key in keys {
            request.headers_mut().append("idempotency-key", key.parse().unwrap());
        }
        let got = service.clone().oneshot(request).await.unwrap();
        assert_eq!(got.status().as_u16(), status, "{keys:?}");
        assert_eq!(text(got).await.contains("Idempotency-Key"), status == 400, "{keys:?}");
    }
    assert_eq!(server.requests().len(), 3);
}
