//! What is sent to an agent: the headers of the contract and the body. Decides nothing about the answer.

use std::sync::Arc;

use bytes::Bytes;
use reqwest::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;

use crate::{
    model::{contract, facts::Ending, reply::AttemptFailure, weight},
    runtime::{large_work, ports::AttemptRequest, tally::AnswerForm},
    transport::template::Template,
};

use super::mapping::CheckedMapping;

/// The code of an input that the agent cannot be called with.
pub const INVALID_INPUT_CODE: &str = "invalid_input";

/// The failure of a call whose own input is at fault: nothing was sent, and sending it again cannot help.
pub fn invalid_input(message: String) -> AttemptFailure {
    let ending = Ending::Status {
        status: 400,
        retryable: Some(false),
        content_filter: false,
        context_too_long: false,
        quota_spent: None,
    };
    AttemptFailure { upstream_code: Some(INVALID_INPUT_CODE.to_owned()), ..AttemptFailure::new(ending, message) }
}

/// All headers of the contract for one attempt.
pub fn contract_headers(request: &AttemptRequest, wanted: AnswerForm) -> Result<HeaderMap, AttemptFailure> {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    match wanted {
        AnswerForm::Whole => headers.insert(ACCEPT, HeaderValue::from_static("application/json")),
        AnswerForm::Stream => {
            // A packed stream is held back until a block of it is full.
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
            headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream, application/json;q=0.5"))
        }
    };
    let attempt = request.attempt.to_string();
    let deadline_ms = request.deadline.as_millis().to_string();
    for (name, value) in [
        (contract::TRACEPARENT, request.traceparent.as_deref()),
        (contract::IDEMPOTENCY_KEY, Some(request.idempotency_key.as_str())),
        (contract::CALL_ID, Some(request.call_id.as_str())),
        (contract::RUN_ID, request.run_id.as_deref()),
        (contract::ATTEMPT, Some(attempt.as_str())),
        (contract::DEADLINE_MS, Some(deadline_ms.as_str())),
        (contract::TENANT, request.tenant.as_deref()),
        (contract::FEATURE, request.feature.as_deref()),
        (contract::PRIORITY, request.priority.as_deref()),
    ] {
        let Some(text) = value else { continue };
        let value = HeaderValue::from_str(text)
            .map_err(|_| invalid_input(format!("{name} holds characters that no header can")))?;
        headers.insert(HeaderName::from_static(name), value);
    }
    Ok(headers)
}

/// The body of this attempt.
pub(super) async fn body(input: &Arc<Value>, mapping: &Arc<CheckedMapping>) -> Result<Bytes, AttemptFailure> {
    let (input, mapping) = (Arc::clone(input), Arc::clone(mapping));
    large_work::work(weight::of_value(&input), move || written(&input, mapping.request.as_ref())).await
}

/// `{"input": ...}`, or what the mapping's template gives.
fn written(input: &Value, template: Option<&Template>) -> Result<Bytes, AttemptFailure> {
    let Some(template) = template else {
        // Around the input as it is: a copy of tens of MB would hold up everybody else of this thread.
        return Ok(Bytes::from(format!("{{\"input\":{input}}}")));
    };
    let text = template.fill(input).map_err(|error| invalid_input(format!("the request cannot be filled: {error}")))?;
    match serde_json::from_str::<Value>(&text) {
        Ok(value) => Ok(Bytes::from(value.to_string())),
        Err(error) => Err(invalid_input(format!("the filled request is no JSON: {error}"))),
    }
}
