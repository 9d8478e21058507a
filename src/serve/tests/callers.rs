//! The volume guard over HTTP: who is shut, who sees it, who lifts it.

use super::support::{World, keys};
use crate::{
    policy::{crowd::CallerScope, volume::VolumeSettings},
    runtime::callers::CallerSettings,
    settings::serve::ServeSettings,
};

#[tokio::test]
async fn a_caller_that_runs_away_is_shut_until_an_operator_lifts_it() {
    let callers = CallerSettings { volume: Some(VolumeSettings::of_calls(3)), scope: CallerScope::Caller };
    let world = World::guarding(callers, &keys(), ServeSettings::default()).await;
    let call = async |key: &str| world.with_key(key, "POST", "/v1/agents/echo/call", r#"{"input":{}}"#).await;
    for _ in 0..3 {
        call("ann").await.is(200);
    }
    for _ in 0..5 {
        let refused = call("ann").await;
        refused.fails(429, "CALL_VOLUME_EXCEEDED");
        let wait: u64 = refused.headers["retry-after"].to_str().unwrap().parse().unwrap();
        assert!((3_590..=3_601).contains(&wait), "the hour is later than the half: {wait}");
    }
    call("bob").await.is(200);
    call("low").await.is(200);
    world.with_key("ann", "GET", "/v1/callers", "").await.fails(403, "FORBIDDEN");
    let list = world.with_key("olga", "GET", "/v1/callers", "").await.json();
    let names: Vec<&str> = list["data"].as_array().unwrap().iter().map(|item| item["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["key:ann", "key:bob", "key:low"], "who is shut comes first");
    let ann = &list["data"][0];
    assert_eq!(
        (ann["guard"].as_str(), ann["calls_last_hour"].as_u64(), ann["calls_per_hour"].as_u64()),
        (Some("shut"), Some(3), Some(3))
    );
    assert!(
        ann["shut_since_ms"].as_u64().unwrap() > 1_700_000_000_000 && ann["retry_after"].as_f64().unwrap() > 3_500.0
    );
    assert!(list["data"][1]["guard"] == "admits" && list["data"][1]["shut_since_ms"].is_null());
    let lift = r#"{"action":"lift","reason":"the loop is found"}"#;
    world.with_key("ann", "POST", "/v1/callers/key:ann/guard", lift).await.fails(403, "FORBIDDEN");
    world.with_key("olga", "POST", "/v1/callers/key:nobody/guard", lift).await.fails(404, "NOT_FOUND");
    world.with_key("olga", "POST", "/v1/callers/ann/guard", lift).await.fails(404, "NOT_FOUND");
    world
        .with_key("olga", "POST", "/v1/callers/key:ann/guard", r#"{"action":"shut"}"#)
        .await
        .fails(400, "INVALID_REQUEST");
    let lifted = world.with_key("olga", "POST", "/v1/callers/key%3Aann/guard", lift).await;
    assert_eq!(lifted.is(200).json()["was_shut"], true);
    call("ann").await.is(200);
}

#[tokio::test]
async fn without_a_guard_nobody_is_remembered() {
    let world = World::usual().await;
    world.with_key("ann", "POST", "/v1/agents/echo/call", r#"{"input":{}}"#).await.is(200);
    let list = world.with_key("olga", "GET", "/v1/callers", "").await.json();
    assert_eq!((list["data"].as_array().map(Vec::len), &list["truncated"]), (Some(0), &false.into()));
}
