//! Processes that live and die in imagination: killed from outside at random, or by one of their calls.

use super::*;
use crate::policy::chance::Chance;

/// One call: how long it takes, and after how long it kills the process, if it does.
#[derive(Debug, Clone, Copy)]
struct Call {
    takes: Duration,
    kills: Option<Duration>,
    state: State,
    seen: Seen,
    began: Option<Timestamp>,
    sentence: Sentence,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    Ended,
    Aside { at_death: u32 },
}

fn s(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

fn innocent(takes: f64) -> Call {
    let (seen, sentence) = (Seen::default(), Sentence::Free);
    Call { takes: s(takes), kills: None, state: State::Open, seen, began: None, sentence }
}

fn killer(after: f64) -> Call {
    Call { kills: Some(s(after)), ..innocent(1_000_000.0) }
}

/// Lives until all calls are out of it, or so many deaths.
fn lives(calls: &mut [Call], deaths_max: u32, mut life_of: impl FnMut(u32) -> Duration) -> u32 {
    for death in 1..=deaths_max {
        if !life(calls, life_of(death)) {
            return death - 1;
        }
        let open: Vec<usize> = (0..calls.len()).filter(|call| calls[*call].state == State::Open).collect();
        let seen: Vec<Seen> = open.iter().map(|call| calls[*call].seen).collect();
        for (call, sentence) in open.into_iter().zip(sentences(&seen)) {
            let call = &mut calls[call];
            (call.sentence, call.seen.tried) = (sentence, None);
            match sentence {
                Sentence::PutAside(_) => call.state = State::Aside { at_death: death },
                Sentence::Try { blamed, quiet } => (call.seen.blamed, call.seen.quiet) = (blamed, quiet),
                Sentence::Free => {}
            }
        }
    }
    deaths_max
}

/// One life of a process that is killed from outside after `at_most`. False if everything was over before.
fn life(calls: &mut [Call], at_most: Duration) -> bool {
    let end = Timestamp::ZERO.after(at_most);
    let mut suspects = Vec::new();
    for (place, call) in calls.iter_mut().enumerate().filter(|(_, call)| call.state == State::Open) {
        call.began = None;
        match call.sentence {
            Sentence::Try { blamed, quiet } => suspects.push((place, blamed, quiet)),
            _ => begin(call, Timestamp::ZERO),
        }
    }
    let mut trials = Trials::new(suspects, Timestamp::ZERO);
    let (mut now, mut on_trial) = (Timestamp::ZERO, None);
    loop {
        let look = match trials.next(now) {
            Next::Begin(place) => {
                begin(&mut calls[place], now);
                on_trial = Some(place);
                continue;
            }
            Next::Watch(_, at) | Next::Quiet(at) => at,
            Next::Done => Timestamp::NEVER,
        };
        let open = || calls.iter().enumerate().filter(|(_, call)| call.state == State::Open);
        let ends = open().filter_map(|(place, call)| Some((call.began?.after(call.takes), place))).min();
        let kills = open().filter_map(|(_, call)| Some(call.began?.after(call.kills?))).min();
        let dies = kills.unwrap_or(Timestamp::NEVER).min(end);
        match ends {
            Some((at, place)) if at <= look && at < dies => {
                now = at;
                calls[place].state = State::Ended;
                if on_trial == Some(place) {
                    trials.over(now);
                    on_trial = None;
                }
            }
            None if look == Timestamp::NEVER => return false,
            _ if look < dies => now = look,
            _ => {
                let tried = on_trial.and_then(|place| Some((place, calls[place].began?)));
                if let Some((place, began)) = tried {
                    calls[place].seen.tried = Some(dies.since(began) + BEAT);
                }
                return true;
            }
        }
    }
}

fn begin(call: &mut Call, at: Timestamp) {
    (call.began, call.seen.deaths) = (Some(at), call.seen.deaths + 1);
}

fn never(_: u32) -> Duration {
    s(1e9)
}

#[test]
fn a_call_that_kills_is_found_in_few_deaths_and_nobody_else_is_blamed() {
    for kills_after in [0.0, 0.3, 2.0, 15.0] {
        let mut calls = vec![innocent(60.0), innocent(0.5), killer(kills_after), innocent(1.0), innocent(600.0)];
        let deaths = lives(&mut calls, 100, never);
        assert_eq!(deaths, SUSPECT_DEATHS + BLAMES_MAX, "after {kills_after} s");
        assert_eq!(calls[2].state, State::Aside { at_death: deaths });
        assert!([0, 1, 3, 4].iter().all(|call| calls[*call].state == State::Ended), "{calls:?}");
    }
}

#[test]
fn several_that_kill_are_found_one_after_the_other() {
    let mut calls = vec![killer(1.0), innocent(30.0), killer(1.0), killer(0.1)];
    let deaths = lives(&mut calls, 100, never);
    assert!(deaths <= 3 * (SUSPECT_DEATHS + BLAMES_MAX), "{deaths} deaths");
    assert!([0, 2, 3].iter().all(|call| matches!(calls[*call].state, State::Aside { .. })), "{calls:?}");
    assert_eq!(calls[1].state, State::Ended);
}

#[test]
fn one_that_kills_slowly_is_put_aside_at_last() {
    let mut calls = vec![killer(100.0), innocent(30.0)];
    assert_eq!(lives(&mut calls, 100, never), DEATHS_MAX);
    assert_eq!(calls[0].state, State::Aside { at_death: DEATHS_MAX });
    assert_eq!(calls[1].state, State::Ended);
}

/// Killed from outside at random moments, at regular ones, or ever sooner: 50 times, with calls of every length under way.
#[test]
fn kills_from_outside_blame_nobody() {
    let rounds = 2_000_u64;
    let mut aside = 0;
    for round in 0..rounds {
        let chance = Chance::from_seed(round);
        let mean = 0.1 * 10_f64.powf(3.0 * chance.share(1));
        let takes = |place: u64| mean * 10_f64.powf(3.0 * chance.fork(2).share(place) - 1.0);
        let mut calls: Vec<Call> = (0..8).map(|place| innocent(takes(place))).collect();
        let share = |death: u32| chance.fork(3).share(death.into());
        let dies_after = |death: u32| match round % 4 {
            0 => s(-mean * (1.0 - share(death)).ln()),
            1 => s(mean * (0.5 + share(death))),
            2 => s(mean),
            _ => s(if share(death) < 0.5 { mean * 0.1 * share(death) } else { mean * share(death) }),
        };
        lives(&mut calls, 50, dies_after);
        aside += calls.iter().filter(|call| matches!(call.state, State::Aside { .. })).count();
    }
    // 16,000 calls; chance alone blames one in some thousands of those that are under way all along.
    assert!(aside <= 8, "{aside} put aside");
}

#[test]
fn a_death_without_a_trial_takes_all_blame_back() {
    let quiet = s(30.0);
    let held = Seen { deaths: 5, blamed: 3, quiet, tried: None };
    let tried = |seconds| Seen { tried: Some(s(seconds)), ..held };
    let again = |blamed, quiet| Sentence::Try { blamed, quiet };
    let longer = TRIAL_MAX.as_secs_f64() + 1.0;
    let aside = Sentence::PutAside(Guilt::Blamed);
    let unknown = Seen { tried: Some(Duration::MAX), ..held };
    let little = Seen { blamed: 0, ..tried(2.0) };
    for (what, seen, want) in [
        ("nobody on trial", vec![held, held], vec![again(0, Duration::ZERO); 2]),
        ("another on trial", vec![held, little], vec![again(3, quiet), again(1, s(30.0))]),
        ("put aside before", vec![Seen { blamed: BLAMES_MAX, ..held }], vec![aside]),
        ("for the last time", vec![tried(2.0)], vec![aside]),
        (
            "too long to tell, and no trial of others",
            vec![tried(longer), held],
            vec![again(3, quiet), again(0, s(0.0))],
        ),
        ("since nobody knows when", vec![unknown], vec![again(3, quiet)]),
        ("two at once, which cannot be", vec![tried(2.0), tried(2.0)], vec![again(3, quiet); 2]),
        ("fewer deaths", vec![Seen { deaths: SUSPECT_DEATHS - 1, ..Seen::default() }], vec![Sentence::Free]),
    ] {
        assert_eq!(sentences(&seen), want, "{what}");
    }
}
