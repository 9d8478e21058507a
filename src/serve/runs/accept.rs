//! Asking for a run, and for the repair of one. A run is answered for only when it is written down.

use std::{sync::Arc, time::Duration};

use axum::{
    Json as Answer,
    extract::{Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse as _, Response},
};
use sha2::{Digest as _, Sha256};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    find::Found,
    input,
    request::{RunBody, RunForm, RunRequest},
};
use crate::{
    journal::query::TenantScope,
    model::envelope::ErrorCode,
    runtime::{
        accept::{Accepted, NewRun},
        journal::Idempotency,
    },
    serve::{
        access::{
            caller::{Caller, Named},
            random::hex,
        },
        answer::{
            failure::Failure,
            query::{InPath, idempotency_key},
        },
        files::form::forget,
        state::{AppState, Running},
    },
    workflow::checked::Workflow,
};

/// Says that a run was asked for before.
const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// The routes.
pub fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(start)).routes(routes!(repair))
}

/// Starts a run. It goes on whoever watches it. With `Idempotency-Key` a repeated request is answered with the run of the first one.
#[utoipa::path(post, path = "/v1/runs", tag = "runs", request_body(content((RunBody = "application/json"), (RunForm = "multipart/form-data"))),
    responses((status = 202, body = Object), (status = 400), (status = 404), (status = 422), (status = 503)))]
pub(crate) async fn start(
    State(state): State<AppState>,
    caller: Caller,
    headers: HeaderMap,
    request: Request,
) -> Result<Response, Failure> {
    state.ending.check()?;
    let key = idempotency_key(&headers)?;
    let RunRequest { body, hash, form } = RunRequest::read(&state, &caller, request).await?;
    let running = state.running().await?;
    let idempotency = key.map(|key| Idempotency { key, request_hash: hash });
    let accepted = accept(&state, &running, caller.clone(), body, idempotency).await;
    if let Some(form) = form
        && accepted.as_ref().map_or(true, |accepted| accepted.replayed)
    {
        // No run names the files that came with it.
        forget(&running.files, &caller, &form).await;
    }
    answer(&running, accepted?).await
}

async fn accept(
    state: &AppState,
    running: &Running,
    caller: Caller,
    body: RunBody,
    idempotency: Option<Idempotency>,
) -> Result<Accepted, Failure> {
    let mut new = new_run(state, caller, body, idempotency)?;
    // The files are those of the run's tenant, whoever starts it: its agents are given no others.
    let scope = TenantScope::One(new.owner.tenant.clone());
    input::resolve_files(&running.files, scope, state.limits, &mut new.input).await?;
    Ok(running.runtime.accept_run(new).await?)
}

fn new_run(
    state: &AppState,
    caller: Caller,
    body: RunBody,
    idempotency: Option<Idempotency>,
) -> Result<NewRun, Failure> {
    let RunBody { workflow, input, deadline_ms, priority, feature, tenant, user } = body;
    let caller = caller.naming(Named { tenant, feature, priority, user })?;
    let workflow = workflow_of(state, workflow.as_deref())?;
    input::check(&workflow, &input, state.limits)?;
    let deadline = match deadline_ms {
        Some(0) => return Err(Failure::invalid("deadline_ms must be at least 1")),
        Some(milliseconds) => Some(Duration::from_millis(milliseconds)),
        None => caller.deadline,
    };
    let deadline = deadline.into_iter().chain(state.run_deadline).min();
    Ok(NewRun { workflow, input, deadline, owner: caller.owner(), idempotency })
}

/// The workflow of this name, or the only one.
fn workflow_of(state: &AppState, name: Option<&str>) -> Result<Arc<Workflow>, Failure> {
    let known = || state.workflows.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
    match name {
        Some(name) => state
            .workflows
            .get(name)
            .cloned()
            .ok_or_else(|| Failure::not_found(format_args!("workflow {name:?}; there are {}", known()))),
        None => {
            let mut all = state.workflows.values();
            match (all.next(), all.next()) {
                (Some(only), None) => Ok(Arc::clone(only)),
                (None, _) => Err(Failure::not_found("workflow here")),
                _ => Err(Failure::invalid(format!("workflow must be one of {}", known()))),
            }
        }
    }
}

/// Starts a run that does again what was degraded or failed in this one, and takes over the rest.
#[utoipa::path(post, path = "/v1/runs/{id}/repair", tag = "runs",
    responses((status = 202, body = Object), (status = 404), (status = 409)))]
pub(crate) async fn repair(
    State(state): State<AppState>,
    caller: Caller,
    InPath(id): InPath<String>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    state.ending.check()?;
    let key = idempotency_key(&headers)?;
    let running = state.running().await?;
    let found = Found::of(&running, &caller, &id).await?;
    let record = found.record(&running).await?;
    if !record.status.is_terminal() {
        return Err(Failure::new(ErrorCode::Conflict, format!("run {id} is not over")));
    }
    let old = running.journal.accepted(&id).await?.ok_or_else(|| Failure::not_found(format_args!("run {id:?}")))?;
    let idempotency =
        key.map(|key| Idempotency { key, request_hash: hex(&Sha256::digest(format!("repair {id}").as_bytes())) });
    // The new run is the old one's owner's, whoever asked for it.
    let owner = crate::runtime::journal::RunOwner {
        key_id: caller.key_name().map(str::to_owned),
        traceparent: Some(caller.facts.traceparent.clone()),
        ..old.owner.clone()
    };
    let accepted = running.runtime.repair(&old, &record, owner, idempotency).await?;
    answer(&running, accepted).await
}

/// 202 with the run as it stands, and where it is to be found.
async fn answer(running: &Running, accepted: Accepted) -> Result<Response, Failure> {
    let record = match &accepted.handle {
        Some(handle) => handle.record(),
        None => {
            use crate::runtime::journal::Journal as _;
            let stored = running.journal.record(&accepted.run_id).await?;
            stored.ok_or_else(|| Failure::not_found(format_args!("run {:?} on this node", accepted.run_id)))?
        }
    };
    let mut answer = (StatusCode::ACCEPTED, Answer(record)).into_response();
    if let Ok(location) = HeaderValue::from_str(&format!("/v1/runs/{}", accepted.run_id)) {
        answer.headers_mut().insert(header::LOCATION, location);
    }
    if accepted.replayed {
        answer.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    }
    Ok(answer)
}
