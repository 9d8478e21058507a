//! The line of those who lack a slot, by the count that each of them lacks: highest class first, then the oldest. Bounded. Who stands in
//! it holds nothing. It only keeps order; the pool hands slots over.
//!
//! Whoever finds a line full may find a place in it all the same: one of a lower class gives up its own, and within a class one of the tenant
//! that holds the most places there, as long as that leaves it at least as many as it then is for the newcomer's. So a tenant that is alone
//! has all of the line, and however many crowd into it, each has its part.

use std::{
    cmp::Ordering,
    collections::{BTreeSet, HashMap},
};

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
    /// The tenant of the one who joins, by number.
    pub tenant: Option<u64>,
    /// What becomes of one more.
    pub when_full: WhenFull,
}

/// What becomes of one who finds the line full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenFull {
    /// It is refused.
    Refuse,
    /// It takes the place of one of the lowest class, if that is lower than its own, or if it is its own and another tenant holds more of
    /// its places; else it is refused.
    Displace,
}

impl Bounds {
    /// A line of so many, without tenants, which refuses one more.
    pub const fn of(line: LineId, length_max: u32) -> Self {
        Self { line, length_max, tenant: None, when_full: WhenFull::Refuse }
    }
}

/// The line holds as many as it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the line for slots is full ({length_max} wait)")]
pub struct LineFull {
    /// Its bound.
    pub length_max: u32,
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
/// Those of one class in one line, and of one tenant among them, or of none.
type CrowdId = (LineId, u16, Option<u64>);
/// How many stand in a crowd, and the last of them.
type CrowdSize = (usize, (Order, Ticket), Option<u64>);

/// The lines.
#[derive(Debug)]
pub(super) struct Lines<T> {
    waiters: HashMap<Ticket, Waiter<T>>,
    /// Who waits for a count, in order, and on which of their ways.
    lacking: HashMap<CountId, BTreeSet<(Order, Ticket, usize)>>,
    /// How many waiters need each count on any of their ways, whether they lack it or not.
    needed: HashMap<CountId, u32>,
    /// Who stands in each line, in order.
    standing: HashMap<LineId, Ranks>,
    /// The same by class and tenant.
    crowds: HashMap<CrowdId, Ranks>,
    /// The crowds of each class in each line, the largest last; of equals the one whose last came last.
    sizes: HashMap<(LineId, u16), BTreeSet<CrowdSize>>,
    issued: u64,
}

impl<T> Lines<T> {
    pub(super) fn new() -> Self {
        Self {
            waiters: HashMap::new(),
            lacking: HashMap::new(),
            needed: HashMap::new(),
            standing: HashMap::new(),
            crowds: HashMap::new(),
            sizes: HashMap::new(),
            issued: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.waiters.len()
    }

    pub(super) fn length_of(&self, line: LineId) -> u32 {
        let length = self.standing.get(&line).map_or(0, BTreeSet::len);
        u32::try_from(length).unwrap_or(u32::MAX)
    }

    /// Whether there is a place for one more of this order; in whose place, where the line is full.
    pub(super) fn place_for(&self, order: Order, bounds: &Bounds) -> Result<Option<(Ticket, LineFull)>, LineFull> {
        let Bounds { line, length_max, tenant, when_full } = *bounds;
        if self.length_of(line) < length_max {
            return Ok(None);
        }
        let full = LineFull { length_max };
        let last = self.standing.get(&line).and_then(BTreeSet::last);
        let (Some((last, _)), WhenFull::Displace) = (last, when_full) else { return Err(full) };
        let largest = self.sizes.get(&(line, last.class)).and_then(BTreeSet::last);
        let Some((places, (_, ticket), _)) = largest else { return Err(full) };
        let gives_way = match last.class.cmp(&order.class) {
            Ordering::Greater => true,
            // As many as the newcomer's will be then it keeps.
            Ordering::Equal => {
                let own = self.crowds.get(&(line, order.class, tenant)).map_or(0, BTreeSet::len);
                *places > own + 1
            }
            Ordering::Less => false,
        };
        if gives_way { Ok(Some((*ticket, full))) } else { Err(full) }
    }

    /// Changes one crowd, and what is known of its size.
    fn change_crowd(&mut self, crowd: CrowdId, change: impl FnOnce(&mut Ranks)) {
        let (line, class, tenant) = crowd;
        let size = |ranks: &Ranks| ranks.last().map(|last| (ranks.len(), *last, tenant));
        let ranks = self.crowds.entry(crowd).or_default();
        let before = size(ranks);
        change(ranks);
        let after = size(ranks);
        if after.is_none() {
            self.crowds.remove(&crowd);
        }
        let sizes = self.sizes.entry((line, class)).or_default();
        if let Some(before) = before {
            sizes.remove(&before);
        }
        sizes.extend(after);
        if sizes.is_empty() {
            self.sizes.remove(&(line, class));
        }
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
        let Bounds { line, tenant, .. } = *bounds;
        self.standing.entry(line).or_default().insert((order, ticket));
        self.change_crowd((line, order.class, tenant), |ranks| {
            ranks.insert((order, ticket));
        });
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
        let place = (waiter.order, ticket);
        if let Some(standing) = self.standing.get_mut(&waiter.line) {
            standing.remove(&place);
            if standing.is_empty() {
                self.standing.remove(&waiter.line);
            }
        }
        self.change_crowd((waiter.line, waiter.order.class, waiter.tenant), |ranks| {
            ranks.remove(&place);
        });
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
        let in_lines: usize = self.standing.values().map(BTreeSet::len).sum();
        let in_crowds: usize = self.crowds.values().map(BTreeSet::len).sum();
        assert_eq!((in_lines, in_crowds), (self.waiters.len(), self.waiters.len()));
        let sizes: usize = self.sizes.values().map(BTreeSet::len).sum();
        assert_eq!(sizes, self.crowds.len());
        for ((line, class, tenant), ranks) in &self.crowds {
            let sizes = &self.sizes[&(*line, *class)];
            assert!(ranks.last().is_some_and(|last| sizes.contains(&(ranks.len(), *last, *tenant))));
        }
    }
}
