//! Puts a plain answer together from a stream: for callers that want it whole, of servers that only stop at once for a stream.
//! Texts grow, parts of tool calls find each other by their place, and what a server adds of its own is kept, all as it was written.

use serde_json::Error;

use super::grown::{Grown, Members, Part};
use crate::model::written_json::members_of;

/// What stands first in an answer, in this order.
const HEAD: [&str; 3] = ["id", "created", "model"];

/// A plain answer that is growing.
#[derive(Debug, Default)]
pub(super) struct Assembly {
    answer: Members,
    choices: Vec<Choice>,
}

/// One of its choices.
#[derive(Debug)]
struct Choice {
    index: u64,
    message: Members,
    beside: Members,
}

impl Assembly {
    /// Takes the next frame.
    pub(super) fn take(&mut self, frame: &str) -> Result<(), Error> {
        for (key, value) in members_of(frame)? {
            match (key.as_str(), Part::of(value)) {
                (_, Part::Null) | ("object", _) => {}
                ("choices", Part::List(choices)) => choices.into_iter().for_each(|choice| self.take_choice(choice)),
                _ => self.answer.put(key, Grown::written(value)),
            }
        }
        Ok(())
    }

    /// The answer; `None` where no frame held one.
    pub(super) fn finish(self) -> Option<String> {
        let Self { answer, choices } = self;
        if choices.is_empty() {
            return None;
        }
        let mut out = "{".to_owned();
        answer.write(&mut out, |key| key == "id");
        out.push_str(if out.len() > 1 { "," } else { "" });
        out.push_str("\"object\":\"chat.completion\"");
        answer.write(&mut out, |key| key == "created");
        answer.write(&mut out, |key| key == "model");
        out.push_str(",\"choices\":[");
        for (place, choice) in choices.into_iter().enumerate() {
            out.push_str(if place > 0 { "," } else { "" });
            choice.write(&mut out);
        }
        out.push(']');
        answer.write(&mut out, |key| key == "usage");
        answer.write(&mut out, |key| key != "usage" && !HEAD.contains(&key));
        out.push('}');
        Some(out)
    }

    fn take_choice(&mut self, choice: &str) {
        let Part::Object(members) = Part::of(choice) else { return };
        let index = members.iter().find(|(key, _)| key == "index").and_then(|(_, index)| index.parse().ok());
        let index = index.unwrap_or(0);
        let known = self.choices.iter().position(|known| known.index == index);
        let place = known.unwrap_or_else(|| {
            self.choices.push(Choice { index, message: Members::default(), beside: Members::default() });
            self.choices.len() - 1
        });
        if let Some(grown) = self.choices.get_mut(place) {
            grown.take(members);
        }
    }
}

impl Choice {
    fn take(&mut self, members: Vec<(String, &str)>) {
        for (key, value) in members {
            match (key.as_str(), Part::of(value)) {
                ("index", _) | (_, Part::Null) => {}
                ("message", Part::Object(message)) => {
                    self.message = Members::default();
                    self.message.grow(message);
                }
                ("message", _) => {}
                ("delta", Part::Object(delta)) => self.message.grow(delta),
                // Lists of tokens grow, whatever they are called.
                ("logprobs", Part::Object(more)) => match self.beside.get_mut("logprobs").map(Grown::open) {
                    Some(Grown::Object(known)) => known.extend_lists(more),
                    _ => self.beside.put(key, Grown::written(value)),
                },
                _ => self.beside.put(key, Grown::written(value)),
            }
        }
    }

    fn write(self, out: &mut String) {
        let Self { index, mut message, mut beside } = self;
        message.put_if_missing("role", "\"assistant\"");
        message.put_if_missing("content", "null");
        beside.put_if_missing("finish_reason", "null");
        out.push_str("{\"index\":");
        out.push_str(&index.to_string());
        out.push_str(",\"message\":");
        Grown::Object(message).write(out);
        beside.write(out, |_| true);
        out.push('}');
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn assembled(frames: &[Value]) -> Option<Value> {
        let mut assembly = Assembly::default();
        for frame in frames {
            assembly.take(&frame.to_string()).unwrap();
        }
        assembly.finish().map(|answer| serde_json::from_str(&answer).unwrap())
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
        assert_eq!(assembled(&frames), Some(want));
    }

    #[test]
    fn several_answers_and_refusals() {
        let frames = [
            json!({"choices": [{"index": 1, "delta": {"content": "b"}}]}),
            json!({"choices": [{"index": 0, "delta": {"refusal": "no"}}, {"index": 1, "delta": {"content": "c"}, "finish_reason": "stop"}]}),
            json!({"choices": [{"index": 0, "delta": {"refusal": " way"}, "finish_reason": "stop"}]}),
            json!([]),
        ];
        let answer = assembled(&frames).unwrap();
        let choices = answer["choices"].as_array().unwrap();
        assert_eq!(choices[0]["message"]["content"], "bc");
        assert_eq!(
            (&choices[1]["message"]["refusal"], &choices[1]["message"]["content"]),
            (&json!("no way"), &Value::Null)
        );
        assert_eq!((assembled(&[]), assembled(&[json!({"choices": []})])), (None, None));
    }

    /// What no value can hold goes on all the same, and as it was written.
    #[test]
    fn what_the_model_wrote_is_not_written_anew() {
        let frames = [
            r#"{"id":"c","choices":[{"index":0,"delta":{"content":"a\ud83d"},"logprobs":{"content":[{"logprob":-1e999}]}}],"x":12345678901234567890123}"#,
            r#"{"id":"c","choices":[{"index":0,"delta":{"content":"\ude00"},"logprobs":{"content":[-0]}}]}"#,
            r#"{"choices":[{"index":0,"delta":{"content":"\ud83d"},"finish_reason":"stop"}]}"#,
        ];
        let mut assembly = Assembly::default();
        for frame in frames {
            assembly.take(frame).unwrap();
        }
        let want = r#"{"id":"c","object":"chat.completion","choices":[{"index":0,"message":{"content":"a\ud83d\ude00\ud83d","role":"assistant"},"logprobs":{"content":[{"logprob":-1e999},-0]},"finish_reason":"stop"}],"x":12345678901234567890123}"#;
        assert_eq!(assembly.finish().as_deref(), Some(want));
        assert!(Assembly::default().take("{").is_err());
    }
}
