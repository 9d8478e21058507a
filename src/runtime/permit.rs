//! The permit: the one value that an admitted call holds. Dropping it anywhere, for whatever reason, gives back exactly what was
//! taken, exactly once; the supervisor settles it instead when it has judged the outcome.

use std::{ops::Deref, sync::Arc};

use super::{
    compartments::Seats,
    core::{AgentCore, BreakerId, Shared},
    counted::too_many_requests,
    metric,
    presence::Entry,
    rates::Request,
    refusal::Refusal,
    spending::Spending,
    supervisor::SupervisorMessage,
    warming::Found,
};
use crate::{
    model::clock::Timestamp,
    policy::{
        breaker::state::{Pass, PassKind},
        bulkhead::Member,
        compartment::needs::CountId,
    },
};

/// The slots of one call at one target. Shared with work that cannot be interrupted: they are free when the last holder is gone.
pub(crate) struct Lease {
    /// The target's; the call's too, where no other target can be asked.
    seats: Seats,
    /// Where the call may move on to another target: what moves with it.
    call_slot: Option<Arc<CallSlot>>,
}

impl Lease {
    /// All slots of a call that has one target only.
    pub(crate) fn of_all(agent: &Arc<AgentCore>, mut seats: Seats) -> Self {
        seats.begin();
        seats.show(agent);
        Self { seats, call_slot: None }
    }

    /// A target's slots, where `call_slot` answers for those of the call.
    pub(crate) fn with_call_slot(mut seats: Seats, call_slot: Arc<CallSlot>) -> Self {
        seats.begin();
        Self { seats, call_slot: Some(call_slot) }
    }

    /// As whom the call has its slot of this count, if it has one.
    pub(crate) fn member_of(&self, count: CountId) -> Option<Member> {
        self.seats.member_of(count)
    }

    /// The slots that move on with the call.
    pub(crate) fn call_slot(&self) -> Option<&Arc<CallSlot>> {
        self.call_slot.as_ref()
    }
}

/// The slots of a call that may ask several targets (its agent's, its feature's, its tenant's): one of each for all of them, free when
/// call and leases are gone.
pub(crate) struct CallSlot {
    #[allow(dead_code, reason = "held for its drop, which gives back")]
    seats: Seats,
}

impl CallSlot {
    pub(crate) fn of(agent: &Arc<AgentCore>, mut seats: Seats) -> Arc<Self> {
        seats.begin();
        seats.show(agent);
        Arc::new(Self { seats })
    }
}

/// A gate that a call passed. Only the breaker's place: the gate itself is found at the agent, so that passing costs no count of owners.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GatePass {
    pub(crate) breaker: BreakerId,
    pub(crate) pass: Pass,
    /// This call turned the gate from open to half-open.
    pub(crate) opened_it: bool,
}

impl GatePass {
    /// Tells the supervisor of a trial.
    fn announce(&self, shared: &Shared, at: Timestamp) {
        if self.pass.kind == PassKind::Trial {
            let (breaker, opened_it) = (self.breaker, self.opened_it);
            shared.supervisor.cast(SupervisorMessage::TrialTaken { breaker, pass: self.pass, opened_it, at });
        }
    }

    /// Gives a trial back that the supervisor was not told of. It must still hear that the gate is half-open: that is one message an
    /// opening. A refused call costs no other, else a flood of them would fill the supervisor's mailbox.
    fn undo(&self, shared: &Shared, agent: &AgentCore, at: Timestamp) {
        if self.opened_it {
            self.announce(shared, at);
            self.release(shared, agent);
        } else if self.pass.kind == PassKind::Trial {
            self.give_back(agent);
        }
    }

    /// Puts its trial back on the gate. The agent is the one that the call was admitted at, so the gate is among its own.
    fn give_back(&self, agent: &AgentCore) {
        if let Some(guard) = agent.guard_of(self.breaker) {
            guard.gate.give_back(self.pass.generation);
        }
    }

    /// Gives a trial back: to the breaker by message, then to the gate. In this order, so that whoever takes it next is heard of
    /// after it came back.
    fn release(&self, shared: &Shared, agent: &AgentCore) {
        if self.pass.kind == PassKind::Trial {
            let at = shared.now_or(Timestamp::ZERO);
            shared.supervisor.cast(SupervisorMessage::Released { breaker: self.breaker, pass: self.pass, at });
            self.give_back(agent);
        }
    }
}

/// The gates that a call passed, from the outside in.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Passes {
    pub(crate) provider: Option<GatePass>,
    pub(crate) key: Option<GatePass>,
    pub(crate) target: Option<GatePass>,
}

impl Passes {
    pub(crate) fn all(&self) -> impl Iterator<Item = &GatePass> {
        self.provider.iter().chain(&self.key).chain(&self.target)
    }

    /// Whether the call is a trial anywhere.
    pub(crate) fn any_trial(&self) -> bool {
        self.all().any(|passed| passed.pass.kind == PassKind::Trial)
    }

    /// What became of the trials is told: from now on the call is none.
    pub(crate) fn end_trials(&mut self) {
        for passed in [&mut self.provider, &mut self.key, &mut self.target].into_iter().flatten() {
            passed.pass.kind = PassKind::Plain;
        }
    }

    /// Everything was granted: the supervisor hears of the trials.
    pub(crate) fn announce(&self, shared: &Shared, at: Timestamp) {
        for passed in self.all() {
            passed.announce(shared, at);
        }
    }

    /// A later guard refused: as if the gates had never been passed.
    fn undo(&self, shared: &Shared, agent: &AgentCore, at: Timestamp) {
        for passed in self.all() {
            passed.undo(shared, agent, at);
        }
    }

    /// Gives all trials back.
    fn release(&self, shared: &Shared, agent: &AgentCore) {
        for passed in self.all() {
            passed.release(shared, agent);
        }
    }
}

/// The gates that a call is passing. Dropped before it has everything (a later guard refused, or a panic came between), it is as if they had
/// never been passed.
pub(crate) struct Passing<'a> {
    shared: &'a Shared,
    agent: &'a AgentCore,
    at: Timestamp,
    pub(crate) passes: Passes,
}

impl<'a> Passing<'a> {
    pub(crate) fn begin(shared: &'a Shared, agent: &'a AgentCore, at: Timestamp) -> Self {
        Self { shared, agent, at, passes: Passes::default() }
    }

    /// Everything was granted: the permit answers for them now.
    pub(crate) fn keep(mut self) -> Passes {
        std::mem::take(&mut self.passes)
    }
}

impl Drop for Passing<'_> {
    fn drop(&mut self) {
        self.passes.undo(self.shared, self.agent, self.at);
    }
}

/// The target that a call is admitted at. While one of these is there, the target's actor lives.
pub(crate) struct Inside(Arc<AgentCore>);

impl Inside {
    /// Lets a call in; `None` if the target is gone.
    pub(crate) fn enter(agent: &Arc<AgentCore>) -> Option<Self> {
        match agent.presence.enter() {
            Entry::Entered => Some(Self(Arc::clone(agent))),
            Entry::Gone => None,
        }
    }
}

impl Deref for Inside {
    type Target = Arc<AgentCore>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.presence.leave();
    }
}

/// What an admitted call holds.
pub(crate) struct Permit {
    pub(crate) shared: Arc<Shared>,
    pub(crate) id: u64,
    pub(crate) passes: Passes,
    pub(crate) lease: Arc<Lease>,
    /// The first request of its provider's minute, until that is sent; `None` where nobody counts them.
    pub(crate) request: Option<Request>,
    /// The tokens of its first attempt, until the attempts take them over.
    pub(crate) spending: Option<Box<Spending>>,
    /// How the call found its model; taken by whoever makes it.
    pub(crate) found: Option<Found>,
    /// An attempt was reported as slow while in flight: a window may hold it as pending.
    pub(crate) aged: bool,
    /// It is on its way to the supervisor with an outcome.
    handed_over: bool,
    settled: bool,
    /// The last that is dropped: the target's actor lives until everything else is given back.
    pub(crate) agent: Inside,
}

impl Permit {
    pub(crate) fn new(
        shared: &Arc<Shared>,
        agent: Inside,
        id: u64,
        passes: Passes,
        lease: Lease,
        found: Found,
    ) -> Self {
        Self {
            shared: Arc::clone(shared),
            id,
            passes,
            lease: Arc::new(lease),
            request: None,
            spending: None,
            found: Some(found),
            aged: false,
            handed_over: false,
            settled: false,
            agent,
        }
    }

    /// The request of the provider's minute that the call sends next: the one it was admitted with, else another one. `None` where nobody
    /// counts them.
    pub(crate) fn next_request(&mut self) -> Result<Option<Request>, Refusal> {
        let Some(rate) = &self.agent.provider.rate else { return Ok(None) };
        match self.request.take() {
            Some(request) => Ok(Some(request)),
            None => rate.request().map(Some).map_err(|too_many| too_many_requests(&self.shared, self.id, too_many)),
        }
    }

    /// Takes back that an attempt is slow: no window holds it as pending any more.
    pub(crate) fn forget_age(&mut self) {
        if !std::mem::take(&mut self.aged) {
            return;
        }
        for passed in self.passes.all().filter(|passed| passed.pass.kind == PassKind::Plain) {
            let at = self.shared.now_or(Timestamp::ZERO);
            let message = SupervisorMessage::Released { breaker: passed.breaker, pass: passed.pass, at };
            self.shared.supervisor.cast(message);
        }
    }

    /// It goes to the supervisor with an outcome. If it never gets there, or is dropped there unread, that outcome counts as lost.
    #[must_use]
    pub(crate) fn hand_over(mut self) -> Self {
        self.handed_over = true;
        self
    }

    /// The outcome was judged: the breakers know what became of the trials.
    pub(crate) fn settle(mut self) {
        self.settled = true;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.settled {
            return;
        }
        // While everything stops nobody judges any more, and nobody asks.
        if self.handed_over && !self.shared.stopping.is_cancelled() {
            metric::count(metric::OUTCOMES_LOST, Vec::new(), 1);
        }
        self.passes.release(&self.shared, &self.agent);
        self.forget_age();
    }
}
