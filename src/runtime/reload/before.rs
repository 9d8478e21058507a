//! What a runtime has already when its cores are made: nothing at its start, everything that outlives a reload at a reload. Each kind of
//! thing that lives on is kept, and told its new settings, in one function here.

use std::{collections::HashMap, num::NonZeroU32, sync::Arc};

use crate::{
    model::{clock::Timestamp, name::Name},
    policy::{restart::RestartLedger, retry::RetryBudget, retry_settings::RetrySettings},
    runtime::{
        adaptive::ProviderLimit,
        core::{AgentCommon, AgentCore, AgentMetrics, AgentTable, ProviderCore, lock},
        ports::Clock,
        rates::Rate,
        settings::{AgentSettings, ProviderSettings, RestartSettings},
        sync::Mutex,
    },
};

/// What is there already.
pub(crate) struct Before {
    table: Arc<AgentTable>,
    /// Targets by agent and name.
    targets: HashMap<(Name, String), usize>,
    commons: HashMap<Name, Arc<AgentCommon>>,
    pub(crate) now: Timestamp,
}

impl Before {
    /// What `table` has.
    pub(crate) fn of(table: Arc<AgentTable>, now: Timestamp) -> Self {
        let key = |core: &AgentCore| (core.settings.name.clone(), core.target.to_string());
        let targets = table.agents.iter().map(|core| (key(core), core.index)).collect();
        let common = |core: &Arc<AgentCore>| (core.settings.name.clone(), Arc::clone(&core.common));
        let commons = table.agents.iter().map(common).collect();
        Self { table, targets, commons, now }
    }

    /// Nothing.
    pub(crate) fn nothing(now: Timestamp) -> Self {
        Self::of(Arc::default(), now)
    }

    /// The place of each of these targets: its own if it had one, else the next that nobody ever had.
    pub(crate) fn places<'a>(&self, targets: impl Iterator<Item = (&'a Name, String)>) -> Vec<usize> {
        let mut next = self.table.agents.len();
        let mut new = || {
            next += 1;
            next - 1
        };
        targets
            .map(|(agent, target)| self.targets.get(&(agent.clone(), target)).copied().unwrap_or_else(&mut new))
            .collect()
    }

    /// Who had a place before.
    pub(crate) fn target(&self, place: usize) -> Option<&Arc<AgentCore>> {
        self.table.agents.get(place)
    }

    /// What the targets of an agent shared before.
    pub(crate) fn common(&self, agent: &Name) -> Option<Arc<AgentCommon>> {
        self.commons.get(agent).map(Arc::clone)
    }

    /// The provider as it was before.
    pub(crate) fn provider(&self, name: &Name) -> Option<&Arc<ProviderCore>> {
        self.table.providers.get(name)
    }

    /// The places of a provider's agents, those that it had before first.
    pub(crate) fn members<'a>(&self, provider: &Name, present: impl Iterator<Item = &'a Name>) -> Vec<Name> {
        let mut members = self.provider(provider).map(|known| known.members.clone()).unwrap_or_default();
        for name in present {
            if !members.contains(name) {
                members.push(name.clone());
            }
        }
        members
    }

    /// The places of all models.
    pub(crate) fn models(&self) -> Vec<(Name, Option<String>)> {
        self.table.models.clone()
    }

    /// What an agent's targets share goes on by other settings.
    pub(crate) fn renew_common(common: &AgentCommon, settings: &AgentSettings) {
        lock(&common.retry_budget).reconfigure(&settings.retry);
    }

    /// A provider's retry budget.
    pub(crate) fn provider_budget(&self, name: &Name, retry: &RetrySettings) -> Arc<Mutex<RetryBudget>> {
        let Some(known) = self.provider(name) else { return Arc::new(Mutex::new(RetryBudget::new(retry))) };
        lock(&known.retry_budget).reconfigure(retry);
        Arc::clone(&known.retry_budget)
    }

    /// A provider's requests a minute, if there is a limit now. Requests that passed stay counted under another one.
    pub(crate) fn rate(
        &self,
        settings: &ProviderSettings,
        name: impl FnOnce() -> Arc<str>,
        clock: &Arc<dyn Clock>,
    ) -> Option<Arc<Rate>> {
        let per_minute = settings.rates.requests_per_minute.and_then(NonZeroU32::new)?;
        let rate = self
            .rate_known(&settings.name)
            .unwrap_or_else(|| Arc::new(Rate::new(name(), per_minute, Arc::clone(clock))));
        rate.change_limit(per_minute);
        Some(rate)
    }

    /// A provider's requests a minute as they were counted under its last limit.
    pub(crate) fn rate_known(&self, provider: &Name) -> Option<Arc<Rate>> {
        let known = self.provider(provider)?;
        known.rate.as_ref().or(known.rate_at_rest.as_ref()).map(Arc::clone)
    }

    /// A provider's adaptive limit and what it has learnt, if it had one.
    pub(crate) fn adaptive(&self, provider: &Name) -> Option<&ProviderLimit> {
        self.provider(provider)?.adaptive.as_ref()
    }

    /// A target's restart ledger.
    pub(crate) fn ledger(kept: Option<&Arc<AgentCore>>, restart: RestartSettings) -> Arc<Mutex<RestartLedger>> {
        let Some(kept) = kept else { return Arc::new(Mutex::new(RestartLedger::new(restart.max, restart.within))) };
        lock(&kept.ledger).reconfigure(restart.max, restart.within);
        Arc::clone(&kept.ledger)
    }

    /// A target's metrics.
    pub(crate) fn metrics(kept: Option<&Arc<AgentCore>>, agent: &str, slots: u32) -> Arc<AgentMetrics> {
        let Some(kept) = kept else { return Arc::new(AgentMetrics::of(agent, slots)) };
        AgentMetrics::show_slots(agent, slots);
        Arc::clone(&kept.metrics)
    }
}
