//! A reload lets nobody in that a start would not, takes no vanished file for an empty one, misses no change since the start's load, and
//! holds up nobody whose calls are under way.

use std::{
    net::SocketAddr,
    path::Path,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
};

use crate::{
    process::{Running, command},
    project::{folder, put, text},
    service::{ask, bound, json_of, serve},
};

const AGENTS: &str = "[providers.local]\nkind = \"embedded\"\n\n[agents.draft]\nprovider = \"local\"\nslots = 3\n";
const KEY: &str = "key-of-the-operator-0123456789";

fn config(listen: &str, more: &str) -> String {
    format!("{AGENTS}[serve]\nlisten = \"{listen}\"\n{more}")
}

fn start(folder: &Path, more: &[&str]) -> Running {
    let mut command = command(&["serve", text(folder)]);
    command.args(more).env("KEY_OF_OPS", KEY);
    Running::start(command)
}

/// Where it listens, asked on this machine whatever it is bound to.
fn address_of(service: &mut Running) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], bound(service).port()))
}

/// Reloads by SIGHUP and gives what was said about it.
fn reload(service: &mut Running) -> String {
    let before = service.said().len();
    service.signal("HUP");
    let began = std::time::Instant::now();
    loop {
        let said = service.said()[before..].to_owned();
        if ["nothing has changed:\n  ", "every value is as it was", "values are others", "value is another"]
            .iter()
            .any(|end| said.contains(end))
        {
            return said;
        }
        assert!(began.elapsed() < crate::process::BOUND, "{said}");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn a_reload_opens_nothing_that_listens_beyond_this_machine() {
    let keys = "[keys.ops]\nkey_env = \"KEY_OF_OPS\"\nrole = \"operator\"\n";
    let project = folder(&[("watertight.toml", &config("0.0.0.0:0", keys))]);
    let mut service = start(project.path(), &[]);
    let address = address_of(&mut service);
    let is_shut = || ask(address, "GET", "/v1/config", "").starts_with("HTTP/1.1 401");
    assert!(is_shut());
    for (config, word) in [
        (config("0.0.0.0:0", ""), "there are no keys"),
        // What is listened on is of the start.
        (config("127.0.0.1:0", ""), "serve.listen = \"0.0.0.0:"),
        (AGENTS.to_owned(), "there are no keys"),
        // Words that the start did not hear.
        (config("0.0.0.0:0", "open_to_network = \"without keys\"\n"), "there are no keys"),
        (config("127.0.0.1:0", "open_to_network = \"without keys\"\n"), "there are no keys"),
    ] {
        put(project.path(), "watertight.toml", config.as_bytes());
        let said = reload(&mut service);
        assert!(said.contains("is refused") && said.contains(word), "{config}: {said}");
        assert!(is_shut(), "{config}");
    }
    service.signal("TERM");
    service.end().exits(0);
}

#[test]
fn a_file_that_vanished_is_not_taken_for_an_empty_one() {
    let project = folder(&[
        ("watertight.toml", AGENTS),
        ("agents/draft/agent.toml", "embedded = \"draft\"\n"),
        ("agents/draft/prompt.md", "Write: {{ input }}"),
        ("agents/other/agent.toml", "embedded = \"review\"\n"),
    ]);
    let path = |name: &str| project.path().join(name);
    let mut service = start(project.path(), &["--listen", "127.0.0.1:0"]);
    let address = address_of(&mut service);
    let slots = || {
        let config = json_of(&ask(address, "GET", "/v1/config", ""));
        let row = config["values"].as_array().unwrap().iter().find(|row| row["key"] == "agents.draft.slots").cloned();
        row.map(|row| row["value"].as_str().unwrap().to_owned())
    };
    let had = slots();
    for name in ["watertight.toml", "agents/draft/agent.toml", "agents"] {
        let aside = path("aside");
        std::fs::rename(path(name), &aside).unwrap();
        let said = reload(&mut service);
        assert!(said.contains("is refused") && said.contains("is not there any more"), "{name}: {said}");
        assert_eq!(slots(), had, "{name}");
        std::fs::rename(&aside, path(name)).unwrap();
        assert!(reload(&mut service).contains("every value is as it was"), "{name}");
    }
    // A link that leads nowhere is no empty file either.
    std::fs::rename(path("watertight.toml"), path("aside")).unwrap();
    std::os::unix::fs::symlink(path("nowhere"), path("watertight.toml")).unwrap();
    let said = reload(&mut service);
    assert!(said.contains("is refused") && said.contains("watertight.toml: cannot be read"), "{said}");
    std::fs::rename(path("aside"), path("watertight.toml")).unwrap();
    service.signal("TERM");
    service.end().exits(0);
}

#[test]
fn what_changes_between_the_load_of_a_start_and_its_first_look_is_taken_up() {
    let project = folder(&[("watertight.toml", AGENTS)]);
    // The first one has the journal: the second has read its files, and does not look at them before the first has gone.
    let mut first = start(project.path(), &["--listen", "127.0.0.1:0"]);
    address_of(&mut first);
    let log = project.path().join("calls.jsonl");
    let mut second = start(project.path(), &["--listen", "127.0.0.2:0", "--call-log", text(&log)]);
    let began = std::time::Instant::now();
    while !log.exists() {
        assert!(began.elapsed() < crate::process::BOUND, "{}", second.said());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    put(project.path(), "watertight.toml", AGENTS.replace("slots = 3", "slots = 5").as_bytes());
    first.wait_for("agents.draft.slots: 3 -> 5");
    first.signal("TERM");
    first.end().exits(0);
    second.wait_for("journal: ");
    second.wait_for("agents.draft.slots: 3 -> 5");
    second.signal("TERM");
    second.end().exits(0);
}

/// Whatever becomes of the reloads, the others end with them.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Reloads take the locks that calls take, on other threads and in the same order.
#[test]
fn reloads_under_load_hold_up_nobody() {
    let project = folder(&[("watertight.toml", AGENTS)]);
    let (service, address) = serve(text(project.path()));
    let over = AtomicBool::new(false);
    let answered = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let _ending = Ending(&over);
        for _ in 0..8 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let answer = ask(address, "POST", "/v1/agents/draft/call", r#"{"input":{"notes":"x"}}"#);
                    assert!(answer.starts_with("HTTP/1.1"), "{answer}");
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for slots in (0..150).map(|turn| 10 + turn % 2) {
            put(project.path(), "watertight.toml", AGENTS.replace("slots = 3", &format!("slots = {slots}")).as_bytes());
            // It fails after a bound if nothing is answered any more.
            let answer = json_of(&ask(address, "POST", "/v1/config/reload", ""));
            assert!(answer["changes"].is_array(), "{answer}");
        }
    });
    assert!(answered.load(Ordering::Relaxed) > 0);
    service.signal("TERM");
    service.end().exits(0);
}
