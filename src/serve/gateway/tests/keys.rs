//! Whom a request in OpenAI's shape may name, by its key.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    body::Body,
    http::{HeaderName, Request},
};
use serde_json::Value;
use tower::ServiceExt as _;

use super::support::{WHOLE, agents, routes, text};
use crate::{
    runtime::engine::Runtime,
    serve::{
        access::keys::KeyRing,
        tests::support::{keys, state_of, without_runs},
    },
    settings::serve::ServeSettings,
    transport::fake_server::{self, FakeServer},
};

#[tokio::test]
async fn user_and_metadata_name_only_what_the_key_may() {
    let none_named = ("x-watertight-ladder", "on");
    let cases = [
        ("ann", none_named, r#""user":"kim""#, 403),
        ("ann", none_named, r#""user":"""#, 200),
        ("ann", none_named, r#""user":null,"metadata":null"#, 200),
        ("ann", none_named, r#""metadata":{"other":"x"}"#, 200),
        ("ann", none_named, r#""metadata":{"tenant":"acme"}"#, 200),
        ("ann", none_named, r#""metadata":{"tenant":"brick"}"#, 403),
        ("ann", none_named, r#""metadata":{"user":"kim"}"#, 403),
        ("ann", none_named, r#""metadata":{"feature":"chat"}"#, 200),
        ("ann", none_named, r#""metadata":{"tenant":5}"#, 400),
        ("ann", none_named, r#""priority":"critical""#, 403),
        ("low", none_named, r#""metadata":{"feature":"chat"}"#, 200),
        ("low", none_named, r#""metadata":{"feature":"export"}"#, 403),
        ("app", none_named, r#""user":"kim","metadata":{"tenant":"acme","feature":"chat"}"#, 200),
        ("app", ("x-watertight-tenant", "acme"), r#""metadata":{"tenant":"brick"}"#, 400),
        ("hint", none_named, r#""user":"kim","metadata":{"tenant":"brick","feature":"chat"}"#, 200),
        ("hint", none_named, r#""user":5,"metadata":[]"#, 200),
        ("hint", ("x-watertight-tenant", "brick"), r#""user":"kim""#, 403),
        ("hint", ("x-watertight-user", "kim"), r#""user":"kim""#, 403),
    ];
    let let_through = cases.iter().filter(|case| case.3 == 200).count();
    let server = FakeServer::start(vec![fake_server::answer(200, "", WHOLE); let_through]).await;
    let (agents, client) = agents(Runtime::builder().seed(7), &server, 1);
    let state = state_of(ServeSettings::default(), KeyRing::of(&keys(), &|_| None).unwrap(), BTreeMap::new());
    state.door.open(without_runs(agents.start().await.unwrap()));
    let service = routes(state, Arc::clone(&client));
    for (key, (header, value), said, status) in cases {
        let request = Request::post("/v1/chat/completions")
            .header("authorization", format!("Bearer {key}"))
            .header("content-type", "application/json")
            .header(HeaderName::from_static(header), value)
            .body(Body::from(format!(r#"{{"model":"gpt","messages":[],{said}}}"#)))
            .unwrap();
        let answer = service.clone().oneshot(request).await.unwrap();
        assert_eq!(answer.status().as_u16(), status, "{key} {header} {said}");
        let body: Value = serde_json::from_str(&text(answer).await).unwrap();
        let tells_the_way_out = body["error"]["message"].as_str().is_some_and(|text| text.contains("passed_on"));
        let is_of_the_body = status == 403 && key != "hint" && !said.contains("priority");
        assert_eq!(tells_the_way_out, is_of_the_body, "{key} {said}: {body}");
    }
    let sent = server.bodies();
    assert_eq!(sent.len(), let_through);
    assert!(sent.iter().any(|body| body["user"] == "kim" && body["metadata"]["tenant"] == "brick"), "as it was sent");
}
