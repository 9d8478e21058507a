//! The permit: the one value that an admitted call holds. Dropping it anywhere, for whatever reason, gives back exactly what was
//! taken, exactly once; the supervisor settles it instead when it has judged the outcome.

use std::sync::Arc;

use super::{
    compartments::Seats,
    core::{AgentCore, Guard, Shared},
    counted::too_many_requests,
    metric,
    presence::Entered,
    rates::Request,
    refusal::Refusal,
    spending::Spending,
    supervisor::SupervisorMessage,
    warming::Found,
};
use crate::{
    model::clock::Timestamp,
    policy::breaker::state::{Pass, PassKind},
};

/// The slots of one call at one target. Shared with work that cannot be interrupted: they are free when the last holder is gone.
pub(crate) struct Lease {
    /// The target's; the call's too, where no other target can be asked.
    #[allow(dead_code, reason = "held for its drop, which gives back")]
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

/// A gate that a call passed.
#[derive(Debug, Clone)]
pub(crate) struct GatePass {
    pub(crate) guard: Guard,
    pub(crate) pass: Pass,
    /// This call turned the gate from open to half-open.
    pub(crate) opened_it: bool,
}

impl GatePass {
    /// Tells the supervisor of a trial.
    fn announce(&self, shared: &Shared, at: Timestamp) {
        if self.pass.kind == PassKind::Trial {
            let (breaker, opened_it) = (self.guard.id, self.opened_it);
            shared.supervisor.cast(SupervisorMessage::TrialTaken { breaker, pass: self.pass, opened_it, at });
        }
    }

    /// Gives a trial back that the supervisor was not told of. It must still hear that the gate is half-open: that is one message an
    /// opening. A refused call costs no other, else a flood of them would fill the supervisor's mailbox.
    fn undo(&self, shared: &Shared, at: Timestamp) {
        if self.opened_it {
            self.announce(shared, at);
            self.release(shared);
        } else if self.pass.kind == PassKind::Trial {
            self.guard.gate.give_back(self.pass.generation);
        }
    }

    /// Gives a trial back: to the breaker by message, then to the gate. In this order, so that whoever takes it next is heard of
    /// after it came back.
    fn release(&self, shared: &Shared) {
        if self.pass.kind == PassKind::Trial {
            let at = shared.now_or(Timestamp::ZERO);
            shared.supervisor.cast(SupervisorMessage::Released { breaker: self.guard.id, pass: self.pass, at });
            self.guard.gate.give_back(self.pass.generation);
        }
    }
}

/// The gates that a call passed, from the outside in.
#[derive(Debug, Clone, Default)]
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
    fn undo(&self, shared: &Shared, at: Timestamp) {
        for passed in self.all() {
            passed.undo(shared, at);
        }
    }

    /// Gives all trials back.
    fn release(&self, shared: &Shared) {
        for passed in self.all() {
            passed.release(shared);
        }
    }
}

/// The gates that a call is passing. Dropped before it has everything (a later guard refused, or a panic came between), it is as if they had
/// never been passed.
pub(crate) struct Passing<'a> {
    shared: &'a Shared,
    at: Timestamp,
    pub(crate) passes: Passes,
}

impl<'a> Passing<'a> {
    pub(crate) fn begin(shared: &'a Shared, at: Timestamp) -> Self {
        Self { shared, at, passes: Passes::default() }
    }

    /// Everything was granted: the permit answers for them now.
    pub(crate) fn keep(mut self) -> Passes {
        std::mem::take(&mut self.passes)
    }
}

impl Drop for Passing<'_> {
    fn drop(&mut self) {
        self.passes.undo(self.shared, self.at);
    }
}

/// What an admitted call holds.
pub(crate) struct Permit {
    pub(crate) shared: Arc<Shared>,
    pub(crate) agent: Arc<AgentCore>,
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
    #[allow(dead_code, reason = "held for its drop: the target's actor lives until then")]
    entered: Entered,
}

impl Permit {
    pub(crate) fn new(
        shared: &Arc<Shared>,
        (agent, entered): (&Arc<AgentCore>, Entered),
        id: u64,
        passes: Passes,
        lease: Lease,
        found: Found,
    ) -> Self {
        Self {
            shared: Arc::clone(shared),
            agent: Arc::clone(agent),
            id,
            passes,
            lease: Arc::new(lease),
            request: None,
            spending: None,
            found: Some(found),
            aged: false,
            handed_over: false,
            settled: false,
            entered,
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
            let message = SupervisorMessage::Released { breaker: passed.guard.id, pass: passed.pass, at };
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
        self.passes.release(&self.shared);
        self.forget_age();
    }
}
