//! A run as its owner holds it: follow its events, wait for its end, cancel it. Dropping the handle leaves the run alone.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::{Map, Value};

use super::{
    call::CallContext,
    core::{Shared, lock},
    engine::Runtime,
    journal::RunOwner,
    orchestrator::OrchestratorMessage,
    refusal::stranger_envelope,
    run_cell::{RunCell, RunFacts, Told},
    run_log::RunLog,
};
use crate::{
    model::{
        contract,
        envelope::{Envelope, ErrorCode},
        event::Event,
        run::{RunRecord, RunStatus},
    },
    policy::compartment::directory::Names,
    workflow::{
        checked::Workflow,
        plan::{
            action::StepKey,
            run_plan::{RunPlan, RunSeed},
            why::Why,
        },
    },
};

pub use crate::policy::compartment::settings::CLASSES;

/// What a run is started with.
#[derive(Debug, Clone)]
pub struct RunRequest {
    /// The workflow.
    pub workflow: Arc<Workflow>,
    /// Its inputs, by name.
    pub input: Map<String, Value>,
    /// A tighter deadline than the workflow's own.
    pub deadline: Option<std::time::Duration>,
    /// Tenant, feature, priority and trace; the rest is the run's own.
    pub context: CallContext,
}

/// A run.
#[derive(Clone)]
pub struct RunHandle {
    pub(crate) shared: Arc<Shared>,
    pub(crate) cell: Arc<RunCell>,
}

impl std::fmt::Debug for RunHandle {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("RunHandle").field(&self.cell.id).finish()
    }
}

/// No run is taken in any more.
pub(crate) fn stopping() -> Box<Envelope> {
    Box::new(Envelope::new(ErrorCode::ShuttingDown, "this node is stopping").with_retry_after(1.0))
}

impl Runtime {
    /// Starts a run that lives in memory only. Refused with `INVALID_REQUEST` if an input does not fit, with `NOT_FOUND` if an agent is not here, with `LOAD_SHED` if
    /// too many runs are live, with `SHUTTING_DOWN` while stopping.
    pub fn start_run(&self, request: RunRequest) -> Result<RunHandle, Box<Envelope>> {
        let shared = &self.shared;
        let (feature, tenant) = (request.context.feature.as_deref(), request.context.tenant.as_deref());
        if shared.holds_runs() {
            return Err(stopping());
        }
        self.may_start(&request.workflow, (feature, tenant, request.context.names))?;
        let created = shared.now();
        let run_id = uuid::Uuid::now_v7().to_string();
        let seed = RunSeed {
            run_id: run_id.clone(),
            created,
            deadline: request.deadline,
            unix_zero_ms: shared.clock.unix_ms(crate::model::clock::Timestamp::ZERO),
            currency: shared.tokens.currency(),
            trace_id: contract::trace_id_of(request.context.traceparent.as_deref()),
            rerun_of: None,
        };
        let plan = RunPlan::new(request.workflow, &request.input, seed)?;
        let number = self.runs.next_number();
        let context = CallContext { names: Names::Accepted, ..request.context };
        let facts = RunFacts {
            room: shared.run_room.share(number, context.tenant.as_deref()),
            id: run_id.clone(),
            number,
            since: created,
            class: shared.compartments.class(context.priority.as_deref()),
            context,
            owner: RunOwner::default(),
            prompts: BTreeMap::new(),
        };
        let log = RunLog::new(run_id, None, Vec::new());
        let cell = Arc::new(RunCell::new(facts, shared.aborting_runs.child_token(), plan, log, Told::Start));
        if !self.runs.add(&cell) {
            return Err(Box::new(Envelope::new(ErrorCode::LoadShed, "too many runs are live").with_retry_after(1.0)));
        }
        shared.orchestrator.cast(OrchestratorMessage::Wake(Arc::clone(&cell)));
        Ok(RunHandle { shared: Arc::clone(shared), cell })
    }

    /// Whether this node takes a run of this workflow, for this feature and tenant, now.
    pub(crate) fn may_start(
        &self,
        workflow: &Workflow,
        (feature, tenant, names): (Option<&str>, Option<&str>, Names),
    ) -> Result<(), Box<Envelope>> {
        self.shared.run_room.may_accept(tenant)?;
        for step in workflow.steps() {
            if self.shared.agent(step.agent().as_str()).is_none() {
                let message = format!("step {} asks for agent {}, which is not here", step.id(), step.agent());
                return Err(Box::new(Envelope::new(ErrorCode::NotFound, message)));
            }
        }
        if names == Names::Accepted {
            return Ok(());
        }
        self.shared.compartments.knows(feature, tenant).map_err(|stranger| Box::new(stranger_envelope(stranger)))
    }

    /// The run of this id, live or ended not long ago.
    pub fn run(&self, id: &str) -> Option<RunHandle> {
        Some(RunHandle { shared: Arc::clone(&self.shared), cell: self.runs.find(id)? })
    }

    /// Lets go of a run that is over: it is not readable here any more. One that is live is left alone.
    pub fn forget_run(&self, id: &str) {
        self.runs.forget_ended(id);
    }
}

/// How much of a run's events is read at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventsPage {
    /// So many at most.
    pub events_max: usize,
    /// No further one once they take so many bytes of memory.
    pub bytes_max: usize,
}

impl EventsPage {
    /// All there are.
    pub const WHOLE: Self = Self { events_max: usize::MAX, bytes_max: usize::MAX };
}

impl RunHandle {
    /// Its id.
    pub fn id(&self) -> &str {
        &self.cell.id
    }

    /// Waits for its end, or until this node lets go of it: a durable run then goes on elsewhere, and its record is not terminal.
    pub async fn finished(&self) -> Arc<RunRecord> {
        let mut finished = self.cell.finished();
        loop {
            let record = finished.borrow_and_update().clone();
            if let Some(record) = record {
                return record;
            }
            tokio::select! {
                changed = finished.changed() => if changed.is_err() { return Arc::new(self.record()) },
                () = self.cell.let_go.cancelled() => {
                    let record = finished.borrow().clone();
                    return record.unwrap_or_else(|| Arc::new(self.record()));
                }
            }
        }
    }

    /// How it stands now.
    pub fn record(&self) -> RunRecord {
        self.cell.record()
    }

    /// Its terminal record, shared and not copied; `None` until it is over.
    pub fn ended_record(&self) -> Option<Arc<RunRecord>> {
        self.cell.final_record()
    }

    /// About the memory, in bytes, that its record takes: what it costs to copy it.
    pub fn record_bytes(&self) -> usize {
        self.cell.record_bytes()
    }

    /// Where it stands, once it is over.
    pub fn status(&self) -> Option<RunStatus> {
        self.cell.status()
    }

    /// What it waits for; `None` once it is over.
    pub fn why(&self) -> Option<Why> {
        self.cell.why()
    }

    /// Ends it; calls under way are aborted upstream.
    pub fn cancel(&self) {
        self.cell.tell(Told::Cancelled);
        self.shared.orchestrator.cast(OrchestratorMessage::Wake(Arc::clone(&self.cell)));
    }

    /// Lets a call go on that waits because it may have acted and must not act twice (`effects = "once"`): an operator knows that it did
    /// not. Any other is left alone. False if there is no call that waits so.
    pub fn release(&self, step: &str, index: Option<u32>, iteration: u32) -> bool {
        let key = {
            let inner = lock(&self.cell.inner);
            let place = inner.plan.workflow().steps().iter().position(|known| known.id() == step);
            let key = place.map(|step| StepKey { step, index, iteration });
            key.filter(|key| inner.plan.is_in_doubt(*key))
        };
        let Some(key) = key else { return false };
        self.cell.tell(Told::Released(key));
        // If nobody turns just now, whoever does next reads it.
        self.shared.orchestrator.cast(OrchestratorMessage::Wake(Arc::clone(&self.cell)));
        true
    }

    /// The id of the last event that may be seen, 0 before the first. It never goes back: what may be seen is written down.
    pub fn last_event_id(&self) -> u64 {
        self.cell.log.last_shown()
    }

    /// Events after the one of id `after` (0 = all), in order, without waiting.
    pub fn events_after(&self, after: u64) -> Vec<Event> {
        self.cell.events_after(after)
    }

    /// Waits until there are events after the one of id `after`, and gives them. Empty once the run is over and all were given.
    pub async fn next_events(&self, after: u64) -> Vec<Event> {
        self.next_events_page(after, EventsPage::WHOLE).await
    }

    /// The same, a page of them: what a reader holds is bounded, however many there are.
    pub async fn next_events_page(&self, after: u64, page: EventsPage) -> Vec<Event> {
        let mut last = self.cell.last_event();
        let mut finished = self.cell.finished();
        loop {
            let over = finished.borrow_and_update().is_some();
            let _ = last.borrow_and_update();
            let events = self.cell.events_page(after, page);
            if !events.is_empty() || over {
                return events;
            }
            tokio::select! {
                changed = last.changed() => if changed.is_err() { return Vec::new() },
                changed = finished.changed() => if changed.is_err() { return Vec::new() },
                () = self.cell.let_go.cancelled() => return self.cell.events_page(after, page),
            }
        }
    }
}
