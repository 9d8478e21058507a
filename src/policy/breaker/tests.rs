//! The breaker by tables. Each check plays a short script of outcomes, one letter each, and looks at what became of it.
//!
//! `.` success, `x` hard failure, `o` soft failure, `s` slow success, `X` slow hard failure, `-` ignored.

mod cases;
mod closed;
mod half_open;
mod manual;
mod open;
mod provider;
mod reconfigure;
mod slow;

use std::time::Duration;

use super::{
    machine::Breaker,
    settings::{BreakerSettings, Scope},
    state::{Effect, Outcome, Pass, Refusal, StateName, Transition},
    window::Source,
};
use crate::{
    model::clock::Timestamp,
    policy::{chance::Chance, verdict::Verdict},
};

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A breaker with a time of its own, and every transition that it made.
struct Rig {
    breaker: Breaker,
    now: Timestamp,
    calls: u64,
    transitions: Vec<Transition>,
}

impl Rig {
    /// A target's breaker by default settings without jitter, early verdict and consecutive rule, then changed.
    fn new(change: impl FnOnce(&mut BreakerSettings)) -> Self {
        Self::of(Scope::Target, change)
    }

    fn of(scope: Scope, change: impl FnOnce(&mut BreakerSettings)) -> Self {
        let mut settings = BreakerSettings {
            open_jitter: 0.0,
            consecutive_failures: None,
            early_verdict: false,
            ..BreakerSettings::default()
        };
        change(&mut settings);
        let breaker = Breaker::try_new(settings, scope, Chance::from_seed(7)).unwrap();
        Self { breaker, now: Timestamp::ZERO, calls: 0, transitions: Vec::new() }
    }

    fn wait(&mut self, wait: Duration) -> &mut Self {
        self.now = self.now.after(wait);
        let fired = self.breaker.tick(self.now);
        self.transitions.extend(fired);
        self
    }

    fn acquire(&mut self) -> Result<Pass, Refusal> {
        self.calls += 1;
        let (answer, transitions) = self.breaker.acquire(self.calls, self.now);
        self.transitions.extend(transitions);
        answer
    }

    fn record(&mut self, pass: Pass, outcome: Outcome) -> Effect {
        let effect = self.breaker.record(pass, outcome, self.now);
        self.transitions.extend(effect.transitions.iter().copied());
        effect
    }

    fn aged(&mut self, pass: Pass) -> Effect {
        let effect = self.breaker.aged(pass, Source::default(), self.now);
        self.transitions.extend(effect.transitions.iter().copied());
        effect
    }

    /// Calls one after the other; panics if one of them is refused.
    fn play(&mut self, script: &str) -> &mut Self {
        for (index, letter) in script.chars().enumerate() {
            let pass = self.acquire().unwrap_or_else(|_| panic!("call {index} of {script:?} was refused"));
            self.record(pass, outcome(letter));
        }
        self
    }

    fn state(&self) -> StateName {
        self.breaker.state()
    }

    fn is(&self, state: StateName) {
        assert_eq!(self.state(), state);
    }

    /// (entries, finished, failed, slow).
    fn counts(&self) -> (u32, u32, u32, u32) {
        let counts = self.breaker.snapshot().counts;
        (counts.entries, counts.finished, counts.failed, counts.slow)
    }
}

fn outcome(letter: char) -> Outcome {
    let verdict = match letter {
        '.' | 's' => Verdict::Success,
        'x' | 'X' => Verdict::Failure { hard: true },
        'o' => Verdict::Failure { hard: false },
        '-' => Verdict::Ignored,
        _ => panic!("no outcome is written {letter:?}"),
    };
    Outcome { verdict, slow: matches!(letter, 's' | 'X'), source: Source::default(), connected: true }
}

fn of_agent(agent: u16, model: u16, letter: char) -> Outcome {
    Outcome { source: Source { agent, model }, ..outcome(letter) }
}
