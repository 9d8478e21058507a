//! `GET /v1/deferred` and `GET`, `DELETE /v1/deferred/{id}`: calls that are made later, their answers, and that one is wanted no more. A
//! caller sees those of its tenant, an operator all. Somebody else's are not there.

use axum::{Json as Answer, extract::State};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    journal::{
        deferred::look::{Cancelling, DeferredFilter},
        row_cursor::List,
    },
    model::envelope::ErrorCode,
    runtime::deferred::{store::DeferredStatus, view::DeferredView},
    serve::{
        access::caller::Caller,
        answer::{
            failure::Failure,
            query::{Asked, InPath, cursor_of},
        },
        state::AppState,
    },
};

/// The most entries of a page.
const PAGE_MAX: usize = 1_000;
const PAGE_DEFAULT: usize = 50;

/// Which calls.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct DeferredQuery {
    /// At most so many, 1000 at most.
    pub limit: Option<usize>,
    /// `next_cursor` of the page before.
    pub cursor: Option<String>,
    /// Only those that are `waiting`, `done`, `failed`, `expired` or `cancelled`.
    #[param(value_type = Option<String>)]
    pub status: Option<DeferredStatus>,
}

/// A page of calls, the newest first. What they ended with stands on each one's own page.
#[derive(Debug, Serialize, ToSchema)]
pub struct DeferredList {
    /// The calls.
    #[schema(value_type = Vec<Object>)]
    pub data: Vec<DeferredView>,
    /// Where the next page begins; `null` = there is none.
    pub next_cursor: Option<String>,
}

/// The routes.
pub fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(deferred)).routes(routes!(entry, cancel))
}

/// Calls that were put off: of the caller's tenant, or of all for operators.
#[utoipa::path(get, path = "/v1/deferred", tag = "deferred", params(DeferredQuery),
    responses((status = 200, body = DeferredList)))]
pub(crate) async fn deferred(
    State(state): State<AppState>,
    caller: Caller,
    Asked(query): Asked<DeferredQuery>,
) -> Result<Answer<DeferredList>, Failure> {
    let _place = state.caps.query()?;
    let count_max = query.limit.unwrap_or(PAGE_DEFAULT);
    if !(1..=PAGE_MAX).contains(&count_max) {
        return Err(Failure::invalid(format!("limit must be from 1 to {PAGE_MAX}")));
    }
    let before = cursor_of(List::Deferred, query.cursor.as_deref())?;
    let filter = DeferredFilter { scope: caller.scope(), status: query.status, before, count_max };
    let page = state.running().await?.journal.deferred_entries(filter).await?;
    let data = page.entries.into_iter().map(DeferredView::from).collect();
    Ok(Answer(DeferredList { data, next_cursor: page.next.map(|next| next.to_string()) }))
}

/// A call that was put off, with its answer once it has one.
#[utoipa::path(get, path = "/v1/deferred/{id}", tag = "deferred",
    responses((status = 200, body = Object), (status = 404)))]
pub(crate) async fn entry(
    State(state): State<AppState>,
    caller: Caller,
    InPath(id): InPath<String>,
) -> Result<Answer<DeferredView>, Failure> {
    let _place = state.caps.query()?;
    let found = state.running().await?.journal.deferred(caller.scope(), &id).await?;
    found.map(|entry| Answer(entry.into())).ok_or_else(|| not_there(&id))
}

/// Makes a call that was put off wanted no more: it is not made, or, if it is being made, aborted.
#[utoipa::path(delete, path = "/v1/deferred/{id}", tag = "deferred",
    responses((status = 200, body = Object), (status = 404), (status = 409)))]
pub(crate) async fn cancel(
    State(state): State<AppState>,
    caller: Caller,
    InPath(id): InPath<String>,
) -> Result<Answer<DeferredView>, Failure> {
    let _place = state.caps.query()?;
    let running = state.running().await?;
    match running.journal.cancel_deferred(caller.scope(), &id).await? {
        Cancelling::Done => running.runtime.abort_deferred(&id),
        Cancelling::Over(DeferredStatus::Cancelled) => {}
        Cancelling::Over(status) => {
            let message = format!(
                "deferred call {id:?} is {}, so there is nothing to cancel: GET /v1/deferred/{id} shows how it ended",
                status.as_str()
            );
            return Err(Failure::new(ErrorCode::Conflict, message).with_detail("status", status.as_str()));
        }
        Cancelling::NotFound => return Err(not_there(&id)),
    }
    let found = running.journal.deferred(caller.scope(), &id).await?;
    found.map(|entry| Answer(entry.into())).ok_or_else(|| not_there(&id))
}

fn not_there(id: &str) -> Failure {
    Failure::not_found(format_args!("deferred call {:?}", id.chars().take(100).collect::<String>()))
}
