//! Agents as folders: a manifest, a prompt, a schema, further files. Folders are data here, so that those on disk and those inside
//! the program go the same way; reading them from disk is the only I/O.

use std::{
    collections::BTreeMap,
    io::Read as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::model::name::Name;

use super::{
    node::{FILE_BYTES_MAX, Layer, Table, parse_file},
    problem::{Origin, Problem, SettingsError},
};

/// The manifest of an agent's folder.
pub const MANIFEST: &str = "agent.toml";
/// The prompt that is used unless the manifest or configuration names another.
pub const PROMPT: &str = "prompt.md";
/// The schema that is used unless the manifest or configuration names another.
pub const SCHEMA: &str = "schema.json";

/// The most folders of agents.
pub const FOLDERS_MAX: usize = 1_000;
/// The most files of one folder.
pub const FOLDER_FILES_MAX: usize = 100;
/// The largest folder, in bytes.
pub const FOLDER_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// One agent's folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentFolder {
    /// The folder's name is the agent's.
    pub name: Name,
    /// Where it is, for messages: a path, or `built-in agents/draft`.
    pub origin: String,
    /// Its files by name; files in deeper folders are not looked at.
    pub files: BTreeMap<String, Vec<u8>>,
    /// Why it cannot be read; its files are not here then. It is somebody's all the same.
    pub problem: Option<Problem>,
}

impl AgentFolder {
    /// How a file of it is named in messages.
    pub(super) fn file_path(&self, name: &str) -> Arc<str> {
        Arc::from(format!("{}/{name}", self.origin))
    }

    /// Reads its manifest; without one the folder's other files stand for themselves.
    pub(super) fn manifest(&self) -> Result<Table, Vec<Problem>> {
        match self.files.get(MANIFEST) {
            Some(bytes) => parse_file(&self.file_path(MANIFEST), bytes, Layer::Manifest),
            None => Ok(Table::new()),
        }
    }
}

/// The configuration file as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigFile {
    /// How the user named it; stands before every line number.
    pub path: String,
    /// Its content.
    pub bytes: Vec<u8>,
}

/// Reads the configuration file at `path`. Blocks; at most one byte more than is allowed is read.
pub fn read_config_file(path: &Path) -> Result<ConfigFile, Problem> {
    let name = path.display().to_string();
    let bytes = read_limited(path, FILE_BYTES_MAX as u64).map_err(|rule| whole_file(&name, rule))?;
    Ok(ConfigFile { path: name, bytes })
}

/// Reads a file that the configuration names (a prompt, a schema), from `folder` where its path is not absolute.
pub fn read_named_file(folder: &Path, path: &str) -> Result<Vec<u8>, String> {
    read_limited(&folder.join(path), FILE_BYTES_MAX as u64)
}

/// Reads `<folder>/agents/*`, in the order of names. No such folder means no agents. Blocks.
pub fn read_agent_folders(folder: &Path) -> Result<Vec<AgentFolder>, SettingsError> {
    let (folders, mut problems) = find_agent_folders(folder);
    problems.extend(folders.iter().filter_map(|folder| folder.problem.clone()));
    if problems.is_empty() { Ok(folders) } else { Err(SettingsError::new(problems)) }
}

/// Reads the same as far as it can be read: what is wrong with one folder hides no other. Beside the folders stands what is wrong and
/// nobody's. Blocks.
pub fn find_agent_folders(folder: &Path) -> (Vec<AgentFolder>, Vec<Problem>) {
    let agents = folder.join("agents");
    let shown = agents.display().to_string();
    let mut paths: Vec<PathBuf> = Vec::new();
    match list_folders(&agents) {
        Ok(found) => paths.extend(found),
        Err(rule) => return (Vec::new(), vec![whole_file(&shown, rule)]),
    }
    paths.sort();
    let (mut folders, mut problems) = (Vec::new(), Vec::new());
    for path in paths {
        let shown = path.display().to_string();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        match Name::try_new(&name) {
            Ok(name) => folders.push(read_agent_folder(name, &path)),
            Err(error) => problems.push(whole_file(&shown, format!("is no agent: {error}"))),
        }
    }
    (folders, problems)
}

fn list_folders(agents: &Path) -> Result<Vec<PathBuf>, String> {
    let unreadable = |error: std::io::Error| format!("cannot be read: {error}");
    let entries = match std::fs::read_dir(agents) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(unreadable(error)),
    };
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry.map_err(unreadable)?.path();
        if path.is_dir() && !is_hidden(&path) {
            paths.push(path);
        }
        if paths.len() > FOLDERS_MAX {
            return Err(format!("holds more than {FOLDERS_MAX} folders"));
        }
    }
    Ok(paths)
}

fn read_agent_folder(name: Name, path: &Path) -> AgentFolder {
    let origin = path.display().to_string();
    match read_files(path) {
        Ok(files) => AgentFolder { name, origin, files, problem: None },
        Err(rule) => {
            let problem = Some(whole_file(&origin, rule));
            AgentFolder { name, origin, files: BTreeMap::new(), problem }
        }
    }
}

fn read_files(path: &Path) -> Result<BTreeMap<String, Vec<u8>>, String> {
    let unreadable = |error: std::io::Error| format!("cannot be read: {error}");
    let mut files = BTreeMap::new();
    let mut left = FOLDER_BYTES_MAX;
    for entry in std::fs::read_dir(path).map_err(unreadable)? {
        let file = entry.map_err(unreadable)?.path();
        if !file.is_file() || is_hidden(&file) {
            continue;
        }
        if files.len() >= FOLDER_FILES_MAX {
            return Err(format!("holds more than {FOLDER_FILES_MAX} files"));
        }
        let file_name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let too_large = |_| format!("holds more than {FOLDER_BYTES_MAX} bytes, or {file_name} cannot be read");
        let bytes = read_limited(&file, left).map_err(too_large)?;
        left -= (bytes.len() as u64).min(left);
        files.insert(file_name, bytes);
    }
    if !files.contains_key(MANIFEST) && !files.contains_key(PROMPT) {
        return Err(format!("is no agent: it holds neither {MANIFEST} nor {PROMPT}"));
    }
    Ok(files)
}

fn is_hidden(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'))
}

fn read_limited(path: &Path, bytes_max: u64) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    // A pipe or device would never end, or never begin.
    let is_file = std::fs::metadata(path).map(|metadata| metadata.is_file());
    if is_file.as_ref().is_ok_and(|is_file| !is_file) {
        return Err("cannot be read: is no file".to_owned());
    }
    let read = is_file.and_then(|_| std::fs::File::open(path)?.take(bytes_max + 1).read_to_end(&mut bytes));
    match read {
        Ok(_) if bytes.len() as u64 > bytes_max => Err(format!("holds more than {bytes_max} bytes")),
        Ok(_) => Ok(bytes),
        Err(error) => Err(format!("cannot be read: {error}")),
    }
}

fn whole_file(path: &str, rule: String) -> Problem {
    Problem { origin: Origin::File { path: Arc::from(path), line: 0 }, key: String::new(), value: None, rule }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, file: &str, text: &str) {
        let path = root.join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    #[test]
    fn folders_are_read_in_the_order_of_names() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(read_agent_folders(root.path()), Ok(Vec::new()));
        write(root.path(), "agents/review/prompt.md", "Review.");
        write(root.path(), "agents/draft/agent.toml", "slots = 3");
        write(root.path(), "agents/draft/prompt.md", "Draft.");
        write(root.path(), "agents/draft/replies/1.json", "{}");
        write(root.path(), "agents/draft/.hidden", "x");
        write(root.path(), "agents/.git/agent.toml", "x");
        write(root.path(), "agents/README.md", "x");
        let folders = read_agent_folders(root.path()).unwrap();
        let names: Vec<&str> = folders.iter().map(|folder| folder.name.as_str()).collect();
        assert_eq!(names, ["draft", "review"]);
        assert_eq!(folders[0].files.keys().collect::<Vec<_>>(), ["agent.toml", "prompt.md"]);
        assert!(folders[0].origin.ends_with("agents/draft"), "{}", folders[0].origin);
    }

    #[test]
    fn folders_that_are_no_agents_are_all_named() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "agents/good/agent.toml", "");
        write(root.path(), "agents/empty/notes.txt", "");
        write(root.path(), "agents/a b/agent.toml", "");
        write(root.path(), "agents/large/agent.toml", &"#".repeat(9 * 1024 * 1024));
        for number in 0..=FOLDER_FILES_MAX {
            write(root.path(), &format!("agents/many/{number}"), "");
        }
        let error = read_agent_folders(root.path()).unwrap_err().to_string();
        for part in
            ["empty: is no agent", "a b: is no agent", "large: holds more than", "many: holds more than 100 files"]
        {
            assert!(error.contains(part), "{part}: {error}");
        }
        assert_eq!(error.lines().count(), 4, "{error}");
    }

    #[test]
    fn a_config_file_that_cannot_be_read_says_why() {
        let root = tempfile::tempdir().unwrap();
        let missing = read_config_file(&root.path().join("watertight.toml")).unwrap_err().to_string();
        assert!(missing.contains("watertight.toml: cannot be read"), "{missing}");
        let folder = read_config_file(root.path()).unwrap_err().to_string();
        assert!(folder.contains("is no file"), "{folder}");
        write(root.path(), "large.toml", &"#".repeat(FILE_BYTES_MAX + 1));
        let large = read_config_file(&root.path().join("large.toml")).unwrap_err().to_string();
        assert!(large.contains("holds more than"), "{large}");
    }
}
