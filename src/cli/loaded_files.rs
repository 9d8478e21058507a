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

use super::args::ProjectArgs;
use crate::{model::name::Name, settings::folder::FOLDERS_MAX};

/// The most files that are looked at.
const FILES_MAX: usize = 20_000;
/// Files that a load reads end so.
const ENDINGS: [&str; 6] = ["toml", "md", "json", "txt", "jinja", "j2"];

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

type Stamps = BTreeMap<PathBuf, Option<Stamp>>;

/// All files that a load reads, and how they look; nothing for one that is not there.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Look {
    /// Those in the places where a project has its files.
    found: Stamps,
    /// Those that the configuration names (keys, prompts, schemas), wherever they lie.
    named: Stamps,
}

impl Look {
    /// Looks at the files of the project that `args` name, and at those that `before` knew by name. Blocks.
    pub(super) fn at(args: &ProjectArgs, before: &Self) -> Self {
        let config = args.config.clone().unwrap_or_else(|| args.folder.join("watertight.toml"));
        let mut paths = vec![config.clone()];
        // What the configuration names lies beside it or in agents' folders, rarely elsewhere.
        let folder = config.parent().map(PathBuf::from).unwrap_or_default();
        for folder in [folder.clone(), folder.join("prompts"), args.folder.clone(), args.folder.join("workflows")] {
            paths.extend(files_of(&folder));
        }
        if let Ok(agents) = std::fs::read_dir(args.folder.join("agents")) {
            for agent in agents.filter_map(Result::ok).take(FOLDERS_MAX) {
                paths.extend(files_of(&agent.path()));
            }
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

fn files_of(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let paths = entries.filter_map(Result::ok).map(|entry| entry.path());
    let is_read = |path: &PathBuf| {
        path.extension().and_then(std::ffi::OsStr::to_str).is_some_and(|ending| ENDINGS.contains(&ending))
    };
    paths.filter(is_read).take(FILES_MAX).collect()
}

/// The files that a configuration came from without being named in it: a load that does not find one of them goes without it in silence.
/// Each with the agent that it belongs to; the configuration's own file belongs to none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Layers(pub(super) BTreeMap<PathBuf, Option<Name>>);

impl Layers {
    /// What is wrong with `now` as what comes after these layers: one line for each that vanished, unless its agent went with it.
    /// `is_there` tells whether the new configuration has an agent.
    pub(super) fn vanished(&self, now: &Self, is_there: impl Fn(&Name) -> bool) -> Vec<String> {
        let had_folders = self.0.values().any(Option::is_some);
        // Folders are taken away one by one. All at once is what a volume looks like that is not mounted.
        let has_folders = now.0.values().any(Option::is_some);
        let is_missed = |agent: &Option<Name>| match agent {
            None => true,
            Some(agent) => is_there(agent) || (had_folders && !has_folders),
        };
        let missed = self.0.iter().filter(|(path, agent)| !now.0.contains_key(*path) && is_missed(agent));
        missed
            .map(|(path, _)| {
                format!(
                    "{}: is not there any more, and the configuration in force came from it; leave it there empty if nothing shall be in it, or restart to go on without it",
                    path.display()
                )
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layers(files: &[(&str, Option<&str>)]) -> Layers {
        let files =
            files.iter().map(|(path, agent)| (PathBuf::from(path), agent.map(|agent| Name::try_new(agent).unwrap())));
        Layers(files.collect())
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
            // All folders at once.
            (&[config, draft, review], &[config], &[], &["agents/draft/agent.toml", "agents/review/agent.toml"]),
        ] {
            let is_there = |name: &Name| agents.contains(&name.as_str());
            let lines = layers(before).vanished(&layers(now), is_there);
            let paths: Vec<&str> = lines.iter().filter_map(|line| line.split(": ").next()).collect();
            assert_eq!(paths, missed, "{before:?} {now:?}");
        }
    }
}
