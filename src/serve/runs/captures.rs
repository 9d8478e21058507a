//! What a run's attempts said word for word, where that is kept. Who reads it is written down before anything is shown.

use axum::{Json as Answer, extract::State};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::find::Found;
use crate::{
    journal::captures::{Capture, CaptureReading},
    serve::{
        access::caller::Caller,
        answer::{failure::Failure, query::InPath},
        state::AppState,
    },
};

/// Whoever reads where no keys are asked for.
const NO_KEY: &str = "(no key)";

/// The captures of a run.
#[derive(Debug, Serialize, ToSchema)]
pub struct CaptureList {
    /// Attempt by attempt, the oldest first: prompt, answer, how it was read.
    #[schema(value_type = Vec<Object>)]
    pub data: Vec<Capture>,
    /// Who read them, this time included.
    #[schema(value_type = Vec<Object>)]
    pub readings: Vec<Value>,
}

/// The routes.
pub fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(captures))
}

/// What the attempts of a run said, as `[capture]` keeps it. Each reading is recorded.
#[utoipa::path(get, path = "/v1/runs/{id}/captures", tag = "runs",
    responses((status = 200, body = CaptureList), (status = 404)))]
pub(crate) async fn captures(
    State(state): State<AppState>,
    caller: Caller,
    InPath(id): InPath<String>,
) -> Result<Answer<CaptureList>, Failure> {
    let _place = state.caps.query()?;
    let running = state.running().await?;
    Found::of(&running, &caller, &id).await?;
    let reader = match (caller.key_name(), caller.user.as_deref()) {
        (Some(key), Some(user)) => format!("{key} for {user}"),
        (Some(key), None) => key.to_owned(),
        (None, _) => NO_KEY.to_owned(),
    };
    let data = running.journal.read_captures(caller.scope(), &id, &reader).await?;
    tracing::info!(run_id = id, reader, captures = data.len(), "captures were read");
    let readings = running.journal.capture_readings(caller.scope(), &id).await?;
    Ok(Answer(CaptureList { data, readings: readings.iter().map(told).collect() }))
}

fn told(reading: &CaptureReading) -> Value {
    serde_json::json!({ "reader": reading.reader, "at_ms": reading.at_ms, "captures": reading.captures })
}
