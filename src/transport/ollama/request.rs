//! The request to `/api/chat`. It always says how much context the model is loaded with and how long it stays, and asks the server to
//! refuse what does not fit rather than to cut it.

use bytes::Bytes;
use serde_json::{Map, Value, json};

use crate::{
    model::reply::AttemptFailure,
    runtime::{ports::AttemptRequest, tally::AnswerForm},
    transport::{
        http_agent::request::invalid_input,
        openai::{images, request as openai_request, settings::StreamUpstream},
    },
};

use super::{fit::Prompt, settings::CheckedOllama};

/// Where chats are asked for, joined to the provider's `base_url`.
pub const CHAT_PATH: &str = "/api/chat";

/// A request that is ready to be sent.
#[derive(Debug)]
pub(super) struct ChatRequest {
    pub(super) body: Bytes,
    /// About how many tokens its messages have.
    pub(super) prompt_tokens: u64,
}

/// Whether this attempt asks for a stream.
pub(super) fn wanted(agent: &CheckedOllama, is_watched: bool) -> AnswerForm {
    let always = agent.asked.settings.stream_upstream == StreamUpstream::Always;
    if always || is_watched { AnswerForm::Stream } else { AnswerForm::Whole }
}

/// The body of the request of this attempt. Refused, with nothing sent: a prompt that says nothing, one that does not fit.
pub(super) async fn chat(
    agent: &CheckedOllama,
    attempt: &AttemptRequest,
    wanted: AnswerForm,
) -> Result<ChatRequest, AttemptFailure> {
    let settings = &agent.asked.settings;
    let (input, images) = images::taken_out(&attempt.input);
    let prompt = openai_request::prompt(&agent.asked, attempt, &input)
        .await
        .map_err(|error| openai_request::unfilled(&agent.asked, attempt, &error))?;
    if prompt.trim().is_empty() && images.is_empty() {
        return Err(nothing_asked());
    }
    let mut messages = Vec::new();
    if let Some(system) = &settings.system {
        messages.push(json!({ "role": "system", "content": system }));
    }
    let mut user = json!({ "role": "user", "content": prompt });
    if !images.is_empty() {
        let bytes: Option<Vec<&str>> = images.iter().map(|url| images::base64_of(url)).collect();
        let bytes = bytes.ok_or_else(|| invalid_input("a picture of the input is not written in base64".to_owned()))?;
        user["images"] = json!(bytes);
    }
    messages.push(user);
    let fits = Prompt::of_chat(&messages, None).fit(agent.model(), settings.max_output_tokens, agent.num_ctx);
    let prompt_tokens = fits.await?;
    let mut options = Map::new();
    options.extend(settings.temperature.map(|degree| ("temperature".to_owned(), json!(degree))));
    options.extend(settings.seed.map(|seed| ("seed".to_owned(), json!(seed))));
    let output_cap = settings.max_output_tokens;
    let format = agent.asked.json_shape().map(|shape| shape.schema.clone());
    let body = Body { messages, format, options, output_cap, wanted };
    Ok(ChatRequest { body: body.of(agent), prompt_tokens })
}

/// A request without anybody's words: the server would load its model, say so, and call that an answer.
pub(super) fn nothing_asked() -> AttemptFailure {
    invalid_input("the request holds no message beside the system's: nothing is asked of the model".to_owned())
}

/// What a request to `/api/chat` is made of.
#[derive(Debug)]
pub(super) struct Body {
    pub(super) messages: Vec<Value>,
    pub(super) format: Option<Value>,
    /// Of sampling; those of the context are added here.
    pub(super) options: Map<String, Value>,
    pub(super) output_cap: Option<u64>,
    pub(super) wanted: AnswerForm,
}

impl Body {
    /// The body, for this agent's model.
    pub(super) fn of(self, agent: &CheckedOllama) -> Bytes {
        Bytes::from(Value::Object(self.fields(agent)).to_string())
    }

    /// The same, to be added to.
    pub(super) fn fields(self, agent: &CheckedOllama) -> Map<String, Value> {
        let mut options = self.options;
        options.insert("num_ctx".to_owned(), json!(agent.num_ctx));
        // Without any cap a model that does not stop would write until its context is full, and older servers then make room at the
        // front and let it go on.
        options.insert("num_predict".to_owned(), json!(self.output_cap.unwrap_or(agent.num_ctx)));
        let mut fields = Map::new();
        fields.insert("model".to_owned(), json!(agent.model()));
        fields.insert("messages".to_owned(), Value::from(self.messages));
        fields.insert("stream".to_owned(), json!(self.wanted == AnswerForm::Stream));
        fields.extend(self.format.map(|format| ("format".to_owned(), format)));
        fields.insert("options".to_owned(), Value::Object(options));
        fields.insert("keep_alive".to_owned(), agent.keep_alive.on_the_wire());
        // Servers that know these refuse or stop where others cut silently; those that do not know them ignore them.
        fields.insert("truncate".to_owned(), json!(false));
        fields.insert("shift".to_owned(), json!(false));
        fields
    }
}

#[cfg(test)]
mod tests;
