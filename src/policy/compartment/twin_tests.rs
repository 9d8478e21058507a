//! The line and its counts against a twin that keeps plain lists and looks at everybody each time: whatever callers, leavers, hand-overs,
//! reloads and dismissals do, in any order, both say the same of everything.

use std::time::Duration;

use proptest::prelude::*;

use super::{
    line::{Bounds, LineFull, LineId, Order, Ticket, WhenFull},
    needs::{CountId, Needs, Seat},
    pool::{Granted, Joined, Pool},
};
use crate::{
    model::clock::Timestamp,
    policy::{
        bulkhead::{Bulkhead, Guarantees, Member},
        chance::Chance,
    },
};

const COUNTS: usize = 4;
/// Bounds of the lines, and what becomes of one more.
const BOUNDS: [(u32, WhenFull); 3] = [(3, WhenFull::Displace), (5, WhenFull::Displace), (2, WhenFull::Refuse)];
const CHANCE: Chance = Chance::from_seed(3);

/// A step of a random history. Whom a number means is that number of those who are there, round and round.
#[derive(Debug, Clone)]
enum Step {
    Take(Vec<usize>),
    /// Any of these ways, each some counts.
    Join {
        class: u16,
        since: u64,
        line: usize,
        tenant: Option<u64>,
        ways: Vec<Vec<usize>>,
    },
    GiveBack(usize),
    /// It never began.
    Undo(usize),
    /// Patience over, or the caller gone.
    Leave(usize),
    /// A reload.
    Resize(usize, u32),
    /// Its agent is gone: whoever needs it on all ways goes.
    Dismiss(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let counts = || prop::collection::btree_set(0..COUNTS, 1..4).prop_map(|set| set.into_iter().collect::<Vec<_>>());
    let ways = prop::collection::vec(counts(), 1..4);
    let step = prop_oneof![
        3 => counts().prop_map(Step::Take),
        6 => (0_u16..3, 0_u64..4, 0..BOUNDS.len(), prop::option::of(0_u64..3), ways)
            .prop_map(|(class, since, line, tenant, ways)| Step::Join { class, since, line, tenant, ways }),
        6 => (0_usize..16).prop_map(Step::GiveBack),
        1 => (0_usize..16).prop_map(Step::Undo),
        2 => (0_usize..16).prop_map(Step::Leave),
        3 => (0..COUNTS, 0_u32..4).prop_map(|(count, cap)| Step::Resize(count, cap)),
        1 => (0..COUNTS).prop_map(Step::Dismiss),
    ];
    prop::collection::vec(step, 0..150)
}

/// One who waits, as the twin knows it.
#[derive(Debug, Clone)]
struct Waiter {
    order: Order,
    line: usize,
    tenant: Option<u64>,
    ways: Vec<Vec<usize>>,
    who: u64,
}

/// Counts that are caps and lists of who is in; a line that is a list of everybody.
struct Twin {
    caps: Vec<u32>,
    held: Vec<Vec<usize>>,
    waiting: Vec<Waiter>,
}

impl Twin {
    fn lacking(&self, needs: &[usize]) -> Option<usize> {
        let used = |count: usize| self.held.iter().filter(|held| held.contains(&count)).count();
        needs.iter().copied().find(|count| used(*count) >= self.caps[*count] as usize)
    }

    /// Everybody in order, each of their ways: whoever lacks nothing is served.
    fn hand_over(&mut self) -> Vec<(u64, usize)> {
        let mut served = Vec::new();
        self.waiting.sort_by_key(|waiter| waiter.order);
        for waiter in std::mem::take(&mut self.waiting) {
            match waiter.ways.iter().position(|way| self.lacking(way).is_none()) {
                Some(way) => {
                    self.held.push(waiter.ways[way].clone());
                    served.push((waiter.who, way));
                }
                None => self.waiting.push(waiter),
            }
        }
        served
    }

    /// What is full for one more, and who would have to go for it: of the lowest class the youngest of the tenant that holds the most there,
    /// if that class is lower than the newcomer's, or the same and that tenant keeps as many as the newcomer's will have.
    fn full(&self, (line, tenant): (usize, Option<u64>), class: u16) -> Option<(LineFull, Option<u64>)> {
        let (length_max, when_full) = BOUNDS[line];
        let standing: Vec<&Waiter> = self.waiting.iter().filter(|waiter| waiter.line == line).collect();
        if standing.len() < length_max as usize {
            return None;
        }
        let lowest = standing.iter().map(|waiter| waiter.order.class).max()?;
        let places = |of: Option<u64>| {
            standing.iter().filter(|waiter| waiter.order.class == lowest && waiter.tenant == of).count()
        };
        let of_lowest = standing.iter().filter(|waiter| waiter.order.class == lowest);
        let last = of_lowest.max_by_key(|waiter| (places(waiter.tenant), waiter.order))?;
        let gives_way = lowest > class || (lowest == class && places(last.tenant) > places(tenant) + 1);
        let goes = (when_full == WhenFull::Displace && gives_way).then_some(last.who);
        Some((LineFull { length_max }, goes))
    }

    fn length(&self, line: usize) -> usize {
        self.waiting.iter().filter(|waiter| waiter.line == line).count()
    }
}

fn needs(counts: &[CountId], wanted: &[usize]) -> Needs {
    Needs::of(wanted.iter().map(|count| Seat::of(counts[*count], Member::agent(0))))
}

fn served(granted: &[Granted<u64>]) -> Vec<(u64, usize)> {
    granted.iter().map(|granted| (granted.who, granted.way)).collect()
}

/// Both of them, and what the pool's callers hold.
struct Pair {
    pool: Pool<u64>,
    counts: Vec<CountId>,
    held: Vec<(Needs, Timestamp)>,
    tickets: Vec<(Ticket, u64)>,
    twin: Twin,
    joined: u64,
}

impl Pair {
    fn of(caps: Vec<u32>) -> Self {
        let mut pool = Pool::default();
        let counts = caps.iter().map(|cap| pool.add("count".into(), Bulkhead::single(*cap))).collect();
        let twin = Twin { caps, held: Vec::new(), waiting: Vec::new() };
        Self { pool, counts, held: Vec::new(), tickets: Vec::new(), twin, joined: 0 }
    }

    fn step(&mut self, step: Step, now: Timestamp) -> Result<(), TestCaseError> {
        match step {
            Step::Take(wanted) => {
                let lacks = self.pool.try_take(&needs(&self.counts, &wanted), now, CHANCE).err();
                let lacking = self.twin.lacking(&wanted);
                prop_assert_eq!(lacks.map(|lacks| lacks.count), lacking.map(|count| self.counts[count]));
                if lacking.is_none() {
                    self.hold(&wanted, now);
                }
            }
            Step::Join { class, since, line, tenant, ways } => self.join((class, since), (line, tenant), ways, now)?,
            Step::GiveBack(place) => self.let_go(place, Pool::give_back, now)?,
            Step::Undo(place) => self.let_go(place, Pool::undo, now)?,
            Step::Leave(place) if !self.tickets.is_empty() => {
                let (ticket, who) = self.tickets.swap_remove(place % self.tickets.len());
                let place = self.twin.waiting.iter().position(|waiter| waiter.who == who);
                prop_assert_eq!(self.pool.is_waiting(ticket), place.is_some());
                prop_assert_eq!(self.pool.leave(ticket), place.map(|place| self.twin.waiting.remove(place).who));
                prop_assert_eq!(self.pool.leave(ticket), None);
            }
            Step::Resize(count, cap) => {
                self.twin.caps[count] = cap;
                let granted = self.pool.resize(self.counts[count], cap, &Guarantees::default(), now);
                self.served(granted)?;
            }
            Step::Dismiss(count) => {
                let mut gone = self.pool.dismiss(self.counts[count], |_| true);
                gone.sort_unstable();
                let is_hopeless = |waiter: &Waiter| waiter.ways.iter().all(|way| way.contains(&count));
                let (hopeless, left) = self.twin.waiting.drain(..).partition::<Vec<_>, _>(is_hopeless);
                self.twin.waiting = left;
                let mut want: Vec<u64> = hopeless.iter().map(|waiter| waiter.who).collect();
                want.sort_unstable();
                prop_assert_eq!(gone, want);
            }
            Step::Leave(_) => {}
        }
        self.agree()
    }

    fn hold(&mut self, wanted: &[usize], now: Timestamp) {
        self.held.push((needs(&self.counts, wanted), now));
        self.twin.held.push(wanted.to_vec());
    }

    fn join(
        &mut self,
        (class, since): (u16, u64),
        (line, tenant): (usize, Option<u64>),
        ways: Vec<Vec<usize>>,
        now: Timestamp,
    ) -> Result<(), TestCaseError> {
        self.joined += 1;
        let who = self.joined;
        let order = Order { class, since: Timestamp::from_millis(since), number: who };
        let (length_max, when_full) = BOUNDS[line];
        let of_ways = ways.iter().map(|way| needs(&self.counts, way)).collect();
        let line_id = LineId(u32::try_from(line).unwrap());
        let bounds = Bounds { line: line_id, length_max, tenant, when_full };
        let full = self.twin.full((line, tenant), class);
        let joined = self.pool.join(order, &bounds, of_ways, who, now);
        let free = ways.iter().position(|way| self.twin.lacking(way).is_none());
        match (joined, free) {
            (Ok(Joined::Granted(granted)), Some(way)) => {
                prop_assert_eq!((granted.who, granted.way), (who, way));
                self.hold(&ways[way], now);
            }
            (Err(refused), None) => prop_assert_eq!(Some((refused, None)), full),
            (Ok(Joined::Waits(ticket)), None) => {
                prop_assert_eq!(full, None);
                self.tickets.push((ticket, who));
                self.twin.waiting.push(Waiter { order, line, tenant, ways, who });
            }
            (Ok(Joined::InPlaceOf { ticket, displaced, full: of }), None) => {
                prop_assert_eq!(Some((of, Some(displaced))), full);
                self.twin.waiting.retain(|waiter| waiter.who != displaced);
                self.tickets.push((ticket, who));
                self.twin.waiting.push(Waiter { order, line, tenant, ways, who });
            }
            (joined, free) => prop_assert!(false, "{joined:?}, and the twin has {free:?}"),
        }
        Ok(())
    }

    fn let_go(
        &mut self,
        place: usize,
        how: impl FnOnce(&mut Pool<u64>, &Needs, Timestamp, Timestamp) -> Vec<Granted<u64>>,
        now: Timestamp,
    ) -> Result<(), TestCaseError> {
        if self.held.is_empty() {
            return Ok(());
        }
        let place = place % self.held.len();
        let (needs, taken) = self.held.remove(place);
        self.twin.held.remove(place);
        let granted = how(&mut self.pool, &needs, taken, now);
        self.served(granted)
    }

    /// Whoever the pool served the twin serves, in the same order and on the same ways.
    fn served(&mut self, granted: Vec<Granted<u64>>) -> Result<(), TestCaseError> {
        prop_assert_eq!(served(&granted), self.twin.hand_over());
        self.held.extend(granted.into_iter().map(|granted| (granted.needs, granted.taken)));
        Ok(())
    }

    fn agree(&self) -> Result<(), TestCaseError> {
        self.pool.check();
        prop_assert_eq!(self.pool.waiting(), self.twin.waiting.len());
        for line in 0..BOUNDS.len() {
            let id = LineId(u32::try_from(line).unwrap());
            prop_assert_eq!(self.pool.waiting_in(id) as usize, self.twin.length(line));
        }
        for (count, id) in self.counts.iter().enumerate() {
            let held = self.twin.held.iter().filter(|held| held.contains(&count)).count();
            let is_needed = self.twin.waiting.iter().any(|waiter| waiter.ways.iter().any(|way| way.contains(&count)));
            prop_assert_eq!(self.pool.in_flight(*id) as usize, held);
            prop_assert_eq!(self.pool.is_idle(*id), held == 0 && !is_needed);
        }
        Ok(())
    }
}

proptest! {
    #[test]
    fn the_line_does_as_its_twin(steps in steps(), caps in prop::collection::vec(0_u32..3, COUNTS)) {
        let mut pair = Pair::of(caps);
        let mut at = 0;
        for step in steps {
            at += 1;
            pair.step(step, Timestamp::ZERO.after(Duration::from_millis(at)))?;
        }
        // Enough slots for everybody: nobody was forgotten.
        for count in 0..COUNTS {
            pair.step(Step::Resize(count, 1_000), Timestamp::from_millis(1_000_000))?;
        }
        prop_assert_eq!(pair.pool.waiting(), 0);
        while !pair.held.is_empty() {
            pair.step(Step::GiveBack(0), Timestamp::from_millis(2_000_000))?;
        }
        prop_assert!(pair.counts.iter().all(|count| pair.pool.is_idle(*count)));
    }
}
