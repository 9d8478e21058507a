//! Asks a server which models it has: whether it can be reached, takes our key, and knows the configured names.

use std::time::Duration;

use serde_json::Value;

use crate::{
    model::{facts::Ending, reply::AttemptFailure},
    transport::{client::ProviderClient, question},
};

/// How long an answer is waited for.
pub const PROBE_WAIT_MAX: Duration = Duration::from_secs(5);
/// Joined to the provider's `base_url`, unless it has a path of its own.
pub const MODELS_PATH: &str = "/models";

/// The names of the models that the server says it has, asked at `path`.
pub async fn probe_models(client: &ProviderClient, path: &str) -> Result<Vec<String>, AttemptFailure> {
    question::within(client, PROBE_WAIT_MAX, "no list of models", ask(client, path)).await
}

async fn ask(client: &ProviderClient, path: &str) -> Result<Vec<String>, AttemptFailure> {
    let answer = question::get(client, path).await?;
    let body = answer.into_body().await?;
    let listed = serde_json::from_slice::<Value>(&body).ok();
    let models = listed.as_ref().and_then(|value| value.get("data")).and_then(Value::as_array);
    let Some(models) = models else {
        return Err(AttemptFailure::new(Ending::BadReply, "the answer is no list of models"));
    };
    Ok(models.iter().filter_map(|model| model.get("id").and_then(Value::as_str)).map(str::to_owned).collect())
}
