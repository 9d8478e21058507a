//! What the codes and types of well-known servers mean, where the status alone does not say it. Words in, meaning out.

/// What a code says beyond its status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Meaning {
    /// A refusal by content review.
    pub content_filter: bool,
    /// The prompt does not fit the model.
    pub context_too_long: bool,
    /// A quota is used up; a rate limit is not.
    pub quota_spent: bool,
}

const CONTENT_FILTER: &[&str] = &[
    "content_filter",
    "content_filtered",
    "content_policy_violation",
    "responsible_aipolicy_violation", // as Azure writes it, with an abbreviation in the middle
    "moderation_blocked",
    "prompt_blocked",
];

const CONTEXT_TOO_LONG: &[&str] = &[
    "context_length_exceeded",
    "context_window_exceeded",
    "exceed_context_size_error", // llama.cpp
    "max_tokens_exceeded",
    "token_request_too_large", // a nested Watertight
];

const QUOTA_SPENT: &[&str] = &[
    "insufficient_quota",
    "insufficient_credits",
    "quota_exceeded",
    "quota_spent", // a nested Watertight
    "billing_hard_limit_reached",
    "billing_not_active",
];

/// Servers that name no code say it in their message: vLLM, hosted Claude, llama.cpp's plain texts.
const CONTEXT_TOO_LONG_PHRASES: &[&str] = &["maximum context length", "prompt is too long", "available context size"];

/// What an answer of this status with these words means. `words` are its code and type, as they were sent.
pub fn meaning(status: u16, words: &[&str], message: &str) -> Meaning {
    let words: Vec<String> = words.iter().map(|word| snake_case(word)).collect();
    let names = |known: &[&str]| words.iter().any(|word| known.contains(&word.as_str()));
    let says = |phrases: &[&str]| {
        let lower = message.to_ascii_lowercase();
        phrases.iter().any(|phrase| lower.contains(phrase))
    };
    Meaning {
        content_filter: names(CONTENT_FILTER),
        context_too_long: names(CONTEXT_TOO_LONG)
            || (matches!(status, 400 | 413 | 422) && says(CONTEXT_TOO_LONG_PHRASES)),
        quota_spent: names(QUOTA_SPENT) || status == 402,
    }
}

/// The status of an error that came inside a 200 and named none by number.
pub fn status_by_words(words: &[&str], message: &str) -> u16 {
    let known = meaning(400, words, message);
    if known.content_filter || known.context_too_long {
        return 400;
    }
    if known.quota_spent {
        return 429;
    }
    let parts: Vec<String> = words.iter().flat_map(|word| parts_of(&snake_case(word))).collect();
    let has = |any: &[&str]| parts.iter().any(|part| any.contains(&part.as_str()));
    let invalid_request = has(&["invalid", "bad", "malformed", "missing"])
        && has(&["request", "input", "argument", "parameter", "param", "value", "prompt", "schema"]);
    if invalid_request || has(&["validation", "context", "filter", "moderation"]) {
        400
    } else if has(&["rate", "ratelimit", "quota"]) {
        429
    } else if has(&["overloaded", "overload"]) {
        503
    } else {
        502
    }
}

/// `RateLimitExceeded`, `rate-limit exceeded` and `RATE_LIMIT_EXCEEDED` are one word.
fn snake_case(word: &str) -> String {
    let mut out = String::with_capacity(word.len() + 4);
    let mut after_lower = false;
    for letter in word.chars() {
        if letter.is_ascii_alphanumeric() {
            if after_lower && letter.is_ascii_uppercase() {
                out.push('_');
            }
            out.push(letter.to_ascii_lowercase());
        } else if !out.ends_with('_') {
            out.push('_');
        }
        after_lower = letter.is_ascii_lowercase();
    }
    out
}

fn parts_of(snake: &str) -> Vec<String> {
    snake.split('_').map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_one_kind_are_one_word() {
        for (word, want) in [
            ("RATE_LIMIT_EXCEEDED", "rate_limit_exceeded"),
            ("RateLimitExceeded", "rate_limit_exceeded"),
            ("rate-limit exceeded", "rate_limit_exceeded"),
            ("", ""),
            ("한글", "_"),
        ] {
            assert_eq!(snake_case(word), want, "{word:?}");
        }
    }

    #[test]
    fn status_of_errors_without_a_number() {
        for (words, want) in [
            (&["invalid_request_error"][..], 400),
            (&["INVALID_ARGUMENT"], 400),
            (&["BadRequestError"], 400),
            (&["context_length_exceeded", "x"], 400),
            (&["content_filter"], 400),
            (&["ValidationError"], 400),
            (&["rate_limit_exceeded"], 429),
            (&["RateLimitError"], 429),
            (&["insufficient_quota"], 429),
            (&["overloaded_error"], 503),
            (&["overloaded"], 503),
            (&["server_error"], 502),
            (&["generate_error"], 502),
            (&["invalid_api_key"], 502),
            (&["api_error"], 502),
            (&[], 502),
        ] {
            assert_eq!(status_by_words(words, ""), want, "{words:?}");
        }
    }

    #[test]
    fn meanings() {
        let none = Meaning::default();
        let context = Meaning { context_too_long: true, ..none };
        for (status, words, message, want) in [
            (400, &["content_filter"][..], "", Meaning { content_filter: true, ..none }),
            (400, &["ResponsibleAIPolicyViolation"], "", Meaning { content_filter: true, ..none }),
            (400, &["exceed_context_size_error"], "", context),
            (400, &["invalid_request_error"], "Prompt is too long: 9 tokens > 8 maximum", context),
            (500, &["server_error"], "prompt is too long", none),
            (429, &["insufficient_quota"], "", Meaning { quota_spent: true, ..none }),
            (429, &["rate_limit_exceeded"], "", none),
            (402, &[], "", Meaning { quota_spent: true, ..none }),
            (503, &["unavailable_error"], "Loading model", none),
        ] {
            assert_eq!(meaning(status, words, message), want, "{status} {words:?} {message}");
        }
    }
}
