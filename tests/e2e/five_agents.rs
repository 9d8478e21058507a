//! The five agents as five processes; one of them dies or falls ill.

use crate::{
    process::{Agent, Ended, Running, command, five, watertight},
    project::{MOMENTLY, PHOTOS, assert_run_keys, assert_shows, folder, statuses, step, text},
};

fn args(agents: &[Agent], further: &[&str]) -> Vec<String> {
    let config = format!("{MOMENTLY}/processes.toml");
    let mut args = vec!["run".to_owned(), MOMENTLY.to_owned(), "--config".to_owned(), config];
    for agent in agents {
        args.extend(["--set".to_owned(), format!("providers.{}.base_url={}", agent.name, agent.url())]);
    }
    args.extend(further.iter().map(|arg| (*arg).to_owned()));
    args
}

fn run(agents: &[Agent], further: &[&str]) -> Ended {
    let args = args(agents, further);
    watertight(&args.iter().map(String::as_str).collect::<Vec<_>>())
}

/// The steps that did not succeed, with their statuses.
fn troubled(run: &serde_json::Value) -> Vec<(String, String)> {
    statuses(run).into_iter().filter(|(_, status)| status != "succeeded").collect()
}

fn pairs(want: &[(&str, &str)]) -> Vec<(String, String)> {
    want.iter().map(|(id, status)| ((*id).to_owned(), (*status).to_owned())).collect()
}

#[test]
fn processes_make_the_same_post() {
    let agents = five(None);
    let apart = run(&agents, &["--quiet"]).exits(0);
    let together = watertight(&["run", MOMENTLY, "--quiet"]).exits(0);
    assert_eq!(apart.out, together.out);
}

#[test]
fn a_dead_helper_is_gone_without() {
    let mut agents = five(None);
    agents[1].kill();
    let ended = run(&agents, &["--json"]).exits(3);
    let json = ended.json();
    assert_run_keys(&json);
    assert_eq!(json["status"], "completed_degraded");
    assert_eq!(troubled(&json), pairs(&[("style", "degraded")]), "nobody else");
    assert_shows(json["output"]["markdown"].as_str().unwrap(), &PHOTOS);
    let style = step(&json, "style");
    assert_eq!(style["degraded"], serde_json::json!({ "cause": "error", "action": "default" }));
    assert_eq!(style["error"]["error_code"], "AGENT_NETWORK_ERROR");
    assert_eq!((style["error"]["agent"].as_str(), style["error"]["http_status"].as_u64()), (Some("style"), Some(502)));
    assert_eq!(style["attempts"].as_array().unwrap().len(), 3, "it was tried again");
    let told = run(&agents, &[]).exits(3);
    assert_shows(&told.out, &PHOTOS);
    for text in [
        "! style: AGENT_NETWORK_ERROR after ",
        "went on with its default",
        "degraded: step style",
        "AGENT_NETWORK_ERROR",
    ] {
        assert!(told.err.contains(text), "{text:?}: {}", told.err);
    }
}

#[test]
fn a_dead_agent_that_cannot_be_spared_ends_the_run_with_its_name() {
    let mut agents = five(None);
    agents[2].kill();
    let ended = run(&agents, &["--json"]).exits(1);
    let json = ended.json();
    assert_run_keys(&json);
    assert_eq!((json["status"].as_str(), json["output"].is_null()), (Some("failed"), true));
    assert_eq!(troubled(&json), pairs(&[("draft", "failed"), ("review", "cancelled"), ("meta", "cancelled")]));
    let error = &json["error"];
    assert_eq!((error["error_code"].as_str(), error["agent"].as_str()), (Some("AGENT_NETWORK_ERROR"), Some("draft")));
    assert_eq!((error["retryable"].as_bool(), error["details"]["attempts"].as_u64()), (Some(true), Some(3)));
    let told = run(&agents, &["--quiet"]).exits(1);
    assert_eq!(told.out, "");
    for text in ["failed", "step draft", "agent draft", &agents[2].url(), "3 attempts", "start it"] {
        assert!(told.err.contains(text), "{text:?}: {}", told.err);
    }
}

#[test]
fn an_agent_that_dies_at_work() {
    let scripts = folder(&[("slow.toml", "[[phase]]\nlatency = \"60s\"\n")]);
    let script = scripts.path().join("slow.toml");
    for (at, name, code) in [(2, "draft", 1), (1, "style", 3)] {
        let mut agents = five(Some((name, &script)));
        let args = args(&agents, &["--json"]);
        let mut running = Running::start(command(&args.iter().map(String::as_str).collect::<Vec<_>>()));
        running.wait_for(&format!("> {name}\n"));
        running.wait_for("+ photos after ");
        agents[at].kill();
        let ended = running.end().exits(code);
        let json = ended.json();
        let ill = step(&json, name);
        assert_eq!(ill["error"]["error_code"], "AGENT_NETWORK_ERROR", "{}", ended.out);
        assert_eq!(step(&json, "photos")["status"], "succeeded");
        assert!(ended.err.contains(&format!("~ {name}: AGENT_NETWORK_ERROR after ")), "{}", ended.err);
    }
}

#[test]
fn an_ill_agent_gives_the_envelope_of_its_illness() {
    for (name, script, setting, code) in [
        ("503", "error_share = 1.0", "", "AGENT_ERROR"),
        ("hang", "hang_share = 1.0", "agents.style.timeout=300ms", "AGENT_TIMEOUT"),
        ("crawl", "latency = \"20s\"", "agents.style.timeout=300ms", "AGENT_TIMEOUT"),
        ("garbage", "garbage_share = 1.0", "", "AGENT_BAD_REPLY"),
        ("cut", "cut_share = 1.0", "", "AGENT_NETWORK_ERROR"),
        ("429", "rate_limit_share = 1.0\nretry_after = 1", "", "AGENT_ERROR"),
        ("quota", "rate_limit_share = 1.0\nretry_after = 3600", "", "QUOTA_SPENT"),
        ("422", "client_error_share = 1.0\nclient_error_status = 422", "", "AGENT_ERROR"),
    ] {
        let scripts = folder(&[("ill.toml", &format!("[[phase]]\n{script}\n"))]);
        let agents = five(Some(("style", &scripts.path().join("ill.toml"))));
        let mut further = vec!["--json", "--quiet"];
        if !setting.is_empty() {
            further.extend(["--set", setting]);
        }
        let ended = run(&agents, &further).exits(3);
        let json = ended.json();
        assert_eq!(troubled(&json), pairs(&[("style", "degraded")]), "{name}");
        let error = &step(&json, "style")["error"];
        assert_eq!(error["error_code"], code, "{name}: {error}");
        let as_sent = match name {
            "429" | "422" | "503" => name.parse().ok(),
            _ => error["http_status"].as_u64(),
        };
        assert_eq!(error["http_status"].as_u64(), as_sent, "{name}: {error}");
        assert_eq!(error["retryable"], !matches!(name, "422" | "quota"), "{name}");
        assert_shows(json["output"]["markdown"].as_str().unwrap(), &PHOTOS);
    }
}

#[test]
fn the_agents_of_a_project_are_served_too() {
    let ended = watertight(&["agent", "nobody"]).exits(2);
    assert!(
        ended.err.contains("there is no agent nobody; there are draft, meta, photos, review, style"),
        "{}",
        ended.err
    );
    let scripts = folder(&[("bad.toml", "[[phase]]\nlatency = \"fast\"\n")]);
    let script = scripts.path().join("bad.toml");
    let ended = watertight(&["agent", "draft", "--script", text(&script)]).exits(2);
    assert!(ended.err.contains("bad.toml:2: latency = \"fast\""), "{}", ended.err);
    let taken = Agent::start("draft", None);
    let ended = watertight(&["agent", "draft", "--listen", &taken.address.to_string()]).exits(2);
    assert!(ended.err.contains("cannot listen on"), "{}", ended.err);
}
