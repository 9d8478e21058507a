//! One run as it lives outside every actor: its plan, what it was told and has not read, its log. The orchestrator is the only one
//! who moves the plan; everybody else puts things into the inbox and reads the log.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    sync::Arc,
};

use serde_json::Value;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{
    call::{CallContext, CallError, CallReply},
    core::{Shared, lock},
    journal::{Entry, RunOwner},
    orchestrator::OrchestratorMessage,
    parked::ParkedAt,
    run_handle::EventsPage,
    run_log::{RunLog, Sender},
    run_room::RunShare,
    run_table::RunTable,
    sync::Mutex,
};
use crate::{
    model::{
        clock::Timestamp,
        ended::Ended,
        event::{Event, EventType},
        name::Name,
        run::{RunRecord, RunStatus, StepStatus},
        weight,
    },
    workflow::plan::{
        action::{Action, StepKey},
        open::OpenCall,
        run_plan::RunPlan,
        why::Why,
    },
};

/// What a run is told between two turns of the orchestrator.
pub(crate) enum Told {
    /// It was accepted.
    Start,
    /// It was brought back; these of its calls had begun and not ended.
    Resumed(Vec<OpenCall>),
    /// It could not be brought back, for this reason.
    Broken(String),
    /// What one of its turns led to may be done now.
    Durable,
    /// An operator lets a call go on that is in doubt.
    Released(StepKey),
    /// It is the turn of a call with which the process died several times.
    Tried(StepKey),
    /// A call ended.
    Replied(StepKey, Box<Result<CallReply, CallError>>),
    /// One of its timers ran out.
    Woken,
    /// Its caller cancels it.
    Cancelled,
    /// An agent's gate changed.
    GateChanged(Name),
}

/// What a run is besides its plan.
pub(crate) struct RunFacts {
    pub(crate) id: String,
    /// Older runs have smaller numbers.
    pub(crate) number: u64,
    /// Since when it is asked for.
    pub(crate) since: Timestamp,
    pub(crate) class: u16,
    pub(crate) context: CallContext,
    pub(crate) owner: RunOwner,
    /// Prompts that replace an agent's own.
    pub(crate) prompts: BTreeMap<String, Arc<str>>,
    /// What its outputs take of the room for them.
    pub(crate) room: RunShare,
}

/// One run.
pub(crate) struct RunCell {
    pub(crate) id: String,
    pub(crate) number: u64,
    pub(crate) since: Timestamp,
    pub(crate) class: u16,
    pub(crate) context: CallContext,
    pub(crate) owner: RunOwner,
    pub(crate) prompts: BTreeMap<String, Arc<str>>,
    pub(crate) room: RunShare,
    /// Ends all of the run's calls and timers.
    pub(crate) ended: CancellationToken,
    /// Cancelled when nobody here moves it any more, though it is not over.
    pub(crate) let_go: CancellationToken,
    /// Moved by the orchestrator only.
    pub(crate) inner: Mutex<RunInner>,
    inbox: Mutex<VecDeque<Told>>,
    pub(crate) log: RunLog,
    /// Ends that were said and are not durable, with the batch of each: they are shown as not yet there.
    unwritten: Mutex<Vec<(u64, EndKey)>>,
    /// The terminal record, once there is one and it may be seen.
    finished: watch::Sender<Option<Arc<RunRecord>>>,
}

/// Which record an end is of: step, item, iteration.
type EndKey = (String, Option<usize>, u32);

/// What the orchestrator knows of a run.
pub(crate) struct RunInner {
    pub(crate) plan: RunPlan,
    /// Calls under way, and how to abort each.
    pub(crate) calls: HashMap<StepKey, CancellationToken>,
    /// The run's one timer.
    pub(crate) wake: Option<tokio::task::AbortHandle>,
    /// What may be done once the batch of this number is durable; in order.
    pub(crate) deferred: VecDeque<Deferred>,
    /// Ends that this turn said.
    pub(crate) said: Vec<EndKey>,
    /// The final record, until it is durable.
    pub(crate) last: Option<RunRecord>,
    /// The gates that count it as parked.
    pub(crate) parked: ParkedAt,
}

impl RunInner {
    /// Counts the run at the gates that it is parked at now.
    pub(crate) fn note_parked(&mut self, shared: &Shared) {
        // A call that waits for the journal is still that of a parked run: it asks the gate only when it is made.
        if self.deferred.is_empty() {
            self.parked.follow(&self.plan, shared);
        }
    }
}

/// Something to do later.
pub(crate) struct Deferred {
    /// `None` until the turn that asked for it is over.
    pub(crate) batch: Option<u64>,
    pub(crate) action: Action,
}

impl RunCell {
    pub(crate) fn new(facts: RunFacts, ended: CancellationToken, plan: RunPlan, log: RunLog, first: Told) -> Self {
        let RunFacts { id, number, since, class, context, owner, prompts, room } = facts;
        let (deferred, said) = (VecDeque::new(), Vec::new());
        Self {
            id,
            number,
            since,
            class,
            context,
            owner,
            prompts,
            room,
            ended,
            let_go: CancellationToken::new(),
            inner: Mutex::new(RunInner {
                plan,
                calls: HashMap::new(),
                wake: None,
                deferred,
                said,
                last: None,
                parked: ParkedAt::default(),
            }),
            inbox: Mutex::new(VecDeque::from([first])),
            log,
            unwritten: Mutex::new(Vec::new()),
            finished: watch::Sender::new(None),
        }
    }

    pub(crate) fn is_journaled(&self) -> bool {
        self.log.journal.is_some()
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
        self.log.append(shared.clock.unix_ms(shared.now()), kind, step, data);
    }

    /// Writes an end down with the turn that says it.
    pub(crate) fn write_end(&self, inner: &mut RunInner, ended: Box<Ended>) {
        inner.said.push((ended.record.id.clone(), ended.record.index, ended.record.iteration));
        self.log.write(Entry::Ended(ended));
    }

    /// Hands over what was said beside a turn.
    pub(crate) fn send_beside(self: &Arc<Self>, shared: &Arc<Shared>, runs: &Arc<RunTable>) {
        if self.is_journaled() {
            self.send(shared, runs, Sender::Beside, None, || {});
        }
    }

    /// Hands over what was said, with what is done when it is durable, besides telling the orchestrator where a turn waits for it. The
    /// number of the batch to wait for.
    pub(crate) fn send(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        runs: &Arc<RunTable>,
        sender: Sender,
        said: Option<&mut Vec<EndKey>>,
        then: impl FnOnce() + Send + 'static,
    ) -> u64 {
        let (run, shared, runs) = (Arc::clone(self), Arc::clone(shared), Arc::clone(runs));
        self.log.send(sender, |batch| {
            if let Some(said) = said {
                lock(&self.unwritten).extend(said.drain(..).map(|end| (batch.number, end)));
            }
            let fence = Fence(Some((Arc::clone(&run), runs)));
            Box::new(move || {
                fence.pass();
                lock(&run.unwritten).retain(|(number, _)| *number > batch.number);
                let is_awaited = run.log.became_durable(&batch);
                then();
                if is_awaited && run.final_record().is_none() {
                    run.tell(Told::Durable);
                    shared.orchestrator.cast(OrchestratorMessage::Wake(run));
                }
            })
        })
    }

    /// Events after the id `after` that may be seen, in order.
    pub(crate) fn events_after(&self, after: u64) -> Vec<Event> {
        self.log.events_after(after)
    }

    /// A page of the events after the id `after`, in order.
    pub(crate) fn events_page(&self, after: u64, page: EventsPage) -> Vec<Event> {
        self.log.events_page(after, page)
    }

    pub(crate) fn last_event(&self) -> watch::Receiver<u64> {
        self.log.last_event()
    }

    pub(crate) fn finished(&self) -> watch::Receiver<Option<Arc<RunRecord>>> {
        self.finished.subscribe()
    }

    pub(crate) fn final_record(&self) -> Option<Arc<RunRecord>> {
        self.finished.borrow().clone()
    }

    /// The end: whoever waits for it is told, once.
    pub(crate) fn finish(&self, record: RunRecord) {
        self.finished.send_if_modified(|present| {
            let first = present.is_none();
            if first {
                *present = Some(Arc::new(record));
            }
            first
        });
        self.room.close();
        self.ended.cancel();
    }

    /// Nobody here moves it any more, though it is not over.
    pub(crate) fn let_go(&self) {
        self.room.close();
        self.ended.cancel();
        self.let_go.cancel();
    }

    /// The run as it stands, by what is durable.
    pub(crate) fn record(&self) -> RunRecord {
        // Under the lock: an ended run's plan is let go.
        let inner = lock(&self.inner);
        if let Some(record) = self.final_record() {
            return (*record).clone();
        }
        let mut record = inner.last.clone().unwrap_or_else(|| inner.plan.record());
        if self.is_journaled() {
            self.hide_unwritten(&mut record);
        }
        record
    }

    /// About the memory that its record takes.
    pub(crate) fn record_bytes(&self) -> usize {
        match self.final_record() {
            Some(record) => weight::of_record(&record),
            None => usize::try_from(lock(&self.inner).plan.output_bytes()).unwrap_or(usize::MAX),
        }
    }

    /// What it waits for; `None` once it is over.
    pub(crate) fn why(&self) -> Option<Why> {
        let inner = lock(&self.inner);
        if self.final_record().is_some() {
            return None;
        }
        // What is to be done next, or told as its end, waits for what led to it.
        let is_unwritten = inner.last.is_some() || inner.deferred.front().is_some_and(|next| !self.is_written(next));
        if is_unwritten { Some(Why::Journal) } else { inner.plan.why() }
    }

    fn is_written(&self, next: &Deferred) -> bool {
        next.batch.is_some_and(|batch| batch <= self.log.durable())
    }

    pub(crate) fn status(&self) -> Option<RunStatus> {
        self.final_record().map(|record| record.status)
    }

    /// Shows what was said, but is not durable, as still under way.
    fn hide_unwritten(&self, record: &mut RunRecord) {
        if record.status.is_terminal() {
            record.status = RunStatus::Running;
            (record.ended_ms, record.duration_ms) = (None, None);
            (record.output, record.error) = (None, None);
        }
        let unwritten: HashSet<EndKey> = lock(&self.unwritten).iter().map(|(_, end)| end.clone()).collect();
        for step in &mut record.steps {
            if unwritten.contains(&(step.id.clone(), step.index, step.iteration)) {
                let waits = step.started_ms.is_none();
                step.status = if waits { StepStatus::Pending } else { StepStatus::Running };
                step.duration_ms = None;
                (step.degraded, step.error, step.output) = (None, None, None);
            }
        }
        record.degraded.retain(|degraded| !unwritten.iter().any(|(step, _, _)| *step == degraded.step));
    }
}

/// Dropped with a batch that the journal refuses: another owner has the run, so this one lets go of it without a word.
struct Fence(Option<(Arc<RunCell>, Arc<RunTable>)>);

impl Fence {
    fn pass(mut self) {
        self.0 = None;
    }
}

impl Drop for Fence {
    fn drop(&mut self) {
        if let Some((run, runs)) = self.0.take() {
            tracing::warn!(run = run.id, "the journal takes no more of this run; it is let go");
            run.let_go();
            runs.forget(&run.id);
        }
    }
}
