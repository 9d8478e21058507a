//! Tokens used: as a server told them, or counted by us and marked as such. An answer without numbers is never free.

use serde_json::Value;

use crate::{
    model::reply::{SIDE_TOKENS_MAX, Usage},
    runtime::tally::Tally,
};

/// A number of tokens as a server tells it. One that no model can have used is as good as none.
pub fn tokens(told: &Value) -> Option<u64> {
    // Some servers write whole numbers as floats.
    let whole =
        |number: f64| (number.fract() == 0.0 && (0.0..=SIDE_TOKENS_MAX as f64).contains(&number)).then_some(number);
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a whole number within a bound far below 2^53"
    )]
    let number = told.as_u64().or_else(|| told.as_f64().and_then(whole).map(|number| number as u64));
    number.filter(|tokens| *tokens <= SIDE_TOKENS_MAX)
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
            ..known
        });
    }
}

/// What an answer used of which so much is known.
#[derive(Debug, Clone, Copy, Default)]
pub struct Known {
    /// The server's last word.
    pub told: Option<Usage>,
    /// All tokens together, where it told that.
    pub total: Option<u64>,
    /// Pieces of output that came.
    pub pieces: u64,
    /// How many of them had come when the server said its last word.
    pub pieces_told: u64,
}

impl Known {
    /// The server's word as far as it goes. No prompt has no tokens and neither has an answer that said something, so a zero is no word;
    /// and a word that more of the answer followed is too small. What is missing is counted, and all of it is marked then.
    pub fn usage(self, tally: &Tally, prompt: impl FnOnce() -> u64) -> Usage {
        let Some(told) = self.told.filter(|told| told.prompt_tokens > 0 || told.output_tokens > 0) else {
            return self.counted(tally.estimate(prompt, self.pieces));
        };
        let is_short = self.pieces > self.pieces_told || (told.output_tokens == 0 && self.pieces > 0);
        if told.prompt_tokens > 0 && !is_short {
            return told;
        }
        let counted = tally.estimate(prompt, self.pieces);
        let prompt_tokens = if told.prompt_tokens > 0 { told.prompt_tokens } else { counted.prompt_tokens };
        let output_tokens = if is_short { told.output_tokens.max(counted.output_tokens) } else { told.output_tokens };
        let is_as_told = (prompt_tokens, output_tokens) == (told.prompt_tokens, told.output_tokens);
        if is_as_told {
            told
        } else {
            Usage { prompt_tokens, output_tokens, cached_tokens: told.cached_tokens, ..counted }
        }
    }

    /// Where only the sum was told, that is what was used, and only its parts are a guess.
    fn counted(self, counted: Usage) -> Usage {
        let Some(total) = self.total.filter(|total| *total > 0) else { return counted };
        let output_tokens = counted.output_tokens.min(total);
        Usage { prompt_tokens: total - output_tokens, output_tokens, ..counted }
    }
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
            (
                json!({"prompt_tokens": SIDE_TOKENS_MAX, "completion_tokens": SIDE_TOKENS_MAX + 1}),
                usage(SIDE_TOKENS_MAX, 0),
            ),
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
    fn what_is_not_told_is_counted() {
        let told = |prompt_tokens, output_tokens| Some(Usage { prompt_tokens, output_tokens, ..Usage::default() });
        let all = |told| Known { told, total: None, pieces: 8, pieces_told: 8 };
        for (what, known, want) in [
            ("all of it", all(told(25, 15)), (25, 15, false)),
            ("fewer tokens than pieces, after the last", all(told(25, 3)), (25, 3, false)),
            ("nothing", all(None), (100, 10, true)),
            ("zeros", all(told(0, 0)), (100, 10, true)),
            ("no prompt", all(told(0, 15)), (100, 15, true)),
            ("no answer", all(told(25, 0)), (25, 10, true)),
            ("an answer that said nothing", Known { told: told(25, 0), ..Known::default() }, (25, 0, false)),
            ("a first number, and then nothing", Known { pieces_told: 0, ..all(told(25, 1)) }, (25, 10, true)),
            ("a number that had run ahead", Known { pieces_told: 7, ..all(told(25, 15)) }, (25, 15, false)),
            ("a sum", Known { total: Some(40), ..all(None) }, (30, 10, true)),
            ("a sum below what was heard", Known { total: Some(4), ..all(None) }, (0, 4, true)),
            ("a sum of nothing", Known { total: Some(0), ..all(None) }, (100, 10, true)),
            ("all of it and another sum", Known { total: Some(99), ..all(told(25, 15)) }, (25, 15, false)),
        ] {
            let tally = Tally::default();
            tally.heard(&"four".repeat(10));
            let usage = known.usage(&tally, || 100);
            assert_eq!((usage.prompt_tokens, usage.output_tokens, usage.estimated), want, "{what}");
            assert_eq!(usage.counted_by.is_some(), usage.estimated, "{what}");
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
