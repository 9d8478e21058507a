//! The pool against a simple twin, and the line's promises.

use std::time::Duration;

use proptest::prelude::*;

use super::{
    line::{Bounds, LineId, Order, WhenFull},
    needs::{CountId, Needs, Seat},
    pool::{Granted, Joined, Pool},
};
use crate::{
    model::clock::Timestamp,
    policy::{
        bulkhead::{Bulkhead, ClassShare, Guarantees, KeptFrom, Member},
        chance::Chance,
    },
};

const CHANCE: Chance = Chance::from_seed(7);
const LINE: Bounds = Bounds::of(LineId(0), 8);

fn needs(counts: &[CountId], member: Member) -> Needs {
    Needs::of(counts.iter().map(|count| Seat::of(*count, member)))
}

fn order(class: u16, number: u64) -> Order {
    Order { class, since: Timestamp::ZERO, number }
}

fn pool(caps: &[u32]) -> (Pool<u32>, Vec<CountId>) {
    let mut pool = Pool::default();
    let counts = caps.iter().map(|cap| pool.add("count".into(), Bulkhead::single(*cap))).collect();
    (pool, counts)
}

fn waits(joined: Joined<u32>) -> super::line::Ticket {
    match joined {
        Joined::Waits(ticket) | Joined::InPlaceOf { ticket, .. } => ticket,
        Joined::Granted(granted) => panic!("{granted:?}"),
    }
}

fn who(granted: &[Granted<u32>]) -> Vec<u32> {
    granted.iter().map(|granted| granted.who).collect()
}

#[test]
fn all_or_nothing_in_the_fixed_order() {
    let (mut pool, counts) = pool(&[2, 1]);
    let both = needs(&counts, Member::agent(0));
    let now = Timestamp::ZERO;
    assert!(pool.try_take(&both, now, CHANCE).is_ok());
    let lacks = pool.try_take(&both, now, CHANCE).unwrap_err();
    assert_eq!(lacks.count, counts[1]);
    assert_eq!((pool.in_flight(counts[0]), pool.in_flight(counts[1])), (1, 1), "nothing of a refused call is kept");
    assert!(pool.undo(&both, now, now).is_empty());
    assert_eq!((pool.in_flight(counts[0]), pool.in_flight(counts[1])), (0, 0));
}

#[test]
fn a_freed_slot_goes_to_the_highest_class_then_to_the_oldest() {
    let (mut pool, counts) = pool(&[1]);
    let one = needs(&counts, Member::agent(0));
    let now = Timestamp::ZERO;
    pool.try_take(&one, now, CHANCE).unwrap();
    for (who, place) in [(1, order(2, 5)), (2, order(2, 3)), (3, order(1, 9)), (4, order(2, 4))] {
        waits(pool.join(place, &LINE, vec![one], who, now).unwrap());
    }
    let mut served = Vec::new();
    for _ in 0..4 {
        served.extend(who(&pool.give_back(&one, now, now)));
        assert!(pool.try_take(&one, now, CHANCE).is_err(), "nobody slips in between");
    }
    assert_eq!(served, [3, 2, 4, 1]);
    assert!(pool.give_back(&one, now, now).is_empty());
    assert_eq!(pool.waiting(), 0);
}

#[test]
fn of_two_counts_freed_at_once_the_oldest_waiter_is_served_first() {
    // Agents a and b have one slot each, their provider has one for both. The older one lacks the provider's, the younger one its agent's.
    let (mut pool, counts) = pool(&[1, 1, 1]);
    let (a, b, provider) = (counts[0], counts[1], counts[2]);
    let (of_a, of_b) = (needs(&[a, provider], Member::agent(0)), needs(&[b, provider], Member::agent(1)));
    let now = Timestamp::ZERO;
    pool.try_take(&of_a, now, CHANCE).unwrap();
    waits(pool.join(order(2, 1), &LINE, vec![of_b], 1, now).unwrap());
    waits(pool.join(order(2, 2), &LINE, vec![of_a], 2, now).unwrap());
    assert_eq!(who(&pool.give_back(&of_a, now, now)), [1]);
    pool.check();
    assert_eq!(who(&pool.give_back(&of_b, now, now)), [2]);
}

#[test]
fn whoever_lacks_something_else_is_passed_by_and_not_forgotten() {
    let (mut pool, counts) = pool(&[1, 1]);
    let (first, both) = (needs(&counts[..1], Member::agent(0)), needs(&counts, Member::agent(0)));
    let second = needs(&counts[1..], Member::agent(0));
    let now = Timestamp::ZERO;
    pool.try_take(&first, now, CHANCE).unwrap();
    pool.try_take(&second, now, CHANCE).unwrap();
    waits(pool.join(order(1, 1), &LINE, vec![both], 1, now).unwrap());
    waits(pool.join(order(2, 2), &LINE, vec![first], 2, now).unwrap());
    assert_eq!(who(&pool.give_back(&first, now, now)), [2], "the first in line lacks the second count still");
    assert!(pool.give_back(&second, now, now).is_empty(), "and now it lacks the first again");
    assert_eq!(who(&pool.give_back(&first, now, now)), [1]);
}

#[test]
fn any_of_several_ways_will_do_once() {
    let (mut pool, counts) = pool(&[1, 1]);
    let ways: Vec<Needs> = counts.iter().map(|count| needs(&[*count], Member::agent(0))).collect();
    let now = Timestamp::ZERO;
    for way in &ways {
        pool.try_take(way, now, CHANCE).unwrap();
    }
    waits(pool.join(order(2, 1), &LINE, ways.clone(), 1, now).unwrap());
    let granted = pool.give_back(&ways[1], now, now);
    assert_eq!((granted[0].who, granted[0].way), (1, 1));
    assert!(pool.give_back(&ways[0], now, now).is_empty(), "it is served once");
    assert_eq!((pool.in_flight(counts[0]), pool.in_flight(counts[1])), (0, 1));
    pool.check();
}

#[test]
fn lines_are_bounded_and_leavers_cost_nothing() {
    let (mut pool, counts) = pool(&[1]);
    let one = needs(&counts, Member::agent(0));
    let now = Timestamp::ZERO;
    pool.try_take(&one, now, CHANCE).unwrap();
    // B12: eight callers wait and leave; nothing is lost, nobody is served who is gone.
    let tickets: Vec<_> =
        (0..8).map(|number| waits(pool.join(order(2, number), &LINE, vec![one], 0, now).unwrap())).collect();
    assert_eq!(pool.join(order(2, 9), &LINE, vec![one], 9, now).unwrap_err().length_max, 8);
    let other = Bounds::of(LineId(1), 1);
    let apart = waits(pool.join(order(2, 10), &other, vec![one], 10, now).unwrap());
    assert_eq!((pool.waiting_in(LINE.line), pool.waiting_in(other.line)), (8, 1));
    for ticket in tickets.into_iter().chain([apart]) {
        assert!(pool.leave(ticket).is_some() && pool.leave(ticket).is_none());
    }
    assert!(pool.give_back(&one, now, now).is_empty());
    assert!(pool.try_take(&one, now, CHANCE).is_ok(), "the slot is there at once");
}

/// What a waiter needs and does not lack is not taken away under it: its number could be another count's when it is served.
#[test]
fn what_a_waiter_needs_is_not_removed() {
    let (mut pool, counts) = pool(&[1, 5]);
    let (first, both) = (needs(&counts[..1], Member::agent(0)), needs(&counts, Member::agent(0)));
    let now = Timestamp::ZERO;
    pool.try_take(&first, now, CHANCE).unwrap();
    let ticket = waits(pool.join(order(1, 1), &LINE, vec![both], 1, now).unwrap());
    assert!(!pool.is_idle(counts[1]) && !pool.remove(counts[1]), "it lacks the other one only");
    pool.leave(ticket);
    assert!(pool.remove(counts[1]));
}

#[test]
fn a_larger_cap_lets_waiters_in_and_a_used_count_is_not_removed() {
    let (mut pool, counts) = pool(&[1]);
    let one = needs(&counts, Member::agent(0));
    let now = Timestamp::ZERO;
    pool.try_take(&one, now, CHANCE).unwrap();
    for number in 0..3 {
        waits(pool.join(order(2, number), &LINE, vec![one], u32::try_from(number).unwrap(), now).unwrap());
    }
    assert_eq!(who(&pool.resize(counts[0], 3, &Guarantees::default(), now)), [0, 1]);
    assert!(!pool.remove(counts[0]));
    for _ in 0..2 {
        pool.give_back(&one, now, now);
    }
    for _ in 0..2 {
        pool.give_back(&one, now, now);
    }
    assert!(pool.remove(counts[0]) && !pool.remove(counts[0]));
    assert_eq!(pool.add("count".into(), Bulkhead::single(1)), counts[0], "its place is used again");
}

/// A line of these places, that one of a tenant joins.
const fn shared(length_max: u32, tenant: Option<u64>) -> Bounds {
    Bounds { tenant, when_full: WhenFull::Displace, ..Bounds::of(LineId(0), length_max) }
}

/// One who joins a line, by tenant and class: who leaves it for that, or that it is refused.
fn join_shared(
    pool: &mut Pool<u32>,
    one: Needs,
    (length_max, who): (u32, u32),
    (tenant, class): (Option<u64>, u16),
) -> Result<Option<u32>, ()> {
    let place = Order { class, since: Timestamp::from_millis(who.into()), number: who.into() };
    match pool.join(place, &shared(length_max, tenant), vec![one], who, Timestamp::ZERO) {
        Ok(Joined::Waits(_)) => Ok(None),
        Ok(Joined::InPlaceOf { displaced, full, .. }) => {
            assert_eq!(full.length_max, length_max);
            Ok(Some(displaced))
        }
        Ok(Joined::Granted(granted)) => panic!("{granted:?}"),
        Err(full) => {
            assert_eq!(full.length_max, length_max);
            Err(())
        }
    }
}

#[test]
fn a_full_line_is_shared_by_those_who_want_it() {
    let [acme, beta, gamma, delta, omega] = [1, 2, 3, 4, 5].map(Some);
    for (what, standing, newcomer, gives_way) in [
        ("a tenant that is alone has all of it, and no more", [(acme, 2); 4], (acme, 2), None),
        ("another one finds room, the newest goes", [(acme, 2); 4], (beta, 2), Some(3)),
        ("until they have as many", [(acme, 2), (beta, 2), (acme, 2), (acme, 2)], (beta, 2), Some(3)),
        ("of as many nobody goes for one of them", [(acme, 2), (beta, 2), (acme, 2), (beta, 2)], (beta, 2), None),
        ("two that fill it make room for a third", [(beta, 2), (beta, 2), (acme, 2), (acme, 2)], (gamma, 2), Some(3)),
        ("and for the one that holds one of three", [(gamma, 2), (beta, 2), (acme, 2), (acme, 2)], (gamma, 2), None),
        ("one place each is the least", [(acme, 2), (beta, 2), (gamma, 2), (delta, 2)], (omega, 2), None),
        ("a lower class goes first", [(acme, 2), (acme, 2), (beta, 3), (acme, 2)], (gamma, 2), Some(2)),
        ("of it the tenant with the most", [(acme, 3), (beta, 3), (acme, 3), (beta, 2)], (gamma, 2), Some(2)),
        ("also for its own higher class", [(acme, 3), (acme, 3), (acme, 3), (acme, 3)], (acme, 2), Some(3)),
        ("higher classes are nobody's to take", [(acme, 1); 4], (beta, 2), None),
        ("nor those beside them", [(acme, 1), (acme, 1), (acme, 1), (beta, 2)], (gamma, 2), None),
        ("without tenants the order is that of coming", [(None, 2); 4], (None, 2), None),
        ("without tenants a higher class comes in", [(None, 2); 4], (None, 1), Some(3)),
    ] {
        let (mut pool, counts) = pool(&[1]);
        let one = needs(&counts, Member::agent(0));
        pool.try_take(&one, Timestamp::ZERO, CHANCE).unwrap();
        for (who, standing) in (0..).zip(standing) {
            assert_eq!(join_shared(&mut pool, one, (4, who), standing), Ok(None), "{what}");
        }
        let came = join_shared(&mut pool, one, (4, 4), newcomer);
        assert_eq!(came, gives_way.map(Some).ok_or(()), "{what}");
        pool.check();
        assert_eq!(pool.waiting(), 4, "{what}");
    }
    let (mut pool, counts) = pool(&[0]);
    let one = needs(&counts, Member::agent(0));
    assert_eq!(join_shared(&mut pool, one, (0, 1), (acme, 0)), Err(()), "no line at all");
}

/// A step of a random history.
#[derive(Debug, Clone)]
enum Step {
    Take { who: usize, class: u16 },
    Join { who: usize, class: u16 },
    GiveBack(usize),
    Leave(usize),
    Resize(usize, u32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (0_usize..4, 0_u16..3).prop_map(|(who, class)| Step::Take { who, class }),
        (0_usize..4, 0_u16..3).prop_map(|(who, class)| Step::Join { who, class }),
        (0_usize..16).prop_map(Step::GiveBack),
        (0_usize..16).prop_map(Step::Leave),
        (0_usize..4, 0_u32..5).prop_map(|(count, cap)| Step::Resize(count, cap)),
    ];
    prop::collection::vec(step, 0..120)
}

proptest! {
    /// However many tenants crowd into a line, and whoever came first: it is as long as it may be, each of them has its part of it, and one
    /// that is pushed out leaves its tenant as many as the one in its place.
    #[test]
    fn each_tenant_has_its_part_of_a_line(
        length_max in 1_u32..12,
        tenants in 1_u64..6,
        crowd in prop::collection::vec(0_u64..6, 0..80),
    ) {
        let (mut pool, counts) = pool(&[1]);
        let one = needs(&counts, Member::agent(0));
        pool.try_take(&one, Timestamp::ZERO, CHANCE).unwrap();
        let mut standing: Vec<(u32, u64)> = Vec::new();
        let all_want_it = (0..tenants).flat_map(|tenant| vec![tenant; length_max as usize]);
        for (who, tenant) in (0..).zip(crowd.into_iter().map(|tenant| tenant % tenants).chain(all_want_it)) {
            let places = |standing: &[(u32, u64)], of: u64| standing.iter().filter(|(_, tenant)| *tenant == of).count();
            match join_shared(&mut pool, one, (length_max, who), (Some(tenant), 2)) {
                Ok(None) => standing.push((who, tenant)),
                Ok(Some(gone)) => {
                    standing.push((who, tenant));
                    let place = standing.iter().position(|(who, _)| *who == gone).unwrap();
                    let (_, loser) = standing.remove(place);
                    prop_assert!(places(&standing, loser) >= places(&standing, tenant));
                }
                Err(()) => prop_assert_eq!(standing.len(), length_max as usize),
            }
            prop_assert_eq!(pool.waiting(), standing.len());
        }
        pool.check();
        prop_assert_eq!(standing.len(), length_max as usize);
        for tenant in 0..tenants {
            let own = standing.iter().filter(|(_, of)| *of == tenant).count();
            prop_assert!(own as u64 >= u64::from(length_max) / tenants, "{tenant} of {tenants} has {own} of {length_max}");
        }
    }

    /// Random histories of callers who need a provider's slot, their agent's and a feature's: counts agree with what is held, no count
    /// is over its cap but by a shrink, nobody waits for what is free, and at the end everything is there again.
    #[test]
    fn counts_are_what_is_held_and_nobody_waits_for_what_is_free(steps in steps(), caps in prop::collection::vec(0_u32..4, 4)) {
        let mut pool: Pool<(usize, u16)> = Pool::default();
        let classes = vec![
            ClassShare { slots: 1, kept_from: KeptFrom::Lower },
            ClassShare { slots: 0, kept_from: KeptFrom::Lower },
            ClassShare { slots: 1, kept_from: KeptFrom::All },
        ];
        let shares = Guarantees { agents: vec![1, 1], classes, ..Guarantees::default() };
        let mut counts = vec![pool.add("count".into(), Bulkhead::shared(caps[0], &shares))];
        counts.extend(caps[1..].iter().map(|cap| pool.add("count".into(), Bulkhead::single(*cap))));
        let mut caps = caps;
        // Two agents, with or without the feature's count.
        let needs_of = |who: usize, class: u16| {
            let agent = who % 2;
            let member = Member { agent: u16::try_from(agent).unwrap(), feature: 0, class };
            let mut wanted = vec![counts[1 + agent], counts[0]];
            if who >= 2 {
                wanted.push(counts[3]);
            }
            needs(&wanted, member)
        };
        let mut held: Vec<(Needs, Timestamp)> = Vec::new();
        let mut tickets = Vec::new();
        let mut served = 0_usize;
        let mut joined = 0_usize;
        let mut left = 0_usize;
        for (at, step) in steps.into_iter().enumerate() {
            let now = Timestamp::ZERO.after(Duration::from_millis(at as u64));
            let mut granted = Vec::new();
            match step {
                Step::Take { who, class } => {
                    let wanted = needs_of(who, class);
                    held.extend(pool.try_take(&wanted, now, CHANCE).ok().map(|taken| (taken, now)));
                }
                Step::Join { who, class } => {
                    let wanted = needs_of(who, class);
                    let place = Order { class, since: now, number: at as u64 };
                    match pool.join(place, &LINE, vec![wanted], (who, class), now) {
                        Ok(Joined::Waits(ticket)) => {
                            joined += 1;
                            tickets.push(ticket);
                        }
                        Ok(Joined::InPlaceOf { .. }) => prop_assert!(false, "nobody is sent out of this line"),
                        Ok(Joined::Granted(granted)) => held.push((granted.needs, granted.taken)),
                        Err(full) => prop_assert_eq!(full.length_max, pool.waiting_in(LINE.line)),
                    }
                }
                Step::GiveBack(place) if !held.is_empty() => {
                    let (wanted, taken) = held.swap_remove(place % held.len());
                    granted = pool.give_back(&wanted, taken, now);
                }
                Step::Leave(place) if !tickets.is_empty() => {
                    let ticket = tickets.swap_remove(place % tickets.len());
                    left += usize::from(pool.leave(ticket).is_some());
                }
                Step::Resize(count, cap) => {
                    caps[count] = cap;
                    let shares = if count == 0 { shares.clone() } else { Guarantees::default() };
                    granted = pool.resize(counts[count], cap, &shares, now);
                }
                Step::GiveBack(_) | Step::Leave(_) => {}
            }
            for pair in granted.windows(2) {
                prop_assert!(pair[0].order < pair[1].order, "in order");
            }
            served += granted.len();
            held.extend(granted.into_iter().map(|granted| (granted.needs, granted.taken)));
            pool.check();
            for count in &counts {
                let used = held.iter().filter(|(wanted, _)| wanted.iter().any(|seat| seat.count == *count)).count();
                prop_assert_eq!(pool.in_flight(*count) as usize, used);
            }
            prop_assert_eq!(pool.waiting(), joined - served - left);
        }
        while let Some((wanted, taken)) = held.pop() {
            let now = Timestamp::from_millis(1_000_000);
            held.extend(pool.give_back(&wanted, taken, now).into_iter().map(|granted| (granted.needs, granted.taken)));
        }
        prop_assert!(counts.iter().all(|count| pool.in_flight(*count) == 0));
    }
}
