//! Deployments with one model name become one agent with a target each; places become providers. The tables in the order of the file.

use std::{collections::BTreeSet, time::Duration};

use super::{
    account::Account,
    address::Text,
    deployment::{Deployment, Key, Place},
    general::General,
    names::{Called, called, unique},
    targets::{provider_of, slots_of, target_list, targets_of},
};
use crate::{
    cli::import::{
        scalar::{DURATION_MAX, nearly_all},
        toml_text::{TomlTable, float, key_text, quoted, span},
    },
    model::duration::format,
    policy::{
        backoff::BACKOFF_FLOOR,
        breaker::settings::{BreakerSettings, WINDOW_CALLS_MAX},
        retry_settings::ATTEMPTS_MAX,
    },
    runtime::settings::SLOTS_MAX,
    settings::ollama::{NUM_CTX, NUM_CTX_MAX},
};

/// What a call has here unless configured.
const OUR_CALL_TIMEOUT: Duration = Duration::from_secs(180);
/// What is slow here unless configured.
const OUR_SLOW_CALL: Duration = Duration::from_secs(30);
/// Where growth of waits ends here unless configured.
const OUR_BACKOFF_MAX: Duration = Duration::from_secs(30);

/// The providers of all places, by name, in the file's order.
pub(super) fn providers(deployments: &[Deployment], account: &mut Account) -> Vec<(String, Place)> {
    let mut providers: Vec<(String, Place)> = Vec::new();
    let mut taken = BTreeSet::new();
    for deployment in deployments {
        if providers.iter().any(|(_, place)| *place == deployment.place) {
            continue;
        }
        let name = unique(&deployment.place.vendor.replace('-', "_"), '_', &mut taken);
        if let Some(variable) = &deployment.place.base_url_variable {
            let said = format!(
                "start with WATERTIGHT_PROVIDERS__{}__BASE_URL set to what {variable} holds",
                name.to_uppercase()
            );
            account.silent(&format!("providers.{name}.base_url"), said);
        }
        if deployment.place.key == Key::Literal {
            let said = format!("put the key of line {} into {}", deployment.line, variable_of(&name));
            account.silent(&format!("providers.{name}.api_key_env"), said);
        }
        providers.push((name, deployment.place.clone()));
    }
    providers
}

/// The variable that a key which stood in the file is to be moved to.
fn variable_of(provider: &str) -> String {
    format!("{}_KEY", provider.to_uppercase())
}

/// A provider's table. `longest` is the longest answer that anybody in the file may ask for.
pub(super) fn provider_table(name: &str, place: &Place, longest: Option<u64>) -> TomlTable {
    let mut table = TomlTable::new(&["providers", name]);
    table.set("kind", quoted(place.kind));
    match &place.base_url_variable {
        None => table.set("base_url", quoted(&place.base_url)),
        Some(variable) => {
            let azure = if place.key_header.is_some() { " and /openai/deployments/MODEL" } else { "" };
            let ours = format!("WATERTIGHT_PROVIDERS__{}__BASE_URL", name.to_uppercase());
            table.set_noted("base_url", quoted(&place.base_url), format!("set {ours} to what {variable} holds{azure}"));
        }
    }
    let variable = match &place.key {
        Key::None => None,
        Key::Variable(variable) => Some(variable.clone()),
        Key::Literal => Some(variable_of(name)),
    };
    if let Some(variable) = variable {
        table.set("api_key_env", quoted(&variable));
        if let Some(header) = place.key_header {
            table.set("auth", format!("{{ header = {} }}", quoted(header)));
        }
    }
    if let Some(version) = &place.api_version {
        let value = match version {
            Text::Plain(text) => quoted(text),
            Text::Variable(variable) => format!("{{ env = {} }}", quoted(variable)),
        };
        table.set("query", format!("{{ {} = {value} }}", key_text("api-version")));
    }
    if let Some(tokens) = longest.filter(|tokens| place.kind == "ollama" && *tokens >= u64::from(NUM_CTX)) {
        let room = tokens.saturating_mul(2).min(u64::from(NUM_CTX_MAX));
        table.set_noted("num_ctx", room.to_string(), "twice the longest answer: prompt and answer share it");
    }
    table
}

/// The agents' tables, one agent a model name.
pub(super) fn agent_tables(
    deployments: &[Deployment],
    providers: &[(String, Place)],
    general: &General,
    account: &mut Account,
) -> Vec<TomlTable> {
    let mut names: Vec<&str> = Vec::new();
    for deployment in deployments {
        if !names.contains(&deployment.model_name.as_str()) {
            names.push(&deployment.model_name);
        }
    }
    let called = called(&names, general, account);
    let mut tables = Vec::new();
    for (model_name, called) in names.into_iter().zip(&called) {
        let group: Vec<&Deployment> =
            deployments.iter().filter(|deployment| deployment.model_name == model_name).collect();
        tables.extend(one_agent(called, &group, providers, general, account));
    }
    tables
}

fn one_agent(
    called: &Called,
    group: &[&Deployment],
    providers: &[(String, Place)],
    general: &General,
    account: &mut Account,
) -> Vec<TomlTable> {
    let name = called.agent.as_str();
    let targets = targets_of(name, group, account);
    let Some(first) = targets.first() else { return Vec::new() };
    let mut table = TomlTable::new(&["agents", name]);
    if targets.len() > 1 {
        table.set("targets", target_list(name, &targets, providers, account));
    } else {
        table.set("provider", quoted(provider_of(providers, first)));
        table.set("model", quoted(&first.model));
    }
    if !called.model_names.is_empty() {
        let names: Vec<String> = called.model_names.iter().map(|name| quoted(name)).collect();
        table.set("model_names", format!("[{}]", names.join(", ")));
    }
    if let Some(slots) = slots_of(&targets).or(first.slots) {
        table.set("slots", slots.min(u64::from(SLOTS_MAX)).to_string());
    }
    limits(&mut table, first, general);
    let mut tables = vec![table];
    let breaker = breaker_table(name, (first, general), account);
    tables.extend([retry_table(name, first, general), breaker].into_iter().flatten());
    tables
}

fn limits(table: &mut TomlTable, first: &Deployment, general: &General) {
    let timeout = first.timeout.or(general.timeout);
    if let Some(timeout) = timeout {
        table.set("timeout", span(timeout));
        let attempts = attempts_of(first, general).unwrap_or(1);
        let call = timeout.saturating_mul(attempts).min(DURATION_MAX);
        if call > OUR_CALL_TIMEOUT {
            table.set_noted("call_timeout", span(call), "room for all attempts; ours would end a call after 3m");
        }
    }
    if let Some(first_token) = first.stream_timeout.or(general.stream_timeout) {
        table.set("first_token", span(first_token));
    }
    if let Some(temperature) = first.temperature {
        table.set("temperature", float(temperature));
    }
    for (key, number) in [("seed", first.seed), ("max_output_tokens", first.max_output_tokens)] {
        if let Some(number) = number {
            table.set(key, number.to_string());
        }
    }
    if let Some(num_ctx) = first.of_ollama.num_ctx {
        table.set("num_ctx", num_ctx.to_string());
    }
    if let Some(keep_alive) = &first.of_ollama.keep_alive {
        table.set("keep_alive", keep_alive.as_str());
    }
}

fn attempts_of(first: &Deployment, general: &General) -> Option<u32> {
    let retries = first.retries.or(general.retries)?;
    Some(u32::try_from(retries.saturating_add(1)).unwrap_or(u32::MAX).min(ATTEMPTS_MAX))
}

fn retry_table(name: &str, first: &Deployment, general: &General) -> Option<TomlTable> {
    let mut table = TomlTable::new(&["agents", name, "retry"]);
    if let Some(attempts) = attempts_of(first, general) {
        table.set("attempts_max", attempts.to_string());
    }
    if let Some(wait) = general.retry_after {
        let wait = wait.max(BACKOFF_FLOOR);
        table.set("backoff", span(wait));
        if wait > OUR_BACKOFF_MAX {
            table.set("backoff_max", span(wait));
        }
    }
    (!table.is_empty()).then_some(table)
}

fn breaker_table(name: &str, (first, general): (&Deployment, &General), account: &mut Account) -> Option<TomlTable> {
    let mut table = TomlTable::new(&["agents", name, "breaker"]);
    let ends = [first.timeout.or(general.timeout), first.stream_timeout.or(general.stream_timeout)];
    if let Some(ends) = ends.into_iter().flatten().min().filter(|ends| OUR_SLOW_CALL >= *ends) {
        let (slow, ends) = (nearly_all(ends), format(ends));
        table.set_noted(
            "slow_call",
            span(slow),
            format!("an attempt without content ends after {ends}: only one that does is slow"),
        );
        table.set("slow_share", float(1.0));
        let said = "slow_share = 1: an attempt without content ends after";
        let said = format!(
            "agents.{name}.breaker.slow_call = {}, {said} {ends}, so that only one that does is slow",
            format(slow)
        );
        account.silent("(slow calls)", said);
    }
    if let Some(fails) = general.allowed_fails {
        let failures = fails.saturating_add(1).min(u64::from(WINDOW_CALLS_MAX));
        table.set("consecutive_failures", failures.to_string());
    }
    if let Some(open) = general.cooldown {
        table.set("open", span(open));
        if open > BreakerSettings::default().open_max {
            table.set("open_max", span(open));
        }
    }
    (!table.is_empty()).then_some(table)
}
