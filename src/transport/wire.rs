//! What comes back over the wire: the head of an answer, its body piece by piece, and how each way a connection can break is told.
//! Who listens, if anybody does, hears every piece here. Judges nothing.

use std::{
    fmt,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use reqwest::{
    Response,
    header::{CONTENT_TYPE, HeaderValue},
};
use tokio::time::timeout;

use crate::model::{
    facts::{Ending, TimeoutKind},
    reply::AttemptFailure,
};

use super::{error_body::AnswerHead, kept_connection::is_close, recording::Recording};

/// The most bytes of an error answer that are read.
pub const ERROR_BODY_BYTES_MAX: usize = 256 * 1024;
/// How long the body of an error answer is waited for: its status has already said the most.
pub const ERROR_BODY_WAIT_MAX: Duration = Duration::from_secs(5);

/// An answer whose body is still to come.
pub(super) struct Incoming {
    response: Response,
    recording: Option<Recording>,
}

impl fmt::Debug for Incoming {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Incoming").field("status", &self.response.status()).finish_non_exhaustive()
    }
}

impl Incoming {
    /// Waits for the head of the answer.
    pub(super) async fn answer_to(
        sent: impl Future<Output = Result<Response, reqwest::Error>>,
        recording: Option<Recording>,
    ) -> Result<Self, AttemptFailure> {
        let answered = sent.await.map_err(failure_of_error);
        if let Some(recording) = &recording {
            match &answered {
                Ok(response) => recording.head(response),
                Err(failure) => recording.broke(&failure.message),
            }
        }
        Ok(Self { response: answered?, recording })
    }

    pub(super) fn head(&self) -> AnswerHead {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let headers: Vec<(&str, &[u8])> =
            self.response.headers().iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
        AnswerHead::read(self.response.status().as_u16(), &headers, u64::try_from(unix.as_millis()).unwrap_or(u64::MAX))
    }

    pub(super) fn headers(&self) -> &reqwest::header::HeaderMap {
        self.response.headers()
    }

    /// Whether its content type is this one, written in lower case.
    pub(super) fn is_of_type(&self, kind: &str) -> bool {
        let content_type = self.response.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes);
        content_type.is_some_and(|told| told.to_ascii_lowercase().starts_with(kind.as_bytes()))
    }

    /// The next piece of the body, `None` at its end.
    pub(super) async fn piece(&mut self) -> Result<Option<Bytes>, AttemptFailure> {
        let piece = self.response.chunk().await.map_err(failure_of_error);
        if let Some(recording) = &self.recording {
            match &piece {
                Ok(Some(bytes)) => recording.piece(bytes),
                Ok(None) => {}
                Err(failure) => recording.broke(&failure.message),
            }
        }
        piece
    }

    /// As much of an error answer's body as is worth waiting for.
    pub(super) async fn error_body(mut self) -> Vec<u8> {
        let mut body = Vec::new();
        let read = async {
            while let Ok(Some(piece)) = self.piece().await {
                body.extend_from_slice(&piece);
                if body.len() >= ERROR_BODY_BYTES_MAX {
                    break;
                }
            }
        };
        // What came before the time was up is still read.
        let _ = timeout(ERROR_BODY_WAIT_MAX, read).await;
        body.truncate(ERROR_BODY_BYTES_MAX);
        body
    }
}

/// How a request or answer that broke is told.
pub(super) fn failure_of_error(error: reqwest::Error) -> AttemptFailure {
    // Its URL may hold a key.
    let error = error.without_url();
    let ending = if error.is_connect() && error.is_timeout() {
        Ending::Timeout { timeout: TimeoutKind::Connect }
    } else if error.is_builder() {
        Ending::Internal
    } else {
        Ending::Network { connected: !error.is_connect() }
    };
    if is_close(&error) {
        let how = "the server closed the connection before it answered, or while it did";
        return AttemptFailure::new(ending, format!("{how} ({})", chain(&error)));
    }
    AttemptFailure::new(ending, chain(&error))
}

/// An error with all its causes, each once.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let words = inner.to_string();
        if !text.ends_with(&words) {
            text.push_str(": ");
            text.push_str(&words);
        }
        cause = inner.source();
    }
    text
}
