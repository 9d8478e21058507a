//! How often and how a failed attempt is repeated inside a call.

use std::time::Duration;

use super::{backoff::Backoff, setting::InvalidSetting};

/// The most attempts a call can be configured to make.
pub const ATTEMPTS_MAX: u32 = 20;

/// Settings of the retry plan of one agent.
#[derive(Debug, Clone, PartialEq)]
pub struct RetrySettings {
    /// Attempts of one call, the first included.
    pub attempts_max: u32,
    /// Waits between attempts.
    pub backoff: Backoff,
    /// A longer wait is not slept while holding a slot: the call ends with it.
    pub retry_wait_max: Duration,
    /// An attempt that ran longer than this is not repeated inside the call.
    pub retry_below: Duration,
    /// Retries may be this share of the calls of `budget_window`.
    pub budget_share: f64,
    /// So many retries are always allowed in `budget_window`.
    pub budget_min: u32,
    /// The window of the retry budget.
    pub budget_window: Duration,
}

impl Default for RetrySettings {
    fn default() -> Self {
        Self {
            attempts_max: 3,
            backoff: Backoff::default(),
            retry_wait_max: Duration::from_secs(10),
            retry_below: Duration::from_secs(5),
            budget_share: 0.2,
            budget_min: 3,
            budget_window: Duration::from_secs(60),
        }
    }
}

impl RetrySettings {
    /// Every rule that is broken. `backoff` was checked when it was made.
    pub fn check(&self) -> Vec<InvalidSetting> {
        let mut broken = Vec::new();
        if !(1..=ATTEMPTS_MAX).contains(&self.attempts_max) {
            broken.push(InvalidSetting::new("attempts_max", self.attempts_max, "must be 1 to 20"));
        }
        if !(0.0..=1.0).contains(&self.budget_share) {
            broken.push(InvalidSetting::new("budget_share", self.budget_share, "must be a share from 0 to 1"));
        }
        let window = self.budget_window;
        if window < Duration::from_secs(1) || window > Duration::from_secs(3_600) {
            broken.push(InvalidSetting::new("budget_window", format!("{window:?}"), "must be from 1s to 1h"));
        }
        broken
    }
}
