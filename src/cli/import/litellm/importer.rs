//! From a proxy's `config.yaml` to a configuration and an account of every key in it. Nothing is read or written here.

use super::{
    account::Account,
    agents::{agent_tables, provider_table, providers},
    deployment::{self, Deployment},
    general::{self, General},
};
use crate::cli::import::{
    finding::{Imported, Outcome, sort},
    toml_text::push_comment,
    yaml::{self, Entry, Value},
};

/// The most deployments.
const DEPLOYMENTS_MAX: usize = 1_000;

/// Makes a configuration of `bytes`, the content of the file `path`.
pub(in crate::cli::import) fn import(path: &str, bytes: &[u8]) -> Result<Imported, String> {
    let mut documents = yaml::parse(path, bytes)?.into_iter();
    let (Some(root), None) = (documents.next(), documents.next()) else {
        return Err(format!("{path}: must be one YAML document with a model_list"));
    };
    let mut account = Account::default();
    let mut deployments: Vec<Deployment> = Vec::new();
    let mut settings = General::default();
    for entry in root.entries() {
        match entry.key.as_str() {
            "model_list" => deployments = model_list(path, entry, &mut account)?,
            "router_settings" | "litellm_settings" | "general_settings" => {
                general::read(&entry.key, &entry.node, root.get("router_settings"), &mut settings, &mut account);
            }
            "environment_variables" => variables(entry, &mut account),
            _ => {
                let said = format!("LiteLLM's own: it has no counterpart here ({} values in it)", entry.node.count());
                account.note("", entry, Outcome::NotSupported, said);
            }
        }
    }
    if deployments.is_empty() {
        return Err(format!(
            "{path}: has no model_list with a model that can be reached from here: there is nothing to import"
        ));
    }
    let providers = providers(&deployments, &mut account);
    let mut config = String::new();
    push_comment(&mut config, &format!("Made by `watertight import litellm {path}`. Keys left out have our defaults."));
    let longest = deployments.iter().filter_map(|deployment| deployment.max_output_tokens).max();
    for (name, place) in &providers {
        provider_table(name, place, longest).write(&mut config);
    }
    for table in agent_tables(&deployments, &providers, &settings, &mut account) {
        table.write(&mut config);
    }
    sort(&mut account.findings);
    Ok(Imported { config, findings: account.findings })
}

fn model_list(path: &str, entry: &Entry, account: &mut Account) -> Result<Vec<Deployment>, String> {
    let Value::List(list) = &entry.node.value else {
        return Err(format!("{path}:{}: model_list must be a list", entry.line));
    };
    if list.len() > DEPLOYMENTS_MAX {
        let count = list.len();
        return Err(format!(
            "{path}:{}: model_list has {count} entries, at most {DEPLOYMENTS_MAX} are read",
            entry.line
        ));
    }
    let mut deployments = Vec::new();
    for (index, node) in list.iter().enumerate() {
        let path = format!("model_list[{index}]");
        if node.entries().is_empty() {
            account.item(&path, node, Outcome::NotSupported, "is no entry with model_name and litellm_params");
        }
        deployments.extend(deployment::read(&path, node, account));
    }
    Ok(deployments)
}

fn variables(entry: &Entry, account: &mut Account) {
    for variable in entry.node.entries() {
        let said = "not copied: set it in the environment of the process";
        account.note_hidden("environment_variables", variable, Outcome::NotTaken, said);
    }
}
