//! Pure decisions: no clock, no I/O, no randomness, no logging, no runtime. Time is a number handed in, chance a function of a seed.
//! The same code serves live calls, replay and drills.

pub mod adaptive;
pub mod backoff;
pub mod breaker;
pub mod bulkhead;
pub mod capture;
pub mod chance;
pub mod compartment;
pub mod crowd;
pub mod fallback;
pub mod ladder;
pub mod price;
pub mod restart;
pub mod retry;
pub mod retry_after;
pub mod retry_settings;
pub mod run_caps;
pub mod setting;
pub mod shedding;
pub mod slow;
pub mod suspects;
pub mod tokens;
pub mod verdict;
pub mod volume;
pub mod warmth;
