//! Photos and notes in, a blog post out.

use crate::{
    process::watertight,
    project::{MOMENTLY, PHOTOS, assert_run_keys, assert_shows, shared, statuses, step, text},
};

#[test]
fn one_command_makes_the_post() {
    let run = watertight(&["run", MOMENTLY]).exits(0);
    assert_shows(&run.out, &PHOTOS);
    assert!(run.out.starts_with("# ") && run.out.contains("2025년 4월 12일"), "{}", run.out);
    for line in [
        "> photos",
        "+ photos after ",
        "+ style after ",
        "+ draft after ",
        "+ review after ",
        "+ meta after ",
        "= completed",
    ] {
        assert!(run.err.contains(line), "{line:?}: {}", run.err);
    }
    let quiet = watertight(&["run", MOMENTLY, "--quiet"]).exits(0);
    assert_eq!((quiet.out, quiet.err.as_str()), (run.out, ""), "the same post each time, and nothing beside");
}

/// Compartments are for callers of a service; whoever runs the program is none of them.
#[test]
fn a_project_with_compartments_is_run_too() {
    let given = ["--set", "features.chat.slots=2", "--set", "tiers.free.slots=1"];
    let run = watertight(&[&["run", MOMENTLY, "--quiet"][..], &given].concat()).exits(0);
    assert_shows(&run.out, &PHOTOS);
}

#[test]
fn as_json_it_is_one_object_of_the_documented_shape() {
    let run = watertight(&["run", MOMENTLY, "--json", "--quiet"]).exits(0);
    assert_eq!(run.out.lines().count(), 1);
    let json = run.json();
    assert_run_keys(&json);
    assert_eq!((json["status"].as_str(), json["workflow"].as_str()), (Some("completed"), Some("momently")));
    assert!(json["error"].is_null() && json["degraded"].as_array().is_some_and(Vec::is_empty));
    let names: Vec<String> = statuses(&json).into_iter().map(|(id, status)| format!("{id} {status}")).collect();
    assert_eq!(names, ["photos", "style", "draft", "review", "meta"].map(|id| format!("{id} succeeded")));
    let (created, ended) = (json["created_ms"].as_u64().unwrap(), json["ended_ms"].as_u64().unwrap());
    assert_eq!(json["duration_ms"].as_u64(), Some(ended - created));
    assert_eq!(step(&json, "draft")["output"]["model"], serde_json::Value::Null, "it says that no model was used");
}

#[test]
fn real_photos_without_notes() {
    let Some(input) = shared("data/photos-arezzo") else { return };
    let run = watertight(&["run", MOMENTLY, "--input", text(&input)]).exits(0);
    let names = ["0010", "0012", "0021", "0025", "0027", "0029", "0038", "0040", "0042"];
    let names = names.map(|number| format!("DSCN{number}.jpg"));
    assert_shows(&run.out, &names.each_ref().map(String::as_str));
    assert!(run.out.contains("22 October 2008"), "{}", run.out);
}

#[test]
fn inputs_can_be_given_one_by_one() {
    let photo = format!("{MOMENTLY}/input/photos/{}", PHOTOS[2]);
    let args =
        ["run", MOMENTLY, "--quiet", "--with", &format!("photos={photo}"), "--with", "notes=A field of rape.\nWind."];
    let run = watertight(&args).exits(0);
    assert_shows(&run.out, &[PHOTOS[2]]);
    assert!(!run.out.contains(PHOTOS[0]) && run.out.contains("rape"), "{}", run.out);
}
