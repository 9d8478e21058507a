//! The provider's breaker: one ill agent, or one ill model, never shuts it; a place that is dead for all does.

use super::{
    super::{
        settings::{BreakerSettings, Scope, WindowKind},
        state::{Reason, StateName},
    },
    Outcome, Rig, of_agent, seconds,
};
use crate::policy::chance::Chance;

fn provider(change: impl FnOnce(&mut BreakerSettings)) -> Rig {
    Rig::of(Scope::Provider, |settings| {
        settings.consecutive_failures = Some(3);
        change(settings);
    })
}

fn play(rig: &mut Rig, outcomes: impl IntoIterator<Item = Outcome>) {
    for outcome in outcomes {
        if let Ok(pass) = rig.acquire() {
            rig.record(pass, outcome);
        }
    }
}

fn refused(agent: u16) -> Outcome {
    Outcome { connected: false, ..of_agent(agent, 0, 'x') }
}

/// Agent 0 is ill, the other three are well.
fn one_ill(agent: u16, how: char) -> Outcome {
    of_agent(agent, agent, if agent == 0 { how } else { '.' })
}

#[test]
fn one_ill_agent_of_four_never_opens_it_in_any_short_order() {
    const LENGTH: u32 = 8;
    for order in 0..4_u32.pow(LENGTH) {
        let mut rig = provider(|settings| {
            settings.window = WindowKind::Calls(6);
            (settings.calls_min, settings.trials) = (3, 3);
        });
        for step in 0..LENGTH {
            let agent = u16::try_from(order / 4_u32.pow(step) % 4).unwrap();
            play(&mut rig, [one_ill(agent, 'X')]);
        }
        assert_eq!(rig.transitions, [], "order {order:o}");
    }
}

#[test]
fn one_ill_agent_of_four_never_opens_it_in_long_random_orders() {
    for seed in 0..200 {
        let chance = Chance::from_seed(seed);
        for window in [WindowKind::Calls(20), WindowKind::Time(seconds(60))] {
            let mut rig = provider(|settings| settings.window = window);
            for step in 0..300_u32 {
                // The ill agent asks most of the time.
                let share = chance.share(step.into());
                let agent = if share < 0.55 { 0 } else { 1 + u16::from(share < 0.7) + u16::from(share < 0.85) };
                play(&mut rig, [one_ill(agent, if step % 2 == 0 { 'x' } else { 'X' })]);
                rig.wait(seconds(1));
            }
            assert_eq!(rig.transitions, [], "seed {seed}, {window:?}");
        }
    }
}

#[test]
fn all_four_ill_open_it_exactly_once() {
    let mut rig = provider(|settings| settings.consecutive_failures = None);
    let passes: Vec<_> = (0..40).map(|_| rig.acquire().unwrap()).collect();
    for (index, pass) in (0..).zip(passes) {
        rig.record(pass, of_agent(index % 4, 0, 'x'));
    }
    let seen: Vec<_> = rig.transitions.iter().map(|change| (change.to, change.reason)).collect();
    assert_eq!(seen, [(StateName::Open, Reason::FailureShare)]);
    let mut rig = provider(|settings| settings.consecutive_failures = None);
    play(&mut rig, (0..10).map(|index| of_agent(index % 4, 0, 's')));
    assert_eq!(rig.transitions[0].reason, Reason::SlowShare);
}

#[test]
fn three_hard_failures_in_a_row_open_it_if_one_agent_cannot_explain_them() {
    let hard = |agent| of_agent(agent, 0, 'x');
    for (what, outcomes, state) in [
        ("three refused connections of one agent", vec![refused(0), refused(0), refused(0)], StateName::Open),
        ("two refused", vec![refused(0), refused(0)], StateName::Closed),
        ("one agent's own 5xx", vec![hard(0), hard(0), hard(0), hard(0), hard(0)], StateName::Closed),
        ("one of them connected", vec![refused(0), hard(0), refused(0)], StateName::Closed),
        ("two agents", vec![hard(0), hard(1), hard(0)], StateName::Open),
        ("a success between", vec![hard(0), hard(1), of_agent(2, 0, '.'), hard(0), hard(1)], StateName::Closed),
        (
            "one agent's old failures do not hide that the place is dead",
            vec![hard(0), hard(0), refused(0), refused(0), refused(0)],
            StateName::Open,
        ),
        (
            "nor does another agent's old failure make the last ones shared",
            vec![of_agent(1, 0, '.'), hard(1), of_agent(2, 0, '.'), hard(0), hard(0), hard(0), hard(0)],
            StateName::Closed,
        ),
    ] {
        let mut rig = provider(|_| ());
        play(&mut rig, outcomes);
        assert_eq!(rig.state(), state, "{what}");
    }
}

#[test]
fn a_healthy_light_model_keeps_it_closed() {
    const HEAVY: u16 = 0;
    const LIGHT: u16 = 1;
    for (light, state) in [('.', StateName::Closed), ('x', StateName::Open)] {
        let mut rig = provider(|settings| settings.consecutive_failures = None);
        play(&mut rig, [0, 1, 0, 1, 0, 1].map(|agent| of_agent(agent, LIGHT, '.')));
        for agent in [0, 1].repeat(20) {
            play(&mut rig, [of_agent(agent, HEAVY, 'x'), of_agent(agent, HEAVY, 'x'), of_agent(agent, LIGHT, light)]);
        }
        // Both agents do badly in two calls of three: only the light model is a witness that the place is alive.
        assert!(rig.breaker.snapshot().failure_share.is_some_and(|share| share >= 0.5));
        assert_eq!(rig.state(), state, "light model: {light}");
    }
}

#[test]
fn a_witness_has_five_outcomes_and_did_well_in_half_of_them() {
    for (what, third, state) in [
        ("four good ones", "....", StateName::Open),
        ("five good ones", ".....", StateName::Closed),
        ("three of six", "...xxx", StateName::Closed),
        ("three of seven", "...xxxx", StateName::Open),
        ("three of six were in time", "...sss", StateName::Closed),
        ("two of six were in time", "..ssss", StateName::Open),
    ] {
        let mut rig = provider(|settings| settings.consecutive_failures = None);
        play(&mut rig, third.chars().map(|letter| of_agent(2, 2, letter)));
        play(&mut rig, [0, 1, 0, 1, 0, 1, 0, 1].map(|agent| of_agent(agent, agent, 'x')));
        assert_eq!(rig.state(), state, "a third agent with {what}");
    }
}
