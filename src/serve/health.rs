//! Whether the service lives (`/healthz`) and takes work (`/readyz`). Ask nothing of runs, agents or callers.

use std::time::Duration;

use axum::{Json, extract::State, http::StatusCode};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{answer::failure::Failure, state::AppState};
use crate::{
    model::envelope::{Envelope, ErrorCode},
    runtime::pulse::LastTurns,
};

/// How often supervisor and orchestrator are sent a beat.
pub const BEAT: Duration = Duration::from_secs(1);
/// How long a probe waits for a node that starts.
const START_WAIT: Duration = Duration::from_secs(3);
/// Who did not get to a beat for this long does not turn.
pub const STILL_MAX: Duration = Duration::from_secs(10);

/// A service that lives.
#[derive(Debug, Serialize, ToSchema)]
pub struct Health {
    /// `ok`.
    pub status: &'static str,
}

/// The routes.
pub fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(healthz)).routes(routes!(readyz))
}

/// Lives: the process answers, and supervisor and orchestrator turn. Before the journal is its own there is nothing that could turn.
#[utoipa::path(get, path = "/healthz", tag = "health", security(()), responses((status = 200, body = Health), (status = 503, description = "supervisor or orchestrator did not turn for 10 s: `INTERNAL`")))]
pub(crate) async fn healthz(State(state): State<AppState>) -> Result<Json<Health>, Failure> {
    let Some(running) = state.door.now() else { return Ok(Json(Health { status: "ok" })) };
    let LastTurns { supervisor, orchestrator } = running.runtime.last_turns();
    for (who, still) in [("supervisor", supervisor), ("orchestrator", orchestrator)] {
        if still > STILL_MAX {
            let message = format!("the {who} did not turn for {:.0} s", still.as_secs_f64());
            return Err(Failure::with_status(ErrorCode::Internal, StatusCode::SERVICE_UNAVAILABLE, message));
        }
    }
    Ok(Json(Health { status: "ok" }))
}

/// Takes work: the journal is its own and it is not stopping. Asked while a predecessor still has the journal, it waits for it a moment:
/// requests are taken in all the time.
#[utoipa::path(get, path = "/readyz", tag = "health", security(()), responses((status = 200, body = Health), (status = 503, description = "it is starting or stopping: `SHUTTING_DOWN`")))]
pub(crate) async fn readyz(State(state): State<AppState>) -> Result<Json<Health>, Failure> {
    state.ending.check_ready()?;
    if let Ok(Ok(_)) = tokio::time::timeout(START_WAIT, state.running()).await {
        return Ok(Json(Health { status: "ready" }));
    }
    let message = "this node is starting";
    Err(Envelope::new(ErrorCode::ShuttingDown, message).with_retry_after(1.0).into())
}
