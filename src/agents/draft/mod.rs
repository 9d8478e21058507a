//! The agent `draft`: an honest post out of photo facts, notes and the author's voice.

mod compose;
pub(super) mod dates;
pub(super) mod english;
pub(super) mod korean;
mod notes;
mod pictures;
mod revise;
mod speech;
mod times;
mod twin;

pub(super) use twin::{compute, stop_names};
