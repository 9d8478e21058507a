//! `GET /v1/dead-letters` and their replay: calls that nobody makes again by itself. A replay keeps the call's idempotency key; of two who
//! ask for it one gets it. It never starts or repairs a run.

use axum::{Json as Answer, extract::State};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    journal::{query::TenantScope, row_cursor::List},
    model::envelope::ErrorCode,
    runtime::{
        call::{CallContext, CallRequest},
        dead_letters::DEAD_LETTERS_MAX,
        journal::{DeadCause, DeadLetter},
    },
    serve::{
        access::caller::Caller,
        answer::{
            failure::Failure,
            query::{Asked, InPath, cursor_of},
        },
        state::{AppState, Running},
    },
};

/// The most letters of a page.
const PAGE_MAX: usize = 1_000;
const PAGE_DEFAULT: usize = 50;

/// Which letters.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
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
    let before = cursor_of(List::DeadLetters, query.cursor.as_deref())?;
    let running = state.running().await?;
    let (data, next) = running.journal.dead_letters(caller.scope(), before, max).await?;
    Ok(Answer(LetterList { data, next_cursor: next.map(|next| next.to_string()) }))
}

/// Does what a letter waits for, with all guards: makes its call once more, or lets the step of its run go on. The letter is gone once that
/// is done; one whose call fails again stays, and refuses its call as before.
#[utoipa::path(post, path = "/v1/dead-letters/{id}/replay", tag = "operator",
    responses((status = 200, body = Object), (status = 403), (status = 404), (status = 409)))]
pub(crate) async fn replay(
    State(state): State<AppState>,
    caller: Caller,
    InPath(id): InPath<String>,
) -> Result<Answer<Value>, Failure> {
    caller.must_be_operator()?;
    state.ending.check()?;
    let running = state.running().await?;
    let place = state.caps.call(caller.asker().as_deref())?;
    let claim = running.runtime.claim_letter(&id);
    let claim = claim.ok_or_else(|| conflict(format!("dead letter {id:?} is being replayed by somebody else: look again at GET /v1/dead-letters once that is done")))?;
    let letter = running.journal.dead_letter(caller.scope(), &id).await?;
    let letter = letter.ok_or_else(|| Failure::not_found(format_args!("dead letter {id:?}")))?;
    let traceparent = caller.facts.traceparent.clone();
    // On its own, so that what was begun is ended though the operator leaves.
    let acting = tokio::spawn(async move {
        let _held = (place, claim);
        match letter.cause {
            DeadCause::KilledTwice => call_again(&running, &letter, traceparent).await,
            DeadCause::InDoubt | DeadCause::KilledProcess => let_go_on(&running, &letter).await,
            DeadCause::PlanPanicked => Err(conflict(format!(
                "the plan of run {run} broke, so there is no call to make: POST /v1/runs/{run}/repair does again what it lacks",
                run = letter.run_id.as_deref().unwrap_or_default()
            ))),
        }
    });
    acting.await.map_err(Failure::internal)?.map(Answer)
}

fn conflict(message: String) -> Failure {
    Failure::new(ErrorCode::Conflict, message)
}

/// Makes a call that was put aside, in its owner's name and with its own key.
async fn call_again(running: &Running, letter: &DeadLetter, traceparent: String) -> Result<Value, Failure> {
    let agent = running.runtime.agent(&letter.agent);
    let agent = agent.ok_or_else(|| Failure::not_found(format_args!("agent {:?} any more", letter.agent)))?;
    let owner = letter.owner.clone();
    let context = CallContext {
        run_id: letter.run_id.clone(),
        idempotency_key: letter.idempotency_key.clone(),
        traceparent: Some(traceparent),
        tenant: owner.tenant,
        feature: owner.feature,
        priority: owner.priority,
        key_id: owner.key_id,
        user: owner.user,
        ..CallContext::default()
    };
    let request = CallRequest { context, ..CallRequest::of(letter.input.clone()) };
    running.runtime.forgive_letter(letter);
    let reply = match agent.call(request).await {
        Ok(reply) => reply,
        Err(error) => {
            // If it killed twice once more there is a newer letter of it.
            if !running.runtime.remember_letter(letter) {
                running.journal.take_dead_letter(TenantScope::All, &letter.id).await?;
            }
            return Err(error.into());
        }
    };
    running.journal.take_dead_letter(TenantScope::All, &letter.id).await?;
    Ok(json!({ "id": letter.id, "output": reply.output, "usage": reply.usage, "attempts": reply.attempts.len() }))
}

/// Lets a step go on that waits because it may have acted, or because the process died with it: the operator knows that it may be tried
/// again.
async fn let_go_on(running: &Running, letter: &DeadLetter) -> Result<Value, Failure> {
    let run_id = letter.run_id.as_deref().unwrap_or_default();
    let place = letter.step.as_deref().and_then(place_of);
    let run = running.runtime.run(run_id);
    let is_released = run.zip(place).is_some_and(|(run, (step, index, iteration))| run.release(step, index, iteration));
    if !is_released {
        let step = letter.step.as_deref().unwrap_or_default();
        return Err(conflict(format!(
            "run {run_id} does not wait for an operator at {step}: it was let go on already, or the run is over; GET /v1/runs/{run_id}/why says what it waits for"
        )));
    }
    running.journal.take_dead_letter(TenantScope::All, &letter.id).await?;
    Ok(json!({ "id": letter.id, "run_id": run_id, "step": letter.step }))
}

/// Step, item and iteration, as a call's key names them.
fn place_of(text: &str) -> Option<(&str, Option<u32>, u32)> {
    let (rest, iteration) = text.rsplit_once('/')?;
    let (step, index) = rest.rsplit_once('/')?;
    let index = if index == "-" { None } else { Some(index.parse().ok()?) };
    Some((step, index, iteration.parse().ok()?))
}

/// Lets the calls of kept letters be refused as before the restart; of very many those of the newest.
pub async fn restore_letters(running: &Running) -> Result<(), Failure> {
    let (letters, _) = running.journal.dead_letters(TenantScope::All, None, DEAD_LETTERS_MAX).await?;
    for letter in letters.iter().rev() {
        running.runtime.remember_letter(letter);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_within_a_run() {
        for (text, want) in [
            ("draft/-/0", Some(("draft", None, 0))),
            ("photos/12/3", Some(("photos", Some(12), 3))),
            ("draft/-", None),
            ("draft/x/0", None),
            ("draft/-/x", None),
            ("", None),
        ] {
            assert_eq!(place_of(text), want, "{text:?}");
        }
    }
}
