//! `GET /v1/dead-letters` and their replay: calls that nobody makes again by itself. A replay is one call with the same idempotency key;
//! of two who ask for it one makes it.

use std::sync::Arc;

use axum::{Json as Answer, extract::State};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    runtime::{
        call::{CallContext, CallRequest},
        journal::{DeadLetter, Journal as _},
    },
    serve::{
        access::caller::Caller,
        answer::{
            failure::Failure,
            query::{Asked, InPath},
        },
        state::AppState,
    },
};

/// The most letters of a page.
const PAGE_MAX: usize = 1_000;
const PAGE_DEFAULT: usize = 50;

/// Which letters.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
pub struct LettersQuery {
    /// At most so many, 1000 at most.
    pub limit: Option<usize>,
    /// `next_cursor` of the page before.
    pub cursor: Option<String>,
}

/// A page of letters, the newest first.
#[derive(Debug, Serialize, ToSchema)]
pub struct LetterList {
    /// The letters.
    #[schema(value_type = Vec<Object>)]
    pub data: Vec<DeadLetter>,
    /// Where the next page begins; `null` = there is none.
    pub next_cursor: Option<String>,
}

/// The routes.
pub fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(dead_letters)).routes(routes!(replay))
}

/// Calls that were put aside: of the caller's tenant, or of all for operators.
#[utoipa::path(get, path = "/v1/dead-letters", tag = "operator", params(LettersQuery),
    responses((status = 200, body = LetterList)))]
pub(crate) async fn dead_letters(
    State(state): State<AppState>,
    caller: Caller,
    Asked(query): Asked<LettersQuery>,
) -> Result<Answer<LetterList>, Failure> {
    let _place = state.caps.query()?;
    let max = query.limit.unwrap_or(PAGE_DEFAULT);
    if !(1..=PAGE_MAX).contains(&max) {
        return Err(Failure::invalid(format!("limit must be from 1 to {PAGE_MAX}")));
    }
    let running = state.running().await?;
    let data = running.journal.dead_letters(caller.scope(), query.cursor.as_deref(), max).await?;
    let next_cursor = if data.len() < max { None } else { data.last().map(|letter| letter.id.clone()) };
    Ok(Answer(LetterList { data, next_cursor }))
}

/// Makes the call of a letter once more, with all guards. A letter whose call fails again is put back.
#[utoipa::path(post, path = "/v1/dead-letters/{id}/replay", tag = "operator",
    responses((status = 200, body = Object), (status = 403), (status = 404)))]
pub(crate) async fn replay(
    State(state): State<AppState>,
    caller: Caller,
    InPath(id): InPath<String>,
) -> Result<Answer<Value>, Failure> {
    caller.must_be_operator()?;
    state.ending.check()?;
    let running = state.running().await?;
    let _place = state.caps.call()?;
    let letter = running.journal.take_dead_letter(caller.scope(), &id).await?;
    let letter = letter.ok_or_else(|| Failure::not_found(format_args!("dead letter {id:?}")))?;
    let Some(agent) = running.runtime.agent(&letter.agent) else {
        let agent = letter.agent.clone();
        running.journal.put_aside(letter);
        return Err(Failure::not_found(format_args!("agent {agent:?} any more")));
    };
    let request = CallRequest {
        input: Arc::new(letter.input.clone()),
        context: CallContext {
            run_id: letter.run_id.clone(),
            idempotency_key: letter.idempotency_key.clone(),
            traceparent: Some(caller.facts.traceparent.clone()),
            tenant: letter.owner.tenant.clone(),
            feature: letter.owner.feature.clone(),
            priority: letter.owner.priority.clone(),
            ..CallContext::default()
        },
        deltas: None,
        retried: None,
        relay: None,
    };
    // On its own, so that a letter is not lost with an operator who leaves.
    let replayed = tokio::spawn(async move {
        let result = agent.call(request).await;
        if result.is_err() {
            running.journal.put_aside(letter);
        }
        result
    });
    let reply = replayed.await.map_err(Failure::internal)??;
    Ok(Answer(json!({ "id": id, "output": reply.output, "usage": reply.usage, "attempts": reply.attempts.len() })))
}
