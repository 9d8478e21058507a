//! A project's folder: its configuration, its agents and its workflow, read and checked together.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use super::{
    args::ProjectArgs,
    deferral::check_steps,
    exit::Stop,
    faults::Faults,
    loaded_files::{Layer, Layers, Stamp, files_of_agents},
    secrets::wrong_secrets,
};
use crate::{
    agents::{bundled, embedded},
    model::name::Name,
    settings::{
        folder::{
            AgentFolder, ConfigFile, MANIFEST, PROMPT, SCHEMA, find_agent_folders, read_config_file, read_named_file,
        },
        layers::ENVIRONMENT_PREFIX,
        load::{Examined, Settings, Sources, Wanted, examine},
        problem::Problem,
        strangers::misspelt_agents,
        tree::agent_names,
    },
    workflow::{
        check::{Agents, load_for},
        checked::Workflow,
        definition::FILE_BYTES_MAX,
    },
};

/// Where a project has further workflows.
pub(super) const WORKFLOWS_FOLDER: &str = "workflows";
/// The most of them.
const WORKFLOWS_MAX: usize = 1_000;

/// What a project is read for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Runs in this process.
    Run,
    /// A service, with keys and webhooks.
    Serve,
}

/// What is read of a project.
pub(super) struct Project {
    pub(super) folder: PathBuf,
    config: Option<ConfigFile>,
    agent_folders: Vec<AgentFolder>,
    /// Of those, the ones of the project itself; they come first.
    own_folders: usize,
    /// What is wrong with folders that are nobody's.
    folder_problems: Vec<Problem>,
    embedded: Vec<Name>,
    environment: BTreeMap<String, String>,
    flags: Vec<String>,
    workflow: Option<PathBuf>,
    /// Files that the configuration or an agent's manifest names, as they were before they were read.
    named: Mutex<BTreeMap<PathBuf, Option<Stamp>>>,
}

impl Project {
    /// Reads the files of the project that `args` name. Nothing is checked yet.
    pub(super) fn read(args: &ProjectArgs) -> Result<Self, Stop> {
        let folder = args.folder.clone();
        if !folder.is_dir() {
            return Err(Stop::Usage(format!("{} is no folder", folder.display())));
        }
        let default_config = folder.join("watertight.toml");
        let config = match &args.config {
            Some(path) => Some(read_config_file(path).map_err(Stop::usage)?),
            None if is_there(&default_config)? => Some(read_config_file(&default_config).map_err(Stop::usage)?),
            None => None,
        };
        // Looked at before they are read: what changes meanwhile is taken up next.
        let stamps = files_of_agents(&folder);
        let (mut agent_folders, folder_problems) = find_agent_folders(&folder);
        let own_folders = agent_folders.len();
        let read = agent_folders.iter().flat_map(|agent| {
            agent.files_read().into_iter().map(|file| Path::new(&agent.origin).join(file)).collect::<Vec<_>>()
        });
        let named = read.map(|path| (path.clone(), stamps.get(&path).copied().flatten())).collect();
        agent_folders.extend(bundled_folders());
        let embedded = embedded::NAMES.iter().filter_map(|name| Name::try_new(name).ok()).collect();
        let environment = environment_of(std::env::vars_os())?;
        Ok(Self {
            config,
            agent_folders,
            own_folders,
            folder_problems,
            embedded,
            environment,
            flags: args.set.clone(),
            workflow: args.workflow.clone(),
            named: Mutex::new(named),
            folder,
        })
    }

    /// Checks the settings, with all agents that are there or only those wanted.
    pub(super) fn settings(&self, wanted: Wanted) -> Result<Settings, Stop> {
        self.examine(wanted).checked().map_err(Stop::usage)
    }

    /// The names of all agents that are there. Built-in ones need not fit this project's providers to be among them.
    pub(super) fn agent_names(&self) -> Result<BTreeSet<Name>, Stop> {
        self.with_sources(Wanted::Named(Vec::new()), agent_names).map_err(Stop::usage)
    }

    /// Reads the settings as far as that goes.
    fn examine(&self, wanted: Wanted) -> Examined {
        self.with_sources(wanted, examine)
    }

    /// The settings of the agents that are configured or have a folder in the project, and of `more`; of all agents if that is none.
    fn examine_own(&self, more: impl IntoIterator<Item = Name>) -> Examined {
        let own = self.agent_folders.iter().take(self.own_folders).map(|folder| folder.name.clone());
        let examined = self.examine(Wanted::Named(own.chain(more).collect()));
        if examined.settings().agents.is_empty() { self.examine(Wanted::All) } else { examined }
    }

    fn with_sources<T>(&self, wanted: Wanted, read: impl FnOnce(&Sources<'_>) -> T) -> T {
        let base = self.config.as_ref().and_then(|config| Path::new(&config.path).parent()).unwrap_or(&self.folder);
        read(&Sources {
            config: self.config.as_ref(),
            folder: base,
            agent_folders: &self.agent_folders,
            environment: &self.environment,
            flags: &self.flags,
            embedded: &self.embedded,
            wanted,
            read_file: &|path| {
                let place = base.join(path);
                let stamp = Stamp::of(&place);
                // The first look counts: what is read again may have changed since.
                self.named.lock().unwrap_or_else(PoisonError::into_inner).entry(place).or_insert(stamp);
                read_named_file(base, path)
            },
        })
    }

    /// Everything that is wrong with settings that were read for `purpose`.
    fn find_faults(&self, examined: &Examined, purpose: Purpose, faults: &mut Faults) {
        faults.of_settings(self.folder_problems.iter().chain(examined.problems()).cloned());
        faults.of_settings(wrong_secrets(self, examined, purpose));
    }

    /// Checks the workflow against the agents that are there, and the settings of the agents that it names.
    pub(super) fn workflow_and_settings(&self, purpose: Purpose) -> Result<(Workflow, Settings), Stop> {
        let mut faults = Faults::default();
        let read = self.read_workflow(purpose, &mut faults);
        faults.told()?;
        // proof: whatever is missing was told.
        read.ok_or_else(|| Stop::Usage("the project cannot be read".to_owned()))
    }

    /// The same, with what is wrong in `faults`.
    pub(super) fn read_workflow(&self, purpose: Purpose, faults: &mut Faults) -> Option<(Workflow, Settings)> {
        let path = self.workflow.clone().unwrap_or_else(|| self.folder.join("workflow.toml"));
        self.find_faults(&self.examine_own([]), purpose, faults);
        let bytes = read_limited(&path).map_err(|error| {
            let shown = path.display();
            faults.tell(format_args!("{shown}: {error}; a project needs a workflow (`watertight init` writes one)"));
        });
        let checked = self.check_workflow(&path, &bytes.ok()?, faults);
        let named = match &checked {
            Ok(workflow) => workflow.steps().iter().map(|step| step.agent().clone()).collect(),
            Err(named) => named.clone(),
        };
        let examined = self.examine(Wanted::Named(named));
        self.find_faults(&examined, purpose, faults);
        let workflow = checked.ok()?;
        check_steps(&path.display().to_string(), &workflow, &examined, faults);
        Some((workflow, examined.checked().ok()?))
    }

    /// Checks a workflow. What is wrong with it is told; the agents that its steps name are known all the same.
    fn check_workflow(&self, path: &Path, bytes: &[u8], faults: &mut Faults) -> Result<Workflow, Vec<Name>> {
        let known = self.agent_names();
        // Where the configuration cannot be read nobody knows who is there.
        let agents = known.as_ref().map_or(Agents::Any, Agents::Known);
        load_for(&path.display().to_string(), bytes, agents).map_err(|refused| {
            faults.tell(&refused);
            refused.agents().to_vec()
        })
    }

    /// All workflows of the project (`workflow.toml` and `workflows/*.toml`), and the settings of the agents that they name, that are
    /// configured, or that have a folder in the project; of all agents if that is none.
    pub(super) fn workflows_and_settings(&self, purpose: Purpose) -> Result<(Vec<Workflow>, Settings), Stop> {
        let mut faults = Faults::default();
        let read = self.read_workflows([], purpose, &mut faults);
        faults.told()?;
        let (workflows, settings) = read.ok_or_else(|| Stop::Usage("the project cannot be read".to_owned()))?;
        Ok((workflows.into_iter().map(|(_, workflow)| workflow).collect(), settings))
    }

    /// The same, each workflow with its file, and the agents `more` beside those that are named; what is wrong comes to `faults`.
    pub(super) fn read_workflows(
        &self,
        more: impl IntoIterator<Item = Name>,
        purpose: Purpose,
        faults: &mut Faults,
    ) -> Option<(Vec<(String, Workflow)>, Settings)> {
        let (mut workflows, mut named): (Vec<(String, Workflow)>, Vec<Name>) = (Vec::new(), more.into_iter().collect());
        let paths = self.workflow_paths().unwrap_or_else(|stop| {
            faults.tell(stop);
            Vec::new()
        });
        for path in paths {
            let shown = path.display().to_string();
            let bytes = match read_limited(&path) {
                Ok(bytes) => bytes,
                Err(error) => {
                    faults.tell(format_args!("{shown}: {error}"));
                    continue;
                }
            };
            match self.check_workflow(&path, &bytes, faults) {
                Ok(workflow) => {
                    named.extend(workflow.steps().iter().map(|step| step.agent().clone()));
                    if let Some((other, _)) = workflows.iter().find(|(_, other)| other.name() == workflow.name()) {
                        let (name, line) = (workflow.name(), workflow.line_of(None, "workflow.name").unwrap_or(1));
                        faults.tell(format_args!(
                            "{shown}:{line}: workflow.name = \"{name}\": is the name of {other} too"
                        ));
                    }
                    workflows.push((shown, workflow));
                }
                Err(agents) => named.extend(agents),
            }
        }
        let own = self.agent_folders.iter().take(self.own_folders).map(|folder| folder.name.clone());
        let asked: Vec<Name> = named.iter().cloned().chain(own).collect();
        let examined = self.examine_own(named);
        self.find_faults(&examined, purpose, faults);
        for (shown, workflow) in &workflows {
            check_steps(shown, workflow, &examined, faults);
        }
        let mut settings = examined.checked().ok()?;
        settings.warnings.extend(self.with_sources(Wanted::All, |sources| misspelt_agents(sources, &asked)));
        Some((workflows, settings))
    }

    fn workflow_paths(&self) -> Result<Vec<PathBuf>, Stop> {
        if let Some(path) = &self.workflow {
            return Ok(vec![path.clone()]);
        }
        let first = self.folder.join("workflow.toml");
        let mut paths: Vec<PathBuf> = if is_there(&first)? { vec![first] } else { Vec::new() };
        let folder = self.folder.join(WORKFLOWS_FOLDER);
        if folder.is_dir() {
            let unreadable = |error: std::io::Error| Stop::Usage(format!("{}: {error}", folder.display()));
            let mut more = Vec::new();
            for entry in std::fs::read_dir(&folder).map_err(unreadable)? {
                let path = entry.map_err(unreadable)?.path();
                if path.extension().is_some_and(|extension| extension == "toml") {
                    more.push(path);
                }
            }
            if more.len() > WORKFLOWS_MAX {
                let message =
                    format!("{}: {} workflows, at most {WORKFLOWS_MAX} are served", folder.display(), more.len());
                return Err(Stop::Usage(message));
            }
            more.sort();
            paths.extend(more);
        }
        Ok(paths)
    }

    /// The files that this came from without being named in them.
    pub(super) fn layers(&self) -> Layers {
        let is_blank = |bytes: &[u8]| bytes.iter().all(u8::is_ascii_whitespace);
        let config = self
            .config
            .iter()
            .map(|config| (PathBuf::from(&config.path), Layer { agent: None, is_blank: is_blank(&config.bytes) }));
        let own = self.agent_folders.iter().take(self.own_folders).flat_map(|folder| {
            let read = [MANIFEST, PROMPT, SCHEMA].into_iter().filter_map(|file| Some((file, folder.files.get(file)?)));
            read.map(|(file, bytes)| {
                let layer = Layer { agent: Some(folder.name.clone()), is_blank: is_blank(bytes) };
                (Path::new(&folder.origin).join(file), layer)
            })
        });
        Layers(config.chain(own).collect())
    }

    /// The files that the configuration names, as they were before they were read.
    pub(super) fn named_files(&self) -> BTreeMap<PathBuf, Option<Stamp>> {
        self.named.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What an environment variable holds.
    pub(super) fn environment(&self, name: &str) -> Option<String> {
        self.environment.get(name).cloned()
    }
}

/// Whether there is something at `path`. A link that leads nowhere is something, and so is what cannot be looked at: both are said when it
/// is read rather than taken for an empty file.
fn is_there(path: &Path) -> Result<bool, Stop> {
    match std::fs::symlink_metadata(path) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(Stop::Usage(format!("{}: {error}", path.display()))),
    }
}

/// The variables that are text. One that would be a setting of ours, but is no text, is refused: it must not be passed over in silence.
fn environment_of(variables: impl Iterator<Item = (OsString, OsString)>) -> Result<BTreeMap<String, String>, Stop> {
    let mut environment = BTreeMap::new();
    for (name, value) in variables {
        match (name.into_string(), value.into_string()) {
            (Ok(name), Ok(value)) => {
                environment.insert(name, value);
            }
            (Ok(name), Err(_)) if name.starts_with(ENVIRONMENT_PREFIX) => {
                return Err(Stop::Usage(format!("{name}: its value is not UTF-8 text")));
            }
            (Err(name), _) if name.as_encoded_bytes().starts_with(ENVIRONMENT_PREFIX.as_bytes()) => {
                return Err(Stop::Usage(format!("{}: its name is not UTF-8 text", name.display())));
            }
            _ => {}
        }
    }
    Ok(environment)
}

fn bundled_folders() -> impl Iterator<Item = AgentFolder> {
    bundled::all().into_iter().filter_map(|agent| {
        let files = agent.files.iter().map(|file| (file.path.to_owned(), file.content.to_vec())).collect();
        Some(AgentFolder {
            name: Name::try_new(agent.name).ok()?,
            origin: format!("built-in agents/{}", agent.name),
            files,
            problem: None,
        })
    })
}

fn read_limited(path: &Path) -> std::io::Result<Vec<u8>> {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    // One byte more than allowed, so that the checker can say that it is too large.
    std::fs::File::open(path)?.take(FILE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(unix)]
    fn variables_that_are_no_text_are_refused_if_they_would_be_settings() {
        use std::os::unix::ffi::OsStringExt as _;
        for (name, value, want) in [
            (&b"WATERTIGHT_RUN__LANGUAGE"[..], &b"ko"[..], Ok(1)),
            (b"OTHER", b"\xff", Ok(0)),
            (b"OTHER\xff", b"x", Ok(0)),
            (b"WATERTIGHT_RUN__LANGUAGE", b"k\xff", Err("WATERTIGHT_RUN__LANGUAGE: its value is not UTF-8 text")),
            (b"WATERTIGHT_\xff", b"x", Err("WATERTIGHT_\u{fffd}: its name is not UTF-8 text")),
        ] {
            let given = (OsString::from_vec(name.to_vec()), OsString::from_vec(value.to_vec()));
            let got = environment_of(std::iter::once(given)).map(|environment| environment.len());
            let got = got.map_err(|stop| match stop {
                Stop::Usage(message) => message,
                other => panic!("{other:?}"),
            });
            assert_eq!(got, want.map_err(str::to_owned));
        }
    }
}
