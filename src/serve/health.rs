//! Whether the service lives (`/healthz`) and takes work (`/readyz`). Ask nothing of runs, agents or callers.

use std::time::Duration;

use axum::{Json, extract::State, http::StatusCode};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{answer::failure::Failure, state::AppState};
use crate::{
    journal::health::Health as JournalState,
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

/// A service that takes work.
#[derive(Debug, Serialize, ToSchema)]
pub struct Readiness {
    /// `ready`; `taking_over` while a predecessor still has the journal: requests wait for it here.
    pub status: &'static str,
    /// What of it does not work now; empty if nothing.
    pub holds: Vec<String>,
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

/// Takes work: the journal is its own and writes, and it is not stopping. While a predecessor hands the journal over requests are taken in and wait for it, so it is ready then too; whoever only asks for that hurries nobody. Where new runs are refused and everything else goes on, `holds` says so.
#[utoipa::path(get, path = "/readyz", tag = "health", security(()), responses((status = 200, body = Readiness), (status = 503, description = "it is starting or stopping: `SHUTTING_DOWN`; or the journal cannot write, so that runs stand still: `INTERNAL`")))]
pub(crate) async fn readyz(State(state): State<AppState>) -> Result<Json<Readiness>, Failure> {
    state.ending.check_ready()?;
    let Ok(Ok(running)) = tokio::time::timeout(start_wait(&state), state.running_at_leisure()).await else {
        if state.door.is_handed_over() {
            let holds = vec!["a predecessor still has the journal: requests wait for it".to_owned()];
            return Ok(Json(Readiness { status: "taking_over", holds }));
        }
        let message = "this node is starting";
        return Err(Envelope::new(ErrorCode::ShuttingDown, message).with_retry_after(1.0).into());
    };
    let journal = running.journal.health();
    if let JournalState::Failing { since_ms, error } = &journal.health {
        let envelope = error.to_envelope().with_detail("since_ms", *since_ms);
        return Err(Envelope { message: format!("{error}; runs stand still until it writes again"), ..envelope }.into());
    }
    let holds = if journal.is_nearly_full {
        vec!["the journal is near journal.size_max: new runs are refused, those under way go on".to_owned()]
    } else {
        Vec::new()
    };
    Ok(Json(Readiness { status: "ready", holds }))
}

/// A probe that is answered at once in any case does not wait.
fn start_wait(state: &AppState) -> Duration {
    if state.door.is_handed_over() { Duration::ZERO } else { START_WAIT }
}
