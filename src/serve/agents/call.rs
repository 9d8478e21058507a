//! `POST /v1/agents/{name}/call`: one supervised call of an agent, by the contract that agents themselves are called with. Who leaves
//! cancels.

use std::{future::Future, pin::Pin, sync::Arc};

use axum::{
    Json as Answer,
    extract::State,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse as _, Response},
};
use futures_util::stream;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{sync::mpsc, time::Instant};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    journal::query::TenantScope,
    model::{
        depth::{CALL_INPUT_DEPTH_MAX, is_deeper},
        exact_json, weight,
    },
    runtime::{
        call::{CallError, CallReply, CallRequest, Degraded},
        deferred::store::Ticket,
    },
    serve::{
        access::caller::Caller,
        answer::{
            body::HeldJson,
            failure::Failure,
            large,
            query::{InPath, idempotency_key},
            sse,
            told::Told,
            trace::RequestFacts,
        },
        arriving::Arriving,
        caps::{BodyRoom, Place},
        files::input::Named,
        runs::input::files_of,
        state::AppState,
    },
};

/// Pieces that wait for a slow reader before the agent is slowed down.
const DELTAS_MAX: usize = 64;

/// A call.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CallBody {
    /// The agent's input.
    #[serde(deserialize_with = "exact_json::value")]
    #[schema(value_type = Object)]
    pub input: Value,
}

type Calling = Pin<Box<dyn Future<Output = Result<CallReply, CallError>> + Send>>;

/// The routes.
pub fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(call))
}

/// Calls an agent through all its guards. With `Accept: text/event-stream` pieces come as they are made.
#[utoipa::path(post, path = "/v1/agents/{name}/call", tag = "agents", request_body = CallBody,
    params(("idempotency-key" = Option<String>, Header, min_length = 1, max_length = 255),
        ("x-watertight-ladder" = Option<String>, Header, description = "`off` where only the agent's own answer is wanted")),
    responses((status = 200, content((Object = "application/json"), (String = "text/event-stream"))),
        (status = 202, body = Object, description = "made later; `Location` says where its answer will be"), (status = 404), (status = 503)))]
pub(crate) async fn call(
    State(state): State<AppState>,
    caller: Caller,
    arriving: Arriving,
    InPath(name): InPath<String>,
    headers: HeaderMap,
    HeldJson(body, room): HeldJson<CallBody>,
) -> Result<Response, Failure> {
    let place = (state.caps.call(caller.asker().as_deref())?, room);
    let running = state.running().await?;
    let runtime = Arc::clone(&running.runtime);
    let agent = runtime.agent(&name).ok_or_else(|| Failure::not_found(format_args!("agent {name:?}")))?;
    let input = body.input;
    let (input, named) = large::work(&state, place.1.bytes(), move || {
        // It may be put off or set aside, and is then read again.
        if is_deeper(&input, CALL_INPUT_DEPTH_MAX) {
            return Err(Failure::invalid(format!("input is nested deeper than {CALL_INPUT_DEPTH_MAX}")));
        }
        let named = Named::within(&input);
        Ok((input, named))
    })
    .await?;
    files_of(&running.files, &TenantScope::One(caller.tenant.clone()), state.limits, &named).await?;
    // What the call itself takes is no time of the journal's.
    drop(arriving);
    let wants_stream = headers.get(header::ACCEPT).is_some_and(|accept| {
        accept.to_str().is_ok_and(|text| text.to_ascii_lowercase().contains("text/event-stream"))
    });
    let (sender, deltas) = if wants_stream {
        let (sender, deltas) = mpsc::channel(DELTAS_MAX);
        (Some(sender), Some(deltas))
    } else {
        (None, None)
    };
    let context = caller.call_context(&*runtime.clock(), idempotency_key(&headers)?);
    let request = CallRequest { input: Arc::new(input), context, deltas: sender, retried: None, relay: None };
    let begun = Instant::now();
    let calling: Calling = Box::pin(async move { agent.call(request).await });
    match deltas {
        None => {
            let result = calling.await;
            drop(place);
            let bytes = result.as_ref().map_or(0, |reply| weight::of_value(&reply.output));
            large::work(&state, bytes, move || Ok(plain(&name, begun, result))).await
        }
        Some(deltas) => {
            Ok(streamed(&state, name, begun, Streaming { calling, deltas, ended: None, facts: caller.facts, place })
                .await)
        }
    }
}

fn plain(agent: &str, begun: Instant, result: Result<CallReply, CallError>) -> Response {
    let all = begun.elapsed();
    let (told, mut answer) = match result {
        Ok(reply) => {
            let told = Told::of(agent, Some(&reply.call_id), reply.fallback.as_deref());
            let told = told.degraded(reply.degraded.as_ref().map(|degraded| degraded.action));
            (told.took(all, reply.spent, &reply.attempts), Answer(closing(&reply)).into_response())
        }
        Err(error) => {
            let told = Told::of(agent, error.call_id.as_deref(), None).took(all, error.spent, &error.attempts);
            let told = told.degraded(error.degraded.as_ref().map(|degraded| degraded.action));
            let answer = match &error.deferred {
                Some(ticket) => put_off(ticket, &error),
                None => Failure::from(error).into_response(),
            };
            (told, answer)
        }
    };
    told.write(answer.headers_mut());
    answer
}

/// The call is made later: where its answer will be, and why it is not here.
fn put_off(ticket: &Ticket, error: &CallError) -> Response {
    let degraded = error.degraded.as_deref().map(degradation);
    let body = json!({ "deferred": ticket, "degraded": degraded, "error": error.envelope });
    let mut answer = (StatusCode::ACCEPTED, Answer(body)).into_response();
    if let Ok(place) = HeaderValue::from_str(&format!("/v1/deferred/{}", ticket.id)) {
        answer.headers_mut().insert(header::LOCATION, place);
    }
    answer
}

fn degradation(degraded: &Degraded) -> Value {
    json!({ "cause": degraded.cause, "action": degraded.action.as_str() })
}

fn closing(reply: &CallReply) -> Value {
    let mut body = json!({ "output": reply.output });
    if let Some(usage) = reply.usage {
        body["usage"] = json!(usage);
    }
    if let Some(degraded) = &reply.degraded {
        body["degraded"] = degradation(degraded);
        body["tries"] = json!(reply.tries);
    }
    body
}

/// A call whose pieces are handed on. Dropping it cancels the call.
struct Streaming {
    calling: Calling,
    deltas: mpsc::Receiver<String>,
    ended: Option<Result<CallReply, CallError>>,
    facts: RequestFacts,
    #[allow(dead_code, reason = "held for its drop")]
    place: (Place, BodyRoom),
}

#[allow(clippy::large_enum_variant, reason = "one at a time, on its way through")]
enum Next {
    Delta(String),
    Ended(Result<CallReply, CallError>),
    Gone,
}

impl Streaming {
    /// The next piece, and after all of them the end. Loses nothing when it is dropped while it waits.
    async fn next(&mut self) -> Next {
        loop {
            if self.ended.is_some() {
                // The call has let go of its sender: what is left in the channel comes first.
                if let Some(delta) = self.deltas.recv().await {
                    return Next::Delta(delta);
                }
                return self.ended.take().map_or(Next::Gone, Next::Ended);
            }
            tokio::select! {
                biased;
                Some(delta) = self.deltas.recv() => return Next::Delta(delta),
                ended = &mut self.calling => self.ended = Some(ended),
            }
        }
    }
}

/// A stream of deltas. Until the first one nothing has been sent, so an early failure still has its own status.
async fn streamed(state: &AppState, agent: String, begun: Instant, mut streaming: Streaming) -> Response {
    let first = match streaming.next().await {
        Next::Ended(result @ Err(_)) => return plain(&agent, begun, result),
        first => first,
    };
    let ping = state.settings.ping;
    let frames = stream::unfold(Some((streaming, Some(first))), move |held| async move {
        let (mut streaming, first) = held?;
        let next = match first {
            Some(first) => first,
            None => match tokio::time::timeout(ping, streaming.next()).await {
                Ok(next) => next,
                Err(_) => return Some((sse::PING.to_owned(), Some((streaming, None)))),
            },
        };
        match next {
            Next::Delta(text) => Some((sse::data(&json!({ "delta": text })), Some((streaming, None)))),
            Next::Ended(Ok(reply)) => Some((sse::data(&closing(&reply)), None)),
            Next::Ended(Err(error)) => {
                let envelope = streaming.facts.dressed(*error.envelope);
                Some((sse::named("error", &envelope.to_wire()), None))
            }
            Next::Gone => None,
        }
    });
    let mut answer = sse::answer(frames);
    // These go before the end: only what is known by then.
    Told::of(&agent, None, None).write(answer.headers_mut());
    answer
}
