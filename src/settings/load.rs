//! From layers of text to checked settings: the one entry. Everything that is wrong is found in one go; a configuration with one
//! mistake is refused as a whole and changes nothing.

use crate::model::nearest::nearest;
use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::{
    model::name::Name,
    policy::compartment::settings::CompartmentSettings,
    runtime::{callers::CallerSettings, ladders::Ladders},
};

use super::{
    agent::{Agent, Surroundings, read_agent, read_defaults},
    agent_backend::Files,
    between::{may_be_compared, tell_all},
    capture::{CaptureTable, read_capture},
    compartment_rules::check_compartments,
    compartments::read_compartments,
    deferred::{DeferredTable, read_deferred},
    effect_rules::check_effects,
    files::{FilesTable, read_files},
    folder::{AgentFolder, ConfigFile},
    general::{Limits, RunSettings, read_instances, read_limits, read_run},
    guards::{divide_guards, read_volume_guard},
    journal::{JournalTable, read_journal},
    keys::{KeySettings, check_keys, read_keys},
    ladder::named_in_ladders,
    layers::merge,
    lighter::settle_ladders,
    node::{Node, Table, Value, key_path},
    priorities::read_priorities,
    probe_rules::check_probes,
    problem::{Origin, Problem, SettingsError},
    provider::{Provider, ReadProvider, implicit_embedded, read_provider},
    reader::Reader,
    report::{ExplainRow, Report},
    serve::{ServeSettings, read_serve},
    spending::{SpendingTable, check_prices, read_spending},
    targets::{fitting_targets, take_targets},
    tree::{LATER, lay_over},
    whole::check_whole,
};

/// The most agents, and the most providers.
pub const ENTRIES_MAX: usize = 10_000;
/// The provider that is there without being configured.
pub const EMBEDDED_PROVIDER: &str = "embedded";

/// Which of the agents that have a folder but are not configured are there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    /// All.
    All,
    /// These: the ones that a workflow names.
    Named(Vec<Name>),
}

/// Everything that settings are made of. Nothing is read from the process itself.
pub struct Sources<'a> {
    /// `watertight.toml`, if there is one.
    pub config: Option<&'a ConfigFile>,
    /// The folder that relative paths of `api_key_file` start from.
    pub folder: &'a Path,
    /// Agents' folders; of two with one name the first counts.
    pub agent_folders: &'a [AgentFolder],
    /// The environment; only names with `WATERTIGHT_` are looked at.
    pub environment: &'a BTreeMap<String, String>,
    /// `key=value` flags.
    pub flags: &'a [String],
    /// The embedded agents that this program has.
    pub embedded: &'a [Name],
    /// Which agents are there.
    pub wanted: Wanted,
    /// Reads a file that the configuration names (a prompt, a schema); the error is a sentence's end.
    pub read_file: &'a dyn Fn(&str) -> Result<Vec<u8>, String>,
}

/// Checked settings.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Providers, by name.
    pub providers: Vec<Provider>,
    /// Agents, by name.
    pub agents: Vec<Agent>,
    /// How callers are guarded.
    pub callers: CallerSettings,
    /// How runs go.
    pub run: RunSettings,
    /// What is accepted at most.
    pub limits: Limits,
    /// How the service serves.
    pub serve: ServeSettings,
    /// Who may use it; none = whoever reaches it.
    pub keys: Vec<KeySettings>,
    /// Nodes that share this configuration; counts are already divided by it.
    pub instances: u32,
    /// Where runs are written down.
    pub journal: JournalTable,
    /// What is taken of files.
    pub files: FilesTable,
    /// Which attempts are kept word for word.
    pub capture: CaptureTable,
    /// What models cost, and what an answer is taken for.
    pub spending: SpendingTable,
    /// What refused and failed calls try next.
    pub ladders: Ladders,
    /// How calls are put off.
    pub deferred: DeferredTable,
    /// Who is counted as whom, and how much each may take.
    pub compartments: CompartmentSettings,
    /// What is odd but holds.
    pub warnings: Vec<Problem>,
    /// Files that hold secrets: who looks at the configuration's files looks at these too.
    pub secret_files: BTreeSet<PathBuf>,
    explained: Vec<ExplainRow>,
}

impl Settings {
    /// The agent by this name.
    pub fn agent(&self, name: &str) -> Option<&Agent> {
        self.agents.iter().find(|agent| agent.settings.name.as_str() == name)
    }

    /// The provider by this name.
    pub fn provider(&self, name: &str) -> Option<&Provider> {
        self.providers.iter().find(|provider| provider.settings.name.as_str() == name)
    }
}

/// Every effective value and where it came from, by key.
pub fn explain(settings: &Settings) -> Vec<ExplainRow> {
    settings.explained.clone()
}

/// Makes checked settings of `sources`, or says everything that is wrong with them.
pub fn load(sources: &Sources<'_>) -> Result<Settings, SettingsError> {
    let mut report = Report::default();
    let root = lay_over(sources, &mut report)?;
    let mut reader = Reader::new(&root, place_of_all(sources), "", "", &mut report);
    let defaults = reader.entries("defaults");
    let providers = reader.entries("providers");
    let agents = reader.entries("agents");
    let run = read_run(&mut reader);
    let limits = read_limits(&mut reader);
    let instances = read_instances(&mut reader);
    let journal = read_journal(&mut reader);
    let files = read_files(&mut reader);
    let capture = read_capture(&mut reader);
    let deferred = read_deferred(&mut reader, sources.folder);
    let serve = read_serve(&mut reader);
    let mut keys = read_keys(&mut reader, sources.folder);
    let spending = read_spending(&mut reader);
    let mut callers = read_volume_guard(&mut reader);
    let mut compartments = read_counted(&mut reader, &mut keys);
    reader.finish(&LATER);
    check_keys(&keys, &root, &mut report.problems);
    read_defaults(defaults, place_of(&root, "defaults"), &mut report);
    let providers = read_providers(providers, defaults, sources.folder, &mut report);
    let mut found = Found { sources, defaults, named: providers.keys().cloned().collect(), providers };
    let mut agents = found.read_agents(agents, &mut report);
    let ladders = settle_ladders(&mut agents, &root, &found.providers, &mut report);
    let mut providers: Vec<Provider> = found.providers.into_values().map(|read| read.provider).collect();
    let told = std::mem::take(&mut report.problems);
    if may_be_compared(&told) {
        check_whole(&mut providers, &mut agents, instances, &mut report);
        divide_guards(&mut providers, &mut callers, instances, &mut report);
        check_compartments(&mut compartments, &providers, (&keys, &agents), instances, &mut report);
        check_probes(&providers, &agents, &spending, &mut report);
        check_prices(&root, &spending, &providers, &mut report);
        check_effects(&root, (&compartments, &keys, &deferred, &ladders, &spending, &run), sources, &mut report);
    }
    tell_all(told, &mut report)?;
    let warnings = each_once(std::mem::take(&mut report.warnings));
    Ok(Settings {
        providers,
        agents,
        run,
        limits,
        serve,
        journal,
        files,
        capture,
        spending,
        ladders,
        deferred,
        compartments,
        keys,
        callers,
        instances,
        warnings,
        secret_files: std::mem::take(&mut report.secret_files),
        explained: report.rows(),
    })
}

/// Compartments with their classes; each key's highest class stands in the order of these.
fn read_counted(root: &mut Reader<'_, '_>, keys: &mut [KeySettings]) -> CompartmentSettings {
    let mut compartments = read_compartments(root);
    (compartments.classes, compartments.shedding) = read_priorities(root);
    for key in keys {
        key.priority_max = key.priority_max.in_order(&compartments.classes.order);
    }
    compartments
}

/// In their order, and none of them twice.
fn each_once(mut warnings: Vec<Problem>) -> Vec<Problem> {
    warnings.sort();
    warnings.dedup();
    warnings
}

/// Where the whole of it stands.
fn place_of_all(sources: &Sources<'_>) -> Origin {
    sources.config.map_or(Origin::Default, |file| Origin::File { path: Arc::from(file.path.as_str()), line: 0 })
}

/// Where a table stands.
fn place_of(root: &Table, key: &str) -> Origin {
    root.get(key).map_or(Origin::Default, |node| node.origin.clone())
}

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
            report.problems.push(refuse(error.to_string()));
            None
        }
        (Ok(_), None) => {
            report.problems.push(refuse("must be a table".to_owned()));
            None
        }
    }
}

/// Refuses a table with more entries than are read.
fn refuse_crowd(section: &str, table: &Table, report: &mut Report) {
    if table.len() > ENTRIES_MAX {
        let origin = table.values().map(|node| node.origin.clone()).min().unwrap_or(Origin::Default);
        let rule = format!("has {} entries, at most {ENTRIES_MAX} are allowed", table.len());
        report.problems.push(Problem { origin, key: section.to_owned(), value: None, rule });
    }
}

fn read_providers(table: &Table, defaults: &Table, folder: &Path, report: &mut Report) -> BTreeMap<Name, ReadProvider> {
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

/// What has been read when the agents' turn comes.
struct Found<'a> {
    sources: &'a Sources<'a>,
    defaults: &'a Table,
    /// The providers that the configuration names. An agent that leans on the embedded one by itself must not make a second of it.
    named: Vec<Name>,
    providers: BTreeMap<Name, ReadProvider>,
}

impl Found<'_> {
    fn read_agents(&mut self, table: &Table, report: &mut Report) -> Vec<Agent> {
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
        let folder = self.sources.agent_folders.iter().find(|folder| folder.name == *name);
        let mut table = match folder.map(AgentFolder::manifest) {
            Some(Ok(manifest)) => manifest,
            Some(Err(problems)) => {
                report.problems.extend(problems);
                return None;
            }
            None => Table::new(),
        };
        merge(&mut table, own.clone());
        let place = match (place, folder) {
            (Origin::Default, Some(folder)) => {
                Origin::File { path: folder.file_path(super::folder::MANIFEST), line: 0 }
            }
            _ => place.clone(),
        };
        let targets = take_targets(name, &mut table, report);
        let rank = targets.rank;
        let provider = self.provider_of(targets.provider_key.clone(), &table, &place, is_written, report)?;
        let targets = fitting_targets(&self.providers, targets, report);
        let read = self.providers.get(&provider)?;
        let around = Surroundings {
            defaults: self.defaults,
            provider: read,
            // Without a kind no key can be judged; the provider's own problem is told already.
            kind: read.kind?,
            files: Files { folder, read: self.sources.read_file },
            twins: self.sources.embedded,
        };
        let agent = read_agent(name, &table, place, &around, report);
        Some(Agent { rank, targets, ..agent })
    }

    /// The agent's provider: the one it names at `key`, else the only one, else the embedded one.
    fn provider_of(
        &mut self,
        key: String,
        table: &Table,
        place: &Origin,
        is_written: bool,
        report: &mut Report,
    ) -> Option<Name> {
        let names: Vec<&str> = self.named.iter().map(Name::as_str).collect();
        let chosen = match table.get("provider") {
            Some(node) => {
                let Value::Text(text) = &node.value else {
                    let value = Some(node.shown("provider"));
                    let rule = "must be the name of a provider, in quotes".to_owned();
                    report.problems.push(Problem { origin: node.origin.clone(), key, value, rule });
                    return None;
                };
                if !names.contains(&text.as_str()) && text != EMBEDDED_PROVIDER {
                    let suggestion =
                        nearest(text, names.iter().copied()).map(|near| format!(", did you mean `{near}`?"));
                    let rule = format!("there is no such provider{}", suggestion.unwrap_or_default());
                    let value = Some(node.shown("provider"));
                    report.problems.push(Problem { origin: node.origin.clone(), key, value, rule });
                    return None;
                }
                text.clone()
            }
            None if names.len() == 1 => names[0].to_owned(),
            None if is_written && names.len() > 1 => {
                let rule = format!("must be set, as there are several providers: {}", names.join(", "));
                report.problems.push(Problem { origin: place.clone(), key, value: None, rule });
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
