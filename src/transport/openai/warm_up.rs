//! A server that loads its model: its word for it, and the smallest request that makes it do so. Whether and when that is sent is the
//! runtime's business.

use bytes::Bytes;
use reqwest::{
    Method,
    header::{CONTENT_TYPE, HeaderMap, HeaderValue},
};
use serde_json::json;
use tokio::time::{Duration, Instant};

use crate::{
    model::{facts::Ending, reply::AttemptFailure},
    runtime::ports::WarmUp,
    transport::{client::ProviderClient, error_body::ErrorPointers, outgoing::Outgoing},
};

/// How llama.cpp says with a 503 that it is loading its model.
const LOADING: &str = "loading model";
/// An answer of one token that took longer than this has had its model loaded first: a server that lets go of an idle model says nothing
/// of it and has the request wait.
const LOADED_FROM: Duration = Duration::from_secs(1);

/// The same failure; as the word of a server that is loading its model, if it is that.
pub(super) fn or_loading(failure: AttemptFailure) -> AttemptFailure {
    let is_503 = matches!(failure.ending, Ending::Status { status: 503, .. });
    if is_503 && failure.message.to_ascii_lowercase() == LOADING {
        AttemptFailure { ending: Ending::Loading, ..failure }
    } else {
        failure
    }
}

/// Asks the model for one token.
pub(super) async fn warm_up(client: &ProviderClient, path: String, model: &str) -> Result<WarmUp, AttemptFailure> {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let body = json!({
        "model": model,
        "messages": [{ "role": "user", "content": "." }],
        "max_tokens": 1,
        "stream": false,
    });
    let outgoing = Outgoing { method: Method::POST, path, headers, body: Some(Bytes::from(body.to_string())) };
    let started = Instant::now();
    let answered = async { client.send(outgoing, &ErrorPointers::default()).await?.into_body().await };
    match answered.await.map_err(or_loading) {
        Ok(_) if started.elapsed() > LOADED_FROM => Ok(WarmUp::Loaded),
        Ok(_) => Ok(WarmUp::WasLoaded),
        // It is there and minds the request: what is wrong with it, the call itself will be told.
        Err(AttemptFailure { ending: Ending::Status { status: 400..=499, .. }, .. }) => Ok(WarmUp::WasLoaded),
        Err(failure) => Err(failure),
    }
}
