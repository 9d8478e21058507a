//! What attempts said word for word, over HTTP: whose it is, that its readers are written down, and that it goes with the run.

use serde_json::{Value, json};

use super::support::World;
use crate::journal::captures::Capture;

fn capture(run_id: Option<&str>, attempt: u32) -> Capture {
    Capture {
        tenant: Some("acme".into()),
        run_id: run_id.map(ToOwned::to_owned),
        step: Some("echo".into()),
        agent: "echo".into(),
        target: Some("here/qwen".into()),
        call_id: "call".into(),
        attempt,
        at_ms: 1,
        expires_ms: u64::MAX / 4,
        prompt: json!({ "body": { "messages": [{ "role": "user", "content": "산책" }] } }),
        answer: Some("{".into()),
        text: None,
        parsed: json!({ "failure": { "message": "cut" } }),
    }
}

#[tokio::test]
async fn captures_are_their_tenants_and_each_reading_is_told() {
    let world = World::usual().await;
    let id = world.ended_run("ann").await;
    let journal = std::sync::Arc::clone(&world.state.running().await.unwrap().journal);
    journal.put_capture(capture(Some(&id), 1));
    journal.put_capture(capture(Some(&id), 2));
    let path = format!("/v1/runs/{id}/captures");
    world.with_key("bob", "GET", &path, "").await.fails(404, "NOT_FOUND");
    world.ask("GET", &path, &[], "").await.fails(401, "UNAUTHORIZED");
    let got = world.with_key("ann", "GET", &path, "").await.is(200).json();
    assert_eq!(got["data"][1]["attempt"], 2);
    assert_eq!(got["data"][0]["prompt"]["body"]["messages"][0]["content"], "산책");
    let got = world.with_key("olga", "GET", &path, "").await.is(200).json();
    let readings: Vec<(&str, u64)> = got["readings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|reading| (reading["reader"].as_str().unwrap(), reading["captures"].as_u64().unwrap()))
        .collect();
    assert_eq!(readings, [("ann", 2), ("olga", 2)], "who was refused has read nothing");
    assert!(got["readings"][0]["at_ms"].as_u64().unwrap() > 1);
    let described = world.ask("GET", "/openapi.json", &[], "").await.json();
    assert!(described["paths"]["/v1/runs/{id}/captures"]["get"].is_object());
}

#[tokio::test]
async fn deleting_leaves_the_accounting_line_only() {
    for by_tenant in [false, true] {
        let world = World::usual().await;
        let id = world.ended_run("ann").await;
        let journal = std::sync::Arc::clone(&world.state.running().await.unwrap().journal);
        journal.put_capture(capture(Some(&id), 1));
        // A call without a run is kept too, and goes with its tenant's data.
        journal.put_capture(capture(None, 1));
        let path = format!("/v1/runs/{id}/captures");
        let got = world.with_key("ann", "GET", &path, "").await.is(200).json();
        assert_eq!(got["data"].as_array().map(Vec::len), Some(1));
        let calls = |usage: Value| {
            usage["data"].as_array().map(|lines| lines.iter().map(|line| line["calls"].as_u64().unwrap()).sum::<u64>())
        };
        let before = calls(world.with_key("ann", "GET", "/v1/usage", "").await.is(200).json());
        if by_tenant {
            world.with_key("ann", "DELETE", "/v1/tenants/acme/data", "").await.is(200);
        } else {
            world.with_key("ann", "DELETE", &format!("/v1/runs/{id}"), "").await.is(204);
        }
        world.with_key("olga", "GET", &path, "").await.fails(404, "NOT_FOUND");
        let kept = journal.captures_kept().await.unwrap();
        assert_eq!(kept, if by_tenant { (0, 0) } else { (1, 0) }, "captures and notes of readings");
        let after = calls(world.with_key("ann", "GET", "/v1/usage", "").await.is(200).json());
        assert_eq!(after, before, "the accounting line stays");
    }
}
