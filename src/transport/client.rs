//! One HTTP client a provider: where it is, what is sent with every request, and what may never be seen of it.
//! Sends one request and hands back the head of a good answer; nothing here follows or waits for a second one, and nothing is repeated but
//! what a kept connection lost as it closed.

use std::{
    cmp::Reverse,
    fmt,
    sync::{Arc, OnceLock},
    time::Duration,
};

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use futures_util::stream;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use url::Url;

use crate::{
    model::{facts::Ending, reply::AttemptFailure},
    runtime::{capture::CaptureSlot, tally::AnswerForm},
};

use super::{
    captured::HEARD_BYTES_MAX,
    error_body::{AnswerHead, ErrorPointers, failure_of_answer},
    http_client::{Packed, http_client},
    kept_connection::execute,
    outgoing::{Ears, Outgoing},
    recording::{Recording, Sent},
    secret::{Secret, scrub_failure},
    tap::{TAP_BYTES_MAX, Tap},
    vendor_budget::VendorWords,
    wire::{Incoming, chain, failure_of_error},
};

/// The most bytes of a body, counted while it is read and after it is unpacked.
pub const BODY_BYTES_MAX: usize = 16 * 1024 * 1024;
/// A stream may be so many times larger: each piece of its text comes in a frame of its own.
const STREAM_OVERHEAD: usize = 64;
/// The most bytes of all headers of an answer over HTTP/2.
pub const HEADER_BYTES_MAX: u32 = 64 * 1024;
/// Idle connections are let go before common servers (llama.cpp, uvicorn, Node: 5 s) close them under a request.
pub const POOL_IDLE: Duration = Duration::from_secs(4);

/// Where a provider's key goes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum KeyPlace {
    /// `authorization: Bearer <key>`.
    #[default]
    Bearer,
    /// A header of this name holds the key alone (`x-api-key`, `api-key`).
    Header(String),
    /// A query parameter of this name holds it.
    Query(String),
}

/// What a provider's client is made of.
#[derive(Clone, PartialEq, Eq)]
pub struct ProviderOptions {
    /// Where it is; agents' paths are joined to it.
    pub base_url: String,
    /// The key that calls are made with.
    pub key: Option<Secret>,
    /// Where that key goes.
    pub key_place: KeyPlace,
    /// Sent with every request. Their values may hold keys, so all are kept secret.
    pub headers: Vec<(String, Secret)>,
    /// Query parameters of every request (`api-version`), after those of `base_url`. Their values are kept secret, as headers' are.
    pub query: Vec<(String, Secret)>,
    /// How long a connection may take, names and TLS included.
    pub connect_timeout: Duration,
    /// The largest answer; [`BODY_BYTES_MAX`] unless set.
    pub body_bytes_max: usize,
}

impl ProviderOptions {
    /// A provider at `base_url` without a key.
    pub fn at(base_url: &str) -> Self {
        Self {
            base_url: base_url.to_owned(),
            key: None,
            key_place: KeyPlace::default(),
            headers: Vec::new(),
            query: Vec::new(),
            connect_timeout: Duration::from_secs(2),
            body_bytes_max: BODY_BYTES_MAX,
        }
    }
}

/// Options that make no client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key} = {value}: {rule}")]
pub struct InvalidProvider {
    key: &'static str,
    value: String,
    rule: String,
}

impl InvalidProvider {
    fn new(key: &'static str, value: &str, rule: impl Into<String>) -> Self {
        Self { key, value: format!("{value:?}"), rule: rule.into() }
    }
}

/// The head of a good (2xx) answer; the body is still to be read.
#[derive(Debug)]
pub struct Answer {
    /// Status and what the headers say.
    pub head: AnswerHead,
    /// The answer is an event stream by its content type.
    pub is_event_stream: bool,
    /// The answer is one JSON value by its content type.
    pub is_plain_json: bool,
    bytes_max: usize,
    incoming: Incoming,
}

impl fmt::Debug for ProviderOptions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let base_url = Url::parse(&self.base_url).map_or_else(|_| "no URL".to_owned(), |url| shown(&url));
        formatter
            .debug_struct("ProviderOptions")
            .field("base_url", &base_url)
            .field("key", &self.key)
            .field("key_place", &self.key_place)
            .field("headers", &self.headers)
            .field("query", &self.query)
            .field("connect_timeout", &self.connect_timeout)
            .field("body_bytes_max", &self.body_bytes_max)
            .finish()
    }
}

/// The client of one provider.
#[derive(Clone)]
pub struct ProviderClient {
    http: reqwest::Client,
    as_sent: Arc<OnceLock<reqwest::Client>>,
    connect_timeout: Duration,
    base_url: Url,
    pub(super) headers: HeaderMap,
    pub(super) secrets: Arc<Vec<Secret>>,
    body_bytes_max: usize,
    /// Who listens, if anybody does; the same for all clones.
    tap: Arc<ArcSwapOption<Tap>>,
    /// What the provider said last of its own budgets; the same for all clones.
    pub(super) vendor: Arc<VendorWords>,
}

impl fmt::Debug for ProviderClient {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ProviderClient").field("base_url", &shown(&self.base_url)).finish_non_exhaustive()
    }
}

impl ProviderClient {
    /// Builds the client. Refused: a URL that is none or has no http scheme, headers that cannot be sent, a parameter without a name.
    pub fn try_new(options: &ProviderOptions) -> Result<Self, InvalidProvider> {
        let base_url = with_query(checked_url(&options.base_url)?, &all_parameters(options))?;
        let headers = checked_headers(options)?;
        let connect_timeout = options.connect_timeout;
        let http = http_client(&base_url, connect_timeout, Packed::Unpacked)
            .map_err(|error| InvalidProvider::new("base_url", &shown(&base_url), chain(&error.without_url())))?;
        let secrets = Arc::new(secrets_of(options, &base_url));
        let body_bytes_max = options.body_bytes_max;
        let (as_sent, tap, vendor) = Default::default();
        Ok(Self { http, as_sent, connect_timeout, base_url, headers, secrets, body_bytes_max, tap, vendor })
    }

    /// What tells its provider from every other one; it may hold secrets.
    pub(super) fn stands_at(&self) -> Arc<str> {
        self.base_url.as_str().into()
    }

    /// The client for what is handed on as it comes; made when it is first wanted.
    pub(super) fn as_sent(&self) -> &reqwest::Client {
        // One like it was made before: where no second one can be had, the first one hands on all but packed bodies as they come.
        let made = || http_client(&self.base_url, self.connect_timeout, Packed::AsSent);
        self.as_sent.get_or_init(|| made().unwrap_or_else(|_| self.http.clone()))
    }

    /// From now on `tap` hears every exchange of this client and of its clones; a tap before it no longer does.
    pub fn attach(&self, tap: &Tap) {
        self.tap.store(Some(Arc::new(tap.clone())));
    }

    /// The URL of `path` at this provider. The base's own path and query are kept; `path` can never leave its host.
    pub fn url(&self, path: &str) -> Url {
        let (path, query) = path.split_once('?').map_or((path, None), |(path, query)| (path, Some(query)));
        let mut url = self.base_url.clone();
        if !path.is_empty() {
            let joined =
                format!("{}/{}", self.base_url.path().trim_end_matches('/'), path.strip_prefix('/').unwrap_or(path));
            url.set_path(&joined);
        }
        let queries: Vec<&str> = [self.base_url.query(), query].into_iter().flatten().collect();
        url.set_query((!queries.is_empty()).then(|| queries.join("&")).as_deref());
        url
    }

    /// Sends one request. A good answer comes back with its body unread; every other one is a failure. Dropping the future, or
    /// later the answer, closes the connection and so ends the work of the other side.
    pub async fn send(&self, outgoing: Outgoing, pointers: &ErrorPointers) -> Result<Answer, AttemptFailure> {
        self.send_heard(outgoing, pointers, Ears::default()).await
    }

    /// The same, and `ears` follow it.
    pub async fn send_heard(
        &self,
        outgoing: Outgoing,
        pointers: &ErrorPointers,
        ears: Ears<'_>,
    ) -> Result<Answer, AttemptFailure> {
        let request = self.request(&outgoing, ears.body(outgoing.body.clone())).map_err(failure_of_error)?;
        let recording = self.recording(&request, outgoing.body.clone(), ears.capture);
        // Whoever counts has heard that it left.
        let again = || self.request(&outgoing, outgoing.body.clone().map(reqwest::Body::from)).ok();
        let incoming = Incoming::answer_to(execute(&self.http, request, again), recording).await?;
        ears.head(incoming.headers());
        let head = incoming.head();
        let is_event_stream = incoming.is_of_type("text/event-stream");
        let is_stream = is_event_stream || incoming.is_of_type("application/x-ndjson");
        ears.answer(if is_stream { AnswerForm::Stream } else { AnswerForm::Whole });
        match head.status {
            200..=299 => Ok(Answer {
                head,
                is_event_stream,
                is_plain_json: incoming.is_of_type("application/json"),
                bytes_max: self.body_bytes_max,
                incoming,
            }),
            400.. => Err(failure_of_answer(head, &incoming.error_body().await, pointers)),
            status => Err(AttemptFailure {
                status: Some(status),
                ..AttemptFailure::new(Ending::BadReply, format!("HTTP {status}: neither an answer nor an error"))
            }),
        }
    }

    fn request(&self, outgoing: &Outgoing, body: Option<reqwest::Body>) -> Result<reqwest::Request, reqwest::Error> {
        let mut headers = self.headers.clone();
        headers.extend(outgoing.headers.clone());
        let mut request = self.http.request(outgoing.method.clone(), self.url(&outgoing.path)).headers(headers);
        if let Some(body) = body {
            request = request.body(body);
        }
        request.build()
    }

    /// An ear at the exchange, if anybody listens.
    fn recording(
        &self,
        request: &reqwest::Request,
        body: Option<Bytes>,
        slot: Option<&CaptureSlot>,
    ) -> Option<Recording> {
        let tap = self.tap.load();
        let bytes_max = match (slot, tap.as_ref()) {
            (None, None) => return None,
            (None, Some(_)) => TAP_BYTES_MAX,
            (Some(_), _) => HEARD_BYTES_MAX,
        };
        let recording =
            Recording::begin(Sent::of(request, body.unwrap_or_default(), Arc::clone(&self.secrets)), bytes_max);
        if let Some(slot) = slot {
            slot.put(Arc::new(recording.clone()));
        }
        if let Some(tap) = tap.as_ref() {
            tap.hear(&recording);
        }
        Some(recording)
    }

    /// The same failure without any of this provider's secrets: some servers repeat the key they were sent.
    pub fn scrub(&self, failure: AttemptFailure) -> AttemptFailure {
        scrub_failure(failure, &self.secrets)
    }
}

impl Answer {
    /// The whole body.
    pub async fn into_body(mut self) -> Result<Vec<u8>, AttemptFailure> {
        let status = self.head.status;
        let mut body = Vec::new();
        while let Some(piece) = self.incoming.piece().await? {
            if body.len() + piece.len() > self.bytes_max {
                return Err(too_large(status, self.bytes_max));
            }
            body.extend_from_slice(&piece);
        }
        Ok(body)
    }

    /// The body as it comes.
    pub fn into_pieces(self) -> impl futures_util::Stream<Item = Result<Bytes, AttemptFailure>> + Send + 'static {
        let (status, bytes_max) = (self.head.status, self.bytes_max.saturating_mul(STREAM_OVERHEAD));
        stream::unfold((self.incoming, 0_usize), move |(mut incoming, before)| async move {
            let piece = incoming.piece().await.transpose()?;
            let bytes = before.saturating_add(piece.as_ref().map_or(0, Bytes::len));
            let piece = if bytes > bytes_max { Err(too_large(status, bytes_max)) } else { piece };
            Some((piece, (incoming, bytes)))
        })
    }
}

fn too_large(status: u16, bytes_max: usize) -> AttemptFailure {
    let message = format!("the answer is larger than {bytes_max} bytes");
    AttemptFailure { status: Some(status), ..AttemptFailure::new(Ending::BadReply, message) }
}

fn checked_url(text: &str) -> Result<Url, InvalidProvider> {
    // The text may hold a password, so it is not repeated.
    let refused = |rule: String| InvalidProvider { key: "base_url", value: "(not shown)".to_owned(), rule };
    let url = Url::parse(text).map_err(|error| refused(format!("is no URL: {error}")))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(refused(format!("must begin with http:// or https://, not {}:", url.scheme())));
    }
    Ok(url)
}

/// The configured parameters, and the key where it is one.
fn all_parameters(options: &ProviderOptions) -> Vec<(String, Secret)> {
    let key = match (&options.key_place, &options.key) {
        (KeyPlace::Query(name), Some(key)) => Some((name.clone(), key.clone())),
        _ => None,
    };
    options.query.iter().cloned().chain(key).collect()
}

fn with_query(mut url: Url, query: &[(String, Secret)]) -> Result<Url, InvalidProvider> {
    for (name, value) in query {
        if name.is_empty() {
            return Err(InvalidProvider::new("query", name, "a parameter must have a name"));
        }
        url.query_pairs_mut().append_pair(name, value.expose());
    }
    Ok(url)
}

fn checked_headers(options: &ProviderOptions) -> Result<HeaderMap, InvalidProvider> {
    let mut headers = HeaderMap::new();
    if let Some(key) = &options.key {
        match &options.key_place {
            KeyPlace::Bearer => {
                insert_secret(&mut headers, AUTHORIZATION.as_str(), &format!("Bearer {}", key.expose()))?;
            }
            KeyPlace::Header(name) => insert_secret(&mut headers, name, key.expose())?,
            KeyPlace::Query(_) => {}
        }
    }
    for (name, value) in &options.headers {
        insert_secret(&mut headers, name, value.expose())?;
    }
    Ok(headers)
}

fn insert_secret(headers: &mut HeaderMap, name: &str, value: &str) -> Result<(), InvalidProvider> {
    let (header, sent) = header_of(name, value).map_err(|rule| InvalidProvider::new("headers", name, rule))?;
    headers.insert(header, sent);
    Ok(())
}

/// A configured header as it is sent, or the rule that it breaks.
pub(super) fn header_of(name: &str, value: &str) -> Result<(HeaderName, HeaderValue), &'static str> {
    let header = HeaderName::from_bytes(name.as_bytes()).map_err(|_| "is no name of a header")?;
    let mut sent = HeaderValue::from_str(value).map_err(|_| "its value holds characters that no header can")?;
    sent.set_sensitive(true);
    Ok((header, sent))
}

fn secrets_of(options: &ProviderOptions, base_url: &Url) -> Vec<Secret> {
    let mut secrets: Vec<Secret> = options.key.iter().cloned().collect();
    secrets.extend(options.headers.iter().map(|(_, value)| value.clone()));
    secrets.extend(base_url.password().map(Secret::new));
    secrets.extend(base_url.query_pairs().map(|(_, value)| Secret::new(&value)));
    // As they stand in the URL, which a server may repeat.
    let encoded = base_url.query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
    secrets.extend(encoded.map(|(_, value)| Secret::new(value)));
    // Of two where one begins with the other, the longer is looked for first: nothing of it may stay behind.
    secrets.sort_by_key(|secret| Reverse(secret.expose().len()));
    secrets.dedup();
    secrets
}

/// A URL without what may be secret in it: user, password, query.
pub(super) fn shown(url: &Url) -> String {
    let authority = &url[url::Position::BeforeHost..url::Position::AfterPath];
    format!("{}://{authority}", url.scheme())
}

#[cfg(test)]
mod tests;
