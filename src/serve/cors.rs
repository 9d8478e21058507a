//! Which pages of other origins may use the service from a browser, and what they may read of its answers.

use std::time::Duration;

use axum::http::{HeaderName, HeaderValue, Method, header};
use tower_http::cors::{AllowOrigin, CorsLayer};

use crate::model::contract;

/// A browser asks again after this.
const PREFLIGHT_GOOD_FOR: Duration = Duration::from_secs(600);
/// Headers that a page may send.
const ASKED: [&str; 25] = [
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
    contract::LADDER,
    "x-watertight-user",
    // What OpenAI's own clients for browsers send with every request.
    "openai-organization",
    "openai-project",
    "x-stainless-arch",
    "x-stainless-helper-method",
    "x-stainless-lang",
    "x-stainless-os",
    "x-stainless-package-version",
    "x-stainless-retry-count",
    "x-stainless-runtime",
    "x-stainless-runtime-version",
    "x-stainless-timeout",
];
/// What a page may ask for: services behind `/agents/{name}/` know them all.
const METHODS: [Method; 7] =
    [Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE, Method::HEAD, Method::OPTIONS];
/// Headers that a page may read.
const EXPOSED: [&str; 12] = [
    "content-disposition",
    "idempotency-replayed",
    "location",
    "retry-after",
    "traceparent",
    contract::CALL_ID,
    contract::SHOULD_RETRY,
    contract::AGENT,
    contract::ATTEMPTS,
    contract::DEGRADED,
    contract::FALLBACK,
    contract::OVERHEAD_MS,
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
        .allow_methods(METHODS)
        .allow_headers(names(&ASKED))
        .expose_headers(names(&EXPOSED))
        .vary([header::ORIGIN])
        .max_age(PREFLIGHT_GOOD_FOR);
    Some(layer)
}

#[cfg(test)]
mod tests {
    use axum::{Router, body::Body, http::Request, routing::any};
    use tower::ServiceExt as _;

    use super::*;

    #[tokio::test]
    async fn a_page_may_do_what_clients_do_and_see_that_somebody_stood_in() {
        let layer = cors(&["https://app.example".to_owned()]).unwrap();
        let service = Router::new().route("/agents/{name}/{*path}", any(|| async {})).layer(layer);
        let ask = async |method: &str, origin: &str| {
            let request = Request::builder()
                .method(method)
                .uri("/agents/fast/v1/x")
                .header("origin", origin)
                .header("access-control-request-method", "PATCH")
                .header("access-control-request-headers", "authorization, x-stainless-lang, openai-project");
            let answer = service.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
            let told = |name: &str| {
                let value = answer.headers().get(format!("access-control-{name}"));
                value.map(|value| value.to_str().unwrap().to_ascii_lowercase()).unwrap_or_default()
            };
            ["allow-origin", "allow-methods", "allow-headers", "expose-headers"].map(told)
        };
        let [origin, methods, asked, _] = ask("OPTIONS", "https://app.example").await;
        assert_eq!(origin, "https://app.example");
        for method in ["get", "post", "put", "patch", "delete", "head"] {
            assert!(methods.split(',').any(|known| known == method), "{method}: {methods}");
        }
        for name in
            ["authorization", "x-stainless-lang", "x-stainless-retry-count", "openai-project", "x-watertight-ladder"]
        {
            assert!(asked.split(',').any(|known| known == name), "{name}: {asked}");
        }
        let [origin, _, _, exposed] = ask("PATCH", "https://app.example").await;
        assert_eq!(origin, "https://app.example");
        assert!(exposed.split(',').any(|known| known == "x-watertight-degraded"), "{exposed}");
        let [origin, ..] = ask("OPTIONS", "https://other.example").await;
        assert_eq!(origin, "", "others are kept out");
        assert!(cors(&[]).is_none());
    }
}
