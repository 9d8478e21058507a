//! Slow is an axis of its own, beside success and failure. Ageing of an attempt in flight asks the same question.

use std::time::Duration;

/// What is compared with the threshold.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum SlowBy {
    /// The whole attempt.
    Total,
    /// The time to the first content.
    FirstToken,
    /// The time to the first content, and after it fewer tokens a second than this.
    Pace(f64),
}

/// What is known of an attempt, ended or in flight.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Timing {
    /// Since it began.
    pub elapsed: Duration,
    /// From its beginning to its first content.
    pub first_content: Option<Duration>,
    /// Tokens of the answer so far.
    pub tokens: u64,
}

impl SlowBy {
    /// Whether an attempt is slow: longer than `slow_call`; exactly `slow_call` is not.
    pub fn is_slow(self, slow_call: Duration, timing: Timing) -> bool {
        let until_content = timing.first_content.unwrap_or(timing.elapsed);
        match self {
            Self::Total => timing.elapsed > slow_call,
            Self::FirstToken => until_content > slow_call,
            Self::Pace(tokens_per_second_min) => {
                if until_content > slow_call {
                    return true;
                }
                // A pace is only known over a stretch of time; before `slow_call` has passed an answer may still speed up.
                let Some(first) = timing.first_content else { return false };
                let stretch = timing.elapsed.saturating_sub(first);
                stretch > slow_call && (timing.tokens as f64) < tokens_per_second_min * stretch.as_secs_f64()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds() {
        let ms = Duration::from_millis;
        let total = |elapsed| Timing { elapsed: ms(elapsed), ..Timing::default() };
        let stream = |first, elapsed, tokens| Timing { elapsed: ms(elapsed), first_content: Some(ms(first)), tokens };
        for (by, timing, slow) in [
            (SlowBy::Total, total(30_000), false),
            (SlowBy::Total, total(30_001), true),
            (SlowBy::Total, stream(100, 30_001, 900), true),
            (SlowBy::FirstToken, stream(30_000, 90_000, 900), false),
            (SlowBy::FirstToken, stream(30_001, 31_000, 5), true),
            (SlowBy::FirstToken, total(30_001), true),
            (SlowBy::Pace(5.0), stream(1_000, 61_000, 299), true),
            (SlowBy::Pace(5.0), stream(1_000, 61_000, 300), false),
            (SlowBy::Pace(5.0), stream(1_000, 20_000, 3), false),
        ] {
            assert_eq!(by.is_slow(ms(30_000), timing), slow, "{by:?} {timing:?}");
        }
    }
}
