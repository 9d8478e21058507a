//! One run as it lives outside every actor: its plan, what it was told and has not read, its events. The orchestrator is the only one
//! who moves the plan; everybody else puts things into the inbox and reads events.

use std::{
    collections::{HashMap, VecDeque},
    sync::Mutex,
};

use serde_json::Value;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{
    call::{CallContext, CallError, CallReply},
    core::{Shared, lock},
    parked::ParkedAt,
};
use crate::{
    model::{
        event::{Event, EventType},
        name::Name,
        run::{RunRecord, RunStatus},
    },
    workflow::plan::{action::StepKey, run_plan::RunPlan, why::Why},
};

/// Events that one run may have; pieces of content are left out beyond it, nothing else ever is.
pub(crate) const EVENTS_MAX: usize = 20_000;

/// What a run is told between two turns of the orchestrator.
pub(crate) enum Told {
    /// It was accepted.
    Start,
    /// A call ended.
    Replied(StepKey, Box<Result<CallReply, CallError>>),
    /// One of its timers ran out.
    Woken,
    /// Its caller cancels it.
    Cancelled,
    /// An agent's gate changed.
    GateChanged(Name),
}

/// One run.
pub(crate) struct RunCell {
    pub(crate) id: String,
    /// Older runs have smaller numbers.
    pub(crate) number: u64,
    pub(crate) class: u8,
    pub(crate) context: CallContext,
    /// Ends all of the run's calls and timers.
    pub(crate) ended: CancellationToken,
    /// Moved by the orchestrator only.
    pub(crate) inner: Mutex<RunInner>,
    inbox: Mutex<VecDeque<Told>>,
    events: Mutex<Vec<StoredEvent>>,
    last_event: watch::Sender<u64>,
    /// The terminal record, once there is one.
    finished: watch::Sender<Option<std::sync::Arc<RunRecord>>>,
}

/// An event without what follows from its place: its id and its run.
struct StoredEvent {
    ts_ms: u64,
    kind: EventType,
    step: Option<String>,
    data: Value,
}

/// What the orchestrator knows of a run.
pub(crate) struct RunInner {
    pub(crate) plan: RunPlan,
    /// Calls under way, and how to abort each.
    pub(crate) calls: HashMap<StepKey, CancellationToken>,
    /// The run's one timer.
    pub(crate) wake: Option<tokio::task::AbortHandle>,
    /// The gates that count it as parked.
    pub(crate) parked: ParkedAt,
}

impl RunInner {
    /// Counts the run at the gates that it is parked at now.
    pub(crate) fn note_parked(&mut self, shared: &Shared) {
        self.parked.follow(&self.plan, shared);
    }
}

impl RunCell {
    pub(crate) fn new(
        id: String,
        number: u64,
        class: u8,
        context: CallContext,
        ended: CancellationToken,
        plan: RunPlan,
    ) -> Self {
        Self {
            id,
            number,
            class,
            context,
            ended,
            inner: Mutex::new(RunInner { plan, calls: HashMap::new(), wake: None, parked: ParkedAt::default() }),
            inbox: Mutex::new(VecDeque::from([Told::Start])),
            events: Mutex::new(Vec::new()),
            last_event: watch::Sender::new(0),
            finished: watch::Sender::new(None),
        }
    }

    /// Puts something into the inbox; the sender then wakes the orchestrator.
    pub(crate) fn tell(&self, told: Told) {
        lock(&self.inbox).push_back(told);
    }

    pub(crate) fn take_told(&self) -> Option<Told> {
        lock(&self.inbox).pop_front()
    }

    /// Appends an event with the next id.
    pub(crate) fn append(&self, shared: &Shared, kind: EventType, step: Option<String>, data: Value) {
        let at = shared.now();
        let id = {
            let mut events = lock(&self.events);
            if kind == EventType::StepDelta && events.len() >= EVENTS_MAX {
                return;
            }
            events.push(StoredEvent { ts_ms: shared.clock.unix_ms(at), kind, step, data });
            events.len() as u64
        };
        // Who begins to listen after this finds the event in the log, because both take its lock.
        if self.last_event.receiver_count() > 0 {
            self.last_event.send_replace(id);
        }
    }

    /// Events after the id `after`, in order.
    pub(crate) fn events_after(&self, after: u64) -> Vec<Event> {
        let events = lock(&self.events);
        let from = usize::try_from(after).unwrap_or(usize::MAX).min(events.len());
        let ids = (from as u64 + 1)..;
        ids.zip(&events[from..]).map(|(id, event)| self.event(id, event)).collect()
    }

    fn event(&self, id: u64, stored: &StoredEvent) -> Event {
        let StoredEvent { ts_ms, kind, step, data } = stored;
        Event { id, ts_ms: *ts_ms, kind: *kind, run_id: self.id.clone(), step: step.clone(), data: data.clone() }
    }

    pub(crate) fn last_event(&self) -> watch::Receiver<u64> {
        self.last_event.subscribe()
    }

    pub(crate) fn finished(&self) -> watch::Receiver<Option<std::sync::Arc<RunRecord>>> {
        self.finished.subscribe()
    }

    pub(crate) fn final_record(&self) -> Option<std::sync::Arc<RunRecord>> {
        self.finished.borrow().clone()
    }

    /// The end: whoever waits for it is told, once.
    pub(crate) fn finish(&self, record: RunRecord) {
        self.finished.send_if_modified(|present| {
            let first = present.is_none();
            if first {
                *present = Some(std::sync::Arc::new(record));
            }
            first
        });
        self.ended.cancel();
    }

    /// The run as it stands.
    pub(crate) fn record(&self) -> RunRecord {
        // Under the lock: an ended run's plan is let go.
        let inner = lock(&self.inner);
        self.final_record().map_or_else(|| inner.plan.record(), |record| (*record).clone())
    }

    /// What it waits for; `None` once it is over.
    pub(crate) fn why(&self) -> Option<Why> {
        let inner = lock(&self.inner);
        if self.final_record().is_some() { None } else { inner.plan.why() }
    }

    pub(crate) fn status(&self) -> Option<RunStatus> {
        self.final_record().map(|record| record.status)
    }
}
