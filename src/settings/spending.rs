//! `[prices]` and `[budgets]`: what models cost, and what an answer is taken for before it is there. Budgets themselves stand with those
//! who have them: providers, features, tiers.

use std::collections::HashMap;

use super::{
    load::Settings,
    node::{Node, Table, key_path},
    problem::{Origin, Problem},
    provider::Provider,
    reader::Reader,
    report::Report,
};
use crate::{
    model::{cost::Cost, nearest::hint},
    policy::{price::Price, tokens::TOKENS_MAX},
    runtime::spending::OUTPUT_TOKENS_ASSUMED,
};

/// The most models that have a price.
pub const PRICES_MAX: usize = 10_000;
/// The highest price, in units of money for a million tokens or a second.
const PRICE_MAX: f64 = 1_000_000.0;
/// The most letters of a currency's name.
const CURRENCY_LETTERS_MAX: usize = 16;

/// What has a price; a cheaper part of the input is none by itself.
const PRICED: [&str; 3] = ["input", "output", "second"];

/// What things cost.
#[derive(Debug, Clone, PartialEq)]
pub struct SpendingTable {
    /// By target: `provider/model`.
    pub prices: HashMap<String, Price>,
    /// Which money it is: shown, never reckoned with.
    pub currency: Option<String>,
    /// Tokens that an answer is taken for where neither its request nor its agent bounds it.
    pub output_tokens: u64,
}

impl Settings {
    /// Whether a budget or a price wants to know how many tokens a request has.
    pub fn counts_tokens(&self) -> bool {
        let providers = self.providers.iter().map(|provider| provider.settings.rates);
        let features = self.compartments.features.iter().map(|feature| feature.rates);
        let tiers = self.compartments.tiers.iter().map(|tier| tier.rates);
        let is_budgeted = providers.chain(features).chain(tiers).any(|rates| rates.tokens_per_minute.is_some());
        is_budgeted || !self.spending.prices.is_empty()
    }
}

/// Reads `[prices]` and `[budgets]`.
pub(super) fn read_spending(root: &mut Reader<'_, '_>) -> SpendingTable {
    let mut budgets = root.table("budgets");
    let output_tokens = budgets.whole("output_tokens", 1, TOKENS_MAX).unwrap_or(OUTPUT_TOKENS_ASSUMED);
    budgets.explain("output_tokens", output_tokens.to_string());
    budgets.finish(&[]);
    let tables = root.entries("prices");
    if tables.len() > PRICES_MAX {
        root.refuse("prices", format!("has {} entries, at most {PRICES_MAX} are allowed", tables.len()));
    }
    let (mut prices, mut currency) = (HashMap::new(), None);
    for (target, node) in tables.iter().take(PRICES_MAX) {
        let path = key_path("prices", target);
        let problem = |rule: &str| Problem {
            origin: node.origin.clone(),
            key: path.clone(),
            value: node.as_table().is_none().then(|| node.shown(target)),
            rule: rule.to_owned(),
        };
        if target == "currency" {
            match currency_of(node) {
                Some(text) => currency = Some(text),
                None => root.report.tell(problem("must be the short name of a currency")),
            }
            continue;
        }
        let is_target =
            target.split_once('/').is_some_and(|(provider, model)| !provider.is_empty() && !model.is_empty());
        match node.as_table() {
            Some(table) if is_target => {
                let reader = Reader::new(table, node.origin.clone(), &path, "", root.report);
                prices.insert(target.clone(), read_price(reader));
            }
            Some(_) => root.report.tell(problem("must be named \"provider/model\"")),
            None => root.report.tell(problem("must be a table with input, cached_input, output or second")),
        }
    }
    let shown = currency.clone().unwrap_or_else(|| "none".to_owned());
    let origin = tables.get("currency").map_or(Origin::Default, |node| node.origin.clone());
    root.report.explain("prices.currency".to_owned(), shown, origin);
    SpendingTable { prices, currency, output_tokens }
}

/// A price is somebody's: one of a provider that is not there is a slip, by which what it was meant for would cost nothing.
pub(super) fn check_prices(root: &Table, spending: &SpendingTable, providers: &[Provider], report: &mut Report) {
    let known = || providers.iter().map(|provider| provider.settings.name.as_str());
    let mut targets: Vec<&String> = spending.prices.keys().collect();
    targets.sort_unstable();
    for target in targets {
        let Some((provider, _)) = target.split_once('/') else { continue };
        if known().all(|name| name != provider) && report.is_sound(&key_path("providers", provider)) {
            let node = root.get("prices").and_then(Node::as_table).and_then(|prices| prices.get(target));
            let origin = node.map_or(Origin::Default, |node| node.origin.clone());
            let rule = format!("there is no provider {provider:?}{}", hint(provider, known()));
            report.tell(Problem { origin, key: key_path("prices", target), value: None, rule });
        }
    }
}

fn currency_of(node: &Node) -> Option<String> {
    let text = node.as_text()?;
    let fits = (1..=CURRENCY_LETTERS_MAX).contains(&text.chars().count());
    fits.then(|| text.to_owned())
}

fn read_price(mut reader: Reader<'_, '_>) -> Price {
    let input = amount(&mut reader, "input");
    let cached_input = reader.is_given("cached_input").then(|| amount(&mut reader, "cached_input")).flatten();
    let output = amount(&mut reader, "output");
    let second = amount(&mut reader, "second");
    if !PRICED.iter().any(|key| reader.is_given(key)) {
        let rule = "a price needs at least one of input, output and second; leave the table out where it is not known";
        reader.refuse_without(&PRICED, "input", rule);
    }
    reader.finish(&[]);
    Price {
        input: input.unwrap_or_default(),
        cached_input,
        output: output.unwrap_or_default(),
        second: second.unwrap_or_default(),
    }
}

/// An amount of money; `None` where it is not given, or cannot be.
pub(super) fn amount(reader: &mut Reader<'_, '_>, key: &'static str) -> Option<Cost> {
    if !reader.is_given(key) {
        reader.know(&[key]);
        return None;
    }
    let number = reader.number(key, 0.0);
    let cost = Cost::from_units(number).filter(|_| number <= PRICE_MAX);
    if cost.is_none() {
        reader.refuse(key, "must be an amount of money from 0 to 1000000");
    }
    cost
}
