//! What a reload takes away: nobody finds it, who waits for it is sent away, its gauges say nothing any more.

use std::sync::Arc;

use super::apply::is_present;
use crate::{
    policy::breaker::state::StateName,
    runtime::{
        core::{AgentTable, GoneLabel, Shared},
        engine::Runtime,
        metric,
    },
};

impl Runtime {
    /// Labels of agents, breakers and features that are gone (`agent`, `breaker`, `feature`, each with its value): gauges that carry them
    /// tell nothing, and whoever shows metrics leaves them out.
    pub fn gone_labels(&self) -> Arc<Vec<(&'static str, Arc<str>)>> {
        self.shared.gone_labels.load_full()
    }
}

/// Targets that were here and are not in `new` let nobody in any more, and callers in line for an agent that is gone go. The places of
/// those targets.
pub(super) fn take_away(shared: &Shared, old: &AgentTable, new: &AgentTable) -> Vec<usize> {
    let is_gone = |index: &usize| new.agents.get(*index).is_none_or(|core| !is_present(new, core));
    let gone: Vec<usize> = old.agents.iter().map(|core| core.index).filter(is_gone).collect();
    for core in gone.iter().filter_map(|index| old.agents.get(*index)) {
        core.presence.go();
    }
    for name in old.places.keys().filter(|name| !new.places.contains_key(*name)) {
        if let Some(core) = old.places.get(name).and_then(|place| old.agents.get(*place)) {
            shared.compartments.dismiss(core.common.count);
        }
    }
    gone
}

/// Notes what is gone, and lets its gauges show nothing.
pub(super) fn say(shared: &Shared, table: &AgentTable, breakers: &[Arc<str>]) {
    let names = table.agents.iter().map(|core| &core.settings.name).filter(|name| !table.places.contains_key(*name));
    let mut labels: Vec<GoneLabel> = names.map(|name| ("agent", Arc::from(name.as_str()))).collect();
    labels.extend(breakers.iter().map(|name| ("breaker", Arc::clone(name))));
    labels.extend(shared.compartments.gone_features().into_iter().map(|name| ("feature", name)));
    labels.sort();
    labels.dedup();
    for (key, value) in &labels {
        let label = || vec![metrics::Label::new(*key, value.to_string())];
        let gauges: &[metric::Metric] = match *key {
            // What counts up and down goes on counting: its calls under way still end, and it may come back meanwhile.
            "agent" => &[metric::SLOTS, metric::MAILBOX_DEPTH],
            "breaker" => &[metric::BREAKER_FAILURE_SHARE, metric::BREAKER_SLOW_SHARE],
            _ => &[metric::FEATURE_SLOTS, metric::FEATURE_IN_FLIGHT],
        };
        for gauge in gauges {
            metric::set(*gauge, label(), 0.0);
        }
        for state in StateName::ALL.into_iter().filter(|_| *key == "breaker") {
            let mut labels = label();
            labels.push(metrics::Label::from_static_parts("state", state.as_str()));
            metric::set(metric::BREAKER_STATE, labels, 0.0);
        }
    }
    shared.gone_labels.store(Arc::new(labels));
}
