//! What Ollama's lines become in OpenAI's shape: chunks of one stream, the last of which says why it ended, and one that tells the usage.

use serde_json::{Map, Value, json};

use crate::{model::reply::Usage, transport::ollama::line::Line};

/// The chunks of one answer.
#[derive(Debug)]
pub(super) struct Chunks {
    id: String,
    created_unix_s: u64,
    model: String,
    begun: bool,
    tool_calls: usize,
}

impl Chunks {
    pub(super) fn new(call_id: &str, created_unix_s: u64, model: &str) -> Self {
        Self { id: format!("chatcmpl-{call_id}"), created_unix_s, model: model.to_owned(), begun: false, tool_calls: 0 }
    }

    /// The chunk of what a line says, if it says anything.
    pub(super) fn said(&mut self, line: &Line) -> Option<Value> {
        if !line.says_something() && line.logprobs.is_none() {
            return None;
        }
        let mut delta = self.delta();
        if !line.thinking.is_empty() {
            delta.insert("reasoning_content".to_owned(), json!(line.thinking));
        }
        if !line.content.is_empty() {
            delta.insert("content".to_owned(), json!(line.content));
        }
        if !line.tool_calls.is_empty() {
            let calls: Vec<Value> = line.tool_calls.iter().map(|call| self.tool_call(call)).collect();
            delta.insert("tool_calls".to_owned(), Value::from(calls));
        }
        let mut choice = Map::from_iter([("index".to_owned(), json!(0)), ("delta".to_owned(), Value::Object(delta))]);
        choice.extend(line.logprobs.as_ref().map(|list| ("logprobs".to_owned(), json!({ "content": list }))));
        choice.insert("finish_reason".to_owned(), Value::Null);
        Some(self.chunk(&json!([choice])))
    }

    /// The chunk that says why the answer ended.
    pub(super) fn finished(&mut self, reason: &str) -> Value {
        let reason = finish_reason(reason, self.tool_calls > 0);
        let delta = self.delta();
        self.chunk(&json!([{ "index": 0, "delta": delta, "finish_reason": reason }]))
    }

    /// The chunk that tells the usage.
    pub(super) fn usage(&self, usage: Usage) -> Value {
        let mut chunk = self.chunk(&json!([]));
        chunk["usage"] = usage_of(usage);
        chunk
    }

    /// An empty delta; the first one names the role.
    fn delta(&mut self) -> Map<String, Value> {
        let mut delta = Map::new();
        if !std::mem::replace(&mut self.begun, true) {
            delta.insert("role".to_owned(), json!("assistant"));
        }
        delta
    }

    fn tool_call(&mut self, call: &crate::transport::ollama::line::ToolCall) -> Value {
        let index = self.tool_calls;
        self.tool_calls += 1;
        let id = call.id.clone().unwrap_or_else(|| format!("call_{}_{index}", self.id));
        let function = json!({ "name": call.name, "arguments": call.arguments.to_string() });
        json!({ "index": index, "id": id, "type": "function", "function": function })
    }

    fn chunk(&self, choices: &Value) -> Value {
        json!({
            "id": self.id, "object": "chat.completion.chunk", "created": self.created_unix_s, "model": self.model,
            "choices": choices,
        })
    }
}

/// A reason in OpenAI's words; those of this server that have none are an ordinary stop.
pub(super) fn finish_reason(reason: &str, with_tool_calls: bool) -> &'static str {
    match reason {
        "length" => "length",
        _ if with_tool_calls => "tool_calls",
        _ => "stop",
    }
}

/// Tokens in OpenAI's words.
pub(super) fn usage_of(usage: Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.prompt_tokens.saturating_add(usage.output_tokens),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Line {
        Line::read(serde_json::from_str(text).unwrap())
    }

    #[test]
    fn lines_become_chunks() {
        let mut chunks = Chunks::new("c", 5, "m");
        let delta = |chunk: Option<Value>| chunk.map(|chunk| chunk["choices"][0]["delta"].clone());
        for (text, want) in [
            (r#"{"message":{"content":""}}"#, None),
            (
                r#"{"message":{"content":"","thinking":"흠"}}"#,
                Some(json!({"role": "assistant", "reasoning_content": "흠"})),
            ),
            (r#"{"message":{"content":"안"}}"#, Some(json!({"content": "안"}))),
            (
                r#"{"message":{"tool_calls":[{"function":{"name":"a","arguments":{"x":1}}},{"id":"t","function":{"name":"b"}}]}}"#,
                Some(json!({"tool_calls": [
                    {"index": 0, "id": "call_chatcmpl-c_0", "type": "function", "function": {"name": "a", "arguments": "{\"x\":1}"}},
                    {"index": 1, "id": "t", "type": "function", "function": {"name": "b", "arguments": "{}"}},
                ]})),
            ),
        ] {
            assert_eq!(delta(chunks.said(&line(text))), want, "{text}");
        }
        let end = chunks.finished("stop");
        assert_eq!(end["choices"], json!([{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]));
        assert_eq!(
            (&end["id"], &end["object"], &end["created"], &end["model"]),
            (&json!("chatcmpl-c"), &json!("chat.completion.chunk"), &json!(5), &json!("m"))
        );
        let told = chunks.usage(Usage { prompt_tokens: 3, output_tokens: 2, estimated: false, ..Usage::default() });
        assert_eq!((&told["choices"], &told["usage"]["total_tokens"]), (&json!([]), &json!(5)));
    }

    #[test]
    fn probabilities_and_reasons() {
        let mut chunks = Chunks::new("c", 5, "m");
        let chunk =
            chunks.said(&line(r#"{"message":{"content":""},"logprobs":[{"token":"a","logprob":-1.5}]}"#)).unwrap();
        assert_eq!(chunk["choices"][0]["logprobs"], json!({"content": [{"token": "a", "logprob": -1.5}]}));
        for (reason, tools, want) in [
            ("stop", false, "stop"),
            ("length", true, "length"),
            ("stop", true, "tool_calls"),
            ("unknown", false, "stop"),
        ] {
            assert_eq!(finish_reason(reason, tools), want);
        }
    }
}
