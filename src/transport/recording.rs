//! One exchange as a client heard it: what was sent, and the answer as it came, up to a limit. Lays nothing out and hides nothing until
//! it is read.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use reqwest::{Method, Request, Response, StatusCode, Url, Version, header::HeaderMap};

use super::{
    hiding::{Hiding, signatures_in},
    secret::Secret,
};

/// What was sent.
pub(super) struct Sent {
    pub(super) method: Method,
    pub(super) url: Url,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    secrets: Arc<Vec<Secret>>,
}

impl Sent {
    /// This request, by a client with these secrets.
    pub(super) fn of(request: &Request, body: Bytes, secrets: Arc<Vec<Secret>>) -> Self {
        let (method, url, headers) = (request.method().clone(), request.url().clone(), request.headers().clone());
        Self { method, url, headers, body, secrets }
    }

    /// What must not be seen of this exchange.
    pub(super) fn hiding(&self) -> Hiding {
        Hiding::of(&self.headers, &self.secrets).and(signatures_in(&self.body))
    }
}

/// The head of an answer.
pub(super) struct Head {
    pub(super) version: Version,
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
}

/// What came back so far.
#[derive(Default)]
pub(super) struct Heard {
    pub(super) head: Option<Head>,
    pub(super) body: Vec<u8>,
    /// More came than is kept.
    pub(super) is_cut: bool,
    pub(super) broke: Option<String>,
}

/// One exchange that is being heard. All clones are one.
#[derive(Clone)]
pub(super) struct Recording(Arc<Inner>);

struct Inner {
    sent: Sent,
    bytes_max: usize,
    heard: Mutex<Heard>,
}

impl fmt::Debug for Recording {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Recording")
    }
}

impl Recording {
    /// Begins: this is about to be sent. At most `bytes_max` of the answer's body are kept.
    pub(super) fn begin(sent: Sent, bytes_max: usize) -> Self {
        Self(Arc::new(Inner { sent, bytes_max, heard: Mutex::default() }))
    }

    /// What was sent.
    pub(super) fn sent(&self) -> &Sent {
        &self.0.sent
    }

    /// What came back so far.
    pub(super) fn heard(&self) -> MutexGuard<'_, Heard> {
        // What is behind this lock is written in one step each.
        self.0.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The head of the answer came.
    pub(super) fn head(&self, response: &Response) {
        let (version, status, headers) = (response.version(), response.status(), response.headers().clone());
        self.heard().head = Some(Head { version, status, headers });
    }

    /// More of its body came.
    pub(super) fn piece(&self, bytes: &[u8]) {
        let mut heard = self.heard();
        let room = self.0.bytes_max - heard.body.len();
        let kept = bytes.get(..room).unwrap_or(bytes);
        heard.body.extend_from_slice(kept);
        heard.is_cut |= kept.len() < bytes.len();
    }

    /// It came no further.
    pub(super) fn broke(&self, why: &str) {
        self.heard().broke = Some(why.to_owned());
    }
}

#[cfg(test)]
impl Recording {
    /// An exchange whose answer began well, of a client with this secret.
    pub(super) fn answered(secret: &str, bytes_max: usize) -> Self {
        let sent = Sent {
            method: Method::POST,
            url: Url::parse("http://127.0.0.1/").unwrap(),
            headers: HeaderMap::new(),
            body: Bytes::new(),
            secrets: Arc::new(vec![Secret::new(secret)]),
        };
        let recording = Self::begin(sent, bytes_max);
        let head = Head { version: Version::HTTP_11, status: StatusCode::OK, headers: HeaderMap::new() };
        recording.heard().head = Some(head);
        recording
    }
}
