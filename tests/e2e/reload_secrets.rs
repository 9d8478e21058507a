//! Files that hold keys, and files that the configuration names wherever they lie: a running service looks at them too. One that vanished
//! or is empty refuses the reload, and the key before it goes on holding.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener},
    path::Path,
    sync::{Arc, Mutex},
    time::Instant,
};

use serde_json::{Value, json};

use crate::{
    process::BOUND,
    project::{folder, put, text},
    service::{ask, ask_with, json_of, serve},
};

/// A server of models that remembers what it was asked with: the key, and the body. It dies with the test.
struct Upstream {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<(String, Value)>>>,
}

impl Upstream {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let upstream = Self { address: listener.local_addr().unwrap(), asked: Arc::default() };
        let asked = Arc::clone(&upstream.asked);
        std::thread::spawn(move || {
            for socket in listener.incoming().map_while(Result::ok) {
                let mut reader = BufReader::new(socket);
                let (mut length, mut key, mut line) = (0, String::new(), String::new());
                while reader.read_line(&mut line).unwrap_or(0) > 2 {
                    let lower = line.to_ascii_lowercase();
                    if let Some(value) = lower.strip_prefix("content-length:") {
                        length = value.trim().parse().unwrap();
                    }
                    if lower.starts_with("authorization:") {
                        line.rsplit(' ').next().unwrap_or_default().trim().clone_into(&mut key);
                    }
                    line.clear();
                }
                let mut body = vec![0; length];
                reader.read_exact(&mut body).unwrap();
                asked.lock().unwrap().push((key, serde_json::from_slice(&body).unwrap_or_default()));
                let message = json!({ "role": "assistant", "content": "well" });
                let choice = json!({ "index": 0, "finish_reason": "stop", "message": message });
                let answer =
                    json!({ "id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice] });
                let answer = answer.to_string();
                let length = answer.len();
                let head = format!(
                    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {length}"
                );
                let _ = write!(reader.get_mut(), "{head}\r\n\r\n{answer}");
            }
        });
        upstream
    }

    /// The key and the prompt of the last request.
    fn last(&self) -> (String, String) {
        let (key, body) = self.asked.lock().unwrap().last().cloned().unwrap();
        (key, body["messages"][0]["content"].as_str().unwrap_or_default().to_owned())
    }
}

/// Another file in the place of the one that was there, as long as that.
fn rotate(folder: &Path, name: &str, text: &str) {
    let new = folder.join("new");
    std::fs::write(&new, text).unwrap();
    if let Ok(before) = std::fs::metadata(folder.join(name)) {
        // As a copy that keeps dates brings it along.
        std::fs::File::open(&new).unwrap().set_modified(before.modified().unwrap()).unwrap();
    }
    std::fs::rename(new, folder.join(name)).unwrap();
}

fn call(address: SocketAddr, key: &str) -> String {
    let bearer = format!("Bearer {key}");
    let answer = ask_with(address, "POST", "/v1/agents/draft/call", &[("authorization", &bearer)], r#"{"input":{}}"#);
    let code = json_of(&answer)["error"]["error_code"].as_str().map(str::to_owned);
    code.unwrap_or_else(|| "OK".to_owned())
}

/// Asks until it is so.
#[track_caller]
fn until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < BOUND, "{what}");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

#[test]
fn rotated_keys_and_files_by_name_are_taken_up_and_bad_ones_change_nothing() {
    let upstream = Upstream::start();
    let config = format!(
        "[providers.up]\nkind = \"openai\"\nbase_url = \"http://{}/v1\"\nmodel = \"m\"\nstream_upstream = \"as_asked\"\napi_key_file = \"secrets/up.key\"\n\
         [agents.draft]\nprovider = \"up\"\nprompt = \"texts/deep/draft.prompt\"\nanswer = \"text\"\n\
         [keys.ops]\nkey_file = \"secrets/ops.key\"\nrole = \"operator\"\n",
        upstream.address
    );
    let project = folder(&[
        ("watertight.toml", &config),
        ("secrets/up.key", "sk-one"),
        ("secrets/ops.key", "wt-first"),
        ("texts/deep/draft.prompt", "First."),
    ]);
    let at = |name: &str| project.path().join(name);
    let (mut service, address) = serve(text(project.path()));
    assert_eq!((call(address, "wt-first"), call(address, "wt-other")), ("OK".into(), "UNAUTHORIZED".into()));
    assert_eq!(upstream.last(), ("sk-one".to_owned(), "First.".to_owned()));

    // Each of them, by itself and unasked.
    rotate(project.path(), "secrets/up.key", "sk-two");
    until("the vendor's key is taken up", || call(address, "wt-first") == "OK" && upstream.last().0 == "sk-two");
    rotate(project.path(), "secrets/ops.key", "wt-other");
    until("the operator's key is taken up", || call(address, "wt-other") == "OK");
    assert_eq!(call(address, "wt-first"), "UNAUTHORIZED", "the one before it holds no longer");
    put(project.path(), "texts/deep/draft.prompt", b"Second one.");
    until("a prompt is taken up wherever it lies", || {
        call(address, "wt-other") == "OK" && upstream.last().1 == "Second one."
    });

    // Gone, and empty: nothing changes, and it says which.
    std::fs::remove_file(at("secrets/ops.key")).unwrap();
    service.wait_for("keys.ops.key_file: file");
    assert!(service.said().contains("cannot be read"), "{}", service.said());
    assert_eq!(call(address, "wt-other"), "OK");
    put(project.path(), "secrets/ops.key", b"wt-third");
    until("it is back", || call(address, "wt-third") == "OK");
    put(project.path(), "secrets/up.key", b"\n");
    service.wait_for("up.key is empty");
    assert_eq!((call(address, "wt-third"), upstream.last().0), ("OK".into(), "sk-two".into()));
    let config = json_of(&ask_with(address, "GET", "/v1/config", &[("authorization", "Bearer wt-third")], ""));
    let refused = config["last_refusal"]["problems"][0].as_str().unwrap_or_default().to_owned();
    assert!(refused.contains("providers.up.api_key_file") && refused.contains("watertight.toml:6"), "{refused}");

    // SIGHUP reads all of them anew, whatever they look like.
    std::fs::write(at("secrets/up.key"), "sk-xxx").unwrap();
    service.signal("HUP");
    until("a hang-up is heard", || call(address, "wt-third") == "OK" && upstream.last().0 == "sk-xxx");
    assert!(ask(address, "GET", "/v1/agents", "").contains("UNAUTHORIZED"));
    service.signal("TERM");
    service.end().exits(0);
}
