//! An exchange as it is kept: what was sent, what came back, without secrets, without pictures, bounded. Done once, at the end, and only
//! for exchanges that are kept.

use serde_json::{Map, Value, json};

use super::{
    data_url,
    hiding::{Hiding, header_lines, readable, url_text},
    ndjson::NdjsonDecoder,
    recording::{Recording, Sent},
    sse::SseDecoder,
};
use crate::{
    model::loose_json::LooseFrames,
    runtime::capture::{Recorded, Said},
};

/// So much of an answer is heard while it may be kept: about ten thousand frames of one token each.
pub(super) const HEARD_BYTES_MAX: usize = 2 * 1024 * 1024;
/// So much of an answer is kept as it came.
pub(super) const KEPT_ANSWER_BYTES_MAX: usize = 256 * 1024;
/// So much of what was sent is kept, pictures left out.
pub(super) const KEPT_PROMPT_BYTES_MAX: usize = 1024 * 1024;

impl Recorded for Recording {
    fn bytes(&self) -> usize {
        self.sent().body.len() + self.heard().body.len()
    }

    fn said(&self) -> Said {
        let hiding = self.sent().hiding();
        let prompt = prompt(self.sent(), &hiding);
        let heard = self.heard();
        let Some(head) = &heard.head else {
            // Why there is no answer is told by how it was read.
            return Said { prompt, answer: None, text: None };
        };
        let mut answer = hiding.hide(&lossy(&heard.body));
        if heard.is_cut {
            hiding.hide_begun(&mut answer);
        }
        let answer = bounded(data_url::shorten(&answer), KEPT_ANSWER_BYTES_MAX, heard.is_cut);
        let is_of = |kind: &str| {
            head.headers.get("content-type").is_some_and(|told| told.as_bytes().starts_with(kind.as_bytes()))
        };
        let text = if is_of("text/event-stream") {
            Some(stream_text(&heard.body))
        } else {
            is_of("application/x-ndjson").then(|| lines_text(&heard.body))
        };
        let text =
            text.map(|text| bounded(data_url::shorten(&hiding.hide(&text)), KEPT_ANSWER_BYTES_MAX, heard.is_cut));
        Said { prompt, answer: Some(answer), text }
    }

    fn redact(&self, value: Value) -> Value {
        hidden(value, &self.sent().hiding())
    }
}

/// The request with its body as it was sent.
fn prompt(sent: &Sent, hiding: &Hiding) -> Value {
    let body = match serde_json::from_slice::<Value>(&sent.body) {
        Ok(body) => hidden(body, hiding),
        Err(_) => Value::from(data_url::shorten(&hiding.hide(&readable(&sent.body)))),
    };
    let is_too_long = body.to_string().len() > KEPT_PROMPT_BYTES_MAX;
    let body = if is_too_long { Value::from(bounded(body.to_string(), KEPT_PROMPT_BYTES_MAX, false)) } else { body };
    let headers: Map<String, Value> = header_lines(&sent.headers)
        .lines()
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_owned(), Value::from(hiding.hide(value))))
        .collect();
    json!({ "method": sent.method.as_str(), "url": hiding.hide(&url_text(&sent.url)), "headers": headers, "body": body })
}

/// A value whose texts, and names, hold nothing secret and no pictures.
fn hidden(value: Value, hiding: &Hiding) -> Value {
    match value {
        Value::String(text) => Value::from(data_url::shorten(&hiding.hide(&text))),
        Value::Array(items) => items.into_iter().map(|item| hidden(item, hiding)).collect(),
        Value::Object(members) => {
            let members = members.into_iter().map(|(name, value)| (hiding.hide(&name), hidden(value, hiding)));
            Value::Object(members.collect())
        }
        value => value,
    }
}

/// Control characters stay: this is kept as JSON, and shown by whoever knows how.
fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The text that the frames of a stream bring: of `http` agents (`delta`), of OpenAI's shape and of Anthropic's. A stream of another kind
/// brings none; its frames are kept all the same.
fn stream_text(body: &[u8]) -> String {
    let (mut decoder, mut frames, mut text) = (SseDecoder::new(), LooseFrames::default(), String::new());
    decoder.push(body);
    while let Ok(Some(event)) = decoder.pop() {
        let Ok(frame) = frames.read(event.data.as_bytes()) else { continue };
        let pieces = ["/delta", "/choices/0/delta/content", "/choices/0/text", "/delta/text"];
        if let Some(piece) = pieces.iter().find_map(|place| frame.pointer(place).and_then(Value::as_str)) {
            text.push_str(piece);
        }
    }
    text
}

/// The text that lines of Ollama's bring.
fn lines_text(body: &[u8]) -> String {
    let (mut decoder, mut text) = (NdjsonDecoder::new(), String::new());
    decoder.push(body);
    while let Ok(Some(line)) = decoder.pop() {
        let content = line.get("message").and_then(|message| message.get("content")).and_then(Value::as_str);
        text.push_str(content.unwrap_or_default());
    }
    text
}

fn bounded(mut text: String, bytes_max: usize, is_cut: bool) -> String {
    let is_too_long = text.len() > bytes_max;
    if is_too_long {
        text.truncate(text.floor_char_boundary(bytes_max));
    }
    if is_cut || is_too_long {
        text.push_str("\n(cut: not all of it is kept)");
    }
    text
}

#[cfg(test)]
mod tests;
