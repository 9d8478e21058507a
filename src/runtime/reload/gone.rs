//! What a reload takes away: nobody finds it, who waits for it is sent away, its gauges say nothing any more.

use std::{collections::BTreeSet, sync::Arc};

use super::apply::is_present;
use crate::{
    model::name::Name,
    policy::{breaker::state::StateName, compartment::needs::CountId},
    runtime::{
        core::{AgentTable, ProviderCore, Shared, lock},
        engine::Runtime,
        metric,
    },
};

/// Series of a gauge that tell nothing any more.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct GoneGauge {
    /// The gauge's name.
    pub gauge: &'static str,
    /// The labels that tell whose they are; there may be others beside (`state`).
    pub labels: Vec<(&'static str, Arc<str>)>,
}

impl GoneGauge {
    fn of(gauge: metric::Metric, labels: &[(&'static str, &str)]) -> Self {
        let labels = labels.iter().map(|(key, value)| (*key, Arc::from(*value))).collect();
        Self { gauge: gauge.name, labels }
    }
}

impl Runtime {
    /// Gauges of what a reload took away (agents, breakers, features, budgets, models, limits): they say nothing, and whoever shows metrics
    /// leaves them out.
    pub fn gone_gauges(&self) -> Arc<Vec<GoneGauge>> {
        self.shared.gone_gauges.load_full()
    }
}

/// Targets that were here and are not in `new` let nobody in any more, and callers in line for an agent that is gone, or is somewhere else
/// now, leave it to look for it anew. The places of those targets.
pub(super) fn take_away(shared: &Shared, old: &AgentTable, new: &AgentTable) -> Vec<usize> {
    let is_gone = |index: &usize| new.agents.get(*index).is_none_or(|core| !is_present(new, core));
    let gone: Vec<usize> = old.agents.iter().map(|core| core.index).filter(is_gone).collect();
    for core in gone.iter().filter_map(|index| old.agents.get(*index)) {
        core.presence.go();
    }
    for (name, before) in &old.places {
        let Some(core) = old.agents.get(*before) else { continue };
        match new.places.get(name) {
            None => shared.compartments.dismiss(core.common.count),
            Some(now) if ways(old, *before) != ways(new, *now) => {
                shared.compartments.dismiss_callers(core.common.count);
            }
            Some(_) => {}
        }
    }
    gone
}

/// The ways to an agent: its targets, and the slots that each of them needs of its provider.
fn ways(table: &AgentTable, place: usize) -> Vec<(usize, Option<CountId>)> {
    let Some(first) = table.agents.get(place) else { return Vec::new() };
    let further = first.further.iter().filter_map(|index| table.agents.get(*index));
    std::iter::once(first).chain(further).map(|core| (core.index, core.provider.count)).collect()
}

/// Notes what is gone, and lets its gauges show nothing.
pub(super) fn say(shared: &Shared, old: &AgentTable, table: &AgentTable) {
    let mut gone = agents(table);
    let breakers = lock(&shared.book).gone();
    for name in breakers {
        hide_breaker(&name);
        let gauges = [metric::BREAKER_STATE, metric::BREAKER_FAILURE_SHARE, metric::BREAKER_SLOW_SHARE];
        gone.extend(gauges.map(|gauge| GoneGauge::of(gauge, &[("breaker", &*name)])));
    }
    let mut hide = |gauges: &[metric::Metric], key: &'static str, value: &str| {
        for gauge in gauges {
            metric::set(*gauge, vec![metrics::Label::new(key, value.to_owned())], 0.0);
            gone.push(GoneGauge::of(*gauge, &[(key, value)]));
        }
    };
    for feature in shared.compartments.gone_features() {
        hide(&[metric::FEATURE_SLOTS, metric::FEATURE_IN_FLIGHT], "feature", &feature);
    }
    for budget in shared.tokens.gone() {
        hide(&[metric::TOKENS_LIMIT, metric::TOKENS_USED, metric::TOKENS_RESERVED], "compartment", &budget);
    }
    for provider in without_limit(shared, old, table) {
        hide(&[metric::ADAPTIVE_LIMIT], "provider", &provider);
    }
    for line in shared.overload.gone(|line| has_line(table, line)) {
        hide(&[metric::CLASSES_SHED], "compartment", &line);
    }
    for (provider, model) in shared.models.show_only(&models(table)) {
        let labels = [("provider", provider.as_str()), ("model", model.as_deref().unwrap_or_default())];
        gone.push(GoneGauge::of(metric::MODEL_WARMTH, &labels));
    }
    gone.sort();
    gone.dedup();
    shared.gone_gauges.store(Arc::new(gone));
}

fn agents(table: &AgentTable) -> Vec<GoneGauge> {
    let names = table.agents.iter().map(|core| &core.settings.name).filter(|name| !table.places.contains_key(*name));
    let mut gone = Vec::new();
    for name in names {
        for gauge in [metric::SLOTS, metric::MAILBOX_DEPTH] {
            metric::set(gauge, vec![metrics::Label::new("agent", name.as_str().to_owned())], 0.0);
        }
        // What counts up and down goes on counting: its calls under way still end, and it may come back meanwhile.
        let gauges = [metric::SLOTS, metric::MAILBOX_DEPTH, metric::IN_FLIGHT];
        gone.extend(gauges.map(|gauge| GoneGauge::of(gauge, &[("agent", name.as_str())])));
    }
    gone
}

fn hide_breaker(name: &Arc<str>) {
    let label = || vec![metrics::Label::new("breaker", name.to_string())];
    for gauge in [metric::BREAKER_FAILURE_SHARE, metric::BREAKER_SLOW_SHARE] {
        metric::set(gauge, label(), 0.0);
    }
    for state in StateName::ALL {
        let mut labels = label();
        labels.push(metrics::Label::from_static_parts("state", state.as_str()));
        metric::set(metric::BREAKER_STATE, labels, 0.0);
    }
}

/// The providers that some agent leans on.
fn providers(table: &AgentTable) -> BTreeSet<&Name> {
    let present = table.agents.iter().filter(|core| is_present(table, core));
    present.map(|core| &core.settings.provider).collect()
}

/// Providers that had an adaptive limit once, and have none now.
fn without_limit(shared: &Shared, old: &AgentTable, table: &AgentTable) -> BTreeSet<Arc<str>> {
    let before = shared.gone_gauges.load();
    let of_limit = before.iter().filter(|gone| gone.gauge == metric::ADAPTIVE_LIMIT.name);
    let mut ever: BTreeSet<Arc<str>> =
        of_limit.flat_map(|gone| gone.labels.iter().map(|(_, provider)| Arc::clone(provider))).collect();
    let had = |provider: &&Arc<ProviderCore>| provider.adaptive.is_some();
    ever.extend(old.providers.values().filter(had).map(|provider| Arc::from(provider.settings.name.as_str())));
    let present = providers(table);
    let has = |name: &str| {
        let known = present.iter().find(|known| known.as_str() == name);
        known.and_then(|known| table.providers.get(*known)).is_some_and(|provider| provider.adaptive.is_some())
    };
    ever.retain(|name| !has(name));
    ever
}

/// Whether anybody can stand in the line of this name.
fn has_line(table: &AgentTable, line: &str) -> bool {
    match line.split_once(':') {
        Some(("agent", name)) => table.places.keys().any(|known| known.as_str() == name),
        Some((_, name)) => providers(table).iter().any(|known| known.as_str() == name),
        None => false,
    }
}

/// The models that are looked after for agents that are here.
fn models(table: &AgentTable) -> BTreeSet<Arc<str>> {
    let present = table.agents.iter().filter(|core| is_present(table, core));
    present.filter_map(|core| core.model.as_ref()).map(|model| Arc::clone(&model.name)).collect()
}
