//! The orchestrator actor: it alone moves the plans of runs. It feeds each plan what happened and does what the plan says; it waits for
//! nothing and nobody. Plans, inboxes and the line live outside it, so that its successor goes on where it fell.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::{Arc, PoisonError},
};

use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::sync::oneshot;

use super::{
    call::CallError,
    compartments::{Seats, Served},
    core::{AgentCore, BreakerId, Shared, lock},
    handle::AgentHandle,
    probing,
    refusal::Refusal,
    run_call::{self, Begins},
    run_cell::{RunCell, RunInner, Told},
    run_gates::LiveGates,
    run_table::{RunTable, Turn},
};
use crate::{
    model::{
        clock::Timestamp,
        envelope::{Envelope, ErrorCode},
        name::Name,
    },
    policy::ladder::cause_of,
    workflow::{
        checked::Step,
        definition::OnCause,
        plan::action::{Action, Ask, CallFailed, CallRequest, Resend, StepKey},
    },
};

/// What the orchestrator is told. All one-way.
pub(crate) enum OrchestratorMessage {
    /// This run has something in its inbox.
    Wake(Arc<RunCell>),
    /// A gate shows something else.
    GateChanged(BreakerId),
    /// The model of these agents is being warmed up no longer.
    Warmed(BTreeSet<Name>),
    /// A step that stood in the line was given every slot it lacked.
    Served { run: Arc<RunCell>, key: StepKey, turn: Turn, served: Box<Served> },
    /// Whoever was served while nobody was here is asked for anew.
    LookAtLine,
    /// A reload changed these agents, took them away or brought them back.
    Reloaded(Arc<BTreeSet<Name>>),
    /// The node stops and its durable runs move no more: write down what was not sent, and say so.
    Freeze(oneshot::Sender<()>),
    /// Show that it turns.
    Beat,
    /// Say that everything that was sent before is done.
    Tell(oneshot::Sender<()>),
    /// Die, as a fault would make it.
    Crash,
}

/// The actor.
pub(crate) struct OrchestratorActor {
    pub(crate) shared: Arc<Shared>,
    pub(crate) runs: Arc<RunTable>,
}

impl Actor for OrchestratorActor {
    type Msg = OrchestratorMessage;
    type State = ();
    type Arguments = ();

    async fn pre_start(&self, myself: ActorRef<Self::Msg>, (): ()) -> Result<(), ActorProcessingErr> {
        self.shared.orchestrator.set(myself.clone());
        self.shared.pulse.orchestrator_turned(self.shared.now());
        // Who stood in the line comes before anybody who is told now.
        let _ = myself.cast(OrchestratorMessage::LookAtLine);
        // Whatever was told while nobody was here. News of gates is told to actors only, so it may be lost: every run looks again,
        // the oldest first: trials are few.
        for run in self.oldest_first() {
            for agent in agents_of(&run) {
                run.tell(Told::GateChanged(agent));
            }
            let _ = myself.cast(OrchestratorMessage::Wake(run));
        }
        Ok(())
    }

    async fn handle(
        &self,
        _: ActorRef<Self::Msg>,
        message: OrchestratorMessage,
        (): &mut (),
    ) -> Result<(), ActorProcessingErr> {
        match message {
            OrchestratorMessage::Wake(run) => self.turn(&run),
            OrchestratorMessage::GateChanged(breaker) => self.gate_changed(breaker),
            OrchestratorMessage::Warmed(agents) => self.tell_those_behind(&agents),
            OrchestratorMessage::Served { run, key, turn, served } => self.served(&run, (key, turn), *served),
            OrchestratorMessage::LookAtLine => self.recover_line(),
            OrchestratorMessage::Reloaded(agents) => self.reloaded(&agents),
            OrchestratorMessage::Freeze(done) => self.leave_all_unsent(done),
            OrchestratorMessage::Beat => self.shared.pulse.orchestrator_turned(self.shared.now()),
            // Who asked may have stopped waiting.
            OrchestratorMessage::Tell(done) => drop(done.send(())),
            OrchestratorMessage::Crash => return Err("told to crash".into()),
        }
        Ok(())
    }
}

impl OrchestratorActor {
    /// Live runs in the order in which they are served.
    pub(crate) fn oldest_first(&self) -> Vec<Arc<RunCell>> {
        let mut runs = self.runs.live();
        runs.sort_by_key(|run| (run.class, run.number));
        runs
    }

    /// Reads a run's inbox and does what its plan says, until both are quiet.
    fn turn(&self, run: &Arc<RunCell>) {
        if run.final_record().is_some() {
            return;
        }
        if run.inner.is_poisoned() {
            // A turn of this run killed an orchestrator: it is not tried on the next one.
            self.fail(run, "the run's plan panicked");
            return;
        }
        {
            let mut inner = run.inner.lock().unwrap_or_else(PoisonError::into_inner);
            run.log.begin_turn();
            while let Some(told) = run.take_told() {
                if run.is_journaled() && self.is_frozen(&mut inner) {
                    break;
                }
                if let Told::Broken(message) = told {
                    drop(inner);
                    return self.fail(run, &message);
                }
                let is_resumed = matches!(told, Told::Resumed(_));
                let actions = self.feed(&mut inner, told);
                self.perform(run, &mut inner, actions);
                if is_resumed {
                    self.put_doubtful_aside(run, &inner);
                }
                if run.final_record().is_some() {
                    // Its record is all that is asked for from now on.
                    inner.plan.let_go();
                    break;
                }
            }
            self.write_ahead(run, &mut inner);
            self.turned(run, &mut inner);
        }
    }

    fn feed(&self, inner: &mut RunInner, told: Told) -> Vec<Action> {
        let now = self.shared.now();
        let gates = LiveGates { shared: &self.shared };
        match told {
            Told::Start => {
                probing::prewarm(&self.shared, &inner.plan);
                inner.plan.start(now, &gates)
            }
            Told::Resumed(open) => {
                probing::prewarm(&self.shared, &inner.plan);
                inner.plan.resume(now, &gates, &open)
            }
            Told::Tried(key) => inner.plan.try_alone(key, now, &gates),
            Told::Released(key) => inner.plan.release(key, now, &gates),
            Told::Durable | Told::Broken(_) => Vec::new(),
            Told::Replied(key, result) => {
                // A reply of a call that was aborted meanwhile is nobody's.
                if inner.calls.remove(&key).is_none() {
                    return Vec::new();
                }
                let result = run_call::as_plan_result(*result);
                let result = result.map_err(|failed| self.with_notice(inner, key, failed));
                inner.plan.replied(key, result, now, &gates)
            }
            Told::Woken => inner.plan.wake(now, &gates),
            Told::Cancelled => inner.plan.cancel(now),
            Told::GateChanged(agent) => inner.plan.gate_changed(&agent, now, &gates),
        }
    }

    /// Does what the plan says, and what that leads to at once.
    pub(crate) fn perform(&self, run: &Arc<RunCell>, inner: &mut RunInner, actions: Vec<Action>) {
        let mut todo = VecDeque::from(actions);
        while let Some(action) = todo.pop_front() {
            let refused = match action {
                Action::Emit(event) => {
                    run.append(&self.shared, event.kind, event.step, event.data);
                    None
                }
                Action::Call(_) | Action::Line(_) if run.is_journaled() => {
                    Self::defer(inner, action);
                    None
                }
                Action::Call(request) => self.call(run, inner, &request).err().map(|failed| (request.key, failed)),
                Action::Line(request) => self.join_line(run, &request).err().map(|failed| (request.key, failed)),
                Action::WakeAt(at) => {
                    self.wake_at(run, inner, at);
                    None
                }
                Action::Abort(key) => {
                    if let Some(abort) = inner.calls.remove(&key) {
                        abort.cancel();
                    }
                    Self::forget_deferred(inner, key);
                    self.leave_line(run, key);
                    None
                }
                Action::Record(ended) => {
                    run.write_end(inner, ended);
                    None
                }
                Action::Finished => {
                    self.finish(run, inner);
                    None
                }
            };
            if let Some((key, failed)) = refused {
                todo.extend(self.tell_refused(inner, key, failed));
            }
        }
    }

    pub(crate) fn tell_refused(&self, inner: &mut RunInner, key: StepKey, failed: CallFailed) -> Vec<Action> {
        let gates = LiveGates { shared: &self.shared };
        let failed = self.with_notice(inner, key, failed);
        inner.plan.replied(key, Err(failed), self.shared.now(), &gates)
    }

    /// The same failure, with the agent's text for people where the step asks for it.
    fn with_notice(&self, inner: &RunInner, key: StepKey, mut failed: CallFailed) -> CallFailed {
        let step = inner.plan.workflow().steps().get(key.step);
        let asks = |step: &&Step| step.on(cause_of(failed.envelope.error_code)) == OnCause::Notice;
        if let Some(step) = step.filter(asks)
            && let Some(notice) = self.shared.ladders.load().agents.get(step.agent()).and_then(|own| own.notice.clone())
        {
            notice.put_into(&mut failed.envelope);
        }
        failed
    }

    /// Makes a call. Free slots that an older run waits for are handed to it as they come free, so what is found free here is nobody's.
    pub(crate) fn call(
        &self,
        run: &Arc<RunCell>,
        inner: &mut RunInner,
        request: &CallRequest,
    ) -> Result<(), CallFailed> {
        let agent = self.agent_of(request)?;
        self.has_room(run, &agent, request, &inner.plan)?;
        if let Ask::Instead(instead) = &request.ask {
            self.begin(run, inner, (&agent, Begins::Instead(instead.clone())), request);
            return Ok(());
        }
        let failed = match self.try_call(run, inner, (&agent, None), request) {
            Ok(()) => return Ok(()),
            Err(failed) => failed,
        };
        let front = AgentHandle { shared: Arc::clone(&self.shared), agent: Arc::clone(&agent) };
        let refused = CallError::refused(failed.envelope.clone());
        if failed.resend == Resend::Never || !front.may_go_down(run.context.feature.as_deref(), &refused) {
            return Err(failed);
        }
        let refused = Box::new(refused);
        self.begin(run, inner, (&agent, Begins::Refused(refused)), request);
        Ok(())
    }

    fn begin(
        &self,
        run: &Arc<RunCell>,
        inner: &mut RunInner,
        (agent, begins): (&Arc<AgentCore>, Begins),
        request: &CallRequest,
    ) {
        let front = AgentHandle { shared: Arc::clone(&self.shared), agent: Arc::clone(agent) };
        let context = run_call::context_of(run, &inner.plan, request);
        let abort = run.ended.child_token();
        inner.calls.insert(request.key, abort.clone());
        let step = &inner.plan.workflow().steps()[request.key.step];
        let step = (step.id().to_owned(), step.effects());
        run_call::start((&front, begins), context, (run, &self.runs), step, request, abort);
    }

    /// Makes a call, or says why it was refused; with the slots that it was given in the line, if any.
    pub(crate) fn try_call(
        &self,
        run: &Arc<RunCell>,
        inner: &mut RunInner,
        (agent, given): (&Arc<AgentCore>, Option<(Arc<AgentCore>, Seats)>),
        request: &CallRequest,
    ) -> Result<(), CallFailed> {
        let handle = AgentHandle { shared: Arc::clone(&self.shared), agent: Arc::clone(agent) };
        let context = run_call::context_of(run, &inner.plan, request);
        let (calls, usage) = inner.plan.spent();
        let under_way = u64::try_from(inner.calls.len()).unwrap_or(u64::MAX);
        let caps = *lock(&self.shared.run_caps);
        if let Err(reached) = caps.check(calls.saturating_add(under_way), usage) {
            let refused = handle.refused(&Refusal::RunSpent { reached }, &context);
            return Err(run_call::not_resendable(*refused.envelope));
        }
        let admitted = match given {
            None => handle.admit_any(&context, &inner.parked),
            Some((target, seats)) => match handle.admit_served(&context, &inner.parked, &target, seats) {
                // A reload took this target away meanwhile; the agent may have others.
                Err(Refusal::Gone) => handle.admit_any(&context, &inner.parked),
                admitted => admitted,
            },
        };
        match admitted {
            Ok(admitted) => {
                self.begin(run, inner, (agent, Begins::Admitted(Box::new(admitted))), request);
                Ok(())
            }
            // Standing in the line is no refusal, so it is not counted as one.
            Err(refusal) if refusal.is_full() => {
                Err(run_call::own_refusal(refusal.to_envelope(handle.name().as_str())))
            }
            Err(refusal) => Err(run_call::own_refusal(*handle.refused(&refusal, &context).envelope)),
        }
    }

    pub(crate) fn agent_of(&self, request: &CallRequest) -> Result<Arc<AgentCore>, CallFailed> {
        self.shared.agent(request.agent.as_str()).ok_or_else(|| {
            let message = format!("agent {} is not here", request.agent);
            run_call::own_refusal(Envelope::new(ErrorCode::NotFound, message))
        })
    }

    /// Tells every run behind a gate that it shows something else. Trials that the gate keeps for parked runs are everybody's after this.
    fn gate_changed(&self, breaker: BreakerId) {
        let table = self.shared.agents();
        let behind: Vec<_> = table.agents.iter().filter(|agent| agent.guard_of(breaker).is_some()).collect();
        let Some(guard) = behind.first().and_then(|agent| agent.guard_of(breaker)) else { return };
        // Before any run is told: whatever begins while they are told is news of its own.
        let generation = guard.gate.generation();
        // An agent with several targets behind one gate is told once.
        let names = behind.iter().map(|agent| agent.settings.name.clone()).collect();
        self.tell_those_behind(&names);
        guard.gate.offered(generation);
    }

    /// Tells every run that what stood in front of these agents may be different now; the oldest first: trials and slots are few.
    fn tell_those_behind(&self, agents: &BTreeSet<Name>) {
        for run in self.oldest_first() {
            for agent in agents {
                run.tell(Told::GateChanged(agent.clone()));
            }
            self.turn(&run);
        }
    }

    /// Steps that stand in line for what is gone line up anew, and runs look anew at gates that are others now. A step whose agent is not
    /// there any more waits until it is, if it cannot do without.
    fn reloaded(&self, agents: &BTreeSet<Name>) {
        self.renew_line();
        for run in self.oldest_first() {
            for agent in agents_of(&run).intersection(agents) {
                run.tell(Told::GateChanged(agent.clone()));
            }
            self.turn(&run);
        }
    }

    fn wake_at(&self, run: &Arc<RunCell>, inner: &mut RunInner, at: Timestamp) {
        if let Some(earlier) = inner.wake.take() {
            earlier.abort();
        }
        let (shared, run) = (Arc::clone(&self.shared), Arc::clone(run));
        let wait = at.since(shared.now());
        let timer = tokio::spawn(async move {
            tokio::time::sleep(wait).await;
            run.tell(Told::Woken);
            shared.orchestrator.cast(OrchestratorMessage::Wake(Arc::clone(&run)));
        });
        inner.wake = Some(timer.abort_handle());
    }
}

/// The agents of a run's steps, each once.
fn agents_of(run: &RunCell) -> BTreeSet<Name> {
    let inner = lock(&run.inner);
    inner.plan.workflow().steps().iter().map(|step| step.agent().clone()).collect()
}
