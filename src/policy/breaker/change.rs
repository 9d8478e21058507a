//! Changes of a breaker's state: what its owner and operators may ask for, and what every change does. When it changes by itself is
//! the machine's business.

use std::time::Duration;

use super::{
    machine::{Breaker, Shown, State},
    state::{Reason, StateName, Transition},
    trials::Trials,
};
use crate::model::clock::Timestamp;

/// A change that the present state does not allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a breaker that is {from:?} cannot become {to:?}")]
pub struct IllegalTransition {
    from: StateName,
    to: StateName,
}

impl Breaker {
    /// Opens for the configured time, or until `until` if given, whatever it was. Of an open breaker's deadlines the later one wins.
    pub fn open(&mut self, reason: Reason, until: Option<Timestamp>, now: Timestamp) -> Option<Transition> {
        let until = until.unwrap_or_else(|| now.after(self.open_time()));
        if let State::Open { until: present, reason: present_reason, .. } = &mut self.state {
            if until > *present {
                *present = until;
                *present_reason = reason;
            }
            return None;
        }
        Some(self.enter_open(reason, None, Some(until), now))
    }

    /// The quota behind it is spent until `until`: refuses until then, and of several deadlines the latest wins. A state that an
    /// operator set, or that a refused key forced, stays as it is.
    pub fn cool_down(&mut self, until: Timestamp, now: Timestamp) -> Option<Transition> {
        match self.state {
            State::Closed | State::Open { .. } | State::HalfOpen { .. } => {
                self.open(Reason::QuotaSpent, Some(until), now)
            }
            State::ForcedOpen { .. } | State::Disabled | State::MetricsOnly => None,
        }
    }

    /// Half-opens an open or forced-open breaker.
    pub fn half_open(&mut self, reason: Reason, now: Timestamp) -> Result<Option<Transition>, IllegalTransition> {
        match self.state() {
            StateName::HalfOpen => Ok(None),
            StateName::Open | StateName::ForcedOpen => Ok(Some(self.enter_half_open(reason, now))),
            from => Err(IllegalTransition { from, to: StateName::HalfOpen }),
        }
    }

    /// Closes with an empty window; a closed one stays as it is.
    pub fn close(&mut self, now: Timestamp) -> Option<Transition> {
        (self.state() != StateName::Closed).then(|| self.enter_closed(Reason::Reset, now))
    }

    /// Refuses everything until told otherwise; `until` is only what refused callers are told.
    pub fn force_open(&mut self, reason: Reason, until: Option<Timestamp>, now: Timestamp) -> Option<Transition> {
        if let State::ForcedOpen { reason: present, until: told } = &mut self.state {
            *present = reason;
            *told = until;
            return None;
        }
        Some(self.enter(State::ForcedOpen { reason, until }, reason, None, now))
    }

    /// Admits everything and measures nothing.
    pub fn disable(&mut self, now: Timestamp) -> Option<Transition> {
        self.enter_manual(State::Disabled, StateName::Disabled, now)
    }

    /// Admits everything, measures, and says what it would have done.
    pub fn metrics_only(&mut self, now: Timestamp) -> Option<Transition> {
        self.enter_manual(State::MetricsOnly, StateName::MetricsOnly, now)
    }

    /// Closed and empty, whatever it was. Results of calls that are out count no more: the generation changes even where the state does
    /// not, so the owner publishes its gate anew in any case.
    pub fn reset(&mut self, now: Timestamp) -> Option<Transition> {
        if self.state() == StateName::Closed {
            self.generation = self.generation.wrapping_add(1);
            self.restart_empty();
            return None;
        }
        Some(self.enter_closed(Reason::Reset, now))
    }

    /// A half-open breaker forgets its trials and offers all of them anew: for an owner that may have lost word of some.
    pub fn restart_trials(&mut self, now: Timestamp) {
        if let State::HalfOpen { entered, trials, .. } = &mut self.state {
            *entered = now;
            *trials = Trials::of(self.settings.trials);
            self.generation = self.generation.wrapping_add(1);
        }
    }

    /// Forgets what was measured, without a change of state: what stood above it explains it.
    pub fn restart_empty(&mut self) {
        self.window.clear();
        self.streak.clear();
        self.told.clear();
    }

    pub(super) fn enter_open(
        &mut self,
        reason: Reason,
        value: Option<f64>,
        until: Option<Timestamp>,
        now: Timestamp,
    ) -> Transition {
        let until = until.unwrap_or_else(|| now.after(self.open_time()));
        let shown = self.shown(value.is_some());
        self.openings = self.openings.saturating_add(1);
        self.enter(State::Open { until, reason, shown }, reason, value, now)
    }

    /// How long the next opening lasts: grown, bounded, then lengthened by the jitter.
    fn open_time(&self) -> Duration {
        let grown = self.settings.open_growth.powf(f64::from(self.openings));
        let bounded = (self.settings.open.as_secs_f64() * grown).min(self.settings.open_max.as_secs_f64());
        let jitter = self.settings.open_jitter * self.chance.share(u64::from(self.generation));
        // proof of no panic: `bounded` is over 0 and at most 7 days (checked settings), the factor 1 to 2.
        Duration::from_secs_f64(bounded * (1.0 + jitter))
    }

    /// The counts that an open state goes on showing. Trials that decided early are judged by those that came back.
    fn shown(&self, decided: bool) -> Shown {
        match &self.state {
            State::HalfOpen { trials, .. } => {
                let counts = trials.counts();
                Shown { counts, calls_min: if decided { counts.finished } else { trials.all() } }
            }
            _ => Shown { counts: self.window.totals(), calls_min: self.settings.calls_min },
        }
    }

    pub(super) fn enter_half_open(&mut self, reason: Reason, now: Timestamp) -> Transition {
        let opened_by = match &self.state {
            State::Open { reason, .. } | State::ForcedOpen { reason, .. } | State::HalfOpen { reason, .. } => *reason,
            State::Closed | State::Disabled | State::MetricsOnly => Reason::Forced,
        };
        let state = State::HalfOpen { entered: now, reason: opened_by, trials: Trials::of(self.settings.trials) };
        self.enter(state, reason, None, now)
    }

    pub(super) fn enter_closed(&mut self, reason: Reason, now: Timestamp) -> Transition {
        self.openings = 0;
        self.enter(State::Closed, reason, None, now)
    }

    fn enter_manual(&mut self, state: State, name: StateName, now: Timestamp) -> Option<Transition> {
        if self.state() == name {
            return None;
        }
        Some(self.enter(state, Reason::Forced, None, now))
    }

    /// Every state begins with a generation of its own and nothing measured.
    fn enter(&mut self, state: State, reason: Reason, value: Option<f64>, at: Timestamp) -> Transition {
        let from = self.state();
        self.state = state;
        self.restart_empty();
        self.generation = self.generation.wrapping_add(1);
        Transition { from, to: self.state(), reason, value, at, generation: self.generation }
    }
}
