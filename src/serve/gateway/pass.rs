//! `ANY /agents/{name}/{path}`: an existing service's bytes pass through its agent's guards unchanged. Nothing is repeated and no other
//! target is asked; the answer is judged by its status and by what an error in it says.

use std::{sync::Arc, time::Duration};

use axum::{
    Extension,
    body::{Body, Bytes, HttpBody as _},
    extract::{Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    response::Response,
};
use futures_util::stream;
use tokio::time::{Instant, timeout, timeout_at};

use crate::{
    model::{
        contract,
        facts::{Ending, TimeoutKind},
        reply::AttemptFailure,
    },
    policy::verdict::Keyed,
    runtime::{handle::AgentHandle, outside::Admission, refusal::failure_envelope},
    serve::{
        access::caller::Caller,
        answer::{body::read_whole, failure::Failure, query::InPath},
        caps::Place,
        state::AppState,
    },
    transport::{pass_on::PassedOn, wire::ERROR_BODY_BYTES_MAX},
};

use super::models::Gateway;

/// Headers of one connection, not of a message.
const HOP_BY_HOP: [HeaderName; 8] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// What of a path is ours.
#[derive(Debug, serde::Deserialize)]
pub(crate) struct ServicePath {
    name: String,
}

/// Passes one request through.
pub(crate) async fn pass(
    State(state): State<AppState>,
    Extension(gateway): Extension<Arc<Gateway>>,
    InPath(ServicePath { name }): InPath<ServicePath>,
    caller: Caller,
    request: Request,
) -> Result<Response, Failure> {
    state.ending.check()?;
    let (agent, service) = gateway
        .service_of(&name)
        .ok_or_else(|| Failure::not_found(format_args!("agent {name:?} with a service of its own")))?;
    let path = path_of(&request, &name)?;
    let place = state.caps.call()?;
    let (parts, body) = request.into_parts();
    let is_empty = body.is_end_stream();
    // Before anything is taken: how a client sends, and how long it takes to, is its own and says nothing of the agent.
    let body = read_whole(&state, body, state.settings.body_bytes_max).await?;
    let runtime = state.runtime().await?;
    let handle = runtime.agent(agent.as_str()).ok_or_else(|| Failure::not_found(format_args!("agent {name:?}")))?;
    let mut admission = handle.enter(&caller.call_context(&*runtime.clock(), None))?;
    let (bound, slow_call) = (Bound::of(&handle, caller.deadline), handle.slow_call());
    drop(runtime);
    let headers = onward(&parts.headers, &caller, &state);
    let sent = service.pass_on(parts.method, &path, headers, (!is_empty).then(|| body.bytes.clone()));
    let answered = tokio::select! {
        answered = bound.within(grown_old_after(slow_call, &mut admission, sent)) => answered,
        () = state.ending.last_words.cancelled() => return Err(Failure::shutting_down()),
    };
    drop(body);
    match answered {
        // Nobody asked for it: what would follow is no answer.
        Ok(passed) if passed.status() == StatusCode::SWITCHING_PROTOCOLS.as_u16() => {
            admission.finish(Ending::BadReply);
            let failure = AttemptFailure::new(Ending::BadReply, "the service switches protocols, unasked");
            Err(failure_envelope(&failure, agent.as_str(), Keyed::No, 1).into())
        }
        Ok(passed) => {
            let passing = Passing { passed, admission: Some(admission), kept: Vec::new(), bound, slow_call, place };
            Ok(answer_of(passing, agent.as_str()))
        }
        Err(failure) => {
            admission.finish(failure.ending.clone());
            Err(failure_envelope(&failure, agent.as_str(), Keyed::No, 1).into())
        }
    }
}

/// How long one exchange may take.
#[derive(Debug, Clone, Copy)]
struct Bound {
    until: Instant,
    /// The longest that nothing may come once an answer has begun.
    stall: Option<Duration>,
    longest: Duration,
    /// The caller's own deadline is what ends it: no failure of the agent.
    is_callers: bool,
}

impl Bound {
    fn of(handle: &AgentHandle, deadline: Option<Duration>) -> Self {
        let own = handle.attempt_timeout();
        let is_callers = deadline.is_some_and(|deadline| deadline < own);
        let longest = deadline.map_or(own, |deadline| deadline.min(own));
        Self { until: Instant::now() + longest, stall: handle.stall_timeout(), longest, is_callers }
    }

    fn late(&self) -> AttemptFailure {
        let seconds = self.longest.as_secs_f64();
        if self.is_callers {
            return AttemptFailure::new(Ending::DeadlineCut, format!("the deadline of {seconds} s has passed"));
        }
        let ending = Ending::Timeout { timeout: TimeoutKind::Attempt };
        AttemptFailure::new(ending, format!("no whole answer within {seconds} s"))
    }

    /// `work`, unless the exchange takes too long.
    async fn within<T>(&self, work: impl Future<Output = Result<T, AttemptFailure>>) -> Result<T, AttemptFailure> {
        timeout_at(self.until, work).await.unwrap_or_else(|_| Err(self.late()))
    }

    /// The same for a piece of an answer, which may not be waited for as long as the whole.
    async fn piece_within<T>(
        &self,
        work: impl Future<Output = Result<T, AttemptFailure>>,
    ) -> Result<T, AttemptFailure> {
        let stalled = || {
            let ending = Ending::Timeout { timeout: TimeoutKind::Stall };
            Err(AttemptFailure::new(ending, "the answer stalled".to_owned()))
        };
        match self.stall {
            None => self.within(work).await,
            Some(stall) => self.within(async { timeout(stall, work).await.unwrap_or_else(|_| stalled()) }).await,
        }
    }
}

/// The path behind the agent's name as it was sent, with its query. Nothing in it can climb out of the service's own base.
fn path_of(request: &Request, name: &str) -> Result<String, Failure> {
    let path = request.uri().path();
    // Behind `/agents/` and the name, however that was encoded; nothing at all is the service's root.
    let behind = path.strip_prefix("/agents/").and_then(|path| path.split_once('/')).map(|(_, rest)| rest);
    let rest = behind.unwrap_or_default();
    let climbs = rest.split(['/', '\\']).any(|segment| {
        let plain = segment.to_ascii_lowercase().replace("%2e", ".").replace("%3b", ";");
        // Some servers take what stands behind a semicolon for a parameter, and climb all the same.
        matches!(plain.split(';').next(), Some("." | ".."))
    });
    let lower = rest.to_ascii_lowercase();
    if climbs || lower.contains("%2f") || lower.contains("%5c") || rest.contains('\\') {
        return Err(Failure::not_found(format_args!("such path behind agent {name:?}")));
    }
    let query = request.uri().query().map_or_else(String::new, |query| format!("?{query}"));
    Ok(behind.map_or_else(|| query.clone(), |rest| format!("/{rest}{query}")))
}

/// The caller's headers, without those of its connection and those that speak to us.
fn onward(given: &HeaderMap, caller: &Caller, state: &AppState) -> HeaderMap {
    let mut headers = without_hop_by_hop(given);
    headers.remove(header::HOST);
    headers.remove(header::EXPECT);
    if !state.keys.is_empty() {
        // The key is ours, and no business of the service.
        headers.remove(header::AUTHORIZATION);
        headers.remove("x-api-key");
    }
    let ours: Vec<HeaderName> =
        headers.keys().filter(|name| name.as_str().starts_with("x-watertight-")).cloned().collect();
    for name in ours {
        headers.remove(name);
    }
    for (name, value) in [
        (contract::TRACEPARENT, Some(caller.facts.traceparent.as_str())),
        (contract::TENANT, caller.tenant.as_deref()),
        (contract::FEATURE, caller.feature.as_deref()),
        (contract::PRIORITY, caller.priority.as_deref()),
    ] {
        if let Some(value) = value.and_then(|text| HeaderValue::from_str(text).ok()) {
            headers.insert(HeaderName::from_static(name), value);
        }
    }
    headers
}

fn without_hop_by_hop(given: &HeaderMap) -> HeaderMap {
    let named: Vec<String> = given
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(',').map(|name| name.trim().to_ascii_lowercase()))
        .collect();
    let stays = |name: &HeaderName| !HOP_BY_HOP.contains(name) && !named.iter().any(|other| other == name.as_str());
    given.iter().filter(|(name, _)| stays(name)).map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Waits for `work`, and counts it as slow from the threshold on.
async fn grown_old_after<T>(slow_call: Duration, admission: &mut Admission, work: impl Future<Output = T>) -> T {
    tokio::pin!(work);
    // Exactly the threshold is not slow yet.
    if let Ok(done) = timeout(slow_call.saturating_add(Duration::from_millis(1)), &mut work).await {
        done
    } else {
        admission.grow_old();
        work.await
    }
}

/// An answer that is being passed on, with everything that is held until it has ended.
struct Passing {
    passed: PassedOn,
    /// `None` once it was judged.
    admission: Option<Admission>,
    kept: Vec<u8>,
    bound: Bound,
    slow_call: Duration,
    #[allow(dead_code, reason = "held for its drop")]
    place: Place,
}

fn answer_of(passing: Passing, agent: &str) -> Response {
    let status = StatusCode::from_u16(passing.passed.status()).unwrap_or(StatusCode::BAD_GATEWAY);
    let mut headers = without_hop_by_hop(&passing.passed.headers);
    if let Ok(value) = HeaderValue::from_str(agent) {
        headers.insert(HeaderName::from_static(contract::AGENT), value);
    }
    let body = stream::unfold(passing, |mut passing| async move {
        let piece = passing.next().await?;
        Some((piece, passing))
    });
    let mut answer = Response::new(Body::from_stream(body));
    *answer.status_mut() = status;
    *answer.headers_mut() = headers;
    answer
}

impl Passing {
    /// The next piece. The answer is judged when its last one is out, or when it breaks.
    async fn next(&mut self) -> Option<Result<Bytes, std::io::Error>> {
        let admission = self.admission.as_mut()?;
        let piece = grown_old_after(self.slow_call, admission, self.passed.piece());
        match self.bound.piece_within(piece).await {
            Ok(Some(piece)) => {
                admission.content();
                let room = ERROR_BODY_BYTES_MAX.saturating_sub(self.kept.len());
                if self.passed.is_telling() {
                    self.kept.extend_from_slice(piece.get(..room).unwrap_or(&piece));
                }
                Some(Ok(piece))
            }
            Ok(None) => {
                let ending = self.passed.ending(&self.kept);
                self.admission.take()?.finish(ending);
                None
            }
            Err(failure) => {
                self.admission.take()?.finish(failure.ending);
                Some(Err(std::io::Error::other("the service's answer broke off")))
            }
        }
    }
}
