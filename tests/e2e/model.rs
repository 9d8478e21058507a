//! The pipeline on a real model, where one is served: `WATERTIGHT_LLM_URL=http://127.0.0.1:8081/v1`.

use crate::{
    process::watertight,
    project::{MOMENTLY, assert_run_keys, statuses},
};

#[test]
fn a_local_model_writes_the_post() {
    let Ok(url) = std::env::var("WATERTIGHT_LLM_URL") else {
        println!("skipped: WATERTIGHT_LLM_URL names no server");
        return;
    };
    let config = format!("{MOMENTLY}/local-llm.toml");
    let set = format!("providers.local.base_url={url}");
    // A small model on a busy machine may need longer than the other tests allow: the run's own deadline is the bound.
    let args = ["run", MOMENTLY, "--config", &config, "--set", &set, "--json", "--deadline", "110s"];
    let ended = watertight(&args);
    assert!(matches!(ended.code, Some(0 | 3)), "{ended:#?}");
    let json = ended.json();
    assert_run_keys(&json);
    assert!(matches!(json["status"].as_str(), Some("completed" | "completed_degraded")), "{json:#}");
    assert!(json["tokens"]["output"].as_u64().is_some_and(|tokens| tokens > 0), "a model was asked: {json:#}");
    println!("{:?}", statuses(&json));
}
