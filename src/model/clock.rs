//! Our time is a number: nanoseconds since a zero that the clock's owner chose: the start of the runtime, of a recording, or Unix time's
//! own, where moments must outlive the process. It can be stored, replayed and typed into a test.
//! Nothing here reads a clock; whoever owns one hands the number in.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A moment, in nanoseconds since the clock's zero. Unix time fits until the year 2554.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The start of time.
    pub const ZERO: Self = Self(0);
    /// Later than every moment that can be reached.
    pub const NEVER: Self = Self(u64::MAX);

    /// A moment `nanoseconds` after the start.
    pub const fn from_nanoseconds(nanoseconds: u64) -> Self {
        Self(nanoseconds)
    }

    /// A moment `milliseconds` after the start; saturates at [`Timestamp::NEVER`].
    pub const fn from_millis(milliseconds: u64) -> Self {
        Self(milliseconds.saturating_mul(1_000_000))
    }

    /// Nanoseconds since the start.
    pub const fn nanoseconds(self) -> u64 {
        self.0
    }

    /// Whole milliseconds since the start.
    pub const fn millis(self) -> u64 {
        self.0 / 1_000_000
    }

    /// The time from `earlier` to `self`, zero if `earlier` is later: elapsed time is never negative.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// The moment `wait` later; saturates at [`Timestamp::NEVER`].
    #[must_use]
    pub fn after(self, wait: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// The moment `back` earlier; saturates at the start.
    #[must_use]
    pub fn before(self, back: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(back.as_nanos()).unwrap_or(u64::MAX)))
    }
}
