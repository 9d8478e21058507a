//! Watch tokens: a browser that has no key may follow one run with one. Read-only, for events and result of that run, for a quarter of
//! an hour.

use std::time::Duration;

use axum::{
    extract::Query,
    http::{HeaderMap, header},
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::signature::{Purpose, Signer};

/// How long a token is good.
pub const WATCH_TOKEN_GOOD_FOR: Duration = Duration::from_secs(15 * 60);

/// A token as it is given out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct WatchToken {
    /// The run that it is for.
    pub run_id: String,
    /// As `?token=` or `Authorization: Bearer`.
    pub token: String,
    /// Unix milliseconds.
    pub expires_ms: u64,
}

/// Where a token may stand in a URL: browsers' event sources send no headers of their own.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct TokenInQuery {
    /// The token.
    pub token: Option<String>,
}

impl WatchToken {
    /// A token for this run.
    pub fn issue(signer: &Signer, run_id: &str, now_ms: u64) -> Self {
        let good_for = u64::try_from(WATCH_TOKEN_GOOD_FOR.as_millis()).unwrap_or(u64::MAX);
        let expires_ms = now_ms.saturating_add(good_for);
        Self { run_id: run_id.to_owned(), token: signer.sign(Purpose::WatchRun, run_id, expires_ms), expires_ms }
    }
}

/// Whether a request brings a token for this run.
pub fn may_watch(signer: &Signer, run_id: &str, query: &Query<TokenInQuery>, headers: &HeaderMap, now_ms: u64) -> bool {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let bearer = bearer.and_then(|value| value.strip_prefix("Bearer ")).map(str::trim);
    let given = query.0.token.as_deref().into_iter().chain(bearer);
    given.into_iter().any(|token| signer.allows(Purpose::WatchRun, run_id, token, now_ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_taken_from_the_url_or_the_header_and_for_its_run_only() {
        let signer = Signer::of_chance().unwrap();
        let token = WatchToken::issue(&signer, "run-1", 1_000);
        assert_eq!(token.expires_ms, 1_000 + 900_000);
        let none = Query(TokenInQuery::default());
        let in_url = Query(TokenInQuery { token: Some(token.token.clone()) });
        let bearer: HeaderMap =
            [(header::AUTHORIZATION, format!("Bearer {}", token.token).parse().unwrap())].into_iter().collect();
        let empty = HeaderMap::new();
        for (run_id, query, headers, now_ms, want) in [
            ("run-1", &in_url, &empty, 1_000, true),
            ("run-1", &none, &bearer, 1_000, true),
            ("run-1", &none, &empty, 1_000, false),
            ("run-2", &in_url, &bearer, 1_000, false),
            ("run-1", &in_url, &bearer, token.expires_ms, false),
        ] {
            assert_eq!(may_watch(&signer, run_id, query, headers, now_ms), want, "{run_id} {now_ms}");
        }
    }
}
