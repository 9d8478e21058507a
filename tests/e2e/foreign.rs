//! Services that speak as other frameworks do, as a process of their own: Spring Boot's error body, RFC 9457 problems and FastAPI's
//! `detail` are read right without a mapping; a fourth that speaks like none is read by its mapping alone.

use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::{
    process::{Running, watertight},
    project::{folder, text},
    service::{ask, json_of, serve},
};

/// The service; it dies with this value.
struct Foreign {
    url: String,
    _process: Running,
}

fn foreign() -> Foreign {
    let mut command = Command::new("python3");
    command.args(["tests/services/foreign.py"]).current_dir(env!("CARGO_MANIFEST_DIR")).stdin(Stdio::null());
    let mut process = Running::start({
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    });
    process.wait_for("listens on http://");
    let said = process.said();
    let url = said.trim().trim_start_matches("listens on ").to_owned();
    Foreign { url, _process: process }
}

/// Three agents without any mapping, and one that is nothing but mapping.
fn project(url: &str) -> tempfile::TempDir {
    let config = format!(
        r#"
[providers.foreign]
kind = "http"
base_url = "{url}"
breaker = {{ mode = "disabled" }}
[defaults.breaker]
mode = "disabled"
[defaults.retry]
attempts_max = 1
[agents.spring]
path = "/spring/style/analyze"
[agents.problem]
path = "/problem/analyze"
[agents.fastapi]
path = "/fastapi/analyze"
[agents.odd]
path = "/odd/jobs"
method = "PUT"
headers = {{ x-press = "seven" }}
request = '{{"job": {{"text": {{{{ input.notes }}}}, "copies": {{{{ input.copies }}}}, "kind": {{{{ input.kind }}}}}}}}'
[agents.odd.mapping]
output = "/result/sheets/0"
prompt_tokens = "/meter/ink"
output_tokens = "/meter/paper"
error_code = "/fault/no"
message = "/fault/why"
retryable = "/fault/again"
retry_after = "/fault/wait"
"#
    );
    let workflow = "[workflow]\nname = \"one\"\noutput = \"steps.a.output\"\n[inputs]\nnotes = \"text\"\n[[step]]\nid = \"a\"\nagent = \"spring\"\nin = { case = \"input.notes\" }\n";
    folder(&[("watertight.toml", &config), ("workflow.toml", workflow)])
}

/// What one call of `agent` was read as, with its verdict.
#[track_caller]
fn call(project: &tempfile::TempDir, agent: &str, input: &Value, exit: i32) -> Value {
    let path = project.path().join("in.json");
    std::fs::write(&path, input.to_string()).unwrap();
    let workflow = project.path().join("none.toml");
    std::fs::write(&workflow, workflow_of(agent)).unwrap();
    let args = [
        "check",
        text(project.path()),
        "--workflow",
        text(&workflow),
        "--call",
        agent,
        "--input",
        text(&path),
        "--json",
    ];
    watertight(&args).exits(exit).json()
}

/// A workflow that names the agent, so that it is among those that are checked.
fn workflow_of(agent: &str) -> String {
    format!(
        "[workflow]\nname = \"one\"\noutput = \"steps.a.output\"\n[inputs]\nnotes = \"text?\"\n[[step]]\nid = \"a\"\nagent = \"{agent}\"\nin = {{ x = \"input.notes\" }}\n"
    )
}

#[test]
fn good_answers_are_read() {
    let service = foreign();
    let project = project(&service.url);
    for agent in ["spring", "problem", "fastapi"] {
        let call = call(&project, agent, &json!({ "notes": "바다" }), 0);
        assert_eq!(call["read"]["output"], json!({ "from": agent, "heard": { "notes": "바다" } }), "{call:#}");
        assert_eq!(call["read"]["usage"]["output_tokens"], 5, "{call:#}");
    }
    let odd = call(&project, "odd", &json!({ "notes": "say \"sea\"\n", "copies": 2, "kind": null }), 0);
    assert_eq!(odd["read"]["output"], json!({ "printed": "SAY \"SEA\"\n", "copies": 2 }), "{odd:#}");
    let usage = &odd["read"]["usage"];
    assert_eq!((&usage["prompt_tokens"], &usage["output_tokens"]), (&json!(11), &json!(13)), "{odd:#}");
}

#[test]
fn errors_are_read_right() {
    let service = foreign();
    let project = project(&service.url);
    // Agent, what goes wrong, then status, message, code, retry_after and the verdict.
    for (agent, case, status, message, code, retry_after, verdict) in [
        ("spring", "broken", 500, "boom in the kitchen", None, None, "failure"),
        ("spring", "busy", 503, "come back later", None, Some(4.0), "failure"),
        ("spring", "bad", 400, "notes must not be empty", None, None, "ignored"),
        ("problem", "broken", 500, "the oven is out", None, None, "failure"),
        ("problem", "busy", 429, "ten a minute", Some("https://problems.example/too-many"), Some(2.0), "failure"),
        ("problem", "bad", 422, "a photo is missing", Some("https://problems.example/invalid"), None, "ignored"),
        ("fastapi", "broken", 500, "Internal Server Error", None, None, "failure"),
        ("fastapi", "busy", 503, "model is loading", None, None, "failure"),
        ("fastapi", "bad", 404, "no such style", None, None, "ignored"),
        (
            "fastapi",
            "invalid",
            422,
            "body.notes: Field required; body.count: Input should be a valid integer",
            None,
            None,
            "ignored",
        ),
        ("odd", "broken", 500, "the press is jammed", Some("E-77"), Some(7.0), "failure"),
        ("odd", "bad", 409, "that job is there", Some("E-12"), None, "ignored"),
        ("odd", "inside", 200, "the paper ran out", Some("E-90"), Some(3.0), "failure"),
    ] {
        let input =
            if agent == "odd" { json!({ "notes": "x", "copies": 1, "kind": case }) } else { json!({ "case": case }) };
        let call = call(&project, agent, &input, 1);
        let read = &call["read"];
        assert_eq!(read["status"], status, "{agent} {case}: {call:#}");
        assert_eq!(read["message"], message, "{agent} {case}: {call:#}");
        assert_eq!(read["upstream_code"].as_str(), code, "{agent} {case}: {call:#}");
        assert_eq!(read["retry_after"].as_f64(), retry_after, "{agent} {case}: {call:#}");
        assert_eq!(call["verdict"], verdict, "{agent} {case}: {call:#}");
    }
}

#[test]
fn a_run_ends_with_what_the_service_said() {
    let service = foreign();
    let project = project(&service.url);
    for (case, http_status, retryable) in [("bad", 400, false), ("broken", 500, true)] {
        let with = format!("notes={case}");
        let run = watertight(&["run", text(project.path()), "--json", "--quiet", "--with", &with]).exits(1).json();
        let error = &run["error"];
        assert_eq!(error["error_code"], "AGENT_ERROR", "{run:#}");
        assert_eq!((&error["http_status"], &error["retryable"]), (&json!(http_status), &json!(retryable)), "{run:#}");
    }
}

/// The same through the service: whoever calls an agent there hears what its service said, as one kind of error.
#[test]
fn the_service_passes_on_what_it_read() {
    let foreign = foreign();
    let project = project(&foreign.url);
    let (service, address) = serve(text(project.path()));
    let call = |agent: &str, input: &Value| {
        let body = json!({ "input": input }).to_string();
        ask(address, "POST", &format!("/v1/agents/{agent}/call"), &body)
    };
    for agent in ["spring", "problem", "fastapi"] {
        let answer = call(agent, &json!({ "notes": "바다" }));
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        assert_eq!(json_of(&answer)["output"], json!({ "from": agent, "heard": { "notes": "바다" } }), "{answer}");
    }
    let answer = call("odd", &json!({ "notes": "sea", "copies": 2, "kind": null }));
    let told = json_of(&answer);
    assert_eq!(told["output"], json!({ "printed": "SEA", "copies": 2 }), "{answer}");
    assert_eq!((&told["usage"]["prompt_tokens"], &told["usage"]["output_tokens"]), (&json!(11), &json!(13)));
    // Agent, what goes wrong, then status, whether it may be tried again, seconds, code and words.
    for (agent, case, status, retryable, retry_after, code, message) in [
        ("spring", "broken", 500, true, None, None, "boom in the kitchen"),
        ("spring", "busy", 503, true, Some("4"), None, "come back later"),
        ("spring", "bad", 400, false, None, None, "notes must not be empty"),
        ("problem", "broken", 500, true, None, None, "the oven is out"),
        ("problem", "busy", 429, true, Some("2"), Some("https://problems.example/too-many"), "ten a minute"),
        ("problem", "bad", 422, false, None, Some("https://problems.example/invalid"), "a photo is missing"),
        ("fastapi", "broken", 500, true, None, None, "Internal Server Error"),
        ("fastapi", "busy", 503, true, None, None, "model is loading"),
        ("fastapi", "bad", 404, false, None, None, "no such style"),
        ("fastapi", "invalid", 422, false, None, None, "body.notes: Field required"),
        ("odd", "broken", 500, true, Some("7"), Some("E-77"), "the press is jammed"),
        ("odd", "bad", 409, false, None, Some("E-12"), "that job is there"),
        ("odd", "inside", 502, true, Some("3"), Some("E-90"), "the paper ran out"),
    ] {
        let input =
            if agent == "odd" { json!({ "notes": "x", "copies": 1, "kind": case }) } else { json!({ "case": case }) };
        let answer = call(agent, &input);
        let head = answer.split("\r\n\r\n").next().unwrap().to_ascii_lowercase();
        let waits = head.lines().find_map(|line| line.strip_prefix("retry-after: "));
        let error = &json_of(&answer)["error"];
        assert!(head.starts_with(&format!("http/1.1 {status} ")), "{agent} {case}: {answer}");
        assert_eq!(waits, retry_after, "{agent} {case}: {answer}");
        assert_eq!(error["error_code"], "AGENT_ERROR", "{agent} {case}: {answer}");
        assert_eq!((&error["http_status"], &error["retryable"]), (&json!(status), &json!(retryable)), "{answer}");
        assert_eq!(
            (error["agent"].as_str(), error["details"]["upstream_code"].as_str()),
            (Some(agent), code),
            "{answer}"
        );
        assert!(error["message"].as_str().unwrap().contains(message), "{agent} {case}: {answer}");
    }
    service.signal("TERM");
    service.end().exits(0);
}
