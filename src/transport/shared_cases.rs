//! Test help: files of cases that stand beside the repository. Absent there, the tests that need them say so and pass.

use std::path::PathBuf;

/// The text of a file of the shared folder.
pub(crate) fn text(path: &str) -> Option<String> {
    bytes(path).map(|bytes| String::from_utf8(bytes).unwrap())
}

/// The bytes of a file of the shared folder.
pub(crate) fn bytes(path: &str) -> Option<Vec<u8>> {
    let bytes = std::fs::read(folder().join(path)).ok();
    if bytes.is_none() {
        println!("skipped: no shared folder with {path}");
    }
    bytes
}

/// Every JSON file right below the folders in `path`, with its name.
pub(crate) fn json_files(path: &str) -> Vec<(String, serde_json::Value)> {
    let mut files = Vec::new();
    let Ok(folders) = std::fs::read_dir(folder().join(path)) else {
        println!("skipped: no shared folder with {path}");
        return files;
    };
    for folder in folders.flatten().filter(|entry| entry.path().is_dir()) {
        for file in std::fs::read_dir(folder.path()).unwrap().flatten() {
            let name = format!("{}/{}", folder.file_name().to_string_lossy(), file.file_name().to_string_lossy());
            let value = serde_json::from_slice(&std::fs::read(file.path()).unwrap()).unwrap();
            files.push((name, value));
        }
    }
    files.sort_by(|left, right| left.0.cmp(&right.0));
    files
}

fn folder() -> PathBuf {
    let beside = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../shared"));
    std::env::var_os("WATERTIGHT_SHARED").map_or(beside, PathBuf::from)
}
