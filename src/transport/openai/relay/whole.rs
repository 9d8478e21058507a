//! A whole answer that goes back byte for byte: only looked at, to tell an answer from an error and what it used.

use serde::{Deserialize, de::IgnoredAny};
use serde_json::{Value, value::RawValue};

use super::outline::Outline;
use crate::{
    model::{
        facts::Ending,
        loose_json,
        reply::{AttemptFailure, Usage},
    },
    runtime::{relay::RelayKind, tally::Tally},
    transport::{
        error_body::AnswerHead,
        openai::completion::{CHOICES, Completion, FINISH_ERROR, failure_inside, is_no_draft, no_draft},
        usage,
    },
};

/// What is known of a whole answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) usage: Usage,
    pub(super) finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct Choice {
    finish_reason: Option<String>,
    #[serde(default)]
    error: Option<IgnoredAny>,
}

/// Looks at a whole answer. Where the server tells no usage, the tally counts it, and is told the prompt's.
pub(super) fn look(
    kind: RelayKind,
    head: AnswerHead,
    body: &[u8],
    counting: (&Tally, impl FnOnce() -> u64),
) -> Result<Seen, AttemptFailure> {
    let bad = |message: String| AttemptFailure {
        status: Some(head.status),
        ..AttemptFailure::new(Ending::BadReply, message)
    };
    let is_told = |usage: &Usage| usage.prompt_tokens > 0 && (usage.output_tokens > 0 || kind == RelayKind::Embeddings);
    let no_object = |error: serde_json::Error| bad(format!("the answer is no JSON object: {error}"));
    let (place, name) = match kind {
        RelayKind::Chat => (CHOICES, "choice"),
        RelayKind::Embeddings => ("data", "embedding"),
    };
    let mended;
    let seen = if let Ok(seen) = serde_json::from_slice::<Outline<'_, &RawValue>>(body) {
        seen
    } else {
        // What stands twice in it, or what no text can hold, is the caller's to judge: the bytes go on as they are.
        let value = loose_json::read(body).map_err(no_object)?;
        // Google's errors are a list.
        if let Some(failure) = failure_inside(head, &value, place) {
            return Err(failure);
        }
        mended = value.to_string();
        serde_json::from_str(&mended).map_err(no_object)?
    };
    let is_doubtful = seen.doubtful().any(|part| part.get() != "null");
    let promised = match kind {
        RelayKind::Chat => seen.choices,
        RelayKind::Embeddings => seen.data,
    };
    let promised = promised.filter(|list| list.get().starts_with('[') && !is_empty_list(list.get()));
    let choices = promised.filter(|_| kind == RelayKind::Chat).map(|list| Choice::all(list.get())).unwrap_or_default();
    if is_doubtful || promised.is_none() || choices.iter().any(Choice::is_doubtful) {
        let value = loose_json::read(body).map_err(no_object)?;
        if let Some(failure) = failure_inside(head, &value, place) {
            return Err(failure);
        }
    }
    let told = seen.usage.and_then(|usage| loose_json::read(usage.get().as_bytes()).ok());
    let usage = told.as_ref().and_then(usage::told).filter(is_told);
    let Some(promised) = promised else {
        return Err(AttemptFailure { usage, ..bad(format!("the answer holds no {name}")) });
    };
    let finish_reason = choices.into_iter().next().and_then(|choice| choice.finish_reason);
    let usage = match usage {
        Some(usage) => usage,
        None => estimate(kind, (head, body, promised.get()), told.as_ref(), counting),
    };
    if is_no_draft(finish_reason.as_deref()) && says_nothing(head, body) {
        return Err(no_draft(head.status));
    }
    Ok(Seen { usage, finish_reason })
}

fn is_empty_list(list: &str) -> bool {
    list.get(1..).is_some_and(|rest| rest.trim_start().starts_with(']'))
}

impl Choice {
    /// Why each choice stopped, as far as it can be read.
    fn all(choices: &str) -> Vec<Self> {
        if let Ok(choices) = serde_json::from_str(choices) {
            return choices;
        }
        let Ok(Value::Array(choices)) = loose_json::read(choices.as_bytes()) else { return Vec::new() };
        let read = |choice: &Value| Self {
            finish_reason: choice.get("finish_reason").and_then(Value::as_str).map(str::to_owned),
            error: choice.get("error").filter(|told| !told.is_null()).map(|_| IgnoredAny),
        };
        choices.iter().map(read).collect()
    }

    fn is_doubtful(&self) -> bool {
        self.error.is_some() || self.finish_reason.as_deref() == Some(FINISH_ERROR)
    }
}

fn says_nothing(head: AnswerHead, body: &[u8]) -> bool {
    Completion::read(head, body, &Tally::default()).is_ok_and(|completion| completion.text.is_empty())
}

/// What an answer used that does not say so. That it cannot be counted is no fault of the answer: then its bytes are.
fn estimate(
    kind: RelayKind,
    (head, body, promised): (AnswerHead, &[u8], &str),
    told: Option<&Value>,
    (tally, prompt_tokens): (&Tally, impl FnOnce() -> u64),
) -> Usage {
    match kind {
        RelayKind::Chat => {
            if let Ok(completion) = Completion::read(head, body, tally) {
                return completion.usage_or_estimate(tally, prompt_tokens());
            }
            tally.heard(promised);
            tally.estimate(prompt_tokens, 1)
        }
        // All tokens of an embedding are its prompt's.
        RelayKind::Embeddings => {
            let told =
                told.and_then(|usage| usage.get("total_tokens")).and_then(usage::tokens).filter(|told| *told > 0);
            let counted = || tally.estimate(prompt_tokens, 0);
            told.map_or_else(counted, |prompt_tokens| Usage { prompt_tokens, ..Usage::default() })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::reply::CountedBy;

    fn looked(kind: RelayKind, body: &str) -> Result<Seen, Ending> {
        look(kind, AnswerHead::read(200, &[], 0), body.as_bytes(), (&Tally::default(), || 7))
            .map_err(|failure| failure.ending)
    }

    #[test]
    fn answers_and_what_is_none() {
        let usage = |prompt_tokens, output_tokens, estimated: bool| Usage {
            prompt_tokens,
            output_tokens,
            estimated,
            counted_by: estimated.then_some(CountedBy::Letters),
            ..Usage::default()
        };
        let seen = |usage, reason: Option<&str>| Ok(Seen { usage, finish_reason: reason.map(str::to_owned) });
        for (kind, body, want) in [
            (
                RelayKind::Chat,
                r#"{"choices":[{"finish_reason":"stop","message":{"content":"a"}}],"usage":{"prompt_tokens":3,"completion_tokens":2}}"#,
                seen(usage(3, 2, false), Some("stop")),
            ),
            (
                RelayKind::Chat,
                r#"{"choices":[{"finish_reason":"length","message":{"content":"abcdefgh"}}],"error":null}"#,
                seen(usage(7, 2, true), Some("length")),
            ),
            (
                RelayKind::Chat,
                r#"{"choices":[{"finish_reason":"tool_calls","message":{"content":null,"tool_calls":[{}]}}],"usage":{"prompt_tokens":3}}"#,
                seen(usage(3, 0, false), Some("tool_calls")),
            ),
            (
                RelayKind::Chat,
                r#"{"choices":[{"finish_reason":"stop","message":{"content":"abcdefgh"}}],"usage":{"prompt_tokens":0,"completion_tokens":0,"total_tokens":9}}"#,
                seen(usage(7, 2, true), Some("stop")),
            ),
            // No model can have used so many.
            (
                RelayKind::Chat,
                r#"{"choices":[{"finish_reason":"stop","message":{"content":"abcdefgh"}}],"usage":{"total_tokens":18446744073709551615}}"#,
                seen(usage(7, 2, true), Some("stop")),
            ),
            (
                RelayKind::Embeddings,
                r#"{"data":[{"embedding":[0.1]}],"usage":{"prompt_tokens":0,"total_tokens":4}}"#,
                seen(usage(4, 0, false), None),
            ),
            (RelayKind::Chat, r#"{"choices":[ ]}"#, Err(Ending::BadReply)),
            (RelayKind::Chat, r#"{"choices":{}}"#, Err(Ending::BadReply)),
            (RelayKind::Chat, "{}", Err(Ending::BadReply)),
            (RelayKind::Chat, "[]", Err(Ending::BadReply)),
            (RelayKind::Chat, "<html>", Err(Ending::BadReply)),
            (RelayKind::Chat, r#"{"choices":[],"error":{"code":429}}"#, Err(Ending::status(429))),
            (RelayKind::Chat, r#"{"type":"error","error":{"type":"overloaded_error"}}"#, Err(Ending::status(503))),
            (RelayKind::Chat, r#"{"object":"error","message":"x","code":400}"#, Err(Ending::status(400))),
            (RelayKind::Embeddings, r#"{"object":"error","message":"x","code":400}"#, Err(Ending::status(400))),
            (RelayKind::Chat, r#"{"choices":[],"title":"x","status":400}"#, Err(Ending::status(400))),
            (RelayKind::Chat, r#"{"message":"x","code":400}"#, Err(Ending::status(400))),
            (RelayKind::Chat, r#"{"detail":"x"}"#, Err(Ending::status(502))),
            (RelayKind::Chat, r#"[{"error":{"code":429}}]"#, Err(Ending::status(429))),
            (
                RelayKind::Chat,
                r#"{"choices":[{"message":{"content":"a"},"finish_reason":"error","error":{"code":503}}]}"#,
                Err(Ending::status(503)),
            ),
            (
                RelayKind::Chat,
                r#"{"choices":[{"message":{"content":"a"}},{"finish_reason":"error"}]}"#,
                Err(Ending::status(502)),
            ),
            // What errors are made of stands beside an answer.
            (
                RelayKind::Chat,
                r#"{"object":"error","message":"x","code":400,"detail":"x","status":500,"choices":[{"finish_reason":"stop","error":null,"message":{"content":"a"}}],"usage":{"prompt_tokens":3,"completion_tokens":2}}"#,
                seen(usage(3, 2, false), Some("stop")),
            ),
            (
                RelayKind::Embeddings,
                r#"{"message":"x","code":400,"data":[{"embedding":[0.1]}],"usage":{"prompt_tokens":4,"total_tokens":4}}"#,
                seen(usage(4, 0, false), None),
            ),
            (
                RelayKind::Chat,
                r#"{"choices":[{"finish_reason":"load","message":{"content":""}}]}"#,
                Err(Ending::NoDraft),
            ),
            (
                RelayKind::Embeddings,
                r#"{"data":[{"embedding":[0.1]}],"usage":{"prompt_tokens":4,"total_tokens":4}}"#,
                seen(usage(4, 0, false), None),
            ),
            (RelayKind::Embeddings, r#"{"data":[{"embedding":"AAA="}]}"#, seen(usage(7, 0, true), None)),
            (RelayKind::Embeddings, r#"{"choices":[{}]}"#, Err(Ending::BadReply)),
            (RelayKind::Chat, r#"{"choices":[{"message":{"content":"a"}}],}"#, Err(Ending::BadReply)),
            (RelayKind::Chat, r#"{"choices":[{"message":{"content":NaN}}]}"#, Err(Ending::BadReply)),
        ] {
            assert_eq!(looked(kind, body), want, "{body}");
        }
    }

    /// Nothing that is only looked at to count spoils an answer that was paid for.
    #[test]
    fn what_no_value_can_hold_is_an_answer_all_the_same() {
        let deep = format!("{}1{}", "[".repeat(300), "]".repeat(300));
        for part in
            ["\"x\":\"\\ud83d\"", "\"x\":1e999", "\"\\ud83d\":1", "\"index\":0,\"index\":0", &format!("\"x\":{deep}")]
        {
            let text = "abcdefgh";
            let inside =
                format!(r#"{{"choices":[{{"finish_reason":"stop","message":{{"content":"{text}",{part}}}}}]}}"#);
            let beside =
                format!(r#"{{{part},"choices":[{{"finish_reason":"stop","message":{{"content":"{text}"}}}}]}}"#);
            let typed = format!(
                r#"{{{part},"type":"x","choices":[{{"finish_reason":"stop","message":{{"content":"{text}"}}}}]}}"#
            );
            for body in [inside, beside, typed] {
                let seen = looked(RelayKind::Chat, &body).unwrap();
                let used = (seen.usage.prompt_tokens, seen.usage.output_tokens, seen.usage.estimated);
                assert_eq!((used, seen.finish_reason.as_deref()), ((7, 2, true), Some("stop")), "{body:.200}");
            }
            let told = format!(
                r#"{{"choices":[{{"finish_reason":"stop"}}],"usage":{{"prompt_tokens":3,"completion_tokens":2,{part}}}}}"#
            );
            let seen = looked(RelayKind::Chat, &told).unwrap();
            assert_eq!((seen.usage.prompt_tokens, seen.usage.estimated), (3, false), "{told:.200}");
        }
        for body in [
            r#"{"choices":[{"finish_reason":"load","message":{"content":"","x":"\ud83d"}}]}"#,
            r#"{"usage":null,"usage":null,"choices":[{"finish_reason":"load","message":{"content":""}}]}"#,
        ] {
            assert_eq!(looked(RelayKind::Chat, body), Err(Ending::NoDraft), "{body}");
        }
        assert_eq!(looked(RelayKind::Chat, r#"{"error":{"code":429,"message":"\ud83d"}}"#), Err(Ending::status(429)));
        // An answer of another shape is counted by its bytes.
        let seen = looked(RelayKind::Chat, &format!(r#"{{"choices":[{{"said":"{}"}}]}}"#, "a".repeat(400))).unwrap();
        assert!((100..=110).contains(&seen.usage.output_tokens), "{seen:?}");
        let vectors = r#"{"data":[{"embedding":[1e999,-0,0.1]}],"usage":{"prompt_tokens":4,"x":1e999}}"#;
        assert_eq!(looked(RelayKind::Embeddings, vectors).unwrap().usage.prompt_tokens, 4);
    }
}
