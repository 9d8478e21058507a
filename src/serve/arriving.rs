//! Requests whose bodies may still be on their way: whoever was taken in before the service began to end is served, however slowly it
//! sends, so the journal is kept until none of them is left. Bounded by the end's own patience, never here.

use axum::{extract::FromRequestParts, http::request::Parts};
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::{answer::failure::Failure, state::AppState};

/// A request that needs the journal once it is read. It is waited for until this is dropped. As an argument of a handler it stands
/// before the body, so that it is taken when the head is there.
#[derive(Debug)]
pub struct Arriving {
    #[allow(dead_code, reason = "held for its drop")]
    token: TaskTrackerToken,
}

impl Arriving {
    /// One that is counted by this token.
    pub(super) fn counted(token: TaskTrackerToken) -> Self {
        Self { token }
    }
}

impl FromRequestParts<AppState> for Arriving {
    type Rejection = Failure;

    async fn from_request_parts(_: &mut Parts, state: &AppState) -> Result<Self, Failure> {
        state.ending.arrive()
    }
}
