//! A call that was put off as people and programs see it: the object of `GET /v1/deferred/{id}` and of what is pushed. It shows no input.

use serde::Serialize;
use serde_json::Value;

use super::store::{DeferredEntry, DeferredResult, DeferredStatus, Delivery};
use crate::model::{envelope::Envelope, reply::Usage, run::Cause};

/// One entry. Times are Unix milliseconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DeferredView {
    /// Its id.
    pub id: String,
    /// Who is asked.
    pub agent: String,
    /// Where it stands.
    pub status: DeferredStatus,
    /// Why it was put off.
    pub cause: Cause,
    /// Whose it is.
    pub tenant: Option<String>,
    /// For which feature.
    pub feature: Option<String>,
    /// The run that it belonged to.
    pub run_id: Option<String>,
    /// The step in that run.
    pub step: Option<String>,
    /// When it was put off.
    pub created_ms: u64,
    /// When it is made next; nothing once it is over.
    pub due_ms: Option<u64>,
    /// From when on it is not made any more.
    pub expires_ms: u64,
    /// When it ended.
    pub ended_ms: Option<u64>,
    /// How often it was sent.
    pub attempts: u32,
    /// How often a guard refused it when its time had come.
    pub refusals: u32,
    /// The answer: the agent's output, or the whole answer to a request that was passed on.
    pub output: Option<Value>,
    /// Tokens.
    pub usage: Option<Usage>,
    /// The target that answered.
    pub target: Option<String>,
    /// How it failed; until it is over, why it was put off.
    pub error: Option<Envelope>,
    /// Telling somebody of its end.
    pub delivery: Option<Delivery>,
}

impl From<DeferredEntry> for DeferredView {
    fn from(entry: DeferredEntry) -> Self {
        let DeferredEntry { head, status, attempts, refusals, due_ms, leased: _, ended_ms, result, delivery } = entry;
        let empty = DeferredResult { output: None, usage: None, target: None, error: None };
        let waits = status == DeferredStatus::Waiting;
        let result = if waits { DeferredResult { error: Some(head.error), ..empty } } else { result.unwrap_or(empty) };
        Self {
            id: head.id,
            agent: head.agent,
            status,
            cause: head.cause,
            tenant: head.owner.tenant,
            feature: head.owner.feature,
            run_id: head.run_id,
            step: head.step,
            created_ms: head.created_ms,
            due_ms: waits.then_some(due_ms),
            expires_ms: head.expires_ms,
            ended_ms,
            attempts,
            refusals,
            output: result.output,
            usage: result.usage,
            target: result.target,
            error: result.error,
            delivery,
        }
    }
}
