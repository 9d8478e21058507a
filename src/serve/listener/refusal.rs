//! What a listener says when it refuses: the envelope, as an answer of HTTP or as raw text for a socket that nobody serves.

use axum::{
    body::Body,
    http::{HeaderMap, HeaderValue, Response, StatusCode, header},
    response::IntoResponse as _,
};

use crate::{
    model::{
        contract,
        envelope::{Envelope, ErrorCode},
        language::Language,
    },
    serve::answer::{failure::Failure, trace::RequestFacts},
};

/// A request that is refused for its own sake, under the status that says why.
pub(super) fn invalid(status: StatusCode, message: impl Into<String>) -> Envelope {
    let mut envelope = Envelope::new(ErrorCode::InvalidRequest, message);
    envelope.http_status = status.as_u16();
    envelope
}

/// No place for one more connection.
pub(super) fn no_place(what: &str) -> Envelope {
    Envelope::new(ErrorCode::LoadShed, format!("too many connections {what}"))
        .with_detail("reason", "connections")
        .with_retry_after(1.0)
}

/// The envelope as an answer to the request of these facts.
pub(super) fn answer(envelope: Envelope, facts: &RequestFacts) -> Response<Body> {
    Failure::from(told(envelope, facts)).into_response()
}

fn told(envelope: Envelope, facts: &RequestFacts) -> Envelope {
    let mut envelope = envelope.in_language(facts.language);
    envelope.trace_id.get_or_insert_with(|| facts.trace_id.clone());
    envelope
}

/// The envelope as an answer after which an HTTP/1 connection ends: what is left of the request is not read.
pub(super) fn last_answer(envelope: Envelope, facts: &RequestFacts) -> Response<Body> {
    let mut answer = answer(envelope, facts);
    answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    answer
}

/// The envelope as the text of an HTTP/1.1 answer that ends the connection. Nothing is known of whoever reads it.
pub(super) fn text(envelope: Envelope, language: Language) -> Vec<u8> {
    let envelope = told(envelope, &RequestFacts::of(&HeaderMap::new(), language));
    let status = StatusCode::from_u16(envelope.http_status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let body = envelope.to_wire().to_string();
    let mut head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n",
        body.len()
    );
    if let Some(seconds) = envelope.retry_after {
        head.push_str(&format!("retry-after: {:.0}\r\n", seconds.ceil()));
    }
    if !envelope.helps_to_wait() {
        head.push_str(&format!("{}: false\r\n", contract::SHOULD_RETRY));
    }
    format!("{head}\r\n{body}").into_bytes()
}
