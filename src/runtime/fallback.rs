//! One call over an agent's targets: the one that chance and order put first, and the next where a guard refuses or the place fails
//! before its first content. Each target is asked at most once a call; the first error of a target that was asked is kept, with the
//! list of what was tried. An agent with one target pays nothing for this.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use super::{
    call::{CallContext, CallError, CallReply, CallRequest, Try},
    core::AgentCore,
    handle::{AgentHandle, Sent},
    metric,
    parked::ParkedAt,
    permit::Permit,
    refusal::Refusal,
};
use crate::{
    model::{clock::Timestamp, envelope::ErrorCode, reply::Usage, run::AttemptRecord},
    policy::{
        breaker::state::GateView,
        fallback::{Elsewhere, Rank, plan},
    },
};

/// Draws of targets are independent of every other use of chance.
const CHANCE_OF_TARGETS: u64 = 0x7461_7267_6574;

/// A call that one of its agent's targets took.
pub(crate) struct Admitted {
    front: AgentHandle,
    pub(crate) target: AgentHandle,
    pub(crate) permit: Permit,
    route: Route,
}

/// What is left of a call's targets, and what became of the others.
#[derive(Default)]
struct Route {
    left: VecDeque<Arc<AgentCore>>,
    tries: Vec<Try>,
    attempts: Vec<AttemptRecord>,
    usage: Option<Usage>,
    spent: Duration,
    /// The error of the first target that was asked.
    kept: Option<CallError>,
}

/// A call on its way to one target, with the rest of its route.
pub(crate) struct Routed {
    front: AgentHandle,
    target: AgentHandle,
    route: Route,
    sent: Sent,
    /// The request for further targets, while there are any.
    again: Option<CallRequest>,
}

impl AgentHandle {
    /// Takes what a call needs at the first of its targets that does not refuse; `parked` as for [`AgentHandle::admit_parked`].
    pub(crate) fn admit_any(&self, context: &CallContext, parked: &ParkedAt) -> Result<Admitted, Refusal> {
        if self.agent.further.is_empty() {
            let permit = self.admit_parked(context, parked)?;
            return Ok(Admitted { front: self.clone(), target: self.clone(), permit, route: Route::default() });
        }
        let mut route = Route { left: self.planned(), ..Route::default() };
        let mut refusals = Vec::new();
        while let Some(core) = route.left.pop_front() {
            let target = self.at(core);
            match target.admit_parked(context, parked) {
                Ok(permit) => return Ok(Admitted { front: self.clone(), target, permit, route }),
                // One cap for all targets, one stop, one deadline: the others would say the same.
                Err(refusal) if refusal.is_of_agent(&self.agent.guard.name) => return Err(refusal),
                Err(refusal) => {
                    route.tries.push(try_of_refusal(&target, &refusal));
                    refusals.push(refusal);
                }
            }
        }
        Err(Refusal::of_all(refusals, route.tries))
    }

    /// What the gates of all targets show together: the most open one counts.
    pub(crate) fn look_anywhere(&self) -> GateView {
        let mut best = self.look();
        for core in self.agent.further.iter().filter_map(|index| self.shared.agents.get(*index)) {
            best = more_open(best, self.at(Arc::clone(core)).look());
        }
        best
    }

    /// Whether it passes somebody else's request on as it is: then a call may bring a relay.
    pub fn relays(&self) -> bool {
        self.agent.backend.relays()
    }

    /// All targets in the order in which this call asks them.
    fn planned(&self) -> VecDeque<Arc<AgentCore>> {
        let further = self.agent.further.iter().filter_map(|index| self.shared.agents.get(*index));
        let cores: Vec<&Arc<AgentCore>> = std::iter::once(&self.agent).chain(further).collect();
        let ranks: Vec<Rank> = cores.iter().map(|core| core.rank).collect();
        let chance = self.shared.chance.fork(CHANCE_OF_TARGETS);
        plan(&ranks, chance, self.shared.next_call())
            .into_iter()
            .filter_map(|place| cores.get(place).map(|core| Arc::clone(core)))
            .collect()
    }

    fn at(&self, core: Arc<AgentCore>) -> Self {
        Self { shared: Arc::clone(&self.shared), agent: core }
    }
}

impl Admitted {
    /// Hands the call to the target that took it.
    pub(crate) fn send(self, mut request: CallRequest) -> Routed {
        let Self { front, target, permit, route } = self;
        let started = front.shared.now();
        let again = (!route.left.is_empty()).then(|| further_request(&request, &front, started));
        if let Some(relay) = request.relay.as_mut().filter(|_| !route.tries.is_empty()) {
            relay.fallback = Some(Arc::clone(&target.agent.target));
        }
        let sent = target.send(permit, request);
        Routed { front, target, route, sent, again }
    }
}

impl Routed {
    /// Waits for the answer of this target, or of the next that may give one. Dropping the future cancels whatever is under way.
    pub(crate) async fn answer(self) -> Result<CallReply, CallError> {
        let Self { front, mut target, mut route, sent, again } = self;
        let mut answer = target.answer(sent).await;
        loop {
            let error = match answer {
                Ok(reply) => return Ok(route.answered(&target, reply)),
                Err(error) => error,
            };
            let Some(request) = again.as_ref().filter(|_| error.elsewhere == Elsewhere::May) else {
                return Err(route.ended(error));
            };
            route.passed_over(&target, error);
            let Some((next, permit)) = route.next(&front, &request.context) else { return Err(route.exhausted()) };
            metric::count(metric::FALLBACKS, vec![metrics::Label::new("agent", front.name().as_str().to_owned())], 1);
            let mut request = request.clone();
            if let Some(relay) = &mut request.relay {
                relay.fallback = Some(Arc::clone(&next.agent.target));
            }
            target = next;
            let sent = target.send(permit, request);
            answer = target.answer(sent).await;
        }
    }
}

impl Route {
    /// The next target that takes the call. Who refuses it is only written down: this call was counted where it was asked first.
    fn next(&mut self, front: &AgentHandle, context: &CallContext) -> Option<(AgentHandle, Permit)> {
        while let Some(core) = self.left.pop_front() {
            let target = front.at(core);
            match target.admit(context) {
                Ok(permit) => return Some((target, permit)),
                Err(refusal) => self.tries.push(try_of_refusal(&target, &refusal)),
            }
        }
        None
    }

    fn passed_over(&mut self, target: &AgentHandle, mut error: CallError) {
        self.tries.push(Try {
            target: Arc::clone(&target.agent.target),
            error_code: error.envelope.error_code,
            message: error.envelope.message.clone(),
            retry_after: error.envelope.retry_after,
        });
        self.add(&mut error.attempts, error.usage, error.spent);
        self.kept.get_or_insert(error);
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

    /// The last target's own word: it is about the request, so it counts more than why others were passed over.
    fn ended(mut self, mut error: CallError) -> CallError {
        if self.tries.is_empty() {
            return error;
        }
        if error.elsewhere == Elsewhere::May {
            let kept = self.kept.take();
            self.add(&mut error.attempts, error.usage, error.spent);
            return self.with_all(kept.unwrap_or(error));
        }
        self.add(&mut error.attempts, error.usage, error.spent);
        self.with_all(error)
    }

    /// No target is left.
    fn exhausted(mut self) -> CallError {
        let kept = self.kept.take();
        let nobody = || {
            let envelope = crate::model::envelope::Envelope::new(ErrorCode::Internal, "no target was asked");
            CallError::refused(envelope)
        };
        self.with_all(kept.unwrap_or_else(nobody))
    }

    fn with_all(self, mut error: CallError) -> CallError {
        let attempts = self.attempts.len();
        error.envelope.details.insert("attempts".to_owned(), attempts.into());
        error.envelope.details.insert("tries".to_owned(), serde_json::json!(self.tries));
        CallError {
            nothing_sent: error.nothing_sent && attempts == 0,
            attempts: self.attempts,
            usage: self.usage,
            spent: self.spent,
            ..error
        }
    }
}

/// The request as a further target gets it: what was given to the call as a whole is not given anew.
fn further_request(request: &CallRequest, front: &AgentHandle, started: Timestamp) -> CallRequest {
    let mut request = request.clone();
    let bounds = [Some(front.agent.settings.timeouts.call), request.context.timeout.take()];
    let end = bounds.into_iter().flatten().map(|timeout| started.after(timeout));
    request.context.deadline = request.context.deadline.into_iter().chain(end).min();
    request
}

fn try_of_refusal(target: &AgentHandle, refusal: &Refusal) -> Try {
    let envelope = refusal.to_envelope(target.name().as_str());
    Try {
        target: Arc::clone(&target.agent.target),
        error_code: envelope.error_code,
        message: envelope.message,
        retry_after: envelope.retry_after,
    }
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
