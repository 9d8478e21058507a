//! The plan of one run: a pure state machine that is told what happened and answers what to do. It never does it.

pub mod action;
mod ahead;
mod context;
mod end;
mod event;
mod finish;
pub mod input;
pub mod linked;
pub mod open;
mod parked;
pub mod record;
pub mod restore;
mod revise;
pub mod run_plan;
mod settle;
mod start;
mod state;
mod suspects;
#[cfg(test)]
mod tests;
pub mod why;
