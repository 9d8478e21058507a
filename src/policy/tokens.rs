//! A token budget: a hard cap over every rolling minute. Says whether a request's tokens fit, and when they would; takes back what was
//! not used, and remembers what was used beyond. It counts nothing itself and knows no model: amounts are handed in.

mod account;
pub mod accounts;
pub mod draw;
pub mod told;

use std::{collections::VecDeque, time::Duration};

use crate::model::clock::Timestamp;

/// What was taken counts for so long, to the nanosecond: no edge at which twice the cap fits, as clock-aligned minutes have, and no burst
/// beside a refill, as a bucket has.
pub const WINDOW: Duration = Duration::from_secs(60);
/// So many entries of a minute are kept apart to the nanosecond. Beyond, an amount that is taken within [`JOINED_LATE_MAX`] of the last
/// entry's first is counted with it and leaves with the latest of them, by which it may count so much longer than a minute, and never shorter.
pub const ENTRIES_APART: usize = 256;
/// See [`ENTRIES_APART`].
pub const JOINED_LATE_MAX: Duration = Duration::from_millis(100);
/// So many entries a budget keeps at most: those apart, and one each [`JOINED_LATE_MAX`] of the minute after the last of them.
pub const ENTRIES_MAX: usize = ENTRIES_APART + 600;
/// No budget and no amount is larger; a number beyond is nonsense that somebody told us.
pub const TOKENS_MAX: u64 = 1 << 40;

/// Why an amount does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BudgetRefusal {
    /// It is larger than the whole budget: no wait helps.
    #[error("more tokens than the whole budget of {limit} a minute")]
    TooLarge {
        /// The budget.
        limit: u64,
    },
    /// The rolling minute is used up.
    #[error("the tokens of this rolling minute are used up")]
    Exhausted {
        /// When enough has left the window, if nothing else is taken meanwhile and nothing comes back earlier; never zero.
        retry_after: Duration,
    },
}

impl BudgetRefusal {
    /// Of several that refuse, the one that is told: who refuses for good, else who makes wait longest.
    fn severity(self) -> (bool, Duration) {
        match self {
            Self::TooLarge { .. } => (true, Duration::ZERO),
            Self::Exhausted { retry_after } => (false, retry_after),
        }
    }
}

/// An amount that was reserved. It is settled once, by the budget it came from; one that is lost counts as it is until its minute is
/// over.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "what is never settled counts as used in full"]
pub struct ReservationId {
    at: Timestamp,
    tokens: u64,
}

impl ReservationId {
    /// How many tokens were reserved.
    pub const fn tokens(&self) -> u64 {
        self.tokens
    }
}

/// A hard cap over every rolling minute.
#[derive(Debug, Clone)]
pub struct TokenBudget {
    limit: u64,
    /// All entries but the last, in the order of time.
    earlier: VecDeque<Entry>,
    /// The last one: here, beside the sums, so that a call of one among thousands of tenants does not wait for another line of memory.
    last: Option<Entry>,
    /// When the last of the earlier ones was taken; means nothing without them.
    earlier_until: Timestamp,
    /// When the first of all entries leaves; [`Timestamp::NEVER`] without any.
    first_leaves_at: Timestamp,
    /// All that the entries hold.
    used: u64,
    /// The part of it that is not settled.
    reserved: u64,
    /// The latest moment it was told of: callers read the clock before they have the budget to themselves.
    latest: Timestamp,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    /// Of what was merged into it, the earliest.
    from: Timestamp,
    /// When it was taken: it leaves a minute later.
    at: Timestamp,
    tokens: u64,
    reserved: u64,
}

impl TokenBudget {
    /// A budget of so many tokens over every rolling minute; 0 refuses everything.
    pub fn new(tokens_per_minute: u64) -> Self {
        Self {
            limit: tokens_per_minute.min(TOKENS_MAX),
            earlier: VecDeque::new(),
            last: None,
            earlier_until: Timestamp::ZERO,
            first_leaves_at: Timestamp::NEVER,
            used: 0,
            reserved: 0,
            latest: Timestamp::ZERO,
        }
    }

    /// Takes an amount, or nothing. An amount of 0 always fits: it is the place where real use is written down later.
    pub fn reserve(&mut self, tokens: u64, now: Timestamp) -> Result<ReservationId, BudgetRefusal> {
        self.look(tokens, now)?;
        Ok(self.take(tokens, now))
    }

    /// Takes an amount that was found to fit.
    pub(crate) fn take(&mut self, tokens: u64, now: Timestamp) -> ReservationId {
        let now = self.advance(now);
        self.used = self.used.saturating_add(tokens);
        self.reserved = self.reserved.saturating_add(tokens);
        let is_crowded = self.earlier.len() + usize::from(self.last.is_some()) >= ENTRIES_APART;
        match &mut self.last {
            Some(last) if last.at == now || is_crowded && now.since(last.from) < JOINED_LATE_MAX => {
                last.at = now;
                last.tokens = last.tokens.saturating_add(tokens);
                last.reserved = last.reserved.saturating_add(tokens);
            }
            last => {
                if let Some(before) = last.replace(Entry { from: now, at: now, tokens, reserved: tokens }) {
                    self.earlier_until = before.at;
                    self.earlier.push_back(before);
                }
            }
        }
        if self.earlier.is_empty() {
            self.first_leaves_at = now.after(WINDOW);
        }
        ReservationId { at: now, tokens }
    }

    /// Puts the real use in place of what was reserved, in the reservation's own minute: the rest is free again at once, and what was
    /// used beyond it is debt there. A reservation whose minute is over settles to nothing.
    #[allow(clippy::needless_pass_by_value, reason = "a reservation is settled once: who settles it has it no more")]
    pub fn settle(&mut self, reservation: ReservationId, used: u64, now: Timestamp) {
        let now = self.advance(now);
        let ReservationId { at, tokens } = reservation;
        if at.after(WINDOW) <= now {
            return;
        }
        // Those that were joined by others are in the first entry that is not earlier; most are settled while they are in the last.
        let entry = if self.earlier.is_empty() || self.earlier_until < at {
            self.last.as_mut()
        } else {
            let place = self.earlier.partition_point(|entry| entry.at < at);
            self.earlier.get_mut(place)
        };
        if let Some(entry) = entry {
            let used = used.min(TOKENS_MAX);
            entry.reserved = entry.reserved.saturating_sub(tokens);
            entry.tokens = entry.tokens.saturating_sub(tokens).saturating_add(used);
            self.reserved = self.reserved.saturating_sub(tokens);
            self.used = self.used.saturating_sub(tokens).saturating_add(used);
        }
    }

    /// As if the reservation had never been: nothing was sent, or a later guard refused.
    pub fn refund(&mut self, reservation: ReservationId, now: Timestamp) {
        self.settle(reservation, 0, now);
    }

    /// Another cap. What is in the window stays there, also where it is more than the new cap.
    pub fn resize(&mut self, tokens_per_minute: u64) {
        self.limit = tokens_per_minute.min(TOKENS_MAX);
    }

    /// The cap.
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// Tokens of the last minute: settled use and open reservations.
    pub fn used(&mut self, now: Timestamp) -> u64 {
        self.advance(now);
        self.used
    }

    /// The part of [`TokenBudget::used`] that is not settled yet.
    pub fn reserved(&mut self, now: Timestamp) -> u64 {
        self.advance(now);
        self.reserved
    }

    /// Whether an amount fits now; takes nothing.
    pub fn look(&mut self, tokens: u64, now: Timestamp) -> Result<(), BudgetRefusal> {
        let now = self.advance(now);
        self.ask(tokens, now)
    }

    /// True if it holds nothing, so that it can be forgotten.
    pub fn is_idle(&mut self, now: Timestamp) -> bool {
        self.advance(now);
        self.last.is_none()
    }

    fn ask(&self, tokens: u64, now: Timestamp) -> Result<(), BudgetRefusal> {
        if tokens > self.limit {
            return Err(BudgetRefusal::TooLarge { limit: self.limit });
        }
        if tokens == 0 {
            return Ok(());
        }
        let missing = self.used.saturating_add(tokens).saturating_sub(self.limit);
        match missing {
            0 => Ok(()),
            _ => Err(BudgetRefusal::Exhausted { retry_after: self.wait_for(missing, now) }),
        }
    }

    /// When `missing` tokens have left the window.
    fn wait_for(&self, missing: u64, now: Timestamp) -> Duration {
        let mut left = 0_u64;
        for entry in self.earlier.iter().chain(&self.last) {
            left = left.saturating_add(entry.tokens);
            if left >= missing {
                return entry.at.after(WINDOW).since(now);
            }
        }
        WINDOW
    }

    /// Lets go of what has left the window; the moment to go by.
    fn advance(&mut self, now: Timestamp) -> Timestamp {
        self.latest = self.latest.max(now);
        let now = self.latest;
        while self.first_leaves_at <= now {
            let Some(first) = self.earlier.pop_front().or_else(|| self.last.take()) else { break };
            self.used = self.used.saturating_sub(first.tokens);
            self.reserved = self.reserved.saturating_sub(first.reserved);
            let next = self.earlier.front().or(self.last.as_ref());
            self.first_leaves_at = next.map_or(Timestamp::NEVER, |next| next.at.after(WINDOW));
        }
        now
    }
}

#[cfg(test)]
mod tests;
