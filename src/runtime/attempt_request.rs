//! What a backend is asked for, made of what the caller asked for. It starts nothing.

use std::{sync::Arc, time::Duration};

use tokio::sync::mpsc;

use super::{
    call::CallRequest,
    permit::Lease,
    ports::{AttemptRequest, AttemptTimeouts, Hold},
    settings::AgentSettings,
};
use crate::model::run::AttemptRecord;

/// Who is told of a call while it runs.
pub(super) struct Watchers {
    pub(super) deltas: Option<mpsc::Sender<String>>,
    pub(super) retried: Option<mpsc::Sender<AttemptRecord>>,
}

/// What all attempts of call `call_id` are asked for, number and deadline being each attempt's own; and who watches.
pub(super) fn attempt_request(
    request: CallRequest,
    settings: &AgentSettings,
    call_id: &str,
    lease: &Arc<Lease>,
) -> (AttemptRequest, Watchers) {
    let CallRequest { input, context, deltas, retried, relay } = request;
    let attempt_request = AttemptRequest {
        agent: settings.name.clone(),
        input,
        call_id: call_id.to_owned(),
        run_id: context.run_id,
        step: context.step,
        attempt: 0,
        idempotency_key: context.idempotency_key.unwrap_or_else(|| call_id.to_owned()),
        traceparent: context.traceparent,
        deadline: Duration::ZERO,
        tenant: context.tenant,
        feature: context.feature,
        priority: context.priority,
        prompt: context.prompt,
        timeouts: AttemptTimeouts { first_token: settings.timeouts.first_token, stall: settings.timeouts.stall },
        hold: Hold::of(Arc::clone(lease) as Arc<dyn Send + Sync>),
        relay,
        capture: None,
    };
    (attempt_request, Watchers { deltas, retried })
}
