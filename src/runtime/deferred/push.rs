//! The port through which somebody is told that a call that was put off has ended. The runtime decides when, and how often; an adapter
//! knows whom, and how. One try a call, no repetition of its own.

use std::time::Duration;

use super::view::DeferredView;
use crate::runtime::{journal::RunOwner, ports::BoxFuture};

/// How one try went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pushed {
    /// The other side took it.
    Taken {
        /// Its answer's status.
        http_status: u16,
    },
    /// It did not.
    Failed {
        /// Its answer's status, if it gave one.
        http_status: Option<u16>,
        /// What went wrong, for developers.
        error: String,
        /// Whether another try can do better.
        may_help: bool,
        /// How long it asked to be left alone.
        retry_after: Option<Duration>,
    },
}

/// Whether the name of a place that is told may lead into this machine or its network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PrivateNames {
    /// It may not; `localhost` may, as it says so itself.
    #[default]
    Refused,
    /// It may.
    Allowed,
}

/// Who is told of ends.
pub trait Push: Send + Sync + 'static {
    /// Whether somebody is told of the end of calls of this owner.
    fn is_for(&self, owner: &RunOwner) -> bool;

    /// Tells it once. `attempt` is 1 for the first time.
    fn push<'a>(&'a self, entry: &'a DeferredView, attempt: u32) -> BoxFuture<'a, Pushed>;
}
