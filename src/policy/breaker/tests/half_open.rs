//! Trials: how many, what they decide, what becomes of those that do not come back.

use std::time::Duration;

use super::{
    super::{
        settings::{BreakerSettings, HalfOpenEnd, HalfOpenFrom},
        state::{GateView, Pass, PassKind, Reason, StateName},
    },
    Rig, outcome, seconds,
};
use crate::model::clock::Timestamp;

fn half_open(change: impl FnOnce(&mut BreakerSettings)) -> Rig {
    let mut rig = Rig::new(change);
    rig.play("xxxxxxxxxx").wait(seconds(30)).is(StateName::HalfOpen);
    rig.transitions.clear();
    rig
}

fn free(rig: &Rig) -> u32 {
    match rig.breaker.gate() {
        GateView::Probe { free, .. } => free,
        other => panic!("{other:?}"),
    }
}

#[test]
fn exactly_five_trials_pass() {
    let mut rig = half_open(|_| ());
    for left in (0..5).rev() {
        assert_eq!(rig.acquire().unwrap().kind, PassKind::Trial);
        assert_eq!(free(&rig), left);
    }
    rig.wait(seconds(1));
    for _ in 0..100 {
        let refusal = rig.acquire().unwrap_err();
        assert_eq!(refusal.until, Some(Timestamp::from_millis(90_000)), "the first trial's timeout is the next hope");
    }
    // Nor can an owner who was told of a sixth make it one.
    let sixth = Pass { id: 999, generation: rig.breaker.generation(), kind: PassKind::Trial };
    rig.breaker.take_trial(sixth.id, sixth.generation, rig.now);
    assert!(rig.record(sixth, outcome('.')).stale);
    assert_eq!(rig.counts(), (0, 0, 0, 0));
}

/// Plays trials until it decides; says the state and after how many.
fn decide(change: impl FnOnce(&mut BreakerSettings), script: &str) -> (StateName, usize) {
    let mut rig = half_open(change);
    for (index, letter) in script.chars().enumerate() {
        if rig.state() != StateName::HalfOpen {
            return (rig.state(), index);
        }
        rig.play(&letter.to_string());
    }
    (rig.state(), script.len())
}

#[test]
fn trials_are_judged_by_the_same_shares() {
    use StateName::{Closed, HalfOpen, Open};
    for (script, early, all) in [
        ("...", (Closed, 3), (HalfOpen, 3)),
        ("xxx", (Open, 3), (HalfOpen, 3)),
        ("..xx", (HalfOpen, 4), (HalfOpen, 4)),
        ("..xx.", (Closed, 5), (Closed, 5)),
        ("..xxx", (Open, 5), (Open, 5)),
        ("xx.x.", (Open, 4), (Open, 5)),
        ("x....", (Closed, 4), (Closed, 5)),
        ("sss..", (Closed, 5), (Closed, 5)),
        ("ssss.", (Open, 4), (Open, 5)),
        ("s.ss.", (Closed, 5), (Closed, 5)),
        (".s.", (Closed, 3), (HalfOpen, 3)),
        ("ooo..", (Open, 3), (Open, 5)),
    ] {
        assert_eq!(decide(|settings| settings.early_verdict = true, script), early, "early: {script}");
        assert_eq!(decide(|_| (), script), all, "all: {script}");
    }
}

#[test]
fn three_trials_that_close_at_two_successes_are_a_configuration() {
    let three = |settings: &mut BreakerSettings| {
        settings.trials = 3;
        settings.early_verdict = true;
    };
    for (script, state, after) in [
        ("..", StateName::Closed, 2),
        (".x.", StateName::Closed, 3),
        ("xx", StateName::Open, 2),
        ("x.x", StateName::Open, 3),
    ] {
        assert_eq!(decide(three, script), (state, after), "{script}");
    }
}

#[test]
fn the_decision_says_its_share_and_an_open_breaker_goes_on_showing_it() {
    let mut rig = half_open(|_| ());
    rig.play(".xx.x");
    let opened = rig.transitions[0];
    assert_eq!((opened.reason, opened.value), (Reason::FailureShare, Some(0.6)));
    assert_eq!((rig.breaker.snapshot().failure_share, rig.counts()), (Some(0.6), (5, 5, 3, 0)));
    let mut rig = half_open(|settings| settings.early_verdict = true);
    rig.play("xxx");
    assert_eq!(rig.breaker.snapshot().failure_share, Some(1.0), "of the trials that came back");
    let mut rig = half_open(|_| ());
    rig.play("....").is(StateName::HalfOpen);
    assert_eq!(rig.breaker.snapshot().failure_share, None);
}

#[test]
fn an_ignored_or_cancelled_trial_goes_back_and_can_be_taken_again() {
    let mut rig = half_open(|_| ());
    let trials: Vec<_> = (0..5).map(|_| rig.acquire().unwrap()).collect();
    assert!(rig.acquire().is_err());
    let effect = rig.record(trials[0], outcome('-'));
    assert!(effect.trial_returned && !effect.stale);
    assert!(rig.breaker.release(trials[1], rig.now).trial_returned);
    assert!(!rig.breaker.release(trials[1], rig.now).trial_returned, "only once");
    assert_eq!(free(&rig), 2);
    assert!(rig.acquire().is_ok() && rig.acquire().is_ok() && rig.acquire().is_err());
    assert!(rig.record(trials[0], outcome('x')).stale, "it went back: its place is another's");

    let mut rig = half_open(|_| ());
    rig.play("------------").is(StateName::HalfOpen);
    rig.play(".-.-.-.-.").is(StateName::Closed);
}

#[test]
fn a_trial_that_never_returns_fails_and_its_late_result_changes_nothing() {
    let mut rig = half_open(|_| ());
    let lost = rig.acquire().unwrap();
    rig.wait(Duration::from_millis(59_999));
    assert_eq!(rig.counts(), (0, 0, 0, 0));
    rig.wait(Duration::from_millis(1));
    assert_eq!((rig.counts(), free(&rig)), ((1, 1, 1, 0), 4), "settled: it does not come back as a free trial");
    let before = (rig.breaker.snapshot(), rig.breaker.gate(), rig.breaker.next_timer());
    for letter in ['.', 'x', '-'] {
        let effect = rig.record(lost, outcome(letter));
        assert!(effect.stale && !effect.trial_returned);
    }
    assert_eq!((rig.breaker.snapshot(), rig.breaker.gate(), rig.breaker.next_timer()), before);

    let mut rig = half_open(|settings| settings.early_verdict = true);
    for _ in 0..5 {
        rig.acquire().unwrap();
        rig.wait(seconds(1));
    }
    rig.wait(seconds(60)).is(StateName::Open);
    assert_eq!(rig.transitions[0].at, Timestamp::from_millis(92_000), "with the third timeout, at its own time");
    let mut rig = half_open(|settings| (settings.trial_timeout, settings.half_open_max) = (None, None));
    for _ in 0..5 {
        rig.acquire().unwrap();
    }
    assert_eq!((rig.breaker.next_timer(), rig.acquire().unwrap_err().until), (None, None));
    rig.wait(seconds(86_400)).is(StateName::HalfOpen);
}

#[test]
fn an_undecided_half_open_state_ends_by_its_age() {
    let limit = |from, end| {
        move |settings: &mut BreakerSettings| {
            (settings.half_open_from, settings.half_open_end) = (from, end);
            settings.trial_timeout = None;
        }
    };
    let mut rig = half_open(limit(HalfOpenFrom::FirstTrial, HalfOpenEnd::Open));
    rig.wait(seconds(86_400)).is(StateName::HalfOpen);
    assert_eq!(rig.breaker.next_timer(), None, "nobody asked: it stays so, silently");
    rig.play("x").wait(seconds(299)).is(StateName::HalfOpen);
    rig.wait(seconds(1)).is(StateName::Open);
    assert_eq!((rig.transitions[0].reason, rig.counts()), (Reason::HalfOpenMax, (1, 1, 1, 0)));
    assert_eq!(rig.breaker.snapshot().failure_share, None, "nothing was decided");

    let mut rig = half_open(limit(HalfOpenFrom::Entry, HalfOpenEnd::Open));
    rig.wait(seconds(299)).is(StateName::HalfOpen);
    rig.wait(seconds(1)).is(StateName::Open);
    let mut rig = half_open(limit(HalfOpenFrom::Entry, HalfOpenEnd::Closed));
    rig.wait(seconds(300)).is(StateName::Closed);
    rig.wait(seconds(86_400)).is(StateName::Closed);
}

#[test]
fn a_trial_that_went_back_does_not_age_the_state() {
    let mut rig = half_open(|settings| settings.trial_timeout = None);
    let first = rig.acquire().unwrap();
    rig.wait(seconds(100));
    let second = rig.acquire().unwrap();
    assert_eq!(rig.breaker.next_timer(), Some(Timestamp::from_millis(330_000)));
    rig.breaker.release(first, rig.now);
    assert_eq!(rig.breaker.next_timer(), Some(Timestamp::from_millis(430_000)), "from the trial that is left");
    rig.breaker.release(second, rig.now);
    assert_eq!(rig.breaker.next_timer(), None);
    rig.play(".").wait(seconds(1));
    let third = rig.acquire().unwrap();
    rig.breaker.release(third, rig.now);
    assert_eq!(rig.breaker.next_timer(), Some(Timestamp::from_millis(430_000)), "one trial did its work at 130 s");
}

#[test]
fn trials_of_an_earlier_half_open_state_change_nothing() {
    let mut rig = half_open(|_| ());
    let late = rig.acquire().unwrap();
    rig.play("xxxx").wait(seconds(60)).is(StateName::Open);
    rig.wait(seconds(30)).is(StateName::HalfOpen);
    rig.acquire().unwrap();
    assert!(rig.record(late, outcome('.')).stale);
    let released = rig.breaker.release(late, rig.now);
    assert!(released.stale && !released.trial_returned);
    assert_eq!((free(&rig), rig.counts()), (4, (0, 0, 0, 0)));
    rig.breaker.take_trial(77, late.generation, rig.now);
    assert_eq!(free(&rig), 4);
}
