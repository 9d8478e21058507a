//! `GET /v1/agents`: all agents as they stand.

use axum::{Json, extract::State};
use serde::Serialize;
use serde_json::Value;
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
    pub data: Vec<Value>,
}

/// Calls of all tenants together: an operator's to see.
const OF_ALL_TENANTS: [&str; 2] = ["in_flight", "mailbox_depth"];

/// The routes.
pub fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(agents))
}

/// All agents: slots, calls in flight (for operators), restarts, and the breaker of each.
#[utoipa::path(get, path = "/v1/agents", tag = "agents", responses((status = 200, body = AgentList)))]
pub(crate) async fn agents(State(state): State<AppState>, caller: Caller) -> Result<Json<AgentList>, Failure> {
    let _place = state.caps.query()?;
    let agents = state.runtime().await?.agents();
    let shown = agents.into_iter().map(|agent| shown(&agent, &caller));
    Ok(Json(AgentList { data: shown.collect::<Result<_, _>>().map_err(Failure::internal)? }))
}

fn shown(agent: &AgentView, caller: &Caller) -> Result<Value, serde_json::Error> {
    let mut agent = serde_json::to_value(agent)?;
    if let Some(fields) = agent.as_object_mut().filter(|_| !caller.is_operator()) {
        for field in OF_ALL_TENANTS {
            fields.remove(field);
        }
    }
    Ok(agent)
}
