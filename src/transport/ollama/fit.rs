//! Whether a request fits the context that its model is loaded with. Ollama cuts the front of a conversation that does not, and says
//! nothing; so it is counted here, before anything is sent.

use crate::model::{
    facts::Ending,
    reply::{AttemptFailure, Usage},
};

/// Bytes of ASCII to a token, counted so that real prompts rather have fewer tokens than more.
const ASCII_BYTES_PER_TOKEN: u64 = 3;
/// Bytes of everything else to a token: one and a half for a syllable of Hangul, two for a sign of four bytes.
const OTHER_BYTES_PER_TOKEN: u64 = 2;
/// Tokens that a message costs beside its text: role and marks.
pub const MESSAGE_TOKENS: u64 = 8;
/// Tokens that Ollama itself takes a picture for when it fits a conversation into the context.
pub const IMAGE_TOKENS: u64 = 768;

/// The code of a refusal for length.
pub const TOO_LONG_CODE: &str = "context_length_exceeded";

/// How many tokens a text has at most, as far as its bytes say: vocabularies differ, so this rather counts too many.
pub fn count_tokens(text: &str) -> u64 {
    let ascii = text.bytes().filter(u8::is_ascii).count() as u64;
    let other = text.len() as u64 - ascii;
    ascii.div_ceil(ASCII_BYTES_PER_TOKEN) + other.div_ceil(OTHER_BYTES_PER_TOKEN)
}

/// Refuses a prompt that does not fit beside the answer it asks for. Without a cap of the answer there must be room for one token.
pub fn check(prompt_tokens: u64, output_cap: Option<u64>, num_ctx: u64) -> Result<(), AttemptFailure> {
    let answer = output_cap.unwrap_or(1);
    if prompt_tokens.saturating_add(answer) <= num_ctx {
        return Ok(());
    }
    let message = format!(
        "the prompt has about {prompt_tokens} tokens and its answer may have {answer}: together more than num_ctx = {num_ctx}; \
         nothing was sent"
    );
    Err(too_long(message))
}

fn too_long(message: String) -> AttemptFailure {
    let ending = Ending::Status {
        status: 413,
        retryable: Some(false),
        content_filter: false,
        context_too_long: true,
        quota_spent: None,
    };
    AttemptFailure {
        upstream_code: Some(TOO_LONG_CODE.to_owned()),
        usage: Some(Usage::default()),
        ..AttemptFailure::new(ending, message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::verdict::{Keyed, Verdict, judge};

    #[test]
    fn rather_too_many_than_too_few() {
        for (text, want) in [("", 0), ("a", 1), ("abcd", 2), ("안녕하세요", 8), ("🦀", 2), ("사진 3장", 6)] {
            assert_eq!(count_tokens(text), want, "{text:?}");
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_and_nobody_is_blamed() {
        for (prompt, cap, fits) in
            [(99, None, true), (100, None, false), (90, Some(10), true), (91, Some(10), false), (u64::MAX, None, false)]
        {
            assert_eq!(check(prompt, cap, 100).is_ok(), fits, "{prompt} {cap:?}");
        }
        let failure = check(101, None, 100).unwrap_err();
        assert_eq!(judge(&failure.ending, Keyed::No).target, Verdict::Ignored);
        assert_eq!((failure.status, failure.usage), (None, Some(Usage::default())));
        assert!(failure.message.contains("num_ctx = 100"), "{}", failure.message);
    }
}
