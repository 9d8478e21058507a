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

/// Beside its OpenAI API.
const PROPS_PATH: &str = "/props";

/// The names of the models that the server says it has, asked at `path`.
pub async fn probe_models(client: &ProviderClient, path: &str) -> Result<Vec<String>, AttemptFailure> {
    question::within(client, PROBE_WAIT_MAX, "no list of models", ask(client, path)).await
}

/// llama.cpp tells beside its OpenAI API how many requests it works on at once; nobody else has this path. `None` = it has the path, and
/// does not say.
pub async fn probe_slots(client: &ProviderClient) -> Result<Option<u32>, AttemptFailure> {
    let asking = async {
        let body = question::get(client, PROPS_PATH).await?.into_body().await?;
        let told = serde_json::from_slice::<Value>(&body).ok();
        let slots = told.as_ref().and_then(|value| value.get("total_slots")).and_then(Value::as_u64);
        Ok(slots.and_then(|slots| u32::try_from(slots).ok()).filter(|slots| *slots > 0))
    };
    question::within(client, PROBE_WAIT_MAX, "no properties", asking).await
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
