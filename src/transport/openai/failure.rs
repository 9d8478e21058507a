//! What errors of servers in OpenAI's shape mean where their status misleads: llama.cpp answers some mistakes of the caller with a 500 or
//! 501. Taken at its word one caller's odd requests would shut the agent for all. Judges nothing.
//!
//! The texts are those of its server of 2026 (build 11549), asked for each of them; SPEC row 2 holds for whatever else comes as 5xx.

use crate::model::{facts::Ending, reply::AttemptFailure};

/// What it calls a route that it was not started for: embeddings, reranking.
const NOT_SUPPORTED: &str = "not_supported_error";
/// How it begins to tell what it could not read of a request.
const UNREADABLE: [&str; 2] = ["failed to parse messages:", "failed to parse tools:"];
/// What it says of content that its model cannot take.
const UNSUPPORTED: [&str; 2] = ["image input is not supported", "audio input is not supported"];

/// The failure as it was meant: a request that this server will never take. The status as received stays beside it.
#[must_use]
pub(super) fn corrected(failure: AttemptFailure) -> AttemptFailure {
    let Ending::Status { status, .. } = failure.ending else { return failure };
    let message = failure.message.to_ascii_lowercase();
    let says = |phrases: &[&str]| phrases.iter().any(|phrase| message.starts_with(phrase));
    let is_the_callers = match status {
        501 => failure.upstream_code.as_deref() == Some(NOT_SUPPORTED),
        500 => says(&UNREADABLE) || says(&UNSUPPORTED),
        _ => false,
    };
    if is_the_callers { AttemptFailure { ending: Ending::status(400), ..failure } } else { failure }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        policy::{
            retry::is_retryable,
            verdict::{Keyed, Verdict, judge},
        },
        transport::error_body::{AnswerHead, ErrorPointers, failure_of_answer},
    };

    #[test]
    fn a_callers_mistake_is_one_whatever_number_it_comes_with() {
        let of = |code: u16, kind: &str, message: &str| {
            let body = serde_json::json!({ "error": { "code": code, "message": message, "type": kind } }).to_string();
            let head = AnswerHead::read(code, &[], 0);
            corrected(failure_of_answer(head, body.as_bytes(), &ErrorPointers::default()))
        };
        let embeddings = "This server does not support embeddings. Start it with `--embeddings`";
        for (code, kind, message, is_the_callers) in [
            (501, "not_supported_error", embeddings, true),
            (500, "server_error", "Failed to parse tools: Expected 'tools' to be an array, got 5; tools = 5", true),
            (500, "server_error", "Failed to parse messages: Missing 'role' in message: {\"content\":\"x\"}", true),
            (500, "server_error", "image input is not supported - hint: if this is unexpected, ...", true),
            (500, "server_error", "audio input is not supported - hint: if this is unexpected, ...", true),
            (501, "server_error", "not implemented", false),
            (500, "not_supported_error", "out of memory", false),
            (500, "server_error", "an image: image input is not supported", false),
            (503, "server_error", "Failed to parse messages: x", false),
            (500, "server_error", "", false),
        ] {
            let failure = of(code, kind, message);
            let is_failure = matches!(judge(&failure.ending, Keyed::No).target, Verdict::Failure { .. });
            assert_eq!((is_failure, is_retryable(&failure.ending)), (!is_the_callers, !is_the_callers), "{message}");
            assert_eq!(failure.status, Some(code), "as received");
        }
    }
}
