//! Every sequence of events up to a length, from several beginnings, on a small breaker. Nothing is sampled.

use std::time::Duration;

use watertight::{
    model::clock::Timestamp,
    policy::{
        breaker::{
            machine::Breaker,
            settings::{BreakerSettings, HalfOpenBy, HalfOpenEnd, HalfOpenFrom, Scope, WindowKind},
            state::{Effect, GateView, Outcome, Pass, PassKind, Reason, Snapshot, StateName, Transition},
            window::Source,
        },
        chance::Chance,
        verdict::Verdict,
    },
};

const OPEN: Duration = Duration::from_secs(30);
const TRIAL_TIMEOUT: Duration = Duration::from_secs(60);
const WINDOW: u32 = 3;
const TRIALS: u32 = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    Acquire,
    /// How the oldest call that is out ends.
    Success,
    Hard,
    Soft,
    Ignored,
    SlowSuccess,
    /// The youngest call that is out leaves, or ages.
    Cancel,
    Aged,
    TickOpen,
    TickTrialTimeout,
    Reset,
    ForceOpen,
}

const ALPHABET: [Event; 12] = [
    Event::Acquire,
    Event::Success,
    Event::Hard,
    Event::Soft,
    Event::Ignored,
    Event::SlowSuccess,
    Event::Cancel,
    Event::Aged,
    Event::TickOpen,
    Event::TickTrialTimeout,
    Event::Reset,
    Event::ForceOpen,
];

/// A breaker, and what somebody who only looks from outside knows of it.
#[derive(Clone)]
struct World {
    breaker: Breaker,
    now: Timestamp,
    out: Vec<Pass>,
    calls: u64,
    /// Trials given in this generation that did not go back.
    taken: u32,
    last_change: Timestamp,
}

type View = (Snapshot, GateView, Option<Timestamp>);

impl World {
    fn new(settings: BreakerSettings) -> Self {
        let breaker = Breaker::try_new(settings, Scope::Target, Chance::from_seed(1)).unwrap();
        Self { breaker, now: Timestamp::ZERO, out: Vec::new(), calls: 0, taken: 0, last_change: Timestamp::ZERO }
    }

    fn view(&self) -> View {
        (self.breaker.snapshot(), self.breaker.gate(), self.breaker.next_timer())
    }

    /// Performs an event; false if there is no call to perform it on.
    fn perform(&mut self, event: Event) -> bool {
        let (state, generation) = (self.breaker.state(), self.breaker.generation());
        let oldest = matches!(event, Event::Success | Event::Hard | Event::Soft | Event::Ignored | Event::SlowSuccess);
        let youngest = matches!(event, Event::Cancel | Event::Aged);
        if (oldest || youngest) && self.out.is_empty() {
            return false;
        }
        let transitions = match event {
            Event::Acquire => self.acquire(),
            Event::TickOpen => self.tick(OPEN),
            Event::TickTrialTimeout => self.tick(TRIAL_TIMEOUT),
            Event::Reset => self.breaker.reset(self.now).into_iter().collect(),
            Event::ForceOpen => self.breaker.force_open(Reason::Forced, None, self.now).into_iter().collect(),
            _ => {
                let pass = if oldest { self.out[0] } else { self.out[self.out.len() - 1] };
                self.end_or_age(event, pass)
            }
        };
        if !transitions.is_empty() && event != Event::Acquire {
            self.taken = 0;
        }
        let silent_reset = u32::from(event == Event::Reset && transitions.is_empty());
        self.check_transitions(state, generation, silent_reset, &transitions);
        true
    }

    fn acquire(&mut self) -> Vec<Transition> {
        self.calls += 1;
        let (answer, transitions) = self.breaker.acquire(self.calls, self.now);
        if !transitions.is_empty() {
            self.taken = 0;
        }
        match answer {
            Ok(pass) => {
                assert_eq!(pass.generation, self.breaker.generation());
                assert_eq!(pass.kind == PassKind::Trial, self.breaker.state() == StateName::HalfOpen);
                self.taken += u32::from(pass.kind == PassKind::Trial);
                self.out.push(pass);
            }
            Err(refusal) => match refusal.until {
                Some(until) => assert!(until >= self.now, "a refusal points to the past"),
                None => assert!(matches!(self.breaker.state(), StateName::ForcedOpen | StateName::HalfOpen)),
            },
        }
        transitions
    }

    fn tick(&mut self, wait: Duration) -> Vec<Transition> {
        self.now = self.now.after(wait);
        self.breaker.tick(self.now)
    }

    fn end_or_age(&mut self, event: Event, pass: Pass) -> Vec<Transition> {
        let before = self.view();
        let outcome = |verdict, slow| Outcome { verdict, slow, source: Source::default(), connected: true };
        let hard = Verdict::Failure { hard: true };
        let effect = match event {
            Event::Aged => self.breaker.aged(pass, Source::default(), self.now),
            Event::Cancel => self.breaker.release(pass, self.now),
            Event::Hard => self.breaker.record(pass, outcome(hard, false), self.now),
            Event::Soft => self.breaker.record(pass, outcome(Verdict::Failure { hard: false }, false), self.now),
            Event::Ignored => self.breaker.record(pass, outcome(Verdict::Ignored, false), self.now),
            Event::SlowSuccess => self.breaker.record(pass, outcome(Verdict::Success, true), self.now),
            _ => self.breaker.record(pass, outcome(Verdict::Success, false), self.now),
        };
        if event != Event::Aged {
            self.out.retain(|out| *out != pass);
        }
        self.check_effect(pass, before, &effect);
        effect.transitions
    }

    fn check_effect(&mut self, pass: Pass, before: View, effect: &Effect) {
        if pass.generation != before.0.generation {
            assert!(effect.stale, "a result of an earlier generation was taken in");
        }
        if effect.stale {
            assert_eq!(self.view(), before, "something late changed something");
            assert!(effect.transitions.is_empty() && effect.exceeded.is_empty() && !effect.trial_returned);
        }
        if effect.trial_returned {
            assert_eq!(pass.kind, PassKind::Trial);
            self.taken -= 1;
        }
    }

    fn check_transitions(&mut self, state: StateName, generation: u32, silent: u32, transitions: &[Transition]) {
        let (mut state, mut generation) = (state, generation + silent);
        for change in transitions {
            assert_eq!(change.from, state, "transitions do not chain");
            assert_ne!(change.from, change.to);
            assert_eq!(change.generation, generation + 1);
            if change.to == StateName::HalfOpen {
                assert!(matches!(change.from, StateName::Open | StateName::ForcedOpen));
            }
            assert!(change.at >= self.last_change && change.at <= self.now);
            (state, generation, self.last_change) = (change.to, change.generation, change.at);
        }
        assert_eq!((self.breaker.state(), self.breaker.generation()), (state, generation));
        self.check_now();
    }

    fn check_now(&self) {
        let (snapshot, gate, timer) = self.view();
        let counts = snapshot.counts;
        assert!(counts.entries <= WINDOW.max(TRIALS), "{counts:?}");
        assert!(counts.finished <= counts.entries && counts.slow <= counts.entries);
        assert!(counts.failed + counts.good <= counts.finished);
        assert!(self.taken <= TRIALS, "{} trials are out or done", self.taken);
        if let Some(due) = timer {
            assert!(due > self.now, "a timer that is due did not fire");
        }
        match (snapshot.state, gate) {
            (StateName::Open, GateView::Refuse(refusal)) => {
                let until = refusal.until.unwrap();
                let (answer, _) = self.breaker.clone().acquire(u64::MAX, until);
                assert_eq!(answer.map(|pass| pass.kind), Ok(PassKind::Trial), "no way out of open");
            }
            (StateName::HalfOpen, GateView::Probe { free, .. }) => {
                assert_eq!(free + self.taken, TRIALS, "a trial was lost or made up");
                if free == 0 && self.breaker.settings().trial_timeout.is_some() {
                    assert!(timer.is_some(), "no way out of half-open");
                }
            }
            (StateName::ForcedOpen, GateView::Refuse(_)) => assert_eq!(timer, None),
            (StateName::Closed | StateName::Disabled | StateName::MetricsOnly, GateView::Admit) => {
                assert_eq!(timer, None);
            }
            (state, gate) => panic!("{state:?} shows {gate:?}"),
        }
    }
}

/// Performs every sequence of `length` events after this one; says how many worlds there were.
fn walk(world: &World, length: usize, path: &mut Vec<Event>) -> u64 {
    if length == 0 {
        return 1;
    }
    let mut worlds = 1;
    for event in ALPHABET {
        let mut next = world.clone();
        path.push(event);
        let told = PathOnPanic(path);
        if next.perform(event) {
            drop(told);
            worlds += walk(&next, length - 1, path);
        } else {
            drop(told);
        }
        path.pop();
    }
    worlds
}

/// Prints the sequence that broke an invariant.
struct PathOnPanic<'a>(&'a [Event]);

impl Drop for PathOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("after {:?}", self.0);
        }
    }
}

fn small() -> BreakerSettings {
    BreakerSettings {
        window: WindowKind::Calls(WINDOW),
        calls_min: 2,
        trials: TRIALS,
        open: OPEN,
        open_jitter: 0.0,
        trial_timeout: Some(TRIAL_TIMEOUT),
        consecutive_failures: Some(2),
        ..BreakerSettings::default()
    }
}

fn walk_from(settings: BreakerSettings, beginning: &[Event], length: usize) -> u64 {
    let mut world = World::new(settings);
    for event in beginning {
        assert!(world.perform(*event), "{event:?} cannot be performed");
    }
    walk(&world, length, &mut beginning.to_vec())
}

const TO_OPEN: [Event; 4] = [Event::Acquire, Event::Hard, Event::Acquire, Event::Hard];
/// Half-open with one trial out, and one call out that a closed state had admitted.
const TO_TRIAL: [Event; 7] =
    [Event::Acquire, Event::Acquire, Event::Hard, Event::Acquire, Event::Hard, Event::TickOpen, Event::Acquire];

#[test]
fn every_short_sequence_from_the_beginning() {
    let worlds = walk_from(small(), &[], 7);
    assert!(worlds > 100_000, "{worlds} worlds");
}

#[test]
fn every_short_sequence_from_open() {
    let worlds = walk_from(small(), &TO_OPEN, 6);
    assert!(worlds > 10_000, "{worlds} worlds");
}

#[test]
fn every_short_sequence_from_a_trial_under_each_way_to_end() {
    for early_verdict in [true, false] {
        for half_open_from in [HalfOpenFrom::FirstTrial, HalfOpenFrom::Entry] {
            for (half_open_by, half_open_end) in
                [(HalfOpenBy::Timer, HalfOpenEnd::Open), (HalfOpenBy::FirstCall, HalfOpenEnd::Closed)]
            {
                let settings = BreakerSettings {
                    early_verdict,
                    half_open_from,
                    half_open_by,
                    half_open_end,
                    half_open_max: Some(Duration::from_secs(80)),
                    ..small()
                };
                let worlds = walk_from(settings, &TO_TRIAL, 5);
                assert!(worlds > 5_000, "{worlds} worlds");
            }
        }
    }
}

#[test]
fn every_short_sequence_over_a_time_window() {
    let settings = BreakerSettings {
        // Longer than any walk takes to fill it with more than WINDOW outcomes: three calls need six events.
        window: WindowKind::Time(Duration::from_secs(45)),
        consecutive_failures: None,
        ..small()
    };
    let worlds = walk_from(settings, &[], 6);
    assert!(worlds > 10_000, "{worlds} worlds");
}
