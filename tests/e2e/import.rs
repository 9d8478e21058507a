//! `import`: another tool's file in, a configuration out that `check` accepts, an account of every key beside it.

use crate::{
    process::{Running, command, watertight},
    project::{folder, text},
};

const APPLICATION: &str = "tests/import/application.yml";
const PROXY: &str = "tests/import/litellm.yaml";

#[test]
fn what_is_imported_is_checked_and_accepted() {
    for (tool, file, agents) in
        [("resilience4j", APPLICATION, ["draft", "review"]), ("litellm", PROXY, ["gpt-4o", "local-qwen"])]
    {
        let project = folder(&[]);
        let config = project.path().join("watertight.toml");
        let ended = watertight(&["import", tool, file, "--output", text(&config)]).exits(0);
        assert_eq!(ended.out, "", "the file is the result");
        assert!(ended.err.contains("wrote ") && ended.err.contains("not supported"), "{}", ended.err);
        let mut check = command(&["check", text(project.path())]);
        check.env("AZURE_API_KEY", "a").env("OPENAI_KEY", "b");
        let checked = Running::start(check).end().exits(0);
        assert!(agents.iter().all(|agent| checked.out.contains(agent)), "{}", checked.out);
        assert!(!checked.err.contains("warning"), "{}", checked.err);
        let again = watertight(&["import", tool, file, "--output", text(&config)]).exits(2);
        assert!(again.err.contains("is there already; --force overwrites it"), "{}", again.err);
        watertight(&["import", tool, file, "--output", text(&config), "--force"]).exits(0);
        let printed = watertight(&["import", tool, file]).exits(0);
        assert_eq!(printed.out, std::fs::read_to_string(&config).unwrap());
        let json = watertight(&["import", tool, file, "--json"]).exits(0).json();
        assert_eq!(json["config"].as_str(), Some(printed.out.as_str()));
        let findings = json["findings"].as_array().unwrap();
        assert!(findings.len() > 30 && findings.iter().all(|finding| finding["said"].is_string()), "{json:#}");
    }
}

#[test]
fn what_cannot_be_imported_is_told() {
    let files = folder(&[("twice.yml", "a: 1\nb: 2\na: 3\n"), ("empty.yml", ""), ("broken.yml", "a: [1\nb: 2\n")]);
    for (tool, name, said) in [
        ("resilience4j", "twice.yml", "twice.yml:3: `a` stands twice in one table, first on line 1"),
        ("litellm", "empty.yml", "must be one YAML document"),
        ("resilience4j", "broken.yml", "broken.yml:"),
        ("litellm", "missing.yml", "missing.yml: "),
    ] {
        let ended = watertight(&["import", tool, text(&files.path().join(name))]).exits(2);
        assert!(ended.err.contains(said) && ended.out.is_empty(), "{}", ended.err);
    }
    let ended = watertight(&["import", "resilience4j", APPLICATION, "--base-url", "nowhere"]).exits(2);
    assert!(ended.err.contains("--base-url must begin with http"), "{}", ended.err);
}
