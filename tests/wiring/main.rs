//! The wiring: rules are tested where they stand (policy), here only that actors, gates and permits carry them out. Paused time.

#[path = "../kit/mod.rs"]
mod kit;

mod bulkhead;
mod gates;
mod starting;
