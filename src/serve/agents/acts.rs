//! What operators do to agents: setting a breaker's mode, and letting an agent run dry. Modes are kept over restarts.

use std::time::Duration;

use axum::{Json as Answer, body::Bytes, extract::State};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    journal::operator_modes::OperatorMode,
    policy::breaker::settings::Mode,
    runtime::{
        engine::{NoSuch, Runtime},
        supervisor::BreakerAct,
    },
    serve::{
        access::caller::Caller,
        answer::{
            body::Json,
            failure::Failure,
            query::{Asked, InPath},
        },
        state::{AppState, Running},
    },
};

/// The longest reason, in characters.
const REASON_CHARS_MAX: usize = 1_000;
/// The longest that a drain is waited for.
const DRAIN_WAIT_MAX: Duration = Duration::from_secs(60);
/// The longest that an act is waited for until callers meet it.
const ACT_WAIT: Duration = Duration::from_secs(1);
/// How often a drain is looked at.
const DRAIN_LOOK: Duration = Duration::from_millis(20);

/// What to do to a breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Refuse everything.
    ForceOpen,
    /// Admit everything, measure nothing.
    Disable,
    /// Admit everything, measure, say what it would have done.
    MetricsOnly,
    /// Judge by itself again.
    Auto,
    /// Closed and empty.
    Reset,
}

/// An act on the breaker of an agent.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BreakerRequest {
    /// What to do.
    pub action: Action,
    /// Why, in the operator's words.
    #[serde(default)]
    pub reason: String,
    /// Another breaker than the agent's own: `provider:NAME`, `key:PROVIDER/KEY`, one of its further targets.
    pub breaker: Option<String>,
}

/// How long to wait.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct DrainQuery {
    /// Seconds to wait at most for the calls in flight; 0 without.
    #[serde(default)]
    pub wait: f64,
}

/// The routes.
pub fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(breaker)).routes(routes!(drain))
}

/// Acts on an agent's breaker. The mode is kept over restarts until it is set to `auto`; `reset` leaves it as it is.
#[utoipa::path(post, path = "/v1/agents/{name}/breaker", tag = "operator", request_body = BreakerRequest,
    responses((status = 200, body = Object), (status = 403), (status = 404)))]
pub(crate) async fn breaker(
    State(state): State<AppState>,
    caller: Caller,
    InPath(name): InPath<String>,
    Json(request): Json<BreakerRequest>,
) -> Result<Answer<Value>, Failure> {
    caller.must_be_operator()?;
    let _place = state.caps.query()?;
    let running = state.running().await?;
    exists(&running.runtime, &name)?;
    let breaker = request.breaker.clone().unwrap_or_else(|| format!("agent:{name}"));
    act(&running, &caller, &breaker, request.action, &request.reason).await?;
    let snapshot = running.runtime.breaker(&breaker).map_err(no_such)?;
    Ok(Answer(json!({ "agent": name, "breaker": breaker, "action": request.action, "state": snapshot.state })))
}

/// Refuses new calls of an agent and waits for those in flight. Lifted with the breaker's action `auto`.
#[utoipa::path(post, path = "/v1/agents/{name}/drain", tag = "operator", params(DrainQuery),
    responses((status = 200, body = Object), (status = 403), (status = 404)))]
pub(crate) async fn drain(
    State(state): State<AppState>,
    caller: Caller,
    InPath(name): InPath<String>,
    Asked(query): Asked<DrainQuery>,
    body: Bytes,
) -> Result<Answer<Value>, Failure> {
    caller.must_be_operator()?;
    if !matches!(body.trim_ascii(), b"" | b"{}") {
        // `{"drain": false}` would drain.
        return Err(Failure::invalid("drain takes no body: what it began ends with the breaker's action `auto`"));
    }
    let _place = state.caps.query()?;
    let wait = Duration::try_from_secs_f64(query.wait).map_err(|_| Failure::invalid("wait must be seconds"))?;
    let running = state.running().await?;
    let agent = running.runtime.agent(&name).ok_or_else(|| Failure::not_found(format_args!("agent {name:?}")))?;
    act(&running, &caller, &format!("agent:{name}"), Action::ForceOpen, "drain").await?;
    let dry = async {
        while agent.in_flight() > 0 {
            tokio::time::sleep(DRAIN_LOOK).await;
        }
    };
    let drained = tokio::time::timeout(wait.min(DRAIN_WAIT_MAX), dry).await.is_ok();
    Ok(Answer(json!({ "agent": name, "drained": drained, "in_flight": agent.in_flight() })))
}

fn exists(runtime: &Runtime, name: &str) -> Result<(), Failure> {
    runtime.agent(name).map(|_| ()).ok_or_else(|| Failure::not_found(format_args!("agent {name:?}")))
}

async fn act(running: &Running, caller: &Caller, breaker: &str, action: Action, reason: &str) -> Result<(), Failure> {
    if reason.chars().count() > REASON_CHARS_MAX {
        return Err(Failure::invalid(format!("reason has more than {REASON_CHARS_MAX} characters")));
    }
    running.runtime.breaker(breaker).map_err(no_such)?;
    // Written down first: an act that is forgotten with the next restart was never done.
    if let Some(mode) = mode_of(action) {
        let clock = running.runtime.clock();
        let set = OperatorMode {
            breaker: breaker.to_owned(),
            mode,
            reason: reason.to_owned(),
            set_ms: clock.unix_ms(clock.now()),
            set_by: caller.key_name().map(str::to_owned),
        };
        running.journal.set_operator_mode(set).await?;
    }
    tracing::warn!(breaker, action = ?action, reason, by = caller.key_name(), "an operator acts");
    running.runtime.act(breaker, act_of(action)).map_err(no_such)?;
    // A node whose supervisor does not turn must still be told to act.
    let _ = tokio::time::timeout(ACT_WAIT, running.runtime.acts_hold()).await;
    Ok(())
}

fn no_such(NoSuch(what): NoSuch) -> Failure {
    Failure::not_found(what)
}

const fn mode_of(action: Action) -> Option<Mode> {
    match action {
        Action::ForceOpen => Some(Mode::ForcedOpen),
        Action::Disable => Some(Mode::Disabled),
        Action::MetricsOnly => Some(Mode::MetricsOnly),
        Action::Auto => Some(Mode::Auto),
        Action::Reset => None,
    }
}

const fn act_of(action: Action) -> BreakerAct {
    match action {
        Action::ForceOpen => BreakerAct::ForceOpen,
        Action::Disable => BreakerAct::Disable,
        Action::MetricsOnly => BreakerAct::MetricsOnly,
        Action::Auto => BreakerAct::Auto,
        Action::Reset => BreakerAct::Reset,
    }
}

/// Sets breakers as operators left them. What is not there any more is passed over.
pub async fn restore_modes(running: &Running) -> Result<(), Failure> {
    for set in running.journal.operator_modes().await? {
        let act = match set.mode {
            Mode::ForcedOpen => BreakerAct::ForceOpen,
            Mode::Disabled => BreakerAct::Disable,
            Mode::MetricsOnly => BreakerAct::MetricsOnly,
            Mode::Auto => continue,
        };
        match running.runtime.act(&set.breaker, act) {
            Ok(()) => {
                tracing::warn!(breaker = set.breaker, mode = ?set.mode, reason = set.reason, "as an operator left it");
            }
            Err(error) => tracing::warn!(%error, "an operator's act is left over"),
        }
    }
    Ok(())
}
