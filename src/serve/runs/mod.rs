//! Runs over HTTP: asking for one, looking at them, following one, ending, repairing and deleting them.

pub mod accept;
pub mod captures;
pub mod delete;
pub mod events;
pub mod find;
pub mod follow;
pub mod input;
pub mod linked;
pub mod list;
mod schema;
pub mod screen;
pub mod watch;
