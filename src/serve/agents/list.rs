//! `GET /v1/agents`: all agents as they stand.

use axum::{Json, extract::State};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    runtime::engine::AgentView,
    serve::{access::caller::Caller, answer::failure::Failure, state::AppState},
};

/// A list.
#[derive(Debug, Serialize, ToSchema)]
pub struct AgentList {
    /// The agents, in the order of the configuration.
    #[schema(value_type = Vec<Object>)]
    pub data: Vec<AgentView>,
}

/// The routes.
pub fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(agents))
}

/// All agents: slots, calls in flight, restarts, and the breaker of each.
#[utoipa::path(get, path = "/v1/agents", tag = "agents", responses((status = 200, body = AgentList)))]
pub(crate) async fn agents(State(state): State<AppState>, _caller: Caller) -> Result<Json<AgentList>, Failure> {
    let _place = state.caps.query()?;
    Ok(Json(AgentList { data: state.runtime().await?.agents() }))
}
