//! Makes calls that were put off, when their time has come: through the same guards as any other call, so many at once, each by one owner.
//! What a guard refuses waits on and is no attempt. Tells whoever is to know of an end. It survives nothing itself: what it had in hand is
//! leased, and taken up again by whoever comes after it, with the same idempotency key.

use std::{sync::Arc, time::Duration};

use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use super::{
    queue::{DeferredQueue, UnderWay, count, milliseconds, moment},
    store::{Again, DeferredResult, DeferredStatus, DeferredWork, Due, Held, Lease, Settled, Taken},
    telling::{Telling, tell},
};
use crate::{
    model::{
        envelope::{Envelope, ErrorCode},
        loose_json,
        raw_object::RawObject,
    },
    policy::{
        fallback::Elsewhere,
        ladder::{Ended, Fault, failure_of},
    },
    runtime::{
        call::{CallContext, CallError, CallReply, CallRequest, LadderUse},
        core::{Shared, lock},
        handle::AgentHandle,
        journal::JournalError,
        metric,
        refusal::wants_a_name,
        relay::{RELAY_PIECES_MAX, Relay, RelayForm, RelayPiece},
    },
    workflow::definition::OUTPUT_BYTES_MAX,
};

/// The worker looks at least so often, whatever it was told.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// A lease outlives the longest call by so much.
const LEASE_MARGIN: Duration = Duration::from_secs(60);
/// What the disk refuses is tried again after this.
const DISK_PAUSE: Duration = Duration::from_secs(2);
/// Tries to tell somebody that are under way at once.
const PUSHES_PARALLEL: usize = 32;
/// ... and of these of one tenant: whose receiver hangs keeps no others waiting.
const PUSHES_OF_ONE_MAX: usize = 8;

/// The worker of one runtime.
pub(crate) struct Worker {
    shared: Arc<Shared>,
    queue: Arc<DeferredQueue>,
    parallel: usize,
    calls: Arc<Semaphore>,
    pushes: Arc<Semaphore>,
}

impl Worker {
    pub(crate) fn new(shared: Arc<Shared>, queue: Arc<DeferredQueue>) -> Self {
        let parallel = queue.settings.load().parallel.max(1);
        let (calls, pushes) = (Arc::new(Semaphore::new(parallel)), Arc::new(Semaphore::new(PUSHES_PARALLEL)));
        Self { shared, queue, parallel, calls, pushes }
    }

    /// Works until the runtime stops, or leaves what is durable to another process.
    pub(crate) async fn work(self) {
        let stopping = self.shared.stopping.token();
        let leaving = self.shared.leaving_runs.clone();
        tokio::select! {
            biased;
            () = stopping.cancelled() => {}
            () = leaving.cancelled() => {}
            () = self.turn_for_ever() => {}
        }
    }

    async fn turn_for_ever(&self) {
        while let Err(error) = self.queue.store.take_over(&self.queue.owner).await {
            if error == JournalError::Closed {
                return;
            }
            tokio::time::sleep(DISK_PAUSE).await;
        }
        loop {
            let calls = self.begin_calls().await;
            let pushes = self.begin_pushes().await;
            let wait = match (calls, pushes) {
                (Err(JournalError::Closed), _) | (_, Err(JournalError::Closed)) => return,
                (Ok(calls), Ok(pushes)) => calls.into_iter().chain(pushes).min().unwrap_or(LOOK_EVERY).min(LOOK_EVERY),
                (Err(error), _) | (_, Err(error)) => {
                    tracing::warn!(%error, "the deferred queue cannot be looked at");
                    DISK_PAUSE
                }
            };
            tokio::select! {
                () = self.queue.news.notified() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Begins the calls that are due and that there is room for. How long until the next one is.
    async fn begin_calls(&self) -> Result<Option<Duration>, JournalError> {
        let room = self.calls.available_permits();
        if room == 0 {
            return Ok(None);
        }
        let lease = Lease { held: self.queue.held(self.parallel), ..self.lease(self.longest_call(), room) };
        let due = self.queue.store.take_due(lease).await?;
        self.show(&due);
        for taken in due.taken {
            let Ok(permit) = Arc::clone(&self.calls).try_acquire_owned() else { break };
            let (shared, queue) = (Arc::clone(&self.shared), Arc::clone(&self.queue));
            let (all, of_runs) = (self.shared.tracker.clone(), self.shared.run_steps.clone());
            let abort = self.shared.aborting_runs.child_token();
            let under_way = UnderWay::of(&taken.call.head, abort.clone());
            // Before the next look at the queue, which asks who has how much in hand.
            lock(&queue.under_way).insert(taken.call.head.id.clone(), under_way);
            all.spawn(of_runs.track_future(Making { shared, queue, taken, abort, permit: Some(permit) }.make()));
        }
        Ok(due.next_ms.map(|next| self.until(next)))
    }

    fn show(&self, due: &Due) {
        metric::set(metric::DEFERRED_DEPTH, Vec::new(), due.waiting as f64);
        if due.expired > 0 {
            metric::count(
                metric::DEFERRED,
                vec![metrics::Label::from_static_parts("result", DeferredStatus::Expired.as_str())],
                due.expired,
            );
            self.queue.news.notify_one();
        }
    }

    /// Begins to tell of ends that are due. How long until the next one is.
    async fn begin_pushes(&self) -> Result<Option<Duration>, JournalError> {
        let room = self.pushes.available_permits();
        if self.queue.push.is_none() || room == 0 {
            return Ok(None);
        }
        let timeout = self.queue.settings.load().push.timeout;
        let calls = lock(&self.queue.telling).values().cloned().collect();
        let held = Held { calls, of_one_max: PUSHES_OF_ONE_MAX };
        let lease = Lease { held, ..self.lease(timeout, room) };
        let (due, next_ms) = self.queue.store.take_pushes(lease).await?;
        for push in due {
            let Ok(permit) = Arc::clone(&self.pushes).try_acquire_owned() else { break };
            let (shared, queue) = (Arc::clone(&self.shared), Arc::clone(&self.queue));
            let (all, of_runs) = (self.shared.tracker.clone(), self.shared.run_steps.clone());
            let place = Telling::begin(&queue, &push, permit);
            all.spawn(of_runs.track_future(tell(shared, queue, push, place)));
        }
        Ok(next_ms.map(|next| self.until(next)))
    }

    fn lease(&self, longest: Duration, count_max: usize) -> Lease {
        let now_ms = self.shared.clock.unix_ms(self.shared.now());
        let until_ms = now_ms.saturating_add(milliseconds(longest.saturating_add(LEASE_MARGIN)));
        Lease { owner: self.queue.owner.clone(), now_ms, until_ms, count_max, held: Held::default() }
    }

    fn longest_call(&self) -> Duration {
        let table = self.shared.agents();
        table.agents.iter().map(|agent| agent.settings.timeouts.call).max().unwrap_or_default()
    }

    fn until(&self, unix_ms: u64) -> Duration {
        moment(&self.shared, unix_ms).since(self.shared.now()).max(Duration::from_millis(1))
    }
}

/// One entry, on its way.
struct Making {
    shared: Arc<Shared>,
    queue: Arc<DeferredQueue>,
    taken: Taken,
    abort: CancellationToken,
    /// Until its drop.
    permit: Option<OwnedSemaphorePermit>,
}

impl Drop for Making {
    /// Even one that panics gives its place back.
    fn drop(&mut self) {
        lock(&self.queue.under_way).remove(&self.taken.call.head.id);
        drop(self.permit.take());
        self.queue.news.notify_one();
    }
}

impl Making {
    async fn make(self) {
        let abort = self.abort.clone();
        let settled = tokio::select! {
            biased;
            result = self.call() => Some(self.settled(result)),
            // Cancelled, and so settled by whoever did; or left to whoever takes the queue over.
            () = abort.cancelled() => None,
        };
        if let Some(settled) = settled {
            self.write_down(settled, &abort).await;
        }
    }

    async fn call(&self) -> Result<CallReply, CallError> {
        let call = &self.taken.call;
        let Some(agent) = self.shared.agent(&call.head.agent) else {
            let gone = Envelope::new(ErrorCode::NotFound, format!("agent {} is not here", call.head.agent));
            return Err(CallError::refused(gone));
        };
        let handle = AgentHandle { shared: Arc::clone(&self.shared), agent };
        let context = self.context();
        match &call.work {
            DeferredWork::Input { input, prompt } => {
                let context = CallContext { prompt: prompt.as_deref().map(Into::into), ..context };
                handle.call_once(CallRequest { context, ..CallRequest::of(input.clone()) }).await
            }
            DeferredWork::Relay { of, body } => {
                let unreadable =
                    || CallError::refused(Envelope::new(ErrorCode::Internal, "what was kept is no object"));
                let body = RawObject::try_new(body.clone().into_bytes()).map_err(|_| unreadable())?;
                let (out, mut pieces) = mpsc::channel(RELAY_PIECES_MAX);
                let (kind, form) = (*of, RelayForm::Whole);
                let relay = Relay { kind, form, body: Arc::new(body), out, fallback: None, degraded: None, earlier: 0 };
                let request = CallRequest { context, relay: Some(relay), ..CallRequest::of(Value::Null) };
                let reply = handle.call_once(request).await?;
                let output = match pieces.try_recv() {
                    // It is kept as a value: better without what none can hold than not at all.
                    Ok(RelayPiece::Whole(bytes)) => loose_json::read(&bytes).unwrap_or_default(),
                    _ => Value::Null,
                };
                Ok(CallReply { output, ..reply })
            }
        }
    }

    fn context(&self) -> CallContext {
        let call = &self.taken.call.head;
        let owner = call.owner.clone();
        CallContext {
            run_id: call.run_id.clone(),
            step: call.step.clone(),
            idempotency_key: Some(call.idempotency_key.clone()),
            traceparent: owner.traceparent,
            tenant: owner.tenant,
            feature: owner.feature,
            priority: owner.priority,
            key_id: owner.key_id,
            user: owner.user,
            deadline: Some(moment(&self.shared, call.expires_ms)),
            // It is on a rung already, and its caller has made one call.
            ladder: if self.was_counted() { LadderUse::StandsIn } else { LadderUse::Never },
            ..CallContext::default()
        }
    }

    /// Whether its caller's and its feature's counts know the call: once it was sent they do. A refusal of ours has given back what it took.
    fn was_counted(&self) -> bool {
        let is_refusal = matches!(
            self.taken.call.head.error.error_code,
            ErrorCode::AgentCircuitOpen
                | ErrorCode::AgentBulkheadFull
                | ErrorCode::AgentWarming
                | ErrorCode::RateLimited
                | ErrorCode::TokenBudgetExhausted
                | ErrorCode::LoadShed
        );
        self.taken.attempts > 0 || !is_refusal
    }

    fn settled(&self, result: Result<CallReply, CallError>) -> Settled {
        let at_ms = self.shared.clock.unix_ms(self.shared.now());
        match result {
            Ok(reply) => {
                let bytes = reply.output.to_string().len();
                if bytes > OUTPUT_BYTES_MAX {
                    let message = format!("an output of {bytes} bytes is over the limit of {OUTPUT_BYTES_MAX}");
                    return Self::ended(Envelope::new(ErrorCode::AgentBadReply, message), 1, at_ms);
                }
                let (target, usage) = (Some(reply.target.to_string()), reply.usage);
                let result = Box::new(DeferredResult { output: Some(reply.output), usage, target, error: None });
                Settled::Ended { status: DeferredStatus::Done, sent: 1, result, at_ms }
            }
            Err(error) => self.settled_badly(error, at_ms),
        }
    }

    fn settled_badly(&self, error: CallError, at_ms: u64) -> Settled {
        let refused = error.nothing_sent;
        let by_us = refused && error.target.is_none() && error.elsewhere == Elsewhere::MayNot;
        let how = if by_us { Ended::Refused } else { Ended::Failed(error.elsewhere) };
        let code = error.envelope.error_code;
        if self.shared.holds_runs() && matches!(code, ErrorCode::ShuttingDown | ErrorCode::Cancelled) {
            return Settled::Again { due_ms: at_ms, why: Again::LetGo };
        }
        let fault = failure_of(code, how).fault;
        let attempts = self.taken.attempts.saturating_add(u32::from(!refused));
        // A file that is being edited, or a rename: what was promised stays promised until it is too old.
        let is_nobodys = fault == Fault::Nobody && !(by_us && wants_a_name(&error.envelope));
        let may_again = !is_nobodys && attempts < self.queue.settings.load().attempts_max;
        if !may_again {
            return Self::ended(*error.envelope, u32::from(!refused), at_ms);
        }
        let due_ms = at_ms.saturating_add(milliseconds(self.queue.delay(&self.shared, error.envelope.retry_after)));
        let why = if refused { Again::Refused } else { Again::Failed };
        Settled::Again { due_ms: due_ms.min(self.taken.call.head.expires_ms), why }
    }

    fn ended(error: Envelope, sent: u32, at_ms: u64) -> Settled {
        let result = Box::new(DeferredResult { output: None, usage: None, target: None, error: Some(error) });
        Settled::Ended { status: DeferredStatus::Failed, sent, result, at_ms }
    }

    /// Keeps trying while the disk refuses: what was paid for must not be lost.
    async fn write_down(&self, settled: Settled, abort: &CancellationToken) {
        let word = match &settled {
            Settled::Ended { status, .. } => status.as_str(),
            Settled::Again { why: Again::Refused, .. } => "refused_again",
            Settled::Again { why: Again::Failed, .. } => "failed_again",
            Settled::Again { why: Again::LetGo, .. } => "let_go",
        };
        let Taken { call, generation, .. } = &self.taken;
        loop {
            match self.queue.store.settle(&call.head.id, *generation, settled.clone()).await {
                Ok(true) => return count(word),
                // Somebody else has it, or it was cancelled.
                Ok(false) | Err(JournalError::Closed) => return,
                Err(error) => {
                    tracing::warn!(%error, entry = call.head.id, "the end of a call that was put off cannot be written");
                    tokio::select! {
                        () = tokio::time::sleep(DISK_PAUSE) => {}
                        () = abort.cancelled() => return,
                    }
                }
            }
        }
    }
}
