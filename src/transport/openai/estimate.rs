//! How many tokens a request may need, before it is made: its texts counted with the vocabulary of its model's family, pictures at a flat
//! figure, and the longest answer that it allows. It sends nothing and decides nothing.

use serde_json::{Map, Value};

use crate::{
    model::raw_object::RawObject,
    runtime::{
        ports::{Asked, TokenEstimate},
        relay::RelayKind,
        token_count::{TokenCounter, Vocabulary},
    },
};

use super::{
    images,
    request::{IMAGE_TOKENS, MESSAGE_TOKENS},
    settings::CheckedSettings,
};

/// A body is looked into up to this size; a larger one is pictures for the most part, and a token for this many of its bytes is too
/// many rather than too few.
const BODY_BYTES_MAX: usize = 4 * 1024 * 1024;
const BYTES_PER_TOKEN: u64 = 8;
/// How deep texts are looked for.
const DEPTH_MAX: usize = 32;
/// Tokens that the answer to a prompt is taken for that asks for more than one.
const ANSWERS_MAX: u64 = 128;

/// What an agent's own request may need.
pub(in crate::transport) fn of_asked(
    agent: &CheckedSettings,
    asked: &Asked,
    prompt: Option<&str>,
) -> Option<TokenEstimate> {
    if let Some((kind, body)) = &asked.relay {
        return Some(of_body(*kind, body, &agent.settings.model));
    }
    let (input, pictures) = images::taken_out(&asked.input);
    let text = match prompt {
        // A prompt that cannot be filled is refused where it is made; it needs nothing.
        None => agent.prompt.fill(&input).ok()?,
        // Filling somebody else's takes a thread and a while. It is about what it says and what it can say of its input.
        Some(source) => format!("{source}\n{input}"),
    };
    let mut counting = Counting::default();
    counting.message(&text);
    if let Some(system) = &agent.settings.system {
        counting.message(system);
    }
    if let Some(shape) = agent.json_shape() {
        counting.text(&shape.schema.to_string());
    }
    counting.pictures = pictures.len() as u64;
    let output_max =
        output_max(|name| agent.settings.extra.get(name).and_then(whole), agent.settings.max_output_tokens);
    Some(counting.estimate(&agent.settings.model, output_max))
}

/// The longest answer that a request allows, all of its choices together. Servers differ in which of two bounds they look at, so the larger
/// one counts; `usual` holds where there is none.
fn output_max(number: impl Fn(&str) -> Option<u64>, usual: Option<u64>) -> Option<u64> {
    let told = number("max_completion_tokens").max(number("max_tokens")).or(usual)?;
    let answers = number("n").max(number("best_of")).unwrap_or(1).clamp(1, ANSWERS_MAX);
    Some(told.saturating_mul(answers))
}

/// A number as servers read it: some take `4e3`, `4000.0` and `"4000"` for 4000. What is no amount (a text, less than nothing, which some
/// servers take for no bound at all) bounds nothing.
fn whole(value: &Value) -> Option<u64> {
    let number = match value {
        Value::Number(number) => return number.as_u64().or_else(|| amount(number.as_f64()?)),
        Value::String(text) => text.trim().parse::<f64>().ok()?,
        _ => return None,
    };
    amount(number)
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "not below zero, and saturating beyond")]
fn amount(number: f64) -> Option<u64> {
    (number >= 0.0).then(|| number.ceil() as u64)
}

/// What somebody else's request may need.
fn of_body(kind: RelayKind, body: &RawObject, model: &str) -> TokenEstimate {
    let number = |name: &str| whole(&serde_json::from_str(body.get(name)?).ok()?);
    let output_max = match kind {
        RelayKind::Embeddings => Some(0),
        RelayKind::Chat => output_max(number, None),
    };
    if body.as_str().len() > BODY_BYTES_MAX {
        return TokenEstimate {
            prompt: body.as_str().len() as u64 / BYTES_PER_TOKEN,
            output_max,
            counter: TokenCounter::Letters,
        };
    }
    let read = |name: &str| body.get(name).and_then(|text| serde_json::from_str::<Value>(text).ok());
    let mut counting = Counting::default();
    match kind {
        RelayKind::Embeddings => {
            if let Some(input) = read("input") {
                counting.value(&input, DEPTH_MAX);
            }
        }
        RelayKind::Chat => {
            let messages = read("messages");
            for message in messages.as_ref().and_then(Value::as_array).into_iter().flatten() {
                counting.messages += 1;
                counting.value(message, DEPTH_MAX);
            }
            // What the model reads beside the messages, as it is written.
            for name in ["tools", "functions", "response_format"] {
                counting.text(body.get(name).unwrap_or_default());
            }
        }
    }
    counting.estimate(model, output_max)
}

/// What is found in a request.
#[derive(Debug, Default)]
struct Counting {
    text: String,
    messages: u64,
    pictures: u64,
    /// Tokens that the caller made itself.
    tokens: u64,
}

impl Counting {
    fn message(&mut self, text: &str) {
        self.messages += 1;
        self.text(text);
    }

    fn text(&mut self, text: &str) {
        self.text.push_str(text);
        self.text.push('\n');
    }

    fn value(&mut self, value: &Value, depth: usize) {
        match value {
            Value::String(text) => self.text(text),
            Value::Number(_) => self.tokens += 1,
            Value::Array(items) if depth > 0 => items.iter().for_each(|item| self.value(item, depth - 1)),
            Value::Object(fields) if depth > 0 => self.object(fields, depth - 1),
            _ => {}
        }
    }

    fn object(&mut self, fields: &Map<String, Value>, depth: usize) {
        if ["image_url", "input_audio", "file"].iter().any(|media| fields.contains_key(*media)) {
            self.pictures += 1;
            return;
        }
        for (name, field) in fields {
            if !["role", "type", "tool_call_id", "id"].contains(&name.as_str()) {
                self.value(field, depth);
            }
        }
    }

    fn estimate(self, model: &str, output_max: Option<u64>) -> TokenEstimate {
        let vocabulary = Vocabulary::of_model(model);
        let text = vocabulary.count(self.text.trim_end());
        let beside = self.messages * MESSAGE_TOKENS + self.pictures * IMAGE_TOKENS + self.tokens;
        let counter = TokenCounter::Vocabulary(vocabulary);
        TokenEstimate { prompt: text.saturating_add(beside), output_max, counter }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::transport::openai::settings::OpenAiSettings;

    fn of(kind: RelayKind, body: &Value) -> (u64, Option<u64>) {
        let body = RawObject::try_new(body.to_string().into_bytes()).unwrap();
        let TokenEstimate { prompt, output_max, .. } = of_body(kind, &body, "gpt-4o");
        (prompt, output_max)
    }

    #[test]
    fn what_others_ask_for() {
        let picture = format!("data:image/png;base64,{}", "x".repeat(100_000));
        for (kind, body, want) in [
            (RelayKind::Chat, json!({}), (0, None)),
            (RelayKind::Chat, json!({"messages": [{"role": "user", "content": "hello world"}]}), (2 + 4, None)),
            (
                RelayKind::Chat,
                json!({"messages": [{"role": "user", "content": "hello world"}], "max_tokens": 50, "n": 3}),
                (2 + 4, Some(150)),
            ),
            (RelayKind::Chat, json!({"messages": [], "max_tokens": 50, "max_completion_tokens": 70}), (0, Some(70))),
            (RelayKind::Chat, json!({"messages": [], "max_tokens": 50, "max_completion_tokens": 7}), (0, Some(50))),
            (RelayKind::Chat, json!({"messages": [], "max_tokens": 4_000.0}), (0, Some(4_000))),
            (RelayKind::Chat, json!({"messages": [], "max_tokens": 4e3, "n": 2.0}), (0, Some(8_000))),
            (RelayKind::Chat, json!({"messages": [], "max_tokens": "4000", "best_of": 3}), (0, Some(12_000))),
            (RelayKind::Chat, json!({"messages": [], "max_tokens": 0.5}), (0, Some(1))),
            (RelayKind::Chat, json!({"messages": [], "max_tokens": 1e300}), (0, Some(u64::MAX))),
            (RelayKind::Chat, json!({"messages": [], "max_tokens": -1}), (0, None)),
            (RelayKind::Chat, json!({"messages": [], "max_tokens": null}), (0, None)),
            (RelayKind::Chat, json!({"messages": [], "max_tokens": "NaN"}), (0, None)),
            (
                RelayKind::Chat,
                json!({"messages": [{"role": "user", "content": [
                    {"type": "text", "text": "hello world"}, {"type": "image_url", "image_url": {"url": picture}}
                ]}]}),
                (2 + 4 + 768, None),
            ),
            (RelayKind::Embeddings, json!({"input": ["hello world", "a"]}), (4, Some(0))),
            (RelayKind::Embeddings, json!({"input": [1, 2, 3]}), (3, Some(0))),
        ] {
            assert_eq!(of(kind, &body), want, "{body:.200}");
        }
        let tools = json!({"messages": [], "tools": [{"type": "function", "function": {"name": "look_up"}}]});
        assert!(of(RelayKind::Chat, &tools).0 > 5, "tools are read by the model too");
        let huge = json!({"messages": [{"role": "user", "content": "x".repeat(BODY_BYTES_MAX)}]});
        assert!(of(RelayKind::Chat, &huge).0 > 500_000);
    }

    #[test]
    fn what_an_agent_asks_for() {
        let settings = OpenAiSettings {
            model: "gpt-4o".to_owned(),
            system: Some("hello world".to_owned()),
            prompt: "{{ input.text }}".to_owned(),
            max_output_tokens: Some(200),
            ..OpenAiSettings::default()
        };
        let estimate = |settings: OpenAiSettings, input: Value, prompt: Option<&str>| {
            let agent = CheckedSettings::try_new(settings).unwrap();
            let asked = Asked { input: Arc::new(input), relay: None };
            of_asked(&agent, &asked, prompt).map(|told| (told.prompt, told.output_max))
        };
        let input = json!({"text": "안녕하세요"});
        assert_eq!(estimate(settings.clone(), input.clone(), None), Some((2 + 4 + 3 + 4, Some(200))));
        // Not filled, but its words and its input.
        assert_eq!(estimate(settings.clone(), input.clone(), Some("a")), Some((2 + 4 + 8 + 4, Some(200))));
        let more = OpenAiSettings {
            max_output_tokens: None,
            extra: json!({"max_completion_tokens": 30, "n": 2}).as_object().unwrap().clone(),
            ..settings.clone()
        };
        assert_eq!(estimate(more, input.clone(), None), Some((2 + 4 + 3 + 4, Some(60))));
        let unbounded = OpenAiSettings { max_output_tokens: None, ..settings.clone() };
        assert_eq!(estimate(unbounded, input, None).unwrap().1, None);
        let picture = json!({"text": "a", "photo": {"image_url": "data:image/png;base64,AAAA"}});
        assert!(estimate(settings, picture, None).unwrap().0 >= 768);
    }
}
