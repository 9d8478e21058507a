//! `GET /v1/callers` and what operators do to a caller: lifting its volume guard. It decides nothing about calls. A guard that is shut
//! stays so over a restart, one that was lifted stays open; the hour of an open one begins anew.

use axum::{Json as Answer, extract::State};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    runtime::{callers::CallerView, engine::NoSuch, ports::Clock},
    serve::{
        access::caller::Caller,
        answer::{body::Json, failure::Failure, query::InPath},
        state::AppState,
    },
};

/// The longest reason, in characters.
const REASON_CHARS_MAX: usize = 1_000;
/// The most callers of one answer; shut ones come first.
const CALLERS_SHOWN_MAX: usize = 1_000;

/// What to do to a caller's guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum GuardAction {
    /// Open it, and count the caller's hour anew.
    Lift,
}

/// An act on the volume guard of a caller.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GuardRequest {
    /// What to do.
    pub action: GuardAction,
    /// Why, in the operator's words.
    #[serde(default)]
    pub reason: String,
}

/// One caller.
#[derive(Debug, Serialize, ToSchema)]
pub struct CallerItem {
    /// `key:NAME`, `tenant:NAME`, or `local` for calls with neither.
    pub name: String,
    /// Its calls that were admitted in the last hour.
    pub calls_last_hour: u32,
    /// So many an hour are allowed.
    pub calls_per_hour: u32,
    /// `admits` or `shut`.
    pub guard: &'static str,
    /// Since when it is shut, in Unix milliseconds.
    pub shut_since_ms: Option<u64>,
    /// Seconds until it opens by itself.
    pub retry_after: Option<f64>,
}

/// A list.
#[derive(Debug, Serialize, ToSchema)]
pub struct CallerList {
    /// The callers, shut ones first, then by name.
    pub data: Vec<CallerItem>,
    /// Whether there are more than are shown.
    pub truncated: bool,
}

impl CallerItem {
    fn of(view: CallerView, clock: &dyn Clock) -> Self {
        let shut = view.volume.shut;
        Self {
            name: view.name,
            calls_last_hour: view.volume.admitted,
            calls_per_hour: view.calls_per_hour,
            guard: if shut.is_some() { "shut" } else { "admits" },
            shut_since_ms: shut.map(|(since, _)| clock.unix_ms(since)),
            retry_after: shut.map(|(_, rest)| rest.as_secs_f64()),
        }
    }
}

/// The routes.
pub fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(callers)).routes(routes!(guard))
}

/// Callers that have called within the hour, and their volume guards. Empty where no guard is configured.
#[utoipa::path(get, path = "/v1/callers", tag = "operator", responses((status = 200, body = CallerList), (status = 403)))]
pub(crate) async fn callers(State(state): State<AppState>, caller: Caller) -> Result<Answer<CallerList>, Failure> {
    caller.must_be_operator()?;
    let _place = state.caps.query()?;
    let runtime = state.runtime().await?;
    let clock = runtime.clock();
    let mut views = runtime.callers();
    let truncated = views.len() > CALLERS_SHOWN_MAX;
    views.truncate(CALLERS_SHOWN_MAX);
    let data = views.into_iter().map(|view| CallerItem::of(view, &*clock)).collect();
    Ok(Answer(CallerList { data, truncated }))
}

/// Lifts a caller's volume guard: it admits again at once, and its hour begins anew.
#[utoipa::path(post, path = "/v1/callers/{name}/guard", tag = "operator", request_body = GuardRequest,
    responses((status = 200, body = Object), (status = 403), (status = 404)))]
pub(crate) async fn guard(
    State(state): State<AppState>,
    caller: Caller,
    InPath(name): InPath<String>,
    Json(request): Json<GuardRequest>,
) -> Result<Answer<Value>, Failure> {
    caller.must_be_operator()?;
    let _place = state.caps.query()?;
    if request.reason.chars().count() > REASON_CHARS_MAX {
        return Err(Failure::invalid(format!("reason has more than {REASON_CHARS_MAX} characters")));
    }
    let runtime = state.runtime().await?;
    let was_shut = runtime.lift_caller(&name).map_err(|NoSuch(what)| Failure::not_found(what))?;
    tracing::warn!(caller = name, reason = request.reason, by = caller.key_name(), "an operator lifts a volume guard");
    Ok(Answer(json!({ "name": name, "action": request.action, "was_shut": was_shut })))
}
