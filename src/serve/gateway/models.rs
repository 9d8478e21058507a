//! Which model name means which agent, and where agents' services are. Made once, of checked settings; an unknown name is told with
//! what there is.

use std::{collections::BTreeMap, sync::Arc};

use axum::{Extension, Json, extract::State};
use serde_json::{Value, json};

use crate::{
    model::{envelope::ErrorCode, name::Name, nearest::nearest},
    serve::{
        access::caller::Caller,
        answer::{failure::Failure, query::InPath},
        state::AppState,
    },
    transport::client::ProviderClient,
};

use super::shape::{OPENAI_CODE, PARAM};

/// So many of the names that there are are told.
const NAMES_SHOWN_MAX: usize = 50;

/// The models and services behind the gateway.
#[derive(Debug, Default)]
pub struct Gateway {
    /// Names of models, and the agents that answer for them.
    models: BTreeMap<String, Name>,
    /// Where an agent's service is, for requests that pass through.
    services: BTreeMap<Name, Arc<ProviderClient>>,
}

impl Gateway {
    /// Requests for `model` go to `agent`. The first agent of a name keeps it.
    pub fn add_model(&mut self, model: &str, agent: &Name) {
        self.models.entry(model.to_owned()).or_insert_with(|| agent.clone());
    }

    /// Requests for `agent` pass through to what `client` reaches.
    pub fn add_service(&mut self, agent: &Name, client: Arc<ProviderClient>) {
        self.services.insert(agent.clone(), client);
    }

    /// The agent that answers for `model`.
    pub(super) fn agent_of(&self, model: &str) -> Result<&Name, Failure> {
        self.models.get(model).ok_or_else(|| self.no_such_model(model))
    }

    pub(super) fn service_of(&self, agent: &str) -> Option<(&Name, &Arc<ProviderClient>)> {
        self.services.get_key_value(agent)
    }

    pub(super) fn no_such_model(&self, model: &str) -> Failure {
        let shown: String = model.chars().take(100).collect();
        let names: Vec<&str> = self.models.keys().map(String::as_str).take(NAMES_SHOWN_MAX).collect();
        let close = nearest(&shown, names.iter().copied()).map(|name| format!(", did you mean {name:?}?"));
        let message = format!(
            "there is no model {shown:?}{}; there are: {}",
            close.unwrap_or_default(),
            if names.is_empty() { "none".to_owned() } else { names.join(", ") }
        );
        Failure::new(ErrorCode::NotFound, message)
            .with_detail(PARAM, "model")
            .with_detail(OPENAI_CODE, "model_not_found")
    }
}

fn shown(model: &str, agent: &Name) -> Value {
    json!({ "id": model, "object": "model", "created": 0, "owned_by": agent })
}

/// The models that this gateway answers for.
#[utoipa::path(get, path = "/v1/models", tag = "gateway", responses((status = 200, description = "OpenAI's list of models", body = Object)))]
pub(crate) async fn list_models(
    State(state): State<AppState>,
    Extension(gateway): Extension<Arc<Gateway>>,
    _caller: Caller,
) -> Result<Json<Value>, Failure> {
    let _place = state.caps.query()?;
    let data: Vec<Value> = gateway.models.iter().map(|(model, agent)| shown(model, agent)).collect();
    Ok(Json(json!({ "object": "list", "data": data })))
}

/// One of them.
#[utoipa::path(get, path = "/v1/models/{model}", tag = "gateway", params(("model" = String, Path)),
    responses((status = 200, description = "OpenAI's model", body = Object), (status = 404)))]
pub(crate) async fn show_model(
    State(state): State<AppState>,
    Extension(gateway): Extension<Arc<Gateway>>,
    _caller: Caller,
    InPath(model): InPath<String>,
) -> Result<Json<Value>, Failure> {
    let _place = state.caps.query()?;
    Ok(Json(shown(&model, gateway.agent_of(&model)?)))
}
