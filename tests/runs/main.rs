//! Runs over real actors: the rules stand in the plan and are tested there; here that orchestrator, line, gates and calls carry them
//! out, whatever dies meanwhile. Paused time throughout.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails loudly")]
#![allow(unreachable_pub, reason = "modules of one test program")]

#[path = "../kit/fake_queue.rs"]
mod fake_queue;
#[path = "../kit/mod.rs"]
mod kit;

mod support;

mod crashes;
mod durable;
mod ending;
mod events;
mod fake_journal;
mod fan_out;
mod ladder;
mod line;
mod many;
mod one_ollama;
mod outputs;
mod parked_first;
mod parking;
mod renamed;
mod spent;
