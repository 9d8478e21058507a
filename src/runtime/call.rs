//! One logical use of an agent: what is asked, what comes back, and what a caller may say beside the input.

use std::{sync::Arc, time::Duration};

use serde_json::Value;
use tokio::sync::mpsc;

use super::{compartments::Asking, deferred::store::Ticket, ports::Asked, relay::Relay};
use crate::{
    model::{
        clock::Timestamp,
        envelope::{Envelope, ErrorCode},
        reply::Usage,
        run::{AttemptRecord, Cause},
    },
    policy::{
        compartment::directory::Names,
        fallback::{Content, Elsewhere},
        ladder::Rung,
    },
};

/// Who asks, for what, and until when. All of it travels with every attempt.
#[derive(Debug, Clone, Default)]
pub struct CallContext {
    /// The run that this call belongs to.
    pub run_id: Option<String>,
    /// The step of the run.
    pub step: Option<String>,
    /// The same over attempts, re-sends and restarts; a random one is made where none is given.
    pub idempotency_key: Option<String>,
    /// W3C trace context, handed on as it is.
    pub traceparent: Option<String>,
    /// The tenant.
    pub tenant: Option<String>,
    /// The feature.
    pub feature: Option<String>,
    /// The class.
    pub priority: Option<String>,
    /// The name of the key that it was asked for with; never the key.
    pub key_id: Option<String>,
    /// The caller's own user.
    pub user: Option<String>,
    /// A prompt that replaces the agent's own, where it has one.
    pub prompt: Option<Arc<str>>,
    /// No attempt runs past this moment of the runtime's clock.
    pub deadline: Option<Timestamp>,
    /// A tighter timeout of this call than the agent's own.
    pub timeout: Option<Duration>,
    /// What is asked, for guards that must know its size; the runtime puts it there itself where the request is at hand.
    pub asked: Option<Asked>,
    /// Whether something may stand in for the agent.
    pub ladder: LadderUse,
    /// Whether its feature and tenant must be known now, or were when it was let in.
    pub names: Names,
    /// Models at their places (`provider/model`) that this call has been to: it goes to none of them again.
    pub places_asked: Vec<Arc<str>>,
    /// So long it has stood in line before, for another agent that it was refused at: one call is one stay in line.
    pub waited: Duration,
}

/// Whether a call goes down its ladder when it is refused or fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LadderUse {
    /// It does, where there is one.
    #[default]
    Walk,
    /// Only the agent's own answer is wanted.
    Never,
    /// It is a rung of a ladder itself, for a call that was counted among its caller's and its feature's: that one is not counted again.
    StandsIn,
}

/// What stood in for a call that was refused or failed, and why.
#[derive(Debug, Clone, PartialEq)]
pub struct Degraded {
    /// Why.
    pub cause: Cause,
    /// The rung that answered.
    pub action: Rung,
    /// The first error.
    pub error: Envelope,
}

impl CallContext {
    /// Of whoever this process is: a program's own call, or the supervisor's. It is of no feature and no tenant, whatever is asked of
    /// callers: it needs slots of provider and agent only.
    pub fn own() -> Self {
        Self { names: Names::Accepted, ..Self::default() }
    }

    /// Whose slots it needs.
    pub(crate) fn asking(&self) -> Asking<'_> {
        let (feature, tenant) = (self.feature.as_deref(), self.tenant.as_deref());
        Asking { feature, tenant, class: self.priority.as_deref(), names: self.names }
    }
}

/// A call.
#[derive(Debug, Clone)]
pub struct CallRequest {
    /// The agent's input.
    pub input: Arc<Value>,
    /// Who asks.
    pub context: CallContext,
    /// Where pieces of content go as they come; `None` if nobody watches.
    pub deltas: Option<mpsc::Sender<String>>,
    /// Where failed attempts go that another one follows, as soon as that is decided; what does not fit is left out.
    pub retried: Option<mpsc::Sender<AttemptRecord>>,
    /// Somebody else's request, to be passed on as it is by an agent that can ([`super::handle::AgentHandle::relays`]); the input
    /// then says nothing.
    pub relay: Option<Relay>,
}

/// A target that was passed over, and why.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Try {
    /// `provider/model`.
    pub target: Arc<str>,
    /// How it ended there.
    pub error_code: ErrorCode,
    /// The status that it answered with, if it did.
    pub status: Option<u16>,
    /// What it said.
    pub message: String,
    /// Seconds until it can be asked again, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after: Option<f64>,
}

impl CallRequest {
    /// A call with nothing but an input.
    pub fn of(input: Value) -> Self {
        Self { input: Arc::new(input), context: CallContext::default(), deltas: None, retried: None, relay: None }
    }
}

/// A good end.
#[derive(Debug, Clone, PartialEq)]
pub struct CallReply {
    /// The agent's output.
    pub output: Value,
    /// Tokens of all attempts; `None` where no model was used.
    pub usage: Option<Usage>,
    /// Why the model stopped.
    pub finish_reason: Option<String>,
    /// Every exchange, the good one last.
    pub attempts: Vec<AttemptRecord>,
    /// The call's outward id.
    pub call_id: String,
    /// How long the attempts took together, without waits and without anything of ours.
    pub spent: Duration,
    /// The target that answered (`provider/model`).
    pub target: Arc<str>,
    /// The same, where others were passed over before it.
    pub fallback: Option<Arc<str>>,
    /// The targets that were passed over before it.
    pub tries: Vec<Try>,
    /// What stood in for the agent, if something did.
    pub degraded: Option<Box<Degraded>>,
}

/// A bad end.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{}: {}", .envelope.error_code, .envelope.message)]
pub struct CallError {
    /// The outward shape.
    pub envelope: Box<Envelope>,
    /// True if nothing was sent: our own refusal. Such a call can be asked again without paying twice.
    pub nothing_sent: bool,
    /// True if outer layers must not try again: the attempts were used up, or no try can succeed.
    pub exhausted: bool,
    /// Every exchange.
    pub attempts: Vec<AttemptRecord>,
    /// Tokens that failed attempts are known to have used.
    pub usage: Option<Usage>,
    /// The call's outward id, if it came to be one.
    pub call_id: Option<String>,
    /// How long the attempts took together.
    pub spent: Duration,
    /// The target whose error this is; `None` for a refusal of our own.
    pub target: Option<Arc<str>>,
    /// Every target that was tried, this one included, where the agent has several; also in the envelope's `details`.
    pub tries: Vec<Try>,
    /// The rung of the ladder that the error stands for: the call is made later, or it carries a notice.
    pub degraded: Option<Box<Degraded>>,
    /// Where the answer will be found, if the call is made later.
    pub deferred: Option<Box<Ticket>>,
    /// Whether part of an answer is out.
    pub(crate) content: Content,
    /// Whether another target of the agent may answer instead.
    pub(crate) elsewhere: Elsewhere,
}

/// How long a call waited between its attempts, to a millisecond each.
pub fn waited_between(attempts: &[AttemptRecord]) -> Duration {
    let gap = |pair: &[AttemptRecord]| {
        pair[1].started_ms.saturating_sub(pair[0].started_ms.saturating_add(pair[0].duration_ms))
    };
    Duration::from_millis(attempts.windows(2).map(gap).sum())
}

impl CallError {
    /// A refusal of our own.
    pub(crate) fn refused(envelope: Envelope) -> Self {
        let exhausted = !envelope.retryable;
        Self {
            envelope: Box::new(envelope),
            nothing_sent: true,
            exhausted,
            attempts: Vec::new(),
            usage: None,
            call_id: None,
            spent: Duration::ZERO,
            target: None,
            tries: Vec::new(),
            degraded: None,
            deferred: None,
            content: Content::None,
            elsewhere: Elsewhere::MayNot,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_between_attempts() {
        let attempt = |started_ms, duration_ms| AttemptRecord {
            started_ms,
            duration_ms,
            status: None,
            error_code: None,
            retry_after: None,
        };
        for (attempts, want) in [
            (vec![], 0),
            (vec![attempt(5, 100)], 0),
            (vec![attempt(0, 10), attempt(500, 10), attempt(1_510, 3)], 490 + 1_000),
            // A clock that went back, or rounding, is no wait.
            (vec![attempt(100, 10), attempt(109, 10)], 0),
        ] {
            assert_eq!(waited_between(&attempts), Duration::from_millis(want), "{attempts:?}");
        }
    }
}
