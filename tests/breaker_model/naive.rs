//! The breaker written a second time, the slow way: a list of outcomes that is recounted at every question, timers that are looked up one
//! by one. It shares the settings and words with the real one and none of its code.

use std::time::Duration;

use proptest::prelude::*;
use watertight::{
    model::clock::Timestamp,
    policy::{
        breaker::{
            machine::Breaker,
            settings::{BreakerSettings, HalfOpenBy, HalfOpenEnd, HalfOpenFrom, Mode, Probe, Scope, WindowKind},
            state::{Outcome, Pass, PassKind, Reason, StateName, Transition},
            window::Source,
        },
        chance::Chance,
        verdict::Verdict,
    },
};

#[derive(Debug, Clone, Copy)]
enum Event {
    Wait {
        milliseconds: u64,
    },
    Acquire,
    /// How one of the calls ends; it may have ended before.
    End {
        call: usize,
        verdict: Verdict,
        slow: bool,
    },
    Release {
        call: usize,
    },
    Aged {
        call: usize,
    },
    Reset,
    RestartEmpty,
    Close,
    HalfOpen,
    ForceOpen,
    Disable,
    MetricsOnly,
    CoolDown {
        milliseconds: u64,
    },
}

/// A line of the list: one outcome, or one attempt that is slow and still out.
#[derive(Debug, Clone, Copy)]
struct Line {
    id: u64,
    at: Timestamp,
    failed: Option<bool>,
    slow: bool,
}

#[derive(Debug, Clone, Copy)]
struct Trial {
    id: u64,
    at: Timestamp,
    /// Failed, slow.
    result: Option<(bool, bool)>,
}

#[derive(Debug)]
struct Model {
    settings: BreakerSettings,
    state: StateName,
    entered: Timestamp,
    open_until: Timestamp,
    generation: u32,
    lines: Vec<Line>,
    hard_in_a_row: u32,
    trials: Vec<Trial>,
    openings: i32,
    changes: Vec<(StateName, StateName, Reason, Timestamp)>,
}

impl Model {
    fn new(settings: BreakerSettings) -> Self {
        Self {
            settings,
            state: StateName::Closed,
            entered: Timestamp::ZERO,
            open_until: Timestamp::ZERO,
            generation: 0,
            lines: Vec::new(),
            hard_in_a_row: 0,
            trials: Vec::new(),
            openings: 0,
            changes: Vec::new(),
        }
    }

    fn go(&mut self, to: StateName, reason: Reason, at: Timestamp) {
        if to == StateName::Open {
            let seconds = self.settings.open.as_secs_f64() * self.settings.open_growth.powi(self.openings);
            self.open_until = at.after(Duration::from_secs_f64(seconds.min(self.settings.open_max.as_secs_f64())));
            self.openings += 1;
        }
        if to == StateName::Closed {
            self.openings = 0;
        }
        self.changes.push((self.state, to, reason, at));
        self.state = to;
        self.entered = at;
        self.generation += 1;
        self.forget();
        self.trials.clear();
    }

    fn forget(&mut self) {
        self.lines.clear();
        self.hard_in_a_row = 0;
    }

    fn forget_old(&mut self, now: Timestamp) {
        match self.settings.window {
            WindowKind::Calls(_) => {
                if let Some(max_age) = self.settings.max_age {
                    self.lines.retain(|line| now.since(line.at) <= max_age);
                }
            }
            WindowKind::Time(window) => {
                let second = |at: Timestamp| at.nanoseconds() / 1_000_000_000;
                self.lines.retain(|line| second(line.at) + window.as_secs() > second(now));
            }
        }
    }

    fn write(&mut self, line: Line) {
        if let WindowKind::Calls(calls) = self.settings.window
            && self.lines.len() == calls as usize
        {
            self.lines.remove(0);
        }
        self.lines.push(line);
    }

    fn judge(&mut self, now: Timestamp) {
        if self.state != StateName::Closed {
            return;
        }
        let finished: Vec<bool> = self.lines.iter().filter_map(|line| line.failed).collect();
        let failed = finished.iter().filter(|failed| **failed).count();
        let slow = self.lines.iter().filter(|line| line.slow).count();
        let minimum = self.settings.calls_min as usize;
        let reason =
            if finished.len() >= minimum && failed as f64 >= self.settings.failure_share * finished.len() as f64 {
                Some(Reason::FailureShare)
            } else if self.lines.len() >= minimum && slow as f64 >= self.settings.slow_share * self.lines.len() as f64 {
                Some(Reason::SlowShare)
            } else if self.settings.consecutive_failures.is_some_and(|limit| self.hard_in_a_row >= limit) {
                Some(Reason::Consecutive)
            } else {
                None
            };
        if let Some(reason) = reason {
            self.go(StateName::Open, reason, now);
        }
    }

    fn judge_trials(&mut self, now: Timestamp) {
        let all = self.settings.trials as usize;
        let results: Vec<(bool, bool)> = self.trials.iter().filter_map(|trial| trial.result).collect();
        let left = all - results.len();
        if left > 0 && !self.settings.early_verdict {
            return;
        }
        // Whatever the trials that are left bring: the best and the worst that can become of it.
        let opens = |bad: usize, threshold: f64| bad as f64 >= threshold * all as f64;
        let failed = results.iter().filter(|result| result.0).count();
        let slow = results.iter().filter(|result| result.1).count();
        let (failure_share, slow_share) = (self.settings.failure_share, self.settings.slow_share);
        if opens(failed, failure_share) {
            self.go(StateName::Open, Reason::FailureShare, now);
        } else if opens(slow, slow_share) {
            self.go(StateName::Open, Reason::SlowShare, now);
        } else if !opens(failed + left, failure_share) && !opens(slow + left, slow_share) {
            self.go(StateName::Closed, Reason::TrialsPassed, now);
        }
    }

    /// Lets the time come, one nearest event after the other.
    fn until(&mut self, now: Timestamp) {
        loop {
            let lost = self.settings.trial_timeout.and_then(|timeout| {
                let out = self.trials.iter().filter(|trial| trial.result.is_none());
                out.map(|trial| (trial.at.after(timeout), trial.id)).min()
            });
            let from = match self.settings.half_open_from {
                HalfOpenFrom::Entry => Some(self.entered),
                HalfOpenFrom::FirstTrial => self.trials.iter().map(|trial| trial.at).min(),
            };
            let age = from.zip(self.settings.half_open_max).map(|(from, max)| from.after(max));
            match self.state {
                StateName::Open if self.settings.half_open_by == HalfOpenBy::Timer && self.open_until <= now => {
                    self.go(StateName::HalfOpen, Reason::OpenElapsed, self.open_until);
                }
                StateName::HalfOpen => match (lost, age) {
                    (Some((at, id)), age) if at <= now && age.is_none_or(|age| at <= age) => {
                        let trial = self.trials.iter_mut().find(|trial| trial.id == id).unwrap();
                        trial.result = Some((true, false));
                        self.judge_trials(at);
                    }
                    (_, Some(age)) if age <= now => {
                        let end = match self.settings.half_open_end {
                            HalfOpenEnd::Open => StateName::Open,
                            HalfOpenEnd::Closed => StateName::Closed,
                        };
                        self.go(end, Reason::HalfOpenMax, age);
                    }
                    _ => return self.forget_old(now),
                },
                _ => return self.forget_old(now),
            }
        }
    }

    /// The kind of pass, if any.
    fn acquire(&mut self, id: u64, now: Timestamp) -> Option<PassKind> {
        if self.state == StateName::Open && self.open_until <= now {
            self.go(StateName::HalfOpen, Reason::FirstCall, now);
        }
        match self.state {
            StateName::Closed | StateName::Disabled | StateName::MetricsOnly => Some(PassKind::Plain),
            StateName::HalfOpen if self.trials.len() < self.settings.trials as usize => {
                self.trials.push(Trial { id, at: now, result: None });
                Some(PassKind::Trial)
            }
            _ => None,
        }
    }

    fn end(&mut self, pass: Pass, verdict: Verdict, slow: bool, now: Timestamp) {
        if verdict == Verdict::Ignored {
            return self.release(pass);
        }
        if pass.generation != self.generation {
            return;
        }
        let failed = verdict != Verdict::Success;
        match self.state {
            StateName::Closed | StateName::MetricsOnly => {
                match self.lines.iter_mut().find(|line| line.id == pass.id && line.failed.is_none()) {
                    Some(pending) => pending.failed = Some(failed),
                    None => self.write(Line { id: pass.id, at: now, failed: Some(failed), slow }),
                }
                match verdict {
                    Verdict::Failure { hard: true } => self.hard_in_a_row += 1,
                    Verdict::Success => self.hard_in_a_row = 0,
                    _ => {}
                }
                self.judge(now);
            }
            StateName::HalfOpen => {
                let out = |trial: &&mut Trial| trial.id == pass.id && trial.result.is_none();
                if let Some(trial) = self.trials.iter_mut().find(out) {
                    trial.result = Some((failed, slow));
                    self.judge_trials(now);
                }
            }
            _ => {}
        }
    }

    fn release(&mut self, pass: Pass) {
        if pass.generation == self.generation {
            self.lines.retain(|line| line.id != pass.id || line.failed.is_some());
            self.trials.retain(|trial| trial.id != pass.id || trial.result.is_some());
        }
    }

    fn aged(&mut self, pass: Pass, now: Timestamp) {
        let known = self.lines.iter().any(|line| line.id == pass.id && line.failed.is_none());
        let measures = matches!(self.state, StateName::Closed | StateName::MetricsOnly);
        if pass.generation == self.generation && measures && !known {
            self.write(Line { id: pass.id, at: now, failed: None, slow: true });
            self.judge(now);
        }
    }

    fn manual(&mut self, to: StateName, reason: Reason, now: Timestamp) {
        if self.state != to {
            self.go(to, reason, now);
        }
    }

    fn cool_down(&mut self, until: Timestamp, now: Timestamp) {
        match self.state {
            StateName::Open => self.open_until = self.open_until.max(until),
            StateName::Closed | StateName::HalfOpen => {
                self.go(StateName::Open, Reason::QuotaSpent, now);
                self.open_until = until;
            }
            _ => {}
        }
    }

    /// Entries, finished, failed, slow; of what an open state shows the real one alone knows.
    fn counts(&self) -> Option<(usize, usize, usize, usize)> {
        match self.state {
            StateName::Open => None,
            StateName::HalfOpen => {
                let results: Vec<_> = self.trials.iter().filter_map(|trial| trial.result).collect();
                let failed = results.iter().filter(|result| result.0).count();
                Some((results.len(), results.len(), failed, results.iter().filter(|result| result.1).count()))
            }
            _ => {
                let finished = self.lines.iter().filter(|line| line.failed.is_some()).count();
                let failed = self.lines.iter().filter(|line| line.failed == Some(true)).count();
                Some((self.lines.len(), finished, failed, self.lines.iter().filter(|line| line.slow).count()))
            }
        }
    }
}

/// The real breaker and the model, side by side.
struct Pair {
    breaker: Breaker,
    model: Model,
    now: Timestamp,
    passes: Vec<Pass>,
    calls: u64,
    changes: Vec<Transition>,
}

impl Pair {
    fn perform(&mut self, event: Event) {
        let now = match event {
            Event::Wait { milliseconds } => self.now.after(Duration::from_millis(milliseconds)),
            _ => self.now,
        };
        self.now = now;
        self.model.until(now);
        let fired = self.breaker.tick(now);
        self.changes.extend(fired);
        let change = match event {
            Event::Wait { .. } => None,
            Event::Acquire => {
                self.acquire();
                None
            }
            Event::End { .. } | Event::Release { .. } | Event::Aged { .. } => {
                self.end_or_age(event);
                None
            }
            Event::RestartEmpty => {
                self.model.forget();
                self.breaker.restart_empty();
                None
            }
            Event::Reset => {
                if self.model.state == StateName::Closed {
                    self.model.generation += 1;
                    self.model.forget();
                } else {
                    self.model.go(StateName::Closed, Reason::Reset, now);
                }
                self.breaker.reset(now)
            }
            Event::Close => {
                self.model.manual(StateName::Closed, Reason::Reset, now);
                self.breaker.close(now)
            }
            Event::HalfOpen => {
                if matches!(self.model.state, StateName::Open | StateName::ForcedOpen) {
                    self.model.go(StateName::HalfOpen, Reason::Forced, now);
                }
                self.breaker.half_open(Reason::Forced, now).unwrap_or_default()
            }
            Event::ForceOpen => {
                self.model.manual(StateName::ForcedOpen, Reason::Forced, now);
                self.breaker.force_open(Reason::Forced, None, now)
            }
            Event::Disable => {
                self.model.manual(StateName::Disabled, Reason::Forced, now);
                self.breaker.disable(now)
            }
            Event::MetricsOnly => {
                self.model.manual(StateName::MetricsOnly, Reason::Forced, now);
                self.breaker.metrics_only(now)
            }
            Event::CoolDown { milliseconds } => {
                let until = now.after(Duration::from_millis(milliseconds));
                self.model.cool_down(until, now);
                self.breaker.cool_down(until, now)
            }
        };
        self.changes.extend(change);
    }

    fn acquire(&mut self) {
        self.calls += 1;
        let (answer, transitions) = self.breaker.acquire(self.calls, self.now);
        self.changes.extend(transitions);
        assert_eq!(answer.map(|pass| pass.kind).ok(), self.model.acquire(self.calls, self.now));
        self.passes.extend(answer.ok());
    }

    fn end_or_age(&mut self, event: Event) {
        let (Event::End { call, .. } | Event::Release { call } | Event::Aged { call }) = event else { return };
        // The youngest first: most events mean a call that is still out.
        let Some(pass) = self.passes.iter().rev().nth(call % self.passes.len().max(1)).copied() else { return };
        let effect = match event {
            Event::End { verdict, slow, .. } => {
                self.model.end(pass, verdict, slow, self.now);
                let outcome = Outcome { verdict, slow, source: Source::default(), connected: true };
                self.breaker.record(pass, outcome, self.now)
            }
            Event::Aged { .. } => {
                self.model.aged(pass, self.now);
                self.breaker.aged(pass, Source::default(), self.now)
            }
            _ => {
                self.model.release(pass);
                self.breaker.release(pass, self.now)
            }
        };
        self.changes.extend(effect.transitions);
    }

    fn compare(&self) -> Result<(), TestCaseError> {
        prop_assert_eq!(self.breaker.state(), self.model.state);
        prop_assert_eq!(self.breaker.generation(), self.model.generation);
        let told: Vec<_> =
            self.changes.iter().map(|change| (change.from, change.to, change.reason, change.at)).collect();
        prop_assert_eq!(&told, &self.model.changes);
        let counts = self.breaker.snapshot().counts;
        let counts = [counts.entries, counts.finished, counts.failed, counts.slow].map(|count| count as usize);
        if let Some((entries, finished, failed, slow)) = self.model.counts() {
            prop_assert_eq!(counts, [entries, finished, failed, slow]);
        }
        Ok(())
    }
}

fn verdicts() -> impl Strategy<Value = Verdict> {
    prop_oneof![
        4 => Just(Verdict::Success),
        4 => Just(Verdict::Failure { hard: true }),
        1 => Just(Verdict::Failure { hard: false }),
        1 => Just(Verdict::Ignored),
    ]
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        20 => Just(Event::Acquire),
        20 => (0_usize..4, verdicts(), prop::bool::weighted(0.2)).prop_map(|(call, verdict, slow)| Event::End { call, verdict, slow }),
        4 => (0_usize..4).prop_map(|call| Event::Aged { call }),
        3 => (0_usize..4).prop_map(|call| Event::Release { call }),
        8 => (0_u64..4_000).prop_map(|milliseconds| Event::Wait { milliseconds }),
        2 => (0_u64..60_000).prop_map(|milliseconds| Event::Wait { milliseconds }),
        1 => prop_oneof![
            Just(Event::Reset),
            Just(Event::RestartEmpty),
            Just(Event::Close),
            Just(Event::HalfOpen),
            Just(Event::ForceOpen),
            Just(Event::Disable),
            Just(Event::MetricsOnly),
            (0_u64..60_000).prop_map(|milliseconds| Event::CoolDown { milliseconds }),
        ],
    ];
    prop::collection::vec(event, 1..250)
}

fn seconds(range: std::ops::Range<u64>) -> impl Strategy<Value = Duration> {
    range.prop_map(Duration::from_secs)
}

prop_compose! {
    /// Shares are multiples of 1/8, so that both ways of comparing are exact.
    fn settings()(
        window in prop_oneof![(1_u32..12).prop_map(WindowKind::Calls), seconds(1..20).prop_map(WindowKind::Time)],
        calls_min in 1_u32..8,
        max_age in prop::option::of(seconds(1..30)),
        failure_eighths in 1_u32..=8,
        slow_eighths in 1_u32..=8,
        consecutive_failures in prop::option::of(1_u32..6),
        open in seconds(1..20),
        open_growth in prop_oneof![Just(1.0), Just(2.0)],
        trials in 1_u32..6,
        trial_timeout in prop::option::of(seconds(1..20)),
        half_open_max in prop::option::of(seconds(1..40)),
        half_open_from in prop_oneof![Just(HalfOpenFrom::FirstTrial), Just(HalfOpenFrom::Entry)],
        half_open_end in prop_oneof![Just(HalfOpenEnd::Open), Just(HalfOpenEnd::Closed)],
        (half_open_by, early_verdict) in (prop_oneof![Just(HalfOpenBy::Timer), Just(HalfOpenBy::FirstCall)], any::<bool>()),
    ) -> BreakerSettings {
        let calls_min = if let WindowKind::Calls(calls) = window { calls_min.min(calls) } else { calls_min };
        BreakerSettings {
            window, calls_min, max_age, consecutive_failures, open, open_growth, trials, trial_timeout, half_open_max,
            half_open_from, half_open_end, half_open_by, early_verdict,
            failure_share: f64::from(failure_eighths) / 8.0,
            slow_share: f64::from(slow_eighths) / 8.0,
            slow_call: Duration::from_secs(30),
            open_max: Duration::from_secs(60),
            open_jitter: 0.0,
            probe: Probe::Off,
            mode: Mode::Auto,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn it_does_what_the_naive_model_does(settings in settings(), events in events()) {
        let breaker = Breaker::try_new(settings.clone(), Scope::Target, Chance::from_seed(3)).unwrap();
        let model = Model::new(settings);
        let mut pair = Pair { breaker, model, now: Timestamp::ZERO, passes: Vec::new(), calls: 0, changes: Vec::new() };
        for event in events {
            pair.perform(event);
            pair.compare()?;
        }
    }
}
