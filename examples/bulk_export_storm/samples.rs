//! How long things took, and what is said of it: percentiles by nearest rank, so that each is a value that was really seen. Where there
//! are too few samples for one, it is not said.

use std::{collections::BTreeMap, time::Duration};

/// What was seen of one group of callers.
#[derive(Debug, Clone, Default)]
pub(crate) struct Samples {
    /// From the first time of asking to the answer, in milliseconds, refusals and waits between them included.
    pub(crate) took_ms: Vec<f64>,
    /// Answers that refused, by reason.
    pub(crate) refused: BTreeMap<String, u64>,
    /// Questions that were given up.
    pub(crate) given_up: u64,
    /// Tokens of what was answered.
    pub(crate) tokens: u64,
    /// How long the answers alone took, without waits and refusals: what was held of the provider's slots.
    pub(crate) held: Duration,
}

impl Samples {
    /// An answer.
    pub(crate) fn answered(&mut self, took: Duration, held: Duration, tokens: u64) {
        self.took_ms.push(took.as_secs_f64() * 1_000.0);
        self.held += held;
        self.tokens += tokens;
    }

    /// A refusal, or an error.
    pub(crate) fn refused(&mut self, reason: &str) {
        *self.refused.entry(reason.to_owned()).or_default() += 1;
    }

    /// All of both.
    pub(crate) fn and(&mut self, other: Self) {
        self.took_ms.extend(other.took_ms);
        for (reason, count) in other.refused {
            *self.refused.entry(reason).or_default() += count;
        }
        self.given_up += other.given_up;
        self.held += other.held;
        self.tokens += other.tokens;
    }

    /// How many refusals, whatever the reason.
    pub(crate) fn refused_sum(&self) -> u64 {
        self.refused.values().sum()
    }

    /// The sample that so many of a hundred are not above, by nearest rank; `None` where the largest sample alone would have to stand for
    /// it.
    pub(crate) fn percentile(&self, percent: u32) -> Option<f64> {
        let count = self.took_ms.len();
        let rank = (count * percent as usize).div_ceil(100);
        if rank == 0 || rank == count {
            return None;
        }
        let mut sorted = self.took_ms.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(rank - 1).copied()
    }
}
