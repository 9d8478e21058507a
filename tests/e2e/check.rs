//! `check`: what can be known without running, and one call with everything that went over the wire.

use serde_json::Value;

use crate::{
    process::{Agent, Running, command, watertight},
    project::{MOMENTLY, folder, text},
};

#[test]
fn every_example_is_sound() {
    for config in ["watertight.toml", "processes.toml", "local-llm.toml"] {
        let config = format!("{MOMENTLY}/{config}");
        let ended = watertight(&["check", MOMENTLY, "--config", &config]).exits(0);
        assert!(ended.out.contains("ok: workflow momently, 5 steps"), "{config}: {}", ended.out);
        let json = watertight(&["check", MOMENTLY, "--config", &config, "--json"]).exits(0).json();
        assert_eq!((json["ok"].as_bool(), json["agents"].as_array().map(Vec::len)), (Some(true), Some(5)));
    }
}

#[test]
fn gateways_are_sound() {
    for (config, agent) in [("watertight.toml", "pool"), ("azure.toml", "writer")] {
        let file = format!("examples/gateway/{config}");
        let mut check = command(&["check", "examples/gateway", "--config", &file, "--json"]);
        check.env("AZURE_OPENAI_KEY", "a");
        let json = Running::start(check).end().exits(0).json();
        assert_eq!(json["ok"], true, "{json}");
        assert!(json["agents"].as_array().unwrap().iter().any(|known| known == agent), "{json}");
    }
}

/// Each workflow that was checked is named with its file, wherever it lies; where there is none that is said.
#[test]
fn every_workflow_that_was_checked_is_named() {
    let workflow = |name: &str| {
        format!(
            "[workflow]\nname = \"{name}\"\noutput = \"steps.a.output\"\n[[step]]\nid = \"a\"\nagent = \"meta\"\nin = {{}}\n"
        )
    };
    let [one, two, three] = ["one", "two", "three"].map(workflow);
    let first = ("workflow.toml", one.as_str());
    let more = [("workflows/b.toml", two.as_str()), ("workflows/c.toml", three.as_str())];
    let named = |name: &str, file: &str| format!("ok: workflow {name}, 1 step ({file})");
    for (files, said) in [
        (
            vec![],
            vec![
                "ok: neither workflow.toml nor workflows/*.toml here, so only settings and agents were checked"
                    .to_owned(),
            ],
        ),
        (vec![first], vec![named("one", "workflow.toml")]),
        (more.to_vec(), vec![named("two", "workflows/b.toml"), named("three", "workflows/c.toml")]),
        (
            [&[first], &more[..]].concat(),
            vec![named("one", "workflow.toml"), named("two", "workflows/b.toml"), named("three", "workflows/c.toml")],
        ),
    ] {
        let project = folder(&files);
        let at = text(project.path());
        let ended = watertight(&["check", at]).exits(0);
        let lines: Vec<String> = ended
            .out
            .lines()
            .filter(|line| line.starts_with("ok: "))
            .map(|line| line.replace(&format!("{at}/"), ""))
            .collect();
        assert_eq!(lines, said);
        let json = watertight(&["check", at, "--json"]).exits(0).json();
        assert_eq!(json["workflows"].as_array().map(Vec::len), Some(files.len()), "{json}");
    }
    let project = folder(&[first, more[0]]);
    let only = text(&project.path().join("workflows/b.toml")).to_owned();
    let ended = watertight(&["check", text(project.path()), "--workflow", &only]).exits(0);
    assert!(ended.out.contains("workflow two") && !ended.out.contains("workflow one"), "{}", ended.out);
}

/// A misspelt table is one more agent, which may be meant: a warning with the name that is near, and only where the workflow's own has none.
#[test]
fn an_agent_that_nobody_names_is_doubted_where_a_name_is_near() {
    let table = |name: &str| format!("[agents.{name}]\nembedded = \"meta\"\nslots = 3\n");
    let workflow =
        "[workflow]\nname = \"one\"\noutput = \"steps.a.output\"\n[[step]]\nid = \"a\"\nagent = \"meta\"\nin = {}\n";
    for (config, is_doubted) in [
        (table("meat"), true),
        (table("meta"), false),
        (table("meta") + &table("meat"), false),
        (table("photograph"), false),
    ] {
        let project = folder(&[("watertight.toml", &config), ("workflow.toml", workflow)]);
        let ended = watertight(&["check", text(project.path())]).exits(0);
        let said = ended.err.contains("watertight.toml:1: agents.meat: is one more agent")
            && ended.err.contains("did you mean \"meta\"");
        assert_eq!(said, is_doubted, "{config}: {}", ended.err);
        assert_eq!(ended.err.contains("warning"), is_doubted, "{config}: {}", ended.err);
    }
}

/// Built-in agents that nobody asks for need not fit the project's providers.
#[test]
fn a_gateway_whose_agents_alone_name_models_is_sound() {
    let config =
        "[providers.up]\nkind = \"openai\"\nbase_url = \"http://127.0.0.1:9/v1\"\n[agents.fast]\nmodel = \"m\"\n";
    let workflow =
        "[workflow]\nname = \"one\"\noutput = \"steps.a.output\"\n[[step]]\nid = \"a\"\nagent = \"fast\"\nin = {}\n";
    let built_in = workflow.replace("\"fast\"", "\"draft\"");
    let files = |workflow: Option<&'static str>| {
        [("watertight.toml", config)].into_iter().chain(workflow.map(|text| ("workflow.toml", text)))
    };
    for (workflow, exit) in [(None, 0), (Some(workflow), 0), (Some(built_in.leak() as &str), 2)] {
        let project = folder(&files(workflow).collect::<Vec<_>>());
        let ended = watertight(&["check", text(project.path()), "--json"]).exits(exit);
        if exit == 0 {
            assert_eq!(ended.json()["agents"], serde_json::json!(["fast"]), "{ended:?}");
        } else {
            assert!(ended.err.contains("agents.draft"), "{ended:?}");
        }
    }
}

#[test]
fn every_value_says_where_it_comes_from() {
    let mut command = command(&[
        "check",
        MOMENTLY,
        "--explain",
        "--set",
        "agents.meta.slots=3",
        "--set",
        "defaults.breaker.open=45s",
    ]);
    command.env("WATERTIGHT_AGENTS__STYLE__SLOTS", "7");
    let ended = Running::start(command).end().exits(0);
    for (key, value, origin) in [
        ("agents.meta.slots", "3", "--set agents.meta.slots"),
        ("agents.style.slots", "7", "WATERTIGHT_AGENTS__STYLE__SLOTS"),
        ("agents.photos.slots", "4", "examples/momently/watertight.toml:6"),
        ("agents.draft.slots", "10", "default"),
        ("agents.draft.breaker.open", "45s", "--set defaults.breaker.open"),
        ("agents.draft.breaker.failure_share", "0.5", "default"),
    ] {
        let line =
            ended.out.lines().find(|line| line.starts_with(&format!("{key} "))).unwrap_or_else(|| panic!("{key}"));
        let cells: Vec<&str> = line.splitn(3, "  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
        assert!(line.contains(&format!(" {value} ")) && line.ends_with(origin), "{cells:?}");
    }
}

const KEY: &str = "sk-very-secret-0123456789";

/// A project whose `draft` is served by `agent`, with a key.
fn keyed(agent: &Agent) -> tempfile::TempDir {
    let config = format!(
        "[providers.draft]\nkind = \"http\"\nbase_url = \"{}\"\napi_key_env = \"DRAFT_KEY\"\n[agents.draft]\nprovider = \"draft\"\n",
        agent.url()
    );
    folder(&[("watertight.toml", &config), ("in.json", "{\"notes\": \"A day at the sea.\", \"language\": \"en\"}")])
}

#[test]
fn one_call_shows_all_but_secrets() {
    let agent = Agent::start("draft", None);
    let project = keyed(&agent);
    let input = project.path().join("in.json");
    let call = |further: &[&str]| {
        let mut args = vec!["check", text(project.path()), "--call", "draft", "--input", text(&input)];
        args.extend(further);
        let mut command = command(&args);
        command.env("DRAFT_KEY", KEY);
        Running::start(command).end()
    };
    let ended = call(&[]).exits(0);
    let said = [
        "== request",
        "POST",
        "A day at the sea.",
        "idempotency-key",
        "== answer",
        "200",
        "== read as",
        "\"output\"",
        "== counts as",
    ];
    for text in said {
        assert!(ended.out.contains(text), "{text:?}: {}", ended.out);
    }
    assert!(ended.out.to_lowercase().contains("authorization"), "that a key was sent is shown: {}", ended.out);
    assert!(!ended.out.contains(KEY) && !ended.err.contains(KEY), "{ended:#?}");
    let json = call(&["--json"]).exits(0).json();
    assert!(json["read"]["output"]["text"].as_str().is_some_and(|text| text.contains("sea")), "{json:#}");
    assert!(json["exchange"]["request"].is_string() && !json.to_string().contains(KEY));
    drop(agent);
    let dead = call(&[]).exits(1);
    assert!(dead.out.contains("== request") && dead.out.to_lowercase().contains("failure"), "{}", dead.out);
}

#[test]
fn one_call_of_an_ill_agent_says_how_it_counts() {
    for (script, read, verdict) in [
        ("error_share = 1.0", "503", "failure"),
        ("client_error_share = 1.0\nclient_error_status = 404", "404", "ignored"),
        ("garbage_share = 1.0", "bad_reply", "failure"),
    ] {
        let scripts = folder(&[("ill.toml", &format!("[[phase]]\n{script}\n"))]);
        let agent = Agent::start("draft", Some(&scripts.path().join("ill.toml")));
        let project = keyed(&agent);
        let input = project.path().join("in.json");
        let mut command =
            command(&["check", text(project.path()), "--call", "draft", "--input", text(&input), "--json"]);
        command.env("DRAFT_KEY", KEY);
        let json = Running::start(command).end().exits(1).json();
        assert!(json["read"].to_string().contains(read), "{script}: {json:#}");
        assert_eq!(json["verdict"].as_str().map(str::to_lowercase).as_deref(), Some(verdict), "{script}");
        assert_ne!(json["exchange"], Value::Null);
    }
}

#[test]
fn an_embedded_agent_needs_no_wire() {
    let project = folder(&[("in.json", "{\"notes\": \"A day at the sea.\"}")]);
    let input = project.path().join("in.json");
    let ended = watertight(&["check", text(project.path()), "--call", "draft", "--input", text(&input)]).exits(0);
    assert!(ended.out.contains("nothing went over the wire") && ended.out.contains("sea"), "{}", ended.out);
}
