//! When a closed breaker opens, and when it must not.

use std::time::Duration;

use super::{
    super::{
        settings::{BreakerSettings, Scope, WindowKind},
        state::{Reason, StateName, Transition},
    },
    Rig, seconds,
};
use crate::model::clock::Timestamp;

fn check(what: &str, change: impl FnOnce(&mut BreakerSettings), script: &str, opened_by: Option<Reason>) {
    let mut rig = Rig::new(change);
    rig.play(script);
    let by = rig.transitions.first().map(|transition| transition.reason);
    assert_eq!(by, opened_by, "{what}: {script}");
    assert_eq!(rig.state() == StateName::Open, opened_by.is_some(), "{what}: {script}");
}

#[test]
fn the_tenth_outcome_is_the_first_that_judges() {
    check("nine", |_| (), "xxxxxxxxx", None);
    check("ten", |_| (), "xxxxxxxxxx", Some(Reason::FailureShare));
    check("ten, the last one good", |_| (), "xxxxx.....", Some(Reason::FailureShare));
    check("no full window is needed", |_| (), ".........xxxxxxxxx", Some(Reason::FailureShare));
    check("slow, nine", |_| (), "sssssssss", None);
    check("slow, ten", |_| (), "ssssssssss", Some(Reason::SlowShare));
    check("ignored ones are not there", |_| (), &"x-".repeat(9), None);
    check("ignored ones do not dilute", |_| (), &"-----x".repeat(10), Some(Reason::FailureShare));
}

#[test]
fn shares_are_inclusive_thresholds() {
    let hundred = |settings: &mut BreakerSettings| {
        settings.window = WindowKind::Calls(100);
        settings.calls_min = 100;
    };
    let share = |good: usize, letter: &str| ".".repeat(good) + &letter.repeat(100 - good);
    check("49 %", hundred, &share(51, "x"), None);
    check("50 %", hundred, &share(50, "x"), Some(Reason::FailureShare));
    check("69 % slow", hundred, &share(31, "s"), None);
    check("70 % slow", hundred, &share(30, "s"), Some(Reason::SlowShare));
    check("slow failures are both; failure speaks first", hundred, &share(30, "X"), Some(Reason::FailureShare));
    check("4 of 10", |_| (), "......xxxx", None);
    check("5 of 10", |_| (), ".....xxxxx", Some(Reason::FailureShare));
    check("soft ones count in the share", |_| (), ".....ooooo", Some(Reason::FailureShare));
}

#[test]
fn the_oldest_outcome_leaves_a_count_window() {
    let twenty = ".".repeat(20);
    check("9 of the last 20", |_| (), &(twenty.clone() + "xxxxxxxxx"), None);
    check("10 of the last 20", |_| (), &(twenty.clone() + "xxxxxxxxxx"), Some(Reason::FailureShare));
    check("failures that left", |_| (), &("....xxx".to_owned() + &twenty + "xxxxxxxxx"), None);
    let mut rig = Rig::new(|_| ());
    rig.play(&("....xxx".to_owned() + &twenty));
    assert_eq!(rig.counts(), (20, 20, 0, 0));
}

#[test]
fn five_hard_failures_in_a_row_open_a_quiet_breaker() {
    let on = |settings: &mut BreakerSettings| settings.consecutive_failures = Some(5);
    check("four", on, "xxxx", None);
    check("five", on, "xxxxx", Some(Reason::Consecutive));
    check("a success between", on, "xxxx.xxxx", None);
    check("a slow success between", on, "xxxxsxxx", None);
    check("ignored neither counts nor resets", on, "xx-xx--x", Some(Reason::Consecutive));
    check("soft neither counts nor resets", on, "xxoxxx", Some(Reason::Consecutive));
    check("soft alone", on, "ooooooooo", None);

    let mut rig = Rig::new(on);
    for _ in 0..4 {
        rig.play("x").wait(seconds(3_600));
    }
    rig.is(StateName::Closed);
    rig.play("x");
    rig.is(StateName::Open);
    let consecutive = rig.transitions[0];
    assert_eq!((consecutive.reason, consecutive.value), (Reason::Consecutive, Some(5.0)));
}

#[test]
fn a_key_has_no_consecutive_rule() {
    let mut rig = Rig::of(Scope::Key, |settings| settings.consecutive_failures = Some(3));
    rig.play("xxxxxxxxx").is(StateName::Closed);
    rig.play("x").is(StateName::Open);
    assert_eq!(rig.transitions[0].reason, Reason::FailureShare);
}

#[test]
fn an_opening_says_from_where_to_where_why_and_when() {
    let mut rig = Rig::new(|_| ());
    rig.wait(seconds(3)).play("......xxxx").wait(Duration::from_millis(1)).play("xx");
    let at = Timestamp::from_millis(3_001);
    let opened = Transition {
        from: StateName::Closed,
        to: StateName::Open,
        reason: Reason::FailureShare,
        value: Some(0.5),
        at,
        generation: 1,
    };
    assert_eq!(rig.transitions, [opened]);
    let refusal = rig.acquire().unwrap_err();
    assert_eq!((refusal.reason, refusal.until), (Reason::FailureShare, Some(at.after(seconds(30)))));
    assert_eq!(rig.breaker.snapshot().failure_share, Some(0.5));
}

#[test]
fn outcomes_older_than_max_age_do_not_count() {
    for (wait, state) in [(seconds(600), StateName::Open), (seconds(600) + Duration::from_nanos(1), StateName::Closed)]
    {
        let mut rig = Rig::new(|_| ());
        rig.play("xxxxxxxxx").wait(wait).play("x");
        assert_eq!(rig.state(), state, "{wait:?}");
    }
    let mut rig = Rig::new(|settings| settings.max_age = None);
    rig.play("xxxxxxxxx").wait(seconds(86_400)).play("x").is(StateName::Open);
    let mut rig = Rig::new(|_| ());
    rig.play("xxxxxxxxx").wait(seconds(601));
    assert_eq!(rig.counts(), (0, 0, 0, 0), "whoever looks sees it too");
}

#[test]
fn a_time_window_keeps_whole_seconds() {
    let minute = |settings: &mut BreakerSettings| settings.window = WindowKind::Time(seconds(60));
    for (wait, entries) in [(Duration::from_millis(59_999), 10), (seconds(60), 1)] {
        let mut rig = Rig::new(minute);
        rig.play("......xxx").wait(wait).play("x");
        assert_eq!(rig.counts().0, entries, "{wait:?}");
    }
    let mut rig = Rig::new(minute);
    for _ in 0..100 {
        rig.play("..x").wait(seconds(1));
    }
    assert_eq!(rig.counts(), (177, 177, 59, 0), "59 whole seconds and the one that has just begun");
    rig.is(StateName::Closed);
    rig.wait(seconds(60));
    assert_eq!(rig.counts(), (0, 0, 0, 0));
}

#[test]
fn results_of_an_earlier_generation_change_nothing() {
    let mut rig = Rig::new(|_| ());
    let late: Vec<_> = (0..4).map(|_| rig.acquire().unwrap()).collect();
    rig.play("xxxxxxxxxx").is(StateName::Open);
    for (state, pass) in [StateName::Open, StateName::HalfOpen, StateName::Closed].into_iter().zip(late) {
        let before = (rig.breaker.snapshot(), rig.breaker.gate(), rig.breaker.next_timer());
        rig.is(state);
        for letter in ['.', 'x', '-'] {
            assert!(rig.record(pass, super::outcome(letter)).stale);
        }
        assert!(rig.aged(pass).stale);
        assert!(rig.breaker.release(pass, rig.now).stale);
        assert_eq!((rig.breaker.snapshot(), rig.breaker.gate(), rig.breaker.next_timer()), before, "{state:?}");
        match state {
            StateName::Open => rig.wait(seconds(30)),
            _ => rig.play("....."),
        };
    }
}

#[test]
fn a_first_failure_after_recovery_does_not_open_again() {
    let mut rig = Rig::new(|settings| settings.consecutive_failures = Some(5));
    rig.play("xxxxx").wait(seconds(30)).play("..x.x").is(StateName::Closed);
    assert_eq!(rig.counts(), (0, 0, 0, 0));
    rig.play(".xxxx.xxx").is(StateName::Closed);
}
