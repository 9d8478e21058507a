//! Steps of runs in the line: they lack only a slot, stand among everybody else who does, by class and by the age of their run, and are
//! called when they are served. The order is the pool's; nothing here decides who comes first.

use std::{sync::Arc, time::Duration};

use super::{
    compartments::{LinedUp, Lining, NoPlace, Served},
    core::lock,
    handle::AgentHandle,
    orchestrator::{OrchestratorActor, OrchestratorMessage},
    refusal::Refusal,
    run_call,
    run_cell::{RunCell, RunInner},
    run_table::{LINE_MAX, Turn, Waiting},
};
use crate::{
    model::envelope::{Envelope, ErrorCode},
    policy::compartment::{directory::LINE_OF_STEPS, line::Bounds},
    workflow::plan::action::{CallFailed, CallRequest, StepKey},
};

/// The line holds as many steps as are worked off in some time; whoever does not fit in comes back after this.
const LINE_FULL_RETRY_AFTER: Duration = Duration::from_secs(5);

impl OrchestratorActor {
    /// A step that lacks only a slot lines up; refused if the line is full.
    pub(crate) fn join_line(&self, run: &Arc<RunCell>, request: &CallRequest) -> Result<(), CallFailed> {
        let agent = self.agent_of(request)?;
        let handle = AgentHandle { shared: Arc::clone(&self.shared), agent };
        let targets = handle.targets_in_line();
        let (turn, line) = (Turn(self.shared.next_call()), Bounds::of(LINE_OF_STEPS, LINE_MAX));
        let lining = Lining::Step { run: Arc::clone(run), key: request.key, turn, line };
        let (asking, now) = (run.context.asking(), self.shared.now());
        let ticket = match self.shared.compartments.line_up(&self.shared, &targets, (asking, None), lining, now) {
            Ok(LinedUp::Waits(ticket)) => Some(ticket),
            Ok(LinedUp::Served(served)) => {
                let (run, key) = (Arc::clone(run), request.key);
                let message = OrchestratorMessage::Served { run, key, turn, served: Box::new(served) };
                self.shared.orchestrator.cast(message);
                None
            }
            Err(NoPlace::Stranger(stranger)) => {
                let envelope = Refusal::Stranger { stranger }.to_envelope(request.agent.as_str());
                return Err(run_call::not_resendable(envelope));
            }
            Err(NoPlace::Full(_)) => {
                let envelope = Envelope::new(ErrorCode::AgentBulkheadFull, "the line for slots is full")
                    .with_agent(request.agent.as_str())
                    .with_retry_after(LINE_FULL_RETRY_AFTER.as_secs_f64())
                    .with_detail("compartment", "line");
                return Err(run_call::not_resendable(envelope));
            }
        };
        lock(&self.runs.line).join(Waiting { run: Arc::clone(run), key: request.key, turn, ticket, targets });
        Ok(())
    }

    /// A step that stood in the line was given everything it lacked. If it stands there anew by now, for other targets, that goes back.
    pub(crate) fn served(&self, run: &Arc<RunCell>, (key, turn): (StepKey, Turn), served: Served) {
        if !lock(&self.runs.line).stands(run, key, turn) {
            return;
        }
        let Some(waiting) = self.leave_line(run, key) else { return };
        let Served { way, seats } = served;
        // While the node stops nothing new is begun: it goes on after the restart.
        if self.shared.journal.is_some() && self.shared.holds_runs() {
            return;
        }
        if run.final_record().is_some() || run.inner.is_poisoned() {
            return;
        }
        let mut inner = lock(&run.inner);
        let Some(request) = inner.plan.request(key) else { return };
        let given = waiting.targets.get(way).map(|target| (Arc::clone(target), seats));
        let agent = self.agent_of(&request);
        let result = agent.and_then(|agent| {
            self.has_room(run, &agent, &request, &inner.plan)?;
            self.try_call(run, &mut inner, (&agent, given), &request)
        });
        match result {
            Ok(()) => inner.plan.line_left(key, self.shared.now()),
            // Another of its targets lacks a slot now.
            Err(failed) if failed.envelope.error_code == ErrorCode::AgentBulkheadFull => {
                if let Err(failed) = self.join_line(run, &request) {
                    self.refused_in_line(run, &mut inner, key, failed);
                }
            }
            Err(failed) => self.refused_in_line(run, &mut inner, key, failed),
        }
    }

    fn refused_in_line(&self, run: &Arc<RunCell>, inner: &mut RunInner, key: StepKey, failed: CallFailed) {
        run.log.begin_turn();
        let actions = self.tell_refused(inner, key, failed);
        self.perform(run, inner, actions);
        self.write_ahead(run, inner);
        if run.final_record().is_some() {
            inner.plan.let_go();
        }
        self.turned(run, inner);
    }

    /// Whoever was served while nobody was here to be told is asked for anew.
    pub(crate) fn recover_line(&self) {
        let lost = lock(&self.runs.line).all();
        for Waiting { run, key, ticket, .. } in lost {
            if ticket.is_some_and(|ticket| self.shared.compartments.is_waiting(ticket)) {
                continue;
            }
            let poisoned = run.inner.is_poisoned();
            let request = if poisoned { None } else { lock(&run.inner).plan.request(key) };
            self.leave_line(&run, key);
            let Some(request) = request else { continue };
            if let Err(failed) = self.join_line(&run, &request) {
                self.refused_in_line(&run, &mut lock(&run.inner), key, failed);
            }
        }
    }

    /// Whoever waits for a target that is not there any more lines up for what is there now.
    pub(crate) fn renew_line(&self) {
        let all = lock(&self.runs.line).all();
        let is_gone = |waiting: &Waiting| waiting.targets.iter().any(|target| target.presence.is_gone());
        for Waiting { run, key, .. } in all.into_iter().filter(is_gone) {
            if self.leave_line(&run, key).is_none() || run.inner.is_poisoned() {
                continue;
            }
            let Some(request) = lock(&run.inner).plan.request(key) else { continue };
            if let Err(failed) = self.join_line(&run, &request) {
                self.refused_in_line(&run, &mut lock(&run.inner), key, failed);
            }
        }
    }

    /// Takes a step out of the line, wherever it stands.
    pub(crate) fn leave_line(&self, run: &RunCell, key: StepKey) -> Option<Waiting> {
        let waiting = lock(&self.runs.line).leave(run, key)?;
        if let Some(ticket) = waiting.ticket {
            self.shared.compartments.leave(ticket);
        }
        Some(waiting)
    }

    /// Takes all steps of a run out of the line.
    pub(crate) fn leave_line_for_good(&self, run: &RunCell) {
        let all = lock(&self.runs.line).leave_all(run);
        for ticket in all.into_iter().filter_map(|waiting| waiting.ticket) {
            self.shared.compartments.leave(ticket);
        }
    }
}
