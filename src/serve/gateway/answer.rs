//! A relayed answer on its way out: whole, or as a stream that ends with its last mark, or with an error event and no mark. While a
//! stream's first content is long in coming, comments keep the connection alive: from the first of them on the status is decided (200),
//! and a failure can only be told as an event. Dropping the answer drops the call, and with it everything upstream.

use std::{
    convert::Infallible,
    pin::Pin,
    time::{Duration, Instant},
};

use axum::{
    body::{Body, Bytes},
    http::{HeaderValue, header},
    response::{IntoResponse as _, Response},
};
use futures_util::stream;
use serde_json::json;
use tokio::sync::mpsc;

use crate::{
    model::raw_object::RawObject,
    runtime::{
        call::{CallError, CallReply, Degraded},
        relay::{RelayBegan, RelayPiece},
    },
    serve::{
        answer::{failure::Failure, told::Told, trace::RequestFacts},
        caps::{BodyRoom, Place},
    },
};

use super::shape::in_openai_words;

/// After so long without content a stream shows that it is alive, and again after as long.
pub(super) const ALIVE_AFTER: Duration = Duration::from_secs(15);
/// What it shows.
const ALIVE: &[u8] = b": still waiting for the first token\n\n";

/// A call that is under way for a client.
pub(super) struct UnderWay {
    pub(super) call: Pin<Box<dyn Future<Output = Result<CallReply, CallError>> + Send>>,
    pub(super) pieces: mpsc::Receiver<RelayPiece>,
    pub(super) agent: String,
    pub(super) started: Instant,
    /// Trace and language of its request, which an error event names as any error does.
    pub(super) facts: RequestFacts,
    /// Given back when the answer is out, or nobody wants it any more.
    #[allow(dead_code, reason = "held for its drop")]
    pub(super) held: (Place, BodyRoom),
}

/// The whole answer.
pub(super) async fn whole(mut under_way: UnderWay) -> Response {
    let result = under_way.call.as_mut().await;
    let elapsed = under_way.started.elapsed();
    let reply = match result {
        Ok(reply) => reply,
        Err(error) => return failed(error, &under_way.agent, elapsed),
    };
    let Ok(RelayPiece::Whole(body)) = under_way.pieces.try_recv() else {
        return Failure::internal("a relayed call ended well without an answer").into_response();
    };
    let body = match &reply.degraded {
        Some(degraded) => marked(body, degraded),
        None => body,
    };
    let mut answer = Response::new(Body::from(body));
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let told = Told::of(&under_way.agent, Some(&reply.call_id), reply.fallback.as_deref())
        .degraded(reply.degraded.as_ref().map(|degraded| degraded.action));
    told.took(elapsed, reply.spent, &reply.attempts).write(answer.headers_mut());
    answer
}

/// The answer as a stream, or the error that came before its first content.
pub(super) async fn streamed(mut under_way: UnderWay) -> Response {
    let waiting = tokio::time::sleep(ALIVE_AFTER);
    tokio::pin!(waiting);
    let first = tokio::select! {
        biased;
        piece = under_way.pieces.recv() => piece,
        result = under_way.call.as_mut() => match result {
            Err(error) => return failed(error, &under_way.agent, under_way.started.elapsed()),
            // It ended between two looks: what it sent is still there.
            Ok(_) => return flowing(under_way, None, Call::Ended(None)),
        },
        () = &mut waiting => return flowing(under_way, None, Call::Waits),
    };
    match first {
        Some(RelayPiece::Began(began)) => flowing(under_way, Some(&began), Call::Runs),
        Some(RelayPiece::Frame(_) | RelayPiece::Whole(_)) => {
            Failure::internal("a relayed stream began without its head").into_response()
        }
        // Nobody sends any more: the call is about to say why.
        None => match under_way.call.as_mut().await {
            Err(error) => failed(error, &under_way.agent, under_way.started.elapsed()),
            Ok(_) => Failure::internal("a relayed stream ended well without a frame").into_response(),
        },
    }
}

/// A whole answer that says that another one than the agent gave it: OpenAI's clients leave members alone that they do not know.
fn marked(body: Bytes, degraded: &Degraded) -> Bytes {
    let mark = json!({ "degraded": { "cause": degraded.cause, "action": degraded.action.as_str() } }).to_string();
    match RawObject::try_new(body.to_vec()) {
        Ok(object) => Bytes::from(object.with(&[("watertight", Some(&mark))])),
        Err(_) => body,
    }
}

/// An error; also where the call is made later, since OpenAI's clients know no other answer: `details.deferred` says where it will be.
fn failed(error: CallError, agent: &str, elapsed: Duration) -> Response {
    let told = Told::of(agent, error.call_id.as_deref(), None)
        .took(elapsed, error.spent, &error.attempts)
        .degraded(error.degraded.as_ref().map(|degraded| degraded.action));
    let place = error.deferred.as_ref().map(|ticket| format!("/v1/deferred/{}", ticket.id));
    let mut answer = Failure::from(error).into_response();
    if let Some(place) = place.and_then(|place| HeaderValue::from_str(&place).ok()) {
        answer.headers_mut().insert(header::LOCATION, place);
    }
    told.write(answer.headers_mut());
    answer
}

/// Where the call behind a stream stands.
enum Call {
    /// Nothing of its answer is out but signs of life.
    Waits,
    /// Its answer has begun.
    Runs,
    /// It has ended; an error that was not told yet.
    Ended(Option<CallError>),
}

fn flowing(under_way: UnderWay, began: Option<&RelayBegan>, call: Call) -> Response {
    let elapsed = under_way.started.elapsed();
    let agent = under_way.agent.clone();
    let alive = matches!(call, Call::Waits).then(|| Bytes::from_static(ALIVE));
    let first = alive.or_else(|| began.and_then(stands_in));
    let frames = stream::unfold((under_way, call, first), |(mut under_way, mut call, first)| async move {
        let bytes = match first {
            Some(bytes) => bytes,
            None => next(&mut under_way, &mut call).await?,
        };
        Some((Ok::<_, Infallible>(bytes), (under_way, call, None)))
    });
    let mut answer = Response::new(Body::from_stream(frames));
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    let told = match began {
        Some(began) => Told::of(&agent, Some(&began.call_id), began.fallback.as_deref())
            .begins(elapsed, began.waited, began.attempt)
            .degraded(began.degraded),
        None => Told::of(&agent, None, None),
    };
    told.write(headers);
    answer
}

/// The comment of a stream that another one than the agent gives: its headers may be out already.
fn stands_in(began: &RelayBegan) -> Option<Bytes> {
    let rung = began.degraded?;
    let target = began.fallback.as_deref().unwrap_or_default();
    Some(Bytes::from(format!(": watertight degraded={} fallback={target}\n\n", rung.as_str())))
}

/// The next bytes of a stream, `None` at its end.
async fn next(under_way: &mut UnderWay, call: &mut Call) -> Option<Bytes> {
    loop {
        if let Call::Ended(error) = call {
            // What was sent before the end comes first.
            return match under_way.pieces.try_recv() {
                Ok(RelayPiece::Frame(frame)) => Some(frame),
                Ok(_) => continue,
                Err(_) => error.take().map(|error| error_event(error, &under_way.facts)),
            };
        }
        let alive = matches!(call, Call::Waits);
        tokio::select! {
            biased;
            Some(piece) = under_way.pieces.recv() => match piece {
                RelayPiece::Began(began) => {
                    *call = Call::Runs;
                    if let Some(mark) = stands_in(&began) {
                        return Some(mark);
                    }
                }
                RelayPiece::Frame(frame) => return Some(frame),
                RelayPiece::Whole(_) => {}
            },
            result = under_way.call.as_mut() => *call = Call::Ended(result.err()),
            () = tokio::time::sleep(ALIVE_AFTER), if alive => return Some(Bytes::from_static(ALIVE)),
        }
    }
}

/// The last that a client hears of a stream that failed: no mark of an end follows.
fn error_event(error: CallError, facts: &RequestFacts) -> Bytes {
    Bytes::from(format!("data: {}\n\n", in_openai_words(&facts.dressed(*error.envelope))))
}
