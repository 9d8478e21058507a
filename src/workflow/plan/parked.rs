//! Whom a parked run waits for: the agents that it would call next, if only their gates let it.

use super::{
    run_plan::RunPlan,
    state::{Item, ItemState},
};
use crate::model::{name::Name, run::Cause};

impl RunPlan {
    /// The agents of steps that are parked before a gate, and of those that a run which is held as a whole would start first.
    /// Each at most once a step.
    pub fn parked_at(&self) -> Vec<&Name> {
        if self.totals.parked == 0 && self.hold.is_none() {
            return Vec::new();
        }
        let steps = self.workflow.steps.iter().zip(&self.steps);
        steps
            .filter(|(_, state)| {
                let round = state.round();
                let is_held = self.hold.is_some() && !round.waiting.is_empty();
                is_held || (round.active > 0 && round.items.iter().any(is_before_gate))
            })
            .map(|(definition, _)| &definition.agent)
            .collect()
    }
}

/// Whether a change of the gate is what it waits for.
pub(super) fn is_before_gate(item: &Item) -> bool {
    // Nothing else is parked for an error but a call whose agent is gone.
    matches!(item.state, ItemState::Parked { cause: Cause::CircuitOpen | Cause::Cold | Cause::Error, .. })
}
