//! The breaker against everything short and against a naive twin: all short sequences of events keep the invariants (`walk`), random long
//! ones under random settings do what a model without any clever counter does (`naive`), and the window's counts equal a recount (`window`).
//! A failed property prints its smallest input and the seed to run it again with.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot be set up has failed")]

mod naive;
mod walk;
mod window;
