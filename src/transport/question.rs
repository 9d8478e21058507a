//! A short question to a provider that is no attempt: one GET, no body, answered in time or not at all.

use std::{future::Future, time::Duration};

use reqwest::{Method, header::HeaderMap};

use super::{
    client::{Answer, ProviderClient},
    error_body::ErrorPointers,
    outgoing::Outgoing,
};
use crate::model::{
    facts::{Ending, TimeoutKind},
    reply::AttemptFailure,
};

/// Asks for `path`.
pub(super) async fn get(client: &ProviderClient, path: &str) -> Result<Answer, AttemptFailure> {
    let outgoing = Outgoing { method: Method::GET, path: path.to_owned(), headers: HeaderMap::new(), body: None };
    client.send(outgoing, &ErrorPointers::default()).await
}

/// The answer that `asking` comes to within `wait_max`; `missing` names what did not come. No secret of the client's is in a failure.
pub(super) async fn within<T>(
    client: &ProviderClient,
    wait_max: Duration,
    missing: &str,
    asking: impl Future<Output = Result<T, AttemptFailure>>,
) -> Result<T, AttemptFailure> {
    let answered = tokio::time::timeout(wait_max, asking).await.unwrap_or_else(|_| {
        let ending = Ending::Timeout { timeout: TimeoutKind::Attempt };
        Err(AttemptFailure::new(ending, format!("{missing} within {} s", wait_max.as_secs())))
    });
    answered.map_err(|failure| client.scrub(failure))
}
