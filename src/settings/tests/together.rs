//! All that is wrong, in one go.

use std::path::Path;

use super::given::Given;
use crate::settings::folder::ConfigFile;

#[test]
fn all_slips_are_told_in_one_go() {
    let config = "[run]\nlanguage = 'fr'\n[providers.p]\nkind = 'embedded'\nbase_url = 'x'\n[agents.draft]\nslots = -1\n\
                  timeout = '5'\n[agents.draft.breaker]\nwindwo = '60s'\ntrials = 0\n[quotas]\na = 1\n[agents.'']\n";
    Given::config(config).only(&[]).refused(&[
        "w.toml:2: run.language = \"fr\": must be one of en, ko",
        "w.toml:5: providers.p.base_url = \"x\": is not for kind = \"embedded\": its agents work inside this program",
        "w.toml:7: agents.draft.slots = -1: must be a whole number from 0 to 100000",
        "w.toml:8: agents.draft.timeout = \"5\": must have a unit: ms, s, m or h, as in \"30s\"",
        "w.toml:10: agents.draft.breaker.windwo = \"60s\": unknown key, did you mean `window`?",
        "w.toml:11: agents.draft.breaker.trials = 0: must be 1 to 10000: without a trial it could never close",
        "w.toml:13: quotas.a = 1: is not built yet",
        "w.toml:14: agents.\"\" = {}: \"\" is no name: 1 to 64 letters, digits, '-', '_' or '.', the first a letter or digit",
    ]);
    let many = (0..500).map(|number| format!("key_{number} = 1")).collect::<Vec<_>>().join("\n");
    let error = Given::config(&many).load().unwrap_err();
    assert_eq!(error.problems().len(), 500);
    assert!(error.to_string().ends_with("and 300 more problems"));
}

#[test]
fn files_that_are_no_toml() {
    for (bytes, line) in [
        (&b"[a"[..], "w.toml:1: is no TOML: "),
        (b"a = 1\n\xff", "w.toml: is not UTF-8 (at byte 6)"),
        (b"a = 1\na = 2\n", "w.toml:2: is no TOML: "),
    ] {
        let error = Given::bytes(bytes).load().unwrap_err().to_string();
        assert!(error.lines().any(|said| said.starts_with(line)), "{line}: {error}");
    }
    let error = Given::bytes(&vec![b'#'; 5 * 1024 * 1024]).load().unwrap_err().to_string();
    assert_eq!(error, "w.toml: has 5242880 bytes, at most 4194304 are allowed");
    assert!(Given::config("\u{feff}[run]\n").load().is_ok());
    assert!(Given::config("[run]\r\nlanguage = 'ko'\r\n").load().is_ok());
}

/// The folder of cases that lies beside the repository, where it does.
fn shared_cases(case: &str) -> Option<std::path::PathBuf> {
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/../shared").to_owned();
    let root = std::env::var("WATERTIGHT_SHARED").unwrap_or(beside);
    let folder = Path::new(&root).join("cases").join(case);
    if folder.is_dir() {
        return Some(folder);
    }
    println!("skipped: there are no cases at {}", folder.display());
    None
}

#[test]
fn absurd_configurations_of_the_case_collection() {
    let Some(folder) = shared_cases("B46") else { return };
    let expected: serde_json::Value =
        serde_json::from_slice(&std::fs::read(folder.join("expected.json")).unwrap()).unwrap();
    let cases = expected["assert"].as_array().unwrap();
    assert_eq!(cases.len(), 18);
    // Where either answer is allowed, ours is to refuse. Each message names file, line, key and value.
    let named = [
        ("c01.toml", "c01.toml:8: agents.draft.breaker.window_calls = 0: "),
        ("c02.toml", "c02.toml:9: agents.draft.breaker.calls_min = 21: "),
        ("c03.toml", "c03.toml:8: agents.draft.breaker.failure_share = 0.0: "),
        ("c04.toml", "c04.toml:8: agents.draft.breaker.failure_share = 1.01: "),
        ("c05.toml", "c05.toml:8: agents.draft.breaker.failure_share = nan: "),
        ("c06.toml", "c06.toml:8: agents.draft.breaker.open = \"0s\": "),
        ("c07.toml", "c07.toml:8: agents.draft.breaker.open = \"-1s\": "),
        ("c08.toml", "c08.toml:8: agents.draft.breaker.trials = 0: "),
        ("c10.toml", "c10.toml:6: agents.draft.slots = -1: "),
        ("c11.toml", "c11.toml:8: features.chat.tokens_per_minute = 0: must be a whole number from 1"),
        ("c12.toml", "c12.toml:9: agents.draft.breaker.slow_call = \"61s\": "),
        ("c13.toml", "c13.toml:8: agents.draft.breaker.open = \"1e30s\": "),
        ("c14.toml", "c14.toml:8: agents.draft.breaker.failure_share = 50: "),
        ("c15.toml", "c15.toml:8: agents.draft.breaker.windwo_calls = 20: unknown key, did you mean `window_calls`?"),
        ("c16.toml", "c16.toml:8: volume_guard.calls_per_hour = 0: must be a whole number from 1"),
        ("c17.toml", "c17.toml:9: agents.draft.breaker.trials = 25: "),
        ("c18.toml", "c18.toml:4: agents.\"\" = { provider = \"local\" }: "),
    ];
    for case in cases {
        let (file, answer) = (case["file"].as_str().unwrap(), case["answer"].as_str().unwrap());
        let bytes = std::fs::read(folder.join(file)).unwrap();
        let mut given = Given::bytes(&bytes).only(&["draft"]);
        given.config = Some(ConfigFile { path: file.to_owned(), bytes });
        match (given.load(), named.iter().find(|(name, _)| *name == file)) {
            (Err(error), Some((_, beginning))) => {
                let said = error.to_string();
                assert!(answer.contains("refuse"), "{file}: {answer}");
                assert_eq!(said.lines().count(), 1, "{file}: {said}");
                assert!(said.starts_with(beginning), "{file}: {said}");
            }
            (Ok(settings), None) => {
                assert!(answer.starts_with("accept"), "{file}: {answer}");
                assert_eq!(settings.agent("draft").unwrap().settings.slots, 0, "{file}");
            }
            (result, _) => panic!("{file}: {answer}, but {result:?}"),
        }
    }
}
