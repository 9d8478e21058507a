//! What a test of the loader hands in, and how it asks what becomes of it.

use std::{collections::BTreeMap, path::Path, time::Duration};

use crate::{
    model::name::Name,
    settings::{
        folder::{AgentFolder, ConfigFile},
        load::{Examined, Settings, Sources, Wanted, examine},
        problem::SettingsError,
    },
};

/// What a test hands in.
#[derive(Clone)]
pub(in crate::settings) struct Given {
    pub(in crate::settings) config: Option<ConfigFile>,
    folders: Vec<AgentFolder>,
    environment: BTreeMap<String, String>,
    flags: Vec<String>,
    files: BTreeMap<String, Vec<u8>>,
    wanted: Wanted,
}

impl Given {
    pub(in crate::settings) fn nothing() -> Self {
        Self {
            config: None,
            folders: ["draft", "review"].map(|name| folder(name, &[("agent.toml", "description = 'x'")])).to_vec(),
            environment: BTreeMap::new(),
            flags: Vec::new(),
            files: BTreeMap::new(),
            wanted: Wanted::All,
        }
    }

    pub(in crate::settings) fn config(text: &str) -> Self {
        Self::bytes(text.as_bytes())
    }

    pub(in crate::settings) fn bytes(bytes: &[u8]) -> Self {
        let config = Some(ConfigFile { path: "w.toml".to_owned(), bytes: bytes.to_vec() });
        Self { config, ..Self::nothing() }
    }

    pub(in crate::settings) fn only(mut self, names: &[&str]) -> Self {
        self.wanted = Wanted::Named(names.iter().map(|name| Name::try_new(name).unwrap()).collect());
        self
    }

    pub(in crate::settings) fn folder(mut self, name: &str, files: &[(&str, &str)]) -> Self {
        self.folders.retain(|folder| folder.name.as_str() != name);
        self.folders.push(folder(name, files));
        self
    }

    pub(in crate::settings) fn file(mut self, name: &str, text: &str) -> Self {
        self.files.insert(name.to_owned(), text.as_bytes().to_vec());
        self
    }

    pub(in crate::settings) fn environment(mut self, name: &str, text: &str) -> Self {
        self.environment.insert(name.to_owned(), text.to_owned());
        self
    }

    pub(in crate::settings) fn flag(mut self, flag: &str) -> Self {
        self.flags.push(flag.to_owned());
        self
    }

    pub(in crate::settings) fn load(&self) -> Result<Settings, SettingsError> {
        self.examine().checked()
    }

    /// The settings as far as they can be read.
    pub(in crate::settings) fn examine(&self) -> Examined {
        self.with_sources(examine)
    }

    /// What is read of all that is handed in.
    pub(in crate::settings) fn with_sources<T>(&self, read: impl FnOnce(&Sources<'_>) -> T) -> T {
        read(&Sources {
            config: self.config.as_ref(),
            folder: Path::new("etc"),
            agent_folders: &self.folders,
            environment: &self.environment,
            flags: &self.flags,
            embedded: &["draft", "review", "style"].map(|name| Name::try_new(name).unwrap()),
            wanted: self.wanted.clone(),
            read_file: &|name| self.files.get(name).cloned().ok_or_else(|| "cannot be read: not found".to_owned()),
        })
    }

    pub(in crate::settings) fn settings(&self) -> Settings {
        self.load().unwrap_or_else(|error| panic!("refused:\n{error}"))
    }

    /// Asserts that this is refused with exactly these lines.
    pub(in crate::settings) fn refused(&self, lines: &[&str]) {
        match self.load() {
            Ok(_) => panic!("accepted, though {lines:?}"),
            Err(error) => assert_eq!(error.to_string().lines().collect::<Vec<_>>(), lines),
        }
    }

    pub(in crate::settings) fn warned(&self, lines: &[&str]) {
        let warnings: Vec<String> = self.settings().warnings.iter().map(ToString::to_string).collect();
        assert_eq!(warnings, lines);
    }
}

pub(in crate::settings) fn folder(name: &str, files: &[(&str, &str)]) -> AgentFolder {
    AgentFolder {
        name: Name::try_new(name).unwrap(),
        origin: format!("agents/{name}"),
        files: files.iter().map(|(file, text)| ((*file).to_owned(), text.as_bytes().to_vec())).collect(),
        problem: None,
    }
}

/// Seconds, in short.
pub(in crate::settings) const SECONDS: fn(u64) -> Duration = Duration::from_secs;
