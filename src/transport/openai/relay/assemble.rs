//! Puts a plain answer together from a stream: for callers that want it whole, of servers that only stop at once for a stream.
//! Texts grow, parts of tool calls find each other by their place, and what a server adds of its own is kept.

use serde_json::{Map, Value, json};

/// A plain answer that is growing.
#[derive(Debug, Default)]
pub(super) struct Assembly {
    answer: Map<String, Value>,
    choices: Vec<Map<String, Value>>,
    usage: Option<Value>,
}

impl Assembly {
    /// Takes the next frame.
    pub(super) fn take(&mut self, frame: Value) {
        let Value::Object(frame) = frame else { return };
        for (key, value) in frame {
            match (key.as_str(), value) {
                (_, Value::Null) => {}
                ("choices", Value::Array(choices)) => choices.into_iter().for_each(|choice| self.take_choice(choice)),
                ("usage", usage) => self.usage = Some(usage),
                ("object", _) => {}
                (_, value) => {
                    self.answer.insert(key, value);
                }
            }
        }
    }

    /// The answer.
    pub(super) fn finish(self) -> Value {
        let Self { mut answer, choices, usage } = self;
        let mut whole = Map::new();
        for key in ["id", "created", "model"] {
            whole.extend(answer.remove(key).map(|value| (key.to_owned(), value)));
            if key == "id" {
                whole.insert("object".to_owned(), json!("chat.completion"));
            }
        }
        whole.insert("choices".to_owned(), choices.into_iter().map(finished_choice).collect());
        whole.extend(usage.map(|usage| ("usage".to_owned(), usage)));
        whole.extend(answer);
        Value::Object(whole)
    }

    fn take_choice(&mut self, choice: Value) {
        let Value::Object(choice) = choice else { return };
        let index = choice.get("index").and_then(Value::as_u64).unwrap_or(0);
        let known = self.choices.iter().position(|known| known.get("index").and_then(Value::as_u64) == Some(index));
        let place = known.unwrap_or_else(|| {
            self.choices.push(Map::from_iter([("index".to_owned(), json!(index)), ("message".to_owned(), json!({}))]));
            self.choices.len() - 1
        });
        let Some(grown) = self.choices.get_mut(place) else { return };
        for (key, value) in choice {
            match (key.as_str(), value) {
                ("index", _) | (_, Value::Null) => {}
                ("delta", Value::Object(delta)) => {
                    if let Some(Value::Object(message)) = grown.get_mut("message") {
                        grow(message, delta);
                    }
                }
                // Lists of tokens grow, whatever they are called.
                ("logprobs", Value::Object(more)) => match grown.entry("logprobs").or_insert_with(|| json!({})) {
                    Value::Object(known) => extend_lists(known, more),
                    other => *other = Value::Object(more),
                },
                (_, value) => {
                    grown.insert(key, value);
                }
            }
        }
    }
}

fn finished_choice(mut choice: Map<String, Value>) -> Value {
    if let Some(Value::Object(message)) = choice.get_mut("message") {
        message.entry("role").or_insert_with(|| json!("assistant"));
        message.entry("content").or_insert(Value::Null);
    }
    choice.entry("finish_reason").or_insert(Value::Null);
    Value::Object(choice)
}

/// Lays a delta over what is there: texts are joined, lists of numbered parts merged, objects grown, the rest replaced.
fn grow(known: &mut Map<String, Value>, delta: Map<String, Value>) {
    for (key, more) in delta {
        let fixed = matches!(key.as_str(), "role" | "id" | "type" | "index" | "name");
        match (known.get_mut(&key), more) {
            (_, Value::Null) => {}
            (Some(Value::String(text)), Value::String(piece)) if !fixed => text.push_str(&piece),
            (Some(Value::String(text)), Value::String(piece)) if !piece.is_empty() => *text = piece,
            (Some(Value::String(_)), Value::String(_)) => {}
            (Some(Value::Array(parts)), Value::Array(pieces)) => grow_list(parts, pieces),
            (Some(Value::Object(inner)), Value::Object(piece)) => grow(inner, piece),
            (None, Value::Array(pieces)) => {
                let mut parts = Vec::new();
                grow_list(&mut parts, pieces);
                known.insert(key, Value::Array(parts));
            }
            (_, more) => {
                known.insert(key, more);
            }
        }
    }
}

/// Parts that are numbered grow at their place; others are new ones.
fn grow_list(parts: &mut Vec<Value>, pieces: Vec<Value>) {
    for piece in pieces {
        let place = |value: &Value| value.get("index").and_then(Value::as_u64);
        let known = place(&piece).and_then(|index| parts.iter_mut().find(|part| place(part) == Some(index)));
        match (known, piece) {
            (Some(Value::Object(part)), Value::Object(piece)) => grow(part, piece),
            (_, piece) => parts.push(piece),
        }
    }
}

fn extend_lists(known: &mut Map<String, Value>, more: Map<String, Value>) {
    for (key, value) in more {
        match (known.get_mut(&key), value) {
            (Some(Value::Array(items)), Value::Array(new)) => items.extend(new),
            (_, Value::Null) => {}
            (_, value) => {
                known.insert(key, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assembled(frames: &[Value]) -> Value {
        let mut assembly = Assembly::default();
        frames.iter().cloned().for_each(|frame| assembly.take(frame));
        assembly.finish()
    }

    #[test]
    fn a_whole_answer_of_its_pieces() {
        let frame = |delta: Value, reason: Value| {
            json!({"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "usage": null,
                "choices": [{"index": 0, "delta": delta, "finish_reason": reason, "logprobs": {"content": [delta]}}]})
        };
        let call = |index: u64, more: Value| {
            let mut part = json!({"index": index});
            part.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            json!({"tool_calls": [part]})
        };
        let deltas = [
            json!({"role": "assistant", "content": ""}),
            json!({"reasoning_content": "흠"}),
            json!({"reasoning_content": "."}),
            json!({"content": "안"}),
            json!({"content": "녕", "refusal": null}),
            call(0, json!({"id": "t0", "type": "function", "function": {"name": "look", "arguments": ""}})),
            call(0, json!({"function": {"arguments": "{\"a\""}})),
            call(1, json!({"id": "t1", "type": "function", "function": {"name": "go", "arguments": "{}"}})),
            call(0, json!({"function": {"arguments": ":1}"}})),
        ];
        let mut frames: Vec<Value> = deltas.iter().map(|delta| frame(delta.clone(), Value::Null)).collect();
        frames.push(frame(json!({}), json!("tool_calls")));
        frames.push(json!({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 9}, "timings": {"x": 1}}));
        let mut tokens: Vec<Value> = deltas.to_vec();
        tokens.push(json!({}));
        let want = json!({
            "id": "c1", "object": "chat.completion", "created": 1, "model": "m",
            "choices": [{
                "index": 0,
                "message": {
                    "role": "assistant", "content": "안녕", "reasoning_content": "흠.",
                    "tool_calls": [
                        {"index": 0, "id": "t0", "type": "function", "function": {"name": "look", "arguments": "{\"a\":1}"}},
                        {"index": 1, "id": "t1", "type": "function", "function": {"name": "go", "arguments": "{}"}},
                    ],
                },
                "logprobs": {"content": tokens},
                "finish_reason": "tool_calls",
            }],
            "usage": {"prompt_tokens": 3, "completion_tokens": 9},
            "timings": {"x": 1},
        });
        assert_eq!(assembled(&frames), want);
    }

    #[test]
    fn several_answers_and_refusals() {
        let frames = [
            json!({"choices": [{"index": 1, "delta": {"content": "b"}}]}),
            json!({"choices": [{"index": 0, "delta": {"refusal": "no"}}, {"index": 1, "delta": {"content": "c"}, "finish_reason": "stop"}]}),
            json!({"choices": [{"index": 0, "delta": {"refusal": " way"}, "finish_reason": "stop"}]}),
            json!([]),
        ];
        let answer = assembled(&frames);
        let choices = answer["choices"].as_array().unwrap();
        assert_eq!(choices[0]["message"]["content"], "bc");
        assert_eq!(
            (&choices[1]["message"]["refusal"], &choices[1]["message"]["content"]),
            (&json!("no way"), &Value::Null)
        );
        assert_eq!(assembled(&[])["choices"], json!([]));
    }
}
