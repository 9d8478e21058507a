//! The deferred queue of a runtime: how a call is put off, and when one that was put off is made. The rules stand here, the entries in
//! the store; whoever makes them is the worker.

use std::{collections::HashMap, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::{
    push::Push,
    settings::DeferredSettings,
    store::{DeferredCall, DeferredHead, DeferredStore, DeferredWork, Held, Put, Ticket},
};
use crate::{
    model::{
        clock::Timestamp,
        envelope::{Envelope, ErrorCode},
        run::Cause,
    },
    policy::chance::Chance,
    runtime::{
        call::{CallContext, CallRequest},
        core::{Shared, lock},
        handle::AgentHandle,
        journal::RunOwner,
        metric,
        sync::Mutex,
    },
};

/// Draws for the queue are independent of every other use of chance.
const CHANCE_OF_DELAYS: u64 = 0x6465_6665_7272;
/// A full queue has room again when entries have been made: not at once.
const FULL_RETRY_AFTER: f64 = 60.0;

/// The queue.
pub(crate) struct DeferredQueue {
    pub(crate) store: Arc<dyn DeferredStore>,
    pub(crate) settings: ArcSwap<DeferredSettings>,
    pub(crate) push: Option<Arc<dyn Push>>,
    /// This life of this process: what leases are taken in the name of.
    pub(crate) owner: String,
    /// Something new is to be looked at.
    pub(crate) news: Notify,
    /// Entries whose calls are under way here, by id.
    pub(crate) under_way: Mutex<HashMap<String, UnderWay>>,
}

/// A call of an entry that is under way here.
pub(crate) struct UnderWay {
    pub(crate) agent: String,
    pub(crate) tenant: Option<String>,
    /// The run that put it off.
    pub(crate) run_id: Option<String>,
    pub(crate) abort: CancellationToken,
}

impl UnderWay {
    pub(crate) fn of(head: &DeferredHead, abort: CancellationToken) -> Self {
        let (agent, tenant, run_id) = (head.agent.clone(), head.owner.tenant.clone(), head.run_id.clone());
        Self { agent, tenant, run_id, abort }
    }
}

impl DeferredQueue {
    pub(crate) fn new(
        store: Arc<dyn DeferredStore>,
        settings: DeferredSettings,
        push: Option<Arc<dyn Push>>,
        owner: String,
    ) -> Self {
        let settings = ArcSwap::from_pointee(settings);
        Self { store, settings, push, owner, news: Notify::new(), under_way: Mutex::default() }
    }

    /// Keeps a call for later. An error says why it cannot be kept; nothing was stored then.
    pub(crate) async fn put_off(
        &self,
        front: &AgentHandle,
        request: &CallRequest,
        cause: Cause,
        error: &Envelope,
    ) -> Result<Ticket, Envelope> {
        let shared = &front.shared;
        let call = self.entry(shared, front.name().as_str(), request, cause, error)?;
        let DeferredHead { id, due_ms, expires_ms, .. } = &call.head;
        let ticket = Ticket { id: id.clone(), due_ms: *due_ms, expires_ms: *expires_ms };
        let bounds = self.settings.load().bounds;
        let put = self.store.put(call, bounds).await;
        let (word, result) = match put {
            Ok(Put::New) => {
                self.news.notify_one();
                ("kept", Ok(ticket))
            }
            Ok(Put::Known(known)) => ("known", Ok(known)),
            Ok(Put::Conflict) => {
                let message = "another call is kept under this idempotency key: send the same one again, or this one with a key of its own";
                ("refused", Err(Envelope::new(ErrorCode::Conflict, message)))
            }
            Ok(Put::Full { bound }) => {
                let envelope = Envelope::new(ErrorCode::AgentBulkheadFull, "as many calls are put off as may be")
                    .with_retry_after(FULL_RETRY_AFTER)
                    .with_detail("compartment", bound);
                ("refused", Err(envelope))
            }
            Err(error) => ("refused", Err(Envelope::new(ErrorCode::Internal, error.to_string()))),
        };
        count(word);
        result
    }

    /// What is kept of a call.
    fn entry(
        &self,
        shared: &Shared,
        agent: &str,
        request: &CallRequest,
        cause: Cause,
        error: &Envelope,
    ) -> Result<DeferredCall, Envelope> {
        let settings = self.settings.load();
        let context = &request.context;
        let work = work_of(request);
        let text = json!({ "agent": agent, "work": work }).to_string();
        if text.len() as u64 > settings.entry_bytes_max {
            let message = format!("{} bytes are more than {} that are kept", text.len(), settings.entry_bytes_max);
            return Err(Envelope::new(ErrorCode::TokenRequestTooLarge, message));
        }
        let now = shared.now();
        let created_ms = shared.clock.unix_ms(now);
        let id = shared.call_id(now);
        let mut owner = owner_of(context, &settings.priority);
        // A name that nobody knows is nobody's: it is made, counted and told of as the feature that takes it in.
        if let Some(feature) = shared.compartments.feature_of(context.feature.as_deref()) {
            owner.feature = Some(feature.to_string());
        }
        let hash = context.idempotency_key.is_some().then(|| hex(&Sha256::digest(text.as_bytes())));
        let head = DeferredHead {
            idempotency_key: context.idempotency_key.clone().unwrap_or_else(|| id.clone()),
            id,
            agent: agent.to_owned(),
            request_hash: hash,
            run_id: context.run_id.clone(),
            step: context.step.clone(),
            cause,
            error: error.clone(),
            created_ms,
            due_ms: created_ms.saturating_add(milliseconds(self.delay(shared, None))),
            expires_ms: created_ms.saturating_add(milliseconds(settings.expires_after)),
            pushed: self.push.as_ref().is_some_and(|push| push.is_for(&owner)),
            owner,
        };
        Ok(DeferredCall { head, work })
    }

    /// How long until a call is made, or made again: the configured delay, lengthened by chance so that calls that were put off together
    /// do not come back together, and no shorter than the refusal asked for.
    pub(crate) fn delay(&self, shared: &Shared, retry_after: Option<f64>) -> Duration {
        let settings = self.settings.load();
        let chance: Chance = shared.chance.fork(CHANCE_OF_DELAYS);
        let lengthened = 1.0 + settings.jitter * chance.share(shared.next_call());
        let asked = retry_after.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).unwrap_or_default();
        settings.delay.max(asked).mul_f64(lengthened)
    }

    /// Ends the call of an entry that is wanted no more, if it is under way here.
    pub(crate) fn abort(&self, id: &str) {
        if let Some(under_way) = lock(&self.under_way).get(id) {
            under_way.abort.cancel();
        }
    }

    /// The same for all that a run put off.
    pub(crate) fn abort_run(&self, run_id: &str) {
        for under_way in lock(&self.under_way).values().filter(|call| call.run_id.as_deref() == Some(run_id)) {
            under_way.abort.cancel();
        }
    }

    /// The same for all of a tenant.
    pub(crate) fn abort_tenant(&self, tenant: &str) {
        for under_way in lock(&self.under_way).values().filter(|call| call.tenant.as_deref() == Some(tenant)) {
            under_way.abort.cancel();
        }
    }

    /// Whose calls are under way here, and how many of these `parallel` places one agent or tenant may have: one stays free for another,
    /// as calls that hang keep theirs for long.
    pub(crate) fn held(&self, parallel: usize) -> Held {
        let calls = lock(&self.under_way).values().map(|call| (call.agent.clone(), call.tenant.clone())).collect();
        Held { calls, of_one_max: parallel.saturating_sub(1).max(1) }
    }
}

/// What is asked, without how the caller wanted to be answered: nobody waits for pieces any more.
fn work_of(request: &CallRequest) -> DeferredWork {
    match &request.relay {
        Some(relay) => {
            DeferredWork::Relay { of: relay.kind, body: relay.body.with(&[("stream", None), ("stream_options", None)]) }
        }
        None => DeferredWork::Input {
            input: (*request.input).clone(),
            prompt: request.context.prompt.as_ref().map(ToString::to_string),
        },
    }
}

fn owner_of(context: &CallContext, priority: &str) -> RunOwner {
    RunOwner {
        tenant: context.tenant.clone(),
        feature: context.feature.clone(),
        priority: Some(priority.to_owned()),
        key_id: context.key_id.clone(),
        user: context.user.clone(),
        traceparent: context.traceparent.clone(),
    }
}

pub(super) fn count(result: &'static str) {
    metric::count(metric::DEFERRED, vec![metrics::Label::from_static_parts("result", result)], 1);
}

pub(super) fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A moment of the runtime's clock that is `unix_ms`.
pub(super) fn moment(shared: &Shared, unix_ms: u64) -> Timestamp {
    let now = shared.now();
    let now_ms = shared.clock.unix_ms(now);
    now.after(Duration::from_millis(unix_ms.saturating_sub(now_ms)))
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
