//! `targets` of an agent: the places where its work can be done, in order or shared by weight. `provider` and `model` alone are one
//! target; a list replaces them.

use std::collections::BTreeMap;

use crate::{
    model::{name::Name, nearest::nearest},
    policy::fallback::Rank,
};

use super::{
    node::{Layer, Node, Table, Value, key_path},
    problem::{Origin, Problem},
    provider::{Flavor, Kind, ReadProvider},
    report::Report,
};

/// The most targets of an agent.
pub const TARGETS_MAX: usize = 16;
/// The largest weight, and the largest order.
const RANK_MAX: i64 = 1_000;

/// A further target as configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The provider.
    pub provider: Name,
    /// The model there; `None` = the provider's.
    pub model: Option<String>,
    /// When it is asked.
    pub rank: Rank,
}

/// The rank of an agent with one target.
pub(super) const ALONE: Rank = Rank { order: 0, weight: 1 };
/// What an entry of the list may say.
const ENTRY_KEYS: [&str; 4] = ["provider", "model", "order", "weight"];

/// The list as it was read, before its providers are looked at.
#[derive(Debug)]
pub(super) struct ReadTargets {
    /// The first one's rank.
    pub(super) rank: Rank,
    /// Where the agent's provider is named: `agents.X.provider`, or inside the list.
    pub(super) provider_key: String,
    /// The whole list with where each stands; empty without a list.
    entries: Vec<Entry>,
}

/// One entry of the list.
#[derive(Debug)]
struct Entry {
    key: String,
    origin: Origin,
    provider: Node,
    model: Option<Node>,
    target: Target,
}

/// What is wrong with a part of an entry.
struct Wrong<'a> {
    /// The entry's own key; `None` = the entry as a whole.
    key: Option<&'a str>,
    node: &'a Node,
    rule: String,
}

fn refuse(report: &mut Report, key: String, node: &Node, rule: impl Into<String>) {
    let value = Some(node.shown(&key));
    report.tell(Problem { origin: node.origin.clone(), key, value, rule: rule.into() });
}

/// Takes `targets` out of an agent's table: its first entry becomes `provider` and `model`. Without a weight anywhere the list's order
/// is the order; with one, all without an `order` are equals.
pub(super) fn take_targets(agent: &Name, table: &mut Table, report: &mut Report) -> ReadTargets {
    let agent_path = key_path("agents", agent.as_str());
    let mut read = ReadTargets { rank: ALONE, provider_key: key_path(&agent_path, "provider"), entries: Vec::new() };
    let Some(node) = table.remove("targets") else { return read };
    let path = key_path(&agent_path, "targets");
    refuse_both(&agent_path, table, &node, report);
    let Value::List(entries) = &node.value else {
        refuse(report, path, &node, "must be a list of { provider, model, order, weight }");
        return read;
    };
    if entries.is_empty() || entries.len() > TARGETS_MAX {
        let rule = format!("must have 1 to {TARGETS_MAX} entries, not {}", entries.len());
        refuse(report, path, &node, rule);
        return read;
    }
    let weighted = entries.iter().any(|entry| entry.as_table().is_some_and(|entry| entry.contains_key("weight")));
    for (index, entry) in entries.iter().enumerate() {
        let key = format!("{path}[{index}]");
        match read_entry(&key, entry, if weighted { 0 } else { index }) {
            Ok(found) => read.entries.push(found),
            Err(wrong) => {
                let key = wrong.key.map_or_else(|| key.clone(), |part| key_path(&key, part));
                refuse(report, key, wrong.node, wrong.rule);
            }
        }
    }
    if let Some(first) = read.entries.first() {
        read.rank = first.target.rank;
        read.provider_key = key_path(&first.key, "provider");
        table.insert("provider".to_owned(), first.provider.clone());
        match &first.model {
            Some(model) => table.insert("model".to_owned(), model.clone()),
            None => table.remove("model"),
        };
    }
    read
}

/// A place beside the list would be a second answer to one question. A manifest's own is replaced by the configuration's list.
fn refuse_both(agent_path: &str, table: &Table, targets: &Node, report: &mut Report) {
    for key in ["provider", "model"] {
        let Some(node) = table.get(key) else { continue };
        if node.layer == Layer::Manifest && targets.layer == Layer::Config {
            continue;
        }
        let rule = format!("stands beside targets ({}): keep the list or this, not both", targets.origin);
        refuse(report, key_path(agent_path, key), node, rule);
    }
}

fn read_entry<'a>(path: &str, entry: &'a Node, place: usize) -> Result<Entry, Wrong<'a>> {
    let whole = |rule: &str| Wrong { key: None, node: entry, rule: rule.to_owned() };
    let table = entry.as_table().ok_or_else(|| whole("must be a table, as in { provider = \"a\", model = \"x\" }"))?;
    if table.keys().any(|key| !ENTRY_KEYS.contains(&key.as_str())) {
        return Err(whole("knows only provider, model, order and weight"));
    }
    let text = |key: &'static str| match table.get(key) {
        None => Ok(None),
        Some(node) => match &node.value {
            Value::Text(text) if !text.is_empty() => Ok(Some((node, text))),
            _ => Err(Wrong { key: Some(key), node, rule: "must be a text in quotes, not empty".to_owned() }),
        },
    };
    let number = |key: &'static str, min: i64, default: u32| match table.get(key) {
        None => Ok(default),
        Some(node) => match node.value {
            Value::Integer(number) if (min..=RANK_MAX).contains(&number) => {
                Ok(u32::try_from(number).unwrap_or(default))
            }
            _ => Err(Wrong { key: Some(key), node, rule: format!("must be a whole number from {min} to {RANK_MAX}") }),
        },
    };
    let (provider_node, provider) = text("provider")?.ok_or_else(|| whole("must name a provider"))?;
    let provider = Name::try_new(provider).map_err(|error| Wrong {
        key: Some("provider"),
        node: provider_node,
        rule: error.to_string(),
    })?;
    let model = text("model")?;
    let order = number("order", 0, u32::try_from(place).unwrap_or(u32::MAX))?;
    let weight = number("weight", 1, 1)?;
    Ok(Entry {
        key: path.to_owned(),
        origin: entry.origin.clone(),
        provider: provider_node.clone(),
        model: model.map(|(node, _)| node.clone()),
        target: Target { provider, model: model.map(|(_, text)| text.clone()), rank: Rank { order, weight } },
    })
}

/// The targets after the first whose providers are there and of the first one's kind, with their models. Each place once.
pub(super) fn fitting_targets(
    providers: &BTreeMap<Name, ReadProvider>,
    read: ReadTargets,
    report: &mut Report,
) -> Vec<Target> {
    let kind = read.entries.first().and_then(|first| providers.get(&first.target.provider)).and_then(|read| read.kind);
    let mut fitting: Vec<(String, Origin, Target)> = Vec::new();
    for (index, entry) in read.entries.into_iter().enumerate() {
        let provider = providers.get(&entry.target.provider);
        let own_model = provider.and_then(|read| read.model.as_ref().map(|(model, _)| model.clone()));
        let target = Target { model: entry.target.model.clone().or(own_model), ..entry.target };
        let known =
            fitting.iter().find(|(_, _, known)| (&known.provider, &known.model) == (&target.provider, &target.model));
        let rule = match (provider, known) {
            (_, Some((key, origin, _))) => Some(format!("is the same provider and model as {key} ({origin})")),
            // Of the first one the agent's own reading tells the rest.
            _ if index == 0 => None,
            (provider, None) => unfit(providers, provider, kind, &target),
        };
        if let Some(rule) = rule {
            refuse(report, key_path(&entry.key, "provider"), &entry.provider, rule);
            continue;
        }
        let shown = match &target.model {
            Some(model) => format!("{}/{model}", target.provider),
            None => target.provider.to_string(),
        };
        let shown = format!("{shown} order {} weight {}", target.rank.order, target.rank.weight);
        report.explain(entry.key.clone(), shown, entry.origin.clone());
        fitting.push((entry.key, entry.origin, target));
    }
    fitting.into_iter().skip(1).map(|(_, _, target)| target).collect()
}

/// Why a further target cannot be one.
fn unfit(
    providers: &BTreeMap<Name, ReadProvider>,
    provider: Option<&ReadProvider>,
    kind: Option<Kind>,
    target: &Target,
) -> Option<String> {
    let Some(provider) = provider else {
        let near = nearest(target.provider.as_str(), providers.keys().map(Name::as_str));
        let near = near.map(|near| format!(", did you mean `{near}`?"));
        return Some(format!("there is no such provider{}", near.unwrap_or_default()));
    };
    let needs_model = provider.kind.is_some_and(Kind::has_models) && provider.flavor != Flavor::LlamaCpp;
    // One prompt is asked in either way.
    let both_have_models = provider.kind.is_some_and(Kind::has_models) && kind.is_some_and(Kind::has_models);
    let rule = if provider.kind != kind && !both_have_models {
        "must be of the first target's kind"
    } else if provider.kind == Some(Kind::Embedded) {
        "must not be embedded: there is only one such place"
    } else if needs_model && target.model.is_none() {
        "needs a model, here or as the provider's own"
    } else {
        return None;
    };
    Some(rule.to_owned())
}
