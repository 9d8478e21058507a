//! Folders that tests make, and what they know of the example.

use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;

/// The example's folder.
pub const MOMENTLY: &str = "examples/momently";
/// Its photos, in the order in which they were taken.
pub const PHOTOS: [&str; 6] = [
    "01-tumuli.jpg",
    "02-observatory.jpg",
    "03-observatory-rape-flowers.jpg",
    "04-tiled-roofs.jpg",
    "05-bridge-at-dusk.jpg",
    "06-palace-pond.jpg",
];

/// A folder with these files.
pub fn folder(files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        put(folder.path(), name, text.as_bytes());
    }
    folder
}

/// Writes a file with its folders.
pub fn put(folder: &Path, name: &str, bytes: &[u8]) {
    let path = folder.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, bytes).unwrap();
}

/// A path as an argument.
pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The example's own file.
pub fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(MOMENTLY).join(name)
}

/// What the example is given on this machine beside the repository.
pub fn shared(name: &str) -> Option<PathBuf> {
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/../shared");
    let root = std::env::var_os("WATERTIGHT_SHARED").map_or_else(|| PathBuf::from(beside), PathBuf::from);
    let found = Some(root.join(name)).filter(|path| path.exists());
    if found.is_none() {
        println!("skipped: {name} is not here (WATERTIGHT_SHARED says where)");
    }
    found
}

/// Fails unless `post` shows these pictures, each once or more, in this order.
#[track_caller]
pub fn assert_shows(post: &str, photos: &[&str]) {
    let places: Vec<Option<usize>> = photos.iter().map(|photo| post.find(&format!("]({photo})"))).collect();
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{places:?}\n{post}");
}

/// Each step's name and status; of a step with several rounds the last.
pub fn statuses(run: &Value) -> Vec<(String, String)> {
    let mut statuses: Vec<(String, String)> = Vec::new();
    for step in run["steps"].as_array().unwrap() {
        let (id, status) = (step["id"].as_str().unwrap().to_owned(), step["status"].as_str().unwrap().to_owned());
        match statuses.iter_mut().find(|(known, _)| *known == id) {
            Some(known) => known.1 = status,
            None => statuses.push((id, status)),
        }
    }
    statuses
}

/// The step of this name.
#[track_caller]
pub fn step<'a>(run: &'a Value, id: &str) -> &'a Value {
    run["steps"].as_array().unwrap().iter().find(|step| step["id"] == id).unwrap()
}

/// Fails unless an object has exactly these keys.
#[track_caller]
pub fn assert_keys(object: &Value, keys: &[&str]) {
    let mut have: Vec<&str> = object.as_object().unwrap().keys().map(String::as_str).collect();
    let mut want = keys.to_vec();
    have.sort_unstable();
    want.sort_unstable();
    assert_eq!(have, want);
}

/// Fails unless a run has the keys of the documentation, no more and no fewer.
#[track_caller]
pub fn assert_run_keys(run: &Value) {
    // What is only there where it is known.
    let run = &mut run.clone();
    for key in ["cost", "currency", "rerun_of"] {
        run.as_object_mut().unwrap().remove(key);
    }
    for step in run["steps"].as_array_mut().unwrap() {
        for key in ["tokens", "cost"] {
            step.as_object_mut().unwrap().remove(key);
        }
    }
    let run = &*run;
    assert_keys(
        run,
        &[
            "run_id",
            "workflow",
            "workflow_hash",
            "status",
            "created_ms",
            "started_ms",
            "ended_ms",
            "duration_ms",
            "tokens",
            "output",
            "steps",
            "degraded",
            "error",
        ],
    );
    assert_keys(&run["tokens"], &["prompt", "output", "estimated"]);
    if !run["output"].is_null() {
        assert_keys(&run["output"], &["markdown", "title", "tags", "summary"]);
    }
    for step in run["steps"].as_array().unwrap() {
        assert_keys(
            step,
            &[
                "id",
                "agent",
                "index",
                "iteration",
                "status",
                "started_ms",
                "duration_ms",
                "attempts",
                "refusals",
                "degraded",
                "error",
                "output",
            ],
        );
        for attempt in step["attempts"].as_array().unwrap() {
            assert_keys(attempt, &["started_ms", "duration_ms", "status", "error_code", "retry_after"]);
        }
        for refusal in step["refusals"].as_array().unwrap() {
            assert_keys(refusal, &["at_ms", "error_code", "retry_after"]);
        }
        if !step["degraded"].is_null() {
            assert_keys(&step["degraded"], &["cause", "action"]);
        }
    }
    for line in run["degraded"].as_array().unwrap() {
        assert_keys(line, &["step", "cause", "action"]);
    }
}
