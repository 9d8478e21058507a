//! How often a dying agent is started again: at once, until it dies too often; then in quarantine, with back-off, until it has lived
//! for a while. Panics count here only, envelopes in the breaker only.

use std::{collections::VecDeque, time::Duration};

use crate::model::clock::Timestamp;

/// The first wait of a quarantined agent; it doubles with each further death.
pub const QUARANTINE_BACKOFF_MIN: Duration = Duration::from_secs(1);
/// The longest such wait.
pub const QUARANTINE_BACKOFF_MAX: Duration = Duration::from_secs(60);
/// So long it must live before it is trusted with trials.
pub const QUARANTINE_ALIVE: Duration = Duration::from_secs(60);

/// What to do about a death.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Restart {
    /// Start it again after this.
    pub after: Duration,
    /// Whether its gate must be shut.
    pub quarantine: Quarantine,
}

/// Whether an agent is kept from work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quarantine {
    /// It may work.
    No,
    /// From this death on not.
    Begins,
    /// Still not.
    Goes,
}

/// The deaths of one agent.
#[derive(Debug, Clone)]
pub struct RestartLedger {
    max: u32,
    within: Duration,
    deaths: VecDeque<Timestamp>,
    total: u64,
    quarantine: Option<Held>,
}

#[derive(Debug, Clone, Copy)]
struct Held {
    deaths: u32,
    alive_since: Timestamp,
}

impl RestartLedger {
    /// A ledger that allows `max` restarts `within` a time before quarantine.
    pub fn new(max: u32, within: Duration) -> Self {
        Self { max, within, deaths: VecDeque::new(), total: 0, quarantine: None }
    }

    /// Other bounds; deaths and quarantine stay.
    pub fn reconfigure(&mut self, max: u32, within: Duration) {
        (self.max, self.within) = (max, within);
    }

    /// Restarts so far.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// It died, or an attempt's task panicked.
    pub fn died(&mut self, now: Timestamp) -> Restart {
        self.total += 1;
        if let Some(held) = &mut self.quarantine {
            held.deaths = held.deaths.saturating_add(1);
            let doubled = QUARANTINE_BACKOFF_MIN.saturating_mul(1_u32 << held.deaths.min(6));
            let after = doubled.min(QUARANTINE_BACKOFF_MAX);
            held.alive_since = now.after(after);
            return Restart { after, quarantine: Quarantine::Goes };
        }
        while self.deaths.front().is_some_and(|first| now.since(*first) > self.within) {
            self.deaths.pop_front();
        }
        self.deaths.push_back(now);
        if self.deaths.len() <= self.max as usize {
            return Restart { after: Duration::ZERO, quarantine: Quarantine::No };
        }
        self.deaths.clear();
        let alive_since = now.after(QUARANTINE_BACKOFF_MIN);
        self.quarantine = Some(Held { deaths: 0, alive_since });
        Restart { after: QUARANTINE_BACKOFF_MIN, quarantine: Quarantine::Begins }
    }

    /// When a quarantined agent will have lived long enough, if it does not die before; `None` if it is not quarantined.
    pub fn released_at(&self) -> Option<Timestamp> {
        self.quarantine.map(|held| held.alive_since.after(QUARANTINE_ALIVE))
    }

    /// Ends the quarantine if it has lived long enough at `now`. True if this ended it.
    pub fn release(&mut self, now: Timestamp) -> bool {
        let due = self.released_at().is_some_and(|due| due <= now);
        if due {
            self.quarantine = None;
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Timestamp {
        Timestamp::from_millis(seconds * 1_000)
    }

    #[test]
    fn five_restarts_in_a_minute_are_normal_the_sixth_death_is_not() {
        let mut ledger = RestartLedger::new(5, Duration::from_secs(60));
        for at in 0..5 {
            assert_eq!(ledger.died(seconds(at)), Restart { after: Duration::ZERO, quarantine: Quarantine::No });
        }
        assert_eq!(ledger.died(seconds(6)).quarantine, Quarantine::Begins);
        assert_eq!(ledger.released_at(), Some(seconds(6 + 1 + 60)));
        // It dies again and again: the wait doubles up to a minute, and the minute of life begins anew.
        let waits: Vec<u64> = (0..8).map(|count| ledger.died(seconds(10 + count)).after.as_secs()).collect();
        assert_eq!(waits, [2, 4, 8, 16, 32, 60, 60, 60]);
        assert!(!ledger.release(seconds(17 + 60 + 59)));
        assert!(ledger.release(seconds(17 + 60 + 60)));
        assert_eq!(ledger.died(seconds(200)).quarantine, Quarantine::No);
    }

    #[test]
    fn slow_deaths_never_add_up() {
        let mut ledger = RestartLedger::new(5, Duration::from_secs(60));
        for count in 0..100 {
            assert_eq!(ledger.died(seconds(count * 13)).quarantine, Quarantine::No);
        }
        assert_eq!(ledger.total(), 100);
    }
}
