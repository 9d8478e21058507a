//! From an `application.yml` to a configuration and an account of every property in it. Nothing is read or written here.

use std::collections::BTreeSet;

use super::{agent, ledger::Ledger, modules::Modules, properties};
use crate::{
    cli::import::{
        finding::{Finding, Imported, Outcome, sort},
        toml_text::{TomlTable, push_comment, quoted},
        yaml,
    },
    model::name::{NAME_BYTES_MAX, Name},
};

/// The provider that all agents get: the file does not say where they are.
pub(super) const PROVIDER: &str = "services";
/// Where services of one's own usually are on one's own machine.
const BASE_URL: &str = "http://127.0.0.1:8080";

/// What the command was told beside the file.
#[derive(Debug, Clone, Default)]
pub(in crate::cli::import) struct Options {
    /// Spring profiles that hold.
    pub(in crate::cli::import) profiles: Vec<String>,
    /// Where the services are.
    pub(in crate::cli::import) base_url: Option<String>,
}

/// Makes a configuration of `bytes`, the content of the file `path`.
pub(in crate::cli::import) fn import(path: &str, bytes: &[u8], options: &Options) -> Result<Imported, String> {
    let documents = yaml::parse(path, bytes)?;
    let (properties, mut findings) = properties::hold(&documents, &options.profiles);
    let mut ledger = Ledger::default();
    let modules = Modules::sort(properties, &mut ledger);
    let instances = modules.names();
    if instances.is_empty() {
        let profiles = if documents.len() > 1 { ", in no document that holds (see --profile)" } else { "" };
        return Err(format!("{path}: has no resilience4j instances{profiles}: there is nothing to import"));
    }
    let mut config = String::new();
    push_comment(
        &mut config,
        &format!("Made by `watertight import resilience4j {path}`. Keys left out have our defaults."),
    );
    provider(options, &mut ledger).write(&mut config);
    let mut names = BTreeSet::new();
    for instance in &instances {
        let name = name_of(instance, &mut names, &mut ledger);
        for table in agent::tables(&modules, instance, &name, &mut ledger) {
            table.write(&mut config);
        }
    }
    differences(&modules, &mut ledger);
    findings.extend(ledger.close(&modules.givens));
    sort(&mut findings);
    Ok(Imported { config, findings })
}

fn provider(options: &Options, ledger: &mut Ledger) -> TomlTable {
    let mut table = TomlTable::new(&["providers", PROVIDER]);
    table.set("kind", quoted("http"));
    if let Some(base_url) = &options.base_url {
        table.set("base_url", quoted(base_url));
    } else {
        table.set_noted("base_url", quoted(BASE_URL), "fill in: where your services are");
        let said = format!("providers.{PROVIDER}.base_url = {BASE_URL}: fill in where your services are (--base-url)");
        ledger.silent("(address)", said);
    }
    table
}

/// A name of ours for an instance: its own where that is one, else made of its letters.
fn name_of(instance: &str, taken: &mut BTreeSet<String>, ledger: &mut Ledger) -> String {
    let fitting: String = instance
        .chars()
        .map(|letter| if letter.is_ascii_alphanumeric() || "-_.".contains(letter) { letter } else { '-' })
        .take(NAME_BYTES_MAX - 5)
        .collect();
    let fitting = fitting.trim_start_matches(['-', '_', '.']);
    let base = if Name::try_new(instance).is_ok() {
        instance.to_owned()
    } else if fitting.is_empty() {
        "agent".to_owned()
    } else {
        fitting.to_owned()
    };
    let mut name = base.clone();
    let mut number = 2;
    while !taken.insert(name.clone()) {
        name = format!("{}-{number}", &base[..base.len().min(NAME_BYTES_MAX - 5)]);
        number += 1;
    }
    if name != instance {
        ledger.add(Finding {
            line: None,
            key: instance.chars().take(NAME_BYTES_MAX).collect(),
            value: None,
            outcome: Outcome::Changed,
            said: format!("agents.{name}: names have ASCII letters, digits, '-', '_' and '.' only"),
        });
    }
    name
}

/// What is different by design.
fn differences(modules: &Modules, ledger: &mut Ledger) {
    if modules.has_instances("circuitbreaker") {
        ledger.silent(
            "consecutive_failures",
            "five hard failures in a row also open a breaker; Resilience4j has no such rule",
        );
        ledger.silent("max_age", "outcomes older than 10m do not count in a counted window; Resilience4j keeps them");
    }
    if modules.has_instances("retry") {
        let said = "retries lie inside the call and its one slot, and the breaker judges the call's end; Resilience4j's breaker counts each attempt";
        ledger.silent("(order of guards)", said);
        ledger.silent("retry_below", "an attempt that ran longer than 5s is not repeated; Resilience4j repeats it");
    }
}
