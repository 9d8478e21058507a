//! `GET /v1/runs`: pages of runs, the newest first.

use axum::{Json as Answer, extract::State};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    journal::{
        query::{PAGE_MAX, RunFilter, RunSummary, TenantScope},
        row_cursor::List,
    },
    model::run::RunStatus,
    serve::{
        access::caller::Caller,
        answer::{
            failure::Failure,
            query::{Asked, cursor_of},
        },
        state::AppState,
    },
};

/// Runs of a page where nothing is said.
const PAGE_DEFAULT: usize = 50;

/// Which runs.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct ListQuery {
    /// Of this workflow.
    pub workflow: Option<String>,
    /// In one of these states, divided by commas.
    pub status: Option<String>,
    /// Of this feature.
    pub feature: Option<String>,
    /// Of this tenant; for operators.
    pub tenant: Option<String>,
    /// Accepted then or later; Unix milliseconds.
    #[param(format = "uint64")]
    pub since_ms: Option<u64>,
    /// Accepted before; Unix milliseconds.
    #[param(format = "uint64")]
    pub until_ms: Option<u64>,
    /// At most so many, 1000 at most.
    pub limit: Option<usize>,
    /// `next_cursor` of the page before.
    pub cursor: Option<String>,
}

/// A page.
#[derive(Debug, Serialize, ToSchema)]
pub struct RunList {
    /// The runs. A page may hold fewer than asked for and still have a next one.
    #[schema(value_type = Vec<Object>)]
    pub data: Vec<RunSummary>,
    /// Where the next page begins; `null` = there is none.
    pub next_cursor: Option<String>,
}

/// The routes.
pub fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(runs))
}

/// Runs of the caller's tenant, or of all for operators.
#[utoipa::path(get, path = "/v1/runs", tag = "runs", params(ListQuery), responses((status = 200, body = RunList)))]
pub(crate) async fn runs(
    State(state): State<AppState>,
    caller: Caller,
    Asked(query): Asked<ListQuery>,
) -> Result<Answer<RunList>, Failure> {
    let _place = state.caps.query()?;
    let filter = filter_of(&caller, query)?;
    let page = state.running().await?.journal.runs(filter).await?;
    Ok(Answer(RunList { data: page.runs, next_cursor: page.next.map(|next| next.to_string()) }))
}

fn filter_of(caller: &Caller, query: ListQuery) -> Result<RunFilter, Failure> {
    let scope = match query.tenant {
        None => caller.scope(),
        Some(tenant) if caller.sees(Some(&tenant)) => TenantScope::One(Some(tenant)),
        // Another tenant's list is as empty as that of one that does not exist.
        Some(tenant) => return Err(Failure::not_found(format_args!("tenant {tenant:?}"))),
    };
    let statuses = query.status.as_deref().map(statuses_of).transpose()?.unwrap_or_default();
    let cursor = cursor_of(List::Runs, query.cursor.as_deref())?;
    let count_max = query.limit.unwrap_or(PAGE_DEFAULT);
    if !(1..=PAGE_MAX).contains(&count_max) {
        return Err(Failure::invalid(format!("limit must be from 1 to {PAGE_MAX}")));
    }
    Ok(RunFilter {
        scope,
        workflow: query.workflow,
        feature: query.feature,
        statuses,
        since_ms: query.since_ms,
        until_ms: query.until_ms,
        cursor,
        count_max,
    })
}

fn statuses_of(text: &str) -> Result<Vec<RunStatus>, Failure> {
    let of = |word: &str| {
        serde_json::from_value(serde_json::Value::from(word.trim()))
            .map_err(|_| Failure::invalid(format!("status: there is no state {word:?}")))
    };
    text.split(',').map(of).collect()
}
