//! The trials of one half-open state: who is out, how those that came back did, and whether that decides.

use std::time::Duration;

use super::{settings::BreakerSettings, state::Reason, window::Counts};
use crate::model::clock::Timestamp;

#[derive(Debug, Clone, Copy)]
struct Running {
    id: u64,
    since: Timestamp,
}

/// The trials.
#[derive(Debug, Clone, Default)]
pub(super) struct Trials {
    running: Vec<Running>,
    first_taken: Option<Timestamp>,
    counts: Counts,
}

/// What the trials say so far.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Decision {
    /// Not enough.
    Undecided,
    /// Well.
    Close,
    /// Badly.
    Open {
        /// On which axis.
        reason: Reason,
        /// The share of all trials.
        value: f64,
    },
}

impl Trials {
    pub(super) fn free(&self, trials: u32) -> u32 {
        let taken = u32::try_from(self.running.len()).unwrap_or(u32::MAX).saturating_add(self.counts.finished);
        trials.saturating_sub(taken)
    }

    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    pub(super) fn first_taken(&self) -> Option<Timestamp> {
        self.first_taken
    }

    pub(super) fn start(&mut self, id: u64, now: Timestamp) {
        self.first_taken.get_or_insert(now);
        self.running.push(Running { id, since: now });
    }

    /// False if the trial is not out: it was settled already.
    pub(super) fn finish(&mut self, id: u64, failed: bool, slow: bool) -> bool {
        if !self.remove(id) {
            return false;
        }
        self.count(failed, slow);
        true
    }

    /// False if the trial is not out.
    pub(super) fn give_back(&mut self, id: u64) -> bool {
        let out = self.remove(id);
        if self.running.is_empty() && self.counts.finished == 0 {
            // As if nobody had asked: the age limit begins with the next first trial.
            self.first_taken = None;
        }
        out
    }

    pub(super) fn first_timeout(&self, trial_timeout: Option<Duration>) -> Option<Timestamp> {
        let timeout = trial_timeout?;
        self.running.iter().map(|trial| trial.since.after(timeout)).min()
    }

    /// Fails one trial that is due at `due`. False if none is.
    pub(super) fn time_out(&mut self, trial_timeout: Option<Duration>, due: Timestamp) -> bool {
        let Some(timeout) = trial_timeout else { return false };
        let Some(index) = self.running.iter().position(|trial| trial.since.after(timeout) <= due) else {
            return false;
        };
        self.running.remove(index);
        self.count(true, false);
        true
    }

    /// The same shares as in the closed state, over all trials; early once those still out cannot change it.
    pub(super) fn decide(&self, settings: &BreakerSettings) -> Decision {
        let trials = f64::from(settings.trials);
        let out = settings.trials.saturating_sub(self.counts.finished);
        if out > 0 && !settings.early_verdict {
            return Decision::Undecided;
        }
        let axes = [
            (Reason::FailureShare, self.counts.failed, settings.failure_share),
            (Reason::SlowShare, self.counts.slow, settings.slow_share),
        ];
        for (reason, bad, threshold) in axes {
            let value = f64::from(bad) / trials;
            if value >= threshold {
                return Decision::Open { reason, value };
            }
        }
        let cannot_turn = axes.iter().all(|(_, bad, threshold)| f64::from(bad + out) / trials < *threshold);
        if cannot_turn { Decision::Close } else { Decision::Undecided }
    }

    fn remove(&mut self, id: u64) -> bool {
        let index = self.running.iter().position(|trial| trial.id == id);
        index.map(|index| self.running.remove(index)).is_some()
    }

    fn count(&mut self, failed: bool, slow: bool) {
        self.counts.entries += 1;
        self.counts.finished += 1;
        self.counts.failed += u32::from(failed);
        self.counts.slow += u32::from(slow);
        self.counts.good += u32::from(!failed && !slow);
    }
}
