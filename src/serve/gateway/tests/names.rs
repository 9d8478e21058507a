//! Names in requests: of models that nobody configured, of which no series of the metrics is made, and of those whom a request is for.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::support::{post, state, text};
use crate::{
    model::name::Name,
    runtime::{
        engine::Runtime,
        function_agent::{AgentFailure, CallInfo, FunctionAgent},
        settings::{AgentSettings, ProviderSettings},
    },
    serve::{
        access::keys::KeyRing,
        gateway::{door, models::Gateway},
        router::router,
        tests::support::{keys, state_of, without_runs},
    },
    settings::serve::ServeSettings,
    transport::shared_cases,
};

/// B44: whatever names are asked for, the metrics know those of the configuration.
#[tokio::test]
async fn names_that_nobody_configured_make_no_series() {
    let (Some(known), Some(requests), Some(burst)) = (
        shared_cases::text("cases/B44/known_models.json"),
        shared_cases::text("cases/B44/requests.jsonl"),
        shared_cases::text("cases/B44/burst.json"),
    ) else {
        return;
    };
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    let page = recorder.handle();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let known: Vec<Name> =
        serde_json::from_str::<Vec<String>>(&known).unwrap().iter().map(|name| Name::try_new(name).unwrap()).collect();
    let mut builder = Runtime::builder().seed(7).provider(ProviderSettings::new(Name::try_new("local").unwrap()));
    let mut gateway = Gateway::default();
    for name in &known {
        let echo = |input: Value, _: CallInfo| async move { Ok::<_, AgentFailure>(input) };
        let settings = AgentSettings::new(name.clone(), Name::try_new("local").unwrap());
        builder = builder.agent(settings, Arc::new(FunctionAgent::new(echo)));
        gateway.add_model(name.as_str(), name);
    }
    let runtime = builder.start().await.unwrap();
    crate::serve::metrics::begin_with_zero(known.iter(), std::iter::empty());
    let state = state();
    state.door.open(without_runs(runtime));
    let service = router(state, door::routes(gateway));
    let ask = async |model: &str| {
        let body = json!({ "model": model, "messages": [{ "role": "user", "content": "x" }] }).to_string();
        let answer = service.clone().oneshot(post("/v1/chat/completions", &body)).await.unwrap();
        let status = answer.status().as_u16();
        (status, serde_json::from_str::<Value>(&text(answer).await).unwrap())
    };
    let unknown = async |model: &str| {
        let (status, body) = ask(model).await;
        let envelope = &body["error"]["watertight"];
        assert!(matches!(status, 400 | 404), "{model:?}: {status}");
        assert_eq!(envelope["retryable"], false, "{model:?}");
    };
    for line in requests.lines() {
        let request: Value = serde_json::from_str(line).unwrap();
        let model = request["model"].as_str().unwrap();
        if known.iter().any(|name| name.as_str() == model) {
            ask(model).await;
        } else {
            unknown(model).await;
        }
    }
    let burst: Value = serde_json::from_str(&burst).unwrap();
    for name in 0..burst["unique_names"].as_u64().unwrap() {
        unknown(&burst["template"].as_str().unwrap().replace("{i}", &name.to_string())).await;
    }
    let page = page.render();
    let mut agents = std::collections::BTreeSet::new();
    for line in page.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let (series, value) = line.rsplit_once(' ').unwrap();
        assert!(value.parse::<f64>().is_ok(), "{line}");
        let labels = series.split_once('{').map_or("", |(_, labels)| labels.strip_suffix('}').unwrap());
        for (label, value) in labels.split("\",").filter_map(|pair| pair.split_once("=\"")) {
            if label == "agent" {
                agents.insert(value.trim_end_matches('"').to_owned());
            }
        }
    }
    let names: std::collections::BTreeSet<String> = known.iter().map(|name| name.as_str().to_owned()).collect();
    assert_eq!(agents, names, "each has its own, and nobody else has one");
    for odd in ["typo-", "gpt-4o-mimi", "모델", "xxxxxxxx"] {
        assert!(!page.contains(odd), "{odd}");
    }
    assert!(
        page.contains("watertight_breaker_state{breaker=\"agent:style\",state=\"closed\"} 1"),
        "breakers are as they were"
    );
}

/// A request that names two users is nobody's, whoever brings it.
#[tokio::test]
async fn who_names_two_users_is_nobody_in_particular() {
    let ring = KeyRing::of(&keys(), &|_| None).unwrap();
    let state = state_of(ServeSettings::default(), ring, BTreeMap::new());
    state.door.open(without_runs(Runtime::builder().seed(7).start().await.unwrap()));
    let service = router(state, door::routes(Gateway::default()));
    for (key, said, want) in [
        ("app", r#""user":"kim","metadata":{"user":"lee"}"#, (400, "user")),
        ("app", r#""user":"kim","metadata":{"user":"kim"}"#, (404, "model")),
        ("app", r#""user":"","metadata":{"user":"lee"}"#, (404, "model")),
        ("app", r#""user":"kim","metadata":{"user":""}"#, (404, "model")),
        ("app", r#""user":"kim","metadata":{"user":null,"tenant":"acme"}"#, (404, "model")),
        ("ann", r#""user":"kim","metadata":{"user":"lee"}"#, (400, "user")),
    ] {
        let mut request = post("/v1/chat/completions", &format!(r#"{{"model":"none","messages":[],{said}}}"#));
        request.headers_mut().insert("authorization", format!("Bearer {key}").parse().unwrap());
        let answer = service.clone().oneshot(request).await.unwrap();
        let status = answer.status().as_u16();
        let body: Value = serde_json::from_str(&text(answer).await).unwrap();
        assert_eq!((status, body["error"]["param"].as_str().unwrap_or_default()), want, "{key} {said}: {body}");
        let message = body["error"]["message"].as_str().unwrap();
        assert!(status == 404 || (message.contains("kim") && message.contains("lee")), "{message}");
    }
}
