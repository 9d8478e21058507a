//! Actors and the ports they reach the world through.
//!
//! Reading order: what is asked (`call`), the ports, the front of an agent (`handle`), what a call holds (`permit`), its attempts, the
//! judge (`supervisor` with its `book`), the parent of all (`root`), runs (`orchestrator`), how it is put together (`builder`,
//! `engine`), and how that is changed while it runs (`reload`).

pub mod accept;
pub mod adaptive;
pub mod builder;
pub mod call;
pub mod callers;
pub mod capture;
pub mod counted;
pub mod dead_letters;
pub mod deferred;
pub mod engine;
pub mod function_agent;
pub mod guard_layer;
pub mod handle;
pub mod journal;
pub mod ladders;
pub mod large_work;
pub mod metric;
pub mod outside;
pub mod parts;
pub mod ports;
pub mod promise;
pub mod pulse;
pub mod relay;
pub mod reload;
pub mod run_handle;
pub mod settings;
pub mod spending;
pub mod tally;
pub mod token_count;

pub mod book;
pub mod supervisor;

mod address;
mod agent_actor;
mod assembly;
mod attempt_cut;
mod attempt_request;
mod attempts;
mod book_metrics;
mod book_renewal;
mod call_record;
mod compartments;
mod compartments_builder;
mod core;
mod fallback;
mod gate;
mod kept_runs;
mod ladder;
mod line;
mod orchestrator;
mod overload;
mod parked;
mod permit;
mod presence;
mod probing;
mod provider_shares;
mod rates;
mod reader_wait;
pub(crate) mod refusal;
mod root;
mod run_call;
mod run_cell;
mod run_gates;
mod run_log;
mod run_room;
mod run_table;
mod shielded;
pub(crate) mod spent;
mod step_line;
mod stop_signal;
mod stopping;
mod sync;
mod trials;
mod warming;
mod write_ahead;

#[cfg(test)]
pub(crate) mod tests;
