//! Tokens of requests that pass through: what one may need, by what its body says in whatever words, and what its answer says it used. Both
//! are read beside the bytes, which stay as they are; who knows neither counts as reserved. Decides nothing about budgets.

use std::sync::Arc;

use axum::{
    body::Bytes,
    http::{HeaderMap, HeaderValue, Method, header},
};
use serde_json::Value;

use crate::{
    model::{raw_object::RawObject, reply::Usage},
    runtime::{ports::Asked, relay::RelayKind},
    transport::{
        openai::estimate::{ANSWER_COUNTS, OUTPUT_BOUNDS},
        usage,
    },
};

/// So much of the end of an answer is looked at: usage stands last in all forms that tell it.
const TAIL_BYTES_MAX: usize = 16 * 1024;
/// So much of its beginning: some streams tell there what the prompt was.
const HEAD_BYTES_MAX: usize = 4 * 1024;
/// No more of a line is looked at, to see whether it is an event.
const LINE_BYTES_MAX: usize = 16;

/// What a request asks of a model, for guards that must know its size.
pub(super) fn asked_of(method: &Method, path: &str, body: &Bytes) -> Asked {
    let place = path.split('?').next().unwrap_or_default();
    let is_embedding = place.rsplit('/').next().is_some_and(|last| last.to_ascii_lowercase().starts_with("embed"));
    // What asks without a body (a list of models) is answered by no model.
    let is_question = body.is_empty() && [Method::GET, Method::HEAD, Method::OPTIONS].contains(method);
    let kind = if is_embedding || is_question { RelayKind::Embeddings } else { RelayKind::Chat };
    let relay = match RawObject::try_new(body.to_vec()) {
        Ok(object) => restated(kind, object),
        // What is no text (a picture, a recording) has tokens that nobody can count here.
        Err(_) => whole_text(std::str::from_utf8(body).unwrap_or_default(), &[]),
    };
    Asked { input: Arc::new(Value::Null), relay: relay.map(|object| (kind, Arc::new(object))) }
}

/// The request in the words in which its size is asked for.
fn restated(kind: RelayKind, object: RawObject) -> Option<RawObject> {
    let is_known = match kind {
        RelayKind::Chat => object.get("messages").is_some(),
        RelayKind::Embeddings => object.get("input").is_some(),
    };
    let nested = object.get("options").and_then(|options| serde_json::from_str::<Value>(options).ok());
    let of_options = nested.as_ref().and_then(|options| options.get("num_predict")).map(Value::to_string);
    let max = ["max_output_tokens", "num_predict"].iter().find_map(|name| object.get(name)).or(of_options.as_deref());
    match (is_known, max) {
        (true, None) => Some(object),
        (true, Some(max)) if object.get("max_tokens").is_none() => {
            RawObject::try_new(object.with(&[("max_tokens", Some(max))]).into_bytes()).ok()
        }
        (true, Some(_)) => Some(object),
        (false, _) => {
            let told = |name| object.get(name).map(|text| (name, text));
            let mut bounds: Vec<(&str, &str)> =
                OUTPUT_BOUNDS.into_iter().chain(ANSWER_COUNTS).filter_map(told).collect();
            if let Some(max) = max.filter(|_| object.get("max_tokens").is_none()) {
                bounds.push(("max_tokens", max));
            }
            whole_text(object.as_str(), &bounds)
        }
    }
}

/// All that is sent, as the one text of a request.
fn whole_text(text: &str, bounds: &[(&str, &str)]) -> Option<RawObject> {
    let text = Value::from(text).to_string();
    let mut object = format!("{{\"messages\":[{{\"content\":{text}}}],\"input\":{text}");
    for (name, value) in bounds {
        object.extend([",\"", name, "\":", value]);
    }
    object.push('}');
    RawObject::try_new(object.into_bytes()).ok()
}

/// Beginning and end of an answer, for what they say that was used, and how many events it had.
#[derive(Debug, Default)]
pub(super) struct UsageReader {
    head: Vec<u8>,
    tail: Vec<u8>,
    /// `None` where the answer is one whole.
    events: Option<Events>,
}

/// How many events of a stream came, each of which is a token at least.
#[derive(Debug, Default)]
struct Events {
    count: u64,
    /// The beginning of the line that is under way.
    line: Vec<u8>,
}

impl UsageReader {
    /// A reader of the answer with these headers; `None` where nothing can be read in it.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        let kind = headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
        let kind = String::from_utf8_lossy(kind).to_ascii_lowercase();
        let is_stream = ["event-stream", "ndjson", "jsonl"].iter().any(|word| kind.contains(word));
        let is_read = (is_stream || kind.contains("json")) && !headers.contains_key(header::CONTENT_ENCODING);
        is_read.then(|| Self { events: is_stream.then(Events::default), ..Self::default() })
    }

    /// More of the answer.
    pub(super) fn push(&mut self, piece: &[u8]) {
        let room = HEAD_BYTES_MAX - self.head.len();
        self.head.extend_from_slice(piece.get(..room).unwrap_or(piece));
        let from = piece.len().saturating_sub(TAIL_BYTES_MAX);
        self.tail.extend_from_slice(&piece[from..]);
        // Moved seldom: each time as much was added as stays.
        if self.tail.len() > 2 * TAIL_BYTES_MAX {
            self.tail.drain(..self.tail.len() - TAIL_BYTES_MAX);
        }
        if let Some(events) = &mut self.events {
            events.push(piece);
        }
    }

    /// How many events of a stream came; 0 of an answer that is none.
    pub(super) fn events(&self) -> u64 {
        self.events.as_ref().map_or(0, |events| events.count)
    }

    /// What it says, if it says it in a form that is known: the last word on each side holds. In a text of a model the same words have
    /// other quotes.
    pub(super) fn usage(&self) -> Option<Usage> {
        let (mut told, mut total) = (None, None);
        for region in [&self.head, &self.tail] {
            let text = String::from_utf8_lossy(region);
            for value in members(&text, "usage") {
                usage::update(&mut told, &value);
                total = value.get("total_tokens").and_then(usage::tokens).or(total);
            }
        }
        let of_lines = || {
            let text = String::from_utf8_lossy(&self.tail);
            let last = |name| members(&text, name).filter_map(|value| usage::tokens(&value)).last();
            let (prompt_tokens, output_tokens) = (last("prompt_eval_count")?, last("eval_count").unwrap_or(0));
            Some(Usage { prompt_tokens, output_tokens, ..Usage::default() })
        };
        let mut told = told.or_else(of_lines)?;
        if told.output_tokens == 0 {
            // Some tell one side and the sum.
            told.output_tokens = total.unwrap_or(0).saturating_sub(told.prompt_tokens);
        }
        // No prompt has no tokens.
        Some(told).filter(|told| told.prompt_tokens > 0)
    }
}

impl Events {
    fn push(&mut self, piece: &[u8]) {
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            let room = LINE_BYTES_MAX - self.line.len();
            self.line.extend_from_slice(part.get(..room).unwrap_or(part));
            if part.ends_with(b"\n") {
                let line = self.line.trim_ascii();
                let data = line.strip_prefix(b"data:").map(<[u8]>::trim_ascii);
                let is_event = data.map_or(line.starts_with(b"{"), |data| !data.is_empty() && data != b"[DONE]");
                self.count += u64::from(is_event);
                self.line.clear();
            }
        }
    }
}

/// The values of all members of this name, in their order.
fn members<'text>(text: &'text str, name: &str) -> impl Iterator<Item = Value> + 'text {
    let name = format!("\"{name}\"");
    let places: Vec<usize> = text.match_indices(&name).map(|(at, name)| at + name.len()).collect();
    places.into_iter().filter_map(|behind| {
        let value = text.get(behind..)?.trim_start().strip_prefix(':')?;
        serde_json::Deserializer::from_str(value).into_iter::<Value>().next()?.ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        runtime::ports::Backend as _,
        transport::{
            client::{ProviderClient, ProviderOptions},
            openai::{backend::OpenAiAgent, settings::OpenAiSettings},
        },
    };

    #[test]
    fn what_a_request_may_need_is_read_in_several_words() {
        let client = ProviderClient::try_new(&ProviderOptions::at("http://127.0.0.1:1")).unwrap();
        let settings =
            OpenAiSettings { model: "gpt-4o".to_owned(), prompt: "x".to_owned(), ..OpenAiSettings::default() };
        let agent = OpenAiAgent::try_new(Arc::new(client), settings).unwrap();
        let hello = "hello world ".repeat(100);
        for (path, body, least, output_max) in [
            (
                "/chat/completions",
                format!(r#"{{"messages":[{{"content":"{hello}"}}],"max_tokens":4000}}"#),
                200,
                Some(4_000),
            ),
            ("/chat/completions", format!(r#"{{"messages":[{{"content":"{hello}"}}]}}"#), 200, None),
            ("/completions", format!(r#"{{"prompt":"{hello}","max_tokens":70,"n":2}}"#), 200, Some(140)),
            ("/responses", format!(r#"{{"input":"{hello}","max_output_tokens":50}}"#), 200, Some(50)),
            (
                "/api/chat",
                format!(r#"{{"messages":[{{"content":"{hello}"}}],"options":{{"num_predict":9}}}}"#),
                200,
                Some(9),
            ),
            ("/embeddings", format!(r#"{{"input":"{hello}"}}"#), 200, Some(0)),
            ("/api/embeddings", format!(r#"{{"prompt":"{hello}"}}"#), 200, Some(0)),
            ("/audio", hello.clone(), 200, None),
            ("/chat/completions", format!(r#"{{"max_tokens":1,"max_tokens":4000,"x":"{hello}"}}"#), 200, None),
        ] {
            let asked = asked_of(&Method::POST, path, &Bytes::from(body));
            let told = agent.estimate(&asked, None).unwrap();
            assert!((least..2 * least).contains(&told.prompt), "{path}: {told:?}");
            assert_eq!(told.output_max, output_max, "{path}");
        }
        let list = agent.estimate(&asked_of(&Method::GET, "/models", &Bytes::new()), None).unwrap();
        assert_eq!((list.prompt, list.output_max), (0, Some(0)));
        let recording = Bytes::from(vec![0xff; 1 << 20]);
        let heard = agent.estimate(&asked_of(&Method::POST, "/audio/transcriptions", &recording), None).unwrap();
        assert!(heard.prompt < 16 && heard.output_max.is_none(), "{heard:?}: bytes are no text");
    }

    #[test]
    fn usage_is_read_where_an_answer_ends() {
        let long = "x".repeat(100_000);
        for (answer, want) in [
            (r#"{"usage":{"prompt_tokens":10,"completion_tokens":4000,"total_tokens":4010}}"#.to_owned(), Some((10, 4_000))),
            (format!(r#"{{"choices":"{long}","usage" : {{"prompt_tokens":1,"completion_tokens":2}}}}"#), Some((1, 2))),
            (r#"{"usage":{"input_tokens":3,"output_tokens":4}}"#.to_owned(), Some((3, 4))),
            (r#"{"usage":{"prompt_tokens":7,"total_tokens":7}}"#.to_owned(), Some((7, 0))),
            (r#"{"done":true,"prompt_eval_count":5,"eval_count":6}"#.to_owned(), Some((5, 6))),
            (
                "data: {\"usage\":null}\n\ndata: {\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":9}}\n\ndata: [DONE]\n\n"
                    .to_owned(),
                Some((1, 9)),
            ),
            ("data: {\"usage\":null}\n\ndata: [DONE]\n\n".to_owned(), None),
            (r#"{"content":"\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1}"}"#.to_owned(), None),
            (
                format!(
                    "data: {{\"message\":{{\"usage\":{{\"input_tokens\":25,\"output_tokens\":1}}}}}}\n\n{long}{}",
                    "data: {\"usage\":{\"output_tokens\":15}}\n\ndata: {\"type\":\"message_stop\"}\n\n"
                ),
                Some((25, 15)),
            ),
            (
                "data: {\"usage\":{\"prompt_tokens\":2,\"completion_tokens\":3}}\n\ndata: {\"usage\":null}\n\n".to_owned(),
                Some((2, 3)),
            ),
            (r#"{"usage":{"prompt_tokens":7,"input_tokens":7,"completion_tokens":1}}"#.to_owned(), Some((7, 1))),
            (r#"{"usage":{"prompt_tokens":7,"total_tokens":9}}"#.to_owned(), Some((7, 2))),
            (r#"{"usage":{"prompt_tokens":-7,"completion_tokens":9}}"#.to_owned(), None),
            (r#"{"usage":"see the manual"}"#.to_owned(), None),
            (r#"{"usage":{"output_tokens":4}}"#.to_owned(), None),
            (r#"{"usage":{"prompt_tokens":0,"completion_tokens":0}}"#.to_owned(), None),
            (r#"{"usage":{"prompt_tokens":1,"#.to_owned(), None),
            (long.clone(), None),
            (String::new(), None),
        ] {
            for piece_bytes in [7, 4_096, 1 << 20] {
                let mut reader = UsageReader::default();
                answer.as_bytes().chunks(piece_bytes).for_each(|piece| reader.push(piece));
                let told = reader.usage().map(|usage| (usage.prompt_tokens, usage.output_tokens));
                assert_eq!(told, want, "{answer:.200}");
                assert!(reader.tail.len() <= 3 * TAIL_BYTES_MAX && reader.head.len() <= HEAD_BYTES_MAX);
                assert_eq!(reader.events(), 0, "nobody said that it is a stream");
            }
        }
    }

    #[test]
    fn events_of_a_stream_are_counted_however_they_are_cut() {
        let events = "data: {\"a\":1}\n\n".repeat(40);
        let lines = "{\"response\":\"a\"}\n".repeat(30);
        for (kind, answer, want) in [
            ("text/event-stream; charset=utf-8", format!(": alive\n\nevent: x\n{events}data: [DONE]\n\ndata:\n"), 40),
            ("text/event-stream", events.replace('\n', "\r\n"), 40),
            ("application/x-ndjson", format!("{lines}\n\n{{\"cut"), 30),
            ("application/json", lines.clone(), 0),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
            for piece_bytes in [1, 7, 4_096] {
                let mut reader = UsageReader::of(&headers).unwrap();
                answer.as_bytes().chunks(piece_bytes).for_each(|piece| reader.push(piece));
                assert_eq!(reader.events(), want, "{kind} in pieces of {piece_bytes}");
            }
            headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            assert!(UsageReader::of(&headers).is_none());
        }
        assert!(UsageReader::of(&HeaderMap::new()).is_none());
    }
}
