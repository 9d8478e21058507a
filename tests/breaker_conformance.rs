//! The conformance player itself: it passes what is right, names what is wrong, and refuses what it does not understand. The shared
//! vectors are played too, where they are at hand.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot be set up has failed")]

#[path = "../examples/breaker_conformance/player.rs"]
mod player;
#[path = "../examples/breaker_conformance/vector.rs"]
mod vector;

use std::{env, fs, path::PathBuf};

/// The folder of shared cases, if this checkout has it.
fn shared(name: &str) -> Option<PathBuf> {
    let folder =
        env::var("WATERTIGHT_SHARED").unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/../shared").into());
    let path = PathBuf::from(folder).join(name);
    if !path.exists() {
        println!("skipped: {} is not there", path.display());
    }
    path.exists().then_some(path)
}

fn read(text: &str) -> Result<Vec<(usize, vector::Scenario)>, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("vectors.jsonl");
    fs::write(&path, text).unwrap();
    vector::read(path.to_str().unwrap()).map_err(|bad| bad.to_string())
}

fn scenario(config: &str, steps: &[&str]) -> String {
    format!(r#"{{"name": "s", "profile": "strict", "config": {config}, "steps": [{}]}}"#, steps.join(", "))
}

#[test]
fn every_shared_vector_passes() {
    let Some(path) = shared("conformance/breaker_vectors.jsonl") else { return };
    let scenarios = vector::read(path.to_str().unwrap()).map_err(|bad| bad.to_string()).unwrap();
    assert!(scenarios.len() >= 41, "{} scenarios", scenarios.len());
    for (line, scenario) in scenarios {
        let mismatches = player::play(&scenario).unwrap();
        let told: Vec<String> = mismatches.iter().map(ToString::to_string).collect();
        assert!(told.is_empty(), "line {line}, {} [{}]: {told:#?}", scenario.name, scenario.profile);
    }
}

#[test]
fn mismatches_name_step_key_and_both_values() {
    let text = scenario(
        r#"{"window_size": 2, "minimum_calls": 2}"#,
        &[
            r#"{"at_ms": 0, "op": "acquire", "call": "a", "expect": {"admitted": true}}"#,
            r#"{"at_ms": 1, "op": "failure", "call": "a", "expect": {"state": "OPEN", "failure_rate": 100.0}}"#,
            r#"{"at_ms": 2, "op": "acquire", "call": "b"}"#,
            r#"{"at_ms": 2, "op": "failure", "call": "b", "expect": {"state": "OPEN", "failure_rate": 99.9995}}"#,
            r#"{"at_ms": 3, "op": "acquire", "call": "c", "expect": {"admitted": true, "not_permitted": 1}}"#,
            r#"{"at_ms": 4, "op": "to_closed"}"#,
            r#"{"at_ms": 4, "op": "to_half_open", "expect": {"events": ["RESET"]}}"#,
        ],
    );
    let (_, scenario) = read(&text).unwrap().remove(0);
    let told: Vec<String> = player::play(&scenario).unwrap().iter().map(ToString::to_string).collect();
    let want = [
        "step 2 (at 1 ms, Failure a): state: want OPEN, got CLOSED",
        "step 2 (at 1 ms, Failure a): failure_rate: want 100, got -1",
        "step 5 (at 3 ms, Acquire c): admitted: want true, got false",
        "step 7 (at 4 ms, ToHalfOpen): error: want none, got illegal_transition",
        r#"step 7 (at 4 ms, ToHalfOpen): events: want ["RESET"], got []"#,
    ];
    assert_eq!(told, want);
}

#[test]
fn what_is_not_understood_is_refused_with_its_place() {
    let step = r#"{"at_ms": 5, "op": "tick"}"#;
    let good = scenario("{}", &[step]);
    for (what, text, told) in [
        ("no JSON", format!("{good}\n{{"), ":2: EOF"),
        ("nothing", "\n\n".to_owned(), "holds no scenario"),
        ("unknown op", scenario("{}", &[r#"{"at_ms": 0, "op": "fly"}"#]), ":1: unknown variant `fly`"),
        ("unknown key", scenario(r#"{"windwo_size": 1}"#, &[step]), "unknown field `windwo_size`"),
        (
            "unknown expectation",
            scenario("{}", &[r#"{"at_ms": 0, "op": "tick", "expect": {"mood": 1}}"#]),
            "unknown field `mood`",
        ),
        ("time falls", scenario("{}", &[step, r#"{"at_ms": 4, "op": "tick"}"#]), "step 2: at_ms falls from 5 to 4"),
        (
            "unknown call",
            scenario("{}", &[r#"{"at_ms": 0, "op": "success", "call": "x"}"#]),
            "call x was never acquired",
        ),
        ("no call", scenario("{}", &[r#"{"at_ms": 0, "op": "acquire"}"#]), "names no call"),
    ] {
        let bad = read(&text).err().unwrap_or_else(|| panic!("{what} was read"));
        assert!(bad.contains(told), "{what}: {bad}");
    }
    let (_, impossible) = read(&scenario(r#"{"half_open_permits": 0}"#, &[step])).unwrap().remove(0);
    assert_eq!(player::play(&impossible).unwrap_err().key(), "trials");
}
