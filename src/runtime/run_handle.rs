//! A run as its owner holds it: follow its events, wait for its end, cancel it. Dropping the handle leaves the run alone.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::{
    call::CallContext,
    core::Shared,
    engine::Runtime,
    orchestrator::OrchestratorMessage,
    run_cell::{RunCell, Told},
};
use crate::{
    model::{
        envelope::{Envelope, ErrorCode},
        event::Event,
        run::{RunRecord, RunStatus},
    },
    workflow::{
        checked::Workflow,
        plan::{
            run_plan::{RunPlan, RunSeed},
            why::Why,
        },
    },
};

/// The classes of priority, the highest first. An unknown or missing one is `standard`.
pub const CLASSES: [&str; 5] = ["critical", "interactive", "standard", "batch", "background"];
const STANDARD: usize = 2;

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
    shared: Arc<Shared>,
    cell: Arc<RunCell>,
}

impl std::fmt::Debug for RunHandle {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("RunHandle").field(&self.cell.id).finish()
    }
}

impl Runtime {
    /// Starts a run. Refused with `INVALID_REQUEST` if an input does not fit, with `NOT_FOUND` if an agent is not here, with `LOAD_SHED` if
    /// too many runs are live, with `SHUTTING_DOWN` while stopping.
    pub fn start_run(&self, request: RunRequest) -> Result<RunHandle, Box<Envelope>> {
        let shared = &self.shared;
        if shared.stopping.is_cancelled() {
            return Err(Box::new(
                Envelope::new(ErrorCode::ShuttingDown, "this node is stopping").with_retry_after(1.0),
            ));
        }
        for step in request.workflow.steps() {
            if shared.agent(step.agent().as_str()).is_none() {
                let message = format!("step {} asks for agent {}, which is not here", step.id(), step.agent());
                return Err(Box::new(Envelope::new(ErrorCode::NotFound, message)));
            }
        }
        let created = shared.now();
        let run_id = uuid::Uuid::now_v7().to_string();
        let seed = RunSeed {
            run_id: run_id.clone(),
            created,
            deadline: request.deadline,
            unix_zero_ms: shared.clock.unix_ms(crate::model::clock::Timestamp::ZERO),
        };
        let plan = RunPlan::new(request.workflow, &request.input, seed)?;
        let class = request.context.priority.as_deref();
        let class = class.and_then(|class| CLASSES.iter().position(|known| *known == class)).unwrap_or(STANDARD);
        let cell = Arc::new(RunCell::new(
            run_id,
            self.runs.next_number(),
            u8::try_from(class).unwrap_or(u8::MAX),
            request.context,
            shared.aborting.child_token(),
            plan,
        ));
        if !self.runs.add(&cell) {
            return Err(Box::new(Envelope::new(ErrorCode::LoadShed, "too many runs are live").with_retry_after(1.0)));
        }
        shared.orchestrator.cast(OrchestratorMessage::Wake(Arc::clone(&cell)));
        Ok(RunHandle { shared: Arc::clone(shared), cell })
    }

    /// The run of this id, live or ended not long ago.
    pub fn run(&self, id: &str) -> Option<RunHandle> {
        Some(RunHandle { shared: Arc::clone(&self.shared), cell: self.runs.find(id)? })
    }
}

impl RunHandle {
    /// Its id.
    pub fn id(&self) -> &str {
        &self.cell.id
    }

    /// Waits for its end.
    pub async fn finished(&self) -> Arc<RunRecord> {
        let mut finished = self.cell.finished();
        loop {
            let record = finished.borrow_and_update().clone();
            if let Some(record) = record {
                return record;
            }
            if finished.changed().await.is_err() {
                return Arc::new(self.record());
            }
        }
    }

    /// How it stands now.
    pub fn record(&self) -> RunRecord {
        self.cell.record()
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

    /// Events after the one of id `after` (0 = all), in order, without waiting.
    pub fn events_after(&self, after: u64) -> Vec<Event> {
        self.cell.events_after(after)
    }

    /// Waits until there are events after the one of id `after`, and gives them. Empty once the run is over and all were given.
    pub async fn next_events(&self, after: u64) -> Vec<Event> {
        let mut last = self.cell.last_event();
        let mut finished = self.cell.finished();
        loop {
            let over = finished.borrow_and_update().is_some();
            let _ = last.borrow_and_update();
            let events = self.cell.events_after(after);
            if !events.is_empty() || over {
                return events;
            }
            tokio::select! {
                changed = last.changed() => if changed.is_err() { return Vec::new() },
                changed = finished.changed() => if changed.is_err() { return Vec::new() },
            }
        }
    }
}
