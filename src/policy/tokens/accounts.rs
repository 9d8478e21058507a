//! All token budgets of a runtime: whose a call draws on (its provider's, its feature's, its tenant's and that of its cell), and that it
//! gets its tokens from all of them or from none. Features and tiers are known from the start; tenants have budgets once they call, in a
//! bounded number. It counts no tokens and reads no clock.

use std::{collections::VecDeque, sync::Arc};

use super::{
    ReservationId,
    account::{Account, AccountRef, Shelf},
    draw::{AccountId, Drawer, Need, NoTokens, OutputBound, Shown},
};
use crate::{
    model::{
        clock::Timestamp,
        name::{Name, NameMap, TextMap},
    },
    policy::compartment::{
        known_tenants::{KnownTenants, SHARED_TENANT},
        settings::{CompartmentSettings, Rates, TierSettings, UnknownFeature},
    },
};

/// Tenants that are looked at when one is to make room.
const LOOKED_AT: usize = 64;

/// Of so many budgets a call draws at most: its provider's, its feature's, its tenant's, its cell's.
const BUDGETS_MAX: usize = 4;

/// The budgets that concern one caller, as they were found.
#[derive(Debug, Clone, Copy)]
pub struct Found {
    accounts: [Option<AccountRef>; BUDGETS_MAX],
    /// Of which state of the accounts it speaks.
    epoch: u64,
}

impl Found {
    /// True where no budget concerns the caller: then nobody needs to count its tokens.
    pub fn is_none(&self) -> bool {
        self.accounts.iter().all(Option::is_none)
    }
}

/// Tokens that were taken from all of a call's budgets for one attempt.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "what is never settled counts as used in full"]
pub struct Held {
    need: Need,
    output: u64,
    parts: [Option<(AccountRef, ReservationId)>; BUDGETS_MAX],
}

impl Held {
    /// The prompt and the answer that were reserved for.
    pub const fn tokens(&self) -> (u64, u64) {
        (self.need.prompt, self.output)
    }
}

#[derive(Debug, Clone)]
struct Feature {
    account: Option<AccountRef>,
    ratio: Option<f64>,
}

#[derive(Debug, Clone)]
struct Tenant {
    tier: usize,
    account: Option<AccountRef>,
    cells: Vec<(Name, AccountRef)>,
}

impl Tenant {
    fn accounts(&self) -> impl Iterator<Item = AccountRef> {
        self.account.into_iter().chain(self.cells.iter().map(|(_, cell)| *cell))
    }
}

/// The budgets.
#[derive(Debug, Clone, Default)]
pub struct Accounts {
    shelf: Shelf,
    providers: NameMap<AccountRef>,
    features: NameMap<Feature>,
    usual_feature: Option<Name>,
    tiers: Vec<TierSettings>,
    known: Arc<KnownTenants>,
    tenants: TextMap<Tenant>,
    /// Whose turn it is to make room; each tenant once.
    turns: VecDeque<Arc<str>>,
    tenants_max: usize,
    /// How many of them no configuration names: only they are bounded here.
    strangers: usize,
    /// Grows whenever an account goes, or another may concern a caller: what was found before is looked for again.
    epoch: u64,
}

impl Accounts {
    /// The budgets of these compartments, and of providers by name.
    pub fn new(settings: &CompartmentSettings, providers: &[(Name, Rates)]) -> Self {
        let mut accounts = Self::default();
        accounts.configure(settings, &KnownTenants::of(settings), providers, Timestamp::ZERO);
        accounts
    }

    /// Takes over other settings in place: what is in a budget's window stays there, also where the budget goes and comes back meanwhile.
    /// `known` is the table of these settings' tenants.
    pub fn configure(
        &mut self,
        settings: &CompartmentSettings,
        known: &Arc<KnownTenants>,
        providers: &[(Name, Rates)],
        now: Timestamp,
    ) {
        self.epoch += 1;
        self.shelf.forget_rested(now);
        let mut before = std::mem::take(&mut self.providers);
        for (name, rates) in providers {
            let account = self.shelf.renew(before.remove(name), *rates, now, || AccountId::Provider(name.clone()));
            self.providers.extend(account.map(|account| (name.clone(), account)));
        }
        for gone in before.into_values() {
            self.shelf.rest(gone, now);
        }
        let mut before = std::mem::take(&mut self.features);
        for feature in &settings.features {
            let old = before.remove(&feature.name).and_then(|feature| feature.account);
            let account = self.shelf.renew(old, feature.rates, now, || AccountId::Feature(feature.name.clone()));
            self.features.insert(feature.name.clone(), Feature { account, ratio: feature.ratio });
        }
        for gone in before.into_values().filter_map(|gone| gone.account) {
            self.shelf.rest(gone, now);
        }
        self.usual_feature = match &settings.unknown_feature {
            UnknownFeature::Refused => None,
            UnknownFeature::Is(name) => Some(name.clone()),
        };
        self.tenants_max = settings.tenants_max as usize;
        self.known = Arc::clone(known);
        self.configure_tenants(settings, now);
    }

    fn configure_tenants(&mut self, settings: &CompartmentSettings, now: Timestamp) {
        self.tiers.clone_from(&settings.tiers);
        for (name, mut tenant) in std::mem::take(&mut self.tenants) {
            let tier = self.known.tier_under(&name).and_then(|tier| Some((tier, self.tiers.get(tier)?)));
            let Some((tier, settings)) = tier else {
                for gone in tenant.accounts() {
                    self.shelf.rest(gone, now);
                }
                continue;
            };
            tenant.tier = tier;
            let id = || AccountId::Tenant(Arc::clone(&name));
            tenant.account = self.shelf.renew(tenant.account.take(), settings.rates, now, id);
            for (feature, cell) in std::mem::take(&mut tenant.cells) {
                let ratio = self.features.get(&feature).and_then(|feature| feature.ratio);
                let id = || AccountId::Cell(feature.clone(), Arc::clone(&name));
                let renewed = self.shelf.renew(Some(cell), cell_rates(settings, ratio), now, id);
                tenant.cells.extend(renewed.map(|cell| (feature.clone(), cell)));
            }
            self.tenants.insert(name, tenant);
        }
        self.turns.retain(|name| self.tenants.contains_key(name));
        self.strangers = self.tenants.keys().filter(|name| !self.known.names(name)).count();
    }

    /// Takes an attempt's tokens from every budget that was found for the caller, or from none. Of several that refuse, the one is named
    /// that does so for good, else the one that takes longest.
    pub fn reserve(&mut self, who: &Drawer<'_>, found: Found, need: Need, now: Timestamp) -> Result<Held, NoTokens> {
        let found = if found.epoch == self.epoch { found } else { self.find(who, now) };
        let output = self.output_of(&found, need, now);
        let mut refused: Option<NoTokens> = None;
        for at in found.accounts.into_iter().flatten() {
            let Some((account, id)) = self.shelf.get_mut(at) else { continue };
            let amount = account.amount(need.prompt, output);
            let Err(refusal) = account.budget.look(amount, now) else { continue };
            if refused.as_ref().is_none_or(|before| refusal.severity() > before.refusal.severity()) {
                refused = Some(NoTokens { account: id.clone(), refusal });
            }
        }
        if let Some(refused) = refused {
            return Err(refused);
        }
        let mut held = Held { need, output, parts: [const { None }; BUDGETS_MAX] };
        for (part, at) in held.parts.iter_mut().zip(found.accounts) {
            let Some((at, (account, _))) = at.and_then(|at| Some((at, self.shelf.get_mut(at)?))) else { continue };
            // Each of them was asked a moment ago, and nobody came between.
            *part = Some((at, account.budget.take(account.amount(need.prompt, output), now)));
        }
        Ok(held)
    }

    /// Puts the real use in place of what was reserved; zeros where nothing was sent.
    pub fn settle(&mut self, held: Held, prompt: u64, output: u64, now: Timestamp) {
        for (at, reservation) in held.parts.into_iter().flatten() {
            // A budget that went longer than a minute ago holds nothing any more.
            let Some((account, _)) = self.shelf.get_mut(at) else { continue };
            let used = account.amount(prompt, output);
            account.budget.settle(reservation, used, now);
        }
    }

    /// The same where nobody knows what was used: it counts as reserved.
    pub fn settle_in_full(&mut self, held: Held, now: Timestamp) {
        for (at, reservation) in held.parts.into_iter().flatten() {
            let Some((account, _)) = self.shelf.get_mut(at) else { continue };
            let used = reservation.tokens();
            account.budget.settle(reservation, used, now);
        }
    }

    /// What a vendor says is left of its own budget; false where the provider has none of ours.
    pub fn narrow(&mut self, provider: &Name, remaining: u64, until: Timestamp, now: Timestamp) -> bool {
        let account = self.providers.get(provider).and_then(|at| self.shelf.get_mut(*at));
        account.map(|(account, _)| account.budget.narrow(remaining, until, now)).is_some()
    }

    /// The budgets that have a configured name: providers' and features'.
    pub fn show(&mut self, now: Timestamp) -> Vec<Shown> {
        self.shelf.forget_rested(now);
        let of_features = self.features.values().filter_map(|feature| feature.account);
        let all: Vec<AccountRef> = self.providers.values().copied().chain(of_features).collect();
        all.into_iter().filter_map(|at| self.shown(at, now)).collect()
    }

    /// The budgets that have a configured name, by that.
    pub fn configured(&self) -> impl Iterator<Item = AccountId> {
        let of_features = self.features.iter().filter(|(_, feature)| feature.account.is_some());
        let of_features = of_features.map(|(name, _)| AccountId::Feature(name.clone()));
        self.providers.keys().map(|name| AccountId::Provider(name.clone())).chain(of_features)
    }

    /// What one budget shows, if it is there.
    pub fn show_one(&mut self, id: &AccountId, now: Timestamp) -> Option<Shown> {
        let at = match id {
            AccountId::Provider(name) => *self.providers.get(name)?,
            AccountId::Feature(name) => self.features.get(name)?.account?,
            AccountId::Tenant(tenant) => self.tenants.get(tenant)?.account?,
            AccountId::Cell(feature, tenant) => {
                let cells = &self.tenants.get(tenant)?.cells;
                cells.iter().find(|(of, _)| of == feature).map(|(_, at)| *at)?
            }
        };
        self.shown(at, now)
    }

    fn shown(&mut self, at: AccountRef, now: Timestamp) -> Option<Shown> {
        let (Account { budget, .. }, id) = self.shelf.get_mut(at)?;
        let (limit, used, reserved) = (budget.limit(), budget.used(now), budget.reserved(now));
        Some(Shown { account: id.clone(), limit, used, reserved })
    }

    /// How many tenants have budgets now.
    pub fn tenants(&self) -> usize {
        self.tenants.len()
    }

    /// The answer that is reserved for.
    fn output_of(&mut self, found: &Found, need: Need, now: Timestamp) -> u64 {
        match need.output {
            OutputBound::Told(output) => output,
            OutputBound::Assumed(output) => {
                let bound = |at: &AccountRef| Some(self.shelf.get_mut(*at)?.0.output_max(need.prompt, now));
                // An answer of one token at least, so that a prompt which fills a budget alone is refused.
                found.accounts.iter().flatten().filter_map(bound).fold(output, u64::min).max(1)
            }
        }
    }

    fn feature_of(&self, name: Option<&str>) -> Option<(&Name, &Feature)> {
        let known = name.and_then(|name| self.features.get_key_value(name));
        known.or_else(|| self.features.get_key_value(self.usual_feature.as_ref()?))
    }

    /// Every budget that concerns a caller; a tenant's are made where they are not there yet.
    pub fn find(&mut self, who: &Drawer<'_>, now: Timestamp) -> Found {
        let provider = self.providers.get(who.provider).copied();
        let feature = self.feature_of(who.feature);
        let (of_feature, ratio) = feature.map_or((None, None), |(_, feature)| (feature.account, feature.ratio));
        let feature = feature.map(|(name, _)| name).zip(ratio);
        let counted = who.tenant.and_then(|tenant| self.counted(tenant, feature));
        let [tenant, cell] = if let Some(counted) = counted {
            counted
        } else {
            let feature = feature.map(|(name, ratio)| (name.clone(), ratio));
            self.find_tenant(who.tenant, feature, now)
        };
        Found { accounts: [provider, of_feature, tenant, cell], epoch: self.epoch }
    }

    /// The same as [`Accounts::find_tenant`] for a tenant that has all of its budgets, which most callers have: those are few beside all
    /// that are known by name.
    fn counted(&self, tenant: &str, feature: Option<(&Name, f64)>) -> Option<[Option<AccountRef>; 2]> {
        let tenant = self.tenants.get(tenant)?;
        let settings = self.tiers.get(tenant.tier)?;
        let of_cell = feature.filter(|(_, ratio)| cell_rates(settings, Some(*ratio)).tokens_per_minute.is_some());
        let cell = match of_cell {
            Some((feature, _)) => Some(tenant.cells.iter().find(|(of, _)| of == feature).map(|(_, cell)| *cell)?),
            None => None,
        };
        if settings.rates.tokens_per_minute.is_some() && tenant.account.is_none() {
            return None;
        }
        Some([tenant.account, cell])
    }

    /// The budget of a tenant over all, and that in a feature of this ratio.
    fn find_tenant(
        &mut self,
        tenant: Option<&str>,
        feature: Option<(Name, f64)>,
        now: Timestamp,
    ) -> [Option<AccountRef>; 2] {
        let counted = self.known.find(tenant).ok();
        let tier = counted.and_then(|counted| Some((counted.name, counted.tier, self.tiers.get(counted.tier)?)));
        let Some((name, tier, settings)) = tier else { return [None; 2] };
        let rates = settings.rates;
        let of_cell = feature.map(|(name, ratio)| (name, cell_rates(settings, Some(ratio))));
        let of_cell = of_cell.filter(|(_, rates)| rates.tokens_per_minute.is_some());
        if rates.tokens_per_minute.is_none() && of_cell.is_none() {
            return [None; 2];
        }
        let name = self.tenant_entry(name, tier, now);
        let Some(entry) = self.tenants.get_mut(&*name) else { return [None; 2] };
        if entry.account.is_none() {
            entry.account = self.shelf.add(rates, || AccountId::Tenant(Arc::clone(&name)));
        }
        let cell = of_cell.and_then(|(feature, rates)| {
            let known = entry.cells.iter().find(|(of, _)| *of == feature).map(|(_, cell)| *cell);
            known.or_else(|| {
                let cell = self.shelf.add(rates, || AccountId::Cell(feature.clone(), Arc::clone(&name)))?;
                entry.cells.push((feature, cell));
                Some(cell)
            })
        });
        [entry.account, cell]
    }

    /// The key of a tenant that has an entry from now on. Where there are too many strangers, idle ones make room; where none is idle,
    /// it shares the budget of those who are not known.
    fn tenant_entry(&mut self, name: &str, tier: usize, now: Timestamp) -> Arc<str> {
        if let Some((known, _)) = self.tenants.get_key_value(name) {
            return Arc::clone(known);
        }
        // Who is known has a budget of its own, however many strangers there are.
        let is_stranger = !self.known.names(name);
        let is_full = is_stranger && self.strangers >= self.tenants_max.max(1);
        let name = if is_full && !self.forget_idle(now) { SHARED_TENANT } else { name };
        if let Some((known, _)) = self.tenants.get_key_value(name) {
            return Arc::clone(known);
        }
        let key: Arc<str> = name.into();
        self.strangers += usize::from(is_stranger);
        self.turns.push_back(Arc::clone(&key));
        self.tenants.insert(Arc::clone(&key), Tenant { tier, account: None, cells: Vec::new() });
        key
    }

    /// Drops tenants whose budgets hold nothing, among the next few in turn; false if no stranger was among them.
    fn forget_idle(&mut self, now: Timestamp) -> bool {
        let before = self.strangers;
        for _ in 0..LOOKED_AT.min(self.turns.len()) {
            let Some(name) = self.turns.pop_front() else { break };
            let Some(tenant) = self.tenants.get(&name) else { continue };
            let accounts: Vec<AccountRef> = tenant.accounts().collect();
            let is_idle =
                |at: &AccountRef| self.shelf.get_mut(*at).is_none_or(|(account, _)| account.budget.is_idle(now));
            if accounts.iter().all(is_idle) {
                self.tenants.remove(&name);
                self.strangers -= usize::from(!self.known.names(&name)).min(self.strangers);
                for gone in accounts {
                    self.shelf.remove(gone);
                }
                self.epoch += 1;
            } else {
                self.turns.push_back(name);
            }
        }
        self.strangers < before
    }
}

/// What a tenant of this tier may use in a minute in a feature of this ratio.
fn cell_rates(tier: &TierSettings, ratio: Option<f64>) -> Rates {
    let tokens_per_minute = ratio.and_then(|ratio| tier.cell_tokens(ratio));
    Rates { tokens_per_minute, ..tier.rates }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod twin_tests;
