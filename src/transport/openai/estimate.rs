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

/// A body is looked into up to this size; of a larger one the letters are counted as they are written.
const BODY_BYTES_MAX: usize = 4 * 1024 * 1024;
/// So many letters of base64 in a row are no text of any language but data (a picture, a sound), of which a token for this many bytes is
/// too many rather than too few.
const DATA_BYTES_MIN: usize = 1_024;
const DATA_BYTES_PER_TOKEN: u64 = 8;
/// What a model reads beside the messages, as it is written, with servers that know it.
const BESIDE_MESSAGES: [&str; 6] =
    ["tools", "functions", "response_format", "prediction", "documents", "chat_template_kwargs"];
/// How deep texts are looked for.
const DEPTH_MAX: usize = 32;

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
    Some(counting.estimate(&agent.settings.model, output_max_of(agent, asked)))
}

/// The names under which servers take the longest answer.
pub(crate) const OUTPUT_BOUNDS: [&str; 3] = ["max_tokens", "max_completion_tokens", "n_predict"];

/// The names under which they take how many answers are made at once.
pub(crate) const ANSWER_COUNTS: [&str; 3] = ["n", "best_of", "n_cmpl"];

/// The longest answer to what an agent is asked, where request or agent say so.
pub(in crate::transport) fn output_max_of(agent: &CheckedSettings, asked: &Asked) -> Option<u64> {
    match &asked.relay {
        Some((kind, body)) => output_max_of_body(*kind, body),
        None => output_max(|name| agent.settings.extra.get(name).and_then(whole), agent.settings.max_output_tokens),
    }
}

fn output_max_of_body(kind: RelayKind, body: &RawObject) -> Option<u64> {
    match kind {
        RelayKind::Embeddings => Some(0),
        RelayKind::Chat => output_max(|name| whole(&serde_json::from_str(body.get(name)?).ok()?), None),
    }
}

/// The longest answer that a request allows, all of its choices together. Servers differ in which of these bounds they look at (llama.cpp
/// takes its own `n_predict` before the others), so the largest one counts; `usual` holds where there is none.
fn output_max(number: impl Fn(&str) -> Option<u64>, usual: Option<u64>) -> Option<u64> {
    let told = OUTPUT_BOUNDS.iter().filter_map(|name| number(name)).max().or(usual)?;
    let answers = ANSWER_COUNTS.iter().filter_map(|name| number(name)).max().unwrap_or(1).max(1);
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
    let output_max = output_max_of_body(kind, body);
    if body.as_str().len() > BODY_BYTES_MAX {
        return TokenEstimate { prompt: as_written(body.as_str()), output_max, counter: TokenCounter::Letters };
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
                counting.message_of(message);
            }
            for name in BESIDE_MESSAGES {
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

    /// A message of a request: pictures are parts of its content, and whatever else stands in it may be read.
    fn message_of(&mut self, message: &Value) {
        let Some(members) = message.as_object() else { return self.value(message, DEPTH_MAX) };
        for (name, member) in members.iter().filter(|(name, _)| is_read(name)) {
            match member {
                Value::Array(parts) if name == "content" => parts.iter().for_each(|part| self.part(part)),
                _ => self.value(member, DEPTH_MAX - 1),
            }
        }
    }

    fn part(&mut self, part: &Value) {
        let Some(members) = part.as_object() else { return self.value(part, DEPTH_MAX - 1) };
        for (name, member) in members.iter().filter(|(name, _)| is_read(name)) {
            if is_media(name, member) {
                self.pictures += 1;
            } else {
                self.value(member, DEPTH_MAX - 2);
            }
        }
    }

    fn object(&mut self, fields: &Map<String, Value>, depth: usize) {
        for (_, field) in fields.iter().filter(|(name, _)| is_read(name)) {
            self.value(field, depth);
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

/// Whether a model reads such a member at all.
fn is_read(name: &str) -> bool {
    !matches!(name, "role" | "type" | "tool_call_id" | "id")
}

/// Whether a member of a part is a picture, a sound or a file, as servers take one. Under the same name a text is a text.
fn is_media(name: &str, member: &Value) -> bool {
    let inside = |wanted: &[&str]| wanted.iter().any(|key| member.get(key).is_some_and(Value::is_string));
    match name {
        "image_url" => {
            let url = member.as_str().or_else(|| member.get("url")?.as_str());
            url.is_some_and(|url| ["data:", "http://", "https://"].iter().any(|scheme| url.starts_with(scheme)))
        }
        "input_audio" => inside(&["data"]),
        "file" => inside(&["file_data", "file_id"]),
        _ => false,
    }
}

/// The tokens of a body by its letters: data by its bytes, everything else as text.
fn as_written(body: &str) -> u64 {
    let is_data = |letter: u8| letter.is_ascii_alphanumeric() || matches!(letter, b'+' | b'/' | b'-' | b'_' | b'=');
    let mut data = 0_u64;
    let mut text = 0_u64;
    let mut rest = body;
    while !rest.is_empty() {
        let run = rest.bytes().take_while(|letter| is_data(*letter)).count();
        let (head, tail) = rest.split_at(run);
        // ... and what is none up to the next one.
        let plain = tail.bytes().take_while(|letter| !is_data(*letter)).count();
        let (plain, after) = tail.split_at(plain);
        if run >= DATA_BYTES_MIN {
            data += run as u64;
        } else {
            text = text.saturating_add(head.len() as u64);
        }
        let others = plain.chars().filter(|letter| !letter.is_ascii()).count() as u64;
        let ascii = plain.bytes().filter(u8::is_ascii).count() as u64;
        text = text.saturating_add(ascii).saturating_add(others * 2);
        rest = after;
    }
    data.div_ceil(DATA_BYTES_PER_TOKEN).saturating_add(text.div_ceil(4))
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
            (RelayKind::Chat, json!({"messages": [], "n_predict": 90}), (0, Some(90))),
            (
                RelayKind::Chat,
                json!({"messages": [], "max_tokens": 1, "n_predict": 90, "n": 2, "n_cmpl": 3}),
                (0, Some(270)),
            ),
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
    fn no_member_hides_what_stands_beside_it() {
        let text = "The tide was out and the boats lay on the sand. ".repeat(1_000);
        let whole = of(RelayKind::Chat, &json!({"messages": [{"role": "user", "content": text}]})).0;
        assert!(whole > 8_000);
        let url = json!({"url": "data:image/png;base64,AAAA"});
        for value in [Value::Null, json!(""), json!({}), json!([]), json!(1), url, json!({"data": "A", "file_id": "f"})]
        {
            for name in ["file", "image_url", "input_audio"] {
                let in_message = json!({"role": "user", "content": text, name: value});
                let in_part = json!({"role": "user", "content": [{"type": "text", "text": text, name: value}]});
                let in_call =
                    json!({"role": "assistant", "tool_calls": [{"function": {"arguments": text, name: value}}]});
                let deeper = json!({"role": "user", "content": [[{"type": "text", "text": text, name: value}]]});
                for message in [in_message, in_part, in_call, deeper] {
                    let counted = of(RelayKind::Chat, &json!({"messages": [message]})).0;
                    assert!(counted >= whole && counted <= whole + 800, "{counted} for {name} = {value}");
                }
            }
        }
        // Nor does a text in the place of a picture hide itself.
        for part in [
            json!({"type": "text", "image_url": text}),
            json!({"image_url": {"url": text}}),
            json!({"file": text}),
            json!({"file": {"text": text}}),
            json!({"input_audio": [text]}),
        ] {
            let counted = of(RelayKind::Chat, &json!({"messages": [{"role": "user", "content": [part]}]})).0;
            assert!(counted >= whole, "{counted} for {part:.40}");
        }
        for name in BESIDE_MESSAGES {
            let counted = of(RelayKind::Chat, &json!({"messages": [], name: [{"text": text}]})).0;
            assert!(counted + 4 >= whole, "{counted} for {name}");
        }
    }

    #[test]
    fn media_are_pictures() {
        for part in [
            json!({"type": "image_url", "image_url": {"url": "https://x/y.png", "detail": "low"}}),
            json!({"type": "image_url", "image_url": "data:image/png;base64,AAAA"}),
            json!({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}),
            json!({"type": "file", "file": {"file_data": "data:application/pdf;base64,AAAA", "filename": "a.pdf"}}),
            json!({"type": "file", "file": {"file_id": "file-1"}}),
        ] {
            let counted = of(RelayKind::Chat, &json!({"messages": [{"role": "user", "content": [part]}]})).0;
            assert_eq!(counted, 4 + IMAGE_TOKENS, "{part}");
        }
    }

    #[test]
    fn a_large_body_is_counted_by_its_letters() {
        let mebibytes = |text: &str, count: usize| text.repeat(count * 1024 * 1024 / text.len());
        for (text, bytes_per_token_min, bytes_per_token_max) in [
            ("The tide was out and the boats lay on the sand. ", 4, 4),
            ("썰물이 빠지자 배들은 모래 위에 누워 물이 다시 들어오기를 기다렸다. ", 5, 6),
            ("iVBORw0KGgoAAAANSUhEUgAA", 7, 8),
        ] {
            let body = json!({"messages": [{"role": "user", "content": mebibytes(text, 6)}]});
            let bytes = body.to_string().len() as u64;
            let counted = of(RelayKind::Chat, &body).0;
            let range = bytes / (bytes_per_token_max + 1)..=bytes / bytes_per_token_min + 16;
            assert!(range.contains(&counted), "{counted} of {bytes}: {text:.10}");
        }
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
