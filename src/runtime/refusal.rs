//! Refusals and failures as envelopes: the one place where the inside's typed errors become the outward shape.

use std::{sync::Arc, time::Duration};

use super::{
    call::Try,
    compartments::{NoSeats, Reach},
    overload::Shed,
    rates::TooMany,
};
use crate::{
    model::{
        clock::Timestamp,
        envelope::{Envelope, ErrorCode},
        facts::{Ending, QuotaReset},
        reply::AttemptFailure,
    },
    policy::{
        breaker::state::{Reason, Refusal as GateRefusal},
        bulkhead::{Full, RETRY_AFTER_MAX},
        compartment::{
            directory::{Place, Stranger},
            line::LineFull,
        },
        fallback::Reason as FallbackReason,
        retry::is_retryable,
        run_caps::CapReached,
        tokens::{
            BudgetRefusal,
            draw::{AccountId, NoTokens},
        },
        verdict::Keyed,
        volume::Shut,
    },
};

/// A caller that all half-open trials are taken from comes back after at least this.
const TRIALS_TAKEN_RETRY_AFTER: Duration = Duration::from_secs(1);
/// ... spread over as much again.
const TRIALS_TAKEN_SPREAD: f64 = 1.0;

/// Why a run waits while the outputs of live runs fill their room.
const RUNS_FULL: &str = "run_outputs_full";

/// Our own refusal of a call: nothing was sent. Its tag is as wide as what it stands before, so that a refusal is moved in whole words.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[repr(u64)]
pub(crate) enum Refusal {
    /// A breaker's gate is shut.
    #[error("the gate of {breaker} is shut: {}", .refusal.reason.as_str())]
    Gate { breaker: Arc<str>, refusal: GateRefusal, now: Timestamp, jitter: f64 },
    /// No slot.
    #[error("no slot free in {compartment}")]
    Bulkhead { compartment: Arc<str>, full: Full, reach: Reach, place: Option<Box<Place>>, line: Option<LineFull> },
    /// No request is free this minute.
    #[error("{} requests a minute of {} are used up", .too_many.per_minute, .too_many.of)]
    Rate { too_many: TooMany, retry_after: Duration },
    /// Its caller's volume guard is shut.
    #[error("this caller made too many calls in an hour")]
    Volume { shut: Shut },
    /// Its class is refused for a higher one, under overload.
    #[error("calls of higher classes wait too long for {}", .shed.compartment)]
    Shed { shed: Shed },
    /// The model is being loaded, and somebody else waits for it already.
    #[error("the model {model} is being loaded; it is expected to be there in {:.0} s", .wait.as_secs_f64())]
    Warming { model: Arc<str>, wait: Duration },
    /// Its feature or tenant may not call.
    #[error("{stranger}")]
    Stranger { stranger: Stranger },
    /// No tokens.
    #[error("{refused}")]
    Tokens { refused: NoTokens },
    /// A run has used up what it may use in all.
    #[error("{reached}")]
    RunSpent { reached: CapReached },
    /// The outputs of live runs fill their room, and another run is the one that goes on.
    #[error("the outputs of live runs fill their room of {bytes_max} bytes; runs go on one after the other")]
    RunsFull { bytes_max: u64, retry_after: Duration },
    /// The deadline had passed before anything was sent.
    #[error("the deadline passed before the call could start")]
    Deadline,
    /// The runtime is stopping.
    #[error("this node is stopping")]
    ShuttingDown,
    /// No target of the agent takes the call: the refusal that speaks for them, and all of them.
    #[error("every target refuses; {spoken}")]
    Everywhere { spoken: Box<Refusal>, retry_after: Option<f64>, tries: Vec<Try> },
    /// The actor died with the call queued.
    #[error("the agent restarted while the call was queued")]
    Restarted,
    /// A reload took the agent, or this target of it, away.
    #[error("this agent is not here any more")]
    Gone,
    /// A call of this key killed twice.
    #[error("this call killed its agent's actor or its attempt twice and was put aside")]
    DeadLetter,
}

impl Refusal {
    /// No slot, or none for this caller.
    pub(crate) fn of_no_seats(no_seats: NoSeats) -> Self {
        match no_seats {
            NoSeats::Full { count, full, reach, place } => {
                Self::Bulkhead { compartment: count, full, reach, place, line: None }
            }
            NoSeats::Stranger(stranger) => Self::Stranger { stranger },
        }
    }

    /// A slot is missing, and so is a place in the line for it.
    pub(crate) fn in_full_line(mut self, full: LineFull) -> Self {
        match &mut self {
            Self::Bulkhead { line, .. } => *line = Some(full),
            Self::Everywhere { spoken, .. } => **spoken = spoken.as_ref().clone().in_full_line(full),
            _ => {}
        }
        self
    }

    /// One refusal of several targets, in the order they were asked, with the earliest wait of all. The one it speaks with is the
    /// first that only lacks a slot, since such a place would take the call; else the first that passes by itself, so that a quota that
    /// is spent at one of them is not the answer while another one comes back.
    pub(crate) fn of_all(refusals: Vec<Self>, tries: Vec<Try>) -> Self {
        let passes = |tried: &&Try| tried.error_code.retryable();
        let waits = |tried: &Try| tried.retry_after;
        let earliest = |left: f64, right: f64| left.min(right);
        let retry_after = tries.iter().filter(passes).filter_map(waits).reduce(earliest);
        let retry_after = retry_after.or_else(|| tries.iter().filter_map(waits).reduce(earliest));
        let spoken = refusals
            .iter()
            .position(Self::is_full)
            .or_else(|| tries.iter().position(|tried| tried.error_code.retryable()))
            .unwrap_or(0);
        match refusals.into_iter().nth(spoken) {
            Some(spoken) => Self::Everywhere { spoken: Box::new(spoken), retry_after, tries },
            None => Self::ShuttingDown,
        }
    }

    /// Why the target that refuses so is passed over; `None` if the others would say the same.
    pub(crate) fn passed_over_for(&self) -> Option<FallbackReason> {
        match self {
            Self::Gate { .. } => Some(FallbackReason::GateShut),
            Self::Bulkhead { .. } => Some(FallbackReason::SlotsFull),
            Self::Restarted => Some(FallbackReason::Restarted),
            Self::Rate { .. } => Some(FallbackReason::RateLimited),
            Self::Warming { .. } => Some(FallbackReason::Warming),
            Self::Tokens { refused } if is_of_target(refused) => Some(FallbackReason::TokensSpent),
            Self::Tokens { .. }
            | Self::RunSpent { .. }
            | Self::RunsFull { .. }
            | Self::Volume { .. }
            | Self::Shed { .. }
            | Self::Stranger { .. }
            | Self::Deadline
            | Self::ShuttingDown
            | Self::Gone
            | Self::DeadLetter
            | Self::Everywhere { .. } => None,
        }
    }

    /// Whether only a slot is missing.
    pub(crate) fn is_full(&self) -> bool {
        match self {
            Self::Bulkhead { .. } => true,
            Self::Everywhere { spoken, .. } => spoken.is_full(),
            _ => false,
        }
    }

    /// The count in which a slot is missing, if that is all.
    pub(crate) fn lacks(&self) -> Option<&Arc<str>> {
        match self {
            Self::Bulkhead { compartment, .. } => Some(compartment),
            Self::Everywhere { spoken, .. } => spoken.lacks(),
            _ => None,
        }
    }

    /// Where the call may wait for the slot, if that is all that is missing and it may wait.
    pub(crate) fn place(&self) -> Option<&Place> {
        match self {
            Self::Bulkhead { place, .. } => place.as_deref(),
            Self::Everywhere { spoken, .. } => spoken.place(),
            _ => None,
        }
    }

    /// The model whose warm-up is in the way.
    pub(crate) fn warming(&self) -> Option<&Arc<str>> {
        match self {
            Self::Warming { model, .. } => Some(model),
            Self::Everywhere { spoken, .. } => spoken.warming(),
            _ => None,
        }
    }

    /// Whether it holds for the call whatever its target.
    pub(crate) fn is_of_call(&self) -> bool {
        match self {
            Self::Bulkhead { reach, .. } => *reach == Reach::Call,
            Self::Tokens { refused } => !is_of_target(refused),
            Self::Rate { too_many, .. } => !too_many.of.starts_with("provider:"),
            Self::Volume { .. }
            | Self::Shed { .. }
            | Self::RunSpent { .. }
            | Self::RunsFull { .. }
            | Self::Stranger { .. }
            | Self::Deadline
            | Self::ShuttingDown
            | Self::Gone
            | Self::DeadLetter => true,
            Self::Gate { .. } | Self::Warming { .. } | Self::Restarted | Self::Everywhere { .. } => false,
        }
    }

    /// The outward shape.
    pub(crate) fn to_envelope(&self, agent: &str) -> Envelope {
        let message = self.to_string();
        let envelope = match self {
            Self::Everywhere { spoken, retry_after, tries } => {
                let mut envelope = spoken.to_envelope(agent).with_detail("tries", serde_json::json!(tries));
                envelope.message = message;
                match retry_after {
                    Some(wait) => envelope.with_retry_after(*wait),
                    None => envelope,
                }
            }
            Self::Gate { breaker, refusal, now, jitter } => gate_envelope(breaker, refusal, *now, *jitter, message),
            Self::Stranger { stranger } => stranger_envelope(*stranger),
            Self::Tokens { refused } => tokens_envelope(refused, message),
            Self::RunSpent { reached } => Envelope::new(ErrorCode::QuotaSpent, message).with_detail("cap", reached.cap),
            Self::RunsFull { bytes_max, retry_after } => Envelope::new(ErrorCode::LoadShed, message)
                .with_retry_after(retry_after.as_secs_f64())
                .with_detail("reason", RUNS_FULL)
                .with_detail("bytes_max", *bytes_max),
            Self::Rate { too_many, retry_after } => Envelope::new(ErrorCode::RateLimited, message)
                .with_retry_after(retry_after.as_secs_f64())
                .with_detail("limit", &*too_many.of)
                .with_detail("requests_per_minute", too_many.per_minute.get()),
            Self::Shed { shed } => Envelope::new(ErrorCode::LoadShed, message)
                .with_retry_after(shed.retry_after.as_secs_f64())
                .with_detail("compartment", &*shed.compartment),
            Self::Volume { shut } => {
                Envelope::new(ErrorCode::CallVolumeExceeded, message).with_retry_after(shut.retry_after.as_secs_f64())
            }
            Self::Bulkhead { compartment, full, line, .. } => bulkhead_envelope(compartment, *full, *line, &message),
            Self::Warming { model, wait } => Envelope::new(ErrorCode::AgentWarming, message)
                .with_retry_after(wait.as_secs_f64())
                .with_detail("model", &**model),
            Self::Deadline => Envelope::new(ErrorCode::DeadlineExceeded, message),
            Self::ShuttingDown => Envelope::new(ErrorCode::ShuttingDown, message).with_retry_after(1.0),
            Self::Gone => Envelope::new(ErrorCode::NotFound, message),
            Self::DeadLetter => Envelope::new(ErrorCode::Internal, message).with_detail("reason", "dead_letter"),
            Self::Restarted => Envelope::new(ErrorCode::AgentRestarted, message).with_retry_after(1.0),
        };
        envelope.with_agent(agent)
    }
}

/// Whether another target may have tokens left where this one has none.
fn is_of_target(refused: &NoTokens) -> bool {
    matches!(refused.account, AccountId::Provider(_) | AccountId::Target(_))
}

fn bulkhead_envelope(compartment: &str, full: Full, line: Option<LineFull>, message: &str) -> Envelope {
    let text = line.map_or_else(|| message.to_owned(), |line| format!("{message}, and {line}"));
    let envelope = Envelope::new(ErrorCode::AgentBulkheadFull, text)
        .with_retry_after(full.retry_after.as_secs_f64())
        .with_detail("compartment", compartment);
    match line {
        Some(line) => envelope.with_detail("line_max", line.length_max),
        None => envelope,
    }
}

fn tokens_envelope(refused: &NoTokens, message: String) -> Envelope {
    let envelope = match refused.refusal {
        BudgetRefusal::TooLarge { limit } => {
            Envelope::new(ErrorCode::TokenRequestTooLarge, message).with_detail("limit", limit)
        }
        BudgetRefusal::Exhausted { retry_after } => {
            Envelope::new(ErrorCode::TokenBudgetExhausted, message).with_retry_after(retry_after.as_secs_f64())
        }
    };
    envelope.with_detail("compartment", refused.account.to_string())
}

/// Whether a refusal of ours is for want of a name, of an agent, feature or tenant, that the next reload may bring back.
pub(crate) fn wants_a_name(envelope: &Envelope) -> bool {
    match envelope.error_code {
        ErrorCode::NotFound => true,
        ErrorCode::InvalidRequest => envelope.details.contains_key("compartment"),
        _ => false,
    }
}

/// What whoever may not call by its feature or tenant is told.
pub(crate) fn stranger_envelope(stranger: Stranger) -> Envelope {
    let message = stranger.to_string();
    match stranger {
        Stranger::Feature | Stranger::NoFeature | Stranger::Tenant | Stranger::NoTenant => {
            let compartment = match stranger {
                Stranger::Feature | Stranger::NoFeature => "feature",
                _ => "tenant",
            };
            Envelope::new(ErrorCode::InvalidRequest, message).with_detail("compartment", compartment)
        }
        Stranger::TooManyTenants => Envelope::new(ErrorCode::AgentBulkheadFull, message)
            .with_retry_after(RETRY_AFTER_MAX.as_secs_f64())
            .with_detail("compartment", "tenants"),
    }
}

fn gate_envelope(breaker: &str, refusal: &GateRefusal, now: Timestamp, jitter: f64, message: String) -> Envelope {
    let code = match refusal.reason {
        // Terminal: no client should loop on a quota that is gone.
        Reason::QuotaSpent if refusal.until.is_some() => ErrorCode::QuotaSpent,
        _ => ErrorCode::AgentCircuitOpen,
    };
    let rest = refusal.until.map(|until| until.since(now)).filter(|rest| !rest.is_zero());
    let envelope =
        Envelope::new(code, message).with_detail("breaker", breaker).with_detail("reason", refusal.reason.as_str());
    // Shut until somebody acts: no wait is the right one.
    if rest.is_none() && matches!(refusal.reason, Reason::Forced | Reason::KeyRejected) {
        return envelope;
    }
    // Half-open with all trials taken: nobody knows when, so callers are spread instead.
    let spread = TRIALS_TAKEN_RETRY_AFTER.mul_f64(1.0 + TRIALS_TAKEN_SPREAD * jitter);
    envelope.with_retry_after(rest.unwrap_or(spread).as_secs_f64())
}

/// The outward shape of a call that was sent and failed.
pub(crate) fn failure_envelope(failure: &AttemptFailure, agent: &str, keyed: Keyed, attempts: u32) -> Envelope {
    let code = outward_code(&failure.ending);
    let mut envelope = Envelope::new(code, failure.message.clone()).with_agent(agent);
    if let Some(text) = &failure.user_message {
        envelope.user_message.clone_from(text);
    }
    if code == ErrorCode::AgentError {
        let status = match failure.ending {
            Ending::Status { status, .. } => Some(status),
            _ => failure.status,
        };
        let rejected_key = keyed == Keyed::Yes && matches!(status, Some(401 | 403));
        // Only an error's status can be handed on; whatever else an agent named is a bad gateway.
        let as_sent = status.filter(|status| (400..600).contains(status));
        envelope.http_status = if rejected_key { 502 } else { as_sent.unwrap_or(502) };
        envelope.retryable = !rejected_key && is_retryable(&failure.ending);
    } else if matches!(code, ErrorCode::AgentBadReply) {
        envelope.retryable = failure.ending != Ending::CallerShape;
    }
    // Of a quota that comes back it is known when, though nobody should wait for it here.
    let wait = match failure.ending {
        Ending::Status { quota_spent: Some(QuotaReset::In(reset)), .. } => Some(reset),
        _ => failure.retry_after.filter(|_| envelope.retryable),
    };
    if let Some(wait) = wait {
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
        Ending::BadReply | Ending::NoDraft | Ending::StreamCut | Ending::CallerShape => ErrorCode::AgentBadReply,
        Ending::Status { quota_spent: Some(_), .. } => ErrorCode::QuotaSpent,
        Ending::Status { content_filter: true, .. } => ErrorCode::ContentFiltered,
        Ending::Status { context_too_long: true, .. } => ErrorCode::TokenRequestTooLarge,
        Ending::Status { .. } => ErrorCode::AgentError,
        Ending::Cancelled { .. } => ErrorCode::Cancelled,
        Ending::DeadlineCut => ErrorCode::DeadlineExceeded,
        Ending::Restarted => ErrorCode::AgentRestarted,
        // Refusals of the runtime have their own shape (see `Refusal`): as the end of an attempt only an adapter gives it, for a
        // service that is not up yet.
        Ending::OwnRefusal | Ending::Loading => ErrorCode::AgentWarming,
        Ending::Success | Ending::Internal => ErrorCode::Internal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::facts::TimeoutKind;

    fn status(status: u16, retryable: Option<bool>) -> Ending {
        Ending::Status { status, retryable, content_filter: false, context_too_long: false, quota_spent: None }
    }

    #[test]
    fn failures_as_envelopes() {
        let filtered = Ending::Status {
            status: 400,
            retryable: None,
            content_filter: true,
            context_too_long: false,
            quota_spent: None,
        };
        let too_long = Ending::Status {
            status: 400,
            retryable: None,
            content_filter: false,
            context_too_long: true,
            quota_spent: None,
        };
        let spent = Ending::Status {
            status: 429,
            retryable: Some(true),
            content_filter: false,
            context_too_long: false,
            quota_spent: Some(QuotaReset::Unknown),
        };
        for (ending, want) in [
            (status(503, None), ("AGENT_ERROR", 503, true)),
            (status(503, Some(false)), ("AGENT_ERROR", 503, false)),
            (status(404, None), ("AGENT_ERROR", 404, false)),
            (status(409, Some(true)), ("AGENT_ERROR", 409, true)),
            (status(429, None), ("AGENT_ERROR", 429, true)),
            (status(302, None), ("AGENT_ERROR", 502, false)),
            (filtered, ("CONTENT_FILTERED", 422, false)),
            (too_long, ("TOKEN_REQUEST_TOO_LARGE", 413, false)),
            (spent, ("QUOTA_SPENT", 402, false)),
            (Ending::Network { connected: true }, ("AGENT_NETWORK_ERROR", 502, true)),
            (Ending::Timeout { timeout: TimeoutKind::Stall }, ("AGENT_TIMEOUT", 504, true)),
            (Ending::BadReply, ("AGENT_BAD_REPLY", 502, true)),
            (Ending::StreamCut, ("AGENT_BAD_REPLY", 502, true)),
            (Ending::NoDraft, ("AGENT_BAD_REPLY", 502, true)),
            (Ending::CallerShape, ("AGENT_BAD_REPLY", 502, false)),
            (Ending::Cancelled { slow_without_content: true }, ("CANCELLED", 499, false)),
            (Ending::DeadlineCut, ("DEADLINE_EXCEEDED", 504, false)),
            (Ending::OwnRefusal, ("AGENT_WARMING", 503, true)),
            (Ending::Loading, ("AGENT_WARMING", 503, true)),
            (Ending::Restarted, ("AGENT_RESTARTED", 503, true)),
            (Ending::Internal, ("INTERNAL", 500, false)),
        ] {
            let failure = AttemptFailure {
                retry_after: Some(Duration::from_millis(200)),
                upstream_code: Some("NO_INK".to_owned()),
                user_message: Some("잉크가 없습니다".to_owned()),
                ..AttemptFailure::new(ending, "why")
            };
            let envelope = failure_envelope(&failure, "draft", Keyed::No, 2);
            assert_eq!((envelope.error_code.as_str(), envelope.http_status, envelope.retryable), want);
            assert_eq!(envelope.retry_after, want.2.then_some(1.0), "{want:?}: no wait helps what cannot be repeated");
            assert_eq!((envelope.agent.as_deref(), envelope.user_message.as_str()), (Some("draft"), "잉크가 없습니다"));
            assert_eq!(
                (&envelope.details["upstream_code"], &envelope.details["attempts"]),
                (&"NO_INK".into(), &2.into())
            );
        }
    }

    #[test]
    fn a_quota_that_comes_back_says_when() {
        let ending = Ending::Status {
            status: 429,
            retryable: Some(true),
            content_filter: false,
            context_too_long: false,
            quota_spent: Some(QuotaReset::In(Duration::from_secs(11))),
        };
        let envelope = failure_envelope(&AttemptFailure::new(ending, "spent"), "draft", Keyed::Yes, 1);
        assert_eq!((envelope.error_code.as_str(), envelope.retryable), ("QUOTA_SPENT", false));
        assert_eq!(envelope.retry_after, Some(11.0));
    }

    #[test]
    fn a_key_of_ours_that_was_refused_is_no_fault_of_the_caller() {
        for code in [401, 403] {
            let failure = AttemptFailure::new(status(code, Some(true)), "no such key");
            let keyed = failure_envelope(&failure, "draft", Keyed::Yes, 1);
            assert_eq!((keyed.http_status, keyed.retryable), (502, false));
            assert_eq!(failure_envelope(&failure, "draft", Keyed::No, 1).http_status, code);
        }
    }
}
