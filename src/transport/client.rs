//! One HTTP client a provider: where it is, what is sent with every request, and what may never be seen of it.
//! Sends one request and hands back the head of a good answer; nothing here repeats, follows or waits for a second one.

use std::{
    fmt,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use reqwest::{
    Method, Response,
    header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue},
};
use tokio::time::timeout;
use url::{Host, Url};

use crate::model::{
    facts::{Ending, TimeoutKind},
    reply::AttemptFailure,
};

use super::{
    error_body::{AnswerHead, ErrorPointers, failure_of_answer},
    secret::{Secret, scrub_failure},
};

/// The most bytes of a body, counted while it is read and after it is unpacked.
pub const BODY_BYTES_MAX: usize = 16 * 1024 * 1024;
/// The most bytes of an error answer that are read.
pub const ERROR_BODY_BYTES_MAX: usize = 256 * 1024;
/// How long the body of an error answer is waited for: its status has already said the most.
pub const ERROR_BODY_WAIT_MAX: Duration = Duration::from_secs(5);
/// The most headers of an answer.
pub const HEADERS_MAX: usize = 128;
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
    /// How long a connection may take, names and TLS included.
    pub connect_timeout: Duration,
}

impl ProviderOptions {
    /// A provider at `base_url` without a key.
    pub fn at(base_url: &str) -> Self {
        Self {
            base_url: base_url.to_owned(),
            key: None,
            key_place: KeyPlace::default(),
            headers: Vec::new(),
            connect_timeout: Duration::from_secs(2),
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

/// A request to a provider.
#[derive(Debug, Clone)]
pub struct Outgoing {
    /// Its method.
    pub method: Method,
    /// Joined to the provider's `base_url`; may bring a query.
    pub path: String,
    /// Sent beside the provider's own headers, which they may replace.
    pub headers: HeaderMap,
    /// Its body, JSON, if it has one.
    pub body: Option<Bytes>,
}

/// The head of a good (2xx) answer; the body is still to be read.
#[derive(Debug)]
pub struct Answer {
    /// Status and what the headers say.
    pub head: AnswerHead,
    /// The answer is an event stream by its content type.
    pub is_event_stream: bool,
    response: Response,
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
            .field("connect_timeout", &self.connect_timeout)
            .finish()
    }
}

/// The client of one provider.
#[derive(Clone)]
pub struct ProviderClient {
    http: reqwest::Client,
    base_url: Url,
    headers: HeaderMap,
    secrets: Vec<Secret>,
}

impl fmt::Debug for ProviderClient {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ProviderClient").field("base_url", &shown(&self.base_url)).finish_non_exhaustive()
    }
}

impl ProviderClient {
    /// Builds the client. Refused: a URL that is none or has no http scheme, headers that cannot be sent.
    pub fn try_new(options: &ProviderOptions) -> Result<Self, InvalidProvider> {
        let base_url = checked_url(&options.base_url)?;
        let headers = checked_headers(options)?;
        let mut builder = reqwest::Client::builder()
            .user_agent(concat!("watertight/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(options.connect_timeout)
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .referer(false)
            .tcp_nodelay(true)
            .pool_idle_timeout(POOL_IDLE)
            .http1_max_headers(HEADERS_MAX)
            .http2_max_header_list_size(HEADER_BYTES_MAX);
        if is_loopback(&base_url) {
            // A proxy of the environment cannot reach what runs on this very machine.
            builder = builder.no_proxy();
        }
        let http = builder
            .build()
            .map_err(|error| InvalidProvider::new("base_url", base_url.as_str(), chain(&error.without_url())))?;
        let secrets = secrets_of(options, &base_url);
        Ok(Self { http, base_url, headers, secrets })
    }

    /// The URL of `path` at this provider. The base's own path and query are kept; `path` can never leave its host.
    pub fn url(&self, path: &str) -> Url {
        let (path, query) = path.split_once('?').map_or((path, None), |(path, query)| (path, Some(query)));
        let mut url = self.base_url.clone();
        if !path.is_empty() {
            let joined = format!("{}/{}", self.base_url.path().trim_end_matches('/'), path.trim_start_matches('/'));
            url.set_path(&joined);
        }
        let queries: Vec<&str> = [self.base_url.query(), query].into_iter().flatten().collect();
        url.set_query((!queries.is_empty()).then(|| queries.join("&")).as_deref());
        url
    }

    /// Sends one request. A good answer comes back with its body unread; every other one is a failure. Dropping the future, or
    /// later the answer, closes the connection and so ends the work of the other side.
    pub async fn send(&self, outgoing: Outgoing, pointers: &ErrorPointers) -> Result<Answer, AttemptFailure> {
        let mut headers = self.headers.clone();
        headers.extend(outgoing.headers);
        let mut request = self.http.request(outgoing.method, self.url(&outgoing.path)).headers(headers);
        if let Some(body) = outgoing.body {
            request = request.body(body);
        }
        let response = request.send().await.map_err(failure_of_error)?;
        let head = head_of(&response);
        match head.status {
            200..=299 => Ok(Answer { head, is_event_stream: is_event_stream(&response), response }),
            400.. => Err(failure_of_answer(head, &error_body(response).await, pointers)),
            status => Err(AttemptFailure {
                status: Some(status),
                ..AttemptFailure::new(Ending::BadReply, format!("HTTP {status}: neither an answer nor an error"))
            }),
        }
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
        while let Some(chunk) = self.response.chunk().await.map_err(failure_of_error)? {
            if body.len() + chunk.len() > BODY_BYTES_MAX {
                let message = format!("the answer is larger than {BODY_BYTES_MAX} bytes");
                return Err(AttemptFailure { status: Some(status), ..AttemptFailure::new(Ending::BadReply, message) });
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body)
    }

    /// The body as it comes.
    pub fn into_pieces(self) -> impl futures_util::Stream<Item = Result<Bytes, AttemptFailure>> + Send + 'static {
        use futures_util::TryStreamExt;
        self.response.bytes_stream().map_err(failure_of_error)
    }
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

fn checked_headers(options: &ProviderOptions) -> Result<HeaderMap, InvalidProvider> {
    let mut headers = HeaderMap::new();
    if let Some(key) = &options.key {
        let (name, text) = match &options.key_place {
            KeyPlace::Bearer => (AUTHORIZATION.as_str(), format!("Bearer {}", key.expose())),
            KeyPlace::Header(name) => (name.as_str(), key.expose().to_owned()),
        };
        insert_secret(&mut headers, name, &text)?;
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
    secrets
}

/// A URL without what may be secret in it: user, password, query.
fn shown(url: &Url) -> String {
    let authority = &url[url::Position::BeforeHost..url::Position::AfterPath];
    format!("{}://{authority}", url.scheme())
}

fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

fn head_of(response: &Response) -> AnswerHead {
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let headers: Vec<(&str, &[u8])> =
        response.headers().iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
    AnswerHead::read(response.status().as_u16(), &headers, u64::try_from(unix.as_millis()).unwrap_or(u64::MAX))
}

fn is_event_stream(response: &Response) -> bool {
    let content_type = response.headers().get(reqwest::header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    content_type.is_some_and(|kind| kind.to_ascii_lowercase().starts_with(b"text/event-stream"))
}

/// As much of an error answer's body as is worth waiting for.
async fn error_body(mut response: Response) -> Vec<u8> {
    let mut body = Vec::new();
    let read = async {
        while let Ok(Some(chunk)) = response.chunk().await {
            body.extend_from_slice(&chunk);
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

fn failure_of_error(error: reqwest::Error) -> AttemptFailure {
    // Its URL may hold a key.
    let error = error.without_url();
    let ending = if error.is_connect() && error.is_timeout() {
        Ending::Timeout { timeout: TimeoutKind::Connect }
    } else if error.is_builder() {
        Ending::Internal
    } else {
        Ending::Network { connected: !error.is_connect() }
    };
    AttemptFailure::new(ending, chain(&error))
}

/// An error with all its causes, each once.
fn chain(error: &dyn std::error::Error) -> String {
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

#[cfg(test)]
mod tests;
