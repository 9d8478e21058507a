//! What is wrong with a request is said in the envelope, whatever it is.

use axum::{body::Body, http::Request};

use super::support::World;
use crate::settings::serve::ServeSettings;

const ANN: (&str, &str) = ("authorization", "Bearer ann");

#[tokio::test]
async fn every_broken_request_is_answered_with_an_envelope() {
    let world = World::usual().await;
    for (method, path, header, body, status, code) in [
        ("GET", "/nowhere", ANN, "", 404, "NOT_FOUND"),
        ("GET", "/v1/%00", ANN, "", 404, "NOT_FOUND"),
        ("GET", "//", ANN, "", 404, "NOT_FOUND"),
        ("GET", "/v1/runs/%ff", ANN, "", 400, "INVALID_REQUEST"),
        ("GET", "/v1/runs/..%2f..%2fetc", ANN, "", 404, "NOT_FOUND"),
        ("PATCH", "/v1/runs", ANN, "", 405, "INVALID_REQUEST"),
        ("GET", "/v1/runs?limit=0", ANN, "", 400, "INVALID_REQUEST"),
        ("GET", "/v1/runs?limt=1", ANN, "", 400, "INVALID_REQUEST"),
        ("GET", "/v1/runs?cursor=abc", ANN, "", 400, "INVALID_REQUEST"),
        ("GET", "/v1/runs?status=asleep", ANN, "", 400, "INVALID_REQUEST"),
        ("GET", "/v1/usage?from=yesterday", ANN, "", 400, "INVALID_REQUEST"),
        ("GET", "/v1/usage?group=week", ANN, "", 400, "INVALID_REQUEST"),
        ("POST", "/v1/runs", ANN, "{", 400, "INVALID_REQUEST"),
        ("POST", "/v1/runs", ANN, "[]", 400, "INVALID_REQUEST"),
        ("POST", "/v1/runs", ANN, r#"{"workflow":"one","inputs":{}}"#, 400, "INVALID_REQUEST"),
        ("POST", "/v1/runs", ANN, r#"{"workflow":"nine"}"#, 404, "NOT_FOUND"),
        ("POST", "/v1/runs", ANN, r#"{"input":{}}"#, 400, "INVALID_REQUEST"),
        ("POST", "/v1/runs", ANN, r#"{"workflow":"one","input":{}}"#, 400, "INVALID_REQUEST"),
        ("POST", "/v1/runs", ANN, r#"{"workflow":"one","input":{"text":5}}"#, 400, "INVALID_REQUEST"),
        ("POST", "/v1/runs", ANN, r#"{"workflow":"one","input":{"text":"x"},"deadline_ms":0}"#, 400, "INVALID_REQUEST"),
        (
            "POST",
            "/v1/runs",
            ANN,
            r#"{"workflow":"one","input":{"text":"x","photos":[{"path":"/etc/passwd"}]}}"#,
            400,
            "INVALID_REQUEST",
        ),
        ("POST", "/v1/agents/nobody/call", ANN, r#"{"input":1}"#, 404, "NOT_FOUND"),
        ("POST", "/v1/agents/echo/call", ANN, r#"{"inputs":1}"#, 400, "INVALID_REQUEST"),
        ("POST", "/v1/agents/echo/call", ANN, r#"{"input":1,"prompt":"x"}"#, 400, "INVALID_REQUEST"),
        ("GET", "/v1/runs/none/events?afer=1", ANN, "", 400, "INVALID_REQUEST"),
        ("DELETE", "/v1/runs/none", ANN, "", 404, "NOT_FOUND"),
        ("GET", "/v1/files/%ff", ANN, "", 400, "INVALID_REQUEST"),
        ("DELETE", "/v1/files/%ff", ANN, "", 400, "INVALID_REQUEST"),
        ("GET", "/v1/files/x?signature=1&signature=2", ANN, "", 400, "INVALID_REQUEST"),
    ] {
        let got = world.ask(method, path, &[header], body).await;
        assert_eq!(got.status.as_u16(), status, "{method} {path} {body}: {got:?}");
        got.fails(status, code);
        assert_eq!(got.headers["x-should-retry"], "false", "{method} {path}");
    }
}

#[tokio::test]
async fn bodies_are_bounded_and_named() {
    let settings = ServeSettings { body_bytes_max: 2_048, ..ServeSettings::default() };
    let world = World::with(&super::support::keys(), settings).await;
    let large = format!(r#"{{"input":"{}"}}"#, "x".repeat(3_000));
    world.ask("POST", "/v1/agents/echo/call", &[ANN], &large).await.fails(413, "INVALID_REQUEST");
    for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/mixed"] {
        let got = world.ask("POST", "/v1/runs", &[ANN, ("content-type", kind)], "{}").await;
        got.fails(415, "INVALID_REQUEST");
    }
    let packed =
        world.ask("POST", "/v1/runs", &[ANN, ("content-type", "application/json"), ("content-encoding", "gzip")], "x");
    packed.await.fails(415, "INVALID_REQUEST");
}

#[tokio::test(start_paused = true)]
async fn a_body_that_stops_coming_is_given_up() {
    let settings = ServeSettings::default();
    let world = World::with(&super::support::keys(), settings).await;
    let stuck = futures_util::stream::pending::<Result<axum::body::Bytes, std::io::Error>>();
    let request = Request::builder().method("POST").uri("/v1/agents/echo/call").header("x-api-key", "ann");
    let request = request.header("content-type", "application/json").body(Body::from_stream(stuck)).unwrap();
    assert_eq!(world.send(request).await.status(), 408);
}

#[tokio::test]
async fn errors_speak_the_screens_language_and_keep_the_trace() {
    let world = World::usual().await;
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let got =
        world.ask("GET", "/v1/runs/x", &[ANN, ("accept-language", "ko-KR,en;q=0.5"), ("traceparent", trace)], "").await;
    let body = got.fails(404, "NOT_FOUND").json();
    assert_eq!(body["error"]["user_message"], "찾을 수 없습니다.");
    assert_eq!(body["error"]["trace_id"], "0af7651916cd43dd8448eb211c80319c");
}

#[tokio::test]
async fn heads_and_options_and_the_description() {
    let world = World::usual().await;
    let head = world.ask("HEAD", "/healthz", &[], "").await;
    assert_eq!((head.status.as_u16(), head.text.as_str()), (200, ""));
    let options = world.ask("OPTIONS", "/v1/runs", &[], "").await;
    assert!(options.status == 204 && options.headers["allow"].to_str().unwrap().contains("POST"), "{options:?}");
    let described = world.ask("GET", "/openapi.json", &[], "").await.is(200).json();
    for (path, method) in [
        ("/v1/runs", "post"),
        ("/v1/runs", "get"),
        ("/v1/runs/{id}", "delete"),
        ("/v1/runs/{id}/events", "get"),
        ("/v1/runs/{id}/repair", "post"),
        ("/v1/agents/{name}/call", "post"),
        ("/v1/tenants/{tenant}/data", "delete"),
        ("/v1/dead-letters/{id}/replay", "post"),
        ("/healthz", "get"),
    ] {
        assert!(described["paths"][path][method].is_object(), "{method} {path}");
    }
    assert!(world.ask("GET", "/", &[], "").await.is(200).text.contains("Watertight"));
}

/// A node that takes over is sent requests: they wait for the journal. Whoever only asks whether it is ready hurries nobody.
#[tokio::test]
async fn a_node_that_takes_over_is_ready_and_a_probe_hurries_nobody() {
    use crate::serve::state::Coming;
    let world = World::usual().await;
    assert_eq!(world.ask("GET", "/readyz", &[], "").await.is(200).json()["status"], "ready");
    let inside = world.state.door.shut().unwrap();
    world.state.door.comes_from_predecessor(Coming::Soon);
    let told = world.ask("GET", "/readyz", &[], "").await.is(200).json();
    assert_eq!((&told["status"], told["holds"].as_array().map(Vec::len)), (&serde_json::json!("taking_over"), Some(1)));
    let hurried = tokio::time::timeout(std::time::Duration::from_millis(50), world.state.door.wanted()).await;
    assert!(hurried.is_err(), "a probe is not somebody who waits");
    let asking = world.ask("GET", "/v1/runs", &[ANN], "");
    tokio::pin!(asking);
    tokio::select! {
        _ = &mut asking => panic!("there is nothing to answer with"),
        () = world.state.door.wanted() => {}
    }
    world.state.door.open(inside);
    asking.await.is(200);
}

/// A list would be taken for the members of a body in their order.
#[tokio::test]
async fn a_body_is_an_object_on_every_route_that_takes_one() {
    let world = World::usual().await;
    let run = world.ended_run("ann").await;
    let described = world.ask("GET", "/openapi.json", &[], "").await.is(200).json();
    let mut asked = 0;
    for (path, operations) in described["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            if operation["requestBody"]["content"].get("application/json").is_none() {
                continue;
            }
            let path = path.replace("{id}", &run).replace("{name}", "echo");
            for body in [r#"["echo",{},null,null,null,null,null]"#, r#"["lift","why"]"#, "[]", " \"x\"", "1", "null"] {
                let got = world.with_key("olga", &method.to_uppercase(), &path, body).await;
                got.fails(400, "INVALID_REQUEST");
                assert!(got.text.contains("a JSON object is wanted"), "{method} {path} {body}: {}", got.text);
            }
            asked += 1;
        }
    }
    assert_eq!(asked, 5, "runs, reruns, calls, breakers, guards");
    world.with_key("olga", "POST", "/v1/agents/echo/drain", "[]").await.fails(400, "INVALID_REQUEST");
}

/// Of two members of one name only one would be left, wherever they stand.
#[tokio::test]
async fn an_input_with_a_member_that_stands_twice_is_refused() {
    let world = World::usual().await;
    let form = |part: &str, text: &str| {
        format!("--x\r\ncontent-disposition: form-data; name=\"{part}\"\r\n\r\n{text}\r\n--x--\r\n")
    };
    let json = ("content-type", "application/json");
    let parts = ("content-type", "multipart/form-data; boundary=x");
    let twice = r#"{"text":"a","text":"b"}"#;
    let deep = r#"{"text":"a","places":[{"b":{"c":1,"d":2,"c":3}}]}"#;
    for (kind, path, body) in [
        (json, "/v1/runs", format!(r#"{{"workflow":"one","input":{twice}}}"#)),
        (json, "/v1/runs", format!(r#"{{"workflow":"one","input":{deep}}}"#)),
        (json, "/v1/agents/echo/call", format!(r#"{{"input":{twice}}}"#)),
        (json, "/v1/agents/echo/call", format!(r#"{{"input":[{deep}]}}"#)),
        (parts, "/v1/runs", form("input", twice)),
        (parts, "/v1/runs", form("request", &format!(r#"{{"workflow":"one","input":{deep}}}"#))),
    ] {
        let got = world.ask("POST", path, &[kind, ("authorization", "Bearer ann")], &body).await;
        got.fails(400, "INVALID_REQUEST");
        assert!(got.text.contains("stands twice"), "{path} {body}: {}", got.text);
    }
}
