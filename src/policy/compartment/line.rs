//! The line of those who lack a slot, by the count that each of them lacks: highest class first, then the oldest. Bounded. Who stands in
//! it holds nothing. It only keeps order; the pool hands slots over.

use std::collections::{BTreeSet, HashMap};

use super::needs::{CountId, Needs};
use crate::model::clock::Timestamp;

/// A place in the line: class (the highest first), then age, then a number that tells equals apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Order {
    /// The class's place, the highest first.
    pub class: u16,
    /// Since when it is asked for.
    pub since: Timestamp,
    /// Tells those of one moment apart; smaller ones first.
    pub number: u64,
}

/// One who waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

/// One of the lines: each has its own bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LineId(pub u32);

/// How many may stand in a line, and what becomes of one more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// The line.
    pub line: LineId,
    /// So many in all.
    pub length_max: u32,
    /// The tenant of the one who joins, by number, and how many of its callers may stand here: who waits for their own tenant's slot must
    /// not fill the line of those who wait for something else.
    pub of_tenant: Option<(u64, u32)>,
    /// What becomes of one more.
    pub when_full: WhenFull,
}

/// What becomes of one who finds the line full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenFull {
    /// It is refused.
    Refuse,
    /// It takes the place of the youngest of the lowest class, if that is lower than its own; else it is refused.
    DisplaceLower,
}

impl Bounds {
    /// A line of so many, without tenants, which refuses one more.
    pub const fn of(line: LineId, length_max: u32) -> Self {
        Self { line, length_max, of_tenant: None, when_full: WhenFull::Refuse }
    }
}

/// Whose places in a line are all taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crowd {
    /// Everybody's.
    All,
    /// Those of one tenant.
    Tenant,
}

/// The line holds as many as it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the line for slots is full ({length_max} wait{})", match .of { Crowd::All => "", Crowd::Tenant => " of this tenant" })]
pub struct LineFull {
    /// Its bound.
    pub length_max: u32,
    /// Whose bound that is.
    pub of: Crowd,
}

/// What one who waits lacks: any of several ways to get everything.
#[derive(Debug)]
pub(super) struct Waiter<T> {
    pub(super) order: Order,
    pub(super) line: LineId,
    tenant: Option<u64>,
    /// One a target that would do.
    pub(super) ways: Vec<Needs>,
    /// The count that each way lacks.
    lacks: Vec<CountId>,
    pub(super) who: T,
}

/// Who stands behind whom.
type Ranks = BTreeSet<(Order, Ticket)>;

/// The lines.
#[derive(Debug)]
pub(super) struct Lines<T> {
    waiters: HashMap<Ticket, Waiter<T>>,
    /// Who waits for a count, in order, and on which of their ways.
    lacking: HashMap<CountId, BTreeSet<(Order, Ticket, usize)>>,
    /// How many waiters need each count on any of their ways, whether they lack it or not.
    needed: HashMap<CountId, u32>,
    /// Who stands in each line, in order: all, and each tenant's.
    standing: HashMap<(LineId, Option<u64>), Ranks>,
    issued: u64,
}

impl<T> Lines<T> {
    pub(super) fn new() -> Self {
        Self {
            waiters: HashMap::new(),
            lacking: HashMap::new(),
            needed: HashMap::new(),
            standing: HashMap::new(),
            issued: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.waiters.len()
    }

    pub(super) fn length_of(&self, line: LineId) -> u32 {
        self.length_of_crowd((line, None))
    }

    fn length_of_crowd(&self, crowd: (LineId, Option<u64>)) -> u32 {
        let length = self.standing.get(&crowd).map_or(0, BTreeSet::len);
        u32::try_from(length).unwrap_or(u32::MAX)
    }

    /// Whether there is a place for one more of this order; in whose place, where the line is full. Its tenant's bound comes first: who
    /// leaves for that leaves a place in the line too.
    pub(super) fn place_for(&self, order: Order, bounds: &Bounds) -> Result<Option<(Ticket, LineFull)>, LineFull> {
        let of_tenant = bounds.of_tenant.map(|(tenant, length_max)| (Some(tenant), length_max, Crowd::Tenant));
        let crowds = of_tenant.into_iter().chain([(None, bounds.length_max, Crowd::All)]);
        for (tenant, length_max, of) in crowds {
            let crowd = (bounds.line, tenant);
            if self.length_of_crowd(crowd) < length_max {
                continue;
            }
            let full = LineFull { length_max, of };
            let last = self.standing.get(&crowd).and_then(BTreeSet::last);
            let lower =
                last.filter(|(last, _)| bounds.when_full == WhenFull::DisplaceLower && last.class > order.class);
            return lower.map(|(_, ticket)| Some((*ticket, full))).ok_or(full);
        }
        Ok(None)
    }

    /// Lines up one who lacks `lacks` on each of its `ways`.
    pub(super) fn join(
        &mut self,
        order: Order,
        bounds: &Bounds,
        ways: Vec<Needs>,
        lacks: Vec<CountId>,
        who: T,
    ) -> Ticket {
        self.issued += 1;
        let ticket = Ticket(self.issued);
        for (way, count) in lacks.iter().enumerate() {
            self.lacking.entry(*count).or_default().insert((order, ticket, way));
        }
        for seat in ways.iter().flat_map(|needs| needs.iter().collect::<Vec<_>>()) {
            *self.needed.entry(seat.count).or_default() += 1;
        }
        let (line, tenant) = (bounds.line, bounds.of_tenant.map(|(tenant, _)| tenant));
        for crowd in crowds_of(line, tenant) {
            self.standing.entry(crowd).or_default().insert((order, ticket));
        }
        self.waiters.insert(ticket, Waiter { order, line, tenant, ways, lacks, who });
        ticket
    }

    /// Takes one out, wherever it stands.
    pub(super) fn leave(&mut self, ticket: Ticket) -> Option<Waiter<T>> {
        let waiter = self.waiters.remove(&ticket)?;
        for (way, count) in waiter.lacks.iter().enumerate() {
            self.forget(*count, (waiter.order, ticket, way));
        }
        for seat in waiter.ways.iter().flat_map(|needs| needs.iter().collect::<Vec<_>>()) {
            if let Some(needed) = self.needed.get_mut(&seat.count) {
                *needed = needed.saturating_sub(1);
                if *needed == 0 {
                    self.needed.remove(&seat.count);
                }
            }
        }
        for crowd in crowds_of(waiter.line, waiter.tenant) {
            if let Some(standing) = self.standing.get_mut(&crowd) {
                standing.remove(&(waiter.order, ticket));
                if standing.is_empty() {
                    self.standing.remove(&crowd);
                }
            }
        }
        Some(waiter)
    }

    /// It lacks `count` on this way now, no longer what it lacked before.
    pub(super) fn lacks_instead(&mut self, ticket: Ticket, way: usize, count: CountId) {
        let Some(waiter) = self.waiters.get_mut(&ticket) else { return };
        let Some(before) = waiter.lacks.get_mut(way) else { return };
        let (order, before) = (waiter.order, std::mem::replace(before, count));
        self.forget(before, (order, ticket, way));
        self.lacking.entry(count).or_default().insert((order, ticket, way));
    }

    fn forget(&mut self, count: CountId, place: (Order, Ticket, usize)) {
        if let Some(waiting) = self.lacking.get_mut(&count) {
            waiting.remove(&place);
            if waiting.is_empty() {
                self.lacking.remove(&count);
            }
        }
    }

    /// The first that lacks `count`, after `after`.
    pub(super) fn next_lacking(
        &self,
        count: CountId,
        after: Option<(Order, Ticket, usize)>,
    ) -> Option<(Order, Ticket, usize)> {
        let waiting = self.lacking.get(&count)?;
        match after {
            None => waiting.first().copied(),
            Some(after) => {
                use std::ops::Bound::{Excluded, Unbounded};
                waiting.range((Excluded(after), Unbounded)).next().copied()
            }
        }
    }

    pub(super) fn way(&self, ticket: Ticket, way: usize) -> Option<Needs> {
        self.waiters.get(&ticket)?.ways.get(way).copied()
    }

    /// Whether anybody who waits needs `count`.
    pub(super) fn is_needed(&self, count: CountId) -> bool {
        self.needed.contains_key(&count)
    }

    pub(super) fn has(&self, ticket: Ticket) -> bool {
        self.waiters.contains_key(&ticket)
    }

    /// Everybody who waits, in no order.
    pub(super) fn each(&self) -> impl Iterator<Item = (Ticket, &Waiter<T>)> {
        self.waiters.iter().map(|(ticket, waiter)| (*ticket, waiter))
    }

    /// What hangs together does: every way of every waiter is noted once at what it lacks.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let noted: usize = self.lacking.values().map(BTreeSet::len).sum();
        let wanted: usize = self.waiters.values().map(|waiter| waiter.ways.len()).sum();
        assert_eq!(noted, wanted);
        let in_crowds: usize = self.standing.values().map(BTreeSet::len).sum();
        let of_tenants = self.waiters.values().filter(|waiter| waiter.tenant.is_some()).count();
        assert_eq!(in_crowds, self.waiters.len() + of_tenants);
    }
}

/// Everybody in a line, and those of one tenant there.
fn crowds_of(line: LineId, tenant: Option<u64>) -> impl Iterator<Item = (LineId, Option<u64>)> {
    [(line, None)].into_iter().chain(tenant.map(|tenant| (line, Some(tenant))))
}
