//! What a runtime is made of, at its start and by a reload: one list for both, of plain values and of who does the work. It checks nothing;
//! what it is made into does.

use std::sync::Arc;

use super::{
    assembly::AgentParts,
    callers::CallerSettings,
    deferred::settings::DeferredSettings,
    ladders::Ladders,
    outside::OutsideBackend,
    ports::Backend,
    settings::{AgentSettings, ProviderSettings, TargetSettings},
    spending::SpendingSettings,
};
use crate::policy::{compartment::settings::CompartmentSettings, fallback::Rank, run_caps::RunCaps};

/// Everything of a runtime that can become something else while it runs. What is not in it is not there, or is as the defaults are.
#[derive(Clone, Default)]
pub struct Parts {
    pub(crate) providers: Vec<ProviderSettings>,
    pub(crate) agents: Vec<AgentParts>,
    pub(crate) compartments: CompartmentSettings,
    pub(crate) spending: SpendingSettings,
    pub(crate) run_caps: RunCaps,
    pub(crate) callers: CallerSettings,
    pub(crate) ladders: Ladders,
    pub(crate) deferred: DeferredSettings,
}

impl std::fmt::Debug for Parts {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let agents: Vec<&str> = self.agents.iter().map(|agent| agent.settings.name.as_str()).collect();
        formatter.debug_struct("Parts").field("agents", &agents).finish_non_exhaustive()
    }
}

impl Parts {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a provider.
    #[must_use]
    pub fn provider(mut self, settings: ProviderSettings) -> Self {
        self.providers.push(settings);
        self
    }

    /// Adds an agent whose work `backend` does.
    #[must_use]
    pub fn agent(self, settings: AgentSettings, backend: Arc<dyn Backend>) -> Self {
        self.agent_with_targets(settings, Rank { order: 0, weight: 1 }, backend, Vec::new())
    }

    /// Adds an agent whose work several places can do: the one of its settings, with this rank, and further ones. They share the
    /// agent's slots; each has its own breaker, its provider's guards and an actor of its own.
    #[must_use]
    pub fn agent_with_targets(
        mut self,
        settings: AgentSettings,
        rank: Rank,
        backend: Arc<dyn Backend>,
        further: Vec<(TargetSettings, Arc<dyn Backend>)>,
    ) -> Self {
        self.agents.push(AgentParts { settings, rank, backend, further });
        self
    }

    /// Adds an agent whose work is done outside: its guards are asked with [`super::handle::AgentHandle::enter`] or stand around a
    /// client as a [`super::guard_layer::GuardLayer`].
    #[must_use]
    pub fn guarded(self, settings: AgentSettings) -> Self {
        self.agent(settings, Arc::new(OutsideBackend))
    }

    /// Counts callers by feature, tenant and class, and says when which class is refused; nobody is counted so without this.
    #[must_use]
    pub fn compartments(mut self, settings: CompartmentSettings) -> Self {
        self.compartments = settings;
        self
    }

    /// Prices, and what an answer is taken for; budgets stand with providers, features and tiers. Nothing has a price without this.
    #[must_use]
    pub fn spending(mut self, settings: SpendingSettings) -> Self {
        self.spending = settings;
        self
    }

    /// What each run may use in all; nothing is capped without this. A run keeps what it began with.
    #[must_use]
    pub fn run_caps(mut self, caps: RunCaps) -> Self {
        self.run_caps = caps;
        self
    }

    /// Guards each caller against running away; nobody is without this.
    #[must_use]
    pub fn callers(mut self, settings: CallerSettings) -> Self {
        self.callers = settings;
        self
    }

    /// What refused and failed calls do next; nothing without this. Ladders that put calls off need a place to keep them.
    #[must_use]
    pub fn ladders(mut self, ladders: Ladders) -> Self {
        self.ladders = ladders;
        self
    }

    /// How calls are put off, where there is a place to keep them; how many are made at once holds from a start on.
    #[must_use]
    pub fn deferred(mut self, settings: DeferredSettings) -> Self {
        self.deferred = settings;
        self
    }
}
