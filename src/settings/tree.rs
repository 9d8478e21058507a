//! All layers in one tree: the agents' folders by name, the file, the environment, flags. Judges no value.

use std::{collections::BTreeSet, sync::Arc};

use super::{
    layers::{merge, merge_environment, merge_flags},
    load::Sources,
    node::{Layer, Node, Table, Value, parse_file},
    problem::{Origin, SettingsError},
    report::Report,
};
use crate::model::name::Name;

/// The tables that are built.
const TABLES: [&str; 21] = [
    "agents",
    "budgets",
    "capture",
    "compartments",
    "defaults",
    "deferred",
    "features",
    "files",
    "journal",
    "keys",
    "limits",
    "node",
    "places",
    "prices",
    "priorities",
    "providers",
    "run",
    "serve",
    "tenants",
    "tiers",
    "volume_guard",
];
/// Tables that later versions know.
pub(super) const LATER: [&str; 7] = ["adaptive", "callers", "cluster", "logs", "metrics", "quotas", "rollout"];

/// The names of all agents that there are, configured or with a folder. Whether any of them can be one is not looked at.
pub fn agent_names(sources: &Sources<'_>) -> Result<BTreeSet<Name>, SettingsError> {
    let root = lay_over(sources, &mut Report::default())?;
    let agents = root.get("agents").and_then(Node::as_table);
    Ok(agents.into_iter().flat_map(Table::keys).filter_map(|name| Name::try_new(name).ok()).collect())
}

/// File, environment and flags in one tree. Names of agents with folders are in it beforehand, so that variables can mean them.
pub(super) fn lay_over(sources: &Sources<'_>, report: &mut Report) -> Result<Table, SettingsError> {
    let known = sources.agent_folders.iter().map(|folder| (folder.name.as_str().to_owned(), unwritten(Table::new())));
    let mut root = Table::from([("agents".to_owned(), unwritten(known.collect()))]);
    if let Some(file) = sources.config {
        let parsed = parse_file(&Arc::from(file.path.as_str()), &file.bytes, Layer::Config);
        merge(&mut root, parsed.map_err(SettingsError::new)?);
    }
    report.warnings.extend(merge_environment(&mut root, sources.environment, &TABLES));
    report.problems.extend(merge_flags(&mut root, sources.flags));
    if let Some(defaults) = root.get_mut("defaults") {
        defaults.mark(Layer::Defaults);
    }
    Ok(root)
}

fn unwritten(table: Table) -> Node {
    Node { value: Value::Table(table), origin: Origin::Default, layer: Layer::Config }
}
