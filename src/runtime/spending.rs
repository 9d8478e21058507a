//! Tokens and money of calls while they run: reserved before each attempt, settled once after it. What is reserved is a value; its drop
//! gives back what nobody used and keeps what nobody knows of, so that a cancel, a panic or the death of an actor settles as any other
//! end does. Which budgets there are, and what fits into them, the policy decides.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use super::{
    call::{CallContext, CallRequest},
    core::{AgentCore, Shared, lock},
    metric,
    ports::{Asked, Progress, TokenEstimate},
    refusal::Refusal,
    settings::ProviderSettings,
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
        tokens::{
            accounts::{Accounts, Held},
            draw::{AccountId, Drawer, Need, NoTokens, OutputBound},
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
    /// Written by callers and by attempts that end.
    accounts: Mutex<Accounts>,
    output_tokens_assumed: u64,
    prices: HashMap<String, Price>,
}

impl TokenBook {
    /// `None` where nothing is budgeted and nothing has a price: then no call is ever asked for its size.
    pub(crate) fn of(
        settings: SpendingSettings,
        compartments: &CompartmentSettings,
        providers: &[ProviderSettings],
    ) -> Option<Self> {
        let SpendingSettings { output_tokens_assumed, prices } = settings;
        let providers = rates_of(providers);
        let mut rates = providers.iter().map(|(_, rates)| rates);
        let of_callers = compartments.features.iter().map(|feature| feature.rates);
        let mut of_callers = of_callers.chain(compartments.tiers.iter().map(|tier| tier.rates));
        let is_budgeted = rates.any(|rates| rates.tokens_per_minute.is_some())
            || of_callers.any(|rates| rates.tokens_per_minute.is_some());
        (is_budgeted || !prices.is_empty()).then(|| Self {
            accounts: Mutex::new(Accounts::new(compartments, &providers)),
            output_tokens_assumed,
            prices,
        })
    }

    /// Budgets as another configuration has them; what their windows hold stays there.
    pub(crate) fn configure(&self, providers: &[ProviderSettings], compartments: &CompartmentSettings) {
        lock(&self.accounts).configure(compartments, &rates_of(providers));
    }

    /// Shows the budgets that have a configured name.
    pub(crate) fn show(&self, now: Timestamp) {
        let shown = lock(&self.accounts).show(now);
        for budget in shown {
            let labels = || vec![metrics::Label::new("compartment", budget.account.to_string())];
            metric::set(metric::TOKENS_LIMIT, labels(), budget.limit as f64);
            metric::set(metric::TOKENS_USED, labels(), budget.used as f64);
            metric::set(metric::TOKENS_RESERVED, labels(), budget.reserved as f64);
        }
    }

    /// What a budget's last minute holds, and what of it is reserved.
    pub(crate) fn used(&self, account: &AccountId, now: Timestamp) -> Option<(u64, u64)> {
        lock(&self.accounts).show_one(account, now).map(|shown| (shown.used, shown.reserved))
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
    sent: Sent,
    /// What was used, once that is known.
    used: Option<(u64, u64)>,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let (Some(book), Some(held)) = (&self.shared.tokens, self.held.take()) else { return };
        let now = self.shared.now();
        let mut accounts = lock(&book.accounts);
        match (self.used, self.sent) {
            (Some((prompt, output)), _) => accounts.settle(held, prompt, output, now),
            (None, Sent::No) => accounts.settle(held, 0, 0, now),
            // It ended where nobody could look: what was reserved is the best that is known.
            (None, Sent::Yes) => accounts.settle_in_full(held, now),
        }
        drop(accounts);
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
        let Some(book) = &shared.tokens else { return Ok(None) };
        let (feature, tenant) = (context.feature.as_deref(), context.tenant.as_deref());
        let who = Drawer { provider: &agent.settings.provider, feature, tenant };
        let price = book.prices.get(&*agent.target).copied();
        let is_budgeted = lock(&book.accounts).concerns(&who);
        if !is_budgeted && price.is_none() {
            return Ok(None);
        }
        // Counting takes longer than anything else here, so nobody waits for it.
        let need = need_of(agent, context, book.output_tokens_assumed);
        let mut spending = Box::new(Self {
            shared: Arc::clone(shared),
            agent: Arc::clone(agent),
            feature: context.feature.clone(),
            tenant: context.tenant.clone(),
            need,
            reserved: None,
            price,
        });
        spending.reserve(now).map_err(|refused| Refusal::Tokens { refused })?;
        Ok(Some(spending))
    }

    /// Reserves the tokens of an attempt, unless they are. An attempt that does not get them is not made.
    pub(crate) fn reserve(&mut self, now: Timestamp) -> Result<(), NoTokens> {
        let Some(book) = self.shared.tokens.as_ref().filter(|_| self.reserved.is_none()) else { return Ok(()) };
        let provider = &self.agent.settings.provider;
        let who = Drawer { provider, feature: self.feature.as_deref(), tenant: self.tenant.as_deref() };
        let told = self.agent.backend.vendor_budget();
        let mut accounts = lock(&book.accounts);
        if let Some(told) = told {
            accounts.narrow(provider, told.remaining, now.after(told.reset_in), now);
        }
        let held = accounts.reserve(&who, self.need, now)?;
        drop(accounts);
        self.reserved =
            Some(Reserved { shared: Arc::clone(&self.shared), held: Some(held), sent: Sent::No, used: None });
        Ok(())
    }

    /// The attempt begins: from now on nobody can say that nothing was sent.
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
    if shared.tokens.is_some() {
        let relay = request.relay.as_ref().map(|relay| (relay.kind, Arc::clone(&relay.body)));
        request.context.asked = Some(Asked { input: Arc::clone(&request.input), relay });
    }
}

fn need_of(agent: &AgentCore, context: &CallContext, output_tokens_assumed: u64) -> Need {
    let estimate = context
        .asked
        .as_ref()
        .and_then(|asked| agent.backend.estimate(asked, context.prompt.as_deref()))
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
                items.iter().for_each(|item| gather(item, depth - 1, text));
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
