//! What operators and the owner do to it.

use super::{
    super::{
        settings::{BreakerSettings, Mode, Scope},
        state::{GateView, Reason, Refusal, StateName},
    },
    Rig, outcome, seconds,
};
use crate::model::clock::Timestamp;

/// A breaker in this state, reached the short way.
fn rig_in(state: StateName) -> Rig {
    let mut rig = Rig::new(|_| ());
    match state {
        StateName::Closed => {}
        StateName::Open => drop(rig.play("xxxxxxxxxx")),
        StateName::HalfOpen => drop(rig.play("xxxxxxxxxx").wait(seconds(30))),
        StateName::ForcedOpen => drop(rig.breaker.force_open(Reason::Forced, None, rig.now)),
        StateName::Disabled => drop(rig.breaker.disable(rig.now)),
        StateName::MetricsOnly => drop(rig.breaker.metrics_only(rig.now)),
    }
    rig.is(state);
    rig
}

#[test]
fn every_act_in_every_state() {
    use StateName::{Closed, Disabled, ForcedOpen, HalfOpen, MetricsOnly, Open};
    type Act = fn(&mut Rig) -> Option<super::Transition>;
    let acts: [(&str, Act, [StateName; 6]); 8] = [
        // Where each leads from closed, open, half-open, forced open, disabled, metrics only.
        ("open", |rig| rig.breaker.open(Reason::Forced, None, rig.now), [Open; 6]),
        (
            "cool_down",
            |rig| rig.breaker.cool_down(Timestamp::from_millis(400_000), rig.now),
            [Open, Open, Open, ForcedOpen, Disabled, MetricsOnly],
        ),
        (
            "half_open",
            |rig| rig.breaker.half_open(Reason::Forced, rig.now).unwrap_or(None),
            [Closed, HalfOpen, HalfOpen, HalfOpen, Disabled, MetricsOnly],
        ),
        ("close", |rig| rig.breaker.close(rig.now), [Closed; 6]),
        ("force_open", |rig| rig.breaker.force_open(Reason::CrashLoop, None, rig.now), [ForcedOpen; 6]),
        ("disable", |rig| rig.breaker.disable(rig.now), [Disabled; 6]),
        ("metrics_only", |rig| rig.breaker.metrics_only(rig.now), [MetricsOnly; 6]),
        ("reset", |rig| rig.breaker.reset(rig.now), [Closed; 6]),
    ];
    for (name, act, leads_to) in acts {
        for (from, to) in StateName::ALL.into_iter().zip(leads_to) {
            let mut rig = rig_in(from);
            let generation = rig.breaker.generation();
            let transition = act(&mut rig);
            assert_eq!(rig.state(), to, "{name} from {from:?}");
            let told = transition.map(|change| (change.from, change.to, change.at, change.generation));
            let want = (from != to).then_some((from, to, rig.now, generation + 1));
            assert_eq!(told, want, "{name} from {from:?}");
        }
    }
    for from in [Closed, Disabled, MetricsOnly] {
        let mut rig = rig_in(from);
        let error = rig.breaker.half_open(Reason::Forced, rig.now).unwrap_err();
        assert_eq!(error.to_string(), format!("a breaker that is {from:?} cannot become HalfOpen"));
    }
}

#[test]
fn a_mode_is_how_it_starts() {
    for (mode, state, admits) in [
        (Mode::Auto, StateName::Closed, true),
        (Mode::ForcedOpen, StateName::ForcedOpen, false),
        (Mode::Disabled, StateName::Disabled, true),
        (Mode::MetricsOnly, StateName::MetricsOnly, true),
    ] {
        let mut rig = Rig::new(|settings| settings.mode = mode);
        assert_eq!((rig.state(), rig.acquire().is_ok()), (state, admits));
    }
}

#[test]
fn forced_open_has_no_way_out_of_its_own_and_says_what_it_was_told() {
    let mut rig = rig_in(StateName::ForcedOpen);
    rig.wait(seconds(86_400)).is(StateName::ForcedOpen);
    assert_eq!(rig.acquire().unwrap_err(), Refusal { reason: Reason::Forced, until: None });
    let until = Some(rig.now.after(seconds(10)));
    assert_eq!(rig.breaker.force_open(Reason::CrashLoop, until, rig.now), None);
    assert_eq!(rig.acquire().unwrap_err(), Refusal { reason: Reason::CrashLoop, until });
    assert_eq!(rig.counts(), (0, 0, 0, 0));
    // A crash loop that ended leads through half-open.
    rig.breaker.half_open(Reason::CrashLoop, rig.now).unwrap();
    assert_eq!(rig.breaker.gate(), GateView::Probe { free: 5, reason: Reason::CrashLoop });
    rig.play(".....").is(StateName::Closed);
}

#[test]
fn disabled_measures_nothing() {
    let mut rig = rig_in(StateName::Disabled);
    let pass = rig.acquire().unwrap();
    assert!(!rig.aged(pass).stale);
    rig.play(&"xX".repeat(30)).is(StateName::Disabled);
    assert_eq!(rig.counts(), (0, 0, 0, 0));
    assert_eq!(rig.breaker.snapshot().failure_share, None);
}

#[test]
fn metrics_only_says_each_thing_once_until_it_is_over() {
    let mut rig = Rig::new(|settings| settings.consecutive_failures = Some(5));
    rig.breaker.metrics_only(rig.now);
    let mut told = Vec::new();
    for letter in "xxxxxxxxxxx...........ssssssssssssssssss".chars() {
        let pass = rig.acquire().unwrap();
        let effect = rig.record(pass, outcome(letter));
        assert!(effect.transitions.is_empty());
        told.extend(effect.exceeded.iter().map(|(reason, _)| *reason));
    }
    assert_eq!(told, [Reason::Consecutive, Reason::FailureShare, Reason::SlowShare]);
    let mut again = Vec::new();
    for letter in "....................xxxxx".chars() {
        let pass = rig.acquire().unwrap();
        again.extend(rig.record(pass, outcome(letter)).exceeded);
    }
    assert_eq!(again, [(Reason::Consecutive, 5.0)], "it had been over");
    rig.is(StateName::MetricsOnly);
}

#[test]
fn of_several_deadlines_the_latest_wins() {
    let at = |seconds: u64| Timestamp::from_millis(seconds * 1_000);
    let mut rig = Rig::of(Scope::Key, |_| ());
    let until = |rig: &mut Rig| rig.acquire().unwrap_err();
    let opened = rig.breaker.cool_down(at(300), rig.now).unwrap();
    assert_eq!((opened.reason, opened.to), (Reason::QuotaSpent, StateName::Open));
    assert_eq!(rig.breaker.cool_down(at(60), rig.now), None);
    assert_eq!(until(&mut rig).until, Some(at(300)));
    assert_eq!(rig.breaker.cool_down(at(900), rig.now), None);
    assert_eq!(until(&mut rig), Refusal { reason: Reason::QuotaSpent, until: Some(at(900)) });
    assert_eq!(rig.breaker.open(Reason::Forced, None, rig.now), None);
    assert_eq!(until(&mut rig).until, Some(at(900)), "30 s from now are earlier");
    rig.wait(seconds(900)).is(StateName::HalfOpen);
    // A reset that is over already leaves no hole in time.
    rig.breaker.cool_down(at(10), rig.now);
    rig.wait(seconds(0)).is(StateName::HalfOpen);

    // Opened by its share for 30 s, then told of a quota that is spent for longer.
    let mut rig = Rig::of(Scope::Key, |_| ());
    rig.play("oooooooooo").is(StateName::Open);
    rig.breaker.cool_down(at(300), rig.now);
    assert_eq!(until(&mut rig), Refusal { reason: Reason::QuotaSpent, until: Some(at(300)) });
}

#[test]
fn a_reset_forgets_and_makes_what_is_out_late() {
    for state in StateName::ALL {
        let mut rig = rig_in(state);
        let out = rig.acquire().ok();
        rig.breaker.reset(rig.now);
        assert_eq!((rig.state(), rig.counts()), (StateName::Closed, (0, 0, 0, 0)), "{state:?}");
        if let Some(pass) = out {
            assert!(rig.record(pass, outcome('x')).stale, "{state:?}");
        }
        assert_eq!((rig.counts(), rig.breaker.next_timer()), ((0, 0, 0, 0), None), "{state:?}");
    }
}

#[test]
fn restart_empty_forgets_without_a_change_of_state() {
    let mut rig = Rig::new(|settings| settings.consecutive_failures = Some(5));
    let (aged, out) = (rig.acquire().unwrap(), rig.acquire().unwrap());
    rig.aged(aged);
    rig.play("....xxxx");
    let generation = rig.breaker.generation();
    rig.breaker.restart_empty();
    assert_eq!((rig.counts(), rig.state(), rig.breaker.generation()), ((0, 0, 0, 0), StateName::Closed, generation));
    assert!(!rig.record(out, outcome('x')).stale, "calls that are out still count");
    rig.play("xxx").is(StateName::Closed);
    rig.play("x").is(StateName::Open);
    let mut rig = rig_in(StateName::Open);
    let before = (rig.breaker.snapshot(), rig.breaker.gate());
    rig.breaker.restart_empty();
    assert_eq!((rig.breaker.snapshot(), rig.breaker.gate()), before, "an open one stays open");
}

#[test]
fn the_configuration_is_held_to_more_than_a_breaker_needs() {
    let with_trials = |trials| BreakerSettings { trials, ..BreakerSettings::default() };
    assert_eq!(with_trials(21).check().len(), 1);
    assert_eq!(with_trials(21).check_workable(), []);
    assert_eq!(with_trials(0).check_workable().len(), 1);
}
