//! Before which gates a run is parked. Each such gate counts its parked runs and, when it turns half-open, keeps as many trials for
//! them. A count is a value that is held: whatever becomes of the run, dropping it takes the count back.

use std::sync::Arc;

use super::{
    core::{BreakerId, Guard, Shared},
    gate::{Asker, Gate},
};
use crate::workflow::plan::run_plan::RunPlan;

/// The gates that a run is parked at. Written by the orchestrator, after each of the run's turns.
#[derive(Debug, Default)]
pub(crate) struct ParkedAt {
    counted: Vec<Counted>,
}

/// One gate that counts the run.
#[derive(Debug)]
struct Counted {
    id: BreakerId,
    gate: Arc<Gate>,
}

impl Counted {
    fn at(guard: &Guard) -> Self {
        guard.gate.run_parked();
        Self { id: guard.id, gate: Arc::clone(&guard.gate) }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.gate.run_left();
    }
}

impl ParkedAt {
    /// As whom the run asks this gate.
    pub(crate) fn asker(&self, gate: BreakerId) -> Asker {
        let is_counted = self.counted.iter().any(|counted| counted.id == gate);
        if is_counted { Asker::ParkedRun } else { Asker::Anyone }
    }

    /// Counts the run where its plan is parked now: once at every gate in front of each
    /// target of the agents that it waits for.
    pub(crate) fn follow(&mut self, plan: &RunPlan, shared: &Shared) {
        let agents = plan.parked_at();
        let agents = agents.iter().filter_map(|name| shared.agent(name.as_str()));
        let targets: Vec<_> = agents.flat_map(|agent| shared.targets_of(&agent)).collect();
        let guards: Vec<&Guard> = targets.iter().flat_map(|target| target.guards()).collect();
        self.counted.retain(|counted| guards.iter().any(|guard| guard.id == counted.id));
        for guard in guards {
            if self.asker(guard.id) == Asker::Anyone {
                self.counted.push(Counted::at(guard));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        model::clock::Timestamp,
        policy::breaker::state::{GateView, Reason, Refusal},
    };

    #[test]
    fn a_count_ends_with_whoever_holds_it() {
        let refusal = Refusal { reason: Reason::Consecutive, until: Some(Timestamp::ZERO) };
        let gate = Arc::new(Gate::new(GateView::Refuse(refusal), 1, 5));
        let guard = Guard { name: "agent:draft".into(), id: BreakerId(3), gate };
        let parked = ParkedAt { counted: vec![Counted::at(&guard)] };
        assert_eq!((parked.asker(BreakerId(3)), parked.asker(BreakerId(2))), (Asker::ParkedRun, Asker::Anyone));
        drop(parked);
        let passed = (0..9).filter(|_| guard.gate.pass(Timestamp::ZERO, Asker::Anyone).is_ok()).count();
        assert_eq!(passed, 5, "nobody is parked here any more");
    }
}
