//! What operators look at beside agents: calls that were put aside, and the usage ledger.

pub mod callers;
pub mod dead_letters;
pub mod usage;
