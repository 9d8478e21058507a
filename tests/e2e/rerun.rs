//! `rerun` over the real program: a run at a service in front of a scripted model, done again from a step with another prompt, at the service
//! and then in its journal. What came before the step is never asked again, and what the attempts said is kept.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
};

use serde_json::{Value, json};

use crate::{
    process::{BOUND, Running, command, watertight},
    project::{example, folder, put, step, text},
    service::bound,
};

const CONFIG: &str = "[serve]\nlisten = '127.0.0.1:0'\n[capture]\nmode = 'all'\n[agents.write]\nprovider = 'local'\nmodel = 'qwen'\n[agents.judge]\nprovider = 'local'\nmodel = 'qwen'\n";
const WORKFLOW: &str = "[workflow]\nname = 'two'\noutput = 'steps.judge.output'\n[inputs]\nnotes = 'text'\n[[step]]\nid = 'write'\nagent = 'write'\nin = { notes = 'input.notes' }\n[[step]]\nid = 'judge'\nagent = 'judge'\nin = { draft = 'steps.write.output.text' }\n";

/// A model's server that answers by what it is asked; what it was asked.
fn model() -> (String, Arc<Mutex<Vec<Value>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (url, asked) = (format!("http://{}/v1", listener.local_addr().unwrap()), Arc::new(Mutex::new(Vec::new())));
    let seen = Arc::clone(&asked);
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let Some(body) = read_body(&stream) else { continue };
            let prompt = body["messages"][0]["content"].as_str().unwrap_or_default().to_owned();
            let said = if prompt.contains("엄격하게") { "짧은 평" } else { "긴 평" };
            seen.lock().unwrap().push(body);
            answer(
                &stream,
                &json!({
                    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": said}}],
                    "usage": {"prompt_tokens": 7, "completion_tokens": 3}
                }),
            );
        }
    });
    (url, asked)
}

fn read_body(stream: &TcpStream) -> Option<Value> {
    let mut reader = BufReader::new(stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|bytes| *bytes > 0)?;
        if line.trim().is_empty() {
            break;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    serde_json::from_slice(&body).ok()
}

fn answer(mut stream: &TcpStream, body: &Value) {
    let body = body.to_string();
    let head = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: ";
    let _ = stream.write_all(format!("{head}{}\r\n\r\n{body}", body.len()).as_bytes());
}

/// One request to the service, without keys.
fn ask(address: &str, method: &str, path: &str, body: &str) -> Value {
    send(address, method, path, "application/json", body.as_bytes())
}

fn send(address: &str, method: &str, path: &str, kind: &str, body: &[u8]) -> Value {
    let mut stream = TcpStream::connect(address).unwrap();
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body).unwrap();
    let mut got = String::new();
    stream.read_to_string(&mut got).unwrap();
    let (_, body) = got.split_once("\r\n\r\n").unwrap();
    let json = &body[body.find('{').unwrap()..=body.rfind('}').unwrap()];
    serde_json::from_str(json).unwrap_or_else(|error| panic!("{error}: {got}"))
}

/// A service of this project, and where it listens.
fn serve(root: &str) -> (Running, String) {
    let mut service = Running::start(command(&["serve", root]));
    let address = bound(&mut service).to_string();
    (service, address)
}

#[test]
fn files_of_the_first_run_are_there_in_the_rerun() {
    let workflow = "[workflow]\nname = 'facts'\noutput = 'steps.photos.output'\n[inputs]\nphotos = 'files'\n[[step]]\nid = 'photos'\nagent = 'photos'\nin = { photos = 'input.photos' }\n";
    let project = folder(&[("workflow.toml", workflow), ("watertight.toml", "[serve]\nlisten = '127.0.0.1:0'\n")]);
    let root = text(project.path());
    let (service, address) = serve(root);
    let photo = std::fs::read(example("input/photos/01-tumuli.jpg")).unwrap();
    let file = send(&address, "POST", "/v1/files", "image/jpeg", &photo);
    let input = json!({"workflow": "facts", "input": {"photos": [{"file_id": file["file_id"]}]}});
    let begun = ask(&address, "POST", "/v1/runs", &input.to_string());
    let id = begun["run_id"].as_str().unwrap_or_else(|| panic!("{begun:#} {file:#}")).to_owned();
    let old = ask(&address, "GET", &format!("/v1/runs/{id}/result?wait=60"), "");
    assert_eq!(old["output"]["photos"].as_array().map(Vec::len), Some(1), "{old:#}");
    service.signal("TERM");
    service.end().exits(0);
    let both = watertight(&["rerun", &id, "--from", "photos", "--folder", root, "--json"]).exits(0).json();
    assert_eq!(both["new"]["output"], old["output"]);
    assert_eq!(step(&both["new"], "photos")["attempts"].as_array().map(Vec::len), Some(1), "it was done again");
}

#[test]
fn a_step_is_done_again_and_nothing_before_it_is_paid_again() {
    let (model, asked) = model();
    let project = folder(&[("workflow.toml", WORKFLOW), ("strict.md", "엄격하게: {{ input.draft }}")]);
    put(
        project.path(),
        "watertight.toml",
        format!("[providers.local]\nkind = 'openai'\nmodel = 'qwen'\nbase_url = '{model}'\n{CONFIG}").as_bytes(),
    );
    let (root, prompt) = (text(project.path()), project.path().join("strict.md"));
    let (service, address) = serve(root);
    let url = format!("http://{address}");
    let begun = ask(&address, "POST", "/v1/runs", r#"{"workflow":"two","input":{"notes":"산책"}}"#);
    let id = begun["run_id"].as_str().unwrap().to_owned();
    let old = ask(&address, "GET", &format!("/v1/runs/{id}/result?wait=60"), "");
    assert_eq!((old["status"].as_str(), asked.lock().unwrap().len()), (Some("completed"), 2), "{old:#}");

    // While a service holds the journal, nobody else touches it.
    let held = watertight(&["rerun", &id, "--from", "judge", "--folder", root]).exits(2);
    assert!(held.err.contains(&format!("--url {url}\n")), "where it is, not where it was to be: {held:#?}");
    let odd = watertight(&["rerun", &id, "--from", "judeg", "--url", &url]).exits(2);
    assert!(odd.err.contains("did you mean \"judge\"?"), "{odd:#?}");
    watertight(&["rerun", "no-such-run", "--from", "judge", "--url", &url]).exits(2);

    let args = ["rerun", &id, "--from", "judge", "--prompt", text(&prompt), "--url", &url, "--json"];
    let both = watertight(&args).exits(0).json();
    assert_eq!(asked.lock().unwrap().len(), 3, "only the step and what depends on it");
    assert_eq!(asked.lock().unwrap()[2]["messages"][0]["content"], "엄격하게: 긴 평");
    assert_eq!(step(&both["new"], "write")["output"], step(&both["old"], "write")["output"]);
    assert_eq!((&both["new"]["tokens"]["prompt"], &both["old"]["tokens"]["prompt"]), (&json!(7), &json!(14)));
    let lines = &both["difference"]["output"];
    assert_eq!((&lines[0]["change"], &lines[0]["text"]), (&json!("removed"), &json!("긴 평")), "{both:#}");
    assert_eq!((&lines[1]["change"], &lines[1]["text"]), (&json!("added"), &json!("짧은 평")));

    // What was said is kept, with the prompt as it was filled, and whoever read it is told.
    let new_id = both["new"]["run_id"].as_str().unwrap();
    let captures = || ask(&address, "GET", &format!("/v1/runs/{new_id}/captures"), "");
    // The run does not wait for what is kept of it.
    let began = std::time::Instant::now();
    let kept = loop {
        let kept = captures();
        if kept["data"] != json!([]) || began.elapsed() > BOUND {
            break kept;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    };
    let [capture] = &kept["data"].as_array().unwrap()[..] else { panic!("{kept:#}") };
    assert_eq!((capture["step"].as_str(), capture["agent"].as_str()), (Some("judge"), Some("judge")));
    assert_eq!(capture["prompt"]["body"]["messages"][0]["content"], "엄격하게: 긴 평");
    assert!(capture["answer"].as_str().unwrap().contains("짧은 평"), "{capture:#}");
    assert_eq!(capture["parsed"]["output"], both["new"]["output"]);
    assert_eq!(kept["readings"].as_array().map(Vec::len), Some(1));

    // Without the service the journal is the project's own.
    service.signal("TERM");
    service.end().exits(0);
    let again = watertight(&["rerun", &id, "--from", "judge", "--folder", root]).exits(0);
    assert_eq!(asked.lock().unwrap().len(), 4);
    assert!(again.out.contains("The result is the same.") && again.err.contains("> judge"), "{again:#?}");
    assert!(!again.err.contains("> write"), "{again:#?}");
    let changed = watertight(&["rerun", &id, "--from", "judge", "--folder", root, "--prompt", text(&prompt)]).exits(0);
    assert!(changed.out.contains("-긴 평\n+짧은 평\n") && !changed.out.contains('\u{1b}'), "{changed:#?}");
    let unknown = watertight(&["rerun", "x", "--from", "judge", "--folder", root, "--json"]).exits(2);
    assert!(unknown.json()["error"]["message"].as_str().unwrap().contains("no run"), "{unknown:#?}");
}

/// Whoever finds the journal held is told at once by whom and how long it waits; a run that is not over is not called unknown.
#[test]
fn a_held_journal_and_a_run_that_is_not_over_are_told() {
    // It takes connections in and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let project = folder(&[("workflow.toml", WORKFLOW)]);
    let model = format!("http://{}/v1", silent.local_addr().unwrap());
    let config = format!("[providers.local]\nkind = 'openai'\nmodel = 'qwen'\nbase_url = '{model}'\n{CONFIG}");
    put(project.path(), "watertight.toml", config.as_bytes());
    let root = text(project.path());
    let (mut service, address) = serve(root);
    let begun = ask(&address, "POST", "/v1/runs", r#"{"workflow":"two","input":{"notes":"x"}}"#);
    let id = begun["run_id"].as_str().unwrap().to_owned();
    let other = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let mut second = Running::start(command(&["serve", root, "--listen", &other]));
    second.wait_for("; waiting for it for ");
    let said = second.said();
    assert!(said.contains(&format!(" address http://{address}; waiting for it for 60 s")), "{said}");
    second.kill();
    service.kill();
    let refused = watertight(&["rerun", &id, "--from", "judge", "--folder", root]).exits(2);
    assert!(refused.err.contains("is not over (") && refused.err.contains("/cancel"), "{refused:#?}");
}
