//! What Ollama's errors mean, where its status or its silence misleads. The general reader has already told status and message; this
//! only corrects what the server is known to say in its own way. Judges nothing.

use crate::model::{facts::Ending, reply::AttemptFailure};

/// The code of a server whose line is full. It is well, and has too much to do.
pub const BUSY_CODE: &str = "server_busy";
/// The code of a model that the server does not have.
pub const MODEL_NOT_FOUND_CODE: &str = "model_not_found";

/// What a full line is told by (`OLLAMA_MAX_QUEUE`), with 503.
const BUSY: &str = "maximum pending requests exceeded";
/// What a prompt is refused with that does not fit, by some versions with 400, by some with 500.
const TOO_LONG: [&str; 3] =
    ["exceeds the context length", "exceeds maximum context length", "exceed the context length"];

/// The failure as it was meant.
///
/// A full line is 429 by another number: retryable after a pause, a soft failure of the key's (else the target's) breaker, and never
/// one of the provider's: a server that is busy with our own load is not down. The status as received stays beside it.
#[must_use]
pub fn corrected(failure: AttemptFailure) -> AttemptFailure {
    let Ending::Status { status, .. } = failure.ending else { return failure };
    let message = failure.message.to_ascii_lowercase();
    if status == 503 && message.contains(BUSY) {
        return AttemptFailure { upstream_code: Some(BUSY_CODE.to_owned()), ending: Ending::status(429), ..failure };
    }
    if matches!(status, 400 | 413 | 500 | 502) && TOO_LONG.iter().any(|phrase| message.contains(phrase)) {
        let ending = Ending::Status {
            status: 400,
            retryable: Some(false),
            content_filter: false,
            context_too_long: true,
            quota_spent: None,
        };
        return AttemptFailure { ending, ..failure };
    }
    if status == 404 && failure.upstream_code.is_none() && message.contains("model") && message.contains("not found") {
        return AttemptFailure { upstream_code: Some(MODEL_NOT_FOUND_CODE.to_owned()), ..failure };
    }
    failure
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

    fn read(status: u16, body: &str) -> AttemptFailure {
        let head = AnswerHead::read(status, &[], 0);
        corrected(failure_of_answer(head, body.as_bytes(), &ErrorPointers::default()))
    }

    #[test]
    fn errors_as_the_server_writes_them() {
        use Verdict::{Failure, Ignored};
        let (hard, soft) = (Failure { hard: true }, Failure { hard: false });
        for (status, body, meant, retryable, target, provider, code) in [
            (
                503,
                r#"{"error":"server busy, please try again.  maximum pending requests exceeded"}"#,
                429,
                true,
                soft,
                Ignored,
                Some(BUSY_CODE),
            ),
            (503, r#"{"error":"the service is down"}"#, 503, true, hard, hard, None),
            (
                404,
                r#"{"error":"model \"q:3b\" not found, try pulling it first"}"#,
                404,
                false,
                Ignored,
                Ignored,
                Some(MODEL_NOT_FOUND_CODE),
            ),
            (404, r#"{"error":"model 'q' not found"}"#, 404, false, Ignored, Ignored, Some(MODEL_NOT_FOUND_CODE)),
            (404, "404 page not found", 404, false, Ignored, Ignored, None),
            (400, r#"{"error":"\"q\" does not support tools"}"#, 400, false, Ignored, Ignored, None),
            (400, r#"{"error":"the input length exceeds the context length"}"#, 400, false, Ignored, Ignored, None),
            (500, r#"{"error":"the input length exceeds the context length"}"#, 400, false, Ignored, Ignored, None),
            (
                500,
                r#"{"error":"model failed to load, this may be due to resource limitations or an internal error"}"#,
                500,
                true,
                hard,
                hard,
                None,
            ),
            (499, r#"{"error":"request canceled"}"#, 499, false, Ignored, Ignored, None),
            (401, r#"{"error":"unauthorized"}"#, 401, false, Ignored, Ignored, None),
        ] {
            let failure = read(status, body);
            let Ending::Status { status: told, .. } = failure.ending else { panic!("{body}") };
            let judged = judge(&failure.ending, Keyed::No);
            assert_eq!((told, failure.status), (meant, Some(status)), "{body}");
            assert_eq!(
                (is_retryable(&failure.ending), judged.target, judged.provider),
                (retryable, target, provider),
                "{body}"
            );
            assert_eq!(failure.upstream_code.as_deref(), code, "{body}");
        }
        assert_eq!(
            read(503, r#"{"error":"maximum pending requests exceeded"}"#).message,
            "maximum pending requests exceeded"
        );
    }

    #[test]
    fn what_is_no_answer_of_the_server_stays_as_it_is() {
        let broken = AttemptFailure::new(Ending::Network { connected: false }, "maximum pending requests exceeded");
        assert_eq!(corrected(broken.clone()), broken);
    }
}
