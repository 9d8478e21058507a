//! All layers in one tree: the agents' folders by name, the file, the environment, flags. Judges no value.

use std::{collections::BTreeSet, sync::Arc};

use super::{
    layers::{merge, merge_environment, merge_flags},
    load::Sources,
    node::{Layer, Node, Table, Value, parse_file},
    problem::{Origin, SettingsError},
    report::Report,
};
use crate::model::{name::Name, nearest::nearest};

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
    let mut report = Report::default();
    let root = lay_over(sources, &mut report);
    // A file that is no tree says nothing of anybody.
    if !report.is_sound("agents") {
        return Err(SettingsError::new(report.take_problems().0));
    }
    let agents = root.get("agents").and_then(Node::as_table);
    Ok(agents.into_iter().flat_map(Table::keys).filter_map(|name| Name::try_new(name).ok()).collect())
}

/// File, environment and flags in one tree. Names of agents with folders are in it beforehand, so that variables can mean them. Where the
/// file is no TOML, everything is in doubt: the tree is what there is beside it.
pub(super) fn lay_over(sources: &Sources<'_>, report: &mut Report) -> Table {
    let known = sources.agent_folders.iter().map(|folder| (folder.name.as_str().to_owned(), unwritten(Table::new())));
    let mut root = Table::from([("agents".to_owned(), unwritten(known.collect()))]);
    if let Some(file) = sources.config {
        match parse_file(&Arc::from(file.path.as_str()), &file.bytes, Layer::Config) {
            Ok(parsed) => merge(&mut root, parsed),
            Err(problems) => {
                report.tell_all(problems);
                report.doubt(String::new());
            }
        }
    }
    report.warnings.extend(merge_environment(&mut root, sources.environment, &TABLES));
    report.tell_all(merge_flags(&mut root, sources.flags));
    if let Some(defaults) = root.get_mut("defaults") {
        defaults.mark(Layer::Defaults);
    }
    for misspelt in root.keys().filter(|key| !TABLES.contains(&key.as_str()) && !LATER.contains(&key.as_str())) {
        // Said where the tree's end is reached; what refers to the table is in doubt until it is.
        if let Some(meant) = nearest(misspelt, TABLES).filter(|meant| is_unwritten(&root, meant)) {
            report.doubt(meant.to_owned());
        }
    }
    root
}

/// Whether nobody but us has put the table there.
fn is_unwritten(root: &Table, key: &str) -> bool {
    root.get(key).is_none_or(|node| node.origin == Origin::Default)
}

fn unwritten(table: Table) -> Node {
    Node { value: Value::Table(table), origin: Origin::Default, layer: Layer::Config }
}
