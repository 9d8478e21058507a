//! The files that a load reads: how a look at them shows them, and which of them the configuration in force came from. Never reads what is
//! in them; that is the loader's.
//!
//! Files are looked at by their dates, sizes and numbers rather than watched: that works on every file system, also where files are replaced
//! through links, and costs one look at each file that the last load has read.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::SystemTime,
};

use super::{args::ProjectArgs, project::WORKFLOWS_FOLDER};
use crate::{
    model::name::Name,
    settings::folder::{FOLDERS_MAX, MANIFEST, PROMPT, SCHEMA},
};

/// The most files that are looked at.
const FILES_MAX: usize = 20_000;
/// How a file looks from outside: when it was written, how long it is, and which one it is, since a secret that is put in the place of
/// another is often as long and can bring an old date along.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    written: SystemTime,
    bytes: u64,
    number: u64,
}

impl Stamp {
    /// How the file at `path` looks now; `None` if there is none.
    pub(super) fn of(path: &Path) -> Option<Self> {
        let metadata = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file)?;
        #[cfg(unix)]
        let number = std::os::unix::fs::MetadataExt::ino(&metadata);
        #[cfg(not(unix))]
        let number = 0;
        Some(Self { written: metadata.modified().ok()?, bytes: metadata.len(), number })
    }
}

/// Files, and how each looks.
pub(super) type Stamps = BTreeMap<PathBuf, Option<Stamp>>;

/// All files that a load reads, and how they look; nothing for one that is not there. Whatever else lies beside them (logs, exports, an
/// agent's notes) is none of them: it starts no load and keeps none waiting.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Look {
    /// Those that a project has by their names.
    found: Stamps,
    /// Those that the configuration and manifests name (keys, prompts, schemas), wherever they lie.
    named: Stamps,
}

impl Look {
    /// Looks at the files of the project that `args` name, and at those that `before` knew by name. Blocks.
    pub(super) fn at(args: &ProjectArgs, before: &Self) -> Self {
        let config = args.config.clone().unwrap_or_else(|| args.folder.join("watertight.toml"));
        let workflow = args.workflow.clone().unwrap_or_else(|| args.folder.join("workflow.toml"));
        let mut paths = vec![config, workflow];
        if args.workflow.is_none() {
            paths.extend(entries_of(&args.folder.join(WORKFLOWS_FOLDER)).filter(|path| is_toml(path)));
        }
        for agent in agent_folders(&args.folder) {
            paths.extend([MANIFEST, PROMPT, SCHEMA].map(|file| agent.join(file)));
        }
        paths.sort();
        paths.dedup();
        paths.truncate(FILES_MAX);
        Self { found: stamped(paths), named: stamped(before.named.keys().cloned()) }
    }

    /// The configuration that was just read names these: files as they were before they were read, and files that are read from now on.
    pub(super) fn now_names(&mut self, read: Stamps, unread: impl IntoIterator<Item = PathBuf>) {
        let before = std::mem::take(&mut self.named);
        let known = |(path, stamp): (PathBuf, Option<Stamp>)| {
            let stamp = before.get(&path).copied().unwrap_or(stamp);
            (path, stamp)
        };
        let all = read.into_iter().chain(stamped(unread));
        self.named = all.take(FILES_MAX).map(known).collect();
    }
}

fn stamped(paths: impl IntoIterator<Item = PathBuf>) -> Stamps {
    let stamp = |path: PathBuf| {
        let stamp = Stamp::of(&path);
        (path, stamp)
    };
    paths.into_iter().map(stamp).collect()
}

/// All files in the folders of a project's agents. Blocks.
pub(super) fn files_of_agents(project: &Path) -> Stamps {
    stamped(agent_folders(project).flat_map(|agent| entries_of(&agent)).take(FILES_MAX))
}

fn agent_folders(project: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    entries_of(&project.join("agents")).filter(|path| path.is_dir()).take(FOLDERS_MAX)
}

fn entries_of(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    std::fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok).map(|entry| entry.path()).take(FILES_MAX)
}

fn is_toml(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == "toml")
}

/// A file that a configuration came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Layer {
    /// The agent that it belongs to; the configuration's own file belongs to none.
    pub(super) agent: Option<Name>,
    /// There is nothing in it: as a disk that is full leaves it, or a program that cuts it before it writes.
    pub(super) is_blank: bool,
}

/// The files that a configuration came from without being named in it: a load that does not find one of them goes without it in silence.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Layers(pub(super) BTreeMap<PathBuf, Layer>);

impl Layers {
    /// What is wrong with `now` as what comes after these layers: one line for each that vanished, or of which nothing is left, unless its
    /// agent went with it. `is_there` tells whether the new configuration has an agent.
    pub(super) fn vanished(&self, now: &Self, is_there: impl Fn(&Name) -> bool) -> Vec<String> {
        let has_folders = |layers: &Self| layers.0.values().any(|layer| layer.agent.is_some());
        // Folders are taken away one by one. All at once is what a volume looks like that is not mounted.
        let all_went = has_folders(self) && !has_folders(now);
        let missed = |(path, before): (&PathBuf, &Layer)| {
            let why = match now.0.get(path) {
                None if before.agent.as_ref().is_none_or(|agent| is_there(agent) || all_went) => {
                    "is not there any more, and the configuration in force came from it; leave it there with a line of comment if nothing shall be in it, or restart to go on without it"
                }
                Some(now) if now.is_blank && !before.is_blank => {
                    "is empty, and the configuration in force came from it; write a line of comment into it if nothing shall be in it, or restart"
                }
                _ => return None,
            };
            Some(format!("{}: {why}", path.display()))
        };
        self.0.iter().filter_map(missed).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layers(files: &[(&str, Option<&str>)]) -> Layers {
        let layer = |(path, agent): &(&str, Option<&str>)| {
            let agent = agent.map(|agent| Name::try_new(agent).unwrap());
            // The test marks a file that has nothing in it.
            let (path, is_blank) = path.strip_suffix(" (blank)").map_or((*path, false), |path| (path, true));
            (PathBuf::from(path), Layer { agent, is_blank })
        };
        Layers(files.iter().map(layer).collect())
    }

    #[test]
    fn a_layer_that_vanished_is_missed_unless_its_agent_went_with_it() {
        let config = ("watertight.toml", None);
        let (draft, prompt) = (("agents/draft/agent.toml", Some("draft")), ("agents/draft/prompt.md", Some("draft")));
        let review = ("agents/review/agent.toml", Some("review"));
        for (before, now, agents, missed) in [
            (&[][..], &[][..], &[][..], &[][..]),
            (&[], &[config, draft], &["draft"], &[]),
            (&[config], &[config], &[], &[]),
            (&[config], &[], &["draft"], &["watertight.toml"]),
            // One agent's folder goes, and nobody names it any more; then it is still named, or a built-in one takes its name.
            (&[config, draft, review], &[config, review], &["review"], &[]),
            (&[config, draft, review], &[config, review], &["draft", "review"], &["agents/draft/agent.toml"]),
            (&[config, draft, prompt], &[config, draft], &["draft"], &["agents/draft/prompt.md"]),
            // There, and nothing in it; as it was before, and as it is again.
            (&[config], &[("watertight.toml (blank)", None)], &[], &["watertight.toml"]),
            (&[("watertight.toml (blank)", None)], &[("watertight.toml (blank)", None)], &[], &[]),
            (&[("watertight.toml (blank)", None)], &[config], &[], &[]),
            (&[draft], &[("agents/draft/agent.toml (blank)", Some("draft"))], &["draft"], &["agents/draft/agent.toml"]),
            // All folders at once.
            (&[config, draft, review], &[config], &[], &["agents/draft/agent.toml", "agents/review/agent.toml"]),
        ] {
            let is_there = |name: &Name| agents.contains(&name.as_str());
            let lines = layers(before).vanished(&layers(now), is_there);
            let paths: Vec<&str> = lines.iter().filter_map(|line| line.split(": ").next()).collect();
            assert_eq!(paths, missed, "{before:?} {now:?}");
        }
    }

    fn project_args(folder: &Path) -> ProjectArgs {
        ProjectArgs { folder: folder.to_owned(), config: None, workflow: None, set: Vec::new() }
    }

    /// Only what a load reads is looked at: neither a log nor an export starts one, or keeps one waiting for its end.
    #[test]
    fn what_no_load_reads_is_not_looked_at() {
        let folder = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        for name in
            ["watertight.toml", "workflow.toml", "workflows/a.toml", "agents/draft/prompt.md", "prompts/long.md"]
        {
            put(name, "#");
        }
        let args = project_args(folder.path());
        let mut before = Look::at(&args, &Look::default());
        before.now_names(Stamps::new(), [folder.path().join("prompts/long.md")]);
        assert_eq!(Look::at(&args, &before), before);
        let beside = ["log.txt", "notes.md", "export.json", "other.toml", "agents/draft/notes.md", "agents/out.json"];
        for name in beside.into_iter().chain(["workflows/notes.md", "prompts/other.md", "input/a.txt"]) {
            put(name, "more");
            assert_eq!(Look::at(&args, &before), before, "{name}");
        }
        let read =
            ["watertight.toml", "workflow.toml", "workflows/a.toml", "agents/draft/prompt.md", "prompts/long.md"];
        for name in read.into_iter().chain(["workflows/b.toml", "agents/draft/schema.json", "agents/new/agent.toml"]) {
            put(name, name);
            let now = Look::at(&args, &before);
            assert_ne!(now, before, "{name}");
            before = now;
        }
    }
}
