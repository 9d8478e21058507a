//! How ill a served agent is, and when: phases that follow one another by calls or by time. A pure choice; the same seed and the same
//! calls give the same illnesses. Nothing here waits or answers.

use std::time::Duration;

use crate::policy::chance::Chance;

/// How long a phase lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PhaseLength {
    /// So many calls.
    Calls(u64),
    /// So long, from the end of the phase before it, or from the first call.
    Time(Duration),
    /// For ever.
    Endless,
}

/// One phase. The shares are of its calls, each drawn by itself; what is left of 1 is healthy.
#[derive(Debug, Clone, PartialEq)]
pub struct Phase {
    /// How long it lasts.
    pub length: PhaseLength,
    /// Every answer takes at least this long ...
    pub latency_min: Duration,
    /// ... and at most this long.
    pub latency_max: Duration,
    /// Each share with its illness.
    pub shares: Vec<(f64, Illness)>,
}

impl Default for Phase {
    fn default() -> Self {
        Self {
            length: PhaseLength::Endless,
            latency_min: Duration::ZERO,
            latency_max: Duration::ZERO,
            shares: Vec::new(),
        }
    }
}

/// What is wrong with an answer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Illness {
    /// A failure of the agent's own: a 5xx.
    Error {
        /// Its status.
        status: u16,
    },
    /// A complaint about the request, not to be tried again: a 4xx.
    ClientError {
        /// Its status.
        status: u16,
    },
    /// Too many requests.
    RateLimit {
        /// When to come back.
        retry_after: Duration,
    },
    /// No answer, ever.
    Hang,
    /// A body that breaks off.
    Cut,
    /// A good status over something that is no JSON.
    Garbage,
}

/// What is to be done with one call.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Act {
    /// How long the answer takes beside its own work.
    pub latency: Duration,
    /// What is wrong with it; `None` = it is healthy.
    pub illness: Option<Illness>,
}

/// Phases in order.
#[derive(Debug, Clone, PartialEq)]
pub struct Script {
    pub(super) chance: Chance,
    pub(super) phases: Vec<Phase>,
    pub(super) ending: ScriptEnding,
}

/// What comes after the last phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScriptEnding {
    /// It stays.
    Stay,
    /// The first one again.
    Repeat,
}

/// A script that is being played.
#[derive(Debug, Clone)]
pub struct Play {
    script: Script,
    phase: usize,
    phase_calls: u64,
    phase_started: Option<Duration>,
    calls: u64,
}

impl Play {
    /// Plays `script` from its beginning.
    pub fn start(script: Script) -> Self {
        Self { script, phase: 0, phase_calls: 0, phase_started: None, calls: 0 }
    }

    /// What to do with the call that comes at `now`, a time that never goes back.
    pub fn next(&mut self, now: Duration) -> Act {
        self.advance(now);
        let count = self.calls;
        self.calls += 1;
        self.phase_calls += 1;
        let Some(phase) = self.script.phases.get(self.phase) else {
            return Act { latency: Duration::ZERO, illness: None };
        };
        let spread = phase.latency_max.saturating_sub(phase.latency_min);
        let latency = phase.latency_min + spread.mul_f64(self.script.chance.fork(LATENCY).share(count));
        Act { latency, illness: drawn(&phase.shares, self.script.chance.fork(ILLNESS).share(count)) }
    }

    /// The phase that the last call fell into, from 0.
    pub fn phase(&self) -> usize {
        self.phase
    }

    fn advance(&mut self, now: Duration) {
        let mut started = self.phase_started.unwrap_or(now);
        if let Some(cycle) = self.timed_cycle() {
            // After a long silence whole rounds are skipped at once.
            let rounds = now.saturating_sub(started).as_nanos() / cycle.as_nanos().max(1);
            started += cycle.saturating_mul(u32::try_from(rounds).unwrap_or(u32::MAX));
        }
        while let Some(phase) = self.script.phases.get(self.phase) {
            let ended = match phase.length {
                PhaseLength::Calls(calls) => (self.phase_calls >= calls).then_some(now),
                PhaseLength::Time(time) => Some(started + time).filter(|end| *end <= now),
                PhaseLength::Endless => None,
            };
            let is_last = self.phase + 1 == self.script.phases.len();
            let Some(end) = ended.filter(|_| !is_last || self.script.ending == ScriptEnding::Repeat) else { break };
            self.phase = (self.phase + 1) % self.script.phases.len();
            self.phase_calls = 0;
            started = end;
        }
        self.phase_started = Some(started);
    }

    /// The time of one round, where time alone leads through the phases.
    fn timed_cycle(&self) -> Option<Duration> {
        if self.script.ending != ScriptEnding::Repeat {
            return None;
        }
        let times = self.script.phases.iter().map(|phase| match phase.length {
            PhaseLength::Time(time) => Some(time),
            PhaseLength::Calls(_) | PhaseLength::Endless => None,
        });
        times.sum()
    }
}

const LATENCY: u64 = 1;
const ILLNESS: u64 = 2;

fn drawn(shares: &[(f64, Illness)], draw: f64) -> Option<Illness> {
    let mut upper = 0.0;
    for (share, illness) in shares {
        upper += share;
        if draw < upper {
            return Some(*illness);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn phase(length: PhaseLength, latency_ms: u64) -> Phase {
        let latency = Duration::from_millis(latency_ms);
        Phase { length, latency_min: latency, latency_max: latency, shares: Vec::new() }
    }

    fn calls(count: u64) -> Phase {
        phase(PhaseLength::Calls(count), 0)
    }

    fn seconds(time: u64) -> Phase {
        phase(PhaseLength::Time(Duration::from_secs(time)), 0)
    }

    fn play(phases: Vec<Phase>, ending: ScriptEnding) -> Play {
        Play::start(Script { chance: Chance::from_seed(7), phases, ending })
    }

    #[test]
    fn phases_follow_one_another() {
        use ScriptEnding::{Repeat, Stay};
        for (phases, ending, at_seconds, want) in [
            (vec![calls(2), calls(1), calls(1)], Stay, &[0, 0, 0, 0, 0][..], &[0, 0, 1, 2, 2][..]),
            (vec![calls(2), calls(1)], Repeat, &[0, 0, 0, 0, 0, 0], &[0, 0, 1, 0, 0, 1]),
            (vec![seconds(10), seconds(5)], Stay, &[3, 12, 13, 17, 99], &[0, 0, 1, 1, 1]),
            (vec![seconds(10), seconds(5)], Repeat, &[0, 9, 10, 14, 15, 1_500_009, 1_500_010], &[0, 0, 1, 1, 0, 0, 1]),
            (
                vec![seconds(10), calls(2), seconds(5)],
                Repeat,
                &[0, 60, 61, 62, 66, 67, 76, 77],
                &[0, 1, 1, 2, 2, 0, 0, 1],
            ),
            (vec![calls(1), phase(PhaseLength::Endless, 0)], Stay, &[0, 1, 99], &[0, 1, 1]),
        ] {
            let shown = format!("{phases:?}");
            let mut play = play(phases, ending);
            let got: Vec<usize> = at_seconds
                .iter()
                .map(|at| {
                    play.next(Duration::from_secs(*at));
                    play.phase()
                })
                .collect();
            assert_eq!(got, want, "{shown} at {at_seconds:?}");
        }
    }

    #[test]
    fn shares_are_kept_and_repeatable() {
        let shares = vec![
            (0.5, Illness::Error { status: 503 }),
            (0.1, Illness::Hang),
            (0.1, Illness::Cut),
            (0.1, Illness::Garbage),
        ];
        let ill = || Phase {
            latency_min: Duration::from_millis(20),
            latency_max: Duration::from_millis(80),
            shares: shares.clone(),
            ..Phase::default()
        };
        let acts = |seed: u64| {
            let script = Script { chance: Chance::from_seed(seed), phases: vec![ill()], ending: ScriptEnding::Stay };
            let mut play = Play::start(script);
            (0..10_000).map(|_| play.next(Duration::ZERO)).collect::<Vec<Act>>()
        };
        let drawn = acts(7);
        assert_eq!(drawn, acts(7));
        assert_ne!(drawn, acts(8));
        let count = |wanted: Option<Illness>| drawn.iter().filter(|act| act.illness == wanted).count();
        for (illness, share) in shares.iter().map(|(share, illness)| (Some(*illness), share)).chain([(None, &0.2)]) {
            let got = count(illness) as f64 / 10_000.0;
            assert!((got - share).abs() < 0.02, "{illness:?}: {got} instead of {share}");
        }
        assert!(drawn.iter().all(|act| (20..=80).contains(&act.latency.as_millis())));
        assert!(
            drawn.iter().any(|act| act.latency.as_millis() < 25)
                && drawn.iter().any(|act| act.latency.as_millis() > 75)
        );
    }

    proptest! {
        #[test]
        fn every_walk_ends(
            lengths in prop::collection::vec((any::<bool>(), 1_u64..20), 1..6),
            waits in prop::collection::vec(0_u64..100_000_000, 1..20),
            repeats: bool,
        ) {
            let phases: Vec<Phase> =
                lengths.iter().map(|(by_calls, length)| if *by_calls { calls(*length) } else { seconds(*length) }).collect();
            let count = phases.len();
            let mut play = play(phases, if repeats { ScriptEnding::Repeat } else { ScriptEnding::Stay });
            let mut now = Duration::ZERO;
            for wait in waits {
                now += Duration::from_secs(wait);
                play.next(now);
                prop_assert!(play.phase() < count);
            }
        }
    }
}
