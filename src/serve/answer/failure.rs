//! An error as an answer: the one way from an envelope to HTTP. Decides status, headers and shape; decides no code.

use std::sync::Arc;

use axum::{
    body::Body,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::Value;

use crate::{
    model::{
        contract,
        envelope::{Envelope, ErrorCode},
    },
    runtime::{call::CallError, journal::JournalError},
};

/// What the caller's own layers may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TryAgain {
    /// As the envelope says.
    AsSaid,
    /// Not now: the attempts are used up.
    Exhausted,
}

/// An error on its way out.
#[derive(Debug, Clone, PartialEq)]
pub struct Failure {
    /// What is wrong.
    pub envelope: Box<Envelope>,
    /// What the caller's own layers may do.
    pub try_again: TryAgain,
}

/// How a surface that is not ours writes errors down; put into an answer's extensions by that surface's routes.
#[derive(Clone)]
pub struct ErrorShape(pub Arc<dyn Fn(&Envelope) -> Value + Send + Sync>);

impl Failure {
    /// An error of this code.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Envelope::new(code, message).into()
    }

    /// An error of this code under another 4xx or 5xx than the code's own.
    pub fn with_status(code: ErrorCode, status: StatusCode, message: impl Into<String>) -> Self {
        let mut envelope = Envelope::new(code, message);
        envelope.http_status = status.as_u16();
        envelope.into()
    }

    /// The request is not valid.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::InvalidRequest, message)
    }

    /// There is no such thing, or it is somebody else's: the two are not told apart.
    pub fn not_found(what: impl std::fmt::Display) -> Self {
        Self::new(ErrorCode::NotFound, format!("there is no {what}"))
    }

    /// This caller may not do that.
    pub fn forbidden(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::Forbidden, message)
    }

    /// A cap is reached; somebody else's end frees a place soon.
    pub fn busy(what: &str) -> Self {
        Envelope::new(ErrorCode::LoadShed, format!("too many {what} at once")).with_retry_after(1.0).into()
    }

    /// This node is stopping.
    pub fn shutting_down() -> Self {
        Envelope::new(ErrorCode::ShuttingDown, "this node is stopping").with_retry_after(1.0).into()
    }

    /// A fault of ours. `what` goes to the log, never out.
    pub fn internal(what: impl std::fmt::Display) -> Self {
        tracing::error!("{what}");
        Self::new(ErrorCode::Internal, "a fault of this service; its log has more under the trace id")
    }

    /// The same with one more fact in `details`.
    #[must_use]
    pub fn with_detail(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.envelope = Box::new(self.envelope.with_detail(key, value));
        self
    }

    /// The answer in the given shape.
    pub(super) fn to_response(&self, shape: Option<&ErrorShape>) -> Response {
        let envelope = &self.envelope;
        let body = shape.map_or_else(|| envelope.to_wire(), |shape| (shape.0)(envelope));
        let status = StatusCode::from_u16(envelope.http_status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut answer = Response::new(Body::from(body.to_string()));
        *answer.status_mut() = status;
        let headers = answer.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(seconds) = envelope.retry_after
            && let Ok(value) = HeaderValue::from_str(&format!("{:.0}", seconds.ceil()))
        {
            headers.insert(header::RETRY_AFTER, value);
        }
        if !envelope.helps_to_wait() || self.try_again == TryAgain::Exhausted {
            headers.insert(contract::SHOULD_RETRY, HeaderValue::from_static("false"));
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"watertight\""));
        }
        answer
    }
}

impl From<Envelope> for Failure {
    fn from(envelope: Envelope) -> Self {
        Box::new(envelope).into()
    }
}

impl From<Box<Envelope>> for Failure {
    fn from(envelope: Box<Envelope>) -> Self {
        Self { envelope, try_again: TryAgain::AsSaid }
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        let try_again = if error.exhausted { TryAgain::Exhausted } else { TryAgain::AsSaid };
        Self { envelope: error.envelope, try_again }
    }
}

impl From<JournalError> for Failure {
    fn from(error: JournalError) -> Self {
        if !matches!(error, JournalError::Closed | JournalError::NoFile { .. }) {
            tracing::error!(%error, "the journal");
        }
        error.to_envelope().into()
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let mut answer = self.to_response(None);
        // The outermost layer writes it again, with the request's trace id and language.
        answer.extensions_mut().insert(self);
        answer
    }
}
