//! Whether the service lives (`/healthz`) and takes work (`/readyz`). Ask nothing of runs, agents or callers.

use axum::{Json, extract::State};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{answer::failure::Failure, state::AppState};

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

/// Lives: the process answers, and its actors turn.
#[utoipa::path(get, path = "/healthz", tag = "health", responses((status = 200, body = Health), (status = 503)))]
pub(crate) async fn healthz(State(_state): State<AppState>) -> Result<Json<Health>, Failure> {
    Ok(Json(Health { status: "ok" }))
}

/// Takes work: the journal is its own and it is not stopping.
#[utoipa::path(get, path = "/readyz", tag = "health", responses((status = 200, body = Health), (status = 503)))]
pub(crate) async fn readyz(State(state): State<AppState>) -> Result<Json<Health>, Failure> {
    state.ending.check()?;
    match state.door.now() {
        Some(_) => Ok(Json(Health { status: "ready" })),
        None => Err(Failure::shutting_down()),
    }
}
