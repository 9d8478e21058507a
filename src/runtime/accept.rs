//! Durable runs: accepted only once they are written down, brought back after a restart, linked to the run that they go on from.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use serde_json::{Map, Value};
use tokio::sync::oneshot;

use super::{
    call::CallContext,
    engine::Runtime,
    journal::{
        Acceptance, FIRST_GENERATION, Idempotency, Journal, JournalError, Origin, OriginKind, RunAccepted, RunOwner,
        StoredRun,
    },
    orchestrator::OrchestratorMessage,
    run_cell::{RunCell, RunFacts, Told},
    run_handle::{RunHandle, stopping},
    run_log::{JournalEnd, RunLog},
    run_table::RUNS_LIVE_MAX,
    trials,
};
use crate::{
    model::{
        clock::Timestamp,
        contract,
        ended::Ended,
        envelope::{Envelope, ErrorCode},
        run::RunRecord,
    },
    policy::compartment::directory::Names,
    workflow::{
        checked::Workflow,
        plan::{
            linked::{Linked, repaired, rerun_from},
            open::{OpenCall, judge, open_calls},
            run_plan::{RunPlan, RunSeed},
        },
    },
};

/// How long the orchestrator has to take in what has ended before runs are left.
const TURN_PATIENCE: Duration = Duration::from_secs(2);
/// So many runs a millisecond have numbers in the order of their time over restarts.
const NUMBERS_PER_MS: u64 = 1_000;

/// A run that is asked for.
#[derive(Debug, Clone)]
pub struct NewRun {
    /// The workflow.
    pub workflow: Arc<Workflow>,
    /// Its inputs, by name.
    pub input: Map<String, Value>,
    /// A tighter deadline than the workflow's own.
    pub deadline: Option<Duration>,
    /// Whose it is; handed to every call.
    pub owner: RunOwner,
    /// The caller's promise, if it makes one.
    pub idempotency: Option<Idempotency>,
}

/// A run that is written down.
#[derive(Debug, Clone)]
pub struct Accepted {
    /// Its id.
    pub run_id: String,
    /// The run, if it is live here or ended not long ago; else the journal has it.
    pub handle: Option<RunHandle>,
    /// True if the same request was accepted before, as this run.
    pub replayed: bool,
}

/// What a linked run goes on from.
struct Beginning {
    origin: Option<Origin>,
    seeds: Vec<Ended>,
}

impl Runtime {
    /// Writes a run down and starts it. Refused like [`Runtime::start_run`]; with `INVALID_REQUEST` and status 422 if the idempotency key
    /// was used for another request; with `INTERNAL` and status 503 if the journal does not take it, which stores nothing. Who leaves
    /// before the answer may find the run started all the same.
    pub async fn accept_run(&self, new: NewRun) -> Result<Accepted, Box<Envelope>> {
        self.accept(new, Beginning { origin: None, seeds: Vec::new() }).await
    }

    /// The answer to a request that was accepted before, as this run.
    #[must_use]
    pub fn accepted_before(&self, run_id: String) -> Accepted {
        Accepted { handle: self.run(&run_id), run_id, replayed: true }
    }

    /// Starts a run that does again what was degraded or did not succeed in one that is over, and takes the rest over. `CONFLICT` if that
    /// run is live or nothing of it needs a repair. `asked` is whoever repairs it; the deadline counts anew.
    pub async fn repair(
        &self,
        old: &RunAccepted,
        record: &RunRecord,
        asked: RunOwner,
        idempotency: Option<Idempotency>,
    ) -> Result<Accepted, Box<Envelope>> {
        self.must_be_over(record)?;
        let Some(linked) = repaired(&old.workflow, record) else {
            let why = "nothing of it was degraded or failed, so there is nothing to repair; rerun it from one of its steps to do them again";
            return Err(conflict(record, why));
        };
        let beginning = beginning((OriginKind::Repair, None), record, linked, BTreeMap::new());
        self.accept(again(old, asked, idempotency), beginning).await
    }

    /// Starts a run that does one step of a run that is over again, and all that depends on it. `prompts` replace the prompts of agents, by
    /// name. `CONFLICT` if that run is live, `INVALID_REQUEST` if it has no such step.
    pub async fn rerun(
        &self,
        old: &RunAccepted,
        record: &RunRecord,
        from_step: &str,
        prompts: BTreeMap<String, String>,
        asked: RunOwner,
        idempotency: Option<Idempotency>,
    ) -> Result<Accepted, Box<Envelope>> {
        self.must_be_over(record)?;
        let Some(linked) = rerun_from(&old.workflow, record, from_step) else {
            let message = format!("run {} has no step {from_step:?}", record.run_id);
            return Err(Box::new(Envelope::new(ErrorCode::InvalidRequest, message)));
        };
        let beginning = beginning((OriginKind::Rerun, Some(from_step)), record, linked, prompts);
        self.accept(again(old, asked, idempotency), beginning).await
    }

    /// Goes on with runs that the journal gave back, each where it was. A run that cannot be brought back ends as failed, with the reason.
    pub fn resume(&self, stored: Vec<StoredRun>) -> Vec<RunHandle> {
        let Some(journal) = self.shared.journal.clone() else { return Vec::new() };
        let mut stored = stored;
        stored.sort_by_key(|run| run.accepted.number);
        let mut open: Vec<_> = stored.iter().map(|run| open_calls(&run.accepted.workflow, &run.events)).collect();
        judge(&mut open, journal.last_alive_ms());
        let (mut runs, mut suspects) = (Vec::new(), Vec::new());
        for (run, open) in stored.into_iter().zip(open) {
            let held = trials::suspects_of(&open);
            let Some(run) = self.resume_one(&journal, run, open) else { continue };
            suspects.extend(held.into_iter().map(|held| held.of(&run.cell)));
            runs.push(run);
        }
        trials::begin(&self.shared, &journal, suspects);
        runs
    }

    async fn accept(&self, new: NewRun, beginning: Beginning) -> Result<Accepted, Box<Envelope>> {
        let shared = &self.shared;
        let Some(journal) = shared.journal.clone() else {
            return Err(Box::new(Envelope::new(ErrorCode::Internal, "this runtime has no journal")));
        };
        if self.shared.stopping.is_cancelled() || self.shared.frozen.load(Ordering::Acquire) {
            return Err(stopping());
        }
        let (feature, tenant) = (new.owner.feature.as_deref(), new.owner.tenant.as_deref());
        self.may_start(&new.workflow, (feature, tenant, Names::Known))?;
        if self.runs.live_count() >= RUNS_LIVE_MAX {
            return Err(Box::new(Envelope::new(ErrorCode::LoadShed, "too many runs are live").with_retry_after(1.0)));
        }
        let created = shared.now();
        let created_ms = shared.clock.unix_ms(created);
        let run_id = uuid::Uuid::now_v7().to_string();
        let unix_zero_ms = shared.clock.unix_ms(Timestamp::ZERO);
        let seed = RunSeed {
            run_id: run_id.clone(),
            created,
            deadline: new.deadline,
            unix_zero_ms,
            currency: shared.tokens.currency(),
            trace_id: contract::trace_id_of(new.owner.traceparent.as_deref()),
            rerun_of: beginning.origin.as_ref().map(Origin::told),
        };
        let plan = RunPlan::new(Arc::clone(&new.workflow), &new.input, seed)?;
        let plan = plan.with_seeds(beginning.seeds.clone()).journaled();
        let accepted = Arc::new(RunAccepted {
            run_id: run_id.clone(),
            number: self.runs.next_number_from(created_ms.saturating_mul(NUMBERS_PER_MS)),
            owner: new.owner,
            workflow: new.workflow,
            input: new.input,
            created_ms,
            deadline_ms: shared.clock.unix_ms(plan.deadline()),
            idempotency: new.idempotency,
            origin: beginning.origin,
            seeds: beginning.seeds,
        });
        let end = JournalEnd::new(Arc::clone(&journal), &run_id, FIRST_GENERATION);
        let cell = self.cell(&accepted, plan, RunLog::new(run_id, Some(end), Vec::new()), Told::Start);
        let acceptance = self.write_down(&*journal, accepted, &cell).await;
        self.answer(acceptance, cell)
    }

    /// Waits until the journal has it. The run starts in that moment, whether or not anybody still waits here.
    async fn write_down(
        &self,
        journal: &dyn Journal,
        accepted: Arc<RunAccepted>,
        cell: &Arc<RunCell>,
    ) -> Result<Acceptance, JournalError> {
        let (tell, told) = oneshot::channel();
        let (shared, runs, cell) = (Arc::clone(&self.shared), Arc::clone(&self.runs), Arc::clone(cell));
        let written = move |acceptance: Result<Acceptance, JournalError>| {
            if acceptance == Ok(Acceptance::New) {
                runs.add_accepted(&cell);
                shared.orchestrator.cast(OrchestratorMessage::Wake(cell));
            }
            // Whoever asked may have left.
            let _ = tell.send(acceptance);
        };
        journal.accept(accepted, Box::new(written));
        told.await.unwrap_or(Err(JournalError::Closed))
    }

    fn answer(
        &self,
        acceptance: Result<Acceptance, JournalError>,
        cell: Arc<RunCell>,
    ) -> Result<Accepted, Box<Envelope>> {
        match acceptance {
            Ok(Acceptance::New) => {
                let run_id = cell.id.clone();
                let handle = Some(RunHandle { shared: Arc::clone(&self.shared), cell });
                Ok(Accepted { run_id, handle, replayed: false })
            }
            Ok(Acceptance::Replayed { run_id }) => Ok(self.accepted_before(run_id)),
            Ok(Acceptance::Conflict { .. }) => Err(Box::new(key_was_used())),
            Err(error) => Err(Box::new(error.to_envelope())),
        }
    }

    fn resume_one(&self, journal: &Arc<dyn Journal>, stored: StoredRun, open: Vec<OpenCall>) -> Option<RunHandle> {
        let StoredRun { accepted, generation, started_ms, ended, events } = stored;
        let unix_zero_ms = self.shared.clock.unix_ms(Timestamp::ZERO);
        let moment = |unix_ms: u64| Timestamp::from_millis(unix_ms.saturating_sub(unix_zero_ms));
        let created = moment(accepted.created_ms);
        let seed = RunSeed {
            run_id: accepted.run_id.clone(),
            created,
            deadline: Some(moment(accepted.deadline_ms).since(created)),
            unix_zero_ms,
            currency: self.shared.tokens.currency(),
            trace_id: contract::trace_id_of(accepted.owner.traceparent.as_deref()),
            rerun_of: accepted.origin.as_ref().map(Origin::told),
        };
        let workflow = || Arc::clone(&accepted.workflow);
        let seeds = accepted.seeds.clone();
        let started = started_ms.map(moment);
        let restored = RunPlan::restore(workflow(), &accepted.input, seed.clone(), seeds, started, &ended);
        let (plan, broken) = match restored {
            Ok(plan) => (plan, None),
            Err(envelope) => (RunPlan::new(workflow(), &accepted.input, seed).ok()?, Some(envelope)),
        };
        let end = JournalEnd::new(Arc::clone(journal), &accepted.run_id, generation);
        let log = RunLog::new(accepted.run_id.clone(), Some(end), events);
        let first = match broken {
            None => Told::Resumed(open),
            Some(envelope) => Told::Broken(envelope.message),
        };
        let cell = self.cell(&accepted, plan.journaled(), log, first);
        self.runs.number_is_taken(accepted.number);
        self.runs.add_accepted(&cell);
        self.shared.orchestrator.cast(OrchestratorMessage::Wake(Arc::clone(&cell)));
        Some(RunHandle { shared: Arc::clone(&self.shared), cell })
    }

    fn cell(&self, accepted: &RunAccepted, plan: RunPlan, log: RunLog, first: Told) -> Arc<RunCell> {
        let prompts = accepted.origin.iter().flat_map(|origin| &origin.prompts);
        let facts = RunFacts {
            id: accepted.run_id.clone(),
            number: accepted.number,
            // A durable run's moments count from the Unix epoch.
            since: Timestamp::from_millis(accepted.created_ms),
            class: self.shared.compartments.class(accepted.owner.priority.as_deref()),
            context: context_of(&accepted.owner),
            owner: accepted.owner.clone(),
            prompts: prompts.map(|(agent, prompt)| (agent.clone(), prompt.as_str().into())).collect(),
            room: self.shared.run_room.share(accepted.number, accepted.owner.tenant.as_deref()),
        };
        Arc::new(RunCell::new(facts, self.shared.aborting_runs.child_token(), plan, log, first))
    }

    fn must_be_over(&self, record: &RunRecord) -> Result<(), Box<Envelope>> {
        let is_live = self.run(&record.run_id).is_some_and(|run| run.status().is_none());
        if is_live || !record.status.is_terminal() {
            return Err(conflict(record, "wait for its end, or cancel it, then ask again"));
        }
        Ok(())
    }

    /// Durable runs move no more, and those that wait for one here are let go: it goes on after the restart. Returns when everything that
    /// was said is durable, or after `patience`.
    pub(crate) async fn freeze_runs(&self, patience: Duration) {
        // A step that has ended is taken in first: it must not be paid again.
        let (done, when_done) = oneshot::channel();
        self.shared.orchestrator.cast(OrchestratorMessage::Tell(done));
        // Late, or an orchestrator that died: what it did not take in is done again.
        let _ = tokio::time::timeout(TURN_PATIENCE, when_done).await;
        let was_frozen = self.shared.frozen.swap(true, Ordering::AcqRel);
        self.shared.aborting_runs.cancel();
        self.shared.run_steps.close();
        self.shared.run_steps.wait().await;
        let all_quiet = async {
            if !was_frozen && self.shared.journal.is_some() {
                let (tell, told) = oneshot::channel();
                self.shared.orchestrator.cast(OrchestratorMessage::Freeze(tell));
                // Without an orchestrator what was put off is in doubt after the restart: that is safe.
                let _ = told.await;
            }
            for run in self.runs.live() {
                let mut changed = run.last_event();
                while !run.log.is_quiet() {
                    if changed.changed().await.is_err() {
                        break;
                    }
                }
            }
        };
        if tokio::time::timeout(patience, all_quiet).await.is_err() {
            tracing::warn!(
                "the journal did not take everything in time; what it lacks is done again after the restart"
            );
        }
    }
}

/// Another request was accepted under the same idempotency key.
#[must_use]
pub fn key_was_used() -> Envelope {
    let mut envelope = Envelope::new(ErrorCode::InvalidRequest, "this idempotency key was used for another request");
    envelope.http_status = 422;
    envelope
}

fn again(old: &RunAccepted, owner: RunOwner, idempotency: Option<Idempotency>) -> NewRun {
    let deadline = Some(Duration::from_millis(old.deadline_ms.saturating_sub(old.created_ms)));
    NewRun { workflow: Arc::clone(&old.workflow), input: old.input.clone(), deadline, owner, idempotency }
}

fn beginning(
    (kind, from): (OriginKind, Option<&str>),
    record: &RunRecord,
    linked: Linked,
    prompts: BTreeMap<String, String>,
) -> Beginning {
    let from = from.map(str::to_owned);
    let origin = Origin { kind, run_id: record.run_id.clone(), from, again: linked.again, prompts };
    Beginning { origin: Some(origin), seeds: linked.seeds }
}

/// Says what state the run is in, and what to do next.
fn conflict(record: &RunRecord, next: &str) -> Box<Envelope> {
    let (run_id, status) = (&record.run_id, record.status.as_str());
    let envelope = Envelope::new(ErrorCode::Conflict, format!("run {run_id} is {status}: {next}"));
    Box::new(envelope.with_detail("status", status))
}

fn context_of(owner: &RunOwner) -> CallContext {
    CallContext {
        traceparent: owner.traceparent.clone(),
        tenant: owner.tenant.clone(),
        feature: owner.feature.clone(),
        priority: owner.priority.clone(),
        key_id: owner.key_id.clone(),
        user: owner.user.clone(),
        names: Names::Accepted,
        ..CallContext::default()
    }
}
