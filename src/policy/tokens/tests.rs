//! Token budgets at their edges, and against a twin that remembers everything.

use proptest::prelude::*;

use super::*;

fn ms(at: u64) -> Timestamp {
    Timestamp::from_millis(at)
}

/// Asks and keeps what it got.
fn reserve(budget: &mut TokenBudget, tokens: u64, at: u64) -> Result<ReservationId, BudgetRefusal> {
    budget.reserve(tokens, ms(at))
}

fn exhausted(seconds: u64) -> Result<ReservationId, BudgetRefusal> {
    Err(BudgetRefusal::Exhausted { retry_after: Duration::from_secs(seconds) })
}

#[test]
fn a_whole_budget_fits_once_in_any_minute() {
    let mut budget = TokenBudget::new(10_000);
    assert!(reserve(&mut budget, 10_000, 59_900).is_ok());
    let refused = Duration::from_millis(59_800);
    assert_eq!(reserve(&mut budget, 10_000, 60_100), Err(BudgetRefusal::Exhausted { retry_after: refused }));
    assert!(reserve(&mut budget, 10_000, 119_900).is_ok(), "it has left at 119.9 s exactly");
}

#[test]
fn nothing_flows_back_before_it_leaves() {
    let mut budget = TokenBudget::new(10_000);
    assert!(reserve(&mut budget, 10_000, 0).is_ok());
    for step in 1..10 {
        assert_eq!(reserve(&mut budget, 1_000, step * 6_000), exhausted(60 - step * 6));
    }
    assert!(budget.reserve(1, Timestamp::from_nanoseconds(59_999_999_999)).is_err());
    assert!(reserve(&mut budget, 1_000, 60_000).is_ok());
}

#[test]
fn a_refusal_says_when_enough_has_left() {
    let mut budget = TokenBudget::new(100);
    for (tokens, at) in [(50, 0), (30, 10_000), (20, 20_000)] {
        assert!(reserve(&mut budget, tokens, at).is_ok());
    }
    for (tokens, want) in [(1, 30), (50, 30), (51, 40), (80, 40), (81, 50), (100, 50)] {
        assert_eq!(reserve(&mut budget, tokens, 30_000), exhausted(want), "{tokens}");
    }
}

#[test]
fn a_request_larger_than_the_budget_is_refused_for_good() {
    let mut budget = TokenBudget::new(100);
    assert_eq!(reserve(&mut budget, 101, 0), Err(BudgetRefusal::TooLarge { limit: 100 }));
    assert!(reserve(&mut budget, 100, 0).is_ok(), "it left nothing behind");
    assert_eq!(reserve(&mut budget, 200, 1), Err(BudgetRefusal::TooLarge { limit: 100 }), "also while it is used up");
    let mut shut = TokenBudget::new(0);
    assert_eq!(reserve(&mut shut, 1, 0), Err(BudgetRefusal::TooLarge { limit: 0 }), "0 is nothing, not everything");
}

#[test]
fn settling_refunds_or_leaves_a_debt_in_its_own_minute() {
    let mut budget = TokenBudget::new(1_000);
    let small = reserve(&mut budget, 600, 0).unwrap();
    let large = reserve(&mut budget, 400, 10_000).unwrap();
    budget.settle(small, 100, ms(20_000));
    assert_eq!((budget.used(ms(20_000)), budget.reserved(ms(20_000))), (500, 400));
    budget.settle(large, 1_200, ms(30_000));
    assert_eq!((budget.used(ms(30_000)), budget.reserved(ms(30_000))), (1_300, 0));
    assert_eq!(reserve(&mut budget, 1, 30_000), exhausted(40), "what it owes leaves with its reservation");
    assert_eq!(budget.used(ms(60_000)), 1_200);
    assert_eq!(budget.used(ms(70_000)), 0);
}

#[test]
fn what_has_left_the_window_settles_to_nothing() {
    let mut budget = TokenBudget::new(1_000);
    let first = reserve(&mut budget, 1_000, 0).unwrap();
    let second = reserve(&mut budget, 300, 60_000).unwrap();
    budget.settle(first, 5_000, ms(60_000));
    assert_eq!((budget.used(ms(60_000)), budget.reserved(ms(60_000))), (300, 300), "nobody else's is touched");
    budget.refund(second, ms(60_001));
    assert_eq!((budget.used(ms(60_001)), budget.reserved(ms(60_001))), (0, 0));
}

#[test]
fn a_clock_read_a_moment_too_early_changes_nobody_elses_account() {
    let mut budget = TokenBudget::new(1_000);
    let first = reserve(&mut budget, 100, 1).unwrap();
    let second = reserve(&mut budget, 200, 5_000).unwrap();
    assert_eq!(budget.used(ms(60_001)), 200);
    // Another thread read its clock before the last line and got here after it.
    budget.settle(first, 0, ms(60_000));
    assert_eq!(budget.used(ms(60_000)), 200);
    let third = reserve(&mut budget, 50, 59_000).unwrap();
    assert_eq!(third.at, ms(60_001));
    budget.refund(second, ms(60_002));
    budget.refund(third, ms(60_002));
    assert_eq!((budget.used(ms(60_002)), budget.reserved(ms(60_002))), (0, 0));
}

#[test]
fn a_resize_holds_for_newcomers() {
    let mut budget = TokenBudget::new(1_000);
    let held = reserve(&mut budget, 800, 0).unwrap();
    budget.resize(500);
    assert_eq!(reserve(&mut budget, 600, 1_000), Err(BudgetRefusal::TooLarge { limit: 500 }));
    assert_eq!(reserve(&mut budget, 1, 1_000), exhausted(59));
    budget.settle(held, 100, ms(2_000));
    let more = reserve(&mut budget, 400, 2_000).unwrap();
    budget.resize(2_000);
    assert!(reserve(&mut budget, 1_500, 2_000).is_ok());
    budget.refund(more, ms(2_000));
    assert_eq!((budget.limit(), budget.used(ms(2_000))), (2_000, 1_600));
}

#[test]
fn a_long_sleep_of_the_machine_empties_it() {
    let mut budget = TokenBudget::new(100);
    let held = reserve(&mut budget, 100, 0).unwrap();
    let awake = 36_000_000;
    assert!(reserve(&mut budget, 100, awake).is_ok());
    budget.settle(held, 40, ms(awake));
    assert_eq!(budget.used(ms(awake)), 100);
    assert!(!budget.is_idle(ms(awake + 59_999)) && budget.is_idle(ms(awake + 60_000)));
}

#[test]
fn nonsense_overflows_nothing() {
    let mut budget = TokenBudget::new(u64::MAX);
    let held = reserve(&mut budget, 10, 0).unwrap();
    assert_eq!(reserve(&mut budget, u64::MAX, 0), Err(BudgetRefusal::TooLarge { limit: TOKENS_MAX }));
    budget.settle(held, u64::MAX, ms(1));
    assert_eq!(budget.used(ms(1)), TOKENS_MAX);
    assert_eq!(
        reserve(&mut budget, 1, 2),
        Err(BudgetRefusal::Exhausted { retry_after: Duration::from_millis(59_998) })
    );
    let mut late = TokenBudget::new(10);
    assert!(late.reserve(10, Timestamp::NEVER).is_ok());
}

#[test]
fn the_shared_case() {
    let Some(folder) = std::env::var_os("WATERTIGHT_SHARED") else {
        eprintln!("skipped: WATERTIGHT_SHARED is not set");
        return;
    };
    let case = std::path::Path::new(&folder).join("cases/B17");
    let read = |name: &str| std::fs::read_to_string(case.join(name)).unwrap();
    let config: serde_json::Value = serde_json::from_str(&read("config.json")).unwrap();
    let limit = config["max_tokens_per_min"].as_u64().unwrap();
    let mut granted = Vec::new();
    for part in ["part_a.jsonl", "part_b.jsonl"] {
        let mut budget = TokenBudget::new(limit);
        for line in read(part).lines().filter(|line| !line.trim().is_empty()) {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            let number = |key: &str| line[key].as_u64().unwrap();
            let id = line["id"].as_str().unwrap().to_owned();
            match reserve(&mut budget, number("tokens"), number("t_ms")) {
                Ok(_) => granted.push(id),
                Err(BudgetRefusal::Exhausted { retry_after }) if id == "a2" => {
                    // Outward it is rounded up to whole seconds.
                    assert!((retry_after.as_secs_f64().ceil() - 60.0).abs() < 1e-9);
                }
                Err(_) => {}
            }
        }
    }
    assert_eq!(granted, ["a1", "b0", "b10"]);
}

/// Remembers every reservation for ever, and adds up when asked.
#[derive(Default)]
struct Twin {
    limit: u64,
    all: Vec<Held>,
}

struct Held {
    at: u64,
    tokens: u64,
    open: bool,
}

impl Twin {
    fn sum(&self, now: u64, counts: impl Fn(&Held) -> bool) -> u64 {
        self.all.iter().filter(|held| held.at + 60_000 > now && counts(held)).map(|held| held.tokens).sum()
    }

    fn fits(&self, tokens: u64, now: u64) -> bool {
        if tokens == 0 {
            return true;
        }
        self.sum(now, |_| true) + tokens <= self.limit
    }
}

#[derive(Debug, Clone)]
enum Act {
    Reserve(u64),
    Settle { which: usize, used: u64 },
    Refund { which: usize },
    Lose { which: usize },
    Resize(u64),
    Wait(u64),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (0_u64..700).prop_map(Act::Reserve),
        3 => (any::<usize>(), 0_u64..900).prop_map(|(which, used)| Act::Settle { which, used }),
        1 => any::<usize>().prop_map(|which| Act::Refund { which }),
        1 => any::<usize>().prop_map(|which| Act::Lose { which }),
        1 => (0_u64..2_000).prop_map(Act::Resize),
        3 => prop_oneof![0_u64..3_000, Just(60_000), 0_u64..70_000].prop_map(Act::Wait),
    ]
}

proptest! {
    #[test]
    fn conserves_as_its_twin_does(acts in prop::collection::vec(act(), 1..200)) {
        let mut budget = TokenBudget::new(1_000);
        let mut twin = Twin { limit: 1_000, ..Twin::default() };
        let mut open: Vec<(ReservationId, usize)> = Vec::new();
        let mut now = 0;
        for act in acts {
            match act {
                Act::Reserve(tokens) => {
                    let fits = twin.fits(tokens, now);
                    match budget.reserve(tokens, ms(now)) {
                        Ok(id) => {
                            prop_assert!(fits);
                            // The cap is a cap: a reservation never makes the window hold more than it.
                            prop_assert!(tokens == 0 || budget.used(ms(now)) <= budget.limit());
                            twin.all.push(Held { at: now, tokens, open: true });
                            open.push((id, twin.all.len() - 1));
                        }
                        Err(BudgetRefusal::TooLarge { limit }) => {
                            prop_assert!(!fits && tokens > limit && limit == twin.limit);
                        }
                        Err(BudgetRefusal::Exhausted { retry_after }) => {
                            prop_assert!(!fits && tokens <= twin.limit);
                            let then = now + u64::try_from(retry_after.as_millis()).unwrap();
                            prop_assert!(retry_after <= WINDOW && then > now);
                            prop_assert!(twin.fits(tokens, then), "it would fit by then");
                            prop_assert!(!twin.fits(tokens, then - 1), "and not earlier");
                        }
                    }
                }
                Act::Settle { which, used } => {
                    if !open.is_empty() {
                        let (id, held) = open.swap_remove(which % open.len());
                        budget.settle(id, used, ms(now));
                        twin.all[held].tokens = used;
                        twin.all[held].open = false;
                    }
                }
                Act::Refund { which } => {
                    if !open.is_empty() {
                        let (id, held) = open.swap_remove(which % open.len());
                        budget.refund(id, ms(now));
                        twin.all[held].tokens = 0;
                        twin.all[held].open = false;
                    }
                }
                Act::Lose { which } => {
                    if !open.is_empty() {
                        drop(open.swap_remove(which % open.len()));
                    }
                }
                Act::Resize(limit) => {
                    budget.resize(limit);
                    twin.limit = limit;
                }
                Act::Wait(millis) => now += millis,
            }
            prop_assert_eq!(budget.used(ms(now)), twin.sum(now, |_| true));
            prop_assert_eq!(budget.reserved(ms(now)), twin.sum(now, |held| held.open));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn a_crowd_is_joined_and_only_ever_leaves_a_little_late(
        gaps in prop::collection::vec((0_u64..40, 1_u64..50), 3_000..5_000),
        settled in prop::collection::vec((any::<bool>(), 0_u64..80), 5_000),
    ) {
        let mut budget = TokenBudget::new(TOKENS_MAX);
        let mut twin = Twin { limit: TOKENS_MAX, ..Twin::default() };
        let mut now = 0;
        let mut open = Vec::new();
        let late = u64::try_from(JOINED_LATE_MAX.as_millis()).unwrap() + 1;
        for (step, (gap, tokens)) in gaps.into_iter().enumerate() {
            now += gap;
            open.push((budget.reserve(tokens, ms(now)).unwrap(), step));
            twin.all.push(Held { at: now, tokens, open: true });
            let (settle, used) = settled[step];
            if settle {
                let (id, held) = open.swap_remove(step % open.len());
                // What has left settles to nothing.
                if twin.all[held].at + 60_000 > now {
                    twin.all[held].tokens = used;
                }
                budget.settle(id, used, ms(now));
            }
            prop_assert!(budget.earlier.len() + usize::from(budget.last.is_some()) <= ENTRIES_MAX);
            if step % 50 == 0 {
                let (least, most) = (twin.sum(now, |_| true), twin.sum(now.saturating_sub(late), |_| true));
                let used = budget.used(ms(now));
                prop_assert!(least <= used && used <= most, "{} <= {} <= {}", least, used, most);
            }
        }
        prop_assert_eq!(budget.used(ms(now + 60_000 + late)), 0);
        prop_assert_eq!(budget.reserved(ms(now + 60_000 + late)), 0);
    }
}
