//! The shared case's six parts, servers that are simulated call by call, and settings that cannot be.
#![allow(clippy::cast_possible_truncation, clippy::float_cmp, reason = "small counts, and shares that the case states")]

use std::{collections::BinaryHeap, time::Duration};

use proptest::prelude::*;
use serde_json::Value;

use super::{
    baseline::{Baselines, CLASSES_MAX, Timed},
    limit::{AdaptiveLimit, Attempt, Change, Reason, Said, said},
    settings::AdaptiveSettings,
};
use crate::{
    model::{
        clock::Timestamp,
        facts::{Ending, QuotaReset, TimeoutKind},
    },
    policy::{chance::Chance, setting::InvalidSetting},
};

fn at(seconds: f64) -> Timestamp {
    Timestamp::ZERO.after(Duration::from_secs_f64(seconds))
}

fn whole(seconds: f64) -> Timed {
    Timed::Whole { took: Duration::from_secs_f64(seconds), output_tokens: None }
}

/// A call in flight in a simulation, the earliest end first.
#[derive(Debug, PartialEq)]
struct Flying {
    ends: f64,
    started: f64,
    agent: usize,
    timed: Timed,
}

impl Eq for Flying {}

impl PartialOrd for Flying {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Flying {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        other.ends.total_cmp(&self.ends)
    }
}

/// Keeps `wanted` calls in flight, or the limit if that is less, until `until`. `call` makes the next one from how many are in flight.
fn simulate(
    limit: &mut AdaptiveLimit,
    wanted: u32,
    from: f64,
    until: f64,
    mut call: impl FnMut(u64, u32) -> (usize, Timed),
) -> Vec<Change> {
    let (mut flying, mut changes, mut count, mut now) = (BinaryHeap::new(), Vec::new(), 0, from);
    loop {
        while (flying.len() as u32) < wanted.min(limit.limit()) {
            let (agent, timed) = call(count, flying.len() as u32 + 1);
            count += 1;
            let took = match timed {
                Timed::Whole { took, .. } => took,
                Timed::FirstToken { wait, .. } => wait,
            };
            flying.push(Flying { ends: now + took.as_secs_f64(), started: now, agent, timed });
        }
        let (in_flight, reach) = (flying.len() as u32, limit.limit());
        let Some(done) = flying.pop() else { return changes };
        now = done.ends;
        if now > until {
            return changes;
        }
        let (started, said) = (at(done.started), Said::Good(done.timed));
        changes.extend(limit.ended(&Attempt { agent: done.agent, started, at: at(now), in_flight, reach, said }));
    }
}

fn told(limit: &mut AdaptiveLimit, started: f64, ended: f64, in_flight: u32, said: Said) -> Option<Change> {
    let reach = limit.limit();
    limit.ended(&Attempt { agent: 0, started: at(started), at: at(ended), in_flight, reach, said })
}

struct Case {
    settings: AdaptiveSettings,
    parts: Value,
    expected: Vec<Value>,
}

impl Case {
    fn read() -> Option<Self> {
        let Some(folder) = std::env::var_os("WATERTIGHT_SHARED") else {
            eprintln!("skipped: WATERTIGHT_SHARED is not set");
            return None;
        };
        let read = |name: &str| -> Value {
            let path = std::path::Path::new(&folder).join("cases/B50").join(name);
            serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
        };
        let config = read("config.json");
        let count = |key: &str| u32::try_from(config[key].as_u64().unwrap()).unwrap();
        let share = |key: &str| config[key].as_f64().unwrap();
        let settings = AdaptiveSettings {
            start: count("initial"),
            min: count("min"),
            max: count("max"),
            tolerance: share("tolerance"),
            decrease: share("decrease"),
        };
        assert_eq!(settings, AdaptiveSettings::default(), "the case has the documentation's numbers");
        Some(Self {
            settings,
            parts: read("parts.json"),
            expected: read("expected.json")["assert"].as_array().unwrap().clone(),
        })
    }

    fn limit(&self, start: u64) -> AdaptiveLimit {
        AdaptiveLimit::new(AdaptiveSettings { start: start as u32, ..self.settings }, None, Timestamp::ZERO)
    }

    fn number(&self, part: &str, key: &str) -> f64 {
        self.parts[part][key].as_f64().unwrap()
    }

    fn count(&self, part: &str, key: &str) -> u64 {
        self.parts[part][key].as_u64().unwrap()
    }

    fn wanted(&self, part: &str, key: &str) -> f64 {
        self.expected.iter().find(|row| row["part"] == part).unwrap()[key].as_f64().unwrap()
    }
}

#[test]
fn part_a_capacity_that_is_not_used_is_no_reason_to_grow() {
    let Some(case) = Case::read() else { return };
    let mut limit = case.limit(50);
    let (latency, calls) = (case.number("a", "latency_s"), case.count("a", "successes"));
    let changes = simulate(&mut limit, case.count("a", "inflight") as u32, 0.0, latency * calls as f64, |_, _| {
        (0, whole(latency))
    });
    assert!(changes.is_empty() && f64::from(limit.limit()) <= case.wanted("a", "limit_max"), "{changes:?}");
    assert_eq!(limit.baseline(0, whole(1.0)), Some(Duration::from_secs_f64(case.number("a", "baseline_s"))));
}

#[test]
fn part_b_one_cut_for_a_burst() {
    let Some(case) = Case::read() else { return };
    let count = case.count("b", "count");
    for answer in [Said::TimedOut, Said::Busy] {
        // All of them began before the burst; or each takes the place of the one before it, and is refused as quickly.
        for in_place in [false, true] {
            let mut limit = case.limit(case.count("b", "at_limit"));
            let step = case.number("b", "overloads_within_ms") / 1_000.0 / count as f64;
            let cuts = (0..count).filter_map(|call| {
                let ended = 10.0 + call as f64 * step;
                let started = if in_place { ended - step } else { 9.0 };
                told(&mut limit, started, ended, 50, answer)
            });
            assert_eq!(cuts.count(), 1, "{answer:?}");
            assert_eq!(f64::from(limit.limit()), case.wanted("b", "limit_after"));
        }
    }
}

#[test]
fn part_c_the_floor_is_left_again() {
    let Some(case) = Case::read() else { return };
    let mut limit = case.limit(case.count("c", "start_limit"));
    let latency = case.number("c", "latency_s");
    let changes = simulate(&mut limit, u32::MAX, 0.0, case.number("c", "seconds"), |_, _| (0, whole(latency)));
    assert!(f64::from(limit.limit()) >= case.wanted("c", "limit_after_min"), "{}", limit.limit());
    assert!(limit.limit() <= 5 + 60, "about one a second, never twice as many: {}", limit.limit());
    assert!(changes.iter().all(|change| change.reason == Reason::FullUse && change.to == change.from + 1));
}

#[test]
fn parts_d_and_e_the_baseline_forgets_cold_starts_and_hears_of_no_refusal() {
    let Some(case) = Case::read() else { return };
    let (cold, warm, count) =
        (case.number("d", "first_20_calls_s"), case.number("d", "then_calls_s"), case.count("d", "count"));
    for wanted in [1, 5, 50] {
        let mut limit = case.limit(50);
        let seconds = |call: u64| if call < 20 { cold } else { warm };
        let mut made = 0;
        simulate(&mut limit, wanted, 0.0, f64::MAX.min(1e6), |call, _| {
            made = call + 1;
            // After the case's calls nothing ends any more.
            (0, if call < count { whole(seconds(call)) } else { whole(1e9) })
        });
        assert!(made >= count);
        let baseline = limit.baseline(0, whole(warm)).unwrap().as_secs_f64();
        assert!(baseline <= case.wanted("d", "baseline_after_s_max"), "{wanted} in flight: {baseline}");
    }
    let mut limit = case.limit(50);
    let calls_s = case.number("e", "calls_s");
    for call in 0..case.count("e", "count") {
        told(&mut limit, call as f64 * calls_s, (call + 1) as f64 * calls_s, 1, Said::Good(whole(calls_s)));
    }
    for ending in [Ending::status(503), Ending::status(429), Ending::OwnRefusal, Ending::Network { connected: false }] {
        for call in 0..50 {
            let started = 2_000.0 + f64::from(call) * 0.005;
            told(&mut limit, started, started + 0.005, 1, said(&ending, Some(whole(0.005))));
        }
    }
    let baseline = limit.baseline(0, whole(calls_s)).unwrap().as_secs_f64();
    assert!(baseline >= case.wanted("e", "baseline_after_s_min"), "{baseline}");
}

#[test]
fn part_f_long_calls_are_not_late_because_others_are_short() {
    let Some(case) = Case::read() else { return };
    let long = case.number("f", "calls_s");
    let sized =
        |seconds: f64, tokens| Timed::Whole { took: Duration::from_secs_f64(seconds), output_tokens: Some(tokens) };
    let streamed =
        |seconds, tokens| Timed::FirstToken { wait: Duration::from_secs_f64(seconds), prompt_tokens: Some(tokens) };
    // Two agents, or one with answers of two lengths, or prompts of two lengths.
    let kinds: [[(usize, Timed); 2]; 3] = [
        [(0, whole(long)), (1, whole(1.0))],
        [(0, sized(long, 900)), (0, sized(1.0, 25))],
        [(0, streamed(long, 30_000)), (0, streamed(1.0, 40))],
    ];
    for kind in kinds {
        let mut limit = case.limit(50);
        let changes = simulate(&mut limit, u32::MAX, 0.0, 600.0, |call, _| kind[call as usize % 2]);
        assert!(changes.iter().all(|change| change.reason == Reason::FullUse), "{kind:?}: {changes:?}");
        assert!(limit.limit() > 60);
    }
}

/// About what model servers do: the logarithm of a time is spread evenly around its middle.
fn spread(chance: Chance, call: u64, sigma: f64) -> f64 {
    let normal = (0..12).map(|part| chance.share(call * 12 + part)).sum::<f64>() - 6.0;
    (normal * sigma).exp()
}

#[test]
fn times_that_vary_by_themselves_pin_nothing_at_the_floor() {
    for (sigma, seed) in [(0.3, 1), (0.5, 2), (0.5, 3), (0.8, 4)] {
        let mut limit =
            AdaptiveLimit::new(AdaptiveSettings { start: 5, ..AdaptiveSettings::default() }, None, Timestamp::ZERO);
        let chance = Chance::from_seed(seed);
        let changes =
            simulate(&mut limit, u32::MAX, 0.0, 3_600.0, |call, _| (0, whole(2.0 * spread(chance, call, sigma))));
        let late = changes.iter().filter(|change| change.reason == Reason::Late).count();
        assert!(limit.limit() >= 100, "sigma {sigma}: {} after an hour, {late} cuts", limit.limit());
    }
}

#[test]
fn a_server_that_slows_down_under_load_is_found_out() {
    // 20 at once without waiting, from there on all take longer: 30 at once take 1.5 times as long.
    for (sigma, seed) in [(0.0, 1), (0.3, 2), (0.5, 3)] {
        let chance = Chance::from_seed(seed);
        let server = |call: u64, in_flight: u32| {
            let slowed = (f64::from(in_flight) / 20.0).max(1.0);
            (0, whole(2.0 * slowed * spread(chance, call, sigma)))
        };
        let mut limit =
            AdaptiveLimit::new(AdaptiveSettings { start: 10, ..AdaptiveSettings::default() }, None, Timestamp::ZERO);
        let mut highest = 0;
        let changes = simulate(&mut limit, u32::MAX, 0.0, 36_000.0, |call, in_flight| {
            highest = highest.max(in_flight);
            server(call, in_flight)
        });
        let (mut mean, mut last) = (0.0, (0.0, 10.0));
        for change in &changes {
            let now = change.at.since(Timestamp::ZERO).as_secs_f64();
            mean += (now - last.0) * last.1 / 36_000.0;
            last = (now, f64::from(change.to));
        }
        assert!((15.0..=35.0).contains(&mean) && highest <= 45, "sigma {sigma}: {mean} in the mean, up to {highest}");
    }
}

/// Half of the slots are kept for somebody who does not call: a server that is slower for those who do is found out all the same.
#[test]
fn a_limit_of_which_half_is_kept_rises_and_is_no_blinder() {
    let mut limit =
        AdaptiveLimit::new(AdaptiveSettings { start: 8, ..AdaptiveSettings::default() }, None, Timestamp::ZERO);
    let (mut flying, mut now, mut most) = (BinaryHeap::new(), 0.0, 0);
    while now < 36_000.0 {
        let reach = limit.limit().div_ceil(2);
        while flying.len() < reach as usize {
            let slowed = ((flying.len() + 1) as f64 / 20.0).max(1.0);
            let timed = whole(2.0 * slowed);
            flying.push(Flying { ends: now + 2.0 * slowed, started: now, agent: 0, timed });
        }
        let in_flight = flying.len() as u32;
        let done = flying.pop().unwrap();
        now = done.ends;
        let (started, said) = (at(done.started), Said::Good(done.timed));
        limit.ended(&Attempt { agent: 0, started, at: at(now), in_flight, reach, said });
        most = most.max(in_flight);
    }
    assert!((15..=45).contains(&most), "{most} at once at the most");
}

#[test]
fn a_model_that_became_slower_for_good_is_learnt_anew() {
    let mut limit = AdaptiveLimit::new(AdaptiveSettings::default(), None, Timestamp::ZERO);
    simulate(&mut limit, u32::MAX, 0.0, 300.0, |_, _| (0, whole(2.0)));
    let before = limit.limit();
    assert!(before > 100, "{before}");
    let changes = simulate(&mut limit, u32::MAX, 300.0, 1_000.0, |_, _| (0, whole(8.0)));
    let floor = changes.iter().find(|change| change.to == 5).map(|change| change.reason);
    assert_eq!(floor, Some(Reason::Late), "first it looks like our own fault");
    simulate(&mut limit, u32::MAX, 1_000.0, 8_000.0, |_, _| (0, whole(8.0)));
    assert!(limit.limit() > 100, "the floor is left once that is usual: {}", limit.limit());
}

#[test]
fn what_ends_say() {
    let timed = whole(1.0);
    let spent = Ending::Status {
        status: 429,
        retryable: None,
        content_filter: false,
        context_too_long: false,
        quota_spent: Some(QuotaReset::Unknown),
    };
    for (ending, want) in [
        (Ending::Success, Said::Good(timed)),
        (Ending::Timeout { timeout: TimeoutKind::Attempt }, Said::TimedOut),
        (Ending::Timeout { timeout: TimeoutKind::FirstToken }, Said::TimedOut),
        (Ending::status(429), Said::Busy),
        (Ending::status(503), Said::Busy),
        (Ending::status(529), Said::Busy),
        (spent, Said::Nothing),
        (Ending::status(500), Said::Nothing),
        (Ending::status(400), Said::Nothing),
        (Ending::Network { connected: false }, Said::Nothing),
        (Ending::OwnRefusal, Said::Nothing),
        (Ending::Cancelled { slow_without_content: true }, Said::Nothing),
        (Ending::DeadlineCut, Said::Nothing),
        (Ending::BadReply, Said::Nothing),
    ] {
        assert_eq!(said(&ending, Some(timed)), want, "{ending:?}");
    }
    assert_eq!(said(&Ending::Success, None), Said::Nothing);
}

#[test]
fn a_static_cap_is_its_most() {
    for (cap, start, most) in [(Some(8), 8, 8), (Some(3), 3, 3), (Some(0), 0, 0), (None, 50, 500)] {
        let mut limit = AdaptiveLimit::new(AdaptiveSettings::default(), cap, Timestamp::ZERO);
        assert_eq!(limit.limit(), start);
        let seconds = if cap.is_some() { 100.0 } else { 2_000.0 };
        simulate(&mut limit, u32::MAX, 0.0, seconds, |_, _| (0, whole(1.0)));
        assert_eq!(limit.limit(), most, "{cap:?}");
    }
    let mut limit = AdaptiveLimit::new(AdaptiveSettings::default(), None, Timestamp::ZERO);
    let change = limit.change_bounds(AdaptiveSettings::default(), Some(20), at(1.0));
    assert_eq!(change, Some(Change { from: 50, to: 20, reason: Reason::Reload, at: at(1.0) }));
    assert_eq!(limit.change_bounds(AdaptiveSettings::default(), Some(20), at(2.0)), None);
    let raised = AdaptiveSettings { min: 30, start: 50, ..AdaptiveSettings::default() };
    assert_eq!(limit.change_bounds(raised, None, at(3.0)).map(|change| change.to), Some(30));
}

#[test]
fn what_cannot_be_is_refused() {
    let broken = |settings: AdaptiveSettings| settings.check().iter().map(InvalidSetting::key).collect::<Vec<_>>();
    let good = AdaptiveSettings::default();
    assert_eq!(broken(good), Vec::<&str>::new());
    for (settings, want) in [
        (AdaptiveSettings { min: 0, ..good }, vec!["min"]),
        (AdaptiveSettings { max: 4, start: 5, ..good }, vec!["max", "start"]),
        (AdaptiveSettings { max: 100_001, ..good }, vec!["max"]),
        (AdaptiveSettings { start: 501, ..good }, vec!["start"]),
        (AdaptiveSettings { tolerance: 1.0, ..good }, vec!["tolerance"]),
        (AdaptiveSettings { tolerance: f64::NAN, ..good }, vec!["tolerance"]),
        (AdaptiveSettings { decrease: 1.0, ..good }, vec!["decrease"]),
        (AdaptiveSettings { decrease: 0.0, ..good }, vec!["decrease"]),
        (AdaptiveSettings { decrease: f64::NAN, ..good }, vec!["decrease"]),
    ] {
        assert_eq!(broken(settings), want, "{settings:?}");
    }
}

#[test]
fn classes_are_bounded_and_the_least_seen_gives_way() {
    let mut baselines = Baselines::default();
    for round in 0..8 {
        baselines.take_in(0, whole(1.0), at(f64::from(round)));
    }
    for agent in 1..=10 * CLASSES_MAX {
        baselines.take_in(agent, whole(1.0), at(10.0 + agent as f64));
        baselines.take_in(0, whole(1.0), at(10.5 + agent as f64));
        assert!(baselines.len() <= CLASSES_MAX);
    }
    assert_eq!(baselines.of(0, whole(1.0)), Some(Duration::from_secs(1)));
    assert_eq!(baselines.of(1, whole(1.0)), None);
}

proptest! {
    /// Whatever ends how: the limit stays within its bounds, grows by one, is cut at most once a round trip, and says each change.
    #[test]
    fn it_keeps_its_bounds_and_says_each_change(
        min in 1_u32..20, span in 0_u32..40, start in 0_u32..60, cap in prop::option::of(0_u32..50),
        ends in prop::collection::vec((0_u64..3_000, 0_u64..20_000, 0_u8..6, 0_u32..70), 0..300),
    ) {
        let settings = AdaptiveSettings { min, max: min + span, start: min + start.min(span), ..AdaptiveSettings::default() };
        prop_assert!(settings.check().is_empty());
        let bounds = settings.under(cap);
        let mut limit = AdaptiveLimit::new(settings, cap, Timestamp::ZERO);
        let (mut now, mut before, mut cut) = (100_000, limit.limit(), None);
        for (wait, took, what, in_flight) in ends {
            now += wait;
            let said = match what { 0 => Said::TimedOut, 1 => Said::Busy, 2 => Said::Nothing, _ => Said::Good(whole(took as f64 / 1_000.0)) };
            let started = Timestamp::from_millis(now - took);
            let change = limit.ended(&Attempt { agent: 0, started, at: Timestamp::from_millis(now), in_flight, reach: u32::MAX, said });
            prop_assert!((bounds.min..=bounds.max).contains(&limit.limit()));
            prop_assert_eq!(change.map(|change| (change.from, change.to)), (before != limit.limit()).then_some((before, limit.limit())));
            if let Some(change) = change {
                if change.reason == Reason::FullUse {
                    prop_assert_eq!(change.to, change.from + 1);
                } else {
                    prop_assert!(change.to < change.from && f64::from(change.to) >= (f64::from(change.from) * 0.8).floor().min(f64::from(change.from - 1)));
                    prop_assert!(cut.is_none_or(|cut| now >= cut + 100 && now - took > cut), "cut at {cut:?} and {now}");
                    cut = Some(now);
                }
            }
            before = limit.limit();
        }
    }
}
