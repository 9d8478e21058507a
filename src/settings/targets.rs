//! `targets` of an agent: the places where its work can be done, in order or shared by weight. `provider` and `model` alone are one
//! target; a list replaces them.

use std::collections::BTreeMap;

use crate::{model::name::Name, policy::fallback::Rank};

use super::{
    node::{Node, Table, Value, key_path},
    problem::Problem,
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

/// Takes `targets` out of an agent's table: its first entry becomes `provider` and `model`, the others are returned with the first
/// one's rank. Without a weight anywhere the list's order is the order; with one, all without an `order` are equals.
pub(super) fn take_targets(agent: &Name, table: &mut Table, report: &mut Report) -> (Rank, Vec<Target>) {
    let Some(node) = table.remove("targets") else { return (ALONE, Vec::new()) };
    let path = key_path(&key_path("agents", agent.as_str()), "targets");
    let refuse = |report: &mut Report, key: String, node: &Node, rule: &str| {
        let value = Some(node.shown("targets"));
        report.problems.push(Problem { origin: node.origin.clone(), key, value, rule: rule.to_owned() });
    };
    let Value::List(entries) = &node.value else {
        refuse(report, path, &node, "must be a list of { provider, model, order, weight }");
        return (ALONE, Vec::new());
    };
    if entries.is_empty() || entries.len() > TARGETS_MAX {
        refuse(report, path, &node, "must have 1 to 16 entries");
        return (ALONE, Vec::new());
    }
    let weighted = entries.iter().any(|entry| entry.as_table().is_some_and(|entry| entry.contains_key("weight")));
    let mut read: Vec<(Node, Option<Node>, Target)> = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        let key = format!("{path}[{index}]");
        match read_entry(entry, if weighted { 0 } else { index }) {
            Ok(found)
                if read
                    .iter()
                    .any(|(_, _, known)| (&known.provider, &known.model) == (&found.2.provider, &found.2.model)) =>
            {
                refuse(report, key, entry, "names the same provider and model as one before it");
            }
            Ok(found) => {
                let shown = format!("{} order {} weight {}", found.2.provider, found.2.rank.order, found.2.rank.weight);
                report.explain(key, shown, entry.origin.clone());
                read.push(found);
            }
            Err(rule) => refuse(report, key, entry, rule),
        }
    }
    let mut read = read.into_iter();
    let Some((provider, model, first)) = read.next() else { return (ALONE, Vec::new()) };
    table.insert("provider".to_owned(), provider);
    match model {
        Some(model) => table.insert("model".to_owned(), model),
        None => table.remove("model"),
    };
    (first.rank, read.map(|(_, _, target)| target).collect())
}

fn read_entry(entry: &Node, place: usize) -> Result<(Node, Option<Node>, Target), &'static str> {
    let table = entry.as_table().ok_or("must be a table, as in { provider = \"a\", model = \"x\" }")?;
    if table.keys().any(|key| !["provider", "model", "order", "weight"].contains(&key.as_str())) {
        return Err("knows only provider, model, order and weight");
    }
    let text = |key: &str| match table.get(key) {
        None => Ok(None),
        Some(node @ Node { value: Value::Text(text), .. }) if !text.is_empty() => {
            Ok(Some((node.clone(), text.clone())))
        }
        Some(_) => Err("provider and model must be texts in quotes"),
    };
    let number = |key: &str, min: i64, default: u32| match table.get(key).map(|node| &node.value) {
        None => Ok(default),
        Some(Value::Integer(number)) if (min..=RANK_MAX).contains(number) => {
            Ok(u32::try_from(*number).unwrap_or(default))
        }
        Some(_) => Err("order must be a whole number from 0 to 1000, weight one from 1 to 1000"),
    };
    let (provider_node, provider) = text("provider")?.ok_or("must name a provider")?;
    let provider = Name::try_new(&provider).map_err(|_| "must name a provider")?;
    let (model_node, model) = text("model")?.map_or((None, None), |(node, text)| (Some(node), Some(text)));
    let order = number("order", 0, u32::try_from(place).unwrap_or(u32::MAX))?;
    let weight = number("weight", 1, 1)?;
    Ok((provider_node, model_node, Target { provider, model, rank: Rank { order, weight } }))
}

/// Further targets whose providers are there and of the first one's kind, with their models.
pub(super) fn fitting_targets(
    agent: &Name,
    providers: &BTreeMap<Name, ReadProvider>,
    first: &Name,
    targets: Vec<Target>,
    report: &mut Report,
) -> Vec<Target> {
    let path = key_path(&key_path("agents", agent.as_str()), "targets");
    let kind = providers.get(first).and_then(|read| read.kind);
    let mut fitting = Vec::new();
    for (index, target) in targets.into_iter().enumerate() {
        let read = providers.get(&target.provider);
        let model =
            target.model.clone().or_else(|| read.and_then(|read| read.model.as_ref().map(|(model, _)| model.clone())));
        let needs_model = read.is_some_and(|read| read.kind == Some(Kind::OpenAi) && read.flavor != Flavor::LlamaCpp);
        let rule = match read {
            None => "names a provider that is not there",
            Some(read) if read.kind != kind => "must lean on a provider of the first target's kind",
            Some(read) if read.kind == Some(Kind::Embedded) => "must not be embedded: there is only one such place",
            Some(_) if needs_model && model.is_none() => "must name a model",
            Some(_) => {
                fitting.push(Target { model, ..target });
                continue;
            }
        };
        let key = format!("{path}[{}]", index + 1);
        let origin = report.origin_of(&key);
        let value = Some(target.provider.to_string());
        report.problems.push(Problem { origin, key, value, rule: rule.to_owned() });
    }
    fitting
}
