//! The folders of the bundled agents, as they lie inside the program. Hands out their files; never reads what is in them.

use include_dir::{Dir, include_dir};

static FOLDERS: Dir<'static> = include_dir!("$CARGO_MANIFEST_DIR/agents");

/// One file of an agent's folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BundledFile {
    /// Its path inside the agent's folder, with `/`: `agent.toml`, `replies/good.json`.
    pub path: &'static str,
    /// Its content.
    pub content: &'static [u8],
}

/// One agent's folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BundledAgent {
    /// The folder's name, which is the agent's.
    pub name: &'static str,
    /// Its files, by path.
    pub files: Vec<BundledFile>,
}

impl BundledAgent {
    /// The text of a file, if the folder has it and it is UTF-8.
    pub fn text(&self, path: &str) -> Option<&'static str> {
        let file = self.files.iter().find(|file| file.path == path)?;
        std::str::from_utf8(file.content).ok()
    }
}

/// All bundled agents, by name.
pub fn all() -> Vec<BundledAgent> {
    let mut agents: Vec<_> = FOLDERS.dirs().filter_map(agent).collect();
    agents.sort_by_key(|agent| agent.name);
    agents
}

/// The bundled agent of that name.
pub fn by_name(name: &str) -> Option<BundledAgent> {
    FOLDERS.get_dir(name).and_then(agent)
}

fn agent(folder: &'static Dir<'static>) -> Option<BundledAgent> {
    let name = folder.path().to_str()?;
    let mut files = Vec::new();
    let mut folders = vec![folder];
    while let Some(current) = folders.pop() {
        folders.extend(current.dirs());
        for file in current.files() {
            let path = file.path().strip_prefix(folder.path()).ok()?.to_str()?;
            files.push(BundledFile { path, content: file.contents() });
        }
    }
    files.sort_by_key(|file| file.path);
    Some(BundledAgent { name, files })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_folder_has_the_files_of_an_agent() {
        let names: Vec<_> = all().iter().map(|agent| agent.name).collect();
        assert_eq!(names, ["draft", "meta", "photos", "review", "style"]);
        for agent in all() {
            for path in ["agent.toml", "schema.json"] {
                assert!(agent.text(path).is_some_and(|text| !text.is_empty()), "{}: {path}", agent.name);
            }
            assert!(agent.files.iter().any(|file| file.path.starts_with("replies/")), "{}: replies", agent.name);
        }
        assert!(by_name("nobody").is_none());
        assert!(by_name("draft/replies").is_none_or(|agent| agent.name != "draft"));
    }
}
