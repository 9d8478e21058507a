//! The breaker itself. It is handed every moment and never reads a clock; it decides, and its owner publishes and waits.
//!
//! Everything that can come late carries the generation that it belongs to. A change of state begins a new generation, so whatever
//! an earlier state admitted changes nothing any more, and no counter has to be cleaned up.

use super::{
    fate,
    settings::{BreakerSettings, HalfOpenBy, HalfOpenEnd, HalfOpenFrom, Mode, Scope},
    state::{Effect, GateView, Outcome, Pass, PassKind, Reason, Refusal, Snapshot, StateName, Transition},
    streak::Streak,
    trials::{Decision, Trials},
    window::{Counts, Mark, Source, Window},
};
use crate::{
    model::clock::Timestamp,
    policy::{chance::Chance, setting::InvalidSetting, verdict::Verdict},
};

/// A breaker that nobody looked at for long goes through so many missed changes one by one, each at its own time; what is due after
/// that happens now. Only a half-open state that ends by its age without being asked can miss so many.
const CATCH_UP_ROUNDS_MAX: usize = 1_000;

/// One breaker.
#[derive(Debug, Clone)]
pub struct Breaker {
    pub(super) settings: BreakerSettings,
    scope: Scope,
    pub(super) chance: Chance,
    pub(super) generation: u32,
    pub(super) state: State,
    pub(super) window: Window,
    pub(super) streak: Streak,
    /// Openings since it was last closed: what `open_growth` grows with.
    pub(super) openings: u32,
    /// Thresholds that are exceeded in a metrics-only state and were told already.
    pub(super) told: Vec<Reason>,
}

#[derive(Debug, Clone)]
pub(super) enum State {
    Closed,
    Open { until: Timestamp, reason: Reason, shown: Shown },
    HalfOpen { entered: Timestamp, reason: Reason, trials: Trials },
    ForcedOpen { reason: Reason, until: Option<Timestamp> },
    Disabled,
    MetricsOnly,
}

/// What it had measured when it opened, for people to see.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shown {
    pub(super) counts: Counts,
    /// From how many outcomes on those counts were judged.
    pub(super) calls_min: u32,
}

impl Breaker {
    /// A breaker of this scope in the state that `settings.mode` says. Refuses settings that it could not work with, by the first
    /// such rule.
    pub fn try_new(settings: BreakerSettings, scope: Scope, chance: Chance) -> Result<Self, InvalidSetting> {
        if let Some(broken) = settings.check_workable().into_iter().next() {
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
            told: Vec::new(),
        })
    }

    /// The settings it has now.
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
            State::HalfOpen { trials, reason, .. } => GateView::Probe { free: trials.free(), reason: *reason },
            State::Open { until, reason, .. } => GateView::Refuse(Refusal { reason: *reason, until: Some(*until) }),
            State::ForcedOpen { reason, until } => GateView::Refuse(Refusal { reason: *reason, until: *until }),
        }
    }

    /// How it looks as of the last moment that it was handed.
    pub fn snapshot(&self) -> Snapshot {
        let (counts, calls_min) = match &self.state {
            State::HalfOpen { trials, .. } => (trials.counts(), trials.all()),
            State::Open { shown, .. } => (shown.counts, shown.calls_min),
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
                let trial = trials.first_timeout();
                let age = self.half_open_end_at(*entered, trials);
                trial.into_iter().chain(age).min()
            }
            _ => None,
        }
    }

    /// Fires every timer that is due at `now`, in their order, each at its own time, and forgets outcomes that are too old.
    pub fn tick(&mut self, now: Timestamp) -> Vec<Transition> {
        let mut transitions = Vec::new();
        let trials = match &self.state {
            State::HalfOpen { trials, .. } => trials.all().max(self.settings.trials) as usize,
            _ => self.settings.trials as usize,
        };
        let at_own_time = CATCH_UP_ROUNDS_MAX + trials;
        // Each round leaves a state or settles a trial. Once they fire at `now`, at most all trials, the half-open state and an open one
        // are left, and every state entered at `now` ends later.
        for round in 0..at_own_time + trials + 2 {
            match self.next_timer() {
                Some(due) if due <= now => transitions.extend(self.fire(if round < at_own_time { due } else { now })),
                _ => break,
            }
        }
        if self.measures() {
            self.window.prune(now);
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

    /// Call `id` took a trial of `generation` at `now`. Nothing happens if the state has changed meanwhile or none is free.
    pub fn take_trial(&mut self, id: u64, generation: u32, now: Timestamp) {
        if generation != self.generation {
            return;
        }
        if let State::HalfOpen { trials, .. } = &mut self.state
            && trials.free() > 0
        {
            trials.start(id, self.settings.trial_timeout, now);
        }
    }

    /// An attempt of `pass` ran past the slow threshold and is still in flight: counts as slow from now on. Closed state only.
    pub fn aged(&mut self, pass: Pass, source: Source, now: Timestamp) -> Effect {
        let mut effect = Effect { transitions: self.tick(now), ..Effect::default() };
        if pass.generation != self.generation {
            effect.stale = true;
        } else if self.measures() && self.window.record_pending(pass.id, now, source) {
            self.judge(now, &mut effect);
        }
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

    fn measures(&self) -> bool {
        matches!(self.state, State::Closed | State::MetricsOnly)
    }

    fn count_streak(&mut self, outcome: Outcome) {
        match outcome.verdict {
            Verdict::Success => self.streak.clear(),
            Verdict::Failure { hard: true } => {
                let limit = self.settings.consecutive_failures.unwrap_or(0);
                self.streak.count(outcome.source.agent, outcome.connected, limit);
            }
            Verdict::Failure { hard: false } | Verdict::Ignored => {}
        }
    }

    /// Compares the window with the thresholds and opens, or says so.
    fn judge(&mut self, now: Timestamp, effect: &mut Effect) {
        self.window.prune(now);
        let exceeded = self.exceeded();
        if matches!(self.state, State::MetricsOnly) {
            let now_exceeded = exceeded.iter().map(|(reason, _)| *reason).collect();
            let told = std::mem::replace(&mut self.told, now_exceeded);
            effect.exceeded = exceeded.into_iter().filter(|(reason, _)| !told.contains(reason)).collect();
            return;
        }
        if let Some((reason, value)) = exceeded.first().copied() {
            effect.exceeded = exceeded;
            effect.transitions.push(self.enter_open(reason, Some(value), None, now));
        }
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
        if limit.is_some_and(|limit| self.streak.len() >= limit)
            && (self.scope != Scope::Provider || self.streak.is_shared())
        {
            exceeded.push((Reason::Consecutive, f64::from(self.streak.len())));
        }
        exceeded
    }

    pub(super) fn decide_half_open(&mut self, now: Timestamp) -> Option<Transition> {
        let State::HalfOpen { trials, .. } = &self.state else { return None };
        match trials.decide(&self.settings) {
            Decision::Undecided => None,
            Decision::Close => Some(self.enter_closed(Reason::TrialsPassed, now)),
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
                if trials.time_out(due) {
                    return self.decide_half_open(due);
                }
                match self.settings.half_open_end {
                    HalfOpenEnd::Open => Some(self.enter_open(Reason::HalfOpenMax, None, None, due)),
                    HalfOpenEnd::Closed => Some(self.enter_closed(Reason::HalfOpenMax, due)),
                }
            }
            _ => None,
        }
    }
}
