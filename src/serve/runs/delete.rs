//! Ending runs and removing what was kept of them. The accounting line stays.

use std::time::Duration;

use axum::{Json as Answer, extract::State, http::StatusCode, response::Response};
use serde_json::{Value, json};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    find::{Found, told},
    linked::not_over,
    schema::Run,
};
use crate::{
    journal::remove::Deletion,
    serve::{
        access::caller::Caller,
        answer::{failure::Failure, query::InPath},
        state::AppState,
    },
};

/// A cancelled run is given so long to say so.
const CANCEL_WAIT: Duration = Duration::from_secs(2);

/// The routes.
pub fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(cancel)).routes(routes!(delete_run)).routes(routes!(delete_tenant))
}

/// Ends a run; calls under way are aborted upstream. One that is over stays as it is.
#[utoipa::path(post, path = "/v1/runs/{id}/cancel", tag = "runs",
    responses((status = 200, body = Run), (status = 202, body = Run), (status = 404)))]
pub(crate) async fn cancel(
    State(state): State<AppState>,
    caller: Caller,
    InPath(id): InPath<String>,
) -> Result<Response, Failure> {
    let _place = state.caps.query()?;
    let running = state.running().await?;
    let found = Found::of(&running, &caller, &id).await?;
    if let Some(handle) = &found.handle {
        handle.cancel();
        // Late is no error: the run says itself when it is over.
        let _ = tokio::time::timeout(CANCEL_WAIT, handle.finished()).await;
    }
    let record = found.record(&state, &running).await?;
    let status = if record.status.is_terminal() { StatusCode::OK } else { StatusCode::ACCEPTED };
    told(&state, status, record, None).await
}

/// Deletes a run that is over, with its events, files and the calls that it put off. Its line in the ledger stays.
#[utoipa::path(delete, path = "/v1/runs/{id}", tag = "runs", responses((status = 204), (status = 404), (status = 409)))]
pub(crate) async fn delete_run(
    State(state): State<AppState>,
    caller: Caller,
    InPath(id): InPath<String>,
) -> Result<StatusCode, Failure> {
    let _place = state.caps.query()?;
    let running = state.running().await?;
    match running.journal.delete_run(caller.scope(), &id).await? {
        Deletion::Done => {
            running.runtime.forget_run(&id);
            running.runtime.abort_deferred_of_run(&id);
            Ok(StatusCode::NO_CONTENT)
        }
        Deletion::NotFound => Err(Failure::not_found(format_args!("run {id:?}"))),
        Deletion::NotOver(status) => Err(not_over(&id, status)),
    }
}

/// Deletes everything of a tenant but runs that are not over and the ledger. For operators, and for the tenant itself.
#[utoipa::path(delete, path = "/v1/tenants/{tenant}/data", tag = "operator",
    responses((status = 200, body = Object), (status = 404)))]
pub(crate) async fn delete_tenant(
    State(state): State<AppState>,
    caller: Caller,
    InPath(tenant): InPath<String>,
) -> Result<Answer<Value>, Failure> {
    if !caller.sees(Some(&tenant)) {
        return Err(Failure::not_found(format_args!("tenant {tenant:?}")));
    }
    let _place = state.caps.query()?;
    let running = state.running().await?;
    let deleted = running.journal.delete_tenant(Some(&tenant)).await?;
    running.runtime.abort_deferred_of_tenant(&tenant);
    tracing::warn!(tenant, deleted, by = caller.key_name(), "a tenant's data were deleted");
    Ok(Answer(json!({ "tenant": tenant, "runs_deleted": deleted })))
}
