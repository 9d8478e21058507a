//! Tokens of requests that pass through: what one may need, by what its body says in whatever words, and what its answer says it used. Both
//! are read beside the bytes, which stay as they are; who knows neither counts as reserved. Decides nothing about budgets.

use std::sync::Arc;

use axum::{body::Bytes, http::Method};
use serde::Deserialize;
use serde_json::Value;

use crate::{
    model::{raw_object::RawObject, reply::Usage},
    runtime::{ports::Asked, relay::RelayKind},
};

/// So much of the end of an answer is looked at: usage stands last in all forms that tell it.
const TAIL_BYTES_MAX: usize = 16 * 1024;

/// What a request asks of a model, for guards that must know its size.
pub(super) fn asked_of(method: &Method, path: &str, body: &Bytes) -> Asked {
    let place = path.split('?').next().unwrap_or_default();
    let is_embedding = place.rsplit('/').next().is_some_and(|last| last.to_ascii_lowercase().starts_with("embed"));
    // What asks without a body (a list of models) is answered by no model.
    let is_question = body.is_empty() && [Method::GET, Method::HEAD, Method::OPTIONS].contains(method);
    let kind = if is_embedding || is_question { RelayKind::Embeddings } else { RelayKind::Chat };
    let relay = match RawObject::try_new(body.to_vec()) {
        Ok(object) => restated(kind, object),
        Err(_) => whole_text(body, &[]),
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
                ["max_tokens", "max_completion_tokens", "n", "best_of"].into_iter().filter_map(told).collect();
            if let Some(max) = max.filter(|_| object.get("max_tokens").is_none()) {
                bounds.push(("max_tokens", max));
            }
            whole_text(object.as_str().as_bytes(), &bounds)
        }
    }
}

/// All that is sent, as the one text of a request.
fn whole_text(bytes: &[u8], bounds: &[(&str, &str)]) -> Option<RawObject> {
    let text = Value::from(String::from_utf8_lossy(bytes)).to_string();
    let bounds: String = bounds.iter().map(|(name, value)| format!(",\"{name}\":{value}")).collect();
    let text = if bytes.is_empty() { "\"\"".to_owned() } else { text };
    let object = format!("{{\"messages\":[{{\"content\":{text}}}],\"input\":{text}{bounds}}}");
    RawObject::try_new(object.into_bytes()).ok()
}

/// The end of an answer, for what it says that was used.
#[derive(Debug, Default)]
pub(super) struct UsageReader {
    tail: Vec<u8>,
}

/// Numbers of tokens, in the words of several servers.
#[derive(Debug, Default, Deserialize)]
struct Told {
    #[serde(alias = "input_tokens")]
    prompt_tokens: Option<u64>,
    #[serde(alias = "output_tokens")]
    completion_tokens: Option<u64>,
    total_tokens: Option<u64>,
}

impl UsageReader {
    /// More of the answer.
    pub(super) fn push(&mut self, piece: &[u8]) {
        let from = piece.len().saturating_sub(TAIL_BYTES_MAX);
        self.tail.extend_from_slice(&piece[from..]);
        // Moved seldom: each time as much was added as stays.
        if self.tail.len() > 2 * TAIL_BYTES_MAX {
            self.tail.drain(..self.tail.len() - TAIL_BYTES_MAX);
        }
    }

    /// What it says, if it says it in a form that is known. In a text of a model the same words have other quotes.
    pub(super) fn usage(&self) -> Option<Usage> {
        let text = String::from_utf8_lossy(&self.tail);
        let (prompt_tokens, output_tokens) = match member::<Told>(&text, "usage") {
            Some(Told { prompt_tokens: Some(prompt), completion_tokens: Some(output), .. }) => (prompt, output),
            Some(Told { prompt_tokens: Some(prompt), total_tokens: Some(total), .. }) => {
                (prompt, total.saturating_sub(prompt))
            }
            Some(_) => return None,
            None => (member(&text, "prompt_eval_count")?, member(&text, "eval_count").unwrap_or(0)),
        };
        let is_told = prompt_tokens > 0 || output_tokens > 0;
        is_told.then(|| Usage { prompt_tokens, output_tokens, ..Usage::default() })
    }
}

/// The value of the last member of this name.
fn member<'text, T: Deserialize<'text>>(text: &'text str, name: &str) -> Option<T> {
    let name = format!("\"{name}\"");
    let behind = &text[text.rfind(&name)? + name.len()..];
    let value = behind.trim_start().strip_prefix(':')?;
    serde_json::Deserializer::from_str(value).into_iter::<Option<T>>().next()?.ok().flatten()
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
                assert!(reader.tail.len() <= 3 * TAIL_BYTES_MAX);
            }
        }
    }
}
