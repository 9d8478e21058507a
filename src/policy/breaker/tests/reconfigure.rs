//! Other settings for a breaker that lives.

use std::time::Duration;

use proptest::prelude::*;

use super::{
    super::{
        settings::{BreakerSettings, Mode, WindowKind},
        state::{PassKind, Reason, StateName},
    },
    Rig, seconds,
};
use crate::model::clock::Timestamp;

impl Rig {
    fn reconfigure(&mut self, change: impl FnOnce(&mut BreakerSettings)) -> &mut Self {
        let mut settings = self.breaker.settings().clone();
        change(&mut settings);
        let transitions = self.breaker.reconfigure(settings, self.now).unwrap();
        self.transitions.extend(transitions);
        self
    }
}

/// B45: another threshold while it is open, and settings that cannot be.
#[test]
fn an_open_one_stays_open_until_the_moment_it_has_told() {
    type Turned = fn(&mut BreakerSettings);
    let changes: [(&str, Turned); 6] = [
        ("threshold", |settings| settings.failure_share = 0.9),
        ("open time", |settings| settings.open = seconds(5)),
        ("longer", |settings| (settings.open, settings.open_max) = (seconds(200), seconds(400))),
        ("window", |settings| (settings.window, settings.calls_min) = (WindowKind::Calls(5), 5)),
        ("kind", |settings| settings.window = WindowKind::Time(seconds(60))),
        ("trials", |settings| settings.trials = 2),
    ];
    for (what, change) in changes {
        let mut rig = Rig::new(|_| ());
        rig.play("xxxxxxxxxx").wait(seconds(5)).reconfigure(change);
        rig.is(StateName::Open);
        let mut broken = rig.breaker.settings().clone();
        broken.failure_share = f64::NAN;
        rig.wait(seconds(1));
        let before = rig.breaker.settings().clone();
        assert_eq!(rig.breaker.reconfigure(broken, rig.now).unwrap_err().key(), "failure_share");
        assert_eq!(*rig.breaker.settings(), before, "{what}");
        let refusal = rig.acquire().unwrap_err();
        assert_eq!(refusal.until, Some(Timestamp::from_millis(30_000)), "{what}");
        rig.wait(seconds(24));
        assert_eq!(rig.transitions.len(), 2, "{what}");
        assert_eq!(
            (rig.transitions[1].to, rig.transitions[1].at),
            (StateName::HalfOpen, Timestamp::from_millis(30_000))
        );
    }
}

#[test]
fn the_window_is_kept_as_far_as_it_fits() {
    let calls = WindowKind::Calls;
    let time = |window| WindowKind::Time(seconds(window));
    for (script, from, to, counts) in [
        ("...xxx", calls(20), calls(100), (6, 6, 3, 0)),
        ("...xxx", calls(20), calls(5), (5, 5, 3, 0)),
        ("xxx...", calls(20), calls(4), (4, 4, 1, 0)),
        ("..sXx", calls(20), time(60), (5, 5, 2, 2)),
        ("..sXx", time(60), time(30), (5, 5, 2, 2)),
        ("..sXx", time(60), calls(20), (5, 5, 2, 2)),
    ] {
        let mut rig = Rig::new(|settings| (settings.window, settings.calls_min, settings.trials) = (from, 20, 1));
        rig.play(script).wait(seconds(2));
        rig.reconfigure(|settings| (settings.window, settings.calls_min) = (to, 1));
        rig.is(StateName::Closed);
        assert_eq!(rig.counts(), counts, "{script} from {from:?} to {to:?}");
    }
    // What is too old for the new age is gone.
    let mut rig = Rig::new(|_| ());
    rig.play("xxx").wait(seconds(20)).play("x").reconfigure(|settings| settings.max_age = Some(seconds(10)));
    assert_eq!(rig.counts(), (1, 1, 1, 0));
}

#[test]
fn a_pending_call_becomes_its_outcome_in_whatever_window() {
    for (from, to) in [
        (WindowKind::Calls(20), WindowKind::Time(seconds(60))),
        (WindowKind::Time(seconds(60)), WindowKind::Calls(20)),
        (WindowKind::Calls(20), WindowKind::Calls(10)),
    ] {
        let mut rig = Rig::new(|settings| settings.window = from);
        rig.play("..");
        let pass = rig.acquire().unwrap();
        rig.aged(pass);
        rig.reconfigure(|settings| settings.window = to);
        assert_eq!(rig.counts(), (3, 2, 0, 1));
        rig.record(pass, super::outcome('X'));
        assert_eq!(rig.counts(), (3, 3, 1, 1), "from {from:?} to {to:?}");
    }
}

#[test]
fn a_lower_threshold_judges_with_the_next_outcome() {
    let mut rig = Rig::new(|_| ());
    rig.play("xxxx.......").reconfigure(|settings| settings.failure_share = 0.3);
    rig.is(StateName::Closed);
    rig.play(".");
    rig.is(StateName::Open);
}

#[test]
fn a_half_open_one_ends_with_the_trials_it_began_with() {
    for trials in [1, 2, 9] {
        let mut rig = Rig::new(|_| ());
        rig.play("xxxxxxxxxx").wait(seconds(30));
        let passes: Vec<_> = (0..3).map(|_| rig.acquire().unwrap()).collect();
        rig.reconfigure(|settings| (settings.trials, settings.trial_timeout) = (trials, Some(seconds(1))));
        // Those that are out keep the time that they were given.
        rig.wait(seconds(59)).is(StateName::HalfOpen);
        for pass in passes {
            assert!(!rig.record(pass, super::outcome('.')).stale);
        }
        rig.play("..");
        rig.is(StateName::Closed);
        // The next one has as many as it is told.
        rig.play("xxxxxxxxxx").wait(seconds(30));
        let taken = (0..12).map_while(|_| rig.acquire().ok()).filter(|pass| pass.kind == PassKind::Trial).count();
        assert_eq!(taken, trials as usize);
    }
}

#[test]
fn a_mode_counts_only_where_it_is_another_one() {
    use Mode::{Auto, Disabled, ForcedOpen, MetricsOnly};
    for (from, to, state) in [
        (Auto, ForcedOpen, StateName::ForcedOpen),
        (Auto, Disabled, StateName::Disabled),
        (Auto, MetricsOnly, StateName::MetricsOnly),
        (ForcedOpen, Auto, StateName::Closed),
        (Disabled, Auto, StateName::Closed),
        (MetricsOnly, Disabled, StateName::Disabled),
    ] {
        let mut rig = Rig::new(|settings| settings.mode = from);
        rig.reconfigure(|settings| settings.mode = to).is(state);
    }
    // What an operator did holds.
    let mut rig = Rig::new(|_| ());
    rig.breaker.disable(rig.now);
    rig.reconfigure(|settings| settings.failure_share = 0.9).is(StateName::Disabled);
    // So does a crash loop; a refused key is tried again.
    for (reason, state) in [(Reason::CrashLoop, StateName::ForcedOpen), (Reason::KeyRejected, StateName::HalfOpen)] {
        let mut rig = Rig::new(|_| ());
        rig.breaker.force_open(reason, None, rig.now);
        rig.reconfigure(|_| ()).is(state);
    }
}

/// Another place under the same name: nothing of the one before counts, and no state is left by it.
#[test]
fn another_place_begins_with_nothing_measured() {
    for (script, state) in [("xxxx....", StateName::Closed), ("xxxxxxxxxx", StateName::Open)] {
        let mut rig = Rig::new(|settings| settings.consecutive_failures = Some(5));
        rig.play("...");
        let out = rig.acquire().unwrap();
        let hung = rig.acquire().unwrap();
        rig.aged(hung);
        for letter in script.chars() {
            if let Ok(pass) = rig.acquire() {
                rig.record(pass, super::outcome(letter));
            }
        }
        rig.is(state);
        let timer = rig.breaker.next_timer();
        // An open one goes on showing what opened it.
        let shown = if state == StateName::Open { rig.counts() } else { (0, 0, 0, 0) };
        rig.breaker.begin_elsewhere(rig.now);
        rig.is(state);
        assert_eq!((rig.counts(), rig.breaker.next_timer()), (shown, timer), "{script}");
        assert!(rig.record(out, super::outcome('x')).stale && rig.record(hung, super::outcome('X')).stale, "{script}");
        assert_eq!(rig.counts(), shown, "{script}");
    }
    let mut rig = Rig::new(|settings| settings.consecutive_failures = Some(5));
    rig.play("xxxx");
    rig.breaker.begin_elsewhere(rig.now);
    rig.play("xxxx").is(StateName::Closed);
    rig.play("x").is(StateName::Open);
    rig.wait(seconds(30)).is(StateName::HalfOpen);
    let trials: Vec<_> = (0..5).map(|_| rig.acquire().unwrap()).collect();
    assert!(rig.acquire().is_err());
    rig.breaker.begin_elsewhere(rig.now);
    for trial in trials {
        assert!(rig.record(trial, super::outcome('x')).stale, "a trial of the place before");
    }
    rig.is(StateName::HalfOpen);
    rig.play(".....").is(StateName::Closed);
}

proptest! {
    /// Whatever is changed whenever: no state is left by it, but by what was due, and counts stay within the window.
    #[test]
    fn no_change_of_numbers_changes_the_state(
        script in "[.xosX-]{0,40}",
        steps in prop::collection::vec((1_u32..40, any::<bool>(), 1_u32..10, 1_u64..90_000), 1..8),
    ) {
        let mut rig = Rig::new(|_| ());
        for letter in script.chars() {
            if let Ok(pass) = rig.acquire() {
                rig.record(pass, super::outcome(letter));
            }
        }
        for (size, timed, trials, wait_ms) in steps {
            rig.wait(Duration::from_millis(wait_ms));
            let (state, generation, until) = (rig.state(), rig.breaker.generation(), rig.breaker.next_timer());
            let window = if timed { WindowKind::Time(seconds(u64::from(size))) } else { WindowKind::Calls(size) };
            let change = |settings: &mut BreakerSettings| {
                (settings.window, settings.calls_min, settings.trials) = (window, size, trials);
                settings.open = seconds(u64::from(trials));
            };
            rig.reconfigure(change);
            prop_assert_eq!((state, generation), (rig.state(), rig.breaker.generation()));
            prop_assert_eq!(until, rig.breaker.next_timer());
            let counts = rig.breaker.snapshot().counts;
            if rig.state() == StateName::Closed && !timed {
                prop_assert!(counts.entries <= size);
            }
            prop_assert!(counts.failed <= counts.finished && counts.finished <= counts.entries);
            if let Ok(pass) = rig.acquire() {
                rig.record(pass, super::outcome('x'));
            }
        }
    }
}
