//! Which pages of other origins may use the service from a browser, and what they may read of its answers.

use std::time::Duration;

use axum::http::{HeaderName, HeaderValue, Method, header};
use tower_http::cors::{AllowOrigin, CorsLayer};

use crate::model::contract;

/// A browser asks again after this.
const PREFLIGHT_GOOD_FOR: Duration = Duration::from_secs(600);
/// Headers that a page may send.
const ASKED: [&str; 14] = [
    "accept-language",
    "authorization",
    "content-type",
    "idempotency-key",
    "last-event-id",
    "traceparent",
    "x-api-key",
    contract::DEADLINE_MS,
    contract::FEATURE,
    contract::PRIORITY,
    contract::TENANT,
    "x-watertight-file-name",
    "x-watertight-ladder",
    "x-watertight-user",
];
/// Headers that a page may read.
const EXPOSED: [&str; 11] = [
    "content-disposition",
    "idempotency-replayed",
    "location",
    "retry-after",
    "traceparent",
    contract::CALL_ID,
    contract::SHOULD_RETRY,
    "x-watertight-agent",
    "x-watertight-attempts",
    "x-watertight-fallback",
    "x-watertight-overhead-ms",
];

/// The layer for these origins; `*` is any. `None` where there are none: then a browser keeps pages of other origins out.
pub fn cors(origins: &[String]) -> Option<CorsLayer> {
    if origins.is_empty() {
        return None;
    }
    let names = |names: &[&'static str]| names.iter().map(|name| HeaderName::from_static(name)).collect::<Vec<_>>();
    let origin = if origins.iter().any(|origin| origin == "*") {
        AllowOrigin::any()
    } else {
        AllowOrigin::list(origins.iter().filter_map(|origin| HeaderValue::from_str(origin).ok()))
    };
    let layer = CorsLayer::new()
        .allow_origin(origin)
        .allow_methods([Method::GET, Method::POST, Method::DELETE, Method::HEAD])
        .allow_headers(names(&ASKED))
        .expose_headers(names(&EXPOSED))
        .vary([header::ORIGIN])
        .max_age(PREFLIGHT_GOOD_FOR);
    Some(layer)
}
