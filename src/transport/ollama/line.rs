//! What one line of `/api/chat` says: text, thought, tool calls, and on the last one why the model stopped and what it used. Reads
//! what is there and invents nothing; errors inside a line are told apart before.

use std::time::Duration;

use serde_json::Value;

use crate::{
    model::reply::Usage,
    runtime::tally::Tally,
    transport::{
        ndjson::JsonObject,
        openai::completion::FINISH_UNKNOWN,
        usage::{Known, tokens},
    },
};

/// One line.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Line {
    /// A piece of the answer; empty where the line brings none.
    pub content: String,
    /// A piece of what the model thought before; empty where the line brings none.
    pub thinking: String,
    /// Whole tool calls.
    pub tool_calls: Vec<ToolCall>,
    /// Probabilities of this line's tokens, as they came.
    pub logprobs: Option<Vec<Value>>,
    /// On the last line: why the model stopped; [`FINISH_UNKNOWN`] where it did not say.
    pub done: Option<String>,
    /// Tokens of the prompt, if told. A prompt that was still in the cache can be left out.
    pub prompt_tokens: Option<u64>,
    /// Tokens of the answer, if told.
    pub output_tokens: Option<u64>,
    /// On the last line: how long the model was loaded for this request.
    pub load_time: Duration,
}

/// A call of a tool that the model asks for. It comes whole, never in parts.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolCall {
    /// Its id; older servers give none.
    pub id: Option<String>,
    /// The tool.
    pub name: String,
    /// Its arguments, an object.
    pub arguments: Value,
}

impl Line {
    /// Reads a line that holds no error.
    pub fn read(mut object: JsonObject) -> Self {
        let done = object.get("done").and_then(Value::as_bool) == Some(true);
        let reason = object.get("done_reason").and_then(Value::as_str).filter(|reason| !reason.is_empty());
        let reason = done.then(|| reason.unwrap_or(FINISH_UNKNOWN).to_owned());
        let count = |key: &str| object.get(key).and_then(Value::as_u64);
        let used = |key: &str| object.get(key).and_then(tokens);
        let (prompt_tokens, output_tokens) = (used("prompt_eval_count"), used("eval_count"));
        let load_time = Duration::from_nanos(count("load_duration").unwrap_or(0));
        let logprobs = match object.remove("logprobs") {
            Some(Value::Array(list)) if !list.is_empty() => Some(list),
            _ => None,
        };
        let mut message = match object.remove("message") {
            Some(Value::Object(message)) => message,
            _ => JsonObject::new(),
        };
        let mut text = |key: &str| match message.remove(key) {
            Some(Value::String(text)) => text,
            _ => String::new(),
        };
        let (content, thinking) = (text("content"), text("thinking"));
        let tool_calls = match message.remove("tool_calls") {
            Some(Value::Array(calls)) => calls.iter().filter_map(tool_call).collect(),
            _ => Vec::new(),
        };
        Self { content, thinking, tool_calls, logprobs, done: reason, prompt_tokens, output_tokens, load_time }
    }

    /// Lets a tally hear what the model put out in it.
    pub fn heard_by(&self, tally: &Tally) {
        tally.heard(&self.content);
        tally.heard(&self.thinking);
        for call in &self.tool_calls {
            tally.heard(&call.name);
            tally.heard(&call.arguments.to_string());
        }
    }

    /// Whether the model put something out in it.
    pub fn says_something(&self) -> bool {
        !self.content.is_empty() || !self.thinking.is_empty() || !self.tool_calls.is_empty()
    }
}

fn tool_call(call: &Value) -> Option<ToolCall> {
    let id = call.get("id").and_then(Value::as_str).filter(|id| !id.is_empty()).map(str::to_owned);
    let function = call.get("function")?;
    let name = function.get("name").and_then(Value::as_str)?.to_owned();
    let arguments = function.get("arguments").cloned().unwrap_or_else(|| Value::Object(JsonObject::new()));
    Some(ToolCall { id, name, arguments })
}

/// What an exchange used: as told, and what was not told counted by us and marked. The counts of a line stand on the last one only.
pub fn usage(prompt_told: Option<u64>, output_told: Option<u64>, tally: &Tally, (prompt, pieces): (u64, u64)) -> Usage {
    let told = Usage {
        prompt_tokens: prompt_told.unwrap_or_default(),
        output_tokens: output_told.unwrap_or_default(),
        ..Usage::default()
    };
    Known { told: Some(told), total: None, pieces, pieces_told: pieces }.usage(tally, || prompt)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn line(text: &str) -> Line {
        Line::read(serde_json::from_str(text).unwrap())
    }

    #[test]
    fn lines() {
        let says = |content: &str| Line { content: content.to_owned(), ..Line::default() };
        let call = ToolCall { id: None, name: "look".to_owned(), arguments: json!({"at": [1, 2]}) };
        for (text, want) in [
            (r#"{"message":{"role":"assistant","content":"초"},"done":false}"#, says("초")),
            (r#"{"message":{"content":""},"done":false}"#, Line::default()),
            (r#"{"message":{"content":null,"thinking":"흠"}}"#, Line { thinking: "흠".to_owned(), ..Line::default() }),
            (
                r#"{"message":{"content":"","tool_calls":[{"function":{"name":"look","arguments":{"at":[1,2]}}},{"x":1}]}}"#,
                Line { tool_calls: vec![call], ..Line::default() },
            ),
            (
                r#"{"message":{"content":"끝"},"done":true,"done_reason":"length","prompt_eval_count":26,"eval_count":3,"load_duration":45000000000,"context":[1]}"#,
                Line {
                    done: Some("length".to_owned()),
                    prompt_tokens: Some(26),
                    output_tokens: Some(3),
                    load_time: Duration::from_secs(45),
                    ..says("끝")
                },
            ),
            (r#"{"done":true}"#, Line { done: Some(FINISH_UNKNOWN.to_owned()), ..Line::default() }),
            (r#"{"done":"true","done_reason":"stop"}"#, Line::default()),
            (r#"{"message":"text","done":false,"eval_count":-1}"#, Line::default()),
        ] {
            let got = line(text);
            let says_something = !got.content.is_empty() || !got.thinking.is_empty() || !got.tool_calls.is_empty();
            assert_eq!((got.says_something(), &got), (says_something, &want), "{text}");
        }
    }

    #[test]
    fn a_side_that_was_not_told_is_counted_and_marked() {
        for (prompt, output, want) in [
            (Some(26), Some(3), (26, 3, false)),
            (None, Some(3), (7, 3, true)),
            (Some(26), None, (26, 2, true)),
            (None, None, (7, 2, true)),
            (Some(0), Some(3), (7, 3, true)),
        ] {
            let got = usage(prompt, output, &Tally::default(), (7, 2));
            assert_eq!((got.prompt_tokens, got.output_tokens, got.estimated), want);
        }
    }

    proptest! {
        #[test]
        fn no_object_panics(text in r#"\{"(message|done|tool_calls|logprobs)":(null|1|\[\]|\{"tool_calls":(\[1\]|\[\{"function":[0-9]\}\]),"content":[0-9]\})\}"#) {
            if let Ok(object) = serde_json::from_str(&text) {
                let _ = Line::read(object);
            }
        }
    }
}
