//! `ANY /agents/{name}/{path}`: an existing service's bytes pass through its agent's guards unchanged. Nothing is repeated and no other
//! target is asked; the answer is judged by its status and by what an error in it says.

use std::{sync::Arc, time::Duration};

use axum::{
    Extension,
    body::{Body, Bytes, HttpBody as _},
    extract::{Path, Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    response::Response,
};
use futures_util::{StreamExt as _, stream};

use crate::{
    model::{
        contract,
        facts::{Ending, TimeoutKind},
        reply::AttemptFailure,
    },
    policy::verdict::Keyed,
    runtime::{outside::Admission, refusal::failure_envelope},
    serve::{
        access::caller::Caller,
        answer::{body::too_large, failure::Failure},
        caps::Place,
        state::AppState,
    },
    transport::{pass_on::PassedOn, wire::ERROR_BODY_BYTES_MAX},
};

use super::models::Gateway;

/// Headers of one connection, not of a message.
const HOP_BY_HOP: [HeaderName; 7] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// Passes one request through.
pub(crate) async fn pass(
    State(state): State<AppState>,
    Extension(gateway): Extension<Arc<Gateway>>,
    Path((name, _)): Path<(String, String)>,
    caller: Caller,
    request: Request,
) -> Result<Response, Failure> {
    state.ending.check()?;
    let (agent, service) = gateway
        .service_of(&name)
        .ok_or_else(|| Failure::not_found(format_args!("agent {name:?} with a service of its own")))?;
    let path = path_of(&request, &name)?;
    let place = state.caps.call()?;
    let runtime = state.runtime().await?;
    let handle = runtime.agent(agent.as_str()).ok_or_else(|| Failure::not_found(format_args!("agent {name:?}")))?;
    let mut admission = handle.enter(&caller.call_context(&*runtime.clock(), None))?;
    let (longest, slow_call) =
        (handle.attempt_timeout().min(caller.deadline.unwrap_or(Duration::MAX)), handle.slow_call());
    drop(runtime);
    let (parts, body) = request.into_parts();
    let headers = onward(&parts.headers, &caller, &state);
    let bytes_max = state.settings.body_bytes_max;
    if body.size_hint().lower() > bytes_max {
        admission.finish(Ending::CallerShape);
        return Err(too_large(bytes_max));
    }
    let body = (!body.is_end_stream()).then(|| bounded(body, bytes_max));
    let sent = service.pass_on(parts.method, &path, headers, body);
    let answered = tokio::time::timeout(longest, grown_old_after(slow_call, &mut admission, sent)).await;
    let late = || {
        let ending = Ending::Timeout { timeout: TimeoutKind::Attempt };
        Err(AttemptFailure::new(ending, format!("no answer within {} s", longest.as_secs_f64())))
    };
    match answered.unwrap_or_else(|_| late()) {
        Ok(passed) => Ok(answer_of(passed, admission, place, agent.as_str(), slow_call)),
        Err(failure) => {
            admission.finish(failure.ending.clone());
            Err(failure_envelope(&failure, agent.as_str(), Keyed::No, 1).into())
        }
    }
}

/// The path behind the agent's name as it was sent, with its query. Nothing in it can climb out of the service's own base.
fn path_of(request: &Request, name: &str) -> Result<String, Failure> {
    let path = request.uri().path();
    // Behind `/agents/` and the name, however that was encoded.
    let rest = path.splitn(4, '/').nth(3).unwrap_or_default();
    let climbs = rest.split(['/', '\\']).any(|segment| {
        let plain = segment.to_ascii_lowercase().replace("%2e", ".");
        plain == "." || plain == ".."
    });
    let lower = rest.to_ascii_lowercase();
    if climbs || lower.contains("%2f") || lower.contains("%5c") || rest.contains('\\') {
        return Err(Failure::not_found(format_args!("such path behind agent {name:?}")));
    }
    let query = request.uri().query().map_or_else(String::new, |query| format!("?{query}"));
    Ok(format!("/{rest}{query}"))
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

/// The caller's body as it comes, cut off where it grows too large.
fn bounded(body: Body, bytes_max: u64) -> impl stream::Stream<Item = Result<Bytes, std::io::Error>> + Send + 'static {
    let mut bytes = 0_u64;
    body.into_data_stream().map(move |piece| {
        let piece = piece.map_err(std::io::Error::other)?;
        bytes = bytes.saturating_add(piece.len() as u64);
        if bytes > bytes_max { Err(std::io::Error::other("the body is too large")) } else { Ok(piece) }
    })
}

/// Waits for `work`, and counts it as slow from the threshold on.
async fn grown_old_after<T>(slow_call: Duration, admission: &mut Admission, work: impl Future<Output = T>) -> T {
    tokio::pin!(work);
    // Exactly the threshold is not slow yet.
    if let Ok(done) = tokio::time::timeout(slow_call.saturating_add(Duration::from_millis(1)), &mut work).await {
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
    slow_call: Duration,
    #[allow(dead_code, reason = "held for its drop")]
    place: Place,
}

fn answer_of(passed: PassedOn, admission: Admission, place: Place, agent: &str, slow_call: Duration) -> Response {
    let status = StatusCode::from_u16(passed.status()).unwrap_or(StatusCode::BAD_GATEWAY);
    let mut headers = without_hop_by_hop(&passed.headers);
    if let Ok(value) = HeaderValue::from_str(agent) {
        headers.insert(HeaderName::from_static(contract::AGENT), value);
    }
    let passing = Passing { passed, admission: Some(admission), kept: Vec::new(), slow_call, place };
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
        match grown_old_after(self.slow_call, admission, self.passed.piece()).await {
            Ok(Some(piece)) => {
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
