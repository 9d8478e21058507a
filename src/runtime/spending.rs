//! Tokens and money of calls while they run: reserved before each attempt, settled once after it. What is reserved is a value; its drop
//! gives back what nobody used and keeps what nobody knows of, so that a cancel, a panic or the death of an actor settles as any other
//! end does. Which budgets there are, and what fits into them, the policy decides.

use std::{collections::HashMap, sync::Arc, time::Duration};

use super::{
    call::{CallContext, CallRequest},
    core::{AgentCore, Shared, lock},
    engine::Runtime,
    metric,
    ports::{Asked, Progress, TokenEstimate},
    refusal::Refusal,
    settings::ProviderSettings,
    shielded::shielded,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    token_count::TokenCounter,
};
use crate::{
    model::{
        clock::Timestamp,
        facts::Ending,
        name::Name,
        reply::{AttemptFailure, Reply, Usage},
    },
    policy::{
        compartment::settings::{CompartmentSettings, Rates},
        price::Price,
        run_caps::RunCaps,
        tokens::{
            WINDOW,
            accounts::{Accounts, Found, Held},
            draw::{AccountId, Drawer, Need, NoTokens, OutputBound, Shown},
        },
    },
};

/// Tokens that an answer is taken for where neither request nor agent says how long it may be, unless configured.
pub const OUTPUT_TOKENS_ASSUMED: u64 = 1_024;
/// A text inside an input is looked for so deep.
const INPUT_DEPTH_MAX: usize = 32;

/// Token budgets and prices, as configured. Budgets of features and tenants stand with their compartments.
#[derive(Debug, Clone, PartialEq)]
pub struct SpendingSettings {
    /// What an answer is taken for where nobody says how long it may be.
    pub output_tokens_assumed: u64,
    /// Prices by target (`provider/model`).
    pub prices: HashMap<String, Price>,
}

impl Default for SpendingSettings {
    fn default() -> Self {
        Self { output_tokens_assumed: OUTPUT_TOKENS_ASSUMED, prices: HashMap::new() }
    }
}

/// The token budgets of a runtime, and its prices.
pub(crate) struct TokenBook {
    /// False where nothing is budgeted and nothing has a price: then no call is ever asked for its size.
    is_asked: AtomicBool,
    /// Written by callers, by attempts that end and by a reload.
    state: Mutex<State>,
}

struct State {
    accounts: Accounts,
    settings: Arc<SpendingSettings>,
}

impl TokenBook {
    pub(crate) fn new(
        settings: SpendingSettings,
        compartments: &CompartmentSettings,
        providers: &[ProviderSettings],
    ) -> Self {
        let state = State { accounts: Accounts::default(), settings: Arc::default() };
        let book = Self { is_asked: AtomicBool::new(false), state: Mutex::new(state) };
        book.configure(settings, compartments, providers);
        book
    }

    /// Budgets and prices as another configuration has them; what is in a budget's window stays there.
    pub(crate) fn configure(
        &self,
        settings: SpendingSettings,
        compartments: &CompartmentSettings,
        providers: &[ProviderSettings],
    ) {
        let providers = rates_of(providers);
        let of_features = compartments.features.iter().map(|feature| feature.rates);
        let of_tiers = compartments.tiers.iter().map(|tier| tier.rates);
        let mut rates = providers.iter().map(|(_, rates)| *rates).chain(of_features).chain(of_tiers);
        let is_asked = rates.any(|rates| rates.tokens_per_minute.is_some()) || !settings.prices.is_empty();
        let mut state = lock(&self.state);
        state.accounts.configure(compartments, &providers);
        state.settings = Arc::new(settings);
        self.is_asked.store(is_asked, Ordering::Release);
    }

    /// Whether a call's size matters to anybody.
    fn is_asked(&self) -> bool {
        self.is_asked.load(Ordering::Acquire)
    }

    /// Shows the budgets that have a configured name.
    pub(crate) fn show(&self, now: Timestamp) {
        if !self.is_asked() {
            return;
        }
        let shown = lock(&self.state).accounts.show(now);
        for budget in shown {
            let labels = || vec![metrics::Label::new("compartment", budget.account.to_string())];
            metric::set(metric::TOKENS_LIMIT, labels(), budget.limit as f64);
            metric::set(metric::TOKENS_USED, labels(), budget.used as f64);
            metric::set(metric::TOKENS_RESERVED, labels(), budget.reserved as f64);
        }
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
    shared: Arc<Shared>,
    held: Option<Held>,
    at: Timestamp,
    sent: Sent,
    /// What was used, once that is known.
    used: Option<(u64, u64)>,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let Some(held) = self.held.take() else { return };
        let now = self.shared.now_or(self.at);
        let mut state = lock(&self.shared.tokens.state);
        let accounts = &mut state.accounts;
        match (self.used, self.sent) {
            (Some((prompt, output)), _) => accounts.settle(held, prompt, output, now),
            (None, Sent::No) => accounts.settle(held, 0, 0, now),
            // It ended where nobody could look: what was reserved is the best that is known.
            (None, Sent::Yes) => accounts.settle_in_full(held, now),
        }
        drop(state);
        if self.used.is_none() && self.sent == Sent::Yes {
            metric::count(metric::TOKENS_GUESSED, vec![metrics::Label::from_static_parts("reason", "lost")], 1);
        }
    }
}

/// What one call spends at one target.
pub(crate) struct Spending {
    shared: Arc<Shared>,
    agent: Arc<AgentCore>,
    feature: Option<String>,
    tenant: Option<String>,
    need: Need,
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
        if !shared.tokens.is_asked() {
            return Ok(None);
        }
        let (feature, tenant) = (context.feature.as_deref(), context.tenant.as_deref());
        let who = Drawer { provider: &agent.settings.provider, feature, tenant };
        let (found, settings) = {
            let mut state = lock(&shared.tokens.state);
            (state.accounts.find(&who, now), Arc::clone(&state.settings))
        };
        let price = settings.prices.get(&*agent.target).copied();
        if found.is_none() && price.is_none() {
            return Ok(None);
        }
        // Counting takes longer than anything else here, so nobody waits for it.
        let need = need_of(agent, context, settings.output_tokens_assumed);
        let mut spending = Box::new(Self {
            shared: Arc::clone(shared),
            agent: Arc::clone(agent),
            feature: context.feature.clone(),
            tenant: context.tenant.clone(),
            need,
            reserved: None,
            price,
        });
        spending.reserve(Some(found), now).map_err(|refused| Refusal::Tokens { refused })?;
        Ok(Some(spending))
    }

    /// Reserves the tokens of an attempt, unless they are. An attempt that does not get them is not made.
    fn reserve(&mut self, found: Option<Found>, now: Timestamp) -> Result<(), NoTokens> {
        if self.reserved.as_ref().is_some_and(|reserved| reserved.at.after(WINDOW) > now) {
            return Ok(());
        }
        // One that has left its minute while the call waited (for a model to load) holds nothing any more.
        self.reserved = None;
        let provider = &self.agent.settings.provider;
        let who = Drawer { provider, feature: self.feature.as_deref(), tenant: self.tenant.as_deref() };
        let told = shielded(|| self.agent.backend.vendor_budget()).flatten();
        let mut state = lock(&self.shared.tokens.state);
        if let Some(told) = told {
            state.accounts.narrow(provider, told.remaining, now.after(told.reset_in), now);
        }
        let found = found.unwrap_or_else(|| state.accounts.find(&who, now));
        let held = state.accounts.reserve(&who, found, self.need, now)?;
        drop(state);
        self.reserved =
            Some(Reserved { shared: Arc::clone(&self.shared), held: Some(held), at: now, sent: Sent::No, used: None });
        Ok(())
    }

    /// An attempt begins with its tokens, or is not made; the first one's are there since its admission.
    pub(crate) fn begin_attempt(&mut self, now: Timestamp) -> Result<(), AttemptFailure> {
        self.reserve(None, now).map_err(|refused| AttemptFailure::new(Ending::OwnRefusal, refused.to_string()))?;
        self.sent();
        Ok(())
    }

    /// From now on nobody can say that nothing was sent.
    pub(crate) fn sent(&mut self) {
        if let Some(reserved) = &mut self.reserved {
            reserved.sent = Sent::Yes;
        }
    }

    /// The attempt is over: settles its tokens, and says what it used and cost; `None` where nothing was.
    pub(crate) fn settle(
        &mut self,
        result: &Result<Reply, AttemptFailure>,
        progress: &Progress,
        took: Duration,
    ) -> Option<Usage> {
        let spent = self.spent(result, progress);
        if let Some(mut reserved) = self.reserved.take() {
            let (Spent::Told(usage) | Spent::Guessed(usage)) = spent else {
                reserved.used = Some((0, 0));
                return None;
            };
            reserved.used = Some((usage.prompt_tokens, usage.output_tokens));
        }
        let (Spent::Told(usage) | Spent::Guessed(usage)) = spent else { return None };
        if matches!(spent, Spent::Guessed(_)) {
            let labels = vec![
                metrics::Label::new("agent", self.agent.settings.name.as_str().to_owned()),
                metrics::Label::from_static_parts("reason", "no_usage"),
            ];
            metric::count(metric::TOKENS_GUESSED, labels, 1);
        }
        let cost = self.price.map(|price| price.cost(usage, took));
        if let Some(cost) = cost {
            let labels = vec![metrics::Label::new("agent", self.agent.settings.name.as_str().to_owned())];
            metric::count(metric::COST_NANOS, labels, cost.nanos());
        }
        Some(Usage { cost, ..usage })
    }

    fn spent(&self, result: &Result<Reply, AttemptFailure>, progress: &Progress) -> Spent {
        let is_free = self.need == Need { prompt: 0, output: OutputBound::Told(0) };
        let guess = |output: u64| {
            let output_tokens = output.max(progress.pieces());
            Usage { prompt_tokens: self.need.prompt, output_tokens, estimated: true, ..Usage::default() }
        };
        match result {
            Ok(Reply { usage: Some(usage), .. }) | Err(AttemptFailure { usage: Some(usage), .. }) => {
                if usage.estimated { Spent::Guessed(*usage) } else { Spent::Told(*usage) }
            }
            _ if is_free => Spent::Nothing,
            Ok(reply) => Spent::Guessed(guess(TokenCounter::Letters.count(&text_of(&reply.output)))),
            Err(failure) => match &failure.ending {
                // An answer with an error status is no work of a model, and neither is what never left.
                Ending::Status { .. } | Ending::OwnRefusal | Ending::Loading | Ending::Internal => Spent::Nothing,
                ending if !ending.connected() => Spent::Nothing,
                _ => Spent::Guessed(guess(0)),
            },
        }
    }
}

/// What an attempt used.
#[derive(Debug, Clone, Copy)]
enum Spent {
    /// By the server's word.
    Told(Usage),
    /// By our own counting.
    Guessed(Usage),
    /// Nothing.
    Nothing,
}

/// Puts what is asked beside who asks, where a guard wants to know its size.
pub(crate) fn show_asked(shared: &Shared, request: &mut CallRequest) {
    if shared.tokens.is_asked() {
        let relay = request.relay.as_ref().map(|relay| (relay.kind, Arc::clone(&relay.body)));
        request.context.asked = Some(Asked { input: Arc::clone(&request.input), relay });
    }
}

fn need_of(agent: &AgentCore, context: &CallContext, output_tokens_assumed: u64) -> Need {
    let estimate = context
        .asked
        .as_ref()
        .and_then(|asked| shielded(|| agent.backend.estimate(asked, context.prompt.as_deref())).flatten())
        .unwrap_or_else(|| rough_estimate(context.asked.as_ref()));
    let assumed = OutputBound::Assumed(output_tokens_assumed);
    Need { prompt: estimate.prompt, output: estimate.output_max.map_or(assumed, OutputBound::Told) }
}

/// By the letters of what is asked, for a backend that cannot tell.
fn rough_estimate(asked: Option<&Asked>) -> TokenEstimate {
    let prompt = match asked {
        None => 0,
        Some(Asked { relay: Some((_, body)), .. }) => TokenCounter::Letters.count(body.as_str()),
        Some(Asked { input, relay: None }) => TokenCounter::Letters.count(&text_of(input)),
    };
    TokenEstimate { prompt, output_max: None }
}

/// All texts inside a value.
fn text_of(value: &serde_json::Value) -> String {
    fn gather(value: &serde_json::Value, depth: usize, text: &mut String) {
        match value {
            serde_json::Value::String(part) => {
                text.push_str(part);
                text.push(' ');
            }
            serde_json::Value::Array(items) if depth > 0 => {
                for item in items {
                    gather(item, depth - 1, text);
                }
            }
            serde_json::Value::Object(members) if depth > 0 => {
                members.values().for_each(|member| gather(member, depth - 1, text));
            }
            _ => {}
        }
    }
    let mut text = String::new();
    gather(value, INPUT_DEPTH_MAX, &mut text);
    text
}

impl Runtime {
    /// What a token budget shows now; `None` where there is none. A tenant's is there once it has called.
    pub fn token_budget(&self, account: &AccountId) -> Option<Shown> {
        self.shared.tokens.look(account, self.shared.now())
    }

    /// Budgets, prices and caps of runs as another configuration has them: what is in a budget's window stays there, what is reserved is
    /// settled as it would have been.
    pub fn configure_spending(
        &self,
        settings: SpendingSettings,
        caps: RunCaps,
        compartments: &CompartmentSettings,
        providers: &[ProviderSettings],
    ) {
        self.shared.tokens.configure(settings, compartments, providers);
        *lock(&self.shared.run_caps) = caps;
    }
}
