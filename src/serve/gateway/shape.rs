//! Errors in OpenAI's words: what its clients look at, with our envelope beside it. Decides no status and no code of ours.

use std::sync::Arc;

use axum::response::Response;
use serde_json::{Value, json};

use crate::{
    model::envelope::{Envelope, ErrorCode},
    serve::answer::failure::{ErrorShape, Failure},
};

/// The name of the request's member that is at fault, in an envelope's details.
pub(super) const PARAM: &str = "param";
/// The code of a model that is not there, in an envelope's details.
pub(super) const OPENAI_CODE: &str = "openai_code";

/// `{"error": {"message", "type", "param", "code", "watertight"}}`.
pub(super) fn in_openai_words(envelope: &Envelope) -> Value {
    let detail = |key: &str| envelope.details.get(key).cloned();
    let code =
        detail(OPENAI_CODE).or_else(|| detail("upstream_code")).unwrap_or_else(|| code_of(envelope.error_code).into());
    json!({
        "error": {
            "message": envelope.message,
            "type": type_of(envelope.http_status),
            "param": detail(PARAM),
            "code": code,
            "watertight": envelope,
        }
    })
}

fn type_of(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        402 => "insufficient_quota",
        403 => "permission_error",
        429 => "rate_limit_error",
        400..=499 => "invalid_request_error",
        _ => "server_error",
    }
}

fn code_of(code: ErrorCode) -> String {
    match code {
        ErrorCode::Unauthorized => "invalid_api_key".to_owned(),
        ErrorCode::QuotaSpent => "insufficient_quota".to_owned(),
        ErrorCode::RateLimited => "rate_limit_exceeded".to_owned(),
        ErrorCode::ContentFiltered => "content_filter".to_owned(),
        ErrorCode::TokenRequestTooLarge => "context_length_exceeded".to_owned(),
        other => other.as_str().to_ascii_lowercase(),
    }
}

/// Marks an error of these routes, whoever made it, to be written in OpenAI's words.
pub(super) async fn mark(mut answer: Response) -> Response {
    if answer.extensions().get::<Failure>().is_some() {
        answer.extensions_mut().insert(ErrorShape(Arc::new(in_openai_words)));
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_and_codes_as_clients_know_them() {
        for (code, status, kind, word) in [
            (ErrorCode::InvalidRequest, 400, "invalid_request_error", "invalid_request"),
            (ErrorCode::NotFound, 404, "invalid_request_error", "not_found"),
            (ErrorCode::Unauthorized, 401, "authentication_error", "invalid_api_key"),
            (ErrorCode::Forbidden, 403, "permission_error", "forbidden"),
            (ErrorCode::RateLimited, 429, "rate_limit_error", "rate_limit_exceeded"),
            (ErrorCode::QuotaSpent, 402, "insufficient_quota", "insufficient_quota"),
            (ErrorCode::TokenRequestTooLarge, 413, "invalid_request_error", "context_length_exceeded"),
            (ErrorCode::AgentCircuitOpen, 503, "server_error", "agent_circuit_open"),
        ] {
            let envelope = Envelope::new(code, "why");
            let error = &in_openai_words(&envelope)["error"];
            assert_eq!((envelope.http_status, &error["type"], &error["code"]), (status, &json!(kind), &json!(word)));
            assert_eq!((&error["param"], &error["watertight"]["error_code"]), (&Value::Null, &json!(code.as_str())));
        }
        let own = Envelope::new(ErrorCode::AgentError, "x").with_detail("upstream_code", "model_overloaded");
        assert_eq!(in_openai_words(&own)["error"]["code"], "model_overloaded");
    }
}
