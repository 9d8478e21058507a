//! Agents on a server that behaves like Ollama (`tests/services/ollama.py`), as processes of their own: a whole run over a model that is
//! loaded first, every way in which the server can fail as `check` reads it, and OpenAI's shape through the gateway.

use std::{
    io::{Read, Write},
    net::TcpStream,
    process::{Command, Stdio},
    time::Duration,
};

use serde_json::{Value, json};

use crate::{
    process::{Running, command, watertight},
    project::{MOMENTLY, assert_run_keys, folder, statuses, text},
    service::serve,
};

/// The server; it dies with this value.
struct Ollama {
    url: String,
    _process: Running,
}

impl Ollama {
    fn start(options: &[&str]) -> Self {
        let mut command = Command::new("python3");
        command.arg("tests/services/ollama.py").args(options).current_dir(env!("CARGO_MANIFEST_DIR"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = Running::start(command);
        process.wait_for("listens on http://");
        let url = process.said().trim().trim_start_matches("listens on ").to_owned();
        Self { url, _process: process }
    }

    /// What it has seen so far.
    fn seen(&self) -> Value {
        ask(self.url.trim_start_matches("http://"), "GET", "/_seen", "").1
    }
}

/// One request over a socket of its own: the status, and the body as JSON or as text.
fn ask(address: &str, method: &str, path: &str, body: &str) -> (u16, Value) {
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let length = body.len();
    write!(socket, "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}").unwrap();
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).unwrap();
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split_whitespace().nth(1).unwrap().parse().unwrap();
    (status, serde_json::from_str(body).unwrap_or_else(|_| Value::from(body)))
}

#[test]
fn a_run_pays_for_one_cold_start_and_never_lets_the_server_queue() {
    let server = Ollama::start(&["--load", "1.5", "--split"]);
    let (config, set) = (format!("{MOMENTLY}/ollama.toml"), format!("providers.local.base_url={}", server.url));
    let args = ["run", MOMENTLY, "--config", &config, "--set", &set, "--set", "providers.local.model=m:8b", "--json"];
    let ended = Running::start(command(&args)).end_within(Duration::from_secs(120));
    assert_eq!(ended.code, Some(0), "{ended:#?}");
    let json = ended.json();
    assert_run_keys(&json);
    assert_eq!(json["status"], "completed", "{json:#}");
    assert!(statuses(&json).iter().all(|(_, status)| status == "succeeded"), "{:?}", statuses(&json));
    assert!(json["tokens"]["output"].as_u64().is_some_and(|tokens| tokens > 0), "{json:#}");
    let seen = server.seen();
    assert_eq!((&seen["loads"], &seen["aborted_loads"], &seen["left"]), (&json!(1), &json!(0), &json!(0)), "{seen:#}");
    assert_eq!(seen["warm_ups"], 1, "the runtime's own call has it loaded: {seen:#}");
    assert_eq!((&seen["running_max"], &seen["waiting_max"]), (&json!(1), &json!(0)), "one slot: {seen:#}");
    assert_eq!((&seen["num_ctx"], &seen["keep_alive"]), (&json!([8192]), &json!(["900s"])), "{seen:#}");
}

fn project(url: &str) -> tempfile::TempDir {
    let config = format!(
        "[providers.o]\nkind = \"ollama\"\nbase_url = \"{url}\"\nmodel = \"m:8b\"\nnum_ctx = 2048\n[agents.write]\nprovider = \"o\"\nprompt = \"prompt.md\"\nmax_output_tokens = 100\n"
    );
    let workflow = "[workflow]\nname = \"one\"\noutput = \"steps.a.output\"\n[inputs]\nnotes = \"text?\"\n[[step]]\nid = \"a\"\nagent = \"write\"\nin = { notes = \"input.notes\" }\n";
    folder(&[("watertight.toml", &config), ("workflow.toml", workflow), ("prompt.md", "{{ input.notes }}")])
}

#[test]
fn what_the_server_says_is_read_as_it_is_meant() {
    let server = Ollama::start(&["--load", "0", "--split"]);
    let project = project(&server.url);
    let input = project.path().join("in.json");
    let call = |notes: &str, exit: i32| {
        std::fs::write(&input, json!({ "notes": notes }).to_string()).unwrap();
        let args = ["check", text(project.path()), "--call", "write", "--input", text(&input), "--json"];
        watertight(&args).exits(exit).json()
    };
    let good = call("사진 3장", 0);
    assert_eq!(good["read"]["output"]["text"], "# 초안\n\n강가의 길은 조용했다 🦀. 끝", "{good:#}");
    assert_eq!((&good["read"]["finish_reason"], &good["verdict"]), (&json!("stop"), &json!("success")));
    assert_eq!(good["read"]["usage"]["estimated"], false, "{good:#}");
    let long = "word and word ".repeat(900);
    // What is asked, then kind, status and code of its end, the verdict, and whether the server was asked at all.
    for (notes, kind, status, code, verdict, asked) in [
        ("[busy]", "status", json!(429), json!("server_busy"), "failure", true),
        ("[missing]", "status", json!(404), json!("model_not_found"), "ignored", true),
        ("[error]", "status", json!(500), Value::Null, "failure", true),
        ("[error-line]", "status", json!(502), Value::Null, "failure", true),
        ("[cut]", "stream_cut", Value::Null, Value::Null, "failure", true),
        ("[load]", "no_draft", Value::Null, Value::Null, "ignored", true),
        ("[unload]", "no_draft", Value::Null, Value::Null, "ignored", true),
        (" ", "status", json!(400), json!("invalid_input"), "ignored", false),
        (long.as_str(), "status", json!(413), json!("context_length_exceeded"), "ignored", false),
    ] {
        let before = server.seen()["chats"].clone();
        let got = call(notes, 1);
        let ending = &got["read"]["ending"];
        assert_eq!((&ending["kind"], &ending["status"]), (&json!(kind), &status), "{notes:.20}: {got:#}");
        assert_eq!((&got["read"]["upstream_code"], &got["verdict"]), (&code, &json!(verdict)), "{notes:.20}: {got:#}");
        assert_eq!(server.seen()["chats"] != before, asked, "{notes:.20}");
    }
}

/// TRAPS B34 with all of the runtime around it: one more try, then the step fails.
#[test]
fn b34_a_model_that_only_loads_is_asked_twice_at_most() {
    let server = Ollama::start(&["--load", "0"]);
    let project = project(&server.url);
    std::fs::create_dir(project.path().join("input")).unwrap();
    std::fs::write(project.path().join("input/notes.md"), "[load]").unwrap();
    let ended = watertight(&["run", text(project.path()), "--json"]).exits(1).json();
    let error = &ended["error"];
    assert_eq!(error["error_code"], "AGENT_BAD_REPLY", "{ended:#}");
    assert_eq!((&server.seen()["chats"], &ended["tokens"]["output"]), (&json!(2), &json!(0)), "{ended:#}");
}

#[test]
fn openais_shape_goes_through_the_gateway() {
    let server = Ollama::start(&["--load", "0.2", "--split"]);
    let project = project(&server.url);
    let (_gateway, address) = serve(text(project.path()));
    let address = address.to_string();
    let chat = |more: &str| {
        let body = format!(r#"{{"model":"write","messages":[{{"role":"user","content":"사진 3장"}}]{more}}}"#);
        // One slot: it is free again once the call before was judged, a moment after its answer; on a busy machine that takes a while.
        for _ in 0..100 {
            let answered = ask(&address, "POST", "/v1/chat/completions", &body);
            if answered.0 != 503 {
                return answered;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        panic!("its slot never came back")
    };
    let (status, whole) = chat("");
    assert_eq!((status, &whole["choices"][0]["finish_reason"]), (200, &json!("stop")), "{whole:#}");
    assert_eq!(whole["choices"][0]["message"]["content"], "# 초안\n\n강가의 길은 조용했다 🦀. 끝");
    let (status, stream) = chat(r#","stream":true,"stream_options":{"include_usage":true}"#);
    let Some(stream) = stream.as_str() else { panic!("{status} {stream:#}") };
    assert!(status == 200 && stream.contains("\"total_tokens\"") && stream.contains("data: [DONE]"), "{stream}");
    let tool = r#","tools":[{"type":"function","function":{"name":"look","parameters":{"type":"object","properties":{"at":{"type":"integer"}}}}}]"#;
    let (_, called) = chat(tool);
    let call = &called["choices"][0]["message"]["tool_calls"][0]["function"];
    assert_eq!(call, &json!({"name": "look", "arguments": "{\"at\":1}"}), "{called:#}");
    let (status, refused) = chat(r#","n":2"#);
    assert_eq!((status, &refused["error"]["type"]), (400, &json!("invalid_request_error")), "{refused:#}");
    let (status, vectors) = ask(&address, "POST", "/v1/embeddings", r#"{"model":"write","input":["a","bb"]}"#);
    assert_eq!((status, vectors["data"].as_array().map(Vec::len)), (200, Some(2)), "{vectors:#}");
    assert_eq!(vectors["usage"]["prompt_tokens"], 3);
}

#[test]
fn init_finds_out_that_it_is_ollama() {
    let server = Ollama::start(&["--models", "m:8b,n:1b"]);
    let home = tempfile::tempdir().unwrap();
    for address in [server.url.clone(), format!("{}/v1/", server.url)] {
        let at = text(home.path());
        let ended = watertight(&["init", at, "--server", &address, "--force"]).exits(0);
        assert!(ended.err.contains("found Ollama at") && ended.err.contains("m:8b, n:1b"), "{ended:#?}");
        let config = std::fs::read_to_string(home.path().join("watertight.toml")).unwrap();
        assert!(config.contains("kind = \"ollama\"") && config.contains("model = \"m:8b\""), "{config}");
        watertight(&["check", at]).exits(0);
    }
}
