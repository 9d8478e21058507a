//! A request in OpenAI's shape as Ollama's `/api/chat` takes it. The model, its context and its stay are the agent's; what the caller
//! asks for and this server cannot do is refused, unless nobody could tell the difference.

use bytes::Bytes;
use serde_json::{Map, Value, json};

use crate::{
    model::{raw_object::RawObject, reply::AttemptFailure},
    runtime::tally::AnswerForm,
    transport::{
        http_agent::request::invalid_input,
        ollama::{
            fit::Prompt,
            request::{Body, nothing_asked},
            settings::CheckedOllama,
        },
    },
};

use super::messages::{asks_something, messages};

/// Of sampling, by the same name on both sides.
const SAME_OPTIONS: [&str; 9] = [
    "temperature",
    "top_p",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "top_k",
    "min_p",
    "typical_p",
    "repeat_penalty",
];

/// A request that is ready to be sent.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) body: Bytes,
    /// About how many tokens its messages have.
    pub(super) prompt_tokens: u64,
}

/// The request, refused where it asks nothing, cannot be asked here, or does not fit.
pub(super) async fn chat(agent: &CheckedOllama, body: &RawObject, wanted: AnswerForm) -> Result<Asked, AttemptFailure> {
    let asked = Members(body);
    let messages = messages(&asked.get("messages")?.unwrap_or(Value::Null)).map_err(invalid_input)?;
    if !asks_something(&messages) {
        return Err(nothing_asked());
    }
    if asked.get("n")?.is_some_and(|count| count != 1) {
        return Err(invalid_input("n: this server gives one answer a request".to_owned()));
    }
    let output_cap = asked.output_cap()?.or(agent.asked.settings.max_output_tokens);
    let tools = asked.tools()?;
    let format = asked.format()?;
    let prompt = Prompt::of_chat(&messages, tools.as_ref());
    let prompt_tokens = prompt.fit(agent.model(), output_cap, agent.num_ctx).await?;
    let options = asked.options()?;
    let mut fields = Body { messages, format, options, output_cap, wanted }.fields(agent);
    fields.extend(tools.map(|tools| ("tools".to_owned(), tools)));
    fields.extend(asked.think()?.map(|think| ("think".to_owned(), think)));
    for key in ["logprobs", "top_logprobs"] {
        fields.extend(asked.get(key)?.map(|value| (key.to_owned(), value)));
    }
    Ok(Asked { body: Bytes::from(Value::Object(fields).to_string()), prompt_tokens })
}

/// The members of a request.
struct Members<'a>(&'a RawObject);

impl Members<'_> {
    /// A member's value; null is none.
    fn get(&self, key: &str) -> Result<Option<Value>, AttemptFailure> {
        let Some(text) = self.0.get(key) else { return Ok(None) };
        let value: Value = serde_json::from_str(text).map_err(|error| invalid_input(format!("{key}: {error}")))?;
        Ok((!value.is_null()).then_some(value))
    }

    fn output_cap(&self) -> Result<Option<u64>, AttemptFailure> {
        for key in ["max_completion_tokens", "max_tokens"] {
            let Some(value) = self.get(key)? else { continue };
            let tokens = value.as_u64().filter(|tokens| *tokens > 0);
            return tokens.map(Some).ok_or_else(|| invalid_input(format!("{key}: must be a whole number over 0")));
        }
        Ok(None)
    }

    fn options(&self) -> Result<Map<String, Value>, AttemptFailure> {
        let mut options = Map::new();
        for key in SAME_OPTIONS {
            let Some(value) = self.get(key)? else { continue };
            if !value.is_number() {
                return Err(invalid_input(format!("{key}: must be a number")));
            }
            options.insert(key.to_owned(), value);
        }
        match self.get("stop")? {
            None => {}
            Some(Value::String(text)) => _ = options.insert("stop".to_owned(), json!([text])),
            Some(list) if list.as_array().is_some_and(|list| list.iter().all(Value::is_string)) => {
                options.insert("stop".to_owned(), list);
            }
            Some(_) => return Err(invalid_input("stop: must be a text or a list of texts".to_owned())),
        }
        Ok(options)
    }

    /// The tools as they came. A tool that is named by `tool_choice` is the only one offered; that one is called at all cannot be asked
    /// of this server.
    fn tools(&self) -> Result<Option<Value>, AttemptFailure> {
        let Some(tools) = self.get("tools")? else { return Ok(None) };
        let Some(list) = tools.as_array() else { return Err(invalid_input("tools: must be a list".to_owned())) };
        match self.get("tool_choice")? {
            Some(Value::String(choice)) if choice == "none" => Ok(None),
            Some(choice) if choice.is_object() => {
                let name = choice.pointer("/function/name");
                let named: Vec<&Value> = list.iter().filter(|tool| tool.pointer("/function/name") == name).collect();
                if named.is_empty() {
                    return Err(invalid_input("tool_choice: names none of the tools".to_owned()));
                }
                Ok(Some(json!(named)))
            }
            _ if list.is_empty() => Ok(None),
            _ => Ok(Some(tools)),
        }
    }

    fn format(&self) -> Result<Option<Value>, AttemptFailure> {
        let Some(format) = self.get("response_format")? else { return Ok(None) };
        match format.get("type").and_then(Value::as_str) {
            Some("text") => Ok(None),
            Some("json_object") => Ok(Some(json!("json"))),
            Some("json_schema") => {
                let schema = format.pointer("/json_schema/schema").filter(|schema| schema.is_object()).cloned();
                let missing = || invalid_input("response_format.json_schema.schema: must be an object".to_owned());
                schema.map(Some).ok_or_else(missing)
            }
            _ => Err(invalid_input("response_format.type: must be text, json_object or json_schema".to_owned())),
        }
    }

    /// How much the model thinks first; models that cannot think refuse everything but none.
    fn think(&self) -> Result<Option<Value>, AttemptFailure> {
        let Some(effort) = self.get("reasoning_effort")? else { return Ok(None) };
        match effort.as_str() {
            Some("none") => Ok(Some(json!(false))),
            Some("minimal" | "low") => Ok(Some(json!("low"))),
            Some("medium") => Ok(Some(json!("medium"))),
            Some("high" | "xhigh") => Ok(Some(json!("high"))),
            _ => Err(invalid_input("reasoning_effort: must be none, minimal, low, medium, high or xhigh".to_owned())),
        }
    }
}

#[cfg(test)]
mod tests;
