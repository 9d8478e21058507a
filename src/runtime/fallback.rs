//! One call over an agent's targets: the one that chance and order put first, and the next where a guard refuses or the place fails
//! before its first content. Each target is asked at most once a call, one slot of the agent covers them all, and the first error of a
//! target that was asked is kept, with the list of what was tried. It judges nothing: each target's breakers hear of their own part.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use super::{
    agent_actor::{Leg, Turn},
    call::{CallContext, CallError, CallReply, CallRequest, Try},
    compartments::Seats,
    core::{AgentCore, Shared},
    handle::{AgentHandle, Held, Sent},
    metric,
    parked::ParkedAt,
    permit::{CallSlot, Permit},
    refusal::Refusal,
};
use crate::{
    model::{
        clock::Timestamp,
        envelope::{Envelope, ErrorCode},
        reply::Usage,
        run::AttemptRecord,
    },
    policy::{
        breaker::state::GateView,
        fallback::{Elsewhere, Rank, Reason, plan},
    },
};

/// Draws of targets are independent of every other use of chance.
const CHANCE_OF_TARGETS: u64 = 0x7461_7267_6574;

/// A call that one of its agent's targets took.
pub(crate) struct Admitted {
    pub(crate) target: AgentHandle,
    permit: Permit,
    /// `None` where the agent has one target.
    route: Option<Box<Route>>,
}

/// A call on its way to one target, with the rest of its route.
pub(crate) struct Routed {
    target: AgentHandle,
    sent: Sent,
    further: Option<Box<Further>>,
}

/// What is left of a call's targets, and what became of the others.
struct Route {
    front: AgentHandle,
    left: VecDeque<Arc<AgentCore>>,
    /// The agent's slot, once it is taken.
    slot: Option<Arc<CallSlot>>,
    tries: Vec<Try>,
    /// Why targets were passed over since the last one that took the call.
    passed_over: Vec<Reason>,
    attempts: Vec<AttemptRecord>,
    usage: Option<Usage>,
    spent: Duration,
    /// The error of the first target that was asked.
    kept: Option<CallError>,
}

/// What the other targets of a call need.
struct Further {
    route: Route,
    /// The request as they get it.
    request: CallRequest,
    call_id: String,
    #[allow(dead_code, reason = "held for its drop")]
    stopwatch: Stopwatch,
}

/// Records how long a call took, whatever its end.
struct Stopwatch {
    shared: Arc<Shared>,
    agent: Arc<AgentCore>,
    started: Timestamp,
}

impl Drop for Stopwatch {
    fn drop(&mut self) {
        let took = self.shared.now_or(self.started).since(self.started);
        self.agent.metrics.call_seconds.record(took.as_secs_f64());
    }
}

impl AgentHandle {
    /// Takes what a call needs at the first of its targets that does not refuse, on behalf of a run that is `parked`.
    pub(crate) fn admit_any(&self, context: &CallContext, parked: &ParkedAt) -> Result<Admitted, Refusal> {
        self.as_now(|front| front.admit_any_here(context, parked))
    }

    fn admit_any_here(&self, context: &CallContext, parked: &ParkedAt) -> Result<Admitted, Refusal> {
        if self.agent.is_alone() {
            let permit = self.admit_as(context, parked, Held::Nothing)?;
            return Ok(Admitted { target: self.clone(), permit, route: None });
        }
        Self::admit_on(Route::of(self).without(&context.places_asked), context, parked, None)
    }

    /// The same for a call that was given every slot at `target` in the line.
    pub(crate) fn admit_served(
        &self,
        context: &CallContext,
        parked: &ParkedAt,
        target: &Arc<AgentCore>,
        seats: Seats,
    ) -> Result<Admitted, Refusal> {
        if self.agent.is_alone() {
            let permit = self.admit_as(context, parked, Held::All(seats))?;
            return Ok(Admitted { target: self.clone(), permit, route: None });
        }
        let mut route = Route::of(self).without(&context.places_asked);
        route.first(target);
        Self::admit_on(route, context, parked, Some(seats))
    }

    /// The first target of the route that takes the call; `given` are the slots at the first of them.
    fn admit_on(
        mut route: Route,
        context: &CallContext,
        parked: &ParkedAt,
        mut given: Option<Seats>,
    ) -> Result<Admitted, Refusal> {
        let mut refusals = Vec::new();
        while let Some(target) = route.pop() {
            let held = given.take().map_or(Held::Nothing, Held::All);
            match target.admit_as(context, parked, held) {
                Ok(permit) => {
                    route.took(&permit);
                    return Ok(Admitted { target, permit, route: Some(Box::new(route)) });
                }
                // One cap for all targets, one stop, one deadline: the others would say the same.
                Err(refusal) if refusal.is_of_call() => return Err(refusal),
                Err(refusal) => {
                    route.refused_by(&target, &refusal);
                    refusals.push(refusal);
                }
            }
        }
        Err(Refusal::of_all(refusals, route.tries))
    }

    /// What the gates of all targets show together: the most open one counts.
    pub(crate) fn look_anywhere(&self) -> GateView {
        let targets = self.shared.targets_of(&self.agent);
        targets.into_iter().skip(1).fold(self.look(), |best, core| more_open(best, self.at(core).look()))
    }

    /// Whether it passes somebody else's request on as it is: then a call may bring a relay.
    pub fn relays(&self) -> bool {
        self.agent.backend.relays()
    }

    pub(crate) fn at(&self, core: Arc<AgentCore>) -> Self {
        Self { shared: Arc::clone(&self.shared), agent: core }
    }
}

impl Admitted {
    /// A call that its agent's own target took, and that no other one may get.
    pub(crate) fn alone(target: AgentHandle, permit: Permit) -> Self {
        Self { target, permit, route: None }
    }

    /// What it holds, for work that is done outside.
    pub(crate) fn into_permit(self) -> Permit {
        self.permit
    }

    /// Hands the call to the target that took it.
    pub(crate) fn send(self, mut request: CallRequest) -> Routed {
        let Self { target, permit, route } = self;
        let Some(route) = route else {
            let sent = target.send(permit, request, None);
            return Routed { target, sent, further: None };
        };
        let front = &route.front;
        let started = front.shared.now();
        let call_id = front.shared.call_id(started);
        let again = further_request(&request, front, started);
        if let Some(relay) = request.relay.as_mut().filter(|_| !route.tries.is_empty()) {
            relay.fallback = Some(Arc::clone(&target.agent.target));
        }
        let stopwatch = Stopwatch { shared: Arc::clone(&front.shared), agent: Arc::clone(&front.agent), started };
        let leg = Leg { call_id: call_id.clone(), turn: Turn::First };
        let sent = target.send(permit, request, Some(leg));
        Routed { target, sent, further: Some(Box::new(Further { route: *route, request: again, call_id, stopwatch })) }
    }
}

impl Routed {
    /// Waits for the answer of this target, or of the next that may give one. Dropping the future cancels whatever is under way.
    pub(crate) async fn answer(self) -> Result<CallReply, CallError> {
        match self.further {
            None => self.target.answer(self.sent).await,
            Some(further) => further.answer(self.target, self.sent).await,
        }
    }
}

impl Further {
    async fn answer(self: Box<Self>, mut target: AgentHandle, mut sent: Sent) -> Result<CallReply, CallError> {
        let Self { mut route, request, call_id, stopwatch: _stopwatch } = *self;
        loop {
            let error = match sent.end().await {
                Some(Ok(reply)) => return Ok(route.answered(&target, reply)),
                Some(Err(error)) => error,
                None => lost(&target),
            };
            let elsewhere = error.elsewhere;
            route.failed_at(&target, error);
            // What the last one says of others holds for whatever else might answer.
            let Elsewhere::May(reason) = elsewhere else {
                return Err(CallError { elsewhere, ..route.ended(&request.context) });
            };
            route.passed_over.push(reason);
            let Some((next, permit)) = route.next(&request.context) else { return Err(route.ended(&request.context)) };
            let mut request = request.clone();
            if let Some(relay) = &mut request.relay {
                relay.fallback = Some(Arc::clone(&next.agent.target));
                relay.earlier += u32::try_from(route.attempts.len()).unwrap_or(u32::MAX);
            }
            let leg = Leg { call_id: call_id.clone(), turn: Turn::Further };
            sent = next.send(permit, request, Some(leg));
            target = next;
        }
    }
}

impl Route {
    /// All targets in the order in which this call asks them.
    fn of(front: &AgentHandle) -> Self {
        let shared = &front.shared;
        let cores = shared.targets_of(&front.agent);
        let ranks: Vec<Rank> = cores.iter().map(|core| core.rank).collect();
        let planned = plan(&ranks, shared.chance.fork(CHANCE_OF_TARGETS), shared.next_call());
        Self {
            front: front.clone(),
            left: planned.into_iter().filter_map(|place| cores.get(place).map(Arc::clone)).collect(),
            slot: None,
            tries: Vec::new(),
            passed_over: Vec::new(),
            attempts: Vec::new(),
            usage: None,
            spent: Duration::ZERO,
            kept: None,
        }
    }

    /// Leaves out where the call has been before, unless that is everywhere.
    fn without(mut self, places: &[Arc<str>]) -> Self {
        if self.left.iter().any(|core| !core.is_among(places)) {
            self.left.retain(|core| !core.is_among(places));
        }
        self
    }

    /// Asks `target` before all others.
    fn first(&mut self, target: &Arc<AgentCore>) {
        self.left.retain(|core| core.index != target.index);
        self.left.push_front(Arc::clone(target));
    }

    fn pop(&mut self) -> Option<AgentHandle> {
        self.left.pop_front().map(|core| self.front.at(core))
    }

    /// The next target that takes the call. Who refuses it is only written down: this call was counted where it was asked first.
    fn next(&mut self, context: &CallContext) -> Option<(AgentHandle, Permit)> {
        while let Some(target) = self.pop() {
            let held = self.slot.as_ref().map_or(Held::Nothing, Held::Call);
            match target.admit_as(context, &ParkedAt::default(), held) {
                Ok(permit) => {
                    self.took(&permit);
                    return Some((target, permit));
                }
                // The others would say the same, and they were not asked.
                Err(refusal) if refusal.passed_over_for().is_none() => return None,
                Err(refusal) => self.refused_by(&target, &refusal),
            }
        }
        None
    }

    /// A target took the call: whoever was passed over before it was a fallback's cause.
    fn took(&mut self, permit: &Permit) {
        if self.slot.is_none() {
            self.slot = permit.lease.call_slot().map(Arc::clone);
        }
        for reason in self.passed_over.drain(..) {
            let labels = vec![
                metrics::Label::new("agent", self.front.name().as_str().to_owned()),
                metrics::Label::from_static_parts("reason", reason.as_str()),
            ];
            metric::count(metric::FALLBACKS, labels, 1);
        }
    }

    fn refused_by(&mut self, target: &AgentHandle, refusal: &Refusal) {
        let envelope = refusal.to_envelope(target.name().as_str());
        self.passed_over.extend(refusal.passed_over_for());
        self.write_down(target, &envelope, None);
    }

    fn failed_at(&mut self, target: &AgentHandle, mut error: CallError) {
        let status = error.attempts.last().and_then(|attempt| attempt.status);
        self.write_down(target, &error.envelope, status);
        self.add(&mut error.attempts, error.usage, error.spent);
        self.kept.get_or_insert(error);
    }

    fn write_down(&mut self, target: &AgentHandle, envelope: &Envelope, status: Option<u16>) {
        self.tries.push(Try {
            target: Arc::clone(&target.agent.target),
            error_code: envelope.error_code,
            status,
            message: envelope.message.clone(),
            retry_after: envelope.retry_after,
        });
    }

    fn add(&mut self, attempts: &mut Vec<AttemptRecord>, usage: Option<Usage>, spent: Duration) {
        self.attempts.append(attempts);
        self.usage = self.usage.into_iter().chain(usage).reduce(Usage::plus);
        self.spent = self.spent.saturating_add(spent);
    }

    fn answered(mut self, target: &AgentHandle, mut reply: CallReply) -> CallReply {
        if self.tries.is_empty() {
            return reply;
        }
        self.add(&mut reply.attempts, reply.usage, reply.spent);
        CallReply {
            attempts: self.attempts,
            usage: self.usage,
            spent: self.spent,
            fallback: Some(Arc::clone(&target.agent.target)),
            tries: self.tries,
            ..reply
        }
    }

    /// No target is left, or none may be asked any more: the first error, which no later one hides.
    fn ended(mut self, context: &CallContext) -> CallError {
        let nobody = || CallError::refused(Envelope::new(ErrorCode::Internal, "no target was asked"));
        let mut error = self.kept.take().unwrap_or_else(nobody);
        let nothing_sent = error.nothing_sent && self.attempts.len() == error.attempts.len();
        if error.target.is_none() {
            self.front.count_refused(&error.envelope, context);
        }
        if self.tries.len() > 1 {
            error.envelope.details.insert("attempts".to_owned(), self.attempts.len().into());
            error.envelope.details.insert("tries".to_owned(), serde_json::json!(self.tries));
        }
        CallError {
            nothing_sent,
            attempts: self.attempts,
            usage: self.usage,
            spent: self.spent,
            tries: self.tries,
            ..error
        }
    }
}

/// The target's actor died with the call queued: nothing was sent.
fn lost(target: &AgentHandle) -> CallError {
    let (refusal, elsewhere) = target.lost();
    CallError { elsewhere, ..CallError::refused(refusal.to_envelope(target.name().as_str())) }
}

/// The request as a further target gets it: what was given to the call as a whole is not given anew. The call's own end is a deadline
/// to it, so that a target which got only the rest of the time is not blamed for it.
pub(super) fn further_request(request: &CallRequest, front: &AgentHandle, started: Timestamp) -> CallRequest {
    let mut request = request.clone();
    let bounds = [Some(front.agent.settings.timeouts.call), request.context.timeout.take()];
    let end = bounds.into_iter().flatten().map(|timeout| started.after(timeout));
    request.context.deadline = request.context.deadline.into_iter().chain(end).min();
    request
}

fn more_open(left: GateView, right: GateView) -> GateView {
    match (left, right) {
        (GateView::Admit, _) | (_, GateView::Admit) => GateView::Admit,
        (probe @ GateView::Probe { .. }, _) | (_, probe @ GateView::Probe { .. }) => probe,
        (GateView::Refuse(left), GateView::Refuse(right)) => {
            let far = |refusal: &crate::policy::breaker::state::Refusal| refusal.until.unwrap_or(Timestamp::NEVER);
            GateView::Refuse(if far(&right) < far(&left) { right } else { left })
        }
    }
}
