//! The envelope that an agent's server answers with when its own work failed: the outward shape of one attempt's failure.

use std::time::Duration;

use crate::model::{
    envelope::{Envelope, ErrorCode},
    facts::Ending,
    reply::AttemptFailure,
};

/// The envelope of `failure` at the agent of this name.
pub fn envelope_of(failure: &AttemptFailure, agent: &str) -> Envelope {
    let mut envelope = Envelope::new(code_of(&failure.ending), failure.message.clone()).with_agent(agent);
    if let Ending::Status { status, retryable, content_filter: false, .. } = failure.ending {
        envelope.http_status = status;
        envelope.retryable = retryable.unwrap_or_else(|| is_retryable_by_default(status));
    }
    if let Some(text) = &failure.user_message {
        envelope.user_message.clone_from(text);
    }
    if let Some(code) = &failure.upstream_code {
        envelope = envelope.with_detail("upstream_code", code.as_str());
    }
    match failure.retry_after {
        Some(wait) if wait > Duration::ZERO => envelope.with_retry_after(wait.as_secs_f64()),
        _ => envelope,
    }
}

fn code_of(ending: &Ending) -> ErrorCode {
    match ending {
        Ending::Status { content_filter: true, .. } => ErrorCode::ContentFiltered,
        Ending::Status { .. } => ErrorCode::AgentError,
        Ending::Network { .. } => ErrorCode::AgentNetworkError,
        Ending::Timeout { .. } => ErrorCode::AgentTimeout,
        Ending::BadReply | Ending::StreamCut | Ending::CallerShape => ErrorCode::AgentBadReply,
        Ending::Cancelled { .. } => ErrorCode::Cancelled,
        Ending::DeadlineCut => ErrorCode::DeadlineExceeded,
        Ending::OwnRefusal => ErrorCode::AgentBulkheadFull,
        Ending::Restarted => ErrorCode::AgentRestarted,
        // A success is no failure; whoever hands one in here has a fault.
        Ending::Success | Ending::Internal => ErrorCode::Internal,
    }
}

/// What an error status means for a later call where nobody said.
fn is_retryable_by_default(status: u16) -> bool {
    matches!(status, 408 | 425 | 429 | 500..)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn envelopes() {
        let status = |status, retryable| Ending::Status {
            status,
            retryable,
            content_filter: false,
            context_too_long: false,
            quota_spent: None,
        };
        for (ending, want) in [
            (status(503, None), ("AGENT_ERROR", 503, true)),
            (status(404, None), ("AGENT_ERROR", 404, false)),
            (status(409, Some(true)), ("AGENT_ERROR", 409, true)),
            (status(429, None), ("AGENT_ERROR", 429, true)),
            (Ending::Network { connected: true }, ("AGENT_NETWORK_ERROR", 502, true)),
            (Ending::BadReply, ("AGENT_BAD_REPLY", 502, true)),
            (Ending::DeadlineCut, ("DEADLINE_EXCEEDED", 504, false)),
            (Ending::Internal, ("INTERNAL", 500, false)),
        ] {
            let mut failure = AttemptFailure::new(ending, "why");
            failure.retry_after = Some(Duration::from_millis(200));
            let envelope = envelope_of(&failure, "draft");
            assert_eq!((envelope.error_code.as_str(), envelope.http_status, envelope.retryable), want);
            assert_eq!((envelope.agent.as_deref(), envelope.retry_after), (Some("draft"), Some(1.0)));
        }
    }
}
