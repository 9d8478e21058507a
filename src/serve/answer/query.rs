//! Query strings and headers as handlers read them: what does not fit is an envelope that names it.

use axum::{
    extract::{FromRequestParts, Query},
    http::{HeaderMap, request::Parts},
};
use serde::de::DeserializeOwned;

use super::failure::Failure;
use crate::{
    journal::row_cursor::{List, RowCursor},
    serve::state::AppState,
};

/// The longest idempotency key, in bytes.
const IDEMPOTENCY_KEY_BYTES_MAX: usize = 255;

/// What a query string asks.
#[derive(Debug, Clone, Copy)]
pub struct Asked<T>(pub T);

impl<T: DeserializeOwned> FromRequestParts<AppState> for Asked<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, Failure> {
        let read = Query::<T>::from_request_parts(parts, state).await;
        read.map(|Query(asked)| Self(asked))
            .map_err(|rejection| Failure::invalid(without_jargon(&rejection.body_text())))
    }
}

/// What is wrong with a query, without the words of the program that read it.
fn without_jargon(text: &str) -> String {
    let what = text.strip_prefix("Failed to deserialize query string: ").unwrap_or(text);
    format!(
        "query: {}",
        what.replace("invalid digit found in string", "must be a whole number")
            .replace("number too large to fit in target type", "is too large a number")
    )
}

/// The request's `Idempotency-Key`, if it has one.
pub fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, Failure> {
    let mut values = headers.get_all(crate::model::contract::IDEMPOTENCY_KEY).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.any(|other| other != value) {
        return Err(Failure::invalid("Idempotency-Key is there twice, with two values"));
    }
    let fits = |text: &&str| (1..=IDEMPOTENCY_KEY_BYTES_MAX).contains(&text.len());
    let text = value.to_str().ok().map(str::trim).filter(fits);
    let rule = || Failure::invalid(format!("Idempotency-Key must be 1 to {IDEMPOTENCY_KEY_BYTES_MAX} printable bytes"));
    text.map(|text| Some(text.to_owned())).ok_or_else(rule)
}

/// What stands in the path.
#[derive(Debug, Clone)]
pub struct InPath<T>(pub T);

impl<T: DeserializeOwned + Send> FromRequestParts<AppState> for InPath<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, Failure> {
        let read = axum::extract::Path::<T>::from_request_parts(parts, state).await;
        read.map(|axum::extract::Path(found)| Self(found)).map_err(|rejection| Failure::invalid(rejection.body_text()))
    }
}

/// The place that a query says its page begins at.
pub(in crate::serve) fn cursor_of(list: List, text: Option<&str>) -> Result<Option<RowCursor>, Failure> {
    let read = |text| RowCursor::parse(list, text).ok_or_else(|| Failure::invalid("cursor was never handed out"));
    text.map(read).transpose()
}

#[cfg(test)]
mod tests {
    use axum::http::Uri;

    use super::*;

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Page {
        #[allow(dead_code, reason = "only read")]
        limit: Option<u8>,
    }

    #[test]
    fn an_idempotency_key_is_one() {
        for (values, want) in [
            (&[][..], Ok(None)),
            (&["a"], Ok(Some("a"))),
            (&["a", "a"], Ok(Some("a"))),
            (&["a", "b"], Err("twice")),
            (&[""], Err("must be")),
        ] {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(crate::model::contract::IDEMPOTENCY_KEY, value.parse().unwrap());
            }
            match (idempotency_key(&headers), want) {
                (Ok(key), Ok(want)) => assert_eq!(key.as_deref(), want, "{values:?}"),
                (Err(failure), Err(word)) => assert!(failure.envelope.message.contains(word), "{values:?} {failure:?}"),
                (got, want) => panic!("{values:?}: {got:?}, not {want:?}"),
            }
        }
    }

    #[test]
    fn what_is_wrong_with_a_query_is_said_plainly() {
        for (query, want) in [
            ("limit=x", "query: limit: must be a whole number"),
            ("limit=999", "query: limit: is too large a number"),
            ("limit=1&limit=2", "query: duplicate field `limit`"),
            ("most=1", "query: most: unknown field `most`, expected `limit`"),
        ] {
            let uri: Uri = format!("/v1/runs?{query}").parse().unwrap();
            let refused = Query::<Page>::try_from_uri(&uri).unwrap_err();
            assert_eq!(without_jargon(&refused.body_text()), want, "{query}");
        }
    }
}
