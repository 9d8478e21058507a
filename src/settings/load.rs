//! From layers of text to checked settings: the one entry. Everything that is wrong is found in one go; a configuration with one
//! mistake is refused as a whole and changes nothing.

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
    agent::{Agent, read_defaults},
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
    lighter::settle_ladders,
    node::Table,
    priorities::read_priorities,
    probe_rules::check_probes,
    problem::{Origin, Problem, SettingsError},
    provider::Provider,
    reader::Reader,
    report::{Doubts, ExplainRow, Report},
    roster::{Roster, read_providers},
    secret::SecretSource,
    serve::{ServeSettings, read_serve},
    spending::{SpendingTable, check_prices, read_spending},
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

/// Settings as far as they could be read, with everything that is wrong with them. While anything is, they are not to be used: only to
/// look for what else is wrong.
pub struct Examined {
    settings: Settings,
    problems: Vec<Problem>,
    doubts: Doubts,
    secrets: Vec<SecretSource>,
    /// Every key that was asked for.
    #[cfg(test)]
    pub(super) asked: BTreeSet<String>,
}

impl Examined {
    /// The settings as far as they could be read.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Whether the value of `key` was read as it was meant. Of others nothing can be said that is not said already.
    pub fn is_sound(&self, key: &str) -> bool {
        self.doubts.is_sound(key)
    }

    /// Whether that holds for `key` and for all below it.
    pub fn is_whole(&self, key: &str) -> bool {
        self.doubts.is_whole(key)
    }

    /// The secrets that they name.
    pub fn secrets(&self) -> &[SecretSource] {
        &self.secrets
    }

    /// Everything that is wrong with them.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// The settings, if nothing is wrong with them, and they may be used.
    pub fn checked(self) -> Result<Settings, SettingsError> {
        if self.problems.is_empty() { Ok(self.settings) } else { Err(SettingsError::new(self.problems)) }
    }
}

/// Makes checked settings of `sources`, or says everything that is wrong with them.
pub fn load(sources: &Sources<'_>) -> Result<Settings, SettingsError> {
    examine(sources).checked()
}

/// Reads `sources` as far as that goes, and finds everything that is wrong with them. A rule that compares values is left out for those
/// that are wrong already.
pub fn examine(sources: &Sources<'_>) -> Examined {
    let mut report = Report::default();
    let root = lay_over(sources, &mut report);
    let mut reader = Reader::new(&root, place_of_all(sources), "", "", &mut report);
    let defaults = reader.entries("defaults");
    let (providers, agents) = (reader.entries("providers"), reader.entries("agents"));
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
    check_keys(&keys, &root, &mut report);
    read_defaults(defaults, place_of(&root, "defaults"), &mut report);
    let providers = read_providers(providers, defaults, sources.folder, &mut report);
    let mut roster = Roster::new(sources, defaults, providers);
    let mut agents = roster.read_agents(agents, &mut report);
    let ladders = settle_ladders(&mut agents, &root, &roster.providers, &mut report);
    let mut providers: Vec<Provider> = roster.providers.into_values().map(|read| read.provider).collect();
    divide_guards(&mut providers, &mut callers, instances, &mut report);
    check_whole(&mut providers, &mut agents, instances, &mut report);
    check_compartments(&mut compartments, &providers, (&keys, &agents), instances, &mut report);
    check_probes(&providers, &agents, &spending, &mut report);
    check_prices(&root, &spending, &providers, &mut report);
    check_effects(&root, (&compartments, &keys, &deferred, &ladders, &spending, &run), sources, &mut report);
    let (problems, doubts) = report.take_problems();
    let secrets = std::mem::take(&mut report.secrets);
    #[cfg(test)]
    let asked = std::mem::take(&mut report.asked);
    let settings = Settings {
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
        warnings: each_once(std::mem::take(&mut report.warnings)),
        secret_files: std::mem::take(&mut report.secret_files),
        explained: report.rows(),
    };
    Examined {
        settings,
        problems: each_once(problems),
        doubts,
        secrets,
        #[cfg(test)]
        asked,
    }
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
