//! Asking for a run that goes on from one that is over: its repair, or a rerun from one of its steps. Changes nothing of the old one.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    extract::{Request, State},
    http::HeaderMap,
    response::Response,
};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    accept::{answer, earlier, taken_on},
    find::Found,
    input,
    schema::Run,
};
use crate::{
    model::{
        envelope::ErrorCode,
        hex::hex,
        nearest,
        run::{RunRecord, RunStatus},
    },
    runtime::{
        accept::Accepted,
        engine::Runtime,
        journal::{Idempotency, RunAccepted, RunOwner},
    },
    serve::{
        access::caller::Caller,
        answer::{
            body::{expect_json, parse, read_whole},
            failure::Failure,
            large,
            query::{InPath, idempotency_key},
        },
        arriving::Arriving,
        caps::RunPlace,
        state::{AppState, Running},
    },
    transport::template::check_callers_prompt,
    workflow::checked::{Step, Workflow},
};

/// The longest prompt that may stand in for an agent's own.
pub const PROMPT_BYTES_MAX: usize = 256 * 1024;

/// The routes.
pub fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(repair)).routes(routes!(rerun))
}

/// Starts a run that does again what was degraded or failed in this one, and takes over the rest.
#[utoipa::path(post, path = "/v1/runs/{id}/repair", tag = "runs", params(("idempotency-key" = Option<String>, Header, min_length = 1, max_length = 255)),
    responses((status = 202, body = Run), (status = 404), (status = 409)))]
pub(crate) async fn repair(
    State(state): State<AppState>,
    caller: Caller,
    _arriving: Arriving,
    InPath(id): InPath<String>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let key = idempotency_key(&headers)?;
    let running = state.running().await?;
    let idempotency =
        key.map(|key| Idempotency { key, request_hash: hex(&Sha256::digest(format!("repair {id}").as_bytes())) });
    let asked = (&caller, id.as_str(), idempotency.as_ref());
    let Over { old, record, owner, place, bytes } = match over(&state, &running, asked).await? {
        Begun::Before(accepted) => return answer(&state, &running, accepted).await,
        Begun::Now(over) => *over,
    };
    let (runtime, kept) = (Arc::clone(&running.runtime), (Arc::clone(&old), Arc::clone(&record)));
    let accepting = async move { runtime.repair(&old, &record, owner, idempotency).await };
    let accepted = taken_on(&state, (place, bytes), accepting).await;
    let_go_of(&state, bytes, kept).await?;
    answer(&state, &running, accepted?).await
}

/// A run that goes on from a step of another one.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RerunBody {
    /// The first step that is done again; all that depends on it is done again too.
    pub from: String,
    /// A prompt for that step's agent instead of its own, in the new run only.
    pub prompt: Option<String>,
}

/// Starts a run that does a step of this one again, and all that depends on it; what came before it is taken over and not paid again.
#[utoipa::path(post, path = "/v1/runs/{id}/rerun", tag = "runs", params(("idempotency-key" = Option<String>, Header, min_length = 1, max_length = 255)), request_body = RerunBody,
    responses((status = 202, body = Run), (status = 400), (status = 404), (status = 409)))]
pub(crate) async fn rerun(
    State(state): State<AppState>,
    caller: Caller,
    _arriving: Arriving,
    InPath(id): InPath<String>,
    headers: HeaderMap,
    request: Request,
) -> Result<Response, Failure> {
    expect_json(&headers)?;
    let key = idempotency_key(&headers)?;
    let whole = read_whole(&state, request.into_body(), state.settings.body_bytes_max).await?;
    let digest = Sha256::digest([b"rerun ", id.as_bytes(), b" ", &whole.bytes[..]].concat());
    let body: RerunBody = parse(&whole.bytes)?;
    drop(whole);
    let running = state.running().await?;
    let idempotency = key.map(|key| Idempotency { key, request_hash: hex(&digest) });
    let asked = (&caller, id.as_str(), idempotency.as_ref());
    let Over { old, record, owner, place, bytes } = match over(&state, &running, asked).await? {
        Begun::Before(accepted) => return answer(&state, &running, accepted).await,
        Begun::Now(over) => *over,
    };
    let prompts = prompts_of(&running.runtime, &old.workflow, &body.from, body.prompt).await?;
    let (runtime, from) = (Arc::clone(&running.runtime), body.from);
    let kept = (Arc::clone(&old), Arc::clone(&record));
    let accepting = async move { runtime.rerun(&old, &record, &from, prompts, owner, idempotency).await };
    let accepted = taken_on(&state, (place, bytes), accepting).await;
    let_go_of(&state, bytes, kept).await?;
    answer(&state, &running, accepted?).await
}

/// Which agent's prompt is replaced, if the step is there and the prompt can be one.
pub async fn prompts_of(
    runtime: &Runtime,
    workflow: &Workflow,
    from: &str,
    prompt: Option<String>,
) -> Result<BTreeMap<String, String>, Failure> {
    let steps = workflow.steps();
    let Some(step) = steps.iter().find(|step| step.id() == from) else {
        let known: Vec<&str> = steps.iter().map(Step::id).collect();
        let hint = nearest::hint(from, known.iter().copied());
        return Err(Failure::invalid(format!("there is no step {from:?}{hint} (steps: {})", known.join(", "))));
    };
    let Some(prompt) = prompt else { return Ok(BTreeMap::new()) };
    let agent = step.agent();
    // Agents that can pass a request on are those behind which a model stands.
    if !runtime.agent(agent.as_str()).is_some_and(|agent| agent.relays()) {
        return Err(Failure::invalid(format!("agent {agent} of step {from} has no prompt to replace")));
    }
    if prompt.len() > PROMPT_BYTES_MAX {
        return Err(Failure::invalid(format!("the prompt is larger than {PROMPT_BYTES_MAX} bytes")));
    }
    check_callers_prompt(&prompt)
        .await
        .map_err(|error| Failure::invalid(format!("the prompt cannot be used: {error}")))?;
    Ok(BTreeMap::from([(agent.to_string(), prompt)]))
}

/// Says what state a run is in that must be over for what is asked, and what to do next.
pub fn not_over(id: &str, status: RunStatus) -> Failure {
    let status = status.as_str();
    let next =
        "wait for its end (GET /v1/runs/{id}/result?wait=60) or cancel it (POST /v1/runs/{id}/cancel), then ask again";
    let message = format!("run {id} is {status}, not over: {}", next.replace("{id}", id));
    Failure::new(ErrorCode::Conflict, message).with_detail("status", status)
}

/// A run that is over, and what its successor needs.
struct Over {
    old: Arc<RunAccepted>,
    record: Arc<RunRecord>,
    /// The old one's owner, whoever asks for it.
    owner: RunOwner,
    place: RunPlace,
    /// What laying it out costs as much as reading.
    bytes: usize,
}

/// Whether it was asked for before.
enum Begun {
    Before(Accepted),
    Now(Box<Over>),
}

async fn over(
    state: &AppState,
    running: &Running,
    (caller, id, promise): (&Caller, &str, Option<&Idempotency>),
) -> Result<Begun, Failure> {
    let found = match Found::of(running, caller, id).await {
        Ok(found) => found,
        // The run that it began with may be gone; what was begun lives.
        Err(failure) => {
            let before = earlier(running, caller.tenant.as_deref(), promise).await?;
            return before.map(Begun::Before).ok_or(failure);
        }
    };
    if let Some(accepted) = earlier(running, found.head.owner.tenant.as_deref(), promise).await? {
        return Ok(Begun::Before(accepted));
    }
    let record = found.record(state, running).await?;
    if !record.status.is_terminal() {
        return Err(not_over(id, record.status));
    }
    let mut old = running.journal.accepted(id).await?.ok_or_else(|| Failure::not_found(format_args!("run {id:?}")))?;
    let owner = RunOwner {
        key_id: caller.key_name().map(str::to_owned),
        traceparent: Some(caller.facts.traceparent.clone()),
        ..old.owner.clone()
    };
    // It was asked for where places might go further.
    state.places.bind(&old.workflow, &mut old.input);
    let of_input = input::bytes_of(&old.input);
    let place = state.caps.run(old.owner.tenant.as_deref(), of_input)?;
    let outputs = record.steps.iter().filter_map(|step| step.output.as_ref());
    let bytes = of_input + outputs.map(input::bytes_of_value).sum::<usize>();
    Ok(Begun::Now(Box::new(Over { old: Arc::new(old), record, owner, place, bytes })))
}

/// Freeing very many values takes its time too.
async fn let_go_of<T: Send + 'static>(state: &AppState, bytes: usize, kept: T) -> Result<(), Failure> {
    large::work(state, bytes, move || {
        drop(kept);
        Ok(())
    })
    .await
}
