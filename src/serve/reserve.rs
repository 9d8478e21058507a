//! The reserve of connections: who came when every usual one was taken is answered health, metrics, questions and operators' acts, and is
//! told to come again with everything else. Takes no connection in.

use axum::{
    extract::{MatchedPath, Request},
    http::Method,
    middleware::Next,
    response::{IntoResponse as _, Response},
};

use super::{answer::failure::Failure, listener::Seat};

/// Lets a request through that may be answered where it came in.
pub(super) async fn keep_reserve(request: Request, next: Next) -> Response {
    let is_reserve = request.extensions().get::<Seat>() == Some(&Seat::Reserve);
    if is_reserve && !is_answered(&request) {
        return Failure::busy("connections").into_response();
    }
    next.run(request).await
}

fn is_answered(request: &Request) -> bool {
    let Some(path) = request.extensions().get::<MatchedPath>() else { return false };
    let waits = || request.uri().query().is_some_and(|query| query.split('&').any(|pair| pair.starts_with("wait=")));
    match (request.method(), path.as_str()) {
        (
            &Method::GET | &Method::HEAD,
            "/healthz" | "/readyz" | "/metrics" | "/v1/runs" | "/v1/runs/{id}" | "/v1/runs/{id}/why" | "/v1/agents"
            | "/v1/callers" | "/v1/models" | "/v1/models/{model}" | "/v1/usage" | "/v1/dead-letters",
        ) => true,
        (&Method::GET, "/v1/runs/{id}/result") => !waits(),
        (
            &Method::POST,
            "/v1/agents/{name}/breaker"
            | "/v1/agents/{name}/drain"
            | "/v1/callers/{name}/guard"
            | "/v1/dead-letters/{id}/replay"
            | "/v1/runs/{id}/cancel",
        ) => true,
        (&Method::DELETE, "/v1/runs/{id}" | "/v1/tenants/{tenant}/data") => true,
        _ => false,
    }
}
