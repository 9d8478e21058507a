//! The port of attempts that are kept word for word: a backend leaves what it heard in the attempt's slot, the end of the attempt decides
//! whether that is kept, a sink takes it away. One way: nothing here waits, and without a sink no attempt has a slot.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use serde_json::{Value, json};

use super::{
    core::{AgentCore, Shared},
    ports::{AttemptRequest, Progress},
};
use crate::{
    model::{
        name::Name,
        reply::{AttemptFailure, Reply},
    },
    policy::capture::CaptureRule,
};

/// Draws of samples are independent of every other use of chance.
const CHANCE_OF_CAPTURES: u64 = 0x6361_7074_7572_6573;

/// An exchange as a backend heard it. Laid out and redacted only when it is asked for, which may take a while: not on a worker thread.
pub trait Recorded: Send + Sync {
    /// About how many bytes it holds.
    fn bytes(&self) -> usize;
    /// What was said, without anything secret.
    fn said(&self) -> Said;
    /// The same value without anything secret.
    fn redact(&self, value: Value) -> Value;
}

/// What was said in an exchange, redacted and bounded.
#[derive(Debug, Clone, PartialEq)]
pub struct Said {
    /// What was sent.
    pub prompt: Value,
    /// What came back, as it came: a body, or the frames of a stream; `None` if no answer began.
    pub answer: Option<String>,
    /// The text of a stream, put together.
    pub text: Option<String>,
}

/// Where an attempt's backend leaves what it hears. All clones are one slot; the first exchange is the attempt's.
#[derive(Clone, Default)]
pub struct CaptureSlot(Arc<OnceLock<Arc<dyn Recorded>>>);

impl CaptureSlot {
    /// The exchange begins.
    pub fn put(&self, recorded: Arc<dyn Recorded>) {
        // A second exchange in one attempt is none of a model's.
        let _ = self.0.set(recorded);
    }

    /// What was heard so far.
    pub fn get(&self) -> Option<Arc<dyn Recorded>> {
        self.0.get().cloned()
    }
}

impl fmt::Debug for CaptureSlot {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("CaptureSlot")
    }
}

/// An attempt that is kept.
pub struct AttemptCapture {
    /// For whom it was.
    pub tenant: Option<String>,
    /// The run that it belonged to.
    pub run_id: Option<String>,
    /// The step.
    pub step: Option<String>,
    /// The agent.
    pub agent: Name,
    /// Which of its targets: `provider/model`.
    pub target: Arc<str>,
    /// The call.
    pub call_id: String,
    /// 1 for the first attempt.
    pub attempt: u32,
    /// When it began, Unix milliseconds.
    pub at_ms: u64,
    /// How its answer was read: `output`, or `failure` with its reason. Not redacted yet.
    pub parsed: Value,
    /// What its backend heard.
    pub recorded: Arc<dyn Recorded>,
}

impl fmt::Debug for AttemptCapture {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("AttemptCapture")
            .field("call_id", &self.call_id)
            .field("attempt", &self.attempt)
            .finish_non_exhaustive()
    }
}

/// Takes what is kept. Called on a worker thread at the end of an attempt, so it never blocks: what does not fit is left out and counted.
pub trait CaptureSink: Send + Sync + 'static {
    /// Keeps this one, or leaves it out.
    fn keep(&self, capture: AttemptCapture);
}

/// What is kept, and by whom.
#[derive(Clone)]
pub struct Captures {
    pub(crate) rule: CaptureRule,
    pub(crate) sink: Arc<dyn CaptureSink>,
}

impl Captures {
    /// `sink` takes what `rule` keeps.
    pub fn new(rule: CaptureRule, sink: Arc<dyn CaptureSink>) -> Self {
        Self { rule, sink }
    }
}

impl fmt::Debug for Captures {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Captures").field("rule", &self.rule).finish_non_exhaustive()
    }
}

/// A slot for the next attempt, if any attempts are kept.
pub(crate) fn slot(shared: &Shared) -> Option<CaptureSlot> {
    shared.captures.as_ref().map(|_| CaptureSlot::default())
}

/// An attempt ended: it is kept if the rule says so and its backend heard anything.
pub(crate) fn settle(
    shared: &Shared,
    agent: &AgentCore,
    request: &AttemptRequest,
    progress: &Progress,
    ended: &Result<Reply, AttemptFailure>,
) {
    let (Some(captures), Some(slot)) = (&shared.captures, &request.capture) else { return };
    let ending = ended.as_ref().map(|_| ()).map_err(|failure| &failure.ending);
    let chance = shared.chance.fork(CHANCE_OF_CAPTURES).share(shared.next_call());
    if !captures.rule.keeps(ending, chance) {
        return;
    }
    let Some(recorded) = slot.get() else { return };
    captures.sink.keep(AttemptCapture {
        tenant: request.tenant.clone(),
        run_id: request.run_id.clone(),
        step: request.step.clone(),
        agent: request.agent.clone(),
        target: Arc::clone(&agent.target),
        call_id: request.call_id.clone(),
        attempt: request.attempt,
        at_ms: shared.clock.unix_ms(progress.started()),
        parsed: parsed(request, ended),
        recorded,
    });
}

/// How an answer was read. A relayed answer is passed on unread, so it has no output of ours.
fn parsed(request: &AttemptRequest, ended: &Result<Reply, AttemptFailure>) -> Value {
    match ended {
        Ok(reply) if request.relay.is_some() => {
            json!({ "status": reply.status, "finish_reason": reply.finish_reason, "usage": reply.usage })
        }
        Ok(reply) => json!({
            "output": reply.output, "status": reply.status, "finish_reason": reply.finish_reason, "usage": reply.usage
        }),
        Err(failure) => json!({ "failure": {
            "ending": failure.ending, "message": failure.message, "status": failure.status,
            "upstream_code": failure.upstream_code
        }}),
    }
}
