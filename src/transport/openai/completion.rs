//! What a model said, however it came: whole or in pieces.

use serde_json::Value;

use crate::{
    model::{
        facts::Ending,
        loose_json,
        reply::{AttemptFailure, Usage},
    },
    runtime::tally::Tally,
    transport::{
        error_body::{AnswerHead, Beside, ErrorPointers, failure_inside_success},
        usage::{self, Known},
    },
};

/// What stands for a finish reason that nobody told.
pub const FINISH_UNKNOWN: &str = "unknown";

/// What a server says in place of an answer when it only loaded the model or put it away.
const MOVED: [&str; 2] = ["load", "unload"];

/// Whether a stop for this reason, with nothing said, is no answer at all.
pub(in crate::transport) fn is_no_draft(finish_reason: Option<&str>) -> bool {
    finish_reason.is_some_and(|reason| MOVED.contains(&reason))
}

/// The end of an attempt whose model was loaded or put away and said nothing. It cost no tokens.
pub(in crate::transport) fn no_draft(status: u16) -> AttemptFailure {
    let failure = AttemptFailure::new(Ending::NoDraft, "the model was loaded or unloaded and said nothing");
    AttemptFailure { status: Some(status), usage: Some(Usage::default()), ..failure }
}

/// Where the answers to a chat stand.
pub(in crate::transport) const CHOICES: &str = "choices";
/// What a choice says that broke off with an error under a good status, as hosted routers do.
pub(in crate::transport) const FINISH_ERROR: &str = "error";

/// The failure inside an answer or a frame of one that came with a good status: at its top, in place of the list at `promised`, or in a
/// choice.
pub(in crate::transport) fn failure_inside(head: AnswerHead, value: &Value, promised: &str) -> Option<AttemptFailure> {
    let is_there = value.get(promised).and_then(Value::as_array).is_some_and(|list| !list.is_empty());
    failure_inside_success(head, value, &ErrorPointers::default(), Beside::promised(is_there)).or_else(|| {
        let choices = value.get(CHOICES)?.as_array()?;
        choices.iter().find_map(|choice| failure_of_choice(head, choice))
    })
}

fn failure_of_choice(head: AnswerHead, choice: &Value) -> Option<AttemptFailure> {
    let told = failure_inside_success(head, choice, &ErrorPointers::default(), Beside::Promised);
    told.or_else(|| {
        let unnamed = AttemptFailure::new(Ending::status(502), "the model stopped with an error that nobody names");
        let stopped = choice.get("finish_reason").and_then(Value::as_str) == Some(FINISH_ERROR);
        stopped.then_some(AttemptFailure { status: Some(head.status), ..unnamed })
    })
}

/// A complete answer of a model.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Completion {
    /// Its text.
    pub text: String,
    /// What it said instead, where it declined by its own review.
    pub refusal: Option<String>,
    /// Why it stopped; [`FINISH_UNKNOWN`] where nobody said.
    pub finish_reason: String,
    /// Tokens as the server told them.
    pub usage: Option<Usage>,
    /// All tokens together, where a server told only that.
    pub total_tokens: Option<u64>,
    /// Pieces that the text came in; each is at least one token.
    pub pieces: u64,
    /// How many of them had come when the server told its tokens last.
    pub pieces_told: u64,
}

impl Completion {
    /// Reads a whole answer; `tally` hears what the model put out.
    pub fn read(head: AnswerHead, body: &[u8], tally: &Tally) -> Result<Self, AttemptFailure> {
        let bad = |message: String| AttemptFailure {
            status: Some(head.status),
            ..AttemptFailure::new(Ending::BadReply, message)
        };
        let value = loose_json::read(body).map_err(|error| bad(format!("the answer is no JSON: {error}")))?;
        if let Some(failure) = failure_inside(head, &value, CHOICES) {
            return Err(failure);
        }
        let choice = value.pointer("/choices/0").ok_or_else(|| bad("the answer holds no choice".to_owned()))?;
        let message = choice.get("message").ok_or_else(|| bad("the answer's choice holds no message".to_owned()))?;
        let text = message.get("content").map_or_else(String::new, content_text);
        tally.heard(&text);
        let beside = hear_beside(message, tally);
        let pieces = u64::from(!text.is_empty() || beside);
        Ok(Self {
            pieces,
            pieces_told: pieces,
            text,
            refusal: message.get("refusal").and_then(Value::as_str).map(str::to_owned),
            finish_reason: finish_reason(choice).unwrap_or_else(|| FINISH_UNKNOWN.to_owned()),
            usage: value.get("usage").and_then(usage::told),
            total_tokens: value.pointer("/usage/total_tokens").and_then(usage::tokens),
        })
    }

    /// Tokens used: as told, else as they were counted, and marked so.
    pub fn usage_or_estimate(&self, tally: &Tally, prompt_tokens: u64) -> Usage {
        let known =
            Known { told: self.usage, total: self.total_tokens, pieces: self.pieces, pieces_told: self.pieces_told };
        known.usage(tally, || prompt_tokens)
    }
}

/// Why a choice stopped, if it says so.
pub(super) fn finish_reason(choice: &Value) -> Option<String> {
    choice.get("finish_reason").and_then(Value::as_str).filter(|reason| !reason.is_empty()).map(str::to_owned)
}

/// Lets `tally` hear what a message or a piece of one says beside its content; true if that is something.
pub(super) fn hear_beside(message: &Value, tally: &Tally) -> bool {
    let mut said = false;
    let mut hear = |text: Option<&Value>| {
        if let Some(text) = text.and_then(Value::as_str).filter(|text| !text.is_empty()) {
            tally.heard(text);
            said = true;
        }
    };
    for key in ["refusal", "reasoning", "reasoning_content"] {
        hear(message.get(key));
    }
    let calls = message.get("tool_calls").and_then(Value::as_array).into_iter().flatten();
    for function in calls.filter_map(|call| call.get("function")).chain(message.get("function_call")) {
        hear(function.get("name"));
        hear(function.get("arguments"));
    }
    said
}

/// A message's content: text, or parts of which some are text.
fn content_text(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().filter_map(|part| part.get("text").and_then(Value::as_str)).collect(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn head() -> AnswerHead {
        AnswerHead::read(200, &[], 0)
    }

    proptest! {
        #[test]
        fn no_body_panics(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = Completion::read(head(), &bytes, &Tally::default());
        }

        #[test]
        fn a_mangled_answer_is_read_or_refused(cut in 0_usize..200, put in any::<u8>()) {
            let answer = r#"{"choices":[{"index":0,"finish_reason":"stop","message":{"role":"assistant","content":"안녕"}}],"usage":{"prompt_tokens":5,"completion_tokens":2}}"#;
            let mut bytes = answer.as_bytes().to_vec();
            let whole = Completion::read(head(), &bytes, &Tally::default()).map(|completion| completion.text);
            prop_assert_eq!(whole.ok(), Some("안녕".to_owned()));
            let at = cut.min(bytes.len() - 1);
            bytes[at] = put;
            let _ = Completion::read(head(), &bytes, &Tally::default());
            bytes.truncate(at);
            prop_assert!(Completion::read(head(), &bytes, &Tally::default()).is_err());
        }
    }
}
