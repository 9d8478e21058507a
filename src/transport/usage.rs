//! Tokens used: as a server told them, or counted by us and marked as such. An answer without numbers is never free.

use serde_json::Value;

use crate::model::reply::Usage;

/// Letters of plain English text to a token, and of everything else (Hangul, CJK, signs); from counts with common vocabularies.
const ASCII_CHARS_PER_TOKEN: u64 = 4;
const OTHER_CHARS_PER_TOKEN: u64 = 2;

/// The most tokens that one answer is believed to have used, on either side. More than any model can, and little enough to be added up.
pub const TOKENS_MAX: u64 = 1_000_000_000;

/// A number of tokens as a server tells it. One that no model can have used is as good as none.
pub fn tokens(told: &Value) -> Option<u64> {
    told.as_u64().filter(|tokens| *tokens <= TOKENS_MAX)
}

/// The usage in an object that names it in one of the common ways; `None` where it names neither side.
pub fn told(usage: &Value) -> Option<Usage> {
    let mut read = None;
    update(&mut read, usage);
    read
}

/// Takes over what `told` names. Streams tell totals so far: the last one holds, and a side that it leaves out keeps its number.
pub fn update(usage: &mut Option<Usage>, told: &Value) {
    let number = |name: &str| told.get(name).and_then(tokens);
    let within = |details: &str, name: &str| told.get(details)?.get(name).and_then(tokens);
    let cached = within("prompt_tokens_details", "cached_tokens")
        .or_else(|| within("input_tokens_details", "cached_tokens"))
        .or_else(|| number("cache_read_input_tokens"));
    // Where a vendor tells reads and writes of its cache apart, they are beside the `input_tokens` and not among them.
    let beside = ["cache_read_input_tokens", "cache_creation_input_tokens"].iter().filter_map(|name| number(name));
    let with_cache = |input: u64| beside.fold(input, u64::saturating_add);
    let prompt = number("prompt_tokens").or_else(|| number("input_tokens").map(with_cache));
    let output = number("output_tokens").or_else(|| number("completion_tokens"));
    if prompt.is_some() || output.is_some() {
        let known = usage.unwrap_or_default();
        *usage = Some(Usage {
            prompt_tokens: prompt.unwrap_or(known.prompt_tokens),
            output_tokens: output.unwrap_or(known.output_tokens),
            cached_tokens: cached.unwrap_or(known.cached_tokens),
            estimated: false,
            cost: known.cost,
        });
    }
}

/// About how many tokens a text has; at least 1 for a text that is not empty.
pub fn estimate_tokens(text: &str) -> u64 {
    let (mut ascii, mut other) = (0_u64, 0_u64);
    for letter in text.chars() {
        if letter.is_ascii() {
            ascii += 1;
        } else {
            other += 1;
        }
    }
    ascii.div_ceil(ASCII_CHARS_PER_TOKEN) + other.div_ceil(OTHER_CHARS_PER_TOKEN)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use serde_json::json;

    use super::*;

    #[test]
    fn told_in_different_ways() {
        let usage = |prompt_tokens, output_tokens| {
            Some(Usage { prompt_tokens, output_tokens, estimated: false, ..Usage::default() })
        };
        for (given, want) in [
            (json!({"prompt_tokens": 35, "completion_tokens": 3, "total_tokens": 38}), usage(35, 3)),
            (json!({"prompt_tokens": 35, "output_tokens": 3}), usage(35, 3)),
            (json!({"input_tokens": 25, "output_tokens": 15}), usage(25, 15)),
            (json!({"output_tokens": 15}), usage(0, 15)),
            (json!({"prompt_tokens": -1, "completion_tokens": "3"}), None),
            (json!({"total_tokens": 40}), None),
            (json!({"prompt_tokens": u64::MAX, "completion_tokens": 9_223_372_036_854_775_807_u64}), None),
            (json!({"prompt_tokens": TOKENS_MAX, "completion_tokens": TOKENS_MAX + 1}), usage(TOKENS_MAX, 0)),
            (json!(null), None),
        ] {
            assert_eq!(told(&given), want, "{given}");
        }
    }

    #[test]
    fn what_came_from_a_cache() {
        for (given, want) in [
            (
                json!({"prompt_tokens": 35, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 32}}),
                (35, 32),
            ),
            (json!({"input_tokens": 35, "output_tokens": 3, "input_tokens_details": {"cached_tokens": 30}}), (35, 30)),
            (
                json!({"input_tokens": 5, "cache_read_input_tokens": 20, "cache_creation_input_tokens": 10, "output_tokens": 1}),
                (35, 20),
            ),
            (json!({"prompt_tokens": 35, "cache_read_input_tokens": 20}), (35, 20)),
            (json!({"prompt_tokens": 35, "prompt_tokens_details": null}), (35, 0)),
        ] {
            let usage = told(&given).unwrap();
            assert_eq!((usage.prompt_tokens, usage.cached_tokens), want, "{given}");
        }
    }

    #[test]
    fn estimates() {
        for (text, want) in [("", 0), ("a", 1), ("Say hello in five words.", 6), ("안녕하세요", 3), ("안녕 hi", 2)]
        {
            assert_eq!(estimate_tokens(text), want, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn whatever_a_server_tells_of_its_tokens_is_read_or_not(
            keys in prop::collection::vec("prompt_tokens|completion_tokens|input_tokens|output_tokens|x", 0..5),
            values in prop::collection::vec("-?[0-9]{1,25}|null|true|1e9|\"5\"|\\{\\}", 5),
        ) {
            let mut told = serde_json::Map::new();
            for (key, value) in keys.into_iter().zip(values) {
                told.insert(key, serde_json::from_str(&value).unwrap_or(serde_json::Value::Null));
            }
            let mut running = None;
            update(&mut running, &serde_json::Value::Object(told.clone()));
            prop_assert_eq!(running, super::told(&serde_json::Value::Object(told)));
        }
    }
}
