//! What an attempt costs by its model's price. A model without a price has no cost, which is not the same as none.

use std::time::Duration;

use crate::model::{cost::Cost, reply::Usage};

/// A price is for so many tokens.
const TOKENS_PER_PRICE: u128 = 1_000_000;
const NANOS_PER_SECOND: u128 = 1_000_000_000;

/// A model's price.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Price {
    /// A million tokens of the prompt.
    pub input: Cost,
    /// A million tokens of the prompt that the server had in its cache; `None` = as any other.
    pub cached_input: Option<Cost>,
    /// A million tokens of the answer.
    pub output: Cost,
    /// A second of the attempt.
    pub second: Cost,
}

impl Price {
    /// The cost of so many tokens and so much time, each part rounded up to a billionth.
    pub fn cost(&self, usage: Usage, took: Duration) -> Cost {
        let cached = usage.cached_tokens.min(usage.prompt_tokens);
        let parts = [
            (self.input, u128::from(usage.prompt_tokens - cached), TOKENS_PER_PRICE),
            (self.cached_input.unwrap_or(self.input), u128::from(cached), TOKENS_PER_PRICE),
            (self.output, u128::from(usage.output_tokens), TOKENS_PER_PRICE),
            (self.second, took.as_nanos(), NANOS_PER_SECOND),
        ];
        parts.into_iter().fold(Cost::ZERO, |sum, (price, count, unit)| {
            let nanos = u128::from(price.nanos()).saturating_mul(count).div_ceil(unit);
            sum.plus(Cost::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn units(units: f64) -> Cost {
        Cost::from_units(units).unwrap()
    }

    #[test]
    fn parts_add_up() {
        let price =
            Price { input: units(2.5), cached_input: Some(units(1.25)), output: units(10.0), second: units(0.001) };
        let usage = |prompt_tokens, cached_tokens, output_tokens| Usage {
            prompt_tokens,
            cached_tokens,
            output_tokens,
            ..Usage::default()
        };
        let no_time = Duration::ZERO;
        for (usage, took, want) in [
            (usage(0, 0, 0), no_time, "0"),
            (usage(1_000_000, 0, 0), no_time, "2.5"),
            (usage(1_000_000, 400_000, 0), no_time, "2"),
            (usage(1_000, 5_000, 0), no_time, "0.00125"),
            (usage(0, 0, 123), no_time, "0.00123"),
            (usage(1, 0, 1), no_time, "0.0000125"),
            (usage(0, 0, 0), Duration::from_millis(1_500), "0.0015"),
        ] {
            assert_eq!(price.cost(usage, took).to_string(), want, "{usage:?}");
        }
        let whole = Price { cached_input: None, ..price };
        assert_eq!(whole.cost(usage(1_000_000, 400_000, 0), no_time).to_string(), "2.5");
        let tiny = Price { input: Cost::from_nanos(1), ..Price::default() };
        assert_eq!(tiny.cost(usage(1, 0, 0), no_time), Cost::from_nanos(1), "nothing that costs is free");
        assert_eq!(price.cost(usage(u64::MAX, 0, u64::MAX), Duration::MAX), Cost::from_nanos(u64::MAX));
    }
}
