//! What agents are called, and by which names of models clients go on asking for them: each means one agent only.

use std::collections::{BTreeMap, BTreeSet};

use super::{account::Account, general::General};
use crate::{
    cli::import::finding::Outcome,
    model::name::{NAME_BYTES_MAX, Name},
    settings::agent::{MODEL_NAME_BYTES_MAX, MODEL_NAMES_MAX},
};

/// An agent's name, and the names of models that mean it beside its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Called {
    pub(super) agent: String,
    pub(super) model_names: Vec<String>,
}

/// How the agents of these names of models are called, in the same order.
pub(super) fn called(models: &[&str], general: &General, account: &mut Account) -> Vec<Called> {
    // Who can keep a name keeps it, also where another one's would be changed into it before.
    let mut taken: BTreeSet<String> =
        models.iter().filter(|model| Name::try_new(model).is_ok()).map(|model| (*model).to_owned()).collect();
    let mut all: Vec<Called> = Vec::new();
    let mut agents: BTreeMap<&str, usize> = BTreeMap::new();
    for model in models {
        let agent = if taken.contains(*model) { (*model).to_owned() } else { fitting_name(model, &mut taken, account) };
        let keeps = agent != *model && model.len() <= MODEL_NAME_BYTES_MAX;
        agents.insert(model, all.len());
        all.push(Called { agent, model_names: keeps.then(|| (*model).to_owned()).into_iter().collect() });
    }
    let mut known: BTreeSet<String> = models.iter().map(|model| (*model).to_owned()).collect();
    known.extend(all.iter().map(|called| called.agent.clone()));
    for alias in &general.aliases {
        let name = &alias.entry.key;
        let (outcome, said) = match agents.get(alias.model.as_str()).and_then(|index| all.get_mut(*index)) {
            None => (Outcome::NotTaken, "means a model that is not in the list, or was left out".to_owned()),
            Some(_) if name.is_empty() || name.len() > MODEL_NAME_BYTES_MAX => {
                (Outcome::NotTaken, format!("a name has 1 to {MODEL_NAME_BYTES_MAX} bytes"))
            }
            Some(called) if called.model_names.len() >= MODEL_NAMES_MAX => {
                (Outcome::NotTaken, format!("agents.{} has {MODEL_NAMES_MAX} names already", called.agent))
            }
            Some(_) if !known.insert(name.clone()) => (Outcome::NotTaken, "is the name of a model already".to_owned()),
            Some(called) => {
                called.model_names.push(name.clone());
                (Outcome::Taken, format!("agents.{}.model_names", called.agent))
            }
        };
        account.note(&alias.path, &alias.entry, outcome, said);
    }
    all
}

/// A name of ours for a model's name that is none.
fn fitting_name(model: &str, taken: &mut BTreeSet<String>, account: &mut Account) -> String {
    let fitting: String = model
        .chars()
        .map(|letter| if letter.is_ascii_alphanumeric() || "-_.".contains(letter) { letter } else { '-' })
        .take(NAME_BYTES_MAX - 5)
        .collect();
    let fitting = fitting.trim_start_matches(['-', '_', '.']);
    let name = unique(if fitting.is_empty() { "agent" } else { fitting }, '-', taken);
    let shown: String = model.chars().take(NAME_BYTES_MAX).collect();
    let known = if model.len() <= MODEL_NAME_BYTES_MAX { "; model_names keeps the other" } else { "" };
    let said = format!("agents.{name}: names have ASCII letters, digits, '-', '_' and '.' only{known}");
    account.silent(&shown, said);
    name
}

/// `base`, or with a number where it is taken.
pub(super) fn unique(base: &str, join: char, taken: &mut BTreeSet<String>) -> String {
    let mut name = base.to_owned();
    let mut number = 2;
    while !taken.insert(name.clone()) {
        let stem: String = base.chars().take(NAME_BYTES_MAX - 5).collect();
        name = format!("{stem}{join}{number}");
        number += 1;
    }
    name
}
