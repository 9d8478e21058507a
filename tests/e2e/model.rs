//! The pipeline on a real model, where one is served: `WATERTIGHT_LLM_URL=http://127.0.0.1:8081/v1`.

use std::time::Duration;

use crate::{
    process::{Running, command},
    project::{MOMENTLY, assert_run_keys, statuses},
};

/// The workflow's own deadline of 15 minutes, and some time to say so.
const BOUND: Duration = Duration::from_secs(16 * 60);

#[test]
fn a_local_model_writes_the_post() {
    let Ok(url) = std::env::var("WATERTIGHT_LLM_URL") else {
        println!("skipped: WATERTIGHT_LLM_URL names no server");
        return;
    };
    let config = format!("{MOMENTLY}/local-llm.toml");
    let set = format!("providers.local.base_url={url}");
    let args = ["run", MOMENTLY, "--config", &config, "--set", &set, "--json"];
    let ended = Running::start(command(&args)).end_within(BOUND);
    assert!(matches!(ended.code, Some(0 | 3)), "{ended:#?}");
    let json = ended.json();
    assert_run_keys(&json);
    assert!(matches!(json["status"].as_str(), Some("completed" | "completed_degraded")), "{json:#}");
    assert!(json["tokens"]["output"].as_u64().is_some_and(|tokens| tokens > 0), "a model was asked: {json:#}");
    println!("{:?}", statuses(&json));
}
