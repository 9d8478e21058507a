//! Whether a request fits the context that its model is loaded with. Ollama cuts the front of a conversation that does not, and says
//! nothing; so it is counted here, before anything is sent.

use serde_json::Value;
use tokio::task::spawn_blocking;

use crate::{
    model::{
        facts::Ending,
        reply::{AttemptFailure, Usage},
    },
    runtime::token_count::Vocabulary,
};

/// Bytes of ASCII to a token, counted so that real prompts rather have fewer tokens than more.
const ASCII_BYTES_PER_TOKEN: u64 = 3;
/// Bytes of everything else to a token: one and a half for a syllable of Hangul, two for a sign of four bytes.
const OTHER_BYTES_PER_TOKEN: u64 = 2;
/// Tokens that a message costs beside its text: role and marks.
const MESSAGE_TOKENS: u64 = 8;
/// Tokens that Ollama itself takes a picture for when it fits a conversation into the context.
const IMAGE_TOKENS: u64 = 768;

/// The code of a refusal for length.
pub const TOO_LONG_CODE: &str = "context_length_exceeded";

/// How many tokens a text has at most, as far as its bytes say: vocabularies differ, so this rather counts too many.
pub fn count_tokens(text: &str) -> u64 {
    let ascii = text.bytes().filter(u8::is_ascii).count() as u64;
    let other = text.len() as u64 - ascii;
    ascii.div_ceil(ASCII_BYTES_PER_TOKEN) + other.div_ceil(OTHER_BYTES_PER_TOKEN)
}

/// Everything of a request that takes up context.
#[derive(Debug, Default)]
pub(super) struct Prompt {
    texts: Vec<String>,
    /// Tokens of what is no text.
    beside: u64,
}

impl Prompt {
    /// A text alone.
    pub(super) fn of_text(text: &str) -> Self {
        Self { texts: vec![text.to_owned()], beside: 0 }
    }

    /// The messages of a request as they are sent, with the tools that go along.
    pub(super) fn of_chat(messages: &[Value], tools: Option<&Value>) -> Self {
        let mut prompt = Self::default();
        for message in messages {
            prompt.beside += MESSAGE_TOKENS;
            let images = message.get("images").and_then(Value::as_array).map_or(0, Vec::len);
            prompt.beside += IMAGE_TOKENS * images as u64;
            let texts = ["content", "thinking"].iter().filter_map(|key| message.get(*key)).filter_map(Value::as_str);
            prompt.texts.extend(texts.filter(|text| !text.is_empty()).map(str::to_owned));
            prompt.texts.extend(message.get("tool_calls").map(Value::to_string));
        }
        prompt.texts.extend(tools.map(Value::to_string));
        prompt
    }

    fn counted(&self, count: impl Fn(&str) -> u64) -> u64 {
        self.beside.saturating_add(self.texts.iter().map(|text| count(text)).sum())
    }

    /// Its tokens, or the refusal of one that does not fit beside the answer it asks for; without a cap of the answer there must be room
    /// for one token. What is near the limit by its bytes is counted by the vocabulary of the model's family, on a thread that may take
    /// its time.
    pub(super) async fn fit(self, model: &str, output_cap: Option<u64>, num_ctx: u64) -> Result<u64, AttemptFailure> {
        let answer = output_cap.unwrap_or(1);
        let fits = |tokens: u64| tokens.saturating_add(answer) <= num_ctx;
        let at_most = self.counted(count_tokens);
        if fits(at_most) {
            return Ok(at_most);
        }
        let family = Vocabulary::of_model(model);
        let tokens = spawn_blocking(move || self.counted(|text| family.count(text))).await.unwrap_or(at_most);
        if fits(tokens) {
            return Ok(tokens);
        }
        Err(too_long(format!(
            "the prompt has about {tokens} tokens and its answer may have {answer}: together more than num_ctx = {num_ctx}; \
             nothing was sent"
        )))
    }
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
    use serde_json::json;

    use super::*;
    use crate::policy::verdict::{Keyed, Verdict, judge};

    #[test]
    fn rather_too_many_than_too_few() {
        for (text, want) in [("", 0), ("a", 1), ("abcd", 2), ("안녕하세요", 8), ("🦀", 2), ("사진 3장", 6)] {
            assert_eq!(count_tokens(text), want, "{text:?}");
        }
        let post =
            "The path along the river was quiet, and the light on the water changed every few minutes. ".repeat(20);
        let notes = "강가의 길은 조용했고, 물 위의 빛은 몇 분마다 바뀌었다. 사진을 세 장 찍었다. ".repeat(20);
        for text in [post, notes] {
            for family in [Vocabulary::Qwen, Vocabulary::Llama, Vocabulary::O200k] {
                assert!(count_tokens(&text) >= family.count(&text), "{family:?}: {text:.40}");
            }
        }
    }

    #[tokio::test]
    async fn what_does_not_fit_is_refused_and_nobody_is_blamed() {
        // By bytes 5 a word, by any vocabulary about one.
        let words = |count: usize| Prompt::of_text(&"understandable ".repeat(count));
        for (count, cap, num_ctx, fits) in [
            (10, None, 100, true),
            (90, None, 200, true),
            (90, Some(150), 200, false),
            (400, None, 200, false),
            (10, Some(u64::MAX), 100, false),
        ] {
            let got = words(count).fit("qwen2.5:3b", cap, num_ctx).await;
            assert_eq!(got.is_ok(), fits, "{count} words, {cap:?} of {num_ctx}: {got:?}");
        }
        let failure = words(400).fit("qwen2.5:3b", None, 200).await.unwrap_err();
        assert_eq!(judge(&failure.ending, Keyed::No).target, Verdict::Ignored);
        assert_eq!((failure.status, failure.usage), (None, Some(Usage::default())));
        assert!(failure.message.contains("num_ctx = 200"), "{}", failure.message);
    }

    #[test]
    fn everything_that_takes_up_context_is_counted() {
        let plain = |message: Value| Prompt::of_chat(&[message], None).counted(count_tokens);
        let base = plain(json!({"role": "user", "content": ""}));
        assert_eq!(base, MESSAGE_TOKENS);
        for more in [
            json!({"role": "user", "content": "abcdef"}),
            json!({"role": "user", "content": "", "images": ["QUJD"]}),
            json!({"role": "assistant", "content": "", "thinking": "abcdef"}),
            json!({"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "a", "arguments": {}}}]}),
        ] {
            assert!(plain(more.clone()) > base, "{more}");
        }
        let tools = json!([{"type": "function", "function": {"name": "look"}}]);
        assert!(Prompt::of_chat(&[], Some(&tools)).counted(count_tokens) > 10);
    }
}
