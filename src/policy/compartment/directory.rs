//! Which counts a caller's feature and tenant have. Features are known from the start; tenants and cells are counted once they call, in
//! a bounded number. Names that are not known are refused, or counted together, as configured; never unlimited and never a compartment
//! of their own by accident.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use super::{
    known_tenants::{CountedAs, KnownTenants, Standing},
    line::{Bounds, LineId, WhenFull},
    needs::{CountId, Needs, Seat},
    pool::Pool,
    settings::{CompartmentSettings, FeatureSettings, TierSettings},
};
use crate::{
    model::{
        clock::Timestamp,
        name::{Name, NameMap, TextMap},
    },
    policy::bulkhead::{Bulkhead, Member, NO_MEMBER},
};

/// The line of calls without a feature.
const LINE_OF_NO_FEATURE: u32 = 1;
/// The line of the feature at place 0.
const LINE_OF_FIRST_FEATURE: u32 = 2;
/// The line of steps of runs.
pub const LINE_OF_STEPS: LineId = LineId(0);

/// Tenants that are looked at when one is to make room: this many at a time, so that a crowd of new names costs each of them little.
const LOOKED_AT: usize = 64;

/// A feature or tenant that may not call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Stranger {
    /// The feature is not known.
    #[error("this feature is not known")]
    Feature,
    /// A feature must be named.
    #[error("a feature must be named")]
    NoFeature,
    /// The tenant is not known.
    #[error("this tenant is not known")]
    Tenant,
    /// A tenant must be named.
    #[error("a tenant must be named")]
    NoTenant,
    /// More tenants are busy at once than are counted.
    #[error("too many tenants are busy at once")]
    TooManyTenants,
}

/// Which names a caller may go by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Names {
    /// Those that are known now: it is a newcomer.
    #[default]
    Known,
    /// It was let in before, and goes on under what it was let in by even where a reload has taken that away: it is counted where its name
    /// was counted, or with those who name none if there is no such place. Agents' and providers' slots bind it like everybody.
    Accepted,
}

/// Where a caller's feature and tenant stand.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Place {
    /// The feature's place; [`NO_MEMBER`] without one.
    pub feature: u16,
    /// A slot of each of its counts.
    pub needs: Needs,
    /// How long its calls may wait in line.
    pub max_wait: Duration,
    /// In which line, and how many may stand there.
    pub line: Bounds,
    /// Of which version of the directory this is: with another one, the counts may be somebody else's.
    version: u64,
}

impl Default for Place {
    /// That of somebody without feature and tenant, who does not wait.
    fn default() -> Self {
        Self {
            feature: NO_MEMBER,
            needs: Needs::default(),
            max_wait: Duration::ZERO,
            line: Bounds::of(LineId(LINE_OF_NO_FEATURE), super::settings::LINE_MAX_DEFAULT),
            version: 0,
        }
    }
}

#[derive(Debug)]
pub(super) struct Feature {
    pub(super) settings: FeatureSettings,
    pub(super) count: Option<CountId>,
}

#[derive(Debug)]
pub(super) struct Tenant {
    /// Tells it from every other one that was ever counted.
    pub(super) number: u64,
    pub(super) tier: usize,
    /// Whether newcomers of this name are counted here: not once a reload has taken the tenant away.
    pub(super) is_known: bool,
    pub(super) count: Option<CountId>,
    /// Features' places and counts.
    pub(super) cells: Vec<(u16, CountId)>,
}

/// What a call needs for its tenant's sake.
struct OfTenant {
    number: u64,
    count: Option<CountId>,
    cell: Option<CountId>,
    max_wait: Duration,
}

/// The features and tenants of one runtime.
#[derive(Debug, Default)]
pub struct Directory {
    pub(super) features: Vec<Feature>,
    pub(super) feature_places: NameMap<u16>,
    pub(super) usual_feature: Option<u16>,
    pub(super) tiers: Vec<TierSettings>,
    pub(super) known: Arc<KnownTenants>,
    pub(super) tenants: TextMap<Tenant>,
    /// Whose turn it is to make room; each counted tenant once.
    pub(super) turns: VecDeque<Arc<str>>,
    pub(super) tenants_max: usize,
    /// How many of those that are counted no configuration names: only they are bounded here.
    pub(super) strangers: usize,
    /// How many tenants were ever counted.
    issued: u64,
    /// Another one whenever counts were taken away or other settings came.
    pub(super) version: u64,
}

impl Directory {
    /// Adds the counts of the features to `pool`. Settings that name what is not there were refused before.
    pub fn new<T>(settings: &CompartmentSettings, pool: &mut Pool<T>) -> Self {
        let mut directory = Self::default();
        // In an empty pool nobody waits for anything.
        let _ = directory.renew(settings, pool, Timestamp::ZERO);
        directory
    }

    /// Under which names tenants are counted.
    pub fn known_tenants(&self) -> Arc<KnownTenants> {
        Arc::clone(&self.known)
    }

    /// How many tenants are counted now.
    pub fn tenants_counted(&self) -> usize {
        self.tenants.len()
    }

    /// Features with their counts.
    pub fn features(&self) -> impl Iterator<Item = (&Name, Option<CountId>)> {
        self.features.iter().map(|feature| (&feature.settings.name, feature.count))
    }

    /// Features that were there once, in the order of their places: calls of theirs may still be under way.
    pub fn gone_features(&self) -> impl Iterator<Item = &Name> {
        self.features
            .iter()
            .map(|feature| &feature.settings.name)
            .filter(|name| !self.feature_places.contains_key(*name))
    }

    /// What a provider of this name and so many slots keeps for each feature.
    pub fn guaranteed_of(&self, provider: &Name) -> Vec<u32> {
        let of = |feature: &Feature| {
            let is_here = self.feature_places.contains_key(&feature.settings.name);
            let named = feature.settings.guaranteed.iter().find(|(name, _)| is_here && name == provider);
            named.map_or(0, |(_, slots)| *slots)
        };
        let shares: Vec<u32> = self.features.iter().map(of).collect();
        if shares.iter().all(|share| *share == 0) { Vec::new() } else { shares }
    }

    /// Where a call for this feature and tenant stands.
    pub fn place<T>(
        &mut self,
        pool: &mut Pool<T>,
        who: (Option<&str>, Option<&str>, Names),
        class: u16,
    ) -> Result<Place, Stranger> {
        let mut place = Place::default();
        self.find_place(pool, who, class, &mut place).map(|()| place)
    }

    /// The same, written down where it is wanted: each copy of a place costs as much as finding it.
    pub fn find_place<T>(
        &mut self,
        pool: &mut Pool<T>,
        (feature, tenant, names): (Option<&str>, Option<&str>, Names),
        class: u16,
        found: &mut Place,
    ) -> Result<(), Stranger> {
        let feature = match (self.feature(feature), names) {
            (Err(_), Names::Accepted) => feature.and_then(|name| self.place_once(name)),
            (feature, _) => feature?,
        };
        let member = Member { agent: NO_MEMBER, feature: feature.unwrap_or(NO_MEMBER), class };
        let seat = |count: CountId| Seat::of(count, member);
        let of_feature = feature.and_then(|place| self.features.get(usize::from(place)));
        let needs = &mut found.needs;
        if let Some(own) = of_feature.and_then(|feature| feature.count) {
            needs.push(seat(own));
        }
        let mut waits = of_feature.map(|feature| feature.settings.max_wait);
        let line_max = of_feature.map_or(super::settings::LINE_MAX_DEFAULT, |feature| feature.settings.line_max);
        let line = feature.map_or(LINE_OF_NO_FEATURE, |place| LINE_OF_FIRST_FEATURE + u32::from(place));
        found.line = Bounds { when_full: WhenFull::Displace, ..Bounds::of(LineId(line), line_max) };
        if !self.tiers.is_empty() {
            let tenant = match (self.tenant(pool, tenant, feature), names) {
                (Err(Stranger::Tenant | Stranger::NoTenant), Names::Accepted) => self.counted_once(tenant, feature),
                (tenant, _) => Some(tenant?),
            };
            let tier_wait = tenant.as_ref().map_or(Duration::ZERO, |tenant| tenant.max_wait);
            waits = Some(waits.map_or(tier_wait, |wait| wait.min(tier_wait)));
            if let Some(tenant) = tenant {
                tenant.count.into_iter().chain(tenant.cell).for_each(|count| needs.push(seat(count)));
                found.line.tenant = Some(tenant.number);
            }
        }
        found.feature = member.feature;
        found.max_wait = waits.unwrap_or(Duration::ZERO);
        found.version = self.version;
        Ok(())
    }

    /// Whether a place that was found before is still what would be found now.
    pub fn is_current(&self, place: &Place) -> bool {
        place.version == self.version
    }

    /// Whether a newcomer of this feature and tenant may call at all. Nobody is counted by the question.
    pub fn knows(&self, feature: Option<&str>, tenant: Option<&str>) -> Result<(), Stranger> {
        self.feature(feature)?;
        if self.tiers.is_empty() { Ok(()) } else { self.known.find(tenant).map(drop) }
    }

    /// The place that a feature had.
    fn place_once(&self, name: &str) -> Option<u16> {
        let place = self.features.iter().position(|feature| feature.settings.name.as_str() == name)?;
        u16::try_from(place).ok()
    }

    /// The counts that a tenant had, if calls of its are still counted there.
    fn counted_once(&self, name: Option<&str>, feature: Option<u16>) -> Option<OfTenant> {
        let tenant = name.and_then(|name| self.tenants.get(name))?;
        let cell = tenant.cells.iter().find(|(of, _)| Some(*of) == feature).map(|(_, cell)| *cell);
        Some(OfTenant { number: tenant.number, count: tenant.count, cell, max_wait: Duration::ZERO })
    }

    fn feature(&self, name: Option<&str>) -> Result<Option<u16>, Stranger> {
        if self.feature_places.is_empty() {
            return Ok(None);
        }
        let known = name.and_then(|name| self.feature_places.get(name).copied());
        match (known.or(self.usual_feature), name) {
            (Some(place), _) => Ok(Some(place)),
            (None, Some(_)) => Err(Stranger::Feature),
            (None, None) => Err(Stranger::NoFeature),
        }
    }

    /// The counts of a tenant and of its cell for the feature, and how long its calls may wait.
    fn tenant<T>(
        &mut self,
        pool: &mut Pool<T>,
        name: Option<&str>,
        feature: Option<u16>,
    ) -> Result<OfTenant, Stranger> {
        let ratio = feature.and_then(|place| self.features.get(usize::from(place))?.settings.ratio);
        if let Some(counted) = name.and_then(|name| self.counted(name, feature.zip(ratio))) {
            return Ok(counted);
        }
        let CountedAs { name, tier, standing } = self.known.find(name)?;
        let Some(settings) = self.tiers.get(tier) else { return Err(Stranger::Tenant) };
        let (slots, max_wait) = (settings.slots, settings.max_wait);
        let cell_slots = ratio.and_then(|ratio| settings.cell_slots(ratio));
        if !self.tenants.contains_key(name) {
            // Tenants that are known are as many as the configuration names, and need no room that strangers could take from them.
            if standing == Standing::Stranger {
                if self.strangers >= self.tenants_max && !self.forget_idle(pool) {
                    return Err(Stranger::TooManyTenants);
                }
                self.strangers += 1;
            }
            let count = slots.map(|slots| pool.add(format!("tenant:{name}").into(), Bulkhead::single(slots)));
            let key: Arc<str> = name.into();
            self.turns.push_back(Arc::clone(&key));
            self.issued += 1;
            self.tenants.insert(key, Tenant { tier, is_known: true, count, cells: Vec::new(), number: self.issued });
        }
        let Some(tenant) = self.tenants.get_mut(name) else { return Err(Stranger::TooManyTenants) };
        let cell = match (feature, cell_slots) {
            (Some(feature), Some(slots)) => {
                let known = tenant.cells.iter().find(|(of, _)| *of == feature).map(|(_, cell)| *cell);
                Some(known.unwrap_or_else(|| {
                    let of = self.features.get(usize::from(feature)).map_or("", |of| of.settings.name.as_str());
                    let cell = pool.add(format!("cell:{of}/{name}").into(), Bulkhead::single(slots));
                    tenant.cells.push((feature, cell));
                    cell
                }))
            }
            _ => None,
        };
        Ok(OfTenant { number: tenant.number, count: tenant.count, cell, max_wait })
    }

    /// The same for a tenant that has all of its counts, which most callers have: those are few beside all that are known by name.
    fn counted(&self, name: &str, cell: Option<(u16, f64)>) -> Option<OfTenant> {
        let tenant = self.tenants.get(name).filter(|tenant| tenant.is_known)?;
        let settings = self.tiers.get(tenant.tier)?;
        let cell = match cell.filter(|(_, ratio)| settings.cell_slots(*ratio).is_some()) {
            Some((feature, _)) => Some(tenant.cells.iter().find(|(of, _)| *of == feature).map(|(_, cell)| *cell)?),
            None => None,
        };
        Some(OfTenant { number: tenant.number, count: tenant.count, cell, max_wait: settings.max_wait })
    }

    /// The tier of a tenant that is counted, by name.
    pub fn tier_of(&self, tenant: &str) -> Option<&TierSettings> {
        self.tenants.get(tenant).and_then(|tenant| self.tiers.get(tenant.tier))
    }

    /// Drops tenants that have nothing in flight and nobody in line, among the next few in turn; false if no stranger was among them.
    fn forget_idle<T>(&mut self, pool: &mut Pool<T>) -> bool {
        let (counted, strangers) = (self.tenants.len(), self.strangers);
        for _ in 0..LOOKED_AT.min(self.turns.len()) {
            let Some(name) = self.turns.pop_front() else { break };
            let Some(tenant) = self.tenants.get(&name) else { continue };
            let cells = tenant.cells.iter().map(|(_, cell)| *cell);
            let counts: Vec<CountId> = tenant.count.into_iter().chain(cells).collect();
            if counts.iter().any(|count| !pool.is_idle(*count)) {
                self.turns.push_back(name);
                continue;
            }
            for count in counts {
                pool.remove(count);
            }
            self.tenants.remove(&name);
            self.strangers -= usize::from(!self.known.names(&name)).min(self.strangers);
        }
        self.version += u64::from(self.tenants.len() < counted);
        self.strangers < strangers
    }
}
