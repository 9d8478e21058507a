//! What operators look at beside agents: calls that were put aside, the usage ledger, the configuration in force.

pub mod callers;
pub mod config;
pub mod dead_letters;
pub mod usage;
