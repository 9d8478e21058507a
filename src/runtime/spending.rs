//! Tokens and money of calls while they run: reserved before each attempt, settled once after it. What is reserved is a value; its drop
//! gives back what nobody used and keeps what nobody knows of, so that a cancel, a panic or the death of an actor settles as any other
//! end does. Which budgets there are, and what fits into them, the policy decides.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use super::{
    call::{CallContext, CallRequest},
    core::{AgentCore, Shared, lock},
    engine::Runtime,
    metric,
    ports::{Asked, Progress, TokenEstimate, VendorBudget},
    refusal::Refusal,
    settings::ProviderSettings,
    shielded::shielded,
    spent::{Guess, count_guess, rough_estimate, spent},
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    tally::Tally,
    token_count::TokenCounter,
};
use crate::{
    model::{
        clock::Timestamp,
        name::Name,
        reply::{AttemptFailure, Reply, Usage},
    },
    policy::{
        compartment::{
            known_tenants::KnownTenants,
            settings::{CompartmentSettings, Rates},
        },
        price::Price,
        tokens::{
            WINDOW,
            accounts::{Accounts, Found, Held},
            draw::{AccountId, Drawer, Need, NoTokens, OutputBound, Shown},
            told::ToldBudgets,
        },
    },
};

/// Tokens that an answer is taken for where neither request nor agent says how long it may be, unless configured.
pub const OUTPUT_TOKENS_ASSUMED: u64 = 1_024;

/// Token budgets and prices, as configured. Budgets of features and tenants stand with their compartments.
#[derive(Debug, Clone, PartialEq)]
pub struct SpendingSettings {
    /// What an answer is taken for where nobody says how long it may be.
    pub output_tokens_assumed: u64,
    /// Prices by target (`provider/model`).
    pub prices: HashMap<String, Price>,
    /// Which money prices are in; of a runtime the first one holds, since costs are added up.
    pub currency: Option<Arc<str>>,
}

impl Default for SpendingSettings {
    fn default() -> Self {
        Self { output_tokens_assumed: OUTPUT_TOKENS_ASSUMED, prices: HashMap::new(), currency: None }
    }
}

impl<'a> SpentFor<'a> {
    /// Whose budgets that concerns at a provider.
    fn drawer(self, provider: &'a Name) -> Drawer<'a> {
        Drawer { provider, feature: self.feature, tenant: self.tenant }
    }
}

#[cfg(test)]
impl SpentFor<'_> {
    /// Calls of this feature, by nobody in particular.
    pub(crate) const CHAT: Self = Self { feature: Some("chat"), tenant: None };
}

/// The token budgets of a runtime, and its prices.
pub(crate) struct TokenBook {
    /// False where nothing is budgeted and nothing has a price: then no call is ever asked for its size.
    is_asked: AtomicBool,
    /// True while a vendor's word holds for a provider that has no budget of ours.
    is_told: AtomicBool,
    /// The money of all costs.
    currency: Option<Arc<str>>,
    /// Written by callers, by attempts that end and by a reload.
    state: Mutex<State>,
}

struct State {
    accounts: Accounts,
    /// Budgets that were ever shown: their names are configured ones.
    shown: BTreeSet<Arc<str>>,
    told: ToldBudgets,
    settings: Arc<SpendingSettings>,
}

impl TokenBook {
    pub(crate) fn new(
        settings: SpendingSettings,
        compartments: (&CompartmentSettings, &Arc<KnownTenants>),
        providers: &[ProviderSettings],
        now: Timestamp,
    ) -> Self {
        let state = State {
            accounts: Accounts::default(),
            shown: BTreeSet::new(),
            told: ToldBudgets::default(),
            settings: Arc::default(),
        };
        let (is_asked, is_told) = (AtomicBool::new(false), AtomicBool::new(false));
        let currency = settings.currency.clone();
        let book = Self { is_asked, is_told, currency, state: Mutex::new(state) };
        book.configure(settings, compartments, providers, now);
        book
    }

    /// Budgets and prices as another configuration has them; what is in a budget's window stays there.
    pub(crate) fn configure(
        &self,
        settings: SpendingSettings,
        (compartments, known): (&CompartmentSettings, &Arc<KnownTenants>),
        providers: &[ProviderSettings],
        now: Timestamp,
    ) {
        let providers = rates_of(providers);
        let of_features = compartments.features.iter().map(|feature| feature.rates);
        let of_tiers = compartments.tiers.iter().map(|tier| tier.rates);
        let mut rates = providers.iter().map(|(_, rates)| *rates).chain(of_features).chain(of_tiers);
        let is_asked = rates.any(|rates| rates.tokens_per_minute.is_some()) || !settings.prices.is_empty();
        let mut state = lock(&self.state);
        state.accounts.configure(compartments, known, &providers, now);
        let is_budgeted =
            |name: &Name| providers.iter().any(|(known, rates)| known == name && rates.tokens_per_minute.is_some());
        state.told.keep(|name| !is_budgeted(name));
        state.settings = Arc::new(settings);
        self.is_asked.store(is_asked, Ordering::Release);
    }

    /// The money of all costs.
    pub(crate) fn currency(&self) -> Option<Arc<str>> {
        self.currency.clone()
    }

    /// Whether a call's size matters to anybody.
    pub(crate) fn is_asked(&self) -> bool {
        self.is_asked.load(Ordering::Acquire) || self.is_told.load(Ordering::Acquire)
    }

    /// Takes in what an agent's vendor said of its own budget since it was asked last.
    fn hear(&self, agent: &AgentCore, now: Timestamp) {
        if let Some(word) = shielded(|| agent.backend.vendor_budget()).flatten() {
            self.hear_word(&mut lock(&self.state), &agent.settings.provider, word, now);
        }
    }

    fn hear_word(&self, state: &mut State, provider: &Name, word: VendorBudget, now: Timestamp) {
        let until = now.after(word.reset_in);
        if !state.accounts.narrow(provider, word.remaining, until, now) {
            state.told.hear(provider, word.remaining, until, now);
        }
        self.show_told(!state.told.is_empty(now));
    }

    /// Written only where it changes: every call reads it.
    fn show_told(&self, is_told: bool) {
        if self.is_told.load(Ordering::Acquire) != is_told {
            self.is_told.store(is_told, Ordering::Release);
        }
    }

    /// Shows the budgets that have a configured name.
    pub(crate) fn show(&self, now: Timestamp) {
        if !self.is_asked() {
            return;
        }
        let shown = {
            let mut state = lock(&self.state);
            let shown = state.accounts.show(now);
            let shown: Vec<_> = shown.into_iter().map(|budget| (budget.account.to_string(), budget)).collect();
            for (name, _) in &shown {
                if !state.shown.contains(name.as_str()) {
                    state.shown.insert(Arc::from(name.as_str()));
                }
            }
            shown
        };
        for (name, budget) in shown {
            let labels = || vec![metrics::Label::new("compartment", name.clone())];
            metric::set(metric::TOKENS_LIMIT, labels(), budget.limit as f64);
            metric::set(metric::TOKENS_USED, labels(), budget.used as f64);
            metric::set(metric::TOKENS_RESERVED, labels(), budget.reserved as f64);
        }
    }

    /// The budgets that were shown once, and are not configured now.
    pub(crate) fn gone(&self) -> Vec<Arc<str>> {
        let state = lock(&self.state);
        let here: BTreeSet<String> = state.accounts.configured().map(|account| account.to_string()).collect();
        state.shown.iter().filter(|name| !here.contains(&***name)).map(Arc::clone).collect()
    }

    /// What a budget shows, if it is there.
    pub(crate) fn look(&self, account: &AccountId, now: Timestamp) -> Option<Shown> {
        lock(&self.state).accounts.show_one(account, now)
    }
}

fn rates_of(providers: &[ProviderSettings]) -> Vec<(Name, Rates)> {
    providers.iter().map(|provider| (provider.name.clone(), provider.rates)).collect()
}

/// Whether an attempt's request may have gone out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sent {
    No,
    Yes,
}

/// Tokens that are reserved for one attempt.
struct Reserved {
    held: Held,
    at: Timestamp,
    sent: Sent,
    /// What was used, once that is known.
    used: Option<(u64, u64)>,
}

/// For whom tokens are taken, beside the agent: a call's feature and tenant.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SpentFor<'a> {
    pub(crate) feature: Option<&'a str>,
    pub(crate) tenant: Option<&'a str>,
}

/// What one call spends at one target.
pub(crate) struct Spending {
    shared: Arc<Shared>,
    agent: Arc<AgentCore>,
    need: Need,
    /// What the prompt was counted with.
    counter: TokenCounter,
    reserved: Option<Reserved>,
    price: Option<Price>,
}

impl Spending {
    /// Reserves the tokens of a call's first attempt; `None` where neither a budget nor a price concerns it.
    pub(crate) fn begin(
        shared: &Arc<Shared>,
        agent: &Arc<AgentCore>,
        context: &CallContext,
        now: Timestamp,
    ) -> Result<Option<Box<Self>>, Refusal> {
        shared.tokens.hear(agent, now);
        if !shared.tokens.is_asked() {
            return Ok(None);
        }
        let provider = &agent.settings.provider;
        let spent_for = SpentFor { feature: context.feature.as_deref(), tenant: context.tenant.as_deref() };
        let who = spent_for.drawer(provider);
        let (found, is_told, price, output_assumed) = {
            let mut state = lock(&shared.tokens.state);
            shared.tokens.show_told(!state.told.is_empty(now));
            let price = state.settings.prices.get(&*agent.target).copied();
            let output_assumed = state.settings.output_tokens_assumed;
            (state.accounts.find(&who, now), state.told.concerns(provider, now), price, output_assumed)
        };
        // Counting takes longer than anything else here, so nobody waits for it.
        let (need, counter) = if !found.is_none() || price.is_some() {
            need_of(agent, context, output_assumed)
        } else if is_told && context.asked.is_some() {
            // A vendor's word comes unasked for: nobody loads a vocabulary for it.
            needed(rough_estimate(context.asked.as_ref()), output_assumed)
        } else {
            return Ok(None);
        };
        let mut spending = Box::new(Self {
            shared: Arc::clone(shared),
            agent: Arc::clone(agent),
            need,
            counter,
            reserved: None,
            price,
        });
        spending.reserve(spent_for, Some(found), now).map_err(|refused| Refusal::Tokens { refused })?;
        Ok(Some(spending))
    }

    /// Reserves the tokens of an attempt, unless they are. An attempt that does not get them is not made.
    fn reserve(&mut self, spent_for: SpentFor<'_>, found: Option<Found>, now: Timestamp) -> Result<(), NoTokens> {
        if self.reserved.as_ref().is_some_and(|reserved| reserved.at.after(WINDOW) > now) {
            return Ok(());
        }
        // One that has left its minute while the call waited (for a model to load) holds nothing any more.
        self.give_back();
        let provider = &self.agent.settings.provider;
        let who = spent_for.drawer(provider);
        // Who has just looked the budgets up has heard the vendor too.
        let word = if found.is_none() { shielded(|| self.agent.backend.vendor_budget()).flatten() } else { None };
        let mut state = lock(&self.shared.tokens.state);
        if let Some(word) = word {
            self.shared.tokens.hear_word(&mut state, provider, word, now);
        }
        let refused = |refusal| NoTokens { account: AccountId::Provider(provider.clone()), refusal };
        state.told.look(provider, self.need, now).map_err(refused)?;
        let found = found.unwrap_or_else(|| state.accounts.find(&who, now));
        let held = state.accounts.reserve(&who, found, self.need, now)?;
        state.told.take(provider, self.need);
        drop(state);
        self.reserved = Some(Reserved { held, at: now, sent: Sent::No, used: None });
        Ok(())
    }

    /// Settles what is reserved, if anything is.
    fn give_back(&mut self) {
        let Some(Reserved { held, at, sent, used }) = self.reserved.take() else { return };
        let now = self.shared.now_or(at);
        let mut state = lock(&self.shared.tokens.state);
        let accounts = &mut state.accounts;
        match (used, sent) {
            (Some((prompt, output)), _) => accounts.settle(held, prompt, output, now),
            (None, Sent::No) => accounts.settle(held, 0, 0, now),
            // It ended where nobody could look: what was reserved is the best that is known.
            (None, Sent::Yes) => accounts.settle_in_full(held, now),
        }
    }

    /// An attempt begins with its tokens, or is not made; the first one's are there since its admission.
    pub(crate) fn begin_attempt(&mut self, spent_for: SpentFor<'_>, now: Timestamp) -> Result<(), Refusal> {
        self.reserve(spent_for, None, now).map_err(|refused| Refusal::Tokens { refused })?;
        self.sent();
        Ok(())
    }

    /// From now on nobody can say that nothing was sent.
    pub(crate) fn sent(&mut self) {
        if let Some(reserved) = &mut self.reserved {
            reserved.sent = Sent::Yes;
        }
    }

    /// How the attempt's tokens are counted, if nobody tells them.
    pub(crate) fn tally(&self) -> Tally {
        Tally::reserved(self.counter, self.need.prompt)
    }

    /// The attempt is over: settles its tokens, and says what it used and cost; `None` where nothing was.
    pub(crate) fn settle(
        &mut self,
        result: &Result<Reply, AttemptFailure>,
        progress: &Progress,
        took: Duration,
    ) -> Option<Usage> {
        let is_free = self.need == Need { prompt: 0, output: OutputBound::Told(0) };
        let told = result.as_ref().map_or_else(|failure| failure.usage, |reply| reply.usage);
        let spent =
            if is_free && told.is_none() { None } else { spent(&self.agent, result, progress, || self.need.prompt) };
        if let Some(reserved) = &mut self.reserved {
            reserved.used = Some(spent.map_or((0, 0), |usage| (usage.prompt_tokens, usage.output_tokens)));
        }
        self.give_back();
        Some(self.priced(spent?, took))
    }

    /// It is over and told what it used: settles that, and says what it cost.
    pub(crate) fn settle_told(&mut self, usage: Usage, took: Duration) -> Usage {
        if let Some(reserved) = &mut self.reserved {
            reserved.used = Some((usage.prompt_tokens, usage.output_tokens));
        }
        self.give_back();
        self.priced(usage, took)
    }

    /// The attempt ended where nobody could look: it has used what was reserved for it, as far as anybody knows, and at least the
    /// `heard` tokens that came of its answer.
    pub(crate) fn lose(mut self, heard: u64, took: Duration) -> Option<Usage> {
        let reserved = self.reserved.as_mut().filter(|reserved| reserved.sent == Sent::Yes)?;
        let (prompt_tokens, held) = reserved.held.tokens();
        let output_tokens = held.max(heard);
        if output_tokens > held {
            reserved.used = Some((prompt_tokens, output_tokens));
        }
        self.give_back();
        if prompt_tokens == 0 && output_tokens == 0 {
            return None;
        }
        count_guess(&self.agent, Guess::Lost);
        let counted_by = Some(self.counter.counted_by());
        let usage = Usage { prompt_tokens, output_tokens, estimated: true, counted_by, ..Usage::default() };
        Some(self.priced(usage, took))
    }

    fn priced(&self, usage: Usage, took: Duration) -> Usage {
        let cost = self.price.map(|price| price.cost(usage, took));
        if let Some(cost) = cost {
            let labels = vec![metrics::Label::new("agent", self.agent.settings.name.as_str().to_owned())];
            metric::count(metric::COST_NANOS, labels, cost.nanos());
        }
        Usage { cost, ..usage }
    }
}

impl Drop for Spending {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// Puts what is asked beside who asks, where a guard wants to know its size.
pub(crate) fn show_asked(shared: &Shared, agent: &AgentCore, request: &mut CallRequest) {
    shared.tokens.hear(agent, shared.now());
    if shared.tokens.is_asked() {
        let relay = request.relay.as_ref().map(|relay| (relay.kind, Arc::clone(&relay.body)));
        request.context.asked = Some(Asked { input: Arc::clone(&request.input), relay });
    }
}

fn need_of(agent: &AgentCore, context: &CallContext, output_tokens_assumed: u64) -> (Need, TokenCounter) {
    let estimate = context
        .asked
        .as_ref()
        .and_then(|asked| shielded(|| agent.backend.estimate(asked, context.prompt.as_deref())).flatten())
        .unwrap_or_else(|| rough_estimate(context.asked.as_ref()));
    needed(estimate, output_tokens_assumed)
}

fn needed(estimate: TokenEstimate, output_tokens_assumed: u64) -> (Need, TokenCounter) {
    let assumed = OutputBound::Assumed(output_tokens_assumed);
    let output = estimate.output_max.map_or(assumed, OutputBound::Told);
    (Need { prompt: estimate.prompt, output }, estimate.counter)
}

impl Runtime {
    /// What a token budget shows now; `None` where there is none. A tenant's is there once it has called.
    pub fn token_budget(&self, account: &AccountId) -> Option<Shown> {
        self.shared.tokens.look(account, self.shared.now())
    }
}
