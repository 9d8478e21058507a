//! How long it stays open, and what leads out.

use std::time::Duration;

use proptest::prelude::*;

use super::{
    super::{
        machine::Breaker,
        settings::{BreakerSettings, HalfOpenBy, HalfOpenFrom, Scope},
        state::{Reason, StateName},
    },
    Rig, seconds,
};
use crate::{model::clock::Timestamp, policy::chance::Chance};

#[test]
fn it_refuses_for_its_whole_time_and_not_longer() {
    let mut rig = Rig::new(|_| ());
    rig.play("xxxxxxxxxx").wait(Duration::from_millis(29_999));
    let refusal = rig.acquire().unwrap_err();
    assert_eq!(refusal.until, Some(Timestamp::from_millis(30_000)));
    rig.wait(Duration::from_millis(1));
    assert!(rig.acquire().is_ok());
    rig.is(StateName::HalfOpen);
}

#[test]
fn the_timer_or_the_first_caller_half_opens_it_whichever_is_first() {
    for (by, asked_ms, reason, at_ms) in [
        (HalfOpenBy::Timer, 45_000, Reason::OpenElapsed, 30_000),
        (HalfOpenBy::FirstCall, 45_000, Reason::FirstCall, 45_000),
    ] {
        let mut rig = Rig::new(|settings| settings.half_open_by = by);
        rig.play("xxxxxxxxxx");
        rig.now = Timestamp::from_millis(asked_ms);
        assert!(rig.acquire().is_ok(), "the caller that finds it takes the first trial");
        let half_open = rig.transitions[1];
        assert_eq!((half_open.reason, half_open.at), (reason, Timestamp::from_millis(at_ms)));
    }
    let mut rig = Rig::new(|settings| settings.half_open_by = HalfOpenBy::FirstCall);
    rig.play("xxxxxxxxxx").wait(seconds(86_400)).is(StateName::Open);
    assert_eq!(rig.breaker.next_timer(), None);

    // A live caller passes the published gate before the timer fired, and the owner is told.
    let mut rig = Rig::new(|_| ());
    rig.play("xxxxxxxxxx");
    assert_eq!(rig.breaker.half_open_by_call(Timestamp::from_millis(29_999)), None);
    let transition = rig.breaker.half_open_by_call(Timestamp::from_millis(30_000)).unwrap();
    assert_eq!((transition.to, transition.reason), (StateName::HalfOpen, Reason::FirstCall));
    assert_eq!(rig.breaker.half_open_by_call(Timestamp::from_millis(30_000)), None);
}

#[test]
fn repeated_openings_grow_up_to_a_bound_and_closing_starts_anew() {
    let grow = |settings: &mut BreakerSettings| settings.open_growth = 2.0;
    let mut rig = Rig::new(grow);
    let open_times = |rig: &mut Rig, count: usize| -> Vec<u64> {
        let mut times = Vec::new();
        for _ in 0..count {
            let until = rig.acquire().unwrap_err().until.unwrap();
            times.push(until.since(rig.now).as_secs());
            rig.wait(until.since(rig.now)).play("xxxxx");
        }
        times
    };
    rig.play("xxxxxxxxxx");
    assert_eq!(open_times(&mut rig, 6), [30, 60, 120, 240, 300, 300]);
    rig.wait(seconds(300)).play(".....").is(StateName::Closed);
    rig.play("xxxxxxxxxx");
    assert_eq!(open_times(&mut rig, 2), [30, 60]);
    // However often it opened, nothing overflows.
    rig.breaker.openings = u32::MAX;
    let until = rig.wait(seconds(300)).breaker.next_timer();
    assert_eq!(until, None);
    rig.play("xxxxx");
    assert_eq!(open_times(&mut rig, 1), [300]);
}

proptest! {
    #[test]
    fn jitter_only_lengthens_and_stays_in_its_share(seed: u64, growth in 1.0_f64..10.0, jitter in 0.0_f64..=1.0, openings in 0_u32..50) {
        let settings = BreakerSettings { open_growth: growth, open_jitter: jitter, ..BreakerSettings::default() };
        let open_time = |seed| {
            let mut breaker = Breaker::try_new(settings.clone(), Scope::Target, Chance::from_seed(seed)).unwrap();
            breaker.openings = openings;
            breaker.open(Reason::Forced, None, Timestamp::ZERO);
            breaker.next_timer().unwrap().since(Timestamp::ZERO)
        };
        let bounded = (30.0 * growth.powf(f64::from(openings))).min(300.0);
        let open = open_time(seed).as_secs_f64();
        prop_assert!(open >= bounded - 1e-6 && open <= bounded * (1.0 + jitter) + 1e-6, "{open} of {bounded}");
        prop_assert_eq!(open_time(seed), open_time(seed));
    }
}

#[test]
fn ten_percent_of_jitter_spreads_breakers() {
    let open_ms = |seed| {
        let mut breaker = Breaker::try_new(BreakerSettings::default(), Scope::Target, Chance::from_seed(seed)).unwrap();
        breaker.open(Reason::Forced, None, Timestamp::ZERO);
        breaker.next_timer().unwrap().millis()
    };
    let times: Vec<u64> = (0..1_000).map(open_ms).collect();
    assert!(times.iter().all(|time| (30_000..=33_000).contains(time)));
    for part in 0..10 {
        let from = 30_000 + 300 * part;
        let here = times.iter().filter(|time| (from..from + 300).contains(*time)).count();
        assert!((50..200).contains(&here), "{here} of 1000 in part {part}");
    }
}

#[test]
fn a_late_look_goes_through_every_missed_change_at_its_own_time() {
    let mut rig = Rig::new(|settings| settings.half_open_from = HalfOpenFrom::Entry);
    rig.play("xxxxxxxxxx").wait(seconds(700));
    let seen: Vec<_> = rig.transitions.iter().map(|change| (change.to, change.at.millis() / 1_000)).collect();
    let (open, half_open) = (StateName::Open, StateName::HalfOpen);
    assert_eq!(seen, [(open, 0), (half_open, 30), (open, 330), (half_open, 360), (open, 660), (half_open, 690)]);
}

#[test]
fn a_look_after_ages_ends_and_leaves_nothing_due() {
    let shortest = Duration::from_nanos(1);
    let mut rig = Rig::new(|settings| {
        settings.half_open_from = HalfOpenFrom::Entry;
        (settings.open, settings.half_open_max) = (shortest, Some(shortest));
    });
    rig.play("xxxxxxxxxx").wait(seconds(7 * 86_400));
    assert!(rig.breaker.next_timer().is_some_and(|due| due > rig.now));
    assert!(rig.transitions.len() < 2_000);
    assert!(rig.transitions.windows(2).all(|pair| pair[0].to == pair[1].from && pair[0].at <= pair[1].at));
    rig.breaker.tick(Timestamp::NEVER);
}
