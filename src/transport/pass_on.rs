//! Requests that go to a provider as they came, and answers that come back as they came, whatever their status. One exchange, nothing
//! repeated but a harmless question that a kept connection lost as it closed; what an answer means is for whoever passes it on to ask.

use bytes::Bytes;
use reqwest::{
    Method,
    header::{ACCEPT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderValue},
};

use super::{
    client::ProviderClient,
    error_body::{AnswerHead, Beside, ErrorPointers, failure_inside_success, failure_of_answer},
    kept_connection::execute,
    mask::Mask,
    secret::scrub_headers,
    wire::{Incoming, failure_of_error},
};
use crate::model::{loose_json, reply::AttemptFailure};

/// An answer on its way back.
#[derive(Debug)]
pub struct PassedOn {
    /// Its headers.
    pub headers: HeaderMap,
    head: AnswerHead,
    /// The request asked for no body.
    is_head_only: bool,
    incoming: Incoming,
    /// Over the body of an error: some servers repeat the key that they were sent.
    mask: Option<Mask>,
}

impl ProviderClient {
    /// Sends one request as it is; only what belongs to the provider (its key, its own headers and parameters) is laid over it.
    /// Dropping the future, or later the answer, closes the connection.
    pub async fn pass_on(
        &self,
        method: Method,
        path_and_query: &str,
        mut headers: HeaderMap,
        body: Option<Bytes>,
    ) -> Result<PassedOn, AttemptFailure> {
        headers.extend(self.headers.clone());
        // So that its usage and its errors can be read; what comes packed all the same goes back so.
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        let http = self.as_sent();
        let (is_head_only, url) = (method == Method::HEAD, self.url(path_and_query));
        // What a service does for the others, and whether it may do it twice, is not ours to know.
        let may_go_again = method.is_idempotent();
        let request = http.request(method, url).headers(headers);
        let first = match body {
            Some(body) => request.body(body).build(),
            None => request.build(),
        };
        let first = first.map_err(failure_of_error)?;
        let copy = may_go_again.then(|| first.try_clone()).flatten();
        let again = || copy.as_ref()?.try_clone();
        let sent = execute(http, first, again);
        let incoming = Incoming::answer_to(sent, None).await.map_err(|failure| self.scrub(failure))?;
        let mut headers = incoming.headers().clone();
        scrub_headers(&mut headers, &self.secrets);
        let head = incoming.head();
        let mask = (head.status >= 400 && !self.secrets.is_empty()).then(|| Mask::new(&self.secrets));
        Ok(PassedOn { headers, head, is_head_only, incoming, mask })
    }
}

impl PassedOn {
    /// The status.
    pub fn status(&self) -> u16 {
        self.head.status
    }

    /// Whether more than the status says how it ended: errors and JSON do, pictures do not.
    pub fn is_telling(&self) -> bool {
        let kind = self.headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
        self.head.status >= 400 || kind.to_ascii_lowercase().windows(4).any(|part| part == b"json")
    }

    /// How many bytes its body has, where the head says so: whoever sends it on may stop asking after the last of them.
    pub fn bytes(&self) -> Option<u64> {
        if self.is_head_only || matches!(self.head.status, 204 | 304) {
            return Some(0);
        }
        self.headers.get(CONTENT_LENGTH)?.to_str().ok()?.trim().parse().ok()
    }

    /// The next piece of the body, `None` at its end.
    pub async fn piece(&mut self) -> Result<Option<Bytes>, AttemptFailure> {
        let Some(mask) = &mut self.mask else { return self.incoming.piece().await };
        while let Some(piece) = self.incoming.piece().await? {
            let seen = mask.push(&piece);
            if !seen.is_empty() {
                return Ok(Some(seen));
            }
        }
        let rest = mask.finish();
        Ok((!rest.is_empty()).then_some(rest))
    }

    /// How a complete answer failed, by its status and by as much of its body as was kept; `None` if it did well.
    pub fn failure(&self, kept: &[u8]) -> Option<AttemptFailure> {
        let pointers = ErrorPointers::default();
        if self.head.status >= 400 {
            return Some(failure_of_answer(self.head, kept, &pointers));
        }
        let value = self.is_telling().then(|| loose_json::read(kept).ok()).flatten();
        // What a service of its own kind may say in a good answer, nobody knows.
        value.and_then(|value| failure_inside_success(self.head, &value, &pointers, Beside::Promised))
    }
}
