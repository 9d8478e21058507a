//! The request of a relay: the caller's own, but for the model's name, the form of the answer, and fields that are ours alone.

use std::borrow::Cow;

use bytes::Bytes;
use serde_json::Value;

use crate::{
    model::raw_object::RawObject,
    runtime::{
        relay::{Relay, RelayForm, RelayKind},
        tally::AnswerForm,
        token_count::TokenCounter,
    },
    transport::openai::settings::StreamUpstream,
};

/// Members of a request that speak to us; a vendor that does not know them refuses the request.
const OWN_MEMBERS: &[&str] = &["priority"];
/// Tokens that a message costs beside its text: role and marks.
const MESSAGE_TOKENS: u64 = 4;

/// Whether the upstream is asked for a stream. Several answers, probabilities and sound are only ever asked for as the caller did.
pub(in crate::transport) fn wanted(upstream: StreamUpstream, relay: &Relay) -> AnswerForm {
    match (relay.kind, relay.form) {
        (RelayKind::Embeddings, _) => AnswerForm::Whole,
        (RelayKind::Chat, RelayForm::Stream { .. }) => AnswerForm::Stream,
        (RelayKind::Chat, RelayForm::Whole) if upstream == StreamUpstream::AsAsked || is_whole_only(&relay.body) => {
            AnswerForm::Whole
        }
        (RelayKind::Chat, RelayForm::Whole) => AnswerForm::Stream,
    }
}

fn is_whole_only(body: &RawObject) -> bool {
    let several = body.get("n").is_some_and(|count| !matches!(count, "1" | "null"));
    let probabilities = body.get("logprobs").is_some_and(|wanted| !matches!(wanted, "false" | "null"));
    let sound = body.get("audio").is_some_and(|audio| audio != "null")
        || body.get("modalities").is_some_and(|kinds| kinds.contains("audio"));
    several || probabilities || sound
}

/// The body that is sent.
pub(super) fn body(relay: &Relay, model: &str, wanted: AnswerForm) -> Bytes {
    let model = Value::from(model).to_string();
    let options = (wanted == AnswerForm::Stream).then(|| stream_options(&relay.body));
    let mut changes = vec![("model", Some(model.as_str()))];
    changes.extend(OWN_MEMBERS.iter().map(|name| (*name, None)));
    if let Some(options) = &options {
        changes.push(("stream", Some("true")));
        changes.push(("stream_options", Some(options)));
    }
    Bytes::from(relay.body.with(&changes))
}

/// The caller's own options of a stream, with its usage asked for.
fn stream_options(body: &RawObject) -> Cow<'static, str> {
    let own = body.get("stream_options").and_then(|text| RawObject::try_new(text.as_bytes().to_vec()).ok());
    own.map_or(Cow::Borrowed(r#"{"include_usage":true}"#), |own| {
        Cow::Owned(own.with(&[("include_usage", Some("true"))]))
    })
}

/// About how many tokens the request has, for servers that tell no usage. Pictures are counted as one message each.
pub(in crate::transport) fn estimate_prompt(relay: &Relay) -> u64 {
    let read = |key| relay.body.get(key).and_then(|text| serde_json::from_str::<Value>(text).ok());
    match relay.kind {
        RelayKind::Embeddings => read("input").as_ref().map_or(0, texts_of),
        RelayKind::Chat => read("messages").as_ref().and_then(Value::as_array).map_or(0, |messages| {
            messages.iter().map(|message| message.get("content").map_or(0, texts_of) + MESSAGE_TOKENS).sum()
        }),
    }
}

fn texts_of(value: &Value) -> u64 {
    match value {
        Value::String(text) => TokenCounter::Letters.count(text),
        // Tokens that the caller made itself.
        Value::Number(_) => 1,
        Value::Array(items) => items.iter().map(texts_of).sum(),
        Value::Object(part) => part.get("text").map_or(MESSAGE_TOKENS, texts_of),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::mpsc;

    use super::*;
    use crate::runtime::relay::StreamUsage;

    fn relay(kind: RelayKind, form: RelayForm, body: &str) -> Relay {
        let body = Arc::new(RawObject::try_new(body.as_bytes().to_vec()).unwrap());
        Relay { kind, form, body, out: mpsc::channel(1).0, fallback: None, degraded: None, earlier: 0 }
    }

    const STREAM: RelayForm = RelayForm::Stream { usage: StreamUsage::Unwanted };

    #[test]
    fn in_which_form_the_upstream_is_asked() {
        use StreamUpstream::{Always, AsAsked};
        for (upstream, kind, form, body, want) in [
            (Always, RelayKind::Chat, RelayForm::Whole, "{}", AnswerForm::Stream),
            (AsAsked, RelayKind::Chat, RelayForm::Whole, "{}", AnswerForm::Whole),
            (AsAsked, RelayKind::Chat, STREAM, "{}", AnswerForm::Stream),
            (Always, RelayKind::Chat, STREAM, r#"{"n":2}"#, AnswerForm::Stream),
            (Always, RelayKind::Chat, RelayForm::Whole, r#"{"n":2}"#, AnswerForm::Whole),
            (Always, RelayKind::Chat, RelayForm::Whole, r#"{"n":1,"logprobs":false}"#, AnswerForm::Stream),
            (Always, RelayKind::Chat, RelayForm::Whole, r#"{"logprobs":true}"#, AnswerForm::Whole),
            (Always, RelayKind::Chat, RelayForm::Whole, r#"{"audio":{"voice":"x"}}"#, AnswerForm::Whole),
            (Always, RelayKind::Chat, RelayForm::Whole, r#"{"modalities":["text","audio"]}"#, AnswerForm::Whole),
            (Always, RelayKind::Embeddings, RelayForm::Whole, "{}", AnswerForm::Whole),
        ] {
            assert_eq!(wanted(upstream, &relay(kind, form, body)), want, "{upstream:?} {kind:?} {body}");
        }
    }

    #[test]
    fn what_is_sent() {
        let asked = r#"{"model":"fast","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:x"}}]}],"tools":[{"x":1.0}],"seed":12345678901234567890123,"priority":"batch","stream_options":{"include_usage":false,"x":1},"stream":true}"#;
        let kept = r#""messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:x"}}]}],"tools":[{"x":1.0}],"seed":12345678901234567890123,"#;
        let chat = relay(RelayKind::Chat, STREAM, asked);
        assert_eq!(
            body(&chat, "qwen\"3", AnswerForm::Stream),
            format!(r#"{{"model":"qwen\"3",{kept}"stream_options":{{"include_usage":true,"x":1}},"stream":true}}"#)
        );
        let plain = relay(RelayKind::Chat, RelayForm::Whole, r#"{"messages":[],"stream":false}"#);
        assert_eq!(body(&plain, "m", AnswerForm::Whole), r#"{"messages":[],"stream":false,"model":"m"}"#);
        assert_eq!(
            body(&plain, "m", AnswerForm::Stream),
            r#"{"messages":[],"stream":true,"model":"m","stream_options":{"include_usage":true}}"#
        );
    }

    #[test]
    fn prompts_are_estimated_where_nobody_counts() {
        let picture = format!("data:{}", "x".repeat(10_000));
        for (kind, body, want) in [
            (RelayKind::Chat, r#"{"messages":[{"role":"user","content":"안녕하세요"}]}"#.to_owned(), 3 + 4),
            (
                RelayKind::Chat,
                format!(
                    r#"{{"messages":[{{"content":[{{"type":"text","text":"abcd"}},{{"type":"image_url","image_url":{{"url":"{picture}"}}}}]}}]}}"#
                ),
                1 + 4 + 4,
            ),
            (RelayKind::Chat, "{}".to_owned(), 0),
            (RelayKind::Embeddings, r#"{"input":["abcd","ab"]}"#.to_owned(), 2),
            (RelayKind::Embeddings, r#"{"input":[1,2,3]}"#.to_owned(), 3),
        ] {
            assert_eq!(estimate_prompt(&relay(kind, RelayForm::Whole, &body)), want, "{body:.80}");
        }
    }
}
