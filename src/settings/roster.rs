//! Providers and agents as they are configured: who is there, and on whom each agent leans. An agent whose provider is not known is read
//! all the same: what is wrong with it beside that is told in the same go.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use super::{
    agent::{Agent, Surroundings, read_agent},
    agent_backend::{Files, HTTP_KEYS},
    folder::{AgentFolder, MANIFEST},
    ladder::named_in_ladders,
    layers::merge,
    load::{EMBEDDED_PROVIDER, ENTRIES_MAX, Sources, Wanted},
    node::{Node, Table, Value, key_path},
    problem::{Origin, Problem},
    provider::{Kind, ReadProvider, implicit_embedded, read_provider},
    reader::Fit,
    report::Report,
    targets::{fitting_targets, take_targets},
};
use crate::model::{name::Name, nearest::nearest};

/// Checks a table's own key as a name and its value as a table.
fn named<'t>(section: &str, key: &str, node: &'t Node, report: &mut Report) -> Option<(Name, &'t Table)> {
    let refuse = |rule: String| Problem {
        origin: node.origin.clone(),
        key: key_path(section, key),
        value: Some(node.shown(key)),
        rule,
    };
    match (Name::try_new(key), node.as_table()) {
        (Ok(name), Some(table)) => Some((name, table)),
        (Err(error), _) => {
            report.tell(refuse(error.to_string()));
            None
        }
        (Ok(_), None) => {
            report.tell(refuse("must be a table".to_owned()));
            None
        }
    }
}

/// Refuses a table with more entries than are read.
fn refuse_crowd(section: &str, table: &Table, report: &mut Report) {
    if table.len() > ENTRIES_MAX {
        let origin = table.values().map(|node| node.origin.clone()).min().unwrap_or(Origin::Default);
        let rule = format!("has {} entries, at most {ENTRIES_MAX} are allowed", table.len());
        report.tell(Problem { origin, key: section.to_owned(), value: None, rule });
    }
}

/// Reads all providers; the embedded one is there where none is configured.
pub(super) fn read_providers(
    table: &Table,
    defaults: &Table,
    folder: &Path,
    report: &mut Report,
) -> BTreeMap<Name, ReadProvider> {
    refuse_crowd("providers", table, report);
    let mut providers = BTreeMap::new();
    for (key, node) in table.iter().take(ENTRIES_MAX) {
        if let Some((name, own)) = named("providers", key, node, report) {
            let read = read_provider(name.clone(), own, node.origin.clone(), defaults, folder, report);
            providers.insert(name, read);
        }
    }
    if providers.is_empty() && table.is_empty() {
        add_embedded(&mut providers, defaults, report);
    }
    providers
}

fn add_embedded(providers: &mut BTreeMap<Name, ReadProvider>, defaults: &Table, report: &mut Report) {
    if let Ok(name) = Name::try_new(EMBEDDED_PROVIDER) {
        providers.insert(name.clone(), implicit_embedded(name, defaults, report));
    }
}

/// Whether it is known where an agent's work is done: else nothing can be said of its providers because of it.
pub(super) fn is_placed(agent: &Agent, report: &Report) -> bool {
    let path = key_path("agents", agent.settings.name.as_str());
    report.is_sound(&key_path(&path, "provider")) && report.is_whole(&key_path(&path, "targets"))
}

/// What has been read when the agents' turn comes.
pub(super) struct Roster<'a> {
    sources: &'a Sources<'a>,
    defaults: &'a Table,
    /// The providers that the configuration names. An agent that leans on the embedded one by itself must not make a second of it.
    named: Vec<Name>,
    pub(super) providers: BTreeMap<Name, ReadProvider>,
}

impl<'a> Roster<'a> {
    /// With these providers, and nobody yet who leans on them.
    pub(super) fn new(sources: &'a Sources<'a>, defaults: &'a Table, providers: BTreeMap<Name, ReadProvider>) -> Self {
        Self { sources, defaults, named: providers.keys().cloned().collect(), providers }
    }

    /// Reads the agents that are wanted.
    pub(super) fn read_agents(&mut self, table: &Table, report: &mut Report) -> Vec<Agent> {
        let mut wanted: BTreeSet<&str> = BTreeSet::new();
        let guaranteed: Vec<Name> = self
            .providers
            .values()
            .flat_map(|read| &read.provider.settings.guaranteed)
            .map(|(name, _)| name.clone())
            .collect();
        match &self.sources.wanted {
            Wanted::All => wanted.extend(table.keys().map(String::as_str)),
            Wanted::Named(names) => wanted.extend(names.iter().chain(&guaranteed).map(Name::as_str)),
        }
        let in_ladders = named_in_ladders(table);
        wanted.extend(in_ladders.iter().map(String::as_str));
        let mut agents = Vec::new();
        refuse_crowd("agents", table, report);
        for (key, node) in table.iter().take(ENTRIES_MAX) {
            // A folder's agent that nobody wrote about is there if it is wanted.
            let is_written = node.origin != Origin::Default || node.as_table().is_none_or(|own| !own.is_empty());
            if !is_written && !wanted.contains(key.as_str()) {
                continue;
            }
            if let Some((name, own)) = named("agents", key, node, report) {
                agents.extend(self.read_one(&name, own, &node.origin, report));
            }
        }
        agents
    }

    fn read_one(&mut self, name: &Name, own: &Table, place: &Origin, report: &mut Report) -> Option<Agent> {
        let is_written = *place != Origin::Default || !own.is_empty();
        let path = key_path("agents", name.as_str());
        let folder = self.sources.agent_folders.iter().find(|folder| folder.name == *name);
        if let Some(problem) = folder.and_then(|folder| folder.problem.clone()) {
            report.tell(problem);
            report.doubt(path);
            return None;
        }
        let mut table = match folder.map(AgentFolder::manifest) {
            Some(Ok(manifest)) => manifest,
            Some(Err(problems)) => {
                report.tell_all(problems);
                // What it would have said is not known.
                report.doubt(path.clone());
                Table::new()
            }
            None => Table::new(),
        };
        merge(&mut table, own.clone());
        let place = match (place, folder) {
            (Origin::Default, Some(folder)) => Origin::File { path: folder.file_path(MANIFEST), line: 0 },
            _ => place.clone(),
        };
        let targets = take_targets(name, &mut table, report);
        let rank = targets.rank;
        let provider = self.provider_of(&targets.provider_key, &table, &place, is_written, report);
        let targets = fitting_targets(&self.providers, targets, report);
        let read = provider.as_ref().and_then(|provider| self.providers.get(provider));
        let files = Files { folder, read: self.sources.read_file };
        let (defaults, twins) = (self.defaults, self.sources.embedded);
        let agent = if let Some(provider) = read
            && let Some(kind) = provider.kind
        {
            let around = Surroundings { defaults, provider, kind, fit: Fit::Known, files, twins };
            read_agent(name, &table, place, &around, report)
        } else {
            report.doubt(key_path(&path, "provider"));
            let provider = unknown_provider(self.defaults)?;
            // Keys of both are not for one agent: the rest is read as that which has more of them.
            let is_http = table.keys().any(|key| HTTP_KEYS.contains(&key.as_str()));
            let kind = if is_http { Kind::Http } else { Kind::OpenAi };
            let around = Surroundings { defaults, provider: &provider, kind, fit: Fit::Unknown, files, twins };
            read_agent(name, &table, place, &around, report)
        };
        Some(Agent { rank, targets, ..agent })
    }

    /// The agent's provider: the one it names at `key`, else the only one, else the embedded one. `None` where that is wrong or not known.
    fn provider_of(
        &mut self,
        key: &str,
        table: &Table,
        place: &Origin,
        is_written: bool,
        report: &mut Report,
    ) -> Option<Name> {
        let names: Vec<&str> = self.named.iter().map(Name::as_str).collect();
        let problem =
            |origin: &Origin, value, rule: String| Problem { origin: origin.clone(), key: key.to_owned(), value, rule };
        let chosen = match table.get("provider") {
            Some(node) => {
                let value = Some(node.shown("provider"));
                let Value::Text(text) = &node.value else {
                    let rule = "must be the name of a provider, in quotes".to_owned();
                    report.tell(problem(&node.origin, value, rule));
                    return None;
                };
                if !names.contains(&text.as_str()) && text != EMBEDDED_PROVIDER {
                    if report.is_sound(&key_path("providers", text)) {
                        let near = nearest(text, names.iter().copied());
                        let near = near.map(|near| format!(", did you mean `{near}`?"));
                        let rule = format!("there is no such provider{}", near.unwrap_or_default());
                        report.tell(problem(&node.origin, value, rule));
                    }
                    return None;
                }
                text.clone()
            }
            // Which there are is not known.
            None if !report.is_sound("providers") => return None,
            None if names.len() == 1 => names[0].to_owned(),
            None if is_written && names.len() > 1 => {
                let rule = format!("must be set, as there are several providers: {}", names.join(", "));
                report.tell(problem(place, None, rule));
                return None;
            }
            None => EMBEDDED_PROVIDER.to_owned(),
        };
        let name = Name::try_new(&chosen).ok()?;
        if !self.providers.contains_key(&name) {
            add_embedded(&mut self.providers, self.defaults, report);
        }
        Some(name)
    }
}

/// Stands for a provider that is not known, so that the rest of its agent can be read.
fn unknown_provider(defaults: &Table) -> Option<ReadProvider> {
    let name = Name::try_new("unknown").ok()?;
    // What is wrong with the defaults is told where they are read.
    Some(implicit_embedded(name, defaults, &mut Report::default()))
}
