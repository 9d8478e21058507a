//! `watertight rerun`: a step of a run, and all that depends on it, done again; and what that changed.
//!
//! Reading order: the command, the project's own journal, a running service, the difference.

pub(super) mod command;
mod difference;
mod local;
pub(super) mod remote;
