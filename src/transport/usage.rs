//! Tokens used: as a server told them, or counted by us and marked as such. An answer without numbers is never free.

use serde_json::Value;

use crate::model::reply::Usage;

/// Letters of plain English text to a token, and of everything else (Hangul, CJK, signs); from counts with common vocabularies.
const ASCII_CHARS_PER_TOKEN: u64 = 4;
const OTHER_CHARS_PER_TOKEN: u64 = 2;

/// The usage in an object that names it in one of the common ways; `None` where it names neither side.
pub fn told(usage: &Value) -> Option<Usage> {
    let mut read = None;
    update(&mut read, usage);
    read
}

/// Takes over what `told` names. Streams tell totals so far: the last one holds, and a side that it leaves out keeps its number.
pub fn update(usage: &mut Option<Usage>, told: &Value) {
    let count = |names: [&str; 2]| names.iter().find_map(|name| told.get(*name).and_then(Value::as_u64));
    let prompt = count(["prompt_tokens", "input_tokens"]);
    let output = count(["output_tokens", "completion_tokens"]);
    if prompt.is_some() || output.is_some() {
        let known = usage.unwrap_or_default();
        *usage = Some(Usage {
            prompt_tokens: prompt.unwrap_or(known.prompt_tokens),
            output_tokens: output.unwrap_or(known.output_tokens),
            estimated: false,
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
        let usage = |prompt_tokens, output_tokens| Some(Usage { prompt_tokens, output_tokens, estimated: false });
        for (given, want) in [
            (json!({"prompt_tokens": 35, "completion_tokens": 3, "total_tokens": 38}), usage(35, 3)),
            (json!({"prompt_tokens": 35, "output_tokens": 3}), usage(35, 3)),
            (json!({"input_tokens": 25, "output_tokens": 15}), usage(25, 15)),
            (json!({"output_tokens": 15}), usage(0, 15)),
            (json!({"prompt_tokens": -1, "completion_tokens": "3"}), None),
            (json!({"total_tokens": 40}), None),
            (json!(null), None),
        ] {
            assert_eq!(told(&given), want, "{given}");
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
