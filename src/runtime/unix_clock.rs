//! A clock whose moments count from the Unix epoch, so that they mean the same after a restart. It never goes back: the machine's own
//! clock is looked at once, at the start.

use super::ports::Clock;
use crate::model::clock::Timestamp;

/// The clock.
#[derive(Debug, Clone, Copy)]
pub struct UnixClock {
    started: tokio::time::Instant,
    started_nanoseconds: u64,
}

impl UnixClock {
    /// A clock that starts now.
    pub fn start() -> Self {
        let unix = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Self {
            started: tokio::time::Instant::now(),
            started_nanoseconds: u64::try_from(unix.as_nanos()).unwrap_or(u64::MAX),
        }
    }
}

impl Clock for UnixClock {
    fn now(&self) -> Timestamp {
        let elapsed = tokio::time::Instant::now().saturating_duration_since(self.started).as_nanos();
        let elapsed = u64::try_from(elapsed).unwrap_or(u64::MAX);
        Timestamp::from_nanoseconds(self.started_nanoseconds.saturating_add(elapsed))
    }

    fn unix_ms(&self, at: Timestamp) -> u64 {
        at.millis()
    }
}
