//! `ANY /agents/{name}/{path}`: an existing service's bytes pass through its agent's guards unchanged. Nothing is repeated and no other
//! target is asked; the answer is judged by its status and by what an error in it says.

use std::sync::Arc;

use axum::{
    Extension,
    body::HttpBody as _,
    extract::{Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    response::Response,
};

use crate::{
    model::{contract, facts::Ending, reply::AttemptFailure},
    policy::verdict::Keyed,
    runtime::{outside::Part, refusal::failure_envelope},
    serve::{
        access::caller::Caller,
        answer::{body::read_whole, failure::Failure, query::InPath},
        state::AppState,
    },
};

use super::{models::Gateway, pass_tokens::asked_of, passing::Passing};

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
    caller: Caller,
    InPath(ServicePath { name }): InPath<ServicePath>,
    request: Request,
) -> Result<Response, Failure> {
    state.ending.check()?;
    let (agent, service) = gateway
        .service_of(&name)
        .ok_or_else(|| Failure::not_found(format_args!("agent {name:?} with a service of its own")))?;
    let path = path_of(&request, &name)?;
    let place = state.caps.call(caller.asker().as_deref())?;
    let (parts, body) = request.into_parts();
    let is_empty = body.is_end_stream();
    // Before anything is taken: how a client sends, and how long it takes to, is its own and says nothing of the agent.
    let body = read_whole(&state, body, state.settings.body_bytes_max).await?;
    let runtime = state.runtime().await?;
    let handle = runtime.agent(agent.as_str()).ok_or_else(|| Failure::not_found(format_args!("agent {name:?}")))?;
    let mut context = caller.call_context(&*runtime.clock(), None);
    if handle.asks_for_size() {
        context.asked = Some(asked_of(&parts.method, &path, &body.bytes));
    }
    // Whoever leaves meanwhile drops this, and with it the place in the line.
    let mut admission = handle.enter_in_line(&context).await?;
    drop(context);
    drop(runtime);
    let headers = onward(&parts.headers, &caller, &state);
    let sent = service.pass_on(parts.method, &path, headers, (!is_empty).then(|| body.bytes.clone()));
    let answered = tokio::select! {
        answered = admission.wait_for(Part::Head, sent) => answered,
        () = state.ending.last_words.cancelled() => return Err(Failure::shutting_down()),
    };
    drop(body);
    let failure = match answered {
        // Nobody asked for it: what would follow is no answer.
        Ok(passed) if passed.status() == StatusCode::SWITCHING_PROTOCOLS.as_u16() => {
            AttemptFailure::new(Ending::BadReply, "the service switches protocols, unasked")
        }
        Ok(passed) => {
            let passing =
                Passing::begin(passed, admission, agent, state.ending.last_words.clone(), caller.facts, place);
            return Ok(passing.into_answer());
        }
        Err(failure) => failure,
    };
    admission.fail(&failure);
    Err(failure_envelope(&failure, agent.as_str(), Keyed::No, 1).into())
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

/// Headers without those of one connection.
pub(super) fn without_hop_by_hop(given: &HeaderMap) -> HeaderMap {
    let named: Vec<String> = given
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(',').map(|name| name.trim().to_ascii_lowercase()))
        .collect();
    let stays = |name: &HeaderName| !HOP_BY_HOP.contains(name) && !named.iter().any(|other| other == name.as_str());
    given.iter().filter(|(name, _)| stays(name)).map(|(name, value)| (name.clone(), value.clone())).collect()
}
