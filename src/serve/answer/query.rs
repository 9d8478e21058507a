//! Query strings and headers as handlers read them: what does not fit is an envelope that names it.

use axum::{
    extract::{FromRequestParts, Query},
    http::{HeaderMap, request::Parts},
};
use serde::de::DeserializeOwned;

use super::failure::Failure;
use crate::serve::state::AppState;

/// The longest idempotency key, in bytes.
const IDEMPOTENCY_KEY_BYTES_MAX: usize = 255;

/// What a query string asks.
#[derive(Debug, Clone, Copy)]
pub struct Asked<T>(pub T);

impl<T: DeserializeOwned> FromRequestParts<AppState> for Asked<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, Failure> {
        let read = Query::<T>::from_request_parts(parts, state).await;
        read.map(|Query(asked)| Self(asked)).map_err(|rejection| Failure::invalid(rejection.body_text()))
    }
}

/// The request's `Idempotency-Key`, if it has one.
pub fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, Failure> {
    let Some(value) = headers.get(crate::model::contract::IDEMPOTENCY_KEY) else { return Ok(None) };
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
