//! What one run may use in all: calls, tokens, money. A cap that is reached refuses the run's next call, for good; what is under way ends.

use crate::model::{cost::Cost, reply::Usage};

/// The caps of every run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RunCaps {
    /// Calls.
    pub calls_max: Option<u64>,
    /// Tokens of prompts and answers together.
    pub tokens_max: Option<u64>,
    /// Money. Calls of models without a price count nothing here.
    pub cost_max: Option<Cost>,
}

/// A cap that is reached.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the run has used up its {cap} = {limit}")]
pub struct CapReached {
    /// Its key.
    pub cap: &'static str,
    /// Its value.
    pub limit: String,
}

impl RunCaps {
    /// Whether a run may make one more call that has made so many, those under way included, and has used so much, as far as is known.
    pub fn check(&self, calls: u64, usage: Usage) -> Result<(), CapReached> {
        let tokens = usage.prompt_tokens.saturating_add(usage.output_tokens);
        let reached = |cap, limit: String| Err(CapReached { cap, limit });
        match *self {
            Self { calls_max: Some(most), .. } if calls >= most => reached("calls_max", most.to_string()),
            Self { tokens_max: Some(most), .. } if tokens >= most => reached("tokens_max", most.to_string()),
            Self { cost_max: Some(most), .. } if usage.cost.is_some_and(|cost| cost >= most) => {
                reached("cost_max", most.to_string())
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_cap_that_is_reached_is_named() {
        let caps = RunCaps { calls_max: Some(3), tokens_max: Some(100), cost_max: Cost::from_units(0.5) };
        let usage = |prompt_tokens, output_tokens, cost: Option<f64>| Usage {
            prompt_tokens,
            output_tokens,
            cost: cost.and_then(Cost::from_units),
            ..Usage::default()
        };
        for (calls, used, want) in [
            (0, usage(0, 0, None), None),
            (2, usage(50, 49, Some(0.499_999_999)), None),
            (3, usage(0, 0, None), Some("calls_max = 3")),
            (2, usage(50, 50, None), Some("tokens_max = 100")),
            (2, usage(0, 0, Some(0.5)), Some("cost_max = 0.5")),
            (u64::MAX, usage(u64::MAX, u64::MAX, Some(9.0)), Some("calls_max = 3")),
        ] {
            let got = caps.check(calls, used).err().map(|reached| reached.to_string());
            assert_eq!(got, want.map(|want| format!("the run has used up its {want}")));
        }
        assert_eq!(RunCaps::default().check(u64::MAX, usage(u64::MAX, 1, Some(9.0))), Ok(()));
    }
}
