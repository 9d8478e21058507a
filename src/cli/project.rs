//! A project's folder: its configuration, its agents and its workflow, read and checked together.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    path::{Path, PathBuf},
};

use super::{args::ProjectArgs, exit::Stop};
use crate::{
    agents::{bundled, embedded},
    model::name::Name,
    settings::{
        folder::{AgentFolder, ConfigFile, read_agent_folders, read_config_file, read_named_file},
        layers::ENVIRONMENT_PREFIX,
        load::{Settings, Sources, Wanted, load},
    },
    workflow::{check, checked::Workflow, definition::FILE_BYTES_MAX},
};

/// What is read of a project.
pub(super) struct Project {
    pub(super) folder: PathBuf,
    config: Option<ConfigFile>,
    agent_folders: Vec<AgentFolder>,
    embedded: Vec<Name>,
    environment: BTreeMap<String, String>,
    flags: Vec<String>,
    workflow: Option<PathBuf>,
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
            None if default_config.exists() => Some(read_config_file(&default_config).map_err(Stop::usage)?),
            None => None,
        };
        let mut agent_folders = read_agent_folders(&folder).map_err(Stop::usage)?;
        agent_folders.extend(bundled_folders());
        let embedded = embedded::NAMES.iter().filter_map(|name| Name::try_new(name).ok()).collect();
        let environment = environment_of(std::env::vars_os())?;
        Ok(Self {
            config,
            agent_folders,
            embedded,
            environment,
            flags: args.set.clone(),
            workflow: args.workflow.clone(),
            folder,
        })
    }

    /// Checks the settings, with all agents that are there or only those wanted.
    pub(super) fn settings(&self, wanted: Wanted) -> Result<Settings, Stop> {
        let base = self.config.as_ref().and_then(|config| Path::new(&config.path).parent()).unwrap_or(&self.folder);
        load(&Sources {
            config: self.config.as_ref(),
            folder: base,
            agent_folders: &self.agent_folders,
            environment: &self.environment,
            flags: &self.flags,
            embedded: &self.embedded,
            wanted,
            read_file: &|path| read_named_file(base, path),
        })
        .map_err(Stop::usage)
    }

    /// Checks the workflow against the agents that are there, then the settings of the agents that it names.
    pub(super) fn workflow_and_settings(&self) -> Result<(Workflow, Settings), Stop> {
        let path = self.workflow.clone().unwrap_or_else(|| self.folder.join("workflow.toml"));
        let shown = path.display().to_string();
        let bytes = read_limited(&path).map_err(|error| {
            Stop::Usage(format!("{shown}: {error}; a project needs a workflow (`watertight init` writes one)"))
        })?;
        let all = self.settings(Wanted::All)?;
        let known: BTreeSet<Name> = all.agents.iter().map(|agent| agent.settings.name.clone()).collect();
        let workflow = check::load(&shown, &bytes, &known).map_err(Stop::usage)?;
        let named = workflow.steps().iter().map(|step| step.agent().clone()).collect();
        Ok((workflow, self.settings(Wanted::Named(named))?))
    }

    /// What an environment variable holds.
    pub(super) fn environment(&self, name: &str) -> Option<String> {
        self.environment.get(name).cloned()
    }

    /// True if there is a workflow to check.
    pub(super) fn has_workflow(&self) -> bool {
        self.workflow.is_some() || self.folder.join("workflow.toml").exists()
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
