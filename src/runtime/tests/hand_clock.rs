//! A clock that stands where the test puts it. Reading it is no point at which threads change.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::{model::clock::Timestamp, runtime::ports::Clock};

/// Unix time at its zero: some day in 2027.
const UNIX_ZERO_MS: u64 = 1_800_000_000_000;

/// The clock, in nanoseconds since its zero.
#[derive(Debug, Default)]
pub(crate) struct HandClock(AtomicU64);

impl HandClock {
    /// One that stands there.
    pub(crate) fn at(moment: Timestamp) -> Self {
        Self(AtomicU64::new(moment.nanoseconds()))
    }

    /// Puts it there.
    pub(crate) fn set(&self, moment: Timestamp) {
        self.0.store(moment.nanoseconds(), Ordering::SeqCst);
    }

    /// Puts it there, in milliseconds since its zero.
    pub(crate) fn set_ms(&self, millis: u64) {
        self.set(Timestamp::from_millis(millis));
    }
}

impl Clock for HandClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_nanoseconds(self.0.load(Ordering::SeqCst))
    }

    fn unix_ms(&self, at: Timestamp) -> u64 {
        UNIX_ZERO_MS + at.millis()
    }
}
