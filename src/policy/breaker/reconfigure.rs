//! Other settings for a breaker that lives: what it learnt stays, what it began ends as it began. A reload must not close a breaker, shut
//! one, or let a sick service have trials before their time.

use super::{
    machine::{Breaker, State},
    settings::{BreakerSettings, Mode},
    state::{Reason, Transition},
};
use crate::{model::clock::Timestamp, policy::setting::InvalidSetting};

impl Breaker {
    /// Works by `settings` from now on. An open breaker stays open until the moment that it has told its callers, a half-open one keeps
    /// the trials that it began with, and each of them its timeout; the window is kept as far as the new one has room, and judged with
    /// the next outcome. A mode changes the state only if the configured mode is another one than before: else what an operator set
    /// stays. A key that was refused gets trials: a reload may have brought another one.
    ///
    /// Refuses settings that it could not work with, by the first such rule; nothing has changed then.
    pub fn reconfigure(
        &mut self,
        settings: BreakerSettings,
        now: Timestamp,
    ) -> Result<Vec<Transition>, InvalidSetting> {
        if let Some(broken) = settings.check_workable().into_iter().next() {
            return Err(broken);
        }
        // Whatever was due before happens by the old settings.
        let mut transitions = self.tick(now);
        let before = std::mem::replace(&mut self.settings, settings);
        if (before.window, before.max_age) != (self.settings.window, self.settings.max_age) {
            self.window.resize(self.settings.window, self.settings.max_age, now);
        }
        if before.mode != self.settings.mode {
            transitions.extend(self.follow_mode(now));
        }
        if matches!(self.state, State::ForcedOpen { reason: Reason::KeyRejected, .. }) {
            transitions.push(self.enter_half_open(Reason::Reset, now));
        }
        // An age limit may have become shorter than the state is old.
        transitions.extend(self.tick(now));
        Ok(transitions)
    }

    /// What it guards is another place from now on, under the same name. What was measured of the one before counts no more, and neither do
    /// results and trials that are out. The state stays: an open breaker keeps the moment that it has told its callers, and a half-open one
    /// gives all of its trials to the new place. The owner publishes its gate anew.
    pub fn begin_elsewhere(&mut self, now: Timestamp) {
        match self.state {
            State::HalfOpen { .. } => self.restart_trials(now),
            // What is out has been of no account since it opened.
            State::Open { .. } | State::ForcedOpen { .. } => {}
            _ => self.generation = self.generation.wrapping_add(1),
        }
        self.restart_empty();
    }

    fn follow_mode(&mut self, now: Timestamp) -> Option<Transition> {
        match self.settings.mode {
            Mode::ForcedOpen => self.force_open(Reason::Forced, None, now),
            Mode::Disabled => self.disable(now),
            Mode::MetricsOnly => self.metrics_only(now),
            Mode::Auto => match self.state {
                State::Disabled | State::MetricsOnly | State::ForcedOpen { reason: Reason::Forced, .. } => {
                    self.close(now)
                }
                _ => None,
            },
        }
    }
}
