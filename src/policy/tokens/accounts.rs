//! All token budgets of a runtime: whose a call draws on (its provider's, its feature's, its tenant's and that of its cell), and that it
//! gets its tokens from all of them or from none. Features and tiers are known from the start; tenants have budgets once they call, in a
//! bounded number. It counts no tokens and reads no clock.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use super::{
    BudgetRefusal, ReservationId, TokenBudget,
    draw::{AccountId, Drawer, Need, NoTokens, OutputBound, Shown},
};
use crate::{
    model::{clock::Timestamp, name::Name},
    policy::compartment::settings::{
        CompartmentSettings, CountedTokens, Rates, TierSettings, UnknownFeature, UnknownTenant,
    },
};

/// The name under which tenants that are not known have one budget together.
const SHARED_TENANT: &str = "other";
/// Tenants that are looked at when one is to make room.
const LOOKED_AT: usize = 64;

/// Tokens that were taken from all of a call's budgets for one attempt.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "what is never settled counts as used in full"]
pub struct Held {
    need: Need,
    output: u64,
    parts: Vec<(AccountId, ReservationId)>,
}

impl Held {
    /// The prompt and the answer that were reserved for.
    pub const fn tokens(&self) -> (u64, u64) {
        (self.need.prompt, self.output)
    }
}

#[derive(Debug, Clone)]
struct Account {
    budget: TokenBudget,
    counted: CountedTokens,
}

#[derive(Debug, Clone)]
struct Feature {
    account: Option<Account>,
    ratio: Option<f64>,
}

#[derive(Debug, Clone)]
struct Tenant {
    tier: usize,
    account: Option<Account>,
    cells: Vec<(Name, Account)>,
}

/// The budgets.
#[derive(Debug, Clone, Default)]
pub struct Accounts {
    providers: HashMap<Name, Account>,
    features: HashMap<Name, Feature>,
    usual_feature: Option<Name>,
    tiers: Vec<TierSettings>,
    known_tenants: HashMap<Name, usize>,
    unknown_tenant: Option<(UnknownTenant, usize)>,
    tenants: HashMap<Arc<str>, Tenant>,
    /// Whose turn it is to make room; each tenant once.
    turns: VecDeque<Arc<str>>,
    tenants_max: usize,
}

impl Account {
    fn of(rates: Rates) -> Option<Self> {
        let budget = TokenBudget::new(rates.tokens_per_minute?);
        Some(Self { budget, counted: rates.tokens })
    }

    /// What it counts of so many tokens.
    fn amount(&self, prompt: u64, output: u64) -> u64 {
        match self.counted {
            CountedTokens::Both => prompt.saturating_add(output),
            CountedTokens::Input => prompt,
            CountedTokens::Output => output,
        }
    }

    /// The longest answer to such a prompt that fits it at all.
    fn output_max(&self, prompt: u64) -> u64 {
        match self.counted {
            CountedTokens::Both => self.budget.limit().saturating_sub(prompt),
            CountedTokens::Output => self.budget.limit(),
            CountedTokens::Input => u64::MAX,
        }
    }
}

impl Accounts {
    /// The budgets of these compartments, and of providers by name.
    pub fn new(settings: &CompartmentSettings, providers: &[(Name, Rates)]) -> Self {
        let mut accounts = Self::default();
        accounts.configure(settings, providers);
        accounts
    }

    /// Takes over other settings in place: what is in a budget's window stays there.
    pub fn configure(&mut self, settings: &CompartmentSettings, providers: &[(Name, Rates)]) {
        let mut before = std::mem::take(&mut self.providers);
        for (name, rates) in providers {
            let old = before.remove(name);
            self.providers.extend(renewed(old, *rates).map(|account| (name.clone(), account)));
        }
        let mut before = std::mem::take(&mut self.features);
        for feature in &settings.features {
            let old = before.remove(&feature.name).and_then(|feature| feature.account);
            let account = renewed(old, feature.rates);
            self.features.insert(feature.name.clone(), Feature { account, ratio: feature.ratio });
        }
        self.usual_feature = match &settings.unknown_feature {
            UnknownFeature::Refused => None,
            UnknownFeature::Is(name) => Some(name.clone()),
        };
        self.tenants_max = settings.tenants_max as usize;
        self.configure_tenants(settings);
    }

    fn configure_tenants(&mut self, settings: &CompartmentSettings) {
        let tier_of = |name: &Name| settings.tiers.iter().position(|tier| tier.name == *name);
        self.tiers.clone_from(&settings.tiers);
        let known = settings.tenants.iter();
        self.known_tenants = known.filter_map(|tenant| Some((tenant.name.clone(), tier_of(&tenant.tier)?))).collect();
        self.unknown_tenant = match &settings.unknown_tenant {
            UnknownTenant::Refused => None,
            unknown @ (UnknownTenant::Shared(tier) | UnknownTenant::Own(tier)) => {
                tier_of(tier).map(|tier| (unknown.clone(), tier))
            }
        };
        for (name, mut tenant) in std::mem::take(&mut self.tenants) {
            let Some((_, tier)) = self.tenant_of(Some(&name)) else { continue };
            let Some(settings) = self.tiers.get(tier) else { continue };
            tenant.tier = tier;
            tenant.account = renewed(tenant.account.take(), settings.rates);
            let cells = std::mem::take(&mut tenant.cells);
            for (feature, cell) in cells {
                let ratio = self.features.get(&feature).and_then(|feature| feature.ratio);
                let renewed = renewed(Some(cell), cell_rates(settings, ratio));
                tenant.cells.extend(renewed.map(|cell| (feature, cell)));
            }
            self.tenants.insert(name, tenant);
        }
        self.turns.retain(|name| self.tenants.contains_key(name));
    }

    /// Whether any budget concerns this caller: only then its tokens need counting.
    pub fn concerns(&self, who: &Drawer<'_>) -> bool {
        if self.providers.contains_key(who.provider) {
            return true;
        }
        let feature = self.feature_of(who.feature);
        let (account, ratio) = feature
            .and_then(|name| self.features.get(name))
            .map_or((None, None), |feature| (feature.account.as_ref(), feature.ratio));
        let tier = self.tenant_of(who.tenant).and_then(|(_, tier)| self.tiers.get(tier));
        account.is_some()
            || tier.is_some_and(|tier| {
                tier.rates.tokens_per_minute.is_some() || cell_rates(tier, ratio).tokens_per_minute.is_some()
            })
    }

    /// Takes an attempt's tokens from every budget that concerns the caller, or from none. Of several that refuse, the one is named that
    /// does so for good, else the one that takes longest.
    pub fn reserve(&mut self, who: &Drawer<'_>, need: Need, now: Timestamp) -> Result<Held, NoTokens> {
        let ids = self.accounts_of(who, now);
        let output = self.output_of(&ids, need);
        let mut refused: Option<NoTokens> = None;
        for id in &ids {
            let Some(account) = self.account(id) else { continue };
            let amount = account.amount(need.prompt, output);
            let Err(refusal) = account.budget.look(amount, now) else { continue };
            if refused.as_ref().is_none_or(|before| severity(refusal) > severity(before.refusal)) {
                refused = Some(NoTokens { account: id.clone(), refusal });
            }
        }
        if let Some(refused) = refused {
            return Err(refused);
        }
        let mut held = Held { need, output, parts: Vec::with_capacity(ids.len()) };
        for id in ids {
            let Some(account) = self.account(&id) else { continue };
            let amount = account.amount(need.prompt, output);
            match account.budget.reserve(amount, now) {
                Ok(reservation) => held.parts.push((id, reservation)),
                // It was looked at a moment ago and nobody came between; should it refuse all the same, nothing is kept.
                Err(refusal) => {
                    self.settle(held, 0, 0, now);
                    return Err(NoTokens { account: id, refusal });
                }
            }
        }
        Ok(held)
    }

    /// Puts the real use in place of what was reserved; zeros where nothing was sent.
    pub fn settle(&mut self, held: Held, prompt: u64, output: u64, now: Timestamp) {
        for (id, reservation) in held.parts {
            // The budget of a feature that a reload has removed is gone with what it held.
            let Some(account) = self.account(&id) else { continue };
            let used = account.amount(prompt, output);
            account.budget.settle(reservation, used, now);
        }
    }

    /// The same where nobody knows what was used: it counts as reserved.
    pub fn settle_in_full(&mut self, held: Held, now: Timestamp) {
        for (id, reservation) in held.parts {
            let Some(account) = self.account(&id) else { continue };
            let used = reservation.tokens();
            account.budget.settle(reservation, used, now);
        }
    }

    /// What a vendor says is left of its own budget; false where the provider has none of ours.
    pub fn narrow(&mut self, provider: &Name, remaining: u64, until: Timestamp, now: Timestamp) -> bool {
        let account = self.providers.get_mut(provider);
        account.map(|account| account.budget.narrow(remaining, until, now)).is_some()
    }

    /// The budgets that have a configured name: providers' and features'.
    pub fn show(&mut self, now: Timestamp) -> Vec<Shown> {
        let providers = self.providers.iter_mut().map(|(name, account)| (AccountId::Provider(name.clone()), account));
        let features = self
            .features
            .iter_mut()
            .filter_map(|(name, feature)| Some((AccountId::Feature(name.clone()), feature.account.as_mut()?)));
        let shown = |(account, Account { budget, .. }): (AccountId, &mut Account)| Shown {
            account,
            limit: budget.limit(),
            used: budget.used(now),
            reserved: budget.reserved(now),
        };
        providers.chain(features).map(shown).collect()
    }

    /// What one budget shows, if it is there.
    pub fn show_one(&mut self, id: &AccountId, now: Timestamp) -> Option<Shown> {
        let Account { budget, .. } = self.account(id)?;
        let (limit, used, reserved) = (budget.limit(), budget.used(now), budget.reserved(now));
        Some(Shown { account: id.clone(), limit, used, reserved })
    }

    /// How many tenants have budgets now.
    pub fn tenants(&self) -> usize {
        self.tenants.len()
    }

    /// The answer that is reserved for.
    fn output_of(&mut self, ids: &[AccountId], need: Need) -> u64 {
        match need.output {
            OutputBound::Told(output) => output,
            OutputBound::Assumed(output) => {
                let bound = |id| Some(self.account(id)?.output_max(need.prompt));
                // An answer of one token at least, so that a prompt which fills a budget alone is refused as too large.
                ids.iter().filter_map(bound).fold(output, u64::min).max(1)
            }
        }
    }

    fn account(&mut self, id: &AccountId) -> Option<&mut Account> {
        match id {
            AccountId::Provider(name) => self.providers.get_mut(name),
            AccountId::Feature(name) => self.features.get_mut(name)?.account.as_mut(),
            AccountId::Tenant(tenant) => self.tenants.get_mut(tenant)?.account.as_mut(),
            AccountId::Cell(feature, tenant) => {
                let cells = &mut self.tenants.get_mut(tenant)?.cells;
                cells.iter_mut().find(|(of, _)| of == feature).map(|(_, account)| account)
            }
        }
    }

    fn feature_of(&self, name: Option<&str>) -> Option<&Name> {
        let known = name.and_then(|name| self.features.get_key_value(name)).map(|(name, _)| name);
        known.or_else(|| self.usual_feature.as_ref().filter(|name| self.features.contains_key(*name)))
    }

    /// Under which name a tenant is counted, and its tier.
    fn tenant_of<'a>(&self, name: Option<&'a str>) -> Option<(&'a str, usize)> {
        let known = name.and_then(|name| self.known_tenants.get(name).copied());
        match (known, name, &self.unknown_tenant) {
            (Some(tier), Some(name), _) => Some((name, tier)),
            (_, Some(name), Some((UnknownTenant::Own(_), tier))) => Some((name, *tier)),
            (_, _, Some((_, tier))) => Some((SHARED_TENANT, *tier)),
            (_, _, None) => None,
        }
    }

    /// Every budget that concerns a caller; a tenant's are made where they are not there yet.
    fn accounts_of(&mut self, who: &Drawer<'_>, now: Timestamp) -> Vec<AccountId> {
        let mut ids = Vec::with_capacity(4);
        if self.providers.contains_key(who.provider) {
            ids.push(AccountId::Provider(who.provider.clone()));
        }
        let feature = self.feature_of(who.feature).cloned();
        let of_feature = feature.as_ref().and_then(|name| self.features.get(name));
        let ratio = of_feature.and_then(|feature| feature.ratio);
        if let Some(name) = feature.as_ref().filter(|_| of_feature.is_some_and(|feature| feature.account.is_some())) {
            ids.push(AccountId::Feature(name.clone()));
        }
        let Some((name, tier)) = self.tenant_of(who.tenant) else { return ids };
        let Some(settings) = self.tiers.get(tier) else { return ids };
        let (own, cell) = (Account::of(settings.rates), Account::of(cell_rates(settings, ratio)));
        if own.is_none() && cell.is_none() {
            return ids;
        }
        let name = self.tenant_entry(name, tier, now);
        let Some(tenant) = self.tenants.get_mut(&name) else { return ids };
        if own.is_some() {
            tenant.account = tenant.account.take().or(own);
            ids.push(AccountId::Tenant(Arc::clone(&name)));
        }
        if let (Some(feature), Some(cell)) = (feature, cell) {
            if tenant.cells.iter().all(|(of, _)| *of != feature) {
                tenant.cells.push((feature.clone(), cell));
            }
            ids.push(AccountId::Cell(feature, name));
        }
        ids
    }

    /// The key of a tenant that has an entry from now on. Where there are too many, idle ones make room; where nobody is idle, it shares
    /// the budget of those who are not known.
    fn tenant_entry(&mut self, name: &str, tier: usize, now: Timestamp) -> Arc<str> {
        if let Some((known, _)) = self.tenants.get_key_value(name) {
            return Arc::clone(known);
        }
        let is_full = self.tenants.len() >= self.tenants_max.max(1);
        let name = if is_full && !self.forget_idle(now) { SHARED_TENANT } else { name };
        if let Some((known, _)) = self.tenants.get_key_value(name) {
            return Arc::clone(known);
        }
        let key: Arc<str> = name.into();
        self.turns.push_back(Arc::clone(&key));
        self.tenants.insert(Arc::clone(&key), Tenant { tier, account: None, cells: Vec::new() });
        key
    }

    /// Drops tenants whose budgets hold nothing, among the next few in turn; false if there was none.
    fn forget_idle(&mut self, now: Timestamp) -> bool {
        let before = self.tenants.len();
        for _ in 0..LOOKED_AT.min(self.turns.len()) {
            let Some(name) = self.turns.pop_front() else { break };
            let Some(tenant) = self.tenants.get_mut(&name) else { continue };
            let accounts = tenant.account.iter_mut().chain(tenant.cells.iter_mut().map(|(_, cell)| cell));
            if accounts.into_iter().all(|account| account.budget.is_idle(now)) {
                self.tenants.remove(&name);
            } else {
                self.turns.push_back(name);
            }
        }
        self.tenants.len() < before
    }
}

/// An account by other settings, with what it holds.
fn renewed(old: Option<Account>, rates: Rates) -> Option<Account> {
    let limit = rates.tokens_per_minute?;
    match old {
        // Amounts of another kind cannot be compared: it begins anew.
        Some(mut account) if account.counted == rates.tokens => {
            account.budget.resize(limit);
            Some(account)
        }
        _ => Account::of(rates),
    }
}

/// What a tenant of this tier may use in a minute in a feature of this ratio.
fn cell_rates(tier: &TierSettings, ratio: Option<f64>) -> Rates {
    let tokens_per_minute = ratio.and_then(|ratio| tier.cell_tokens(ratio));
    Rates { tokens_per_minute, ..tier.rates }
}

fn severity(refusal: BudgetRefusal) -> (bool, std::time::Duration) {
    match refusal {
        BudgetRefusal::TooLarge { .. } => (true, std::time::Duration::ZERO),
        BudgetRefusal::Exhausted { retry_after } => (false, retry_after),
    }
}

#[cfg(test)]
mod tests;
