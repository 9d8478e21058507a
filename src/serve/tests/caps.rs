//! A full service refuses at once, and still answers questions, health and operators.

use axum::{body::Body, http::Request};
use futures_util::StreamExt as _;

use super::support::{World, keys, until};
use crate::{serve::listener::Seat, settings::serve::ServeSettings};

#[tokio::test]
async fn questions_health_and_operators_are_answered_while_calls_and_streams_are_full() {
    let settings = ServeSettings { calls_max: 1, streams_max: 1, ..ServeSettings::default() };
    let world = World::with(&keys(), settings).await;
    let run = world.with_key("ann", "POST", "/v1/runs", r#"{"workflow":"hanging"}"#).await.is(202).json();
    let id = run["run_id"].as_str().unwrap().to_owned();
    let events = format!("/v1/runs/{id}/events");
    let watch = || Request::builder().uri(&events).header("x-api-key", "ann").body(Body::empty()).unwrap();
    let stream = world.send(watch()).await;
    assert_eq!(stream.status(), 200);
    let call = Request::builder().method("POST").uri("/v1/agents/hang/call").header("x-api-key", "ann");
    let call = call.header("content-type", "application/json").body(Body::from(r#"{"input":1}"#)).unwrap();
    let calling = world.send(call);
    tokio::pin!(calling);
    tokio::select! {
        _ = &mut calling => panic!("it hangs"),
        () = tokio::time::sleep(std::time::Duration::from_millis(50)) => {}
    }
    let refused = world.with_key("ann", "POST", "/v1/agents/echo/call", r#"{"input":1}"#).await;
    assert_eq!(refused.fails(503, "LOAD_SHED").headers["retry-after"], "1");
    assert_eq!(world.send(watch()).await.status(), 503);
    for path in
        ["/healthz", "/readyz", "/v1/runs", &format!("/v1/runs/{id}"), &format!("/v1/runs/{id}/why"), "/v1/agents"]
    {
        world.with_key("olga", "GET", path, "").await.is(200);
    }
    world.with_key("olga", "POST", "/v1/agents/hang/breaker", r#"{"action":"reset"}"#).await.is(200);
    world.with_key("olga", "POST", &format!("/v1/runs/{id}/cancel"), "").await.is(200);
    drop(stream);
    until("a watcher that left frees its place", || world.state.caps.stream("other", None).is_ok()).await;
}

#[tokio::test]
async fn one_callers_uploads_leave_places_for_others() {
    let settings = ServeSettings { uploads_max: 3, uploads_key_max: 2, ..ServeSettings::default() };
    let world = World::with(&keys(), settings).await;
    let held: Vec<_> = (0..2).map(|_| world.state.caps.upload(Some("ann")).unwrap()).collect();
    world.with_key("ann", "POST", "/v1/files", "bytes").await.fails(503, "LOAD_SHED");
    world.with_key("bob", "POST", "/v1/files", "bytes").await.is(201);
    let last = world.state.caps.upload(Some("bob")).unwrap();
    world.with_key("bob", "POST", "/v1/files", "bytes").await.fails(503, "LOAD_SHED");
    drop((held, last));
    world.with_key("ann", "POST", "/v1/files", "bytes").await.is(201);
}

/// Whoever asks for runs and never for their end: what they hold in memory is bounded, and given back when they are over.
#[tokio::test]
async fn live_runs_are_bounded_in_number_and_in_bytes() {
    let hanging = r#"{"workflow":"hanging"}"#;
    let usual = ServeSettings::default();
    let world = World::with(&keys(), ServeSettings { runs_live_max: 2, ..usual.clone() }).await;
    let mut ids = Vec::new();
    for _ in 0..2 {
        let run = world.with_key("ann", "POST", "/v1/runs", hanging).await.is(202).json();
        ids.push(run["run_id"].as_str().unwrap().to_owned());
    }
    world.with_key("bob", "POST", "/v1/runs", hanging).await.fails(503, "LOAD_SHED");
    world.with_key("ann", "POST", &format!("/v1/runs/{}/cancel", ids[0]), "").await.is(200);
    until("a run that is over frees its place", || world.state.caps.run(None, 0).is_ok()).await;
    world.with_key("bob", "POST", "/v1/runs", hanging).await.is(202);
    world.with_key("bob", "POST", &format!("/v1/runs/{}/repair", ids[0]), "").await.fails(404, "NOT_FOUND");
    world.with_key("ann", "POST", &format!("/v1/runs/{}/repair", ids[0]), "").await.fails(503, "LOAD_SHED");

    let world = World::with(&keys(), ServeSettings { runs_bytes_max: 4_096, ..usual }).await;
    let text = |bytes: usize| format!(r#"{{"workflow":"one","input":{{"text":"{}"}}}}"#, "x".repeat(bytes));
    world.with_key("ann", "POST", "/v1/runs", &text(5_000)).await.fails(413, "INVALID_REQUEST");
    let held = world.state.caps.run(None, 2_000).unwrap();
    world.with_key("ann", "POST", "/v1/runs", &text(3_000)).await.fails(503, "LOAD_SHED");
    drop(held);
    for _ in 0..3 {
        let run = world.with_key("ann", "POST", "/v1/runs", &text(3_000)).await.is(202).json();
        let result = format!("/v1/runs/{}/result?wait=30", run["run_id"].as_str().unwrap());
        world.with_key("ann", "GET", &result, "").await.is(200);
        until("a run that is over frees its room", || world.state.caps.run(None, 4_000).is_ok()).await;
    }
}

/// Whoever lost the answer learns that the run goes on, most of all where no other can be asked for.
#[tokio::test]
async fn an_idempotency_key_answers_while_no_run_has_a_place() {
    let world = World::with(&keys(), ServeSettings { runs_tenant_max: 2, ..ServeSettings::default() }).await;
    let old = world.ended_run("ann").await;
    let keyed = async |path: &str, key: &str, body: &str| {
        world.ask("POST", path, &[("x-api-key", "ann"), ("idempotency-key", key)], body).await
    };
    let (hanging, rerun) = (r#"{"workflow":"hanging"}"#, format!("/v1/runs/{old}/rerun"));
    until("the run that is over frees its place", || world.state.caps.run(Some("acme"), 0).is_ok()).await;
    let from = r#"{"from":"echo"}"#;
    let again = keyed(&rerun, "again", from).await.is(202).json()["run_id"].clone();
    world.with_key("ann", "GET", &format!("/v1/runs/{}/result?wait=30", again.as_str().unwrap()), "").await.is(200);
    until("that one too", || world.state.caps.run(Some("acme"), 0).is_ok()).await;
    let first = keyed("/v1/runs", "first", hanging).await.is(202).json()["run_id"].clone();
    let held = world.state.caps.run(Some("acme"), 0).unwrap();
    for (path, key, body, want) in [("/v1/runs", "first", hanging, &first), (&*rerun, "again", from, &again)] {
        let got = keyed(path, key, body).await;
        assert_eq!(
            (got.is(202).json().get("run_id"), got.headers["idempotency-replayed"].as_bytes()),
            (Some(want), &b"true"[..])
        );
        keyed(path, "new", body).await.fails(503, "LOAD_SHED");
    }
    keyed("/v1/runs", "first", r#"{"workflow":"one","input":{"text":"x"}}"#).await.fails(422, "INVALID_REQUEST");
    keyed("/v1/runs", "first", r#"{"workflow":"gone"}"#).await.fails(422, "INVALID_REQUEST");
    keyed("/v1/runs", "new", r#"{"workflow":"gone"}"#).await.fails(404, "NOT_FOUND");
    drop(held);
}

/// Whoever asks for large answers and does not read them: what waits for them in memory is bounded, and everybody's small questions go on.
#[tokio::test]
async fn answers_that_are_not_read_are_bounded_in_bytes() {
    let world = World::with(&keys(), ServeSettings { answers_bytes_max: 512 * 1024, ..ServeSettings::default() }).await;
    let text = "x".repeat(100_000);
    let keyed = [("x-api-key", "ann"), ("idempotency-key", "once")];
    let body = format!(r#"{{"workflow":"one","input":{{"text":"{text}"}}}}"#);
    let run = world.ask("POST", "/v1/runs", &keyed, &body).await.is(202).json();
    let path = format!("/v1/runs/{}", run["run_id"].as_str().unwrap());
    let result = format!("{path}/result?wait=30");
    let bytes = world.with_key("ann", "GET", &result, "").await.is(200).text.len();
    assert!(bytes > 100_000);
    let ask = || Request::builder().uri(&path).header("x-api-key", "ann").body(Body::empty()).unwrap();
    let mut unread = Vec::new();
    while (unread.len() + 1) * bytes.next_multiple_of(1024) <= 512 * 1024 {
        let answer = world.send(ask()).await;
        assert_eq!(answer.status(), 200, "{} before it", unread.len());
        unread.push(answer);
    }
    for path in [&path, &result] {
        assert_eq!(world.with_key("ann", "GET", path, "").await.fails(503, "LOAD_SHED").headers["retry-after"], "1");
    }
    world.with_key("ann", "POST", &format!("{path}/cancel"), "").await.fails(503, "LOAD_SHED");
    world.ask("POST", "/v1/runs", &keyed, &body).await.fails(503, "LOAD_SHED");
    for path in ["/healthz", "/v1/runs", "/v1/agents", &format!("{path}/why")] {
        world.with_key("olga", "GET", path, "").await.is(200);
    }
    world.with_key("olga", "POST", "/v1/agents/hang/breaker", r#"{"action":"reset"}"#).await.is(200);
    // A piece that the connection has not written yet holds the memory of the whole.
    let mut pieces = unread.pop().unwrap().into_body().into_data_stream();
    let piece = pieces.next().await.unwrap().unwrap();
    assert!(pieces.next().await.is_none());
    drop(pieces);
    assert_eq!(world.send(ask()).await.status(), 503);
    drop(piece);
    world.with_key("ann", "GET", &path, "").await.is(200);
    drop(unread);
    world.ask("POST", "/v1/runs", &keyed, &body).await.is(202);
}

/// One tenant that does not read what it asks for, pages of events among it, shuts out itself and nobody else.
#[tokio::test]
async fn one_tenants_unread_answers_leave_room_to_others() {
    let settings = ServeSettings {
        answers_tenant_bytes_max: 250 * 1024,
        answers_bytes_max: 700 * 1024,
        ..ServeSettings::default()
    };
    let world = World::with(&keys(), settings).await;
    let body = format!(r#"{{"workflow":"one","input":{{"text":"{}"}}}}"#, "x".repeat(50_000));
    let run = async |key: &str| {
        let run = world.with_key(key, "POST", "/v1/runs", &body).await.is(202).json();
        let path = format!("/v1/runs/{}", run["run_id"].as_str().unwrap());
        world.with_key(key, "GET", &format!("{path}/result?wait=30"), "").await.is(200);
        path
    };
    let (of_ann, of_bob) = (run("ann").await, run("bob").await);
    let ask =
        |key: &str, path: &str| Request::builder().uri(path).header("x-api-key", key).body(Body::empty()).unwrap();
    let mut unread = Vec::new();
    loop {
        let answer = world.send(ask("ann", &of_ann)).await;
        if answer.status() == 503 {
            break;
        }
        unread.push(answer);
    }
    assert_eq!(unread.len(), 2, "as far as its own part goes");
    let token = world.with_key("ann", "POST", &format!("{of_ann}/watch-token"), "").await.is(200).json();
    let watched = format!("{of_ann}/result?token={}", token["token"].as_str().unwrap());
    world.ask("GET", &watched, &[], "").await.fails(503, "LOAD_SHED");
    world.with_key("bob", "GET", &of_bob, "").await.is(200);
    world.with_key("olga", "GET", &of_ann, "").await.is(200);
    drop(unread);
    world.ask("GET", &watched, &[], "").await.is(200);
}

/// An answer that was paid for goes out whatever there is room for; until it is read no further call begins.
#[tokio::test]
async fn unread_answers_of_calls_keep_calls_from_beginning() {
    let world = World::with(&keys(), ServeSettings { answers_bytes_max: 150 * 1024, ..ServeSettings::default() }).await;
    let call = || {
        let call = Request::builder().method("POST").uri("/v1/agents/echo/call").header("x-api-key", "ann");
        let body = format!(r#"{{"input":"{}"}}"#, "x".repeat(100_000));
        call.header("content-type", "application/json").body(Body::from(body)).unwrap()
    };
    let unread = [world.send(call()).await, world.send(call()).await];
    assert!(unread.iter().all(|answer| answer.status() == 200), "what was begun is answered");
    assert_eq!(world.send(call()).await.status(), 503);
    world.with_key("ann", "GET", "/v1/agents", "").await.is(200);
    drop(unread);
    assert_eq!(world.send(call()).await.status(), 200);
}

#[tokio::test]
async fn the_reserve_answers_questions_health_and_operators_only() {
    let world = World::usual().await;
    let run = world.with_key("ann", "POST", "/v1/runs", r#"{"workflow":"hanging"}"#).await.is(202).json();
    let id = run["run_id"].as_str().unwrap().to_owned();
    let ask = async |method: &str, path: &str, body: &'static str| {
        let request = Request::builder().method(method).uri(path).header("x-api-key", "olga");
        let request = request.header("content-type", "application/json").extension(Seat::Reserve);
        world.send(request.body(Body::from(body)).unwrap()).await.status().as_u16()
    };
    for (method, path, body, status) in [
        ("GET", "/healthz", "", 200),
        ("GET", "/readyz", "", 200),
        ("GET", "/v1/runs", "", 200),
        ("GET", &format!("/v1/runs/{id}"), "", 200),
        ("GET", &format!("/v1/runs/{id}/why"), "", 200),
        ("GET", &format!("/v1/runs/{id}/result"), "", 202),
        ("GET", "/v1/agents", "", 200),
        ("POST", "/v1/agents/hang/breaker", r#"{"action":"reset"}"#, 200),
        ("GET", &format!("/v1/runs/{id}/result?wait=30"), "", 503),
        ("GET", &format!("/v1/runs/{id}/events"), "", 503),
        ("POST", "/v1/runs", r#"{"workflow":"one","input":{"text":"x"}}"#, 503),
        ("POST", "/v1/agents/echo/call", r#"{"input":1}"#, 503),
        ("POST", "/v1/files", "x", 503),
        ("GET", "/nowhere", "", 503),
        ("POST", &format!("/v1/runs/{id}/cancel"), "", 200),
    ] {
        assert_eq!(ask(method, path, body).await, status, "{method} {path}");
    }
}

#[tokio::test]
async fn who_leaves_cancels_its_call() {
    let world = World::usual().await;
    let runtime = world.state.runtime().await.unwrap();
    let agent = runtime.agent("hang").unwrap();
    let call = Request::builder().method("POST").uri("/v1/agents/hang/call").header("x-api-key", "ann");
    let call = call.header("content-type", "application/json").body(Body::from(r#"{"input":1}"#)).unwrap();
    {
        let calling = world.send(call);
        tokio::pin!(calling);
        tokio::select! {
            _ = &mut calling => panic!("it hangs"),
            () = until("the call is under way", || agent.in_flight() == 1) => {}
        }
    }
    until("the call is cancelled", || agent.in_flight() == 0).await;
}

#[tokio::test]
async fn a_stopping_node_says_so_and_lets_its_watchers_go() {
    let world = World::usual().await;
    let run = world.with_key("ann", "POST", "/v1/runs", r#"{"workflow":"hanging"}"#).await.is(202).json();
    let path = format!("/v1/runs/{}/events", run["run_id"].as_str().unwrap());
    let watch = Request::builder().uri(path).header("x-api-key", "ann").body(Body::empty()).unwrap();
    let mut pieces = world.send(watch).await.into_body().into_data_stream();
    assert!(pieces.next().await.unwrap().unwrap().starts_with(b"retry: "));
    world.state.ending.draining.cancel();
    world.with_key("ann", "POST", "/v1/runs", r#"{"workflow":"hanging"}"#).await.fails(503, "SHUTTING_DOWN");
    world.with_key("ann", "POST", "/v1/agents/echo/call", r#"{"input":1}"#).await.fails(503, "SHUTTING_DOWN");
    world.ask("GET", "/readyz", &[], "").await.fails(503, "SHUTTING_DOWN");
    world.ask("GET", "/healthz", &[], "").await.is(200);
    world.state.ending.closing_streams.cancel();
    let mut last = String::new();
    while let Some(piece) = pieces.next().await {
        last.push_str(std::str::from_utf8(&piece.unwrap()).unwrap());
    }
    let (fields, data) = last.split_once("data: ").unwrap();
    assert!(fields.ends_with("retry: 1000\nevent: node.stopping\n"), "no id of its own: {last}");
    let event: serde_json::Value = serde_json::from_str(data.strip_suffix("\n\n").unwrap()).unwrap();
    assert_eq!(event["type"], "node.stopping");
    assert_eq!(event["run_id"], run["run_id"]);
    assert_eq!(event["data"]["retry_after_ms"], 1_000);
}
