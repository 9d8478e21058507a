//! What a reload is given and what it tells: plain values.

use std::sync::Arc;

use crate::{
    model::name::Name,
    policy::{compartment::settings::CompartmentSettings, fallback::Rank},
    runtime::{
        assembly::AgentParts,
        outside::OutsideBackend,
        ports::Backend,
        settings::{AgentSettings, ProviderSettings, TargetSettings},
    },
};

/// Everything that a runtime is to be made of from now on. What is not in it is gone.
#[derive(Clone, Default)]
pub struct ReloadParts {
    pub(super) providers: Vec<ProviderSettings>,
    pub(super) agents: Vec<AgentParts>,
    pub(super) compartments: CompartmentSettings,
}

impl std::fmt::Debug for ReloadParts {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let agents: Vec<&str> = self.agents.iter().map(|agent| agent.settings.name.as_str()).collect();
        formatter.debug_struct("ReloadParts").field("agents", &agents).finish_non_exhaustive()
    }
}

impl ReloadParts {
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

    /// Adds an agent with one target.
    #[must_use]
    pub fn agent(self, settings: AgentSettings, backend: Arc<dyn Backend>) -> Self {
        self.agent_with_targets(settings, Rank { order: 0, weight: 1 }, backend, Vec::new())
    }

    /// Adds an agent whose work can be done at `further` places too.
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

    /// Adds an agent whose work is done outside.
    #[must_use]
    pub fn guarded(self, settings: AgentSettings) -> Self {
        self.agent(settings, Arc::new(OutsideBackend))
    }

    /// Features, tiers, tenants and classes.
    #[must_use]
    pub fn compartments(mut self, settings: CompartmentSettings) -> Self {
        self.compartments = settings;
        self
    }
}

/// What a reload did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReloadReport {
    /// Agents that were not there before.
    pub added: Vec<Name>,
    /// Agents that are gone: not found by new calls, those under way end.
    pub removed: Vec<Name>,
    /// Agents that have other settings or targets.
    pub changed: Vec<Name>,
    /// Settings that hold from the next start on only.
    pub needs_restart: Vec<&'static str>,
}
