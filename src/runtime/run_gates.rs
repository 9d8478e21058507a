//! Gates as a plan sees them.

use std::sync::Arc;

use super::{core::Shared, handle::AgentHandle};
use crate::{
    model::{name::Name, run::Cause},
    policy::breaker::state::GateView,
    workflow::plan::action::{GateLook, Gates},
};

/// The published gates of a runtime.
pub(crate) struct LiveGates<'a> {
    pub(crate) shared: &'a Arc<Shared>,
}

impl Gates for LiveGates<'_> {
    fn look(&self, agent: &Name) -> GateLook {
        let Some(core) = self.shared.agent(agent.as_str()) else { return GateLook::Admits };
        // What stands in for the agent answers at once: a run need not wait for the gate before it begins.
        if self.shared.ladders.load().answers(agent, Cause::CircuitOpen) {
            return GateLook::Admits;
        }
        let handle = AgentHandle { shared: Arc::clone(self.shared), agent: core };
        match handle.look_anywhere() {
            GateView::Admit => GateLook::Admits,
            GateView::Probe { .. } => GateLook::HalfOpen,
            GateView::Refuse(refusal) => {
                GateLook::Refuses { until: refusal.until, reason: refusal.reason.as_str().to_owned() }
            }
        }
    }

    /// Half of the agent's slots, at least one: a single run never takes an agent for itself.
    fn share(&self, agent: &Name) -> u32 {
        let slots =
            self.shared.agent(agent.as_str()).map_or(1, |agent| self.shared.compartments.cap(agent.common.count));
        (slots / 2).max(1)
    }
}
