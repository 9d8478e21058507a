//! The wiring: rules are tested where they stand (policy), here only that actors, gates and permits carry them out. Paused time, but
//! for the few tests that need real threads.

#![allow(unreachable_pub, reason = "modules of one test program")]
#![allow(
    clippy::needless_for_each,
    clippy::unchecked_time_subtraction,
    clippy::cast_possible_truncation,
    reason = "small numbers of a test"
)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails loudly")]

#[path = "../kit/fake_queue.rs"]
mod fake_queue;
#[path = "../kit/mod.rs"]
mod kit;

mod support;

mod ageing;
mod budgets;
mod bulkhead;
mod chaos;
mod classes;
mod clock;
mod dead_letters;
mod gates;
mod guards;
mod guards_kept;
mod guards_of_load;
mod keys;
mod ladder;
mod line;
mod line_reload;
mod lost;
mod outside;
mod panics;
mod probing;
mod readers;
mod reload;
mod reload_counts;
mod reload_gauges;
mod requests;
mod retry;
mod settings;
mod shared_fate;
mod starting;
mod stop;
mod supervision;
mod targets;
mod threads;
mod trials;
mod warmth;
