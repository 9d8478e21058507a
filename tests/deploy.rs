//! What `deploy/` names must exist: commands, flags, keys, files, ports, variables. The configuration there is loaded, the health check
//! there is asked; the browser example is what it says. Images are not built: that needs a daemon and a registry.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot be set up has failed")]

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, Command, Output, Stdio},
};

use serde_json::Value;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn compose() -> Value {
    serde_saphyr::from_str(&read("deploy/compose.yaml")).unwrap()
}

fn watertight(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_watertight"));
    command
        .args(arguments)
        .current_dir(root())
        .env("APP_KEY", "a-key-for-this-test-of-32-letters!")
        .stdin(Stdio::null());
    command
}

fn output(arguments: &[&str]) -> Output {
    watertight(arguments).output().unwrap()
}

const SERVE: [&str; 6] =
    ["serve", "deploy", "--workflow", "examples/momently/workflow.toml", "--config", "deploy/watertight.toml"];

/// Texts of a list.
fn texts(value: &Value) -> Vec<&str> {
    value.as_array().unwrap_or_else(|| panic!("{value}")).iter().filter_map(Value::as_str).collect()
}

#[test]
fn the_configuration_is_sound() {
    let ended = output(&["check", "deploy", "--workflow", "examples/momently/workflow.toml"]);
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    let odd: Vec<&str> = said.lines().filter(|line| !line.contains("providers.ollama.slots = 1: is fewer")).collect();
    assert!(odd.is_empty(), "one slot for four agents is meant, nothing else is odd: {odd:#?}");
    let compose = compose();
    let config: toml::Table = read("deploy/watertight.toml").parse().unwrap();
    let base_url = config["providers"]["ollama"]["base_url"].as_str().unwrap();
    let host = base_url.split("://").nth(1).and_then(|rest| rest.split(':').next()).unwrap();
    assert!(compose["services"][host].is_object(), "{base_url}: compose has no service {host}");
    let model = config["providers"]["ollama"]["model"].as_str().unwrap();
    assert_eq!(texts(&compose["services"]["model"]["command"]), ["pull", model]);
    let key = config["keys"]["app"]["key_env"].as_str().unwrap();
    assert!(compose["services"]["watertight"]["environment"][key].is_string(), "{key}");
}

#[test]
fn the_service_is_only_wider_than_this_machine_because_it_has_a_key() {
    let config: toml::Table = read("deploy/watertight.toml").parse().unwrap();
    assert!(config["serve"]["listen"].as_str().unwrap().starts_with("0.0.0.0:"));
    let folder = tempfile::tempdir().unwrap();
    let mut keyless = config;
    keyless.remove("keys");
    let path = folder.path().join("watertight.toml");
    fs::write(&path, keyless.to_string()).unwrap();
    let ended = output(&[
        "serve",
        "deploy",
        "--workflow",
        SERVE[3],
        "--config",
        path.to_str().unwrap(),
        "--listen",
        "0.0.0.0:0",
    ]);
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(2), "{said}");
    assert!(said.contains("there are no keys"), "{said}");
}

/// A process that dies with this value.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn healthcheck(port: &str) -> bool {
    Command::new("bash").args(["deploy/healthcheck.sh", port]).current_dir(root()).status().unwrap().success()
}

#[test]
fn the_health_check_tells_the_living_from_the_dead() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("watertight.toml");
    fs::copy(root().join("deploy/watertight.toml"), &config).unwrap();
    let mut command =
        watertight(&["serve", folder.path().to_str().unwrap(), "--workflow", SERVE[3], "--listen", "127.0.0.1:0"]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    let mut running = Running(child);
    let port = lines.find_map(|line| line.split("on http://127.0.0.1:").nth(1).map(str::to_owned)).unwrap();
    assert!(healthcheck(&port), "it lives on {port}");
    running.0.kill().unwrap();
    running.0.wait().unwrap();
    assert!(!healthcheck(&port), "it is dead");
}

#[test]
fn what_the_compose_file_names_exists() {
    let text = read("deploy/compose.yaml");
    let readme = read("deploy/README.md");
    let compose = compose();
    let watertight = &compose["services"]["watertight"];
    let dockerfile = watertight["build"]["dockerfile"].as_str().unwrap();
    assert!(root().join(dockerfile).exists(), "{dockerfile}");
    for volume in texts(&watertight["volumes"]) {
        let source = volume.split(':').next().unwrap();
        let there = if source.starts_with('.') {
            root().join("deploy").join(source).exists()
        } else {
            compose["volumes"].get(source).is_some()
        };
        assert!(there, "{volume}");
    }
    for variable in text.split("${").skip(1) {
        let name: String =
            variable.chars().take_while(|letter| letter.is_ascii_uppercase() || *letter == '_').collect();
        assert!(readme.contains(&format!("| `{name}` |")), "deploy/README.md does not tell of {name}");
    }
    for port in texts(&watertight["ports"]) {
        assert!(port.starts_with("127.0.0.1:") && port.ends_with(":7800"), "{port}");
    }
    // Compose must wait longer than the service gives to its calls.
    let explained = output(&["check", "deploy", "--workflow", SERVE[3], "--explain"]);
    let explained = String::from_utf8_lossy(&explained.stdout).into_owned();
    let grace =
        explained.lines().find(|line| line.starts_with("serve.grace ")).unwrap_or_else(|| panic!("{explained}"));
    assert!(grace.contains("30s") && watertight["stop_grace_period"] == "40s", "{grace}");
}

#[test]
fn what_the_dockerfile_names_exists() {
    let text = read("deploy/Dockerfile");
    let rust_version =
        read("Cargo.toml").lines().find_map(|line| line.strip_prefix("rust-version = ").map(str::to_owned));
    assert!(
        text.contains(&format!("FROM rust:{}-", rust_version.unwrap().trim_matches('"'))),
        "the toolchain of Cargo.toml"
    );
    assert!(text.contains("USER 10001:10001") && text.contains("HEALTHCHECK"), "not root, with a health check");
    for line in
        text.lines().filter(|line| line.starts_with("COPY ") && !line.contains("--from=") && *line != "COPY . .")
    {
        let words: Vec<&str> = line.split_whitespace().collect();
        for source in &words[1..words.len() - 1] {
            assert!(root().join(source).exists(), "{line}: there is no {source}");
        }
    }
    let profile = text.split("--profile ").nth(1).unwrap().split_whitespace().next().unwrap();
    assert!(read("Cargo.toml").contains(&format!("[profile.{profile}]")));
    assert!(text.contains(&format!("target/{profile}/watertight")));
    let command: Vec<String> =
        serde_json::from_str(text.lines().find_map(|line| line.strip_prefix("CMD ")).unwrap()).unwrap();
    assert!(output(&[&command[0], "--help"]).status.success(), "{command:?}");
}

#[test]
fn the_browser_example_is_as_short_as_it_says_and_fetches_nothing_from_elsewhere() {
    assert!(read("examples/browser/follow.js").lines().count() <= 60);
    let page = read("examples/browser/index.html");
    for (attribute, at) in
        ["src=\"", "href=\""].iter().flat_map(|key| page.match_indices(key)).map(|(at, key)| (key, at))
    {
        let name = page[at + attribute.len()..].split('"').next().unwrap();
        assert!(root().join("examples/browser").join(name).exists(), "{name}");
    }
    assert!(!read("examples/browser/style.css").contains("url("));
}
