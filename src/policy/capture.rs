//! Which attempts are kept word for word. One decision; chance is handed in. What is kept of them, and where, is others' business.

use super::setting::InvalidSetting;
use crate::model::facts::Ending;

/// Which attempts are kept.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum CaptureRule {
    /// Those that failed: also answers that break the promised shape.
    Errors,
    /// Those, and this share of the others, 0 to 1.
    Sample(f64),
    /// All.
    All,
}

impl CaptureRule {
    /// The rule, if its share is one.
    pub fn checked(self) -> Result<Self, InvalidSetting> {
        match self {
            Self::Sample(share) if !(0.0..=1.0).contains(&share) => {
                Err(InvalidSetting::new("sample_share", share, "must be a share from 0 to 1"))
            }
            rule => Ok(rule),
        }
    }

    /// Whether an attempt that ended so is kept. `chance` is a share in [0, 1), the attempt's own.
    pub fn keeps(self, ended: Result<(), &Ending>, chance: f64) -> bool {
        match self {
            Self::All => true,
            Self::Errors => failed(ended),
            Self::Sample(share) => failed(ended) || chance < share,
        }
    }
}

/// A caller who leaves, and what was never sent, say nothing about the agent.
fn failed(ended: Result<(), &Ending>) -> bool {
    ended.is_err_and(|ending| !matches!(ending, Ending::Cancelled { .. } | Ending::OwnRefusal))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_attempts_are_kept() {
        let left = Ending::Cancelled { slow_without_content: true };
        for (rule, ended, chance, want) in [
            (CaptureRule::All, Ok(()), 0.99, true),
            (CaptureRule::All, Err(&left), 0.99, true),
            (CaptureRule::Errors, Ok(()), 0.0, false),
            (CaptureRule::Errors, Err(&Ending::BadReply), 0.99, true),
            (CaptureRule::Errors, Err(&Ending::Network { connected: false }), 0.99, true),
            (CaptureRule::Errors, Err(&Ending::DeadlineCut), 0.99, true),
            (CaptureRule::Errors, Err(&left), 0.0, false),
            (CaptureRule::Errors, Err(&Ending::OwnRefusal), 0.0, false),
            (CaptureRule::Sample(0.25), Ok(()), 0.25, false),
            (CaptureRule::Sample(0.25), Ok(()), 0.249, true),
            (CaptureRule::Sample(0.25), Err(&left), 0.5, false),
            (CaptureRule::Sample(0.0), Err(&Ending::StreamCut), 0.99, true),
            (CaptureRule::Sample(0.0), Ok(()), 0.0, false),
            (CaptureRule::Sample(1.0), Ok(()), 0.999, true),
        ] {
            assert_eq!(rule.keeps(ended, chance), want, "{rule:?} {ended:?} {chance}");
        }
    }

    #[test]
    fn a_share_is_a_share() {
        for (share, want) in [(0.0, true), (1.0, true), (-0.1, false), (1.1, false), (f64::NAN, false)] {
            assert_eq!(CaptureRule::Sample(share).checked().is_ok(), want, "{share}");
        }
    }
}
