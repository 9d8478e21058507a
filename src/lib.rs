//! Watertight: a runtime for supervised pipelines of LLM agents. One agent's flood never sinks the ship.
//!
//! The floors, from the ground up. A module names only lower floors (checked by `tests/floors.rs`).

pub mod model;
pub mod policy;

#[cfg(feature = "runtime")]
pub mod workflow;

#[cfg(feature = "runtime")]
pub mod runtime;

#[cfg(feature = "runtime")]
pub mod agents;
#[cfg(feature = "journal")]
pub mod journal;
#[cfg(feature = "runtime")]
pub mod settings;
#[cfg(feature = "http")]
pub mod transport;

#[cfg(feature = "serve")]
pub mod serve;

#[cfg(feature = "cli")]
pub mod cli;
