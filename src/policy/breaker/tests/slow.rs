//! Slow calls: the threshold, and those that are still in flight.

use std::time::Duration;

use super::{
    super::{
        settings::{BreakerSettings, WindowKind},
        state::{Outcome, Pass, Reason, StateName},
    },
    Rig, outcome, seconds,
};
use crate::policy::slow::{SlowBy, Timing};

#[test]
fn thirty_seconds_are_not_slow() {
    for (elapsed_ms, state) in [(29_999, StateName::Closed), (30_000, StateName::Closed), (30_001, StateName::Open)] {
        let mut rig = Rig::new(|_| ());
        for _ in 0..10 {
            let pass = rig.acquire().unwrap();
            let timing = Timing { elapsed: Duration::from_millis(elapsed_ms), ..Timing::default() };
            let slow = SlowBy::Total.is_slow(rig.breaker.settings().slow_call, timing);
            rig.record(pass, Outcome { slow, ..outcome('.') });
        }
        assert_eq!(rig.state(), state, "{elapsed_ms} ms");
    }
}

fn in_flight(rig: &mut Rig, calls: usize) -> Vec<Pass> {
    (0..calls).map(|_| rig.acquire().unwrap()).collect()
}

#[test]
fn fourteen_of_twenty_in_flight_open_it() {
    let mut rig = Rig::new(|_| ());
    let passes = in_flight(&mut rig, 14);
    rig.play("......").wait(Duration::from_millis(30_001));
    for (index, pass) in passes.into_iter().enumerate() {
        assert_eq!(rig.state(), if index < 14 { StateName::Closed } else { StateName::Open }, "{index}");
        rig.aged(pass);
    }
    let opened = rig.transitions[0];
    assert_eq!((opened.to, opened.reason, opened.value), (StateName::Open, Reason::SlowShare, Some(0.7)));
}

/// The same word twice is no new one: nothing is judged by what left the window meanwhile. (Found by the naive model.)
#[test]
fn an_attempt_that_is_known_to_be_slow_opens_nothing_again() {
    let mut rig = Rig::new(|settings| {
        settings.window = WindowKind::Time(seconds(16));
        (settings.calls_min, settings.failure_share, settings.consecutive_failures) = (3, 0.875, None);
    });
    rig.play(".").wait(seconds(13));
    let pass = rig.acquire().unwrap();
    rig.play("xxxxxx").aged(pass);
    assert_eq!(rig.state(), StateName::Closed, "six of seven");
    rig.wait(seconds(3)).aged(pass);
    assert_eq!(rig.state(), StateName::Closed, "six of six, and nothing happened");
    rig.play("x");
    assert_eq!(rig.state(), StateName::Open);
}

#[test]
fn a_pending_entry_becomes_the_outcome_and_counts_once() {
    for (window, name) in [(WindowKind::Calls(20), "calls"), (WindowKind::Time(seconds(120)), "time")] {
        for (letter, counts) in
            [('.', (1, 1, 0, 1)), ('s', (1, 1, 0, 1)), ('x', (1, 1, 1, 1)), ('X', (1, 1, 1, 1)), ('-', (0, 0, 0, 0))]
        {
            let mut rig = Rig::new(|settings| settings.window = window);
            let pass = rig.acquire().unwrap();
            rig.wait(Duration::from_millis(30_001));
            assert_eq!(rig.counts(), (0, 0, 0, 0));
            rig.aged(pass);
            rig.aged(pass);
            assert_eq!(rig.counts(), (1, 0, 0, 1), "{name}: in the slow count, not in the failure share");
            rig.wait(seconds(5));
            assert!(!rig.record(pass, outcome(letter)).stale);
            assert_eq!(rig.counts(), counts, "{name}: {letter}");
        }
    }
}

#[test]
fn a_cancelled_attempt_takes_its_pending_entry_along() {
    let mut rig = Rig::new(|_| ());
    let pass = rig.acquire().unwrap();
    rig.aged(pass);
    rig.breaker.release(pass, rig.now);
    assert_eq!(rig.counts(), (0, 0, 0, 0));
}

#[test]
fn pending_entries_judge_the_slow_share_only() {
    let mut rig = Rig::new(|settings| settings.slow_share = 1.0);
    for pass in in_flight(&mut rig, 5) {
        rig.aged(pass);
    }
    // 5 of 10 entries failed, but only 5 have finished.
    rig.play("xxxxx").is(StateName::Closed);
    assert_eq!(rig.breaker.snapshot().failure_share, None);
    assert_eq!(rig.breaker.snapshot().slow_share, Some(0.5));
}

#[test]
fn an_evicted_pending_entry_is_taken_in_as_new() {
    let mut rig = Rig::new(|_| ());
    let pass = rig.acquire().unwrap();
    rig.aged(pass);
    rig.play(&".".repeat(20));
    assert_eq!(rig.counts(), (20, 20, 0, 0));
    rig.record(pass, outcome('X'));
    assert_eq!(rig.counts(), (20, 20, 1, 1));
    let forgotten = rig.acquire().unwrap();
    rig.aged(forgotten);
    rig.play(&".".repeat(20)).record(forgotten, outcome('-'));
    assert_eq!(rig.counts(), (20, 20, 0, 0));
}

#[test]
fn an_entry_keeps_the_age_of_its_ageing() {
    let mut rig = Rig::new(|_| ());
    let pass = rig.acquire().unwrap();
    rig.aged(pass);
    rig.wait(seconds(300)).record(pass, outcome('X'));
    rig.wait(seconds(300));
    assert_eq!(rig.counts(), (1, 1, 1, 1));
    rig.wait(Duration::from_nanos(1));
    assert_eq!(rig.counts(), (0, 0, 0, 0));
}

#[test]
fn ageing_is_of_the_closed_state() {
    let short = |settings: &mut BreakerSettings| settings.trial_timeout = None;
    let mut rig = Rig::new(short);
    rig.play("xxxxxxxxxx").wait(seconds(30));
    let trial = rig.acquire().unwrap();
    rig.wait(seconds(31));
    let effect = rig.aged(trial);
    assert!(!effect.stale && effect.transitions.is_empty(), "not late, only nothing to do");
    assert_eq!(rig.counts(), (0, 0, 0, 0));

    let mut rig = Rig::new(short);
    rig.breaker.metrics_only(rig.now);
    let pass = rig.acquire().unwrap();
    rig.aged(pass);
    assert_eq!(rig.counts(), (1, 0, 0, 1));
}
