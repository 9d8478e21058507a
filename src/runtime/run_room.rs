//! Room for the outputs of live runs: they are held in memory until their run is over. While it is full no run is accepted, and of those
//! that are live one at a time begins further calls, so that some run always comes to its end; no run alone may fill more than half of it.
//! Counts what it is told and knows nothing of what an output is.

use std::{collections::HashMap, sync::Arc, time::Duration};

use super::{
    core::{AgentCore, lock},
    handle::AgentHandle,
    orchestrator::OrchestratorActor,
    refusal::Refusal,
    run_call,
    run_cell::{RunCell, RunInner},
    sync::Mutex,
};
use crate::{
    model::envelope::{Envelope, ErrorCode},
    policy::{chance::Chance, run_caps::CapReached},
    workflow::plan::{
        action::{Ask, CallFailed, CallRequest},
        run_plan::RunPlan,
    },
};

/// Whoever finds it full asks again after this.
const FULL_RETRY_AFTER: Duration = Duration::from_secs(5);
/// ... spread over as much again, so that thousands of runs do not ask in the same moment.
const FULL_SPREAD: f64 = 1.0;
/// What its bound is called in the configuration.
const KEY: &str = "serve.runs_outputs_bytes_max";

/// The room.
#[derive(Debug, Default)]
pub(crate) struct RunRoom {
    /// `None` = nothing is counted.
    bytes_max: Option<u64>,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    bytes: u64,
    by_tenant: HashMap<Option<String>, u64>,
    /// The one run, by its number, that goes on though the room is full.
    beyond: Option<u64>,
}

/// What one run holds of it. Given back when it is closed or dropped.
#[derive(Debug)]
pub(crate) struct RunShare {
    room: Arc<RunRoom>,
    number: u64,
    tenant: Option<String>,
    /// `None` once the run is over.
    bytes: Mutex<Option<u64>>,
}

impl RunRoom {
    /// A room of so many bytes.
    pub(crate) fn of(bytes_max: Option<u64>) -> Arc<Self> {
        Arc::new(Self { bytes_max, taken: Mutex::new(Taken::default()) })
    }

    /// The share of a run that holds nothing yet.
    pub(crate) fn share(self: &Arc<Self>, number: u64, tenant: Option<&str>) -> RunShare {
        RunShare { room: Arc::clone(self), number, tenant: tenant.map(str::to_owned), bytes: Mutex::new(Some(0)) }
    }

    /// Whether a run of this tenant may be accepted. One tenant's runs leave half of the room to others.
    pub(crate) fn may_accept(&self, tenant: Option<&str>) -> Result<(), Box<Envelope>> {
        let Some(max) = self.bytes_max else { return Ok(()) };
        let taken = lock(&self.taken);
        let of_tenant = tenant.and_then(|tenant| taken.by_tenant.get(&Some(tenant.to_owned())));
        let full_of = if taken.bytes >= max {
            "live runs"
        } else if of_tenant.is_some_and(|bytes| *bytes >= half(max)) {
            "live runs of this tenant"
        } else {
            return Ok(());
        };
        let message = format!("as many bytes of outputs of {full_of} are held as there may be ({KEY} = {max})");
        let envelope = Envelope::new(ErrorCode::LoadShed, message).with_retry_after(FULL_RETRY_AFTER.as_secs_f64());
        Err(Box::new(envelope))
    }
}

impl RunShare {
    /// Whether the run may begin a call.
    pub(crate) fn may_begin(&self, chance: Chance) -> Result<(), Refusal> {
        let Some(max) = self.room.bytes_max else { return Ok(()) };
        let own = lock(&self.bytes).unwrap_or_default();
        if own >= half(max) {
            let reached = CapReached { cap: "half of serve.runs_outputs_bytes_max", limit: half(max).to_string() };
            return Err(Refusal::RunSpent { reached });
        }
        let mut taken = lock(&self.room.taken);
        if taken.bytes < max || *taken.beyond.get_or_insert(self.number) == self.number {
            return Ok(());
        }
        let spread = 1.0 + FULL_SPREAD * chance.fork(own).share(self.number);
        Err(Refusal::RunsFull { bytes_max: max, retry_after: FULL_RETRY_AFTER.mul_f64(spread) })
    }

    /// The run holds so many bytes now, and moves or stands still.
    fn note(&self, bytes: u64, moves: Moves) {
        if self.room.bytes_max.is_none() {
            return;
        }
        let mut own = lock(&self.bytes);
        let Some(before) = *own else { return };
        *own = Some(bytes);
        if before == bytes && moves == Moves::On {
            return;
        }
        self.change(before, bytes, moves);
    }

    /// The run is over: others bound what is kept of it.
    pub(crate) fn close(&self) {
        if let Some(before) = lock(&self.bytes).take()
            && self.room.bytes_max.is_some()
        {
            self.change(before, 0, Moves::No);
        }
    }

    fn change(&self, before: u64, bytes: u64, moves: Moves) {
        let mut taken = lock(&self.room.taken);
        taken.bytes = taken.bytes.saturating_sub(before).saturating_add(bytes);
        if before != bytes {
            let of_tenant = taken.by_tenant.entry(self.tenant.clone()).or_default();
            *of_tenant = of_tenant.saturating_sub(before).saturating_add(bytes);
            if *of_tenant == 0 {
                taken.by_tenant.remove(&self.tenant);
            }
        }
        // Whoever waits for something else lets another one go on.
        if moves == Moves::No && taken.beyond == Some(self.number) {
            taken.beyond = None;
        }
    }
}

impl Drop for RunShare {
    fn drop(&mut self) {
        self.close();
    }
}

/// Whether something of the run is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moves {
    On,
    No,
}

impl OrchestratorActor {
    /// Whether there is room for what a call of this run may bring. No ladder of its agent's is asked: what stands in for an answer takes
    /// room as well.
    pub(crate) fn has_room(
        &self,
        run: &RunCell,
        agent: &Arc<AgentCore>,
        request: &CallRequest,
        plan: &RunPlan,
    ) -> Result<(), CallFailed> {
        run.room.note(plan.output_bytes(), Moves::On);
        let refusal = match run.room.may_begin(self.shared.chance) {
            Ok(()) => return Ok(()),
            // The call that it stands in for was let in.
            Err(Refusal::RunsFull { .. }) if matches!(request.ask, Ask::Instead(_)) => return Ok(()),
            Err(refusal) => refusal,
        };
        let handle = AgentHandle { shared: Arc::clone(&self.shared), agent: Arc::clone(agent) };
        let refused = *handle.refused(&refusal, &run_call::context_of(run, plan, request)).envelope;
        match refusal {
            Refusal::RunsFull { .. } => Err(run_call::own_refusal(refused)),
            _ => Err(run_call::not_resendable(refused)),
        }
    }

    /// The end of a turn: what the run waits for and what it holds, where others count it.
    pub(crate) fn turned(&self, run: &RunCell, inner: &mut RunInner) {
        inner.note_parked(&self.shared);
        let is_moving = inner.plan.is_moving() || !inner.deferred.is_empty();
        run.room.note(inner.plan.output_bytes(), if is_moving { Moves::On } else { Moves::No });
    }
}

/// What one run, or the runs of one tenant, may fill of it.
const fn half(max: u64) -> u64 {
    max / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(max: u64) -> Arc<RunRoom> {
        RunRoom::of(Some(max))
    }

    fn is_full(result: &Result<(), Refusal>) -> bool {
        matches!(result, Err(Refusal::RunsFull { .. }))
    }

    #[test]
    fn a_full_room_lets_one_run_at_a_time_go_on_and_takes_none_in() {
        let room = room(100);
        let chance = Chance::from_seed(1);
        let [first, second, third] = [1, 2, 3].map(|number| room.share(number, None));
        for share in [&first, &second, &third] {
            assert!(share.may_begin(chance).is_ok());
            share.note(40, Moves::On);
        }
        let refused = room.may_accept(None).unwrap_err();
        assert_eq!((refused.error_code, refused.http_status), (ErrorCode::LoadShed, 503));
        assert!(second.may_begin(chance).is_ok(), "who asks first goes on");
        assert!(is_full(&first.may_begin(chance)) && is_full(&third.may_begin(chance)), "and nobody else");
        second.note(45, Moves::On);
        assert!(second.may_begin(chance).is_ok(), "as long as it moves");
        second.note(45, Moves::No);
        assert!(first.may_begin(chance).is_ok(), "who stands still lets another one go on");
        assert!(is_full(&second.may_begin(chance)));
        first.close();
        first.note(70, Moves::On);
        assert!(room.may_accept(None).is_ok(), "what is over holds nothing, whatever comes after");
        drop((second, third));
        let taken = lock(&room.taken);
        assert_eq!((taken.bytes, taken.by_tenant.len(), taken.beyond), (0, 0, None));
    }

    #[test]
    fn one_run_and_one_tenant_have_half_of_it() {
        let room = room(100);
        let chance = Chance::from_seed(1);
        let large = room.share(1, Some("flood"));
        large.note(49, Moves::On);
        assert!(large.may_begin(chance).is_ok() && room.may_accept(Some("flood")).is_ok());
        large.note(50, Moves::On);
        assert!(matches!(large.may_begin(chance), Err(Refusal::RunSpent { .. })));
        assert!(room.may_accept(Some("flood")).is_err());
        assert!(room.may_accept(Some("other")).is_ok() && room.may_accept(None).is_ok());
    }

    #[test]
    fn a_room_without_a_bound_counts_nothing() {
        let room = RunRoom::of(None);
        let share = room.share(1, None);
        share.note(u64::MAX, Moves::On);
        assert!(share.may_begin(Chance::from_seed(1)).is_ok() && room.may_accept(None).is_ok());
        assert_eq!(lock(&room.taken).bytes, 0);
    }
}
