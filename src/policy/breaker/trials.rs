//! The trials of one half-open state: who is out, how those that came back did, and whether that decides.

use std::time::Duration;

use super::{settings::BreakerSettings, state::Reason, window::Counts};
use crate::model::clock::Timestamp;

#[derive(Debug, Clone, Copy)]
struct Running {
    id: u64,
    since: Timestamp,
    /// When it has failed if it is not back; as it was when it was taken.
    due: Option<Timestamp>,
}

/// The trials.
#[derive(Debug, Clone, Default)]
pub(super) struct Trials {
    /// How many there are, as it was when the state began: other settings hold from the next half-open state on.
    of: u32,
    running: Vec<Running>,
    /// When the earliest of the settled trials was taken. One that went back leaves no trace: it was as if never taken.
    first_settled: Option<Timestamp>,
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
    /// So many trials, none of them taken.
    pub(super) fn of(trials: u32) -> Self {
        Self { of: trials, ..Self::default() }
    }

    /// How many there are in all.
    pub(super) fn all(&self) -> u32 {
        self.of
    }

    pub(super) fn free(&self) -> u32 {
        let taken = u32::try_from(self.running.len()).unwrap_or(u32::MAX).saturating_add(self.counts.finished);
        self.of.saturating_sub(taken)
    }

    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    pub(super) fn first_taken(&self) -> Option<Timestamp> {
        self.running.iter().map(|trial| trial.since).chain(self.first_settled).min()
    }

    pub(super) fn start(&mut self, id: u64, trial_timeout: Option<Duration>, now: Timestamp) {
        self.running.push(Running { id, since: now, due: trial_timeout.map(|timeout| now.after(timeout)) });
    }

    /// False if the trial is not out: it was settled already.
    pub(super) fn finish(&mut self, id: u64, failed: bool, slow: bool) -> bool {
        let Some(trial) = self.remove(id) else { return false };
        self.settle(trial, failed, slow);
        true
    }

    /// False if the trial is not out.
    pub(super) fn give_back(&mut self, id: u64) -> bool {
        self.remove(id).is_some()
    }

    pub(super) fn first_timeout(&self) -> Option<Timestamp> {
        self.running.iter().filter_map(|trial| trial.due).min()
    }

    /// Fails one trial that is due at `due`. False if none is.
    pub(super) fn time_out(&mut self, due: Timestamp) -> bool {
        let is_due = |trial: &Running| trial.due.is_some_and(|own| own <= due);
        let Some(index) = self.running.iter().position(is_due) else {
            return false;
        };
        let trial = self.running.remove(index);
        self.settle(trial, true, false);
        true
    }

    /// The same shares as in the closed state, over all trials; early once those still out cannot change it.
    pub(super) fn decide(&self, settings: &BreakerSettings) -> Decision {
        let trials = f64::from(self.of);
        let out = self.of.saturating_sub(self.counts.finished);
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

    fn remove(&mut self, id: u64) -> Option<Running> {
        let index = self.running.iter().position(|trial| trial.id == id)?;
        Some(self.running.remove(index))
    }

    fn settle(&mut self, trial: Running, failed: bool, slow: bool) {
        self.first_settled = Some(self.first_settled.map_or(trial.since, |first| first.min(trial.since)));
        self.counts.entries += 1;
        self.counts.finished += 1;
        self.counts.failed += u32::from(failed);
        self.counts.slow += u32::from(slow);
        self.counts.good += u32::from(!failed && !slow);
    }
}
