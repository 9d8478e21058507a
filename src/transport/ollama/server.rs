//! Questions to an Ollama server that are no attempt: which models stand in memory, which it has, its version; and the request that
//! loads one. None of them is judged by anybody here.

use std::time::Duration;

use reqwest::{Method, header::HeaderMap};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{
    model::{facts::Ending, loose_json, reply::AttemptFailure},
    runtime::tally::AnswerForm,
    transport::{
        client::ProviderClient,
        error_body::{Beside, ErrorPointers, failure_inside_success},
        outgoing::Outgoing,
        question,
    },
};

use super::{
    failure::corrected,
    request::{Body, CHAT_PATH},
    settings::CheckedOllama,
};

/// How long an answer is waited for. Loading a model is none of these questions.
pub const QUESTION_WAIT_MAX: Duration = Duration::from_secs(5);
/// Models that are loaded.
const LOADED_PATH: &str = "/api/ps";
/// Models that the server has.
const MODELS_PATH: &str = "/api/tags";
/// Its version.
const VERSION_PATH: &str = "/api/version";
/// What a model without a tag is called in full.
const LATEST: &str = ":latest";

/// A model in the server's memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadedModel {
    /// Its full name, tag included.
    pub name: String,
    /// When the server will put it away unless it is asked again, in Unix milliseconds; `None` where it did not say.
    pub expires_at_ms: Option<u64>,
    /// Tokens of context that it was loaded with; older servers do not say.
    pub num_ctx: Option<u64>,
}

impl LoadedModel {
    /// Whether it is the model that is configured as `name`, which may leave out the tag `latest`.
    pub fn is(&self, name: &str) -> bool {
        same_model(&self.name, name)
    }
}

/// Whether both names mean one model. Ollama's names know no case.
pub fn same_model(one: &str, other: &str) -> bool {
    let full = |name: &str| {
        if name.contains(':') { name.to_ascii_lowercase() } else { format!("{}{LATEST}", name.to_ascii_lowercase()) }
    };
    full(one) == full(other)
}

/// An Ollama server, as a place to ask.
#[derive(Debug, Clone, Copy)]
pub struct OllamaServer<'a> {
    client: &'a ProviderClient,
}

#[derive(serde::Deserialize)]
struct Models {
    models: Option<Vec<Model>>,
}

#[derive(serde::Deserialize)]
struct Model {
    name: Option<String>,
    model: Option<String>,
    expires_at: Option<String>,
    context_length: Option<u64>,
}

#[derive(serde::Deserialize)]
struct Version {
    version: String,
}

impl<'a> OllamaServer<'a> {
    /// The server that `client` reaches.
    pub fn new(client: &'a ProviderClient) -> Self {
        Self { client }
    }

    /// The models in its memory.
    pub async fn loaded(&self) -> Result<Vec<LoadedModel>, AttemptFailure> {
        let told: Models = self.asked(LOADED_PATH, "no list of loaded models").await?;
        let loaded = |model: Model| {
            Some(LoadedModel {
                name: model.model.or(model.name)?,
                expires_at_ms: model.expires_at.as_deref().and_then(unix_ms),
                num_ctx: model.context_length.filter(|tokens| *tokens > 0),
            })
        };
        Ok(told.models.unwrap_or_default().into_iter().filter_map(loaded).collect())
    }

    /// The names of the models that it has.
    pub async fn models(&self) -> Result<Vec<String>, AttemptFailure> {
        let told: Models = self.asked(MODELS_PATH, "no list of models").await?;
        Ok(told.models.unwrap_or_default().into_iter().filter_map(|model| model.model.or(model.name)).collect())
    }

    /// Its version.
    pub async fn version(&self) -> Result<String, AttemptFailure> {
        Ok(self.asked::<Version>(VERSION_PATH, "no version").await?.version)
    }

    /// Asks the server to load `agent`'s model, by a chat without messages, and waits until it says so.
    pub(super) async fn load(&self, agent: &CheckedOllama) -> Result<(), AttemptFailure> {
        let empty = Body {
            messages: Vec::new(),
            format: None,
            options: serde_json::Map::new(),
            output_cap: None,
            wanted: AnswerForm::Whole,
        };
        let outgoing = Outgoing {
            method: Method::POST,
            path: CHAT_PATH.to_owned(),
            headers: HeaderMap::new(),
            body: Some(empty.of(agent)),
        };
        let scrub = |failure| self.client.scrub(corrected(failure));
        let answer = self.client.send(outgoing, &ErrorPointers::default()).await.map_err(scrub)?;
        let head = answer.head;
        let body = answer.into_body().await.map_err(scrub)?;
        let bad = |message: &str| AttemptFailure {
            status: Some(head.status),
            ..AttemptFailure::new(Ending::BadReply, message)
        };
        let told = loose_json::read(&body).map_err(|_| bad("the answer to a load is no JSON"))?;
        let beside = Beside::promised(told.get("done").is_some());
        match failure_inside_success(head, &told, &ErrorPointers::default(), beside) {
            Some(failure) => Err(scrub(failure)),
            None if told.get("done").and_then(Value::as_bool) == Some(true) => Ok(()),
            None => Err(bad("the answer to a load does not say that it is done")),
        }
    }

    async fn asked<T: DeserializeOwned>(&self, path: &str, missing: &str) -> Result<T, AttemptFailure> {
        let asking = async {
            let body = question::get(self.client, path).await.map_err(corrected)?.into_body().await?;
            let bad = |_| AttemptFailure::new(Ending::BadReply, format!("the answer to {path} is not Ollama's"));
            serde_json::from_slice(&body).map_err(bad)
        };
        question::within(self.client, QUESTION_WAIT_MAX, missing, asking).await
    }
}

/// Unix milliseconds of a date with its offset; `None` before 1970 and for what is no date.
fn unix_ms(date: &str) -> Option<u64> {
    u64::try_from(date.parse::<jiff::Timestamp>().ok()?.as_millisecond()).ok()
}

#[cfg(test)]
mod tests;
