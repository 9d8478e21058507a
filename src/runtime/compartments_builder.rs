//! Putting the counts of a runtime together, or renewing them while it runs: features and tenants by their settings, then agents and
//! providers one by one. Nothing of it waits, and who is served by it is told by its owner.

use std::sync::Arc;

use super::{
    compartments::{State, Waiter},
    metric,
};
use crate::{
    model::{clock::Timestamp, name::Name},
    policy::{
        bulkhead::{Bulkhead, Guarantees},
        compartment::{
            needs::CountId,
            pool::Granted,
            settings::{ClassSettings, CompartmentSettings},
        },
    },
};

/// Puts the counts together while a runtime is built, or renews them while it runs.
pub(crate) struct CompartmentsBuilder<'a> {
    state: &'a mut State,
    now: Timestamp,
    /// Who waited and was served by what was renewed.
    granted: Vec<Granted<Waiter>>,
}

impl<'a> CompartmentsBuilder<'a> {
    /// Features, tiers and tenants by `settings`, beside what `state` has already.
    pub(crate) fn new(settings: &CompartmentSettings, state: &'a mut State, now: Timestamp) -> Self {
        let granted = state.directory.renew(settings, &mut state.pool, now);
        state.classes.clone_from(&settings.classes);
        Self { state, now, granted }
    }

    /// What a provider keeps for each feature.
    pub(crate) fn guaranteed_of(&self, provider: &Name) -> Vec<u32> {
        self.state.directory.guaranteed_of(provider)
    }

    /// The slots of an agent or provider: those that are there already, with another cap and other shares, else new ones.
    pub(crate) fn renew(
        &mut self,
        count: Option<CountId>,
        name: impl FnOnce() -> Arc<str>,
        cap: u32,
        guarantees: &Guarantees,
    ) -> CountId {
        let Some(count) = count else { return self.add(name(), Bulkhead::shared(cap, guarantees)) };
        self.granted.extend(self.state.pool.resize(count, cap, guarantees, self.now));
        count
    }

    /// Adds the count of an agent or provider.
    pub(crate) fn add(&mut self, name: Arc<str>, slots: Bulkhead) -> CountId {
        self.state.pool.add(name, slots)
    }

    pub(crate) fn classes(&self) -> &ClassSettings {
        &self.state.classes
    }

    /// Shows what there is. Who was served is to be told.
    pub(super) fn finish(self) -> Vec<Granted<Waiter>> {
        let State { pool, directory, feature_gauges, .. } = self.state;
        let gauge = |(name, count): (&Name, Option<CountId>)| {
            let labels = || vec![metrics::Label::new("feature", name.as_str().to_owned())];
            let cap = count.map(|count| pool.cap(count)).filter(|cap| *cap < u32::MAX);
            metric::set(metric::FEATURE_SLOTS, labels(), cap.map_or(f64::INFINITY, f64::from));
            (count, metrics::gauge!(metric::FEATURE_IN_FLIGHT.name, labels()).into())
        };
        *feature_gauges = directory.features().map(gauge).collect();
        self.granted
    }

    /// The slots of a runtime that begins: nobody waits for them yet.
    pub(crate) fn begin(self) {
        drop(self.finish());
    }
}
