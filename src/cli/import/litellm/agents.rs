//! Deployments with one model name become one agent; places become providers. The tables in the order of the file.

use std::{collections::BTreeSet, time::Duration};

use super::{
    account::Account,
    deployment::{Deployment, Key, Place, Text},
    general::General,
};
use crate::{
    cli::import::{
        scalar::DURATION_MAX,
        toml_text::{TomlTable, float, key_text, quoted, span},
    },
    model::name::{NAME_BYTES_MAX, Name},
    policy::{
        backoff::BACKOFF_FLOOR,
        breaker::settings::{BreakerSettings, WINDOW_CALLS_MAX},
        retry_settings::ATTEMPTS_MAX,
    },
    runtime::settings::SLOTS_MAX,
};

/// What a call has here unless configured.
const OUR_CALL_TIMEOUT: Duration = Duration::from_secs(180);
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

/// A provider's table.
pub(super) fn provider_table(name: &str, place: &Place) -> TomlTable {
    let mut table = TomlTable::new(&["providers", name]);
    table.set("kind", quoted("openai"));
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
    match (variable, place.key_header) {
        (Some(variable), Some(header)) => {
            table.set("headers", format!("{{ {} = {{ env = {} }} }}", key_text(header), quoted(&variable)));
        }
        (Some(variable), None) => table.set("api_key_env", quoted(&variable)),
        (None, _) => {}
    }
    if let Some(version) = &place.api_version {
        let value = match version {
            Text::Plain(text) => quoted(text),
            Text::Variable(variable) => format!("{{ env = {} }}", quoted(variable)),
        };
        table.set("query", format!("{{ {} = {value} }}", key_text("api-version")));
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
    let mut taken = BTreeSet::new();
    let mut tables = Vec::new();
    for model_name in names {
        let mut group: Vec<&Deployment> =
            deployments.iter().filter(|deployment| deployment.model_name == model_name).collect();
        // Stable: the file's order decides where `order` does not.
        group.sort_by_key(|deployment| deployment.order.unwrap_or(u64::MAX));
        let name = agent_name(model_name, &mut taken, account);
        tables.extend(one_agent(&name, &group, providers, general, account));
    }
    tables
}

fn one_agent(
    name: &str,
    group: &[&Deployment],
    providers: &[(String, Place)],
    general: &General,
    account: &mut Account,
) -> Vec<TomlTable> {
    let Some((first, others)) = group.split_first() else { return Vec::new() };
    let provider_of = |deployment: &Deployment| {
        providers.iter().find(|(_, place)| *place == deployment.place).map_or("", |(name, _)| name.as_str())
    };
    let mut table = TomlTable::new(&["agents", name]);
    table.set("provider", quoted(provider_of(first)));
    table.set("model", quoted(&first.model));
    for other in others {
        let weight = other.weight.map(|weight| format!(", weight {weight}")).unwrap_or_default();
        table.comment(format!("further target: {}/{}{weight}", provider_of(other), other.model));
        let said =
            format!("agents.{name}: several targets of one agent are not built yet; it stands there as a comment");
        account.take_back(other.findings.clone(), &[], &said);
    }
    limits(&mut table, first, general);
    let mut tables = vec![table];
    tables.extend([retry_table(name, first, general), breaker_table(name, general)].into_iter().flatten());
    tables
}

fn limits(table: &mut TomlTable, first: &Deployment, general: &General) {
    if let Some(slots) = first.slots {
        table.set("slots", slots.min(u64::from(SLOTS_MAX)).to_string());
    }
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

fn breaker_table(name: &str, general: &General) -> Option<TomlTable> {
    let mut table = TomlTable::new(&["agents", name, "breaker"]);
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

/// A name of ours for a model name.
fn agent_name(model_name: &str, taken: &mut BTreeSet<String>, account: &mut Account) -> String {
    let fitting: String = model_name
        .chars()
        .map(|letter| if letter.is_ascii_alphanumeric() || "-_.".contains(letter) { letter } else { '-' })
        .take(NAME_BYTES_MAX - 5)
        .collect();
    let fitting = fitting.trim_start_matches(['-', '_', '.']);
    let base = if Name::try_new(model_name).is_ok() { model_name } else { fitting };
    let name = unique(if base.is_empty() { "agent" } else { base }, '-', taken);
    if name != model_name {
        let shown: String = model_name.chars().take(NAME_BYTES_MAX).collect();
        account.silent(&shown, format!("agents.{name}: names have ASCII letters, digits, '-', '_' and '.' only"));
    }
    name
}

/// `base`, or with a number where it is taken.
fn unique(base: &str, join: char, taken: &mut BTreeSet<String>) -> String {
    let mut name = base.to_owned();
    let mut number = 2;
    while !taken.insert(name.clone()) {
        let stem: String = base.chars().take(NAME_BYTES_MAX - 5).collect();
        name = format!("{stem}{join}{number}");
        number += 1;
    }
    name
}
