//! All counts of slots of one runtime, and the line of those who lack one. A call gets everything that it needs or nothing, in one step
//! under the owner's lock. Who gives a slot back hands it over in the same step, so that nobody slips in between.

use std::sync::Arc;

use super::{
    line::{Bounds, LineFull, LineId, Lines, Order, Ticket, Waiter},
    needs::{CountId, Needs, Seat},
};
use crate::{
    model::clock::Timestamp,
    policy::{
        bulkhead::{Bulkhead, Full, Guarantees, Member, RETRY_AFTER_MAX},
        chance::Chance,
    },
};

/// No way is free: the first that lacks nothing but a slot, and where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lacks {
    /// The first count, in the fixed order, that had no slot.
    pub count: CountId,
    /// When it may have one.
    pub full: Full,
}

/// Somebody in the line got everything. The slots are taken in their name.
#[derive(Debug)]
pub struct Granted<T> {
    /// Who.
    pub who: T,
    /// Which of its ways.
    pub way: usize,
    /// What was taken on it.
    pub needs: Needs,
    /// When.
    pub taken: Timestamp,
    /// Since when it had waited.
    pub order: Order,
}

/// What became of one who wanted to line up.
#[derive(Debug)]
pub enum Joined<T> {
    /// It waits.
    Waits(Ticket),
    /// It waits in the place of one of a lower class, who is to be told why it does not any more.
    InPlaceOf {
        /// Who waits now.
        ticket: Ticket,
        /// Who did.
        displaced: T,
        /// What was full.
        full: LineFull,
    },
    /// There was a way meanwhile.
    Granted(Granted<T>),
}

/// Where somebody stands: order, ticket, and which of their ways.
type Standing = (Order, Ticket, usize);

/// A count and its name in refusals.
#[derive(Debug)]
struct Count {
    name: Arc<str>,
    slots: Bulkhead,
}

/// The counts and the line. `T` is who waits.
#[derive(Debug)]
pub struct Pool<T> {
    counts: Vec<Option<Count>>,
    /// Places of counts that were removed.
    vacant: Vec<u32>,
    lines: Lines<T>,
}

impl<T> Default for Pool<T> {
    fn default() -> Self {
        Self { counts: Vec::new(), vacant: Vec::new(), lines: Lines::new() }
    }
}

impl<T> Pool<T> {
    /// Adds a count; refusals name it so.
    pub fn add(&mut self, name: Arc<str>, slots: Bulkhead) -> CountId {
        let count = Count { name, slots };
        if let Some(place) = self.vacant.pop() {
            if let Some(vacant) = self.counts.get_mut(place as usize) {
                *vacant = Some(count);
            }
            return CountId(place);
        }
        // proof of no loss: agents, providers, features and tenants are bounded far below this.
        let place = u32::try_from(self.counts.len()).unwrap_or(u32::MAX);
        self.counts.push(Some(count));
        CountId(place)
    }

    /// Takes a count out that nobody uses; false if somebody has a slot of it or waits for one.
    pub fn remove(&mut self, count: CountId) -> bool {
        if !self.is_idle(count) {
            return false;
        }
        let Some(place) = self.counts.get_mut(count.0 as usize).filter(|place| place.is_some()) else { return false };
        *place = None;
        self.vacant.push(count.0);
        true
    }

    /// Whether nobody has a slot of a count, and nobody who waits needs one, whatever it lacks.
    pub fn is_idle(&self, count: CountId) -> bool {
        self.in_flight(count) == 0 && !self.lines.is_needed(count)
    }

    /// The name of a count.
    pub fn name(&self, count: CountId) -> Arc<str> {
        let count = self.counts.get(count.0 as usize).and_then(Option::as_ref);
        count.map_or_else(|| Arc::from(""), |count| Arc::clone(&count.name))
    }

    /// Slots of a count that are taken now.
    pub fn in_flight(&self, count: CountId) -> u32 {
        self.count(count).map_or(0, Bulkhead::in_flight)
    }

    /// Slots of a count that `member` could take now if nobody else took any.
    pub fn room_for(&self, count: CountId, member: Member) -> u32 {
        self.count(count).map_or(0, |slots| slots.room_for(member))
    }

    /// Slots of a count in all.
    pub fn cap(&self, count: CountId) -> u32 {
        self.count(count).map_or(0, Bulkhead::cap)
    }

    /// How many wait, in all lines.
    pub fn waiting(&self) -> usize {
        self.lines.len()
    }

    /// How many wait in one line.
    pub fn waiting_in(&self, line: LineId) -> u32 {
        self.lines.length_of(line)
    }

    /// Takes everything, or nothing. What was taken, to be given back as it is.
    pub fn try_take(&mut self, needs: &Needs, now: Timestamp, chance: Chance) -> Result<Needs, Lacks> {
        let mut taken = *needs;
        self.try_fill(&mut taken, now, chance).map(|()| taken)
    }

    /// The same where the needs stand: each is told which slot it was given.
    pub fn try_fill(&mut self, needs: &mut Needs, now: Timestamp, chance: Chance) -> Result<(), Lacks> {
        match self.lacking(needs) {
            None => {
                self.fill(needs, now);
                Ok(())
            }
            Some(count) => {
                let full = self.count_mut(count).map(|bulkhead| bulkhead.refuse(now, chance));
                Err(Lacks { count, full: full.unwrap_or(Full { retry_after: RETRY_AFTER_MAX }) })
            }
        }
    }

    /// Gives back what a call took at `taken`. What became free goes to those who wait for it.
    pub fn give_back(&mut self, needs: &Needs, taken: Timestamp, now: Timestamp) -> Vec<Granted<T>> {
        for seat in needs.iter() {
            if let Some(bulkhead) = self.count_mut(seat.count) {
                bulkhead.give_back((seat.member, seat.slot), taken, now);
            }
        }
        self.hand_over(needs.iter().map(|seat| seat.count), now)
    }

    /// The same for a call that never began: nothing is learnt from how long it held them.
    pub fn undo(&mut self, needs: &Needs, taken: Timestamp, now: Timestamp) -> Vec<Granted<T>> {
        for seat in needs.iter() {
            if let Some(bulkhead) = self.count_mut(seat.count) {
                bulkhead.undo((seat.member, seat.slot), taken);
            }
        }
        self.hand_over(needs.iter().map(|seat| seat.count), now)
    }

    /// Another cap and other shares of a count, while calls run. A larger one lets waiters in.
    pub fn resize(&mut self, count: CountId, cap: u32, guarantees: &Guarantees, now: Timestamp) -> Vec<Granted<T>> {
        if let Some(bulkhead) = self.count_mut(count) {
            bulkhead.resize(cap, guarantees);
        }
        self.hand_over([count], now)
    }

    /// Lines up for any of these `ways` (one at least), unless one of them is free. Where the line is full, somebody of a lower class may have
    /// to leave it: many of those cannot lock a higher one out.
    pub fn join(
        &mut self,
        order: Order,
        bounds: &Bounds,
        ways: Vec<Needs>,
        who: T,
        now: Timestamp,
    ) -> Result<Joined<T>, LineFull> {
        let mut lacks = Vec::with_capacity(ways.len());
        for (way, needs) in ways.iter().enumerate() {
            let Some(count) = self.lacking(needs) else {
                let needs = self.take(needs, now);
                return Ok(Joined::Granted(Granted { who, way, needs, taken: now, order }));
            };
            lacks.push(count);
        }
        let last = self.lines.place_for(order, bounds)?;
        let displaced = last.and_then(|(last, full)| self.leave(last).map(|displaced| (displaced, full)));
        let ticket = self.lines.join(order, bounds, ways, lacks, who);
        Ok(match displaced {
            Some((displaced, full)) => Joined::InPlaceOf { ticket, displaced, full },
            None => Joined::Waits(ticket),
        })
    }

    /// Whether somebody stands in the line.
    pub fn is_waiting(&self, ticket: Ticket) -> bool {
        self.lines.has(ticket)
    }

    /// Leaves the line; `None` if it was served meanwhile or never stood there.
    pub fn leave(&mut self, ticket: Ticket) -> Option<T> {
        self.lines.leave(ticket).map(|waiter| waiter.who)
    }

    /// Sends everybody out of the line who needs a slot of this count on all of their ways and whom `goes` names: there will be none, or
    /// other ways to it.
    pub fn dismiss(&mut self, count: CountId, goes: impl Fn(&T) -> bool) -> Vec<T> {
        let needs_it = |needs: &Needs| needs.iter().any(|seat| seat.count == count);
        let is_hopeless = |waiter: &Waiter<T>| waiter.ways.iter().all(needs_it) && goes(&waiter.who);
        let hopeless = self.lines.each().filter(|(_, waiter)| is_hopeless(waiter));
        let mut hopeless: Vec<(Order, Ticket)> = hopeless.map(|(ticket, waiter)| (waiter.order, ticket)).collect();
        // In their order, which they keep if they line up elsewhere.
        hopeless.sort_unstable();
        hopeless.into_iter().filter_map(|(_, ticket)| self.leave(ticket)).collect()
    }

    /// The first count, in the fixed order, that has no slot for this call.
    fn lacking(&self, needs: &Needs) -> Option<CountId> {
        let no_room = |seat: &Seat| !self.count(seat.count).is_some_and(|count| count.has_room(seat.member));
        needs.iter().find(no_room).map(|seat| seat.count)
    }

    fn take(&mut self, needs: &Needs, now: Timestamp) -> Needs {
        let mut taken = *needs;
        self.fill(&mut taken, now);
        taken
    }

    fn fill(&mut self, needs: &mut Needs, now: Timestamp) {
        for seat in needs.iter_mut() {
            if let Some(bulkhead) = self.count_mut(seat.count) {
                seat.slot = bulkhead.take(seat.member, now);
            }
        }
    }

    /// Serves those who lack one of these counts, the highest class first, then the oldest, as far as there is room.
    fn hand_over(&mut self, freed: impl IntoIterator<Item = CountId>, now: Timestamp) -> Vec<Granted<T>> {
        let mut granted = Vec::new();
        if self.lines.len() == 0 {
            return granted;
        }
        // How far each count's waiters were looked at. In one order over all of them: what one takes, an older one may have needed.
        let mut looked: Vec<(CountId, Option<Standing>)> = freed.into_iter().map(|count| (count, None)).collect();
        loop {
            let next = |(at, (count, after)): (usize, &(CountId, Option<_>))| {
                let is_full = self.count(*count).is_none_or(|bulkhead| bulkhead.in_flight() >= bulkhead.cap());
                let first = if is_full { None } else { self.lines.next_lacking(*count, *after) };
                first.map(|place| (place, at))
            };
            let Some((place, at)) = looked.iter().enumerate().filter_map(next).min() else { return granted };
            let Some((count, after)) = looked.get_mut(at) else { return granted };
            *after = Some(place);
            let count = *count;
            let (order, ticket, way) = place;
            let Some(needs) = self.lines.way(ticket, way) else { continue };
            match self.lacking(&needs) {
                // What is free is kept for others; somebody behind it may be one of them.
                Some(lacked) if lacked == count => {}
                Some(lacked) => self.lines.lacks_instead(ticket, way, lacked),
                None => {
                    let needs = self.take(&needs, now);
                    if let Some(waiter) = self.lines.leave(ticket) {
                        granted.push(Granted { who: waiter.who, way, needs, taken: now, order });
                    }
                }
            }
        }
    }

    fn count(&self, count: CountId) -> Option<&Bulkhead> {
        self.counts.get(count.0 as usize).and_then(Option::as_ref).map(|count| &count.slots)
    }

    fn count_mut(&mut self, count: CountId) -> Option<&mut Bulkhead> {
        self.counts.get_mut(count.0 as usize).and_then(Option::as_mut).map(|count| &mut count.slots)
    }

    /// Nobody waits who could be served: what hand-over promises.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        self.lines.check();
        for (_, waiter) in self.lines.each() {
            for needs in &waiter.ways {
                assert!(self.lacking(needs).is_some(), "{:?} waits for what is free", waiter.order);
            }
        }
    }
}
