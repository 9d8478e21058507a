//! A running service whose configuration changes: its files, SIGHUP, an operator's order, `check --against`; and bad files, which change
//! nothing.

use std::{net::SocketAddr, path::Path};

use serde_json::Value;

use crate::{
    process::watertight,
    project::{folder, text},
    service::{ask, json_of, serve},
};

const CONFIG: &str = "[providers.local]\nkind = \"embedded\"\n\n[agents.draft]\nprovider = \"local\"\nslots = 3\n";

/// A value of the configuration in force.
fn value(address: SocketAddr, key: &str) -> Option<String> {
    let config = json_of(&ask(address, "GET", "/v1/config", ""));
    let row = config["values"].as_array().unwrap().iter().find(|row| row["key"] == key).cloned()?;
    Some(row["value"].as_str().unwrap().to_owned())
}

fn agents(address: SocketAddr) -> Vec<String> {
    let listed = json_of(&ask(address, "GET", "/v1/agents", ""));
    let agents = listed["data"].as_array().or_else(|| listed.as_array()).unwrap().clone();
    agents.iter().map(|agent| agent["name"].as_str().unwrap().to_owned()).collect()
}

fn write(folder: &Path, config: &str) {
    // As editors do it: another file in its place.
    std::fs::write(folder.join("new"), config).unwrap();
    std::fs::rename(folder.join("new"), folder.join("watertight.toml")).unwrap();
}

#[test]
fn a_running_service_takes_over_what_its_files_say() {
    let project = folder(&[("watertight.toml", CONFIG)]);
    let (mut service, address) = serve(text(project.path()));
    assert_eq!(value(address, "agents.draft.slots").as_deref(), Some("3"));

    // SIGHUP, at once.
    write(project.path(), &CONFIG.replace("slots = 3", "slots = 5"));
    let url = format!("http://{address}");
    let check = watertight(&["check", text(project.path()), "--against", &url]).exits(0);
    assert!(check.out.contains("agents.draft.slots") && check.out.contains("with a reload"), "{}", check.out);
    service.signal("HUP");
    service.wait_for("agents.draft.slots: 3 -> 5");
    assert_eq!(value(address, "agents.draft.slots").as_deref(), Some("5"));
    let same = watertight(&["check", text(project.path()), "--against", &url]).exits(0);
    assert!(same.out.contains("a reload would change nothing"), "{}", same.out);

    // The file alone, and a bad one: all of it is said, nothing changes.
    write(project.path(), "[agents.draft]\nslots = -1\nslotss = 2\n[serve]\nlisten = \"nowhere\"\n");
    service.wait_for("is refused, nothing has changed");
    service.wait_for("serve.listen");
    let said = service.said();
    for part in ["watertight.toml:2: agents.draft.slots = -1", "watertight.toml:3: agents.draft.slotss = 2"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    watertight(&["check", text(project.path()), "--against", &url]).exits(2);
    assert_eq!(value(address, "agents.draft.slots").as_deref(), Some("5"));
    let refused = json_of(&ask(address, "GET", "/v1/config", ""))["last_refusal"]["problems"].clone();
    assert_eq!(refused.as_array().map(Vec::len), Some(3), "{refused}");

    // An agent more, one less, an order, and what needs a restart.
    let changed = CONFIG.replace("agents.draft", "agents.review") + "[serve]\ngrace = \"7s\"\n";
    write(project.path(), &changed);
    let answer = json_of(&ask(address, "POST", "/v1/config/reload", ""));
    let changes = answer["changes"].as_array().unwrap();
    let of = |key: &str| changes.iter().find(|change| change["key"] == key).cloned().unwrap_or(Value::Null);
    assert_eq!(
        (&of("serve.grace")["after"], &of("serve.grace")["needs_restart"]),
        (&"7s".into(), &true.into()),
        "{answer}"
    );
    assert_eq!(of("agents.review.slots")["after"], "3", "{answer}");
    assert_eq!(agents(address), ["review"]);
    assert!(ask(address, "POST", "/v1/agents/draft/call", r#"{"input":{}}"#).contains("NOT_FOUND"));
    let page = ask(address, "GET", "/metrics", "");
    assert!(page.contains("watertight_reloads_total{result=\"ok\"} 2"), "{page}");
    assert!(
        page.contains("watertight_slots{agent=\"review\"} 3") && !page.contains("watertight_slots{agent=\"draft\"}")
    );
    assert!(!page.contains("watertight_breaker_state{breaker=\"agent:draft\""), "{page}");
    service.signal("TERM");
    service.end().exits(0);
}

/// B46 through a reload: what a start refuses, a reload refuses with the same words.
#[test]
fn absurd_files_change_nothing() {
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/../shared").to_owned();
    let cases = Path::new(&std::env::var("WATERTIGHT_SHARED").unwrap_or(beside)).join("cases/B46");
    if !cases.is_dir() {
        println!("skipped: there are no cases at {}", cases.display());
        return;
    }
    let project = folder(&[("watertight.toml", CONFIG)]);
    let (service, address) = serve(text(project.path()));
    let expected: Value = serde_json::from_slice(&std::fs::read(cases.join("expected.json")).unwrap()).unwrap();
    let all = expected["assert"].as_array().unwrap();
    assert_eq!(all.len(), 18);
    for case in all {
        let (file, wanted) = (case["file"].as_str().unwrap(), case["answer"].as_str().unwrap());
        write(project.path(), &std::fs::read_to_string(cases.join(file)).unwrap());
        let started = watertight(&["check", text(project.path())]);
        let answer = json_of(&ask(address, "POST", "/v1/config/reload", ""));
        let problems = answer["error"]["details"]["problems"].as_array().cloned();
        if let Some(problems) = problems {
            assert!(wanted.contains("refuse"), "{file}: {wanted}: {answer}");
            assert_eq!(value(address, "agents.draft.slots").as_deref(), Some("3"), "{file}");
            let started = started.exits(2);
            for problem in problems {
                let problem = problem.as_str().unwrap();
                assert!(problem.contains("watertight.toml:") && started.err.contains(problem), "{file}: {problem}");
            }
        } else {
            assert!(wanted.starts_with("accept"), "{file}: {wanted}: {answer}");
            assert_eq!(value(address, "agents.draft.slots").as_deref(), Some("0"), "{file}");
            let call = ask(address, "POST", "/v1/agents/draft/call", r#"{"input":{}}"#);
            assert!(call.contains("AGENT_BULKHEAD_FULL"), "{file}: {call}");
        }
        write(project.path(), CONFIG);
        assert!(json_of(&ask(address, "POST", "/v1/config/reload", ""))["changes"].is_array());
    }
    service.signal("TERM");
    service.end().exits(0);
}
