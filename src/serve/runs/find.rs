//! One run by its id, if it is its caller's to see: its record, why it waits, its end. What is somebody else's is not there.

use std::{sync::Arc, time::Duration};

use axum::{
    Json as Answer,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse as _, Response},
};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{schema::Run, screen::record_in, watch::Watcher};
use crate::{
    journal::query::RunHead,
    model::{language::Language, run::RunRecord, weight},
    runtime::{journal::Journal as _, run_handle::RunHandle},
    serve::{
        access::caller::Caller,
        answer::{
            failure::Failure,
            large,
            query::{Asked, InPath},
            trace::Screen,
        },
        state::{AppState, Running},
    },
};

/// The longest that a result is waited for.
pub const WAIT_MAX: Duration = Duration::from_secs(60);

/// How long to wait for a result.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct WaitQuery {
    /// Seconds, 60 at most; 0 without.
    #[serde(default)]
    pub wait: f64,
    /// A watch token, instead of a key.
    pub token: Option<String>,
}

/// A run that its caller sees.
#[derive(Debug)]
pub struct Found {
    /// What is known of it without looking into it.
    pub head: RunHead,
    /// The run, if it is live here or ended not long ago.
    pub handle: Option<RunHandle>,
}

impl Found {
    /// The run of this id, if `caller` may see it.
    pub async fn of(running: &Running, caller: &Caller, id: &str) -> Result<Self, Failure> {
        let head = running.journal.head(caller.scope(), id).await?;
        let head = head.ok_or_else(|| Failure::not_found(format_args!("run {id:?}")))?;
        Ok(Self { head, handle: running.runtime.run(id) })
    }

    /// The run of this id, for whoever brings a token for it.
    pub async fn with_token(running: &Running, id: &str) -> Result<Self, Failure> {
        let head = running.journal.head(crate::journal::query::TenantScope::All, id).await?;
        let head = head.ok_or_else(|| Failure::not_found(format_args!("run {id:?}")))?;
        Ok(Self { head, handle: running.runtime.run(id) })
    }

    /// Its record as it stands.
    pub async fn record(&self, state: &AppState, running: &Running) -> Result<Arc<RunRecord>, Failure> {
        record_of(state, running, (self.handle.as_ref(), &self.head.summary.run_id)).await
    }
}

/// The record of a run as it stands: large ones are copied where nobody waits for it.
pub(super) async fn record_of(
    state: &AppState,
    running: &Running,
    (handle, id): (Option<&RunHandle>, &str),
) -> Result<Arc<RunRecord>, Failure> {
    let Some(handle) = handle else {
        let stored = running.journal.record(id).await?;
        return stored.map(Arc::new).ok_or_else(|| Failure::not_found(format_args!("run {id:?} on this node")));
    };
    if let Some(record) = handle.ended_record() {
        return Ok(record);
    }
    let handle = handle.clone();
    large::work(state, handle.record_bytes(), move || Ok(Arc::new(handle.record()))).await
}

/// A record as an answer, in the language of whoever reads it. It takes as long as the record is large, so large ones are laid out where
/// nobody waits for it.
pub(super) async fn told(
    state: &AppState,
    status: StatusCode,
    record: Arc<RunRecord>,
    language: Option<Language>,
) -> Result<Response, Failure> {
    let text = large::work(state, weight::of_record(&record), move || {
        let text = match language {
            Some(language) => serde_json::to_vec(&record_in(Arc::unwrap_or_clone(record), language)),
            None => serde_json::to_vec(&*record),
        };
        text.map_err(Failure::internal)
    });
    Ok((status, [(header::CONTENT_TYPE, "application/json")], text.await?).into_response())
}

/// The routes.
pub fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(run)).routes(routes!(result)).routes(routes!(why))
}

/// A run as it stands: the object of `watertight run --json`. One that goes on from another has `rerun_of`: that run's `run_id`, the `kind` (`rerun`, `repair`), the step that it was rerun `from`, and the steps that were done `again`.
#[utoipa::path(get, path = "/v1/runs/{id}", tag = "runs", responses((status = 200, body = Run), (status = 404)))]
pub(crate) async fn run(
    State(state): State<AppState>,
    caller: Caller,
    Screen(language): Screen,
    InPath(id): InPath<String>,
) -> Result<Response, Failure> {
    let _place = state.caps.query()?;
    let running = state.running().await?;
    let record = Found::of(&running, &caller, &id).await?.record(&state, &running).await?;
    told(&state, StatusCode::OK, record, Some(language)).await
}

/// A run's end: 200 with the run once it is over, 202 with the run as it stands if it is not over within the wait.
#[utoipa::path(get, path = "/v1/runs/{id}/result", tag = "runs", params(WaitQuery),
    responses((status = 200, body = Run), (status = 202, body = Run), (status = 404)))]
pub(crate) async fn result(
    State(state): State<AppState>,
    watcher: Watcher,
    Screen(language): Screen,
    InPath(id): InPath<String>,
    Asked(query): Asked<WaitQuery>,
) -> Result<Response, Failure> {
    let wait = Duration::try_from_secs_f64(query.wait).map_err(|_| Failure::invalid("wait must be seconds"))?;
    let running = if wait.is_zero() { state.running().await? } else { state.running_at_leisure().await? };
    let found = {
        let _place = state.caps.query()?;
        watcher.find(&running, &id).await?
    };
    if let Some(handle) = &found.handle
        && !wait.is_zero()
    {
        // Who waits takes a stream's place: queries go on however many wait.
        let _place = state.caps.stream(&id, watcher.key_name())?;
        tokio::select! {
            _ = handle.finished() => {}
            () = tokio::time::sleep(wait.min(WAIT_MAX)) => {}
            () = state.ending.closing_streams.cancelled() => {}
        }
    }
    let record = found.record(&state, &running).await?;
    let status = if record.status.is_terminal() { StatusCode::OK } else { StatusCode::ACCEPTED };
    told(&state, status, record, Some(language)).await
}

/// What a run waits for: a call, a timer, a line, a gate, the journal; `null` once it is over. While the journal cannot write, `journal` says why.
#[utoipa::path(get, path = "/v1/runs/{id}/why", tag = "runs", responses((status = 200, body = Object), (status = 404)))]
pub(crate) async fn why(
    State(state): State<AppState>,
    caller: Caller,
    InPath(id): InPath<String>,
) -> Result<Answer<Value>, Failure> {
    let _place = state.caps.query()?;
    let running = state.running().await?;
    let found = Found::of(&running, &caller, &id).await?;
    let status = found.record(&state, &running).await?.status;
    let why = found.handle.as_ref().and_then(RunHandle::why);
    let journal = running.journal.refuses().filter(|_| !status.is_terminal());
    Ok(Answer(json!({ "run_id": id, "status": status, "why": why, "journal": journal })))
}
