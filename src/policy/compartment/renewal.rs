//! Other features, tiers and tenants while calls run. A name keeps its place and its counts, so that whoever is under way is counted
//! where it was counted before; what is gone is not known to newcomers, and its counts run dry.

use super::{
    directory::{Directory, Feature},
    known_tenants::KnownTenants,
    needs::CountId,
    pool::{Granted, Pool},
    settings::{CompartmentSettings, FeatureSettings, UnknownFeature},
};
use crate::{
    model::clock::Timestamp,
    policy::bulkhead::{Bulkhead, Guarantees, NO_MEMBER},
};

/// The most features that one runtime has known in all its life, those that are gone included.
pub const FEATURES_KNOWN_MAX: usize = 10_000;
/// A count that has no cap any more counts on, so that a later cap holds for who is under way.
const NO_CAP: u32 = u32::MAX;

impl Directory {
    /// Whether there is a place for each of these features.
    pub fn has_places_for(&self, settings: &CompartmentSettings) -> bool {
        let is_new = |feature: &&FeatureSettings| self.place_of(feature).is_none();
        self.features.len() + settings.features.iter().filter(is_new).count() <= FEATURES_KNOWN_MAX
    }

    /// Works by `settings` from now on. Settings that name what is not there, or more features than there are places for, were refused
    /// before. Who waited for a slot that there is now gets it.
    #[must_use]
    pub fn renew<T>(&mut self, settings: &CompartmentSettings, pool: &mut Pool<T>, now: Timestamp) -> Vec<Granted<T>> {
        let mut granted = Vec::new();
        self.version += 1;
        self.tenants_max = settings.tenants_max as usize;
        self.feature_places.clear();
        for feature in &settings.features {
            let place = self.renew_feature(feature, pool, now, &mut granted);
            // proof of no loss: see `FEATURES_KNOWN_MAX`.
            self.feature_places.insert(feature.name.clone(), u16::try_from(place).unwrap_or(NO_MEMBER));
        }
        self.usual_feature = match &settings.unknown_feature {
            UnknownFeature::Refused => None,
            UnknownFeature::Is(name) => self.feature_places.get(name).copied(),
        };
        self.tiers.clone_from(&settings.tiers);
        self.known = KnownTenants::of(settings);
        self.renew_tenants(pool, now, &mut granted);
        self.strangers = self.tenants.keys().filter(|name| !self.known.names(name)).count();
        granted
    }

    fn place_of(&self, feature: &FeatureSettings) -> Option<usize> {
        self.features.iter().position(|known| known.settings.name == feature.name)
    }

    fn renew_feature<T>(
        &mut self,
        settings: &FeatureSettings,
        pool: &mut Pool<T>,
        now: Timestamp,
        granted: &mut Vec<Granted<T>>,
    ) -> usize {
        let place = self.place_of(settings);
        let before = place.and_then(|place| self.features.get(place)).and_then(|feature| feature.count);
        let name = || format!("feature:{}", settings.name);
        let count = renewed(before, settings.slots, name, (pool, now), granted);
        let feature = Feature { settings: settings.clone(), count };
        match place.and_then(|place| self.features.get_mut(place)) {
            Some(known) => *known = feature,
            None => self.features.push(feature),
        }
        place.unwrap_or(self.features.len() - 1)
    }

    /// Tenants that are counted get what their tier has now. Those that are not known any more keep what they have until they are idle:
    /// no newcomer is counted there.
    fn renew_tenants<T>(&mut self, pool: &mut Pool<T>, now: Timestamp, granted: &mut Vec<Granted<T>>) {
        for (name, tenant) in &mut self.tenants {
            let tier = self.known.tier_under(name);
            let tier = tier.and_then(|place| Some((place, self.tiers.get(place)?)));
            tenant.is_known = tier.is_some();
            let Some((place, tier)) = tier else { continue };
            tenant.tier = place;
            let of_tenant = || format!("tenant:{name}");
            tenant.count = renewed(tenant.count, tier.slots, of_tenant, (&mut *pool, now), granted);
            for (feature, cell) in &tenant.cells {
                let ratio = self.features.get(usize::from(*feature)).and_then(|feature| feature.settings.ratio);
                let slots = ratio.and_then(|ratio| tier.cell_slots(ratio)).unwrap_or(NO_CAP);
                granted.extend(pool.resize(*cell, slots, &Guarantees::default(), now));
            }
        }
    }
}

/// The count that goes on with `slots`, or a new one where there was none and is one now.
fn renewed<T>(
    count: Option<CountId>,
    slots: Option<u32>,
    name: impl FnOnce() -> String,
    (pool, now): (&mut Pool<T>, Timestamp),
    granted: &mut Vec<Granted<T>>,
) -> Option<CountId> {
    match (count, slots) {
        (None, None) => None,
        (None, Some(slots)) => Some(pool.add(name().into(), Bulkhead::single(slots))),
        (Some(count), slots) => {
            let slots = slots.unwrap_or(NO_CAP);
            if pool.cap(count) != slots {
                granted.extend(pool.resize(count, slots, &Guarantees::default(), now));
            }
            Some(count)
        }
    }
}
