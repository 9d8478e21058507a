//! What an admission counts beside slots: requests a minute of the caller, its feature and the provider, then the caller's volume guard. It
//! is a value: dropped before everything else was taken, it gives back all of it, so that what is refused further in counts nowhere. Of the
//! caller and its feature a call is one request; of the provider it takes the first one here, and each further one when that is sent.

use std::{num::NonZeroU32, sync::Arc};

use super::{
    call::CallContext,
    callers::{CallerState, Volume},
    core::Shared,
    handle::AgentHandle,
    ports::Clock,
    rates::{Rate, Request, TooMany},
    refusal::Refusal,
};
use crate::{
    model::{
        clock::Timestamp,
        name::{Name, NameMap},
    },
    policy::{
        compartment::{
            known_tenants::KnownTenants,
            settings::{CompartmentSettings, FeatureSettings, UnknownFeature},
        },
        crowd::{CallerName, CallerScope},
    },
};

/// Draws for refused requests are independent of every other use of chance.
const CHANCE_OF_RATES: u64 = 0x7261_7465;

/// The requests a minute that the configuration gives to features and tiers.
#[derive(Default)]
pub(crate) struct RateBook {
    features: NameMap<Arc<Rate>>,
    usual_feature: Option<Arc<Rate>>,
    /// Those that are not configured any more, until all their requests are free: they may come back before.
    resting: NameMap<Arc<Rate>>,
    /// Under which names tenants are counted.
    known: Arc<KnownTenants>,
    /// Of each tier, by its place; empty where none is limited: then nobody is looked up.
    tiers: Vec<Option<NonZeroU32>>,
    /// Tells it from the books before it.
    number: u64,
}

impl RateBook {
    /// That of other settings; features that were there go on where they stand, also where they went and come back.
    pub(crate) fn renewed(
        &self,
        settings: &CompartmentSettings,
        known: &Arc<KnownTenants>,
        clock: &Arc<dyn Clock>,
    ) -> Self {
        let rate_of = |feature: &FeatureSettings| {
            let per_minute = NonZeroU32::new(feature.rates.requests_per_minute?)?;
            let new = || Arc::new(Rate::new(format!("feature:{}", feature.name).into(), per_minute, Arc::clone(clock)));
            let known = self.features.get(&feature.name).or_else(|| self.resting.get(&feature.name));
            let rate = known.map_or_else(new, Arc::clone);
            rate.change_limit(per_minute);
            Some((feature.name.clone(), rate))
        };
        let features: NameMap<Arc<Rate>> = settings.features.iter().filter_map(rate_of).collect();
        let before = self.features.iter().chain(&self.resting);
        let rests = |(name, rate): &(&Name, &Arc<Rate>)| !features.contains_key(*name) && !rate.is_unused();
        let resting = before.filter(rests).map(|(name, rate)| (name.clone(), Arc::clone(rate))).collect();
        let usual_feature = match &settings.unknown_feature {
            UnknownFeature::Is(name) => features.get(name).map(Arc::clone),
            UnknownFeature::Refused => None,
        };
        let limits = settings.tiers.iter().map(|tier| tier.rates.requests_per_minute.and_then(NonZeroU32::new));
        let is_limited = settings.tiers.iter().any(|tier| tier.rates.requests_per_minute.is_some());
        let tiers = limits.filter(|_| is_limited).collect();
        Self { features, usual_feature, resting, known: Arc::clone(known), tiers, number: self.number + 1 }
    }

    fn feature(&self, name: Option<&str>) -> Option<&Arc<Rate>> {
        name.and_then(|name| self.features.get(name)).or(self.usual_feature.as_ref())
    }

    /// The limit of a tenant's tier, and the tenant whose requests are counted.
    fn tenant<'a>(&self, name: Option<&'a str>) -> Option<(NonZeroU32, Option<&'a str>)> {
        let counted = self.known.find(name).ok()?;
        let limit = self.tiers.get(counted.tier).copied().flatten()?;
        Some((limit, Some(counted.name)))
    }
}

/// What was counted so far.
#[derive(Default)]
pub(crate) struct Counted {
    rates: [Option<Arc<Rate>>; 2],
    /// What is kept of the tenant by its own name, where that was looked up.
    tenant: Option<Arc<CallerState>>,
    /// The provider's.
    request: Option<Request>,
    volume: Option<Volume>,
}

/// Whether the call was counted as a whole before, at another target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallIs {
    /// It comes from the caller.
    New,
    /// It moves on; only the target counts.
    MovingOn,
}

/// The refusal of a call for which no request is free.
pub(crate) fn too_many_requests(shared: &Shared, call: u64, too_many: TooMany) -> Refusal {
    let jitter = shared.chance.fork(CHANCE_OF_RATES).share(call);
    Refusal::Rate { retry_after: too_many.retry_after(jitter), too_many }
}

impl AgentHandle {
    /// Takes a request of the caller, its feature and the provider, or none of them.
    pub(crate) fn count_requests(
        &self,
        context: &CallContext,
        (call_is, id, now): (CallIs, u64, Timestamp),
        counted: &mut Counted,
    ) -> Result<(), Refusal> {
        let shared = &self.shared;
        let refused = |too_many| too_many_requests(shared, id, too_many);
        if call_is == CallIs::New {
            let book = shared.rate_book.load();
            if let Some(rate) = self.rate_of_tenant(&book, context, now, counted) {
                rate.take(now).map_err(refused)?;
                counted.rates[0] = Some(rate);
            }
            if let Some(rate) = book.feature(context.feature.as_deref()) {
                rate.take(now).map_err(refused)?;
                counted.rates[1] = Some(Arc::clone(rate));
            }
        }
        if let Some(rate) = &self.agent.provider.rate {
            counted.request = Some(rate.request_at(now).map_err(refused)?);
        }
        Ok(())
    }

    /// The requests a minute of the caller's tenant, or of all strangers. Who has called by this book before is found among those that call,
    /// who are fewer than those that are known.
    fn rate_of_tenant(
        &self,
        book: &RateBook,
        context: &CallContext,
        now: Timestamp,
        counted: &mut Counted,
    ) -> Option<Arc<Rate>> {
        if book.tiers.is_empty() {
            return None;
        }
        let callers = &self.shared.callers;
        // What a tier allows is each tenant's, through whichever keys it comes.
        let (key, tenant) = (context.key_id.as_deref(), context.tenant.as_deref());
        let name = |tenant| CallerName::of(CallerScope::Tenant, key, tenant);
        counted.tenant = callers.seen(name(tenant), now);
        if let Some(rate) = counted.tenant.as_ref().and_then(|state| state.rate(book.number)) {
            return Some(rate);
        }
        let (per_minute, counted_as) = book.tenant(tenant)?;
        let (state, rate) = callers.limit(name(counted_as), (book.number, per_minute), now);
        if counted_as == tenant {
            counted.tenant = Some(state);
        }
        Some(rate)
    }

    /// Counts the call in its caller's guard.
    pub(crate) fn count_volume(
        &self,
        context: &CallContext,
        (call_is, now): (CallIs, Timestamp),
        counted: &mut Counted,
    ) -> Result<(), Refusal> {
        if call_is == CallIs::New {
            let (key, tenant) = (context.key_id.as_deref(), context.tenant.as_deref());
            let seen = (counted.tenant.take(), now);
            let admitted = self.shared.callers.admit((key, tenant), seen, &mut counted.volume);
            admitted.map_err(|shut| Refusal::Volume { shut })?;
        }
        Ok(())
    }
}

impl Counted {
    /// Everything was taken: what was counted stays so. The provider's request goes on with the call, until it is sent.
    pub(crate) fn keep(mut self) -> Option<Request> {
        self.rates = [None, None];
        self.volume = None;
        self.request.take()
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        for rate in self.rates.iter().flatten() {
            rate.give_back();
        }
        if let Some(volume) = self.volume.take() {
            volume.undo();
        }
    }
}
