//! One agent over HTTP, by the contract that `http` agents are called with: JSON or a stream of deltas, errors as envelopes. A script
//! makes it ill on demand. Has no breaker, bulkhead or retry of its own: those belong to whoever calls.

use std::{
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes, to_bytes},
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, Method, StatusCode, header},
    response::Response,
    routing::get,
    serve::ListenerExt,
};
use futures_util::{FutureExt, stream};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::mpsc, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    model::{
        contract,
        envelope::{Envelope, ErrorCode},
        exact_json,
        facts::Ending,
        name::Name,
        reply::{AttemptFailure, Reply},
    },
    policy::verdict::Keyed,
    runtime::{
        ports::{AttemptRequest, AttemptTimeouts, Backend, Hold, Progress, TokioClock},
        refusal::failure_envelope,
    },
};

use super::{
    answer::body::parse,
    script::{Act, Illness, Play, Script},
};

/// The most bytes of a request.
pub const REQUEST_BYTES_MAX: usize = 16 * 1024 * 1024;
/// How long an answer may take where the caller names no deadline.
pub const DEADLINE_DEFAULT: Duration = Duration::from_secs(180);
/// No caller's deadline is taken for longer.
pub const DEADLINE_MAX: Duration = Duration::from_secs(24 * 3_600);
/// How long calls in flight may go on after the server was told to stop.
pub const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);
/// A silent stream shows this often that it is alive.
pub const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Pieces that wait for a slow reader before the work is slowed down.
const DELTAS_MAX: usize = 64;

/// Serves the agent `name`, whose work `backend` does, until `shutdown` is done; calls in flight then have [`SHUTDOWN_GRACE`].
pub async fn serve_agent(
    listener: TcpListener,
    name: Name,
    backend: Arc<dyn Backend>,
    script: Option<Script>,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let stopping = CancellationToken::new();
    let server = Arc::new(AgentServer {
        name,
        backend,
        play: script.map(|script| Mutex::new(Play::start(script))),
        started: Instant::now(),
        stopping: stopping.clone(),
    });
    let routes = Router::new().route("/healthz", get(health)).fallback(call).with_state(server);
    let listener = listener.tap_io(|socket| {
        // Small frames must not wait for each other; a socket that cannot do it still works.
        let _ = socket.set_nodelay(true);
    });
    let serving = axum::serve(listener, routes).with_graceful_shutdown(stopping.clone().cancelled_owned());
    let stop = async move {
        shutdown.await;
        stopping.cancel();
        tokio::time::sleep(SHUTDOWN_GRACE).await;
    };
    tokio::select! {
        ended = serving.into_future() => ended,
        () = stop => Ok(()),
    }
}

struct AgentServer {
    name: Name,
    backend: Arc<dyn Backend>,
    play: Option<Mutex<Play>>,
    started: Instant,
    stopping: CancellationToken,
}

#[derive(Debug, Deserialize)]
struct CallBody {
    #[serde(deserialize_with = "exact_json::value")]
    input: Value,
}

async fn health(State(server): State<Arc<AgentServer>>) -> Response {
    json_response(StatusCode::OK, &json!({ "status": "ok", "agent": server.name.as_str() }))
}

async fn call(State(server): State<Arc<AgentServer>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    if parts.method != Method::POST {
        return server.refuse(&Envelope::new(ErrorCode::NotFound, "an agent is called with POST"));
    }
    let input = match read_input(body).await {
        Ok(input) => input,
        Err(envelope) => return server.refuse(&envelope),
    };
    let act = server.next_act();
    tokio::time::sleep(act.latency).await;
    let attempt = server.attempt_of(&parts.headers, input);
    let wants_stream = parts.headers.get(header::ACCEPT).is_some_and(|accept| {
        accept.to_str().is_ok_and(|text| text.to_ascii_lowercase().contains("text/event-stream"))
    });
    match act.illness {
        None if wants_stream => server.answer_stream(attempt).await,
        None => match server.run(attempt, None).await {
            Ok(reply) => json_response(StatusCode::OK, &closing(&reply)),
            Err(failure) => server.refuse_failure(&failure),
        },
        Some(Illness::Cut) => match server.run(attempt, None).await {
            Ok(reply) if wants_stream => cut_response("text/event-stream", &frame(&closing(&reply))),
            Ok(reply) => cut_response("application/json", &closing(&reply).to_string()),
            Err(failure) => server.refuse_failure(&failure),
        },
        Some(illness) => server.play_ill(illness).await,
    }
}

async fn read_input(body: Body) -> Result<Arc<Value>, Envelope> {
    let bytes = to_bytes(body, REQUEST_BYTES_MAX).await.map_err(|error| {
        let message = format!("the request could not be read (at most {REQUEST_BYTES_MAX} bytes): {error}");
        Envelope::new(ErrorCode::InvalidRequest, message)
    })?;
    parse(&bytes).map(|CallBody { input }| Arc::new(input)).map_err(|failure| *failure.envelope)
}

impl AgentServer {
    fn next_act(&self) -> Act {
        let Some(play) = &self.play else { return Act { latency: Duration::ZERO, illness: None } };
        // A play has no state that a panic could leave half changed.
        play.lock().unwrap_or_else(PoisonError::into_inner).next(self.started.elapsed())
    }

    fn attempt_of(&self, headers: &HeaderMap, input: Arc<Value>) -> AttemptRequest {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let number = |name: &str| text(name).and_then(|value| value.parse::<u64>().ok());
        let fresh = || uuid::Uuid::now_v7().to_string();
        AttemptRequest {
            agent: self.name.clone(),
            input,
            call_id: text(contract::CALL_ID).unwrap_or_else(fresh),
            run_id: text(contract::RUN_ID),
            step: None,
            attempt: number(contract::ATTEMPT).and_then(|number| u32::try_from(number).ok()).unwrap_or(1),
            idempotency_key: text(contract::IDEMPOTENCY_KEY).unwrap_or_else(fresh),
            traceparent: text(contract::TRACEPARENT),
            deadline: number(contract::DEADLINE_MS).map_or(DEADLINE_DEFAULT, Duration::from_millis).min(DEADLINE_MAX),
            tenant: text(contract::TENANT),
            feature: text(contract::FEATURE),
            priority: text(contract::PRIORITY),
            prompt: None,
            timeouts: AttemptTimeouts { first_token: None, stall: None },
            hold: Hold::of(Arc::new(())),
            relay: None,
            capture: None,
        }
    }

    /// The agent's work, with its deadline; a panic in it ends this call only.
    fn run(
        &self,
        attempt: AttemptRequest,
        deltas: Option<mpsc::Sender<String>>,
    ) -> Pin<Box<dyn Future<Output = Result<Reply, AttemptFailure>> + Send>> {
        let backend = Arc::clone(&self.backend);
        Box::pin(async move {
            let progress = Progress::start(Arc::new(TokioClock::start()), deltas);
            let work = AssertUnwindSafe(backend.attempt(&attempt, &progress)).catch_unwind();
            match tokio::time::timeout(attempt.deadline, work).await {
                Ok(Ok(ended)) => ended,
                Ok(Err(_)) => Err(AttemptFailure::new(Ending::Restarted, "the agent's work panicked")),
                Err(_) => Err(AttemptFailure::new(Ending::DeadlineCut, "the caller's deadline passed")),
            }
        })
    }

    /// A stream of deltas. Until the first one nothing has been sent, so an early failure still has its own status.
    async fn answer_stream(&self, attempt: AttemptRequest) -> Response {
        let (sender, deltas) = mpsc::channel(DELTAS_MAX);
        let agent = self.name.clone();
        let mut running = Running { work: self.run(attempt, Some(sender)), deltas, ended: None };
        let first = match running.next().await {
            Next::Ended(Err(failure)) => return self.refuse_failure(&failure),
            first => first,
        };
        let frames = stream::unfold(Some((running, Some(first))), move |state| {
            let agent = agent.clone();
            async move {
                let (mut running, held) = state?;
                let next = match held {
                    Some(first) => first,
                    None => match tokio::time::timeout(KEEP_ALIVE, running.next()).await {
                        Ok(next) => next,
                        Err(_) => return Some((": alive\n\n".to_owned(), Some((running, None)))),
                    },
                };
                match next {
                    Next::Delta(text) => Some((frame(&json!({ "delta": text })), Some((running, None)))),
                    Next::Ended(Ok(reply)) => Some((frame(&closing(&reply)), None)),
                    Next::Ended(Err(failure)) => {
                        let envelope = envelope_of(&failure, &agent).to_wire();
                        Some((format!("event: error\n{}", frame(&envelope)), None))
                    }
                }
            }
        });
        let body = Body::from_stream(futures_util::StreamExt::map(frames, Ok::<String, std::convert::Infallible>));
        response(StatusCode::OK, "text/event-stream", body)
    }

    async fn play_ill(&self, illness: Illness) -> Response {
        match illness {
            Illness::Error { status } => self.refuse_with(status, "ill by its script"),
            Illness::ClientError { status } => self.refuse_with(status, "refused by its script"),
            Illness::RateLimit { retry_after } => {
                let envelope = Envelope::new(ErrorCode::RateLimited, "too many requests, by its script");
                self.refuse(&envelope.with_retry_after(retry_after.as_secs_f64()))
            }
            Illness::Hang => {
                self.stopping.cancelled().await;
                self.refuse(&Envelope::new(ErrorCode::ShuttingDown, "this agent is stopping"))
            }
            Illness::Garbage => response(StatusCode::OK, "application/json", Body::from("<<< this is no JSON")),
            Illness::Cut => cut_response("application/json", "{\"output\": {}}"),
        }
    }

    fn refuse_with(&self, status: u16, message: &str) -> Response {
        self.refuse_failure(&AttemptFailure::new(Ending::status(status), message))
    }

    fn refuse_failure(&self, failure: &AttemptFailure) -> Response {
        let mut answer = self.refuse(&envelope_of(failure, &self.name));
        if failure.should_retry == Some(false) {
            // Whoever it was that said so, it holds for our caller too.
            answer.headers_mut().insert(contract::SHOULD_RETRY, HeaderValue::from_static("false"));
        }
        answer
    }

    fn refuse(&self, envelope: &Envelope) -> Response {
        let envelope = envelope.clone().with_agent(self.name.as_str());
        let status = StatusCode::from_u16(envelope.http_status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut answer = json_response(status, &envelope.to_wire());
        if let Some(seconds) = envelope.retry_after
            && let Ok(value) = HeaderValue::from_str(&format!("{:.0}", seconds.ceil()))
        {
            answer.headers_mut().insert(header::RETRY_AFTER, value);
        }
        if !envelope.retryable {
            answer.headers_mut().insert(contract::SHOULD_RETRY, HeaderValue::from_static("false"));
        }
        answer
    }
}

/// Work that runs while its pieces are handed on.
struct Running {
    work: Pin<Box<dyn Future<Output = Result<Reply, AttemptFailure>> + Send>>,
    deltas: mpsc::Receiver<String>,
    ended: Option<Result<Reply, AttemptFailure>>,
}

enum Next {
    Delta(String),
    Ended(Result<Reply, AttemptFailure>),
}

impl Running {
    /// The next piece, and after all of them the end. Loses nothing when it is dropped while it waits.
    async fn next(&mut self) -> Next {
        loop {
            if self.ended.is_some() {
                // The work has let go of its sender: what is left in the channel comes first.
                if let Some(delta) = self.deltas.recv().await {
                    return Next::Delta(delta);
                }
                let lost = || Err(AttemptFailure::new(Ending::Internal, "the end of the work was lost"));
                return Next::Ended(self.ended.take().unwrap_or_else(lost));
            }
            tokio::select! {
                biased;
                Some(delta) = self.deltas.recv() => return Next::Delta(delta),
                ended = &mut self.work => self.ended = Some(ended),
            }
        }
    }
}

/// One attempt was made, and whose key was used is known only further in.
fn envelope_of(failure: &AttemptFailure, agent: &Name) -> Envelope {
    failure_envelope(failure, agent.as_str(), Keyed::No, 1)
}

fn closing(reply: &Reply) -> Value {
    match reply.usage {
        Some(usage) => json!({ "output": reply.output, "usage": usage }),
        None => json!({ "output": reply.output }),
    }
}

fn frame(data: &Value) -> String {
    format!("data: {data}\n\n")
}

fn json_response(status: StatusCode, body: &Value) -> Response {
    response(status, "application/json", Body::from(body.to_string()))
}

fn response(status: StatusCode, content_type: &'static str, body: Body) -> Response {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer
}

/// A good status over a body whose first half comes and then breaks off.
fn cut_response(content_type: &'static str, whole: &str) -> Response {
    let half = Bytes::copy_from_slice(whole.as_bytes().get(..whole.len() / 2).unwrap_or_default());
    let pieces = stream::unfold(Some(half), |half| async move {
        if let Some(half) = half {
            return Some((Ok(half), None));
        }
        // The half is on its way before the connection breaks.
        tokio::time::sleep(Duration::from_millis(20)).await;
        Some((Err(std::io::Error::other("cut by its script")), None))
    });
    response(StatusCode::OK, content_type, Body::from_stream(pieces))
}

#[cfg(test)]
#[cfg(feature = "http")]
mod tests;
