//! Refusals and failures as envelopes: the one place where the inside's typed errors become the outward shape.

use std::time::Duration;

use crate::{
    model::{
        clock::Timestamp,
        envelope::{Envelope, ErrorCode},
        facts::Ending,
        reply::AttemptFailure,
    },
    policy::{
        breaker::state::{Reason, Refusal as GateRefusal},
        bulkhead::Full,
        retry::is_retryable,
        verdict::Keyed,
    },
};

/// A caller that all half-open trials are taken from comes back after at least this.
const TRIALS_TAKEN_RETRY_AFTER: Duration = Duration::from_secs(1);
/// ... spread over as much again.
const TRIALS_TAKEN_SPREAD: f64 = 1.0;

/// Our own refusal of a call: nothing was sent.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub(crate) enum Refusal {
    /// A breaker's gate is shut.
    #[error("the gate of {breaker} is shut: {}", .refusal.reason.as_str())]
    Gate { breaker: String, refusal: GateRefusal, now: Timestamp, jitter: f64 },
    /// No slot.
    #[error("no slot free in {compartment}")]
    Bulkhead { compartment: String, full: Full },
    /// The deadline had passed before anything was sent.
    #[error("the deadline passed before the call could start")]
    Deadline,
    /// The runtime is stopping.
    #[error("this node is stopping")]
    ShuttingDown,
    /// The actor died with the call queued.
    #[error("the agent restarted while the call was queued")]
    Restarted,
}

impl Refusal {
    /// The outward shape.
    pub(crate) fn to_envelope(&self, agent: &str) -> Envelope {
        let message = self.to_string();
        let envelope = match self {
            Self::Gate { breaker, refusal, now, jitter } => gate_envelope(breaker, refusal, *now, *jitter, message),
            Self::Bulkhead { compartment, full } => Envelope::new(ErrorCode::AgentBulkheadFull, message)
                .with_retry_after(full.retry_after.as_secs_f64())
                .with_detail("compartment", compartment.as_str()),
            Self::Deadline => Envelope::new(ErrorCode::DeadlineExceeded, message),
            Self::ShuttingDown => Envelope::new(ErrorCode::ShuttingDown, message).with_retry_after(1.0),
            Self::Restarted => Envelope::new(ErrorCode::AgentRestarted, message).with_retry_after(1.0),
        };
        envelope.with_agent(agent)
    }
}

fn gate_envelope(breaker: &str, refusal: &GateRefusal, now: Timestamp, jitter: f64, message: String) -> Envelope {
    let code = match refusal.reason {
        // Terminal: no client should loop on a quota that is gone.
        Reason::QuotaSpent => ErrorCode::QuotaSpent,
        _ => ErrorCode::AgentCircuitOpen,
    };
    let rest = refusal.until.map(|until| until.since(now)).filter(|rest| !rest.is_zero());
    // Half-open with all trials taken, or shut until somebody acts: nobody knows when, so callers are spread instead.
    let spread = TRIALS_TAKEN_RETRY_AFTER.mul_f64(1.0 + TRIALS_TAKEN_SPREAD * jitter);
    let wait = rest.unwrap_or(spread).as_secs_f64();
    Envelope::new(code, message)
        .with_retry_after(wait)
        .with_detail("breaker", breaker)
        .with_detail("reason", refusal.reason.as_str())
}

/// The outward shape of a call that was sent and failed.
pub(crate) fn failure_envelope(failure: &AttemptFailure, agent: &str, keyed: Keyed, attempts: u32) -> Envelope {
    let code = outward_code(&failure.ending);
    let mut envelope = Envelope::new(code, failure.message.clone()).with_agent(agent);
    if let Some(text) = &failure.user_message {
        envelope.user_message.clone_from(text);
    }
    if code == ErrorCode::AgentError {
        let rejected_key = keyed == Keyed::Yes && matches!(failure.status, Some(401 | 403));
        envelope.http_status = if rejected_key { 502 } else { failure.status.unwrap_or(502) };
        envelope.retryable = !rejected_key && is_retryable(&failure.ending);
    } else if matches!(code, ErrorCode::AgentBadReply) {
        envelope.retryable = failure.ending != Ending::CallerShape;
    }
    if envelope.retryable
        && let Some(wait) = failure.retry_after
    {
        envelope = envelope.with_retry_after(wait.as_secs_f64());
    }
    if let Some(code) = &failure.upstream_code {
        envelope = envelope.with_detail("upstream_code", code.as_str());
    }
    if let Some(status) = failure.status {
        envelope = envelope.with_detail("upstream_status", status);
    }
    envelope.with_detail("attempts", attempts)
}

fn outward_code(ending: &Ending) -> ErrorCode {
    match ending {
        Ending::Network { .. } => ErrorCode::AgentNetworkError,
        Ending::Timeout { .. } => ErrorCode::AgentTimeout,
        Ending::BadReply | Ending::StreamCut | Ending::CallerShape => ErrorCode::AgentBadReply,
        Ending::Status { quota_spent: Some(_), .. } => ErrorCode::QuotaSpent,
        Ending::Status { content_filter: true, .. } => ErrorCode::ContentFiltered,
        Ending::Status { context_too_long: true, .. } => ErrorCode::TokenRequestTooLarge,
        Ending::Status { .. } => ErrorCode::AgentError,
        Ending::Cancelled { .. } => ErrorCode::Cancelled,
        Ending::DeadlineCut => ErrorCode::DeadlineExceeded,
        Ending::Restarted => ErrorCode::AgentRestarted,
        Ending::Success | Ending::OwnRefusal | Ending::Internal => ErrorCode::Internal,
    }
}
