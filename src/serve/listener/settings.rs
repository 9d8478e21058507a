//! What a listener bears at most, and in which language it says so. Reads no configuration.

use std::time::Duration;

use crate::model::language::Language;

/// Connections at once.
pub const CONNECTIONS_MAX: u32 = 10_000;
/// Connections beyond that, for requests that must be answered also when every usual place is taken.
pub const RESERVE_MAX: u32 = 128;
/// How long a request's head may take to arrive.
pub const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(10);
/// Headers of one request.
pub const HEADERS_MAX: u32 = 100;
/// Bytes of all headers of one request, names and values.
pub const HEADER_BYTES_MAX: u32 = 64 * 1024;
/// Bytes of a request's target: path and query.
pub const TARGET_BYTES_MAX: u32 = 8 * 1024;
/// Bytes of a body where its route does not raise it.
pub const BODY_BYTES_MAX: u64 = 32 * 1024 * 1024;
/// How long a body may pause while it is sent.
pub const BODY_PAUSE_MAX: Duration = Duration::from_secs(30);
/// A body that is slower than this over all is given up, once it was waited for longer than a pause may be.
pub const BODY_BYTES_PER_SECOND_MIN: u32 = 128;
/// How long a connection may be kept without a request.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(75);
/// How long a client may take nothing of what it is sent.
pub const WRITE_TIMEOUT: Duration = Duration::from_secs(60);
/// Requests at once on one HTTP/2 connection.
pub const HTTP2_STREAMS_MAX: u32 = 256;

/// What a listener bears at most.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "each is said at the constant of the same name")]
pub struct ListenerSettings {
    pub connections_max: u32,
    pub reserve_max: u32,
    /// Connections at once from one address; `None` = as many as there are: behind a proxy all come from one.
    pub connections_per_address_max: Option<u32>,
    pub header_read_timeout: Duration,
    pub headers_max: u32,
    pub header_bytes_max: u32,
    pub target_bytes_max: u32,
    pub body_bytes_max: u64,
    pub body_pause_max: Duration,
    pub body_bytes_per_second_min: u32,
    pub idle_timeout: Duration,
    pub write_timeout: Duration,
    pub http2_streams_max: u32,
    /// Of refusals whose request asks for none.
    pub language: Language,
}

impl Default for ListenerSettings {
    fn default() -> Self {
        Self {
            connections_max: CONNECTIONS_MAX,
            reserve_max: RESERVE_MAX,
            connections_per_address_max: None,
            header_read_timeout: HEADER_READ_TIMEOUT,
            headers_max: HEADERS_MAX,
            header_bytes_max: HEADER_BYTES_MAX,
            target_bytes_max: TARGET_BYTES_MAX,
            body_bytes_max: BODY_BYTES_MAX,
            body_pause_max: BODY_PAUSE_MAX,
            body_bytes_per_second_min: BODY_BYTES_PER_SECOND_MIN,
            idle_timeout: IDLE_TIMEOUT,
            write_timeout: WRITE_TIMEOUT,
            http2_streams_max: HTTP2_STREAMS_MAX,
            language: Language::En,
        }
    }
}
