//! Runs over HTTP from their acceptance to their deletion.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use axum::{
    body::{Body, Bytes},
    http::{Request, StatusCode},
};
use futures_util::StreamExt as _;
use serde_json::Value;

use super::support::{World, until};
use crate::settings::serve::ServeSettings;

const BODY: &str = r#"{"workflow":"one","input":{"text":"x"}}"#;
const ANN: (&str, &str) = ("authorization", "Bearer ann");

#[tokio::test]
async fn a_run_is_accepted_followed_and_deleted() {
    let world = World::usual().await;
    let got = world.ask("POST", "/v1/runs", &[ANN], BODY).await;
    let id = got.is(202).json()["run_id"].as_str().unwrap().to_owned();
    assert_eq!(got.headers["location"], format!("/v1/runs/{id}"));
    let ended = world.ask("GET", &format!("/v1/runs/{id}/result?wait=30"), &[ANN], "").await.is(200).json();
    assert_eq!((ended["status"].as_str(), ended["output"]["text"].as_str()), (Some("completed"), Some("x")));
    let again = world.ask("GET", &format!("/v1/runs/{id}"), &[ANN], "").await.is(200).json();
    assert_eq!(again, ended);
    let all = events(&world.ask("GET", &format!("/v1/runs/{id}/events"), &[ANN], "").await.is(200).text);
    let ids: Vec<u64> = all.iter().map(|event| event["id"].as_u64().unwrap()).collect();
    assert_eq!(ids, (1..=ids.len() as u64).collect::<Vec<_>>());
    assert_eq!(all.last().unwrap()["type"], "run.finished");
    for (after, header) in [("?after=2", None), ("?after=1", Some("2"))] {
        let mut headers = vec![ANN];
        headers.extend(header.map(|id| ("last-event-id", id)));
        let rest = world.ask("GET", &format!("/v1/runs/{id}/events{after}"), &headers, "").await;
        assert_eq!(events(&rest.text), all[2..], "{after}");
    }
    let last = ids.len().to_string();
    world.ask("GET", &format!("/v1/runs/{id}/events"), &[ANN, ("last-event-id", &last)], "").await.is(204);
    let beyond = (ids.len() + 1).to_string();
    let ahead = world.ask("GET", &format!("/v1/runs/{id}/events"), &[ANN, ("last-event-id", &beyond)], "").await;
    let details = ahead.fails(400, "INVALID_REQUEST").json()["error"]["details"].clone();
    assert_eq!((details["after"].to_string(), details["last"].to_string()), (beyond, last));
    let odd = world.ask("GET", &format!("/v1/runs/{id}/events"), &[ANN, ("last-event-id", "x")], "").await;
    odd.fails(400, "INVALID_REQUEST");
    world.ask("POST", &format!("/v1/runs/{id}/repair"), &[ANN], "").await.fails(409, "CONFLICT");
    world.ask("DELETE", &format!("/v1/runs/{id}"), &[ANN], "").await.is(204);
    world.ask("GET", &format!("/v1/runs/{id}"), &[ANN], "").await.fails(404, "NOT_FOUND");
}

/// A run that is live is not waited for under an id that it has not come to: it would be silent until then.
#[tokio::test]
async fn a_live_run_is_not_followed_from_an_event_that_is_not_there() {
    let world = World::usual().await;
    let run = world.with_key("ann", "POST", "/v1/runs", r#"{"workflow":"hanging"}"#).await.is(202).json();
    let path = format!("/v1/runs/{}/events", run["run_id"].as_str().unwrap());
    let got = world.with_key("ann", "GET", &format!("{path}?after=1000"), "").await;
    got.fails(400, "INVALID_REQUEST");
    assert_eq!(got.json()["error"]["details"]["after"], 1000);
    let request = Request::builder().uri(format!("{path}?after=0")).header("x-api-key", "ann");
    assert_eq!(world.send(request.body(Body::empty()).unwrap()).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn a_rerun_and_a_repair_say_what_they_go_on_from() {
    let world = World::usual().await;
    let id = world.ended_run("ann").await;
    let first = world.with_key("ann", "GET", &format!("/v1/runs/{id}"), "").await.is(200).json();
    assert!(first.get("rerun_of").is_none(), "{first:#}");
    let path = format!("/v1/runs/{id}/rerun");
    let asked = world.with_key("ann", "POST", &path, r#"{"from":"echo"}"#).await.is(202).json();
    let want = serde_json::json!({ "run_id": id, "kind": "rerun", "from": "echo", "again": ["echo"] });
    assert_eq!(asked["rerun_of"], want);
    let path = format!("/v1/runs/{}/result?wait=30", asked["run_id"].as_str().unwrap());
    let ended = world.with_key("ann", "GET", &path, "").await.is(200).json();
    assert_eq!((&ended["rerun_of"], ended["status"].as_str()), (&want, Some("completed")));
}

/// The configuration of these tests is the default one: places are not told.
#[tokio::test]
async fn places_go_no_further_than_the_configuration_lets_them() {
    let world = World::usual().await;
    for given in ["", r#","places":"rounded""#, r#","places":"never""#] {
        let body = format!(r#"{{"workflow":"one","input":{{"text":"x"{given}}}}}"#);
        let asked = world.with_key("ann", "POST", "/v1/runs", &body).await.is(202).json();
        let path = format!("/v1/runs/{}/result?wait=30", asked["run_id"].as_str().unwrap());
        let ended = world.with_key("ann", "GET", &path, "").await.is(200).json();
        assert_eq!(ended["output"]["places"], "never", "{given}");
    }
}

/// The body of a form, with a boundary of its own, and its content type.
fn form(boundary: &str, parts: &[(&str, &str)]) -> (String, String) {
    let part = |(head, body): &(&str, &str)| {
        format!("--{boundary}\r\ncontent-disposition: form-data; {head}\r\n\r\n{body}\r\n")
    };
    let body: String = parts.iter().map(part).collect();
    (format!("{body}--{boundary}--\r\n"), format!("multipart/form-data; boundary={boundary}"))
}

/// The body is sent in these pieces; how many of them were taken.
async fn send_in_pieces(world: &World, pieces: Vec<Bytes>) -> (StatusCode, Value, usize) {
    let taken = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&taken);
    let pieces = futures_util::stream::iter(pieces).map(move |piece| {
        count.fetch_add(1, Ordering::Relaxed);
        Ok::<_, std::io::Error>(piece)
    });
    let request = Request::builder().method("POST").uri("/v1/runs").header("x-api-key", "ann");
    let request = request.header("content-type", "multipart/form-data; boundary=b").body(Body::from_stream(pieces));
    let answer = world.send(request.unwrap()).await;
    let status = answer.status();
    let body = axum::body::to_bytes(answer.into_body(), 1 << 20).await.unwrap();
    (status, serde_json::from_slice(&body).unwrap(), taken.load(Ordering::Relaxed))
}

#[tokio::test]
async fn the_header_of_a_part_is_bounded_however_it_is_sent() {
    let world = World::usual().await;
    let opening = "--b\r\ncontent-disposition: form-data; name=\"";
    let whole = "--b\r\ncontent-disposition: form-data; name=\"text\"\r\n\r\nx\r\n";
    // A header without an end, one behind a part that is whole, and what is no form at all.
    for beginning in [opening.to_owned(), format!("{whole}{opening}"), String::new()] {
        for piece_bytes in [1 << 20, 1_000] {
            let more = std::iter::repeat_n(Bytes::from("a".repeat(piece_bytes)), 200);
            let pieces = std::iter::once(Bytes::from(beginning.clone())).chain(more).collect();
            let (status, body, taken) = send_in_pieces(&world, pieces).await;
            assert_eq!(
                (status.as_u16(), body["error"]["error_code"].as_str()),
                (400, Some("INVALID_REQUEST")),
                "{body}"
            );
            let message = body["error"]["message"].as_str().unwrap();
            assert!(message.contains("longer than 16384 bytes"), "{message}");
            assert!(taken <= 2 + 16_384_usize.div_ceil(piece_bytes) + 1, "{taken} pieces of {piece_bytes} bytes");
        }
    }
}

/// Also one that is whole before anybody counted.
#[tokio::test]
async fn a_long_header_of_a_part_is_refused_in_one_piece_too() {
    let world = World::usual().await;
    for (note_bytes, piece_bytes, want) in [
        (16_000, 1 << 20, 202),
        (16_000, 1_000, 202),
        (17_000, 1 << 20, 400),
        (17_000, 1_000, 400),
        (60_000, 1 << 20, 400),
    ] {
        let extra = format!("name=\"text\"\r\nx-note: {}", "n".repeat(note_bytes));
        let (body, _) = form("b", &[("name=\"workflow\"", "one"), (&extra, "x")]);
        let pieces = body.as_bytes().chunks(piece_bytes).map(Bytes::copy_from_slice).collect();
        let (status, answer, _) = send_in_pieces(&world, pieces).await;
        assert_eq!(status.as_u16(), want, "{note_bytes} in pieces of {piece_bytes}: {answer}");
    }
}

#[tokio::test]
async fn a_form_is_read_in_whatever_pieces_it_comes() {
    let world = World::usual().await;
    let text = "x".repeat(100_000);
    let extra = format!("name=\"text\"\r\nx-note: {}", "n".repeat(15_000));
    let (body, _) = form("b", &[("name=\"workflow\"", "one"), (&extra, &text)]);
    for piece_bytes in [1, 1_000, 1 << 20] {
        let pieces: Vec<Bytes> = body.as_bytes().chunks(piece_bytes).map(Bytes::copy_from_slice).collect();
        let all = pieces.len();
        let (status, answer, taken) = send_in_pieces(&world, pieces).await;
        // The piece with the end of the form ends the reading, wherever in the last bytes that is.
        assert_eq!(status.as_u16(), 202, "{answer}");
        assert!(all - taken <= 2, "{taken} of {all}");
    }
}

#[tokio::test]
async fn the_fields_of_a_form_are_bounded_together() {
    let usual = ServeSettings::default();
    let small = ServeSettings { body_bytes_max: 4_096, ..usual.clone() };
    let crowded = ServeSettings { bodies_bytes_max: 4_096, ..usual };
    let text = "x".repeat(3_000);
    let two = [("name=\"workflow\"", "one"), ("name=\"text\"", &text), ("name=\"other\"", &text)];
    let twice = [("name=\"request\"", "{}"), ("name=\"request\"", "{}")];
    for (settings, parts, status, code) in [
        (&small, &two[..2], 202, ""),
        (&small, &two[..], 413, "INVALID_REQUEST"),
        (&crowded, &two[..2], 202, ""),
        (&crowded, &two[..], 503, "LOAD_SHED"),
        (&small, &twice[..], 400, "INVALID_REQUEST"),
    ] {
        let world = World::with(&super::support::keys(), settings.clone()).await;
        let (body, kind) = form("b", parts);
        let got = world.ask("POST", "/v1/runs", &[ANN, ("content-type", &kind)], &body).await;
        assert_eq!(got.status.as_u16(), status, "{parts:?} {got:?}");
        if !code.is_empty() {
            got.fails(status, code);
        }
        // What it held is given back, whatever became of it.
        let (body, kind) = form("b", &two[..2]);
        world.ask("POST", "/v1/runs", &[ANN, ("content-type", &kind)], &body).await.is(202);
    }
}

#[tokio::test]
async fn a_form_asks_for_a_run_with_its_files() {
    let world = World::usual().await;
    // Larger than what a framework takes of a form by itself.
    let photo = "p".repeat(3 * 1024 * 1024);
    // Nobody chose a file in two more fields of the page.
    let parts = [
        ("name=\"workflow\"", "one"),
        ("name=\"photos\"; filename=\"a.txt\"", &photo),
        ("name=\"photos\"; filename=\"\"", ""),
        ("name=\"other\"; filename=\"\"", ""),
        ("name=\"text\"", "바다"),
    ];
    let mut ids = Vec::new();
    for (boundary, replayed) in [("one", false), ("two", true)] {
        let (body, kind) = form(boundary, &parts);
        let headers = [ANN, ("content-type", &kind), ("idempotency-key", "k")];
        let got = world.ask("POST", "/v1/runs", &headers, &body).await;
        assert_eq!(got.is(202).headers.contains_key("idempotency-replayed"), replayed, "{got:?}");
        ids.push(got.json()["run_id"].as_str().unwrap().to_owned());
    }
    assert_eq!(ids[0], ids[1], "the same form under another boundary");
    let ended = world.ask("GET", &format!("/v1/runs/{}/result?wait=30", ids[0]), &[ANN], "").await.is(200).json();
    let file = &ended["output"]["photos"][0];
    assert_eq!(ended["output"]["photos"].as_array().map(Vec::len), Some(1), "{ended:#}");
    assert_eq!((&file["name"], &file["bytes"]), (&"a.txt".into(), &photo.len().into()), "{ended:#}");
    let path = format!("/v1/files/{}", file["file_id"].as_str().unwrap());
    assert_eq!(world.ask("GET", &path, &[ANN], "").await.is(200).text.len(), photo.len());
    world.with_key("bob", "GET", &path, "").await.fails(404, "NOT_FOUND");
    for (parts, status) in [
        (vec![("name=\"workflow\"", "nothing")], 404),
        (vec![("name=\"workflow\"", "one"), ("name=\"other\"", "x")], 400),
        (vec![("name=\"request\"", "{")], 400),
        (vec![("name=\"request\"", r#"{"workflow":"one","tenant":"brick"}"#)], 403),
    ] {
        let (body, kind) = form("b", &parts);
        let got = world.ask("POST", "/v1/runs", &[ANN, ("content-type", &kind)], &body).await;
        assert_eq!(got.status.as_u16(), status, "{parts:?} {got:?}");
    }
}

/// The events of a stream's text.
fn events(text: &str) -> Vec<Value> {
    text.lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .map(|data| serde_json::from_str(data).unwrap())
        .collect()
}

#[tokio::test]
async fn the_same_key_means_the_same_run() {
    let world = World::usual().await;
    let headers = [ANN, ("idempotency-key", "k1")];
    let first = world.ask("POST", "/v1/runs", &headers, BODY).await;
    let id = first.is(202).json()["run_id"].clone();
    assert!(!first.headers.contains_key("idempotency-replayed"));
    let second = world.ask("POST", "/v1/runs", &headers, BODY).await;
    assert_eq!((&second.json()["run_id"], &second.headers["idempotency-replayed"]), (&id, &"true".parse().unwrap()));
    let other = BODY.replace("\"x\"", "\"y\"");
    world.ask("POST", "/v1/runs", &headers, &other).await.fails(422, "INVALID_REQUEST");
    let bob = [("authorization", "Bearer bob"), ("idempotency-key", "k1")];
    let of_bob = world.ask("POST", "/v1/runs", &bob, &other).await;
    assert_ne!(of_bob.is(202).json()["run_id"], id, "keys are a tenant's own");
    world.ask("POST", "/v1/runs", &[ANN, ("idempotency-key", "")], BODY).await.fails(400, "INVALID_REQUEST");
}

#[tokio::test]
async fn a_live_run_says_why_and_is_cancelled() {
    let world = World::usual().await;
    let got = world.ask("POST", "/v1/runs", &[ANN], r#"{"workflow":"hanging"}"#).await;
    let id = got.is(202).json()["run_id"].as_str().unwrap().to_owned();
    let waiting = world.ask("GET", &format!("/v1/runs/{id}/result?wait=0.05"), &[ANN], "").await;
    assert_eq!(waiting.is(202).json()["status"], "running");
    let why = world.ask("GET", &format!("/v1/runs/{id}/why"), &[ANN], "").await.is(200).json();
    assert_eq!((why["why"]["state"].as_str(), why["why"]["agent"].as_str()), (Some("call"), Some("hang")));
    world.ask("DELETE", &format!("/v1/runs/{id}"), &[ANN], "").await.fails(409, "CONFLICT");
    let ended = world.ask("POST", &format!("/v1/runs/{id}/cancel"), &[ANN], "").await;
    assert_eq!(ended.is(200).json()["status"], "cancelled");
}

#[tokio::test]
async fn lists_are_filtered_and_paged() {
    let world = World::usual().await;
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.insert(0, world.ended_run("ann").await);
    }
    let mut seen = Vec::new();
    let mut path = "/v1/runs?limit=2&workflow=one&status=completed,failed".to_owned();
    loop {
        let page = world.ask("GET", &path, &[ANN], "").await.is(200).json();
        let runs = page["data"].as_array().unwrap();
        seen.extend(runs.iter().map(|run| run["run_id"].as_str().unwrap().to_owned()));
        let Some(next) = page["next_cursor"].as_str() else { break };
        path = format!("/v1/runs?limit=2&workflow=one&status=completed,failed&cursor={next}");
    }
    assert_eq!(seen, ids);
    let none = world.ask("GET", "/v1/runs?status=parked", &[ANN], "").await.json();
    assert_eq!(none["data"].as_array().map(Vec::len), Some(0));
}

#[tokio::test]
async fn calls_tell_what_they_took() {
    let world = World::usual().await;
    let got = world.ask("POST", "/v1/agents/echo/call", &[ANN], r#"{"input":{"a":1}}"#).await;
    assert_eq!(got.is(200).json()["output"]["a"], 1);
    assert_eq!(
        (&got.headers["x-watertight-agent"], &got.headers["x-watertight-attempts"]),
        (&"echo".parse().unwrap(), &"1".parse().unwrap())
    );
    let streamed =
        world.ask("POST", "/v1/agents/echo/call", &[ANN, ("accept", "text/event-stream")], r#"{"input":{"a":1}}"#);
    let streamed = streamed.await;
    assert_eq!(events(&streamed.is(200).text).last().unwrap()["output"]["a"], 1);
}

/// Both sides of the size from which bodies are read beside the workers.
#[tokio::test]
async fn large_bodies_are_answered_like_small_ones() {
    let world = World::usual().await;
    let call = |count: usize| format!(r#"{{"input":[{}]}}"#, vec!["1"; count].join(","));
    for count in [10, 300_000] {
        let answer = world.with_key("ann", "POST", "/v1/agents/echo/call", &call(count)).await.is(200).json();
        assert_eq!(answer["output"].as_array().map(Vec::len), Some(count));
    }
    let broken = format!("{}]", call(300_000));
    let answer = world.with_key("ann", "POST", "/v1/agents/echo/call", &broken).await;
    assert!(answer.fails(400, "INVALID_REQUEST").text.contains("column"));
    let text = "x".repeat(400_000);
    let body = format!(r#"{{"workflow":"one","input":{{"text":"{text}"}}}}"#);
    let run = world.with_key("ann", "POST", "/v1/runs", &body).await.is(202).json();
    let result = format!("/v1/runs/{}/result?wait=30", run["run_id"].as_str().unwrap());
    let ended = world.with_key("ann", "GET", &result, "").await.is(200).json();
    assert_eq!(ended["output"]["text"].as_str(), Some(text.as_str()));
    until("all room is given back", || {
        let all = usize::try_from(world.state.settings.bodies_bytes_max).unwrap();
        world.state.caps.body().grow(all).is_ok()
    })
    .await;
}

/// What a repair or a rerun of a large run costs is not paid on the threads that answer everybody else.
#[tokio::test]
async fn runs_that_go_on_from_large_ones_are_laid_out_beside_the_workers() {
    let world = World::usual().await;
    let ended = async |text: &str| {
        let body = format!(r#"{{"workflow":"one","input":{{"text":"{text}"}}}}"#);
        let run = world.with_key("ann", "POST", "/v1/runs", &body).await.is(202).json();
        let path = format!("/v1/runs/{}", run["run_id"].as_str().unwrap());
        world.with_key("ann", "GET", &format!("{path}/result?wait=30"), "").await.is(200);
        path
    };
    let (large, small) = (ended(&"x".repeat(400_000)).await, ended("x").await);
    let moment = std::time::Duration::from_millis(200);
    let mut turns = Vec::new();
    while let Ok(turn) = tokio::time::timeout(moment, world.state.caps.large()).await {
        turns.push(turn.unwrap());
    }
    let (repair, rerun) = (format!("{large}/repair"), format!("{large}/rerun"));
    let from = r#"{"from":"echo"}"#;
    let repairing = world.with_key("ann", "POST", &repair, "");
    let rerunning = world.with_key("ann", "POST", &rerun, from);
    tokio::pin!(repairing, rerunning);
    tokio::select! {
        got = &mut repairing => panic!("it was worked on without a turn: {got:?}"),
        got = &mut rerunning => panic!("it was worked on without a turn: {got:?}"),
        () = tokio::time::sleep(moment) => {}
    }
    world.with_key("ann", "POST", &format!("{small}/rerun"), from).await.is(202);
    drop(turns);
    repairing.await.fails(409, "CONFLICT");
    let run = rerunning.await.is(202).json();
    let result = format!("/v1/runs/{}/result?wait=30", run["run_id"].as_str().unwrap());
    let ended = world.with_key("ann", "GET", &result, "").await.is(200).json();
    assert_eq!(ended["output"]["text"].as_str().map(str::len), Some(400_000));
}

/// Files are looked for in direct calls as in runs, as often as they stand there; whatever else is called so is the caller's own.
#[tokio::test]
async fn a_direct_call_is_told_of_files_that_are_not_there_or_too_many() {
    let world = World::usual().await;
    let call = async |input: Value| {
        let body = serde_json::json!({ "input": input }).to_string();
        world.with_key("ann", "POST", "/v1/agents/echo/call", &body).await
    };
    let sent = world.ask("POST", "/v1/files", &[ANN, ("content-type", "text/plain")], "a text").await.is(201).json();
    let file = serde_json::json!({ "file_id": sent["file_id"] });
    call(serde_json::json!({ "files": vec![&file; 500] })).await.is(200);
    call(serde_json::json!({ "files": vec![&file; 501] })).await.fails(400, "INVALID_REQUEST");
    let unknown = format!("file-{}", "0".repeat(32));
    call(serde_json::json!({ "a": [{ "file_id": unknown }] })).await.fails(404, "NOT_FOUND");
    let foreign = serde_json::json!({ "path": "/articles/7", "upload": { "file_id": "file-abc123", "path": "x" } });
    let answer = call(foreign.clone()).await.is(200).json();
    assert!(answer["output"].to_string().contains("file-abc123"), "{answer}");
    let deep = |depth: usize| (1..depth).fold(serde_json::json!(1), |inner, _| serde_json::json!([inner]));
    call(deep(100)).await.is(200);
    call(deep(110)).await.fails(502, "AGENT_BAD_REPLY");
    call(deep(111)).await.fails(400, "INVALID_REQUEST");
    let body = serde_json::json!({ "workflow": "one", "input": { "text": "x", "photos": vec![&file; 501] } });
    world.with_key("ann", "POST", "/v1/runs", &body.to_string()).await.fails(400, "INVALID_REQUEST");
}

/// What a repair or rerun started is found by its key, also where the run that it began with is gone.
#[tokio::test]
async fn a_rerun_is_replayed_after_its_run_was_deleted() {
    let world = World::usual().await;
    let id = world.ended_run("ann").await;
    let path = format!("/v1/runs/{id}/rerun");
    let keyed = [ANN, ("idempotency-key", "again"), ("content-type", "application/json")];
    let first = world.ask("POST", &path, &keyed, r#"{"from":"echo"}"#).await.is(202).json();
    world.ask("DELETE", &format!("/v1/runs/{id}"), &[ANN], "").await.is(204);
    let again = world.ask("POST", &path, &keyed, r#"{"from":"echo"}"#).await;
    assert_eq!(again.is(202).json()["run_id"], first["run_id"]);
    assert!(again.headers.contains_key("idempotency-replayed"));
    let other = [ANN, ("idempotency-key", "other"), ("content-type", "application/json")];
    world.ask("POST", &path, &other, r#"{"from":"echo"}"#).await.fails(404, "NOT_FOUND");
}

/// A form may name its tenant in `request`, before its files: they are that tenant's, and go with the form where it comes to nothing.
#[tokio::test]
async fn a_form_that_names_its_tenant_keeps_its_files() {
    let world = World::usual().await;
    let request = ("name=\"request\"", r#"{"workflow":"one","tenant":"t-alice","input":{"text":"x"}}"#);
    let file = ("name=\"photos\"; filename=\"a.txt\"", "abc");
    let send = async |key: &str, parts: &[(&str, &str)]| {
        let (body, kind) = form("b", parts);
        world.ask("POST", "/v1/runs", &[("x-api-key", key), ("content-type", &kind)], &body).await
    };
    let run = send("app", &[request, file]).await.is(202).json();
    let path = format!("/v1/runs/{}/result?wait=30", run["run_id"].as_str().unwrap());
    let ended = world.with_key("olga", "GET", &path, "").await.is(200).json();
    assert_eq!(ended["status"], "completed", "{ended}");
    let id = ended["output"]["photos"][0]["file_id"].as_str().unwrap();
    let alice = [("x-api-key", "app"), ("x-watertight-tenant", "t-alice")];
    let bob = [("x-api-key", "app"), ("x-watertight-tenant", "t-bob")];
    let file_path = format!("/v1/files/{id}");
    world.ask("GET", &file_path, &bob, "").await.fails(404, "NOT_FOUND");
    assert_eq!(world.ask("GET", &file_path, &alice, "").await.is(200).text, "abc");
    send("ann", &[request, file]).await.fails(403, "FORBIDDEN");
    let late = send("app", &[file, request]).await;
    let message = late.fails(400, "INVALID_REQUEST").json()["error"]["message"].to_string();
    assert!(message.contains("send it before them"), "{message}");
    let store = world.state.files().await.unwrap();
    let of_alice = crate::journal::query::TenantScope::One(Some("t-alice".to_owned()));
    assert!(store.file(of_alice, id).await.unwrap().is_some());
}
