//! The breaker itself. It is handed every moment and never reads a clock; it decides, and its owner publishes and waits.
//!
//! Everything that can come late carries the generation that it belongs to. A change of state begins a new generation, so whatever
//! an earlier state admitted changes nothing any more, and no counter has to be cleaned up.

use super::{
    fate,
    settings::{BreakerSettings, HalfOpenBy, HalfOpenEnd, HalfOpenFrom, Mode, Scope},
    state::{Effect, GateView, Outcome, Pass, PassKind, Reason, Refusal, Snapshot, StateName, Transition},
    trials::{Decision, Trials},
    window::{Counts, Mark, Source, Window},
};
use crate::{
    model::clock::Timestamp,
    policy::{chance::Chance, setting::InvalidSetting, verdict::Verdict},
};

/// Longest streak that is counted; further failures change nothing.
const STREAK_MAX: u32 = 1_000_000;

/// One breaker.
#[derive(Debug, Clone)]
pub struct Breaker {
    settings: BreakerSettings,
    scope: Scope,
    chance: Chance,
    generation: u32,
    state: State,
    window: Window,
    streak: Streak,
    /// Openings since it was last closed: what `open_growth` grows with.
    openings: u32,
    /// Thresholds that are exceeded in a metrics-only state and were told already.
    told: bool,
}

#[derive(Debug, Clone)]
enum State {
    Closed,
    Open { until: Timestamp, reason: Reason, shown: Counts },
    HalfOpen { entered: Timestamp, reason: Reason, trials: Trials },
    ForcedOpen { reason: Reason, until: Option<Timestamp> },
    Disabled,
    MetricsOnly,
}

/// Hard failures in a row.
#[derive(Debug, Clone, Default)]
struct Streak {
    count: u32,
    sources: Vec<u16>,
    any_connected: bool,
}

/// A change that the present state does not allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a breaker that is {from:?} cannot become {to:?}")]
pub struct IllegalTransition {
    from: StateName,
    to: StateName,
}

impl Breaker {
    /// A breaker of this scope in the state that `settings.mode` says. Refuses settings that break a rule with the first such rule.
    pub fn try_new(settings: BreakerSettings, scope: Scope, chance: Chance) -> Result<Self, InvalidSetting> {
        if let Some(broken) = settings.check().into_iter().next() {
            return Err(broken);
        }
        let state = match settings.mode {
            Mode::Auto => State::Closed,
            Mode::ForcedOpen => State::ForcedOpen { reason: Reason::Forced, until: None },
            Mode::Disabled => State::Disabled,
            Mode::MetricsOnly => State::MetricsOnly,
        };
        let window = Window::new(settings.window, settings.max_age);
        Ok(Self {
            settings,
            scope,
            chance,
            generation: 0,
            state,
            window,
            streak: Streak::default(),
            openings: 0,
            told: false,
        })
    }

    /// The settings it was made with.
    pub fn settings(&self) -> &BreakerSettings {
        &self.settings
    }

    /// The present generation.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// The present state.
    pub fn state(&self) -> StateName {
        match self.state {
            State::Closed => StateName::Closed,
            State::Open { .. } => StateName::Open,
            State::HalfOpen { .. } => StateName::HalfOpen,
            State::ForcedOpen { .. } => StateName::ForcedOpen,
            State::Disabled => StateName::Disabled,
            State::MetricsOnly => StateName::MetricsOnly,
        }
    }

    /// What its gate shows.
    pub fn gate(&self) -> GateView {
        match &self.state {
            State::Closed | State::Disabled | State::MetricsOnly => GateView::Admit,
            State::HalfOpen { trials, reason, .. } => {
                GateView::Probe { free: trials.free(self.settings.trials), reason: *reason }
            }
            State::Open { until, reason, .. } => GateView::Refuse(Refusal { reason: *reason, until: Some(*until) }),
            State::ForcedOpen { reason, until } => GateView::Refuse(Refusal { reason: *reason, until: *until }),
        }
    }

    /// How it looks now.
    pub fn snapshot(&self) -> Snapshot {
        let (counts, calls_min) = match &self.state {
            State::HalfOpen { trials, .. } => (trials.counts(), self.settings.trials),
            State::Open { shown, .. } => (*shown, self.settings.calls_min.min(self.settings.trials)),
            _ => (self.window.totals(), self.settings.calls_min),
        };
        Snapshot {
            state: self.state(),
            generation: self.generation,
            counts,
            failure_share: counts.failure_share(calls_min),
            slow_share: counts.slow_share(calls_min),
        }
    }

    /// The moment of the next timer, if one runs. The owner calls [`Breaker::tick`] then; late is fine.
    pub fn next_timer(&self) -> Option<Timestamp> {
        match &self.state {
            State::Open { until, .. } if self.settings.half_open_by == HalfOpenBy::Timer => Some(*until),
            State::HalfOpen { entered, trials, .. } => {
                let trial = trials.first_timeout(self.settings.trial_timeout);
                let age = self.half_open_end_at(*entered, trials);
                trial.into_iter().chain(age).min()
            }
            _ => None,
        }
    }

    /// Fires every timer that is due at `now`, in their order, each at its own time.
    pub fn tick(&mut self, now: Timestamp) -> Vec<Transition> {
        let mut transitions = Vec::new();
        // Each round leaves a state or settles a trial, so the rounds are bounded by trials; the bound is a proof, not a hope.
        for _ in 0..=2 * (self.settings.trials as usize + 1) {
            match self.next_timer() {
                Some(due) if due <= now => transitions.extend(self.fire(due)),
                _ => break,
            }
        }
        transitions
    }

    /// Asks for admission of call `id`: what replay and single-threaded users call. Live callers pass the published gate instead and the
    /// owner is told by [`Breaker::half_open_by_call`] and [`Breaker::take_trial`].
    pub fn acquire(&mut self, id: u64, now: Timestamp) -> (Result<Pass, Refusal>, Vec<Transition>) {
        let mut transitions = self.tick(now);
        if matches!(self.state, State::Open { until, .. } if until <= now) {
            transitions.extend(self.half_open_by_call(now));
        }
        let generation = self.generation;
        let answer = match self.gate() {
            GateView::Admit => Ok(Pass { id, generation, kind: PassKind::Plain }),
            GateView::Probe { free: 0, reason } => Err(Refusal { reason, until: self.next_timer() }),
            GateView::Probe { .. } => {
                self.take_trial(id, generation, now);
                Ok(Pass { id, generation, kind: PassKind::Trial })
            }
            GateView::Refuse(refusal) => Err(refusal),
        };
        (answer, transitions)
    }

    /// A caller found the open time over and passed the gate as first trial. Nothing happens if the state has changed meanwhile.
    pub fn half_open_by_call(&mut self, now: Timestamp) -> Option<Transition> {
        match self.state {
            State::Open { until, .. } if until <= now => Some(self.enter_half_open(Reason::FirstCall, now)),
            _ => None,
        }
    }

    /// Call `id` took a trial of `generation` at `now`.
    pub fn take_trial(&mut self, id: u64, generation: u32, now: Timestamp) {
        if generation != self.generation {
            return;
        }
        if let State::HalfOpen { trials, .. } = &mut self.state {
            trials.start(id, now);
        }
    }

    /// An attempt of `pass` ran past the slow threshold and is still in flight: counts as slow from now on. Closed state only.
    pub fn aged(&mut self, pass: Pass, source: Source, now: Timestamp) -> Effect {
        let mut effect = Effect { transitions: self.tick(now), ..Effect::default() };
        if pass.generation != self.generation || !self.measures() {
            effect.stale = true;
            return effect;
        }
        self.window.record_pending(pass.id, now, source);
        self.judge(now, &mut effect);
        effect
    }

    /// Takes in how the call of `pass` ended.
    pub fn record(&mut self, pass: Pass, outcome: Outcome, now: Timestamp) -> Effect {
        if outcome.verdict == Verdict::Ignored {
            return self.release(pass, now);
        }
        let mut effect = Effect { transitions: self.tick(now), ..Effect::default() };
        if pass.generation != self.generation {
            effect.stale = true;
            return effect;
        }
        match &mut self.state {
            State::Closed | State::MetricsOnly => {
                let failed = outcome.verdict != Verdict::Success;
                let mark = if failed { Mark::Failed } else { Mark::Passed };
                self.window.record(pass.id, now, outcome.source, mark, outcome.slow);
                self.count_streak(outcome);
                self.judge(now, &mut effect);
            }
            State::HalfOpen { trials, .. } => {
                let failed = outcome.verdict != Verdict::Success;
                if pass.kind == PassKind::Trial && trials.finish(pass.id, failed, outcome.slow) {
                    effect.transitions.extend(self.decide_half_open(now));
                } else {
                    effect.stale = true;
                }
            }
            State::Open { .. } | State::ForcedOpen { .. } | State::Disabled => {}
        }
        effect
    }

    /// The call of `pass` ended as if it had never been: ignored, cancelled, refused further in. A trial goes back.
    pub fn release(&mut self, pass: Pass, now: Timestamp) -> Effect {
        let mut effect = Effect { transitions: self.tick(now), ..Effect::default() };
        if pass.generation != self.generation {
            effect.stale = true;
            return effect;
        }
        match &mut self.state {
            State::HalfOpen { trials, .. } if pass.kind == PassKind::Trial => {
                effect.trial_returned = trials.give_back(pass.id);
                effect.stale = !effect.trial_returned;
            }
            _ => self.window.forget_pending(pass.id),
        }
        effect
    }

    /// Opens for the configured time, or until `until` if given. An open breaker only ever stays open longer.
    pub fn open(&mut self, reason: Reason, until: Option<Timestamp>, now: Timestamp) -> Option<Transition> {
        if let State::Open { until: present, reason: present_reason, .. } = &mut self.state {
            if until.is_some_and(|until| until > *present) {
                *present = until.unwrap_or(*present);
                *present_reason = reason;
            }
            return None;
        }
        Some(self.enter_open(reason, None, until, now))
    }

    /// Half-opens an open or forced-open breaker.
    pub fn half_open(&mut self, reason: Reason, now: Timestamp) -> Result<Option<Transition>, IllegalTransition> {
        match self.state() {
            StateName::HalfOpen => Ok(None),
            StateName::Open | StateName::ForcedOpen => Ok(Some(self.enter_half_open(reason, now))),
            from => Err(IllegalTransition { from, to: StateName::HalfOpen }),
        }
    }

    /// Closes with an empty window.
    pub fn close(&mut self, now: Timestamp) -> Option<Transition> {
        (self.state() != StateName::Closed).then(|| self.enter_closed(Reason::Reset, None, now))
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

    /// Closed and empty, whatever it was. Results of calls that are out count no more.
    pub fn reset(&mut self, now: Timestamp) -> Option<Transition> {
        if self.state() == StateName::Closed {
            self.generation = self.generation.wrapping_add(1);
            self.restart_empty();
            return None;
        }
        Some(self.enter_closed(Reason::Reset, None, now))
    }

    /// A half-open breaker forgets its trials and offers all of them anew: for an owner that may have lost word of some.
    pub fn restart_trials(&mut self, now: Timestamp) {
        if let State::HalfOpen { entered, trials, .. } = &mut self.state {
            *entered = now;
            *trials = Trials::default();
            self.generation = self.generation.wrapping_add(1);
        }
    }

    /// Forgets what was measured, without a change of state: what stood above it explains it.
    pub fn restart_empty(&mut self) {
        self.window.clear();
        self.streak = Streak::default();
        self.told = false;
    }

    fn measures(&self) -> bool {
        matches!(self.state, State::Closed | State::MetricsOnly)
    }

    fn count_streak(&mut self, outcome: Outcome) {
        match outcome.verdict {
            Verdict::Success => self.streak = Streak::default(),
            Verdict::Failure { hard: true } => {
                self.streak.count = (self.streak.count + 1).min(STREAK_MAX);
                self.streak.any_connected |= outcome.connected;
                if !self.streak.sources.contains(&outcome.source.agent) {
                    self.streak.sources.push(outcome.source.agent);
                }
            }
            Verdict::Failure { hard: false } | Verdict::Ignored => {}
        }
    }

    /// Compares the window with the thresholds and opens, or says so.
    fn judge(&mut self, now: Timestamp, effect: &mut Effect) {
        self.window.prune(now);
        let exceeded = self.exceeded();
        let Some((reason, value)) = exceeded.first().copied() else {
            self.told = false;
            return;
        };
        if matches!(self.state, State::MetricsOnly) {
            if !self.told {
                self.told = true;
                effect.exceeded = exceeded;
            }
            return;
        }
        effect.exceeded = exceeded;
        effect.transitions.push(self.enter_open(reason, Some(value), None, now));
    }

    fn exceeded(&self) -> Vec<(Reason, f64)> {
        let mut exceeded = Vec::new();
        let counts = self.window.totals();
        let settings = &self.settings;
        let shares = [
            (Reason::FailureShare, counts.failure_share(settings.calls_min), settings.failure_share),
            (Reason::SlowShare, counts.slow_share(settings.calls_min), settings.slow_share),
        ];
        for (reason, share, threshold) in shares {
            let Some(share) = share.filter(|share| *share >= threshold) else { continue };
            if self.scope != Scope::Provider || fate::is_shared(&self.window.by_source(), reason) {
                exceeded.push((reason, share));
            }
        }
        let limit = if self.scope == Scope::Key { None } else { settings.consecutive_failures };
        if limit.is_some_and(|limit| self.streak.count >= limit) {
            let of_all = self.streak.sources.len() >= 2 || !self.streak.any_connected;
            if self.scope != Scope::Provider || of_all {
                exceeded.push((Reason::Consecutive, f64::from(self.streak.count)));
            }
        }
        exceeded
    }

    fn decide_half_open(&mut self, now: Timestamp) -> Option<Transition> {
        let State::HalfOpen { trials, .. } = &self.state else { return None };
        match trials.decide(&self.settings) {
            Decision::Undecided => None,
            Decision::Close => Some(self.enter_closed(Reason::TrialsPassed, None, now)),
            Decision::Open { reason, value } => Some(self.enter_open(reason, Some(value), None, now)),
        }
    }

    fn half_open_end_at(&self, entered: Timestamp, trials: &Trials) -> Option<Timestamp> {
        let from = match self.settings.half_open_from {
            HalfOpenFrom::Entry => Some(entered),
            HalfOpenFrom::FirstTrial => trials.first_taken(),
        };
        Some(from?.after(self.settings.half_open_max?))
    }

    /// Fires the timer that is due at `due`.
    fn fire(&mut self, due: Timestamp) -> Option<Transition> {
        match &mut self.state {
            State::Open { .. } => Some(self.enter_half_open(Reason::OpenElapsed, due)),
            State::HalfOpen { trials, .. } => {
                if trials.time_out(self.settings.trial_timeout, due) {
                    return self.decide_half_open(due);
                }
                match self.settings.half_open_end {
                    HalfOpenEnd::Open => Some(self.enter_open(Reason::HalfOpenMax, None, None, due)),
                    HalfOpenEnd::Closed => Some(self.enter_closed(Reason::HalfOpenMax, None, due)),
                }
            }
            _ => None,
        }
    }

    fn enter_open(
        &mut self,
        reason: Reason,
        value: Option<f64>,
        until: Option<Timestamp>,
        now: Timestamp,
    ) -> Transition {
        let shown = match &self.state {
            State::HalfOpen { trials, .. } => trials.counts(),
            _ => self.window.totals(),
        };
        let grown = self.settings.open_growth.powf(f64::from(self.openings.min(1_000)));
        let bounded = (self.settings.open.as_secs_f64() * grown).min(self.settings.open_max.as_secs_f64());
        let jitter = self.settings.open_jitter * self.chance.share(u64::from(self.generation));
        // proof of no overflow: `bounded` is at most 7 days (checked settings), the factor at most 2.
        let wait = std::time::Duration::from_secs_f64(bounded * (1.0 + jitter));
        self.openings = self.openings.saturating_add(1);
        let until = until.unwrap_or_else(|| now.after(wait));
        self.enter(State::Open { until, reason, shown }, reason, value, now)
    }

    fn enter_half_open(&mut self, reason: Reason, now: Timestamp) -> Transition {
        let opened_by = match &self.state {
            State::Open { reason, .. } | State::ForcedOpen { reason, .. } | State::HalfOpen { reason, .. } => *reason,
            State::Closed | State::Disabled | State::MetricsOnly => Reason::Forced,
        };
        let state = State::HalfOpen { entered: now, reason: opened_by, trials: Trials::default() };
        self.enter(state, reason, None, now)
    }

    fn enter_closed(&mut self, reason: Reason, value: Option<f64>, now: Timestamp) -> Transition {
        self.openings = 0;
        self.restart_empty();
        self.enter(State::Closed, reason, value, now)
    }

    fn enter_manual(&mut self, state: State, name: StateName, now: Timestamp) -> Option<Transition> {
        if self.state() == name {
            return None;
        }
        self.restart_empty();
        Some(self.enter(state, Reason::Forced, None, now))
    }

    fn enter(&mut self, state: State, reason: Reason, value: Option<f64>, at: Timestamp) -> Transition {
        let from = self.state();
        self.state = state;
        self.told = false;
        self.streak = Streak::default();
        self.generation = self.generation.wrapping_add(1);
        Transition { from, to: self.state(), reason, value, at, generation: self.generation }
    }
}
