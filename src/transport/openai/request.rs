//! The request to an OpenAI-compatible server.

use bytes::Bytes;
use reqwest::header::{ACCEPT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use serde_json::{Map, Value, json};

use crate::{
    model::{contract, reply::AttemptFailure, weight},
    runtime::{large_work, ports::AttemptRequest, tally::AnswerForm, token_count::TokenCounter},
    transport::{
        http_agent::request::invalid_input,
        template::{TemplateError, fill_callers_prompt},
    },
};

use super::{
    images,
    settings::{CheckedSettings, StreamUpstream},
};

/// Tokens that a message costs beside its text: role and marks.
pub(super) const MESSAGE_TOKENS: u64 = 4;
/// Tokens that a picture is taken for where the server tells none: models differ, this is of their order.
pub(super) const IMAGE_TOKENS: u64 = 768;

/// A request that is ready to be sent.
#[derive(Debug)]
pub(super) struct ChatRequest {
    pub(super) body: Bytes,
    /// About how many tokens its messages have.
    pub(super) prompt_tokens: u64,
}

/// Whether this attempt asks for a stream. Several answers, probabilities and sound are only ever asked for whole.
pub(in crate::transport) fn wanted(agent: &CheckedSettings, is_watched: bool) -> AnswerForm {
    let extra = &agent.settings.extra;
    let several = extra.get("n").and_then(Value::as_u64).is_some_and(|count| count > 1);
    let whole_only = several || extra.get("logprobs") == Some(&Value::Bool(true)) || extra.contains_key("audio");
    let always = agent.settings.stream_upstream == StreamUpstream::Always && !whole_only;
    if always || is_watched { AnswerForm::Stream } else { AnswerForm::Whole }
}

/// The text of the prompt: the agent's own, unless this attempt brings another one.
pub(in crate::transport) async fn prompt(
    agent: &CheckedSettings,
    attempt: &AttemptRequest,
    input: &Value,
) -> Result<String, TemplateError> {
    match &attempt.prompt {
        None => agent.prompt.fill(input),
        // Somebody else's, whoever it was: it may have been written down by an older version of this program.
        Some(source) => fill_callers_prompt(source, input).await,
    }
}

/// What is said of a prompt that cannot be filled: in which file it stands, unless this attempt brought it along.
pub(in crate::transport) fn unfilled(
    agent: &CheckedSettings,
    attempt: &AttemptRequest,
    error: &TemplateError,
) -> AttemptFailure {
    let file = agent.settings.prompt_file.as_deref().filter(|_| attempt.prompt.is_none());
    let file = file.map(|file| format!(" {file}")).unwrap_or_default();
    invalid_input(format!("the prompt{file} cannot be filled: {error}"))
}

/// The body of the request of this attempt.
pub(super) async fn chat(
    agent: &CheckedSettings,
    attempt: &AttemptRequest,
    wanted: AnswerForm,
) -> Result<ChatRequest, AttemptFailure> {
    let settings = &agent.settings;
    let (input, images) = images::taken_out(&attempt.input);
    let prompt = prompt(agent, attempt, &input).await.map_err(|error| unfilled(agent, attempt, &error))?;
    let mut messages = Vec::new();
    let mut prompt_tokens = 0;
    let parts = [("system", settings.system.as_deref()), ("user", Some(prompt.as_str()))];
    for (role, text) in parts {
        let Some(text) = text else { continue };
        prompt_tokens += TokenCounter::Letters.count(text) + MESSAGE_TOKENS;
        messages.push(json!({ "role": role, "content": text }));
    }
    images::put_beside(&mut messages, &images);
    prompt_tokens += IMAGE_TOKENS * images.len() as u64;
    let mut body = Map::new();
    body.insert("model".to_owned(), Value::from(settings.model.as_str()));
    body.insert("messages".to_owned(), Value::from(messages));
    body.insert("stream".to_owned(), Value::from(wanted == AnswerForm::Stream));
    if wanted == AnswerForm::Stream {
        body.insert("stream_options".to_owned(), json!({ "include_usage": true }));
    }
    let optional = [
        ("max_tokens", settings.max_output_tokens.map(Value::from)),
        ("temperature", settings.temperature.map(Value::from)),
        ("seed", settings.seed.map(Value::from)),
        ("response_format", agent.json_shape().map(|shape| response_format(&shape.schema))),
    ];
    for (key, value) in optional {
        if let Some(value) = value {
            body.insert(key.to_owned(), value);
        }
    }
    body.extend(settings.extra.clone());
    // Pictures go along in it.
    let written = large_work::work(weight::of_fields(&body), move || Ok(Bytes::from(Value::Object(body).to_string())));
    Ok(ChatRequest { body: written.await?, prompt_tokens })
}

fn response_format(schema: &Value) -> Value {
    json!({ "type": "json_schema", "json_schema": { "name": "output", "schema": schema } })
}

/// The headers of the request. Names of tenants and runs are none of a vendor's business.
pub(in crate::transport) fn headers(request: &AttemptRequest, wanted: AnswerForm) -> Result<HeaderMap, AttemptFailure> {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if wanted == AnswerForm::Stream {
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    }
    let known = [
        (contract::TRACEPARENT, request.traceparent.as_deref()),
        (contract::IDEMPOTENCY_KEY, Some(request.idempotency_key.as_str())),
    ];
    for (name, value) in known {
        let Some(text) = value else { continue };
        let value = HeaderValue::from_str(text)
            .map_err(|_| invalid_input(format!("{name} holds characters that no header can")))?;
        headers.insert(HeaderName::from_static(name), value);
    }
    Ok(headers)
}
