//! `POST /v1/chat/completions` and `POST /v1/embeddings`: who asks, for which agent, in which form. The answer is `answer`'s.

use std::{sync::Arc, time::Instant};

use axum::{
    Extension,
    extract::{Request, State},
    response::Response,
};
use serde_json::Value;
use tokio::sync::mpsc;
use utoipa::ToSchema;

use crate::{
    runtime::{
        call::CallRequest,
        relay::{RELAY_PIECES_MAX, Relay, RelayForm, RelayKind},
    },
    serve::{
        access::caller::Caller,
        answer::{
            body::{expect_json, read_whole},
            failure::Failure,
            large,
            query::idempotency_key,
        },
        state::AppState,
    },
};

use super::{
    answer::{self, UnderWay},
    asked::Asked,
    models::Gateway,
};

/// What is asked of a request beside its model; everything else goes on as it comes.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only described: a request is never made into this")]
struct ModelRequest {
    /// A model of this gateway.
    #[schema(min_length = 1)]
    model: String,
}

/// A chat completion, plain or as a stream.
#[utoipa::path(post, path = "/v1/chat/completions", tag = "gateway",
    request_body(content = ModelRequest, content_type = "application/json", description = "OpenAI's request; `model` names an agent"),
    responses((status = 200, description = "OpenAI's answer, as the model's server gave it", content((Object = "application/json"), (String = "text/event-stream"))), (status = "default", description = "OpenAI's error with our envelope in it")))]
pub(crate) async fn chat(
    State(state): State<AppState>,
    Extension(gateway): Extension<Arc<Gateway>>,
    caller: Caller,
    request: Request,
) -> Result<Response, Failure> {
    relayed(RelayKind::Chat, &state, &gateway, caller, request).await
}

/// Embeddings of one text or many.
#[utoipa::path(post, path = "/v1/embeddings", tag = "gateway",
    request_body(content = ModelRequest, content_type = "application/json", description = "OpenAI's request; `model` names an agent"),
    responses((status = 200, description = "OpenAI's answer, as the model's server gave it", body = Object), (status = "default", description = "OpenAI's error with our envelope in it")))]
pub(crate) async fn embeddings(
    State(state): State<AppState>,
    Extension(gateway): Extension<Arc<Gateway>>,
    caller: Caller,
    request: Request,
) -> Result<Response, Failure> {
    relayed(RelayKind::Embeddings, &state, &gateway, caller, request).await
}

async fn relayed(
    kind: RelayKind,
    state: &AppState,
    gateway: &Gateway,
    caller: Caller,
    request: Request,
) -> Result<Response, Failure> {
    state.ending.check()?;
    expect_json(request.headers())?;
    let place = state.caps.call(caller.asker().as_deref())?;
    let idempotency_key = idempotency_key(request.headers())?;
    let body = read_whole(state, request.into_body(), state.settings.body_bytes_max).await?;
    // From here on the time is ours: how long a client takes to send is its own.
    let started = Instant::now();
    let bytes = body.bytes.clone();
    let asked = large::work(state, bytes.len(), move || Asked::read(kind, &bytes)).await?;
    let caller = asked.caller(caller)?;
    let agent = gateway.agent_of(&asked.model)?;
    let runtime = state.runtime().await?;
    let handle = runtime.agent(agent.as_str()).filter(crate::runtime::handle::AgentHandle::relays);
    // A reload that takes an agent away, or brings one, changes both tables, one a moment after the other.
    let handle = handle.ok_or_else(|| gateway.no_such_model(&asked.model))?;
    let context = caller.call_context(&*runtime.clock(), idempotency_key);
    drop(runtime);
    let (out, pieces) = mpsc::channel(RELAY_PIECES_MAX);
    let form = asked.form;
    let relay = Relay { kind, form, body: asked.body, out, fallback: None, degraded: None, earlier: 0 };
    let call = CallRequest { context, relay: Some(relay), ..CallRequest::of(Value::Null) };
    let under_way = UnderWay {
        call: Box::pin(async move { handle.call(call).await }),
        pieces,
        agent: agent.to_string(),
        started,
        facts: caller.facts,
        held: (place, body.room),
    };
    Ok(match form {
        RelayForm::Whole => answer::whole(under_way).await,
        RelayForm::Stream { .. } => answer::streamed(under_way).await,
    })
}
