//! The front of an agent: admission in the caller's own task, then one message. No await and no message before everything is taken;
//! a refused call costs its caller some atomic reads and gives back what it took.

use std::sync::{Arc, atomic::Ordering};

use tokio::sync::oneshot;
use tokio_util::sync::DropGuard;

use super::{
    agent_actor::{AgentMessage, Job, Leg},
    call::{CallContext, CallError, CallReply, CallRequest, LadderUse},
    call_record::{Caller, logged_refusal},
    compartments::{Part, Seats, is_of_target},
    core::{AgentCore, Guard, Shared},
    counted::{CallIs, Counted},
    gate::{Asker, Passed, Shut},
    line::Targets,
    metric,
    parked::ParkedAt,
    permit::{CallSlot, GatePass, Inside, Lease, Passes, Passing, Permit},
    refusal::Refusal,
    spending::{Spending, show_asked},
    supervisor::SupervisorMessage,
    warming,
};
use crate::{
    model::{clock::Timestamp, envelope::Envelope, name::Name},
    policy::{
        breaker::state::{GateView, Pass, PassKind},
        fallback::{Elsewhere, Reason},
    },
};

/// So many reloads may overtake one admission.
const RELOADS_MET_MAX: usize = 8;

/// A cloneable front of one agent. It outlives reloads: each call goes to the agent as it is then.
#[derive(Clone)]
pub struct AgentHandle {
    pub(crate) shared: Arc<Shared>,
    pub(crate) agent: Arc<AgentCore>,
}

/// A call on its way. Dropping it cancels the call.
pub(crate) struct Sent {
    answer: oneshot::Receiver<Result<CallReply, CallError>>,
    context: Option<Box<CallContext>>,
    cancel_on_drop: DropGuard,
}

/// The slots that a call has before it is admitted at a target.
pub(crate) enum Held<'a> {
    /// None.
    Nothing,
    /// Those of the call, which come from another target of its agent.
    Call(&'a Arc<CallSlot>),
    /// All of them, given to it in the line.
    All(Seats),
}

/// A refusal of our own as a value, before it is put into words.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{refusal}")]
pub struct Refused {
    agent: Name,
    refusal: Refusal,
}

impl Sent {
    /// Its end; `None` if the actor died with it.
    pub(crate) async fn end(self) -> Option<Result<CallReply, CallError>> {
        // The guard lives until the answer is here: whoever drops this future cancels the call.
        let Self { answer, context: _, cancel_on_drop: _cancel_on_drop } = self;
        answer.await.ok()
    }
}

impl Refused {
    /// The outward shape.
    pub fn to_envelope(&self) -> Envelope {
        self.refusal.to_envelope(self.agent.as_str())
    }
}

impl std::fmt::Debug for AgentHandle {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("AgentHandle").field(&self.agent.settings.name).finish()
    }
}

impl AgentHandle {
    /// The agent's name.
    pub fn name(&self) -> &Name {
        &self.agent.settings.name
    }

    /// Calls the agent at its own targets: one outcome, after as many attempts as its retry plan allows. Refused at once if any guard
    /// refuses. Dropping the future cancels the call and aborts what is under way upstream.
    pub(crate) async fn call_once(&self, mut request: CallRequest) -> Result<CallReply, CallError> {
        show_asked(&self.shared, &self.agent, &mut request);
        let admitted = match self.admit_any(&request.context, &ParkedAt::default()) {
            Ok(admitted) => admitted,
            Err(refusal) => self
                .line_up(Targets::All, &request.context, refusal)
                .await
                .map_err(|refusal| self.refused(&refusal, &request.context))?,
        };
        admitted.send(request).answer().await
    }

    /// Takes everything that a call needs (gates, slots, permit) and gives it back at once, as if the call had never been: what an
    /// admission or a refusal costs, for measurements. Nothing is sent, no breaker learns anything.
    pub fn admit_and_release(&self, context: &CallContext) -> Result<(), Refused> {
        let admitted = if self.agent.is_alone() {
            self.admit(context).map(drop)
        } else {
            self.admit_any(context, &ParkedAt::default()).map(drop)
        };
        admitted.map_err(|refusal| Refused { agent: self.name().clone(), refusal })
    }

    /// Hands an admitted call to the actor.
    pub(crate) fn send(&self, permit: Permit, request: CallRequest, leg: Option<Leg>) -> Sent {
        let (reply, answer) = oneshot::channel();
        let cancel = self.shared.aborting.child_token();
        let cancel_on_drop = cancel.clone().drop_guard();
        // Only a log asks who it was that a dying actor's call was for.
        let context = self.shared.call_log.is_some().then(|| Box::new(request.context.clone()));
        let job = Job::new(request, permit, reply, cancel, leg);
        // Where the actor is gone the job is dropped here, and with it the permit and the reply port.
        self.agent.address.cast(AgentMessage::Call(Box::new(job)));
        Sent { answer, context, cancel_on_drop }
    }

    /// Waits for the answer to a call that was sent.
    pub(crate) async fn answer(&self, mut sent: Sent) -> Result<CallReply, CallError> {
        let context = sent.context.take();
        if let Some(result) = sent.end().await {
            return result;
        }
        let (refusal, _) = self.lost();
        Err(self.refused(&refusal, &context.unwrap_or_default()))
    }

    /// What a call gets whose actor is gone, and whether another target may answer instead.
    pub(crate) fn lost(&self) -> (Refusal, Elsewhere) {
        if self.shared.stopping.is_cancelled() {
            (Refusal::ShuttingDown, Elsewhere::MayNot)
        } else {
            (Refusal::Restarted, Elsewhere::May(Reason::Restarted))
        }
    }

    /// Takes everything that a call needs at this target, or nothing: requests a minute, gates from the outside in, the caller's volume
    /// guard, then slots.
    pub(crate) fn admit(&self, context: &CallContext) -> Result<Permit, Refusal> {
        self.as_now(|front| front.admit_as(context, &ParkedAt::default(), Held::Nothing))
    }

    /// Does something with the agent as it is now: a reload may have put another core at its place since this handle was made, and may
    /// do so again meanwhile.
    pub(crate) fn as_now<T>(&self, admit: impl Fn(&Self) -> Result<T, Refusal>) -> Result<T, Refusal> {
        if !self.agent.superseded.load(Ordering::Acquire) {
            let admitted = admit(self);
            if !matches!(admitted, Err(Refusal::Gone)) {
                return admitted;
            }
        }
        for _ in 0..RELOADS_MET_MAX {
            let Some(front) = self.now() else { break };
            match admit(&front) {
                Err(Refusal::Gone) => {}
                admitted => return admitted,
            }
        }
        Err(Refusal::Gone)
    }

    /// The agent of this name as it is now, if it is still there.
    pub(crate) fn now(&self) -> Option<Self> {
        let agent = self.shared.agent(self.name().as_str())?;
        Some(Self { shared: Arc::clone(&self.shared), agent })
    }

    /// The same for a run that is `parked`: of the gates it is parked at it may take the trials that are kept for such runs. That is so
    /// at each gate on the way (provider, key, target), and all or nothing as ever: a run that finds a trial at the provider's gate and
    /// none further in gives the first one back, to everybody. While the provider's gate is on trial, none is taken further in.
    /// What a call has already (from another target of the agent, or from the line) it brings along in `held`.
    pub(crate) fn admit_as(&self, context: &CallContext, parked: &ParkedAt, held: Held<'_>) -> Result<Permit, Refusal> {
        let shared = &self.shared;
        let now = shared.now();
        if shared.stopping.is_cancelled() {
            return Err(Refusal::ShuttingDown);
        }
        if context.deadline.is_some_and(|deadline| deadline <= now) {
            return Err(Refusal::Deadline);
        }
        if shared.dead_letters.holds(&self.agent, context.tenant.as_deref(), context.idempotency_key.as_deref()) {
            return Err(Refusal::DeadLetter);
        }
        let id = shared.next_call();
        let call_is = if matches!(held, Held::Call(_)) { CallIs::MovingOn } else { CallIs::New };
        // What stands in for a call that was counted is new at its own agent, and nowhere else.
        let caller_has = if context.ladder == LadderUse::StandsIn { CallIs::MovingOn } else { call_is };
        let mut counted = Counted::default();
        self.count_requests(context, (caller_has, id, now), &mut counted)?;
        let mut passing = Passing::begin(shared, &self.agent, now);
        self.pass_gates(id, now, parked, &mut passing.passes)?;
        warming::not_warming(&self.agent, now)?;
        self.count_volume(context, (caller_has, now), &mut counted)?;
        // Slots that it has already, or was given in the line, are not taken again.
        let (seats, call_slot) = match held {
            Held::Nothing => (self.take_slots(context, Part::Everything, now)?, None),
            Held::All(seats) => (seats, None),
            Held::Call(call_slot) => (self.take_slots(context, Part::Target, now)?, Some(call_slot)),
        };
        // Slots come first: who waits for one holds no tokens. Without tokens they are given back as if they had never been taken.
        let spending = Spending::begin(shared, &self.agent, context, now)?;
        // Who takes the target away looks for who is in after it said so.
        let inside = Inside::enter(&self.agent).ok_or(Refusal::Gone)?;
        // Last, so that only a call that is made finds the model cold and warms it up.
        let found = warming::look(shared, &self.agent)?;
        let request = counted.keep();
        let mut permit = Permit::new(shared, inside, id, passing.keep(), self.lease(seats, call_slot), found);
        (permit.request, permit.spending) = (request, spending);
        permit.passes.announce(shared, now);
        if call_is == CallIs::New {
            self.agent.metrics.admitted.increment(1);
        }
        Ok(permit)
    }

    /// What the agent's gates show now, without taking a trial: the outermost that is shut, else the most shut.
    pub(crate) fn look(&self) -> GateView {
        let mut view = GateView::Admit;
        for guard in self.agent.guards() {
            match guard.gate.look() {
                GateView::Refuse(refusal) => return GateView::Refuse(refusal),
                GateView::Probe { free, reason } => view = GateView::Probe { free, reason },
                GateView::Admit => {}
            }
        }
        view
    }

    /// The refusal as an error, counted and logged.
    pub(crate) fn refused(&self, refusal: &Refusal, context: &CallContext) -> CallError {
        let envelope = refusal.to_envelope(self.name().as_str());
        self.count_refused(&envelope, context);
        let tries = match refusal {
            Refusal::Everywhere { tries, .. } => tries.clone(),
            _ => Vec::new(),
        };
        CallError { tries, ..CallError::refused(envelope) }
    }

    /// Counts and logs a refusal: once a call, however many targets refused it.
    pub(crate) fn count_refused(&self, envelope: &Envelope, context: &CallContext) {
        let labels = vec![
            metrics::Label::new("agent", self.name().as_str().to_owned()),
            metrics::Label::from_static_parts("reason", envelope.error_code.as_str()),
        ];
        metric::count(metric::REFUSED, labels, 1);
        if let Some(log) = &self.shared.call_log {
            log.finished(logged_refusal(&self.shared, &self.agent, envelope, &Caller::of(context)));
        }
    }

    fn pass_gates(&self, id: u64, now: Timestamp, parked: &ParkedAt, passes: &mut Passes) -> Result<(), Refusal> {
        let provider = &self.agent.provider;
        let mut below = false;
        if let Some(guard) = &provider.guard {
            let passed = self.pass_gate(guard, (id, now), parked.asker(guard.id))?;
            // While the provider's own breaker is on trial, no trial is taken below it.
            below = passed.kind == PassKind::Trial;
            passes.provider = Some(gate_pass(guard, passed, id));
        }
        let pass = if below { Self::pass_gate_below } else { Self::pass_gate };
        if let Some(guard) = &provider.key_guard {
            let passed = pass(self, guard, (id, now), parked.asker(guard.id))?;
            passes.key = Some(gate_pass(guard, passed, id));
        }
        let target = &self.agent.guard;
        let passed = pass(self, target, (id, now), parked.asker(target.id))?;
        passes.target = Some(gate_pass(target, passed, id));
        Ok(())
    }

    #[inline]
    fn pass_gate(&self, guard: &Guard, (id, now): (u64, Timestamp), asker: Asker) -> Result<Passed, Refusal> {
        guard.gate.pass(now, asker).map_err(|shut| self.shut_out(guard, shut, id, now))
    }

    fn shut_out(&self, guard: &Guard, shut: Shut, id: u64, now: Timestamp) -> Refusal {
        let Shut { refusal, opened } = shut;
        if let Some(generation) = opened {
            // One message an opening: the supervisor follows, and the orchestrator offers the trials to those they are kept for.
            self.shared.supervisor.cast(SupervisorMessage::Opened { breaker: guard.id, generation, at: now });
        }
        self.gate_refusal(guard, refusal, id, now)
    }

    fn pass_gate_below(&self, guard: &Guard, (id, now): (u64, Timestamp), _: Asker) -> Result<Passed, Refusal> {
        guard.gate.pass_below(now).map_err(|refusal| self.gate_refusal(guard, refusal, id, now))
    }

    fn gate_refusal(
        &self,
        guard: &Guard,
        refusal: crate::policy::breaker::state::Refusal,
        id: u64,
        now: Timestamp,
    ) -> Refusal {
        let jitter = self.shared.chance.share(id);
        Refusal::Gate { breaker: Arc::clone(&guard.name), refusal, now, jitter }
    }

    /// Every slot of this part of what the call needs here, or nothing.
    fn take_slots(&self, context: &CallContext, part: Part, now: Timestamp) -> Result<Seats, Refusal> {
        let taken = self.shared.compartments.take(&self.shared, &self.agent, context.asking(), (part, now));
        taken.map_err(Refusal::of_no_seats)
    }

    /// What the call holds of slots while it is under way. Those that move on with it are `call_slot`'s; where it brought none and may move
    /// on, they are set apart now.
    fn lease(&self, seats: Seats, call_slot: Option<&Arc<CallSlot>>) -> Lease {
        let agent = &self.agent;
        match call_slot {
            Some(call_slot) => Lease::with_call_slot(seats, Arc::clone(call_slot)),
            None if agent.is_alone() => Lease::of_all(agent, seats),
            None => {
                let (of_target, of_call) = seats.split(&is_of_target(agent));
                Lease::with_call_slot(of_target, CallSlot::of(agent, of_call))
            }
        }
    }

    /// Calls in the actor's mailbox now. Never more than its slots.
    pub fn mailbox_depth(&self) -> u32 {
        self.agent.common.mailbox_depth.load(Ordering::Acquire)
    }

    /// Calls in flight now.
    pub fn in_flight(&self) -> u32 {
        self.shared.compartments.in_flight(self.agent.common.count)
    }
}

fn gate_pass(guard: &Guard, passed: Passed, id: u64) -> GatePass {
    let pass = Pass { id, generation: passed.generation, kind: passed.kind };
    GatePass { breaker: guard.id, pass, opened_it: passed.opened_it }
}
