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
    /// One a target that would do.
    pub(super) ways: Vec<Needs>,
    /// The count that each way lacks.
    lacks: Vec<CountId>,
    pub(super) who: T,
}

/// The lines.
#[derive(Debug)]
pub(super) struct Lines<T> {
    waiters: HashMap<Ticket, Waiter<T>>,
    /// Who waits for a count, in order, and on which of their ways.
    lacking: HashMap<CountId, BTreeSet<(Order, Ticket, usize)>>,
    /// How many waiters need each count on any of their ways, whether they lack it or not.
    needed: HashMap<CountId, u32>,
    lengths: HashMap<LineId, u32>,
    issued: u64,
}

impl<T> Lines<T> {
    pub(super) fn new() -> Self {
        Self {
            waiters: HashMap::new(),
            lacking: HashMap::new(),
            needed: HashMap::new(),
            lengths: HashMap::new(),
            issued: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.waiters.len()
    }

    pub(super) fn length_of(&self, line: LineId) -> u32 {
        self.lengths.get(&line).copied().unwrap_or(0)
    }

    /// Lines up one who lacks `lacks` on each of its `ways`.
    pub(super) fn join(&mut self, order: Order, line: LineId, ways: Vec<Needs>, lacks: Vec<CountId>, who: T) -> Ticket {
        self.issued += 1;
        let ticket = Ticket(self.issued);
        for (way, count) in lacks.iter().enumerate() {
            self.lacking.entry(*count).or_default().insert((order, ticket, way));
        }
        for seat in ways.iter().flat_map(|needs| needs.iter().collect::<Vec<_>>()) {
            *self.needed.entry(seat.count).or_default() += 1;
        }
        *self.lengths.entry(line).or_default() += 1;
        self.waiters.insert(ticket, Waiter { order, line, ways, lacks, who });
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
        if let Some(length) = self.lengths.get_mut(&waiter.line) {
            *length = length.saturating_sub(1);
            if *length == 0 {
                self.lengths.remove(&waiter.line);
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
        assert_eq!(self.lengths.values().sum::<u32>() as usize, self.waiters.len());
    }
}
