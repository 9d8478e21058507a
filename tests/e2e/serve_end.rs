//! The service told to stop while a run is under way and somebody watches it: the watcher is told to come again, the program ends well,
//! and the next one goes on where the run was. Signatures hold over the restart.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::json;

use crate::{
    process::{BOUND, Running, command},
    project::{folder, text},
    service::{ask, ask_with, bound, json_of, serve},
};

/// How long the slow agent takes: longer than grace.
const SLOW: Duration = Duration::from_secs(3);
/// Long after a process that ends has stopped taking requests in.
const LATER: Duration = Duration::from_secs(2);
/// The usual grace.
const GRACE: Duration = Duration::from_secs(30);
const WORKFLOW: &str = r#"
[workflow]
name = "two"
output = "steps.last.output"
[[step]]
id = "first"
agent = "quick"
in = {}
[[step]]
id = "last"
agent = "slow"
in = { before = "steps.first.output" }
"#;

/// An agent that nobody asks.
const QUICK: &str =
    "[providers.here]\nkind = \"http\"\nbase_url = \"http://127.0.0.1:9\"\n[agents.quick]\nprovider = \"here\"\n";

/// Agents over HTTP: `/quick` answers at once, `/slow` takes its time. Counts what each was asked.
pub fn agents() -> (SocketAddr, Arc<[AtomicUsize; 2]>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let asked = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let counts = Arc::clone(&asked);
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let counts = Arc::clone(&counts);
            std::thread::spawn(move || {
                let mut reader = BufReader::new(socket.unwrap());
                while let Some((path, _)) = read_request(&mut reader) {
                    let is_slow = path != "/quick";
                    counts[usize::from(is_slow)].fetch_add(1, Ordering::SeqCst);
                    if let Some((kind, piece)) = begun_of(&path) {
                        let head = format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked");
                        let _ = write!(reader.get_mut(), "{head}\r\n\r\n{:x}\r\n{piece}\r\n", piece.len());
                        std::thread::sleep(BOUND);
                        return;
                    }
                    if is_slow {
                        std::thread::sleep(if path == "/stuck" { BOUND } else { SLOW });
                    }
                    let body = json!({ "output": path }).to_string();
                    let head =
                        format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}", body.len());
                    // Whoever asked may be gone.
                    let _ = write!(reader.get_mut(), "{head}\r\n\r\n{body}");
                }
            });
        }
    });
    (address, asked)
}

/// What is only ever begun at these paths.
fn begun_of(path: &str) -> Option<(&'static str, &'static str)> {
    match path {
        "/events" => Some(("text/event-stream", "data: 1\n\n")),
        "/text" => Some(("text/plain", "a part")),
        "/deltas" => Some(("text/event-stream", "data: {\"delta\":\"a part\"}\n\n")),
        "/chat/completions" => {
            Some(("text/event-stream", "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a part\"}}]}\n\n"))
        }
        _ => None,
    }
}

fn read_request(reader: &mut BufReader<TcpStream>) -> Option<(String, Vec<u8>)> {
    let (mut line, mut length) = (String::new(), 0);
    reader.read_line(&mut line).ok()?;
    let path = line.split(' ').nth(1)?.to_owned();
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok()?;
        if header.trim().is_empty() {
            break;
        }
        if let Some(value) = header.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some((path, body))
}

#[test]
fn a_stop_tells_watchers_ends_well_and_loses_no_run() {
    let (agents, asked) = agents();
    let config = format!(
        "[serve]\ngrace = \"500ms\"\n[providers.here]\nkind = \"http\"\nbase_url = \"http://{agents}\"\n[agents.quick]\nprovider = \"here\"\npath = \"/quick\"\n[agents.slow]\nprovider = \"here\"\npath = \"/slow\"\n"
    );
    let project = folder(&[("workflow.toml", WORKFLOW), ("watertight.toml", &config)]);
    let (service, address) = serve(text(project.path()));
    let run = json_of(&ask(address, "POST", "/v1/runs", r#"{"workflow":"two"}"#));
    let id = run["run_id"].as_str().unwrap().to_owned();
    let token = json_of(&ask(address, "POST", &format!("/v1/runs/{id}/watch-token"), ""));
    let token = token["token"].as_str().unwrap().to_owned();
    let watched = format!("/v1/runs/{id}/events");
    let watching = std::thread::spawn(move || ask(address, "GET", &watched, ""));
    let began = Instant::now();
    while asked[1].load(Ordering::SeqCst) == 0 {
        assert!(began.elapsed() < BOUND, "the slow agent is never asked");
        std::thread::sleep(Duration::from_millis(5));
    }
    service.signal("TERM");
    let events = watching.join().unwrap();
    assert!(events.contains("event: step.finished") && !events.contains("event: run.finished"), "{events}");
    assert!(events.contains("retry: 1000\nevent: node.stopping\ndata: {"), "{events}");
    assert!(events.ends_with("0\r\n\r\n"), "the stream ends as it should: {events}");
    service.end().exits(0);

    let (service, address) = serve(text(project.path()));
    assert!(service.said().contains("1 run goes on"), "{}", service.said());
    let result = ask(address, "GET", &format!("/v1/runs/{id}/result?wait=60&token={token}"), "");
    assert_eq!(json_of(&result)["status"], "completed", "{result}");
    assert_eq!(json_of(&result)["output"], "/slow", "{result}");
    assert_eq!(asked[0].load(Ordering::SeqCst), 1, "what had ended is not paid again");
    service.signal("TERM");
    service.end().exits(0);
}

/// Calls that outlive grace are told so, whichever way they came.
#[test]
fn whoever_still_waits_when_grace_ends_is_told_why() {
    let (agents, _) = agents();
    let config = format!(
        "[providers.own]\nkind = \"http\"\nbase_url = \"http://{agents}\"\n\n[agents.slow]\nprovider = \"own\"\npath = \"/slow\"\n\n[serve]\ngrace = \"1s\"\n"
    );
    let project = folder(&[("watertight.toml", &config)]);
    let (service, address) = serve(text(project.path()));
    let waiting = [("POST", "/v1/agents/slow/call", r#"{"input":{}}"#), ("GET", "/agents/slow/slow", "")]
        .map(|(method, path, body)| std::thread::spawn(move || ask(address, method, path, body)));
    while json_of(&ask(address, "GET", "/v1/agents", "")).to_string().matches("\"in_flight\":2").count() == 0 {
        std::thread::sleep(Duration::from_millis(5));
    }
    service.signal("TERM");
    for answer in waiting {
        let answer = answer.join().unwrap();
        assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("SHUTTING_DOWN"), "{answer}");
    }
    service.end().exits(0);
}

/// What has begun and does not end in time is never a part that looks whole.
#[test]
fn answers_under_way_when_grace_ends_do_not_look_whole() {
    let (agents, asked) = agents();
    let config = format!(
        "[providers.own]\nkind = \"http\"\nbase_url = \"http://{agents}\"\n[agents.own]\nprovider = \"own\"\npath = \"/deltas\"\n\
         [providers.open]\nkind = \"openai\"\nbase_url = \"http://{agents}\"\n[agents.writer]\nprovider = \"open\"\nmodel = \"m\"\n\
         [serve]\ngrace = \"2s\"\n"
    );
    let project = folder(&[("watertight.toml", &config)]);
    let (service, address) = serve(text(project.path()));
    let chat = r#"{"model":"writer","messages":[{"role":"user","content":"x"}],"stream":true}"#;
    let under_way = [
        ("GET", "/agents/own/events", "", true),
        ("GET", "/agents/own/text", "", false),
        ("POST", "/v1/agents/own/call", r#"{"input":{}}"#, true),
        ("POST", "/v1/chat/completions", chat, true),
    ]
    .map(|(method, path, body, is_told)| {
        let headers = [("accept", "text/event-stream")];
        (path, is_told, std::thread::spawn(move || ask_with(address, method, path, &headers, body)))
    });
    wait_until("all are under way", || asked[1].load(Ordering::SeqCst) == 4);
    service.signal("TERM");
    for (path, is_told, answer) in under_way {
        let answer = answer.join().unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 ") && !answer.contains("[DONE]"), "{path}: {answer}");
        assert_eq!(answer.contains("SHUTTING_DOWN"), is_told, "{path}: {answer}");
        assert_eq!(answer.contains("trace_id"), is_told, "{path}: {answer}");
        assert_eq!(answer.ends_with("\r\n0\r\n\r\n"), is_told, "{path}: {answer}");
    }
    service.end().exits(0);
}

/// A successor answers at once, though a step of its predecessor's is under way: that step is made again.
#[test]
fn nobody_waits_for_a_step_of_the_predecessor() {
    let (agents, asked) = agents();
    let config = quick_and("stuck", agents);
    let project = folder(&[("workflow.toml", &WORKFLOW.replace("slow", "stuck")), ("watertight.toml", &config)]);
    let (first, address) = serve(text(project.path()));
    let run = json_of(&ask(address, "POST", "/v1/runs", r#"{"workflow":"two"}"#));
    wait_until("its last step is under way", || asked[1].load(Ordering::SeqCst) == 1);
    let began = Instant::now();
    let second = successor(text(project.path()));
    let ready = ask(address, "GET", "/readyz", "");
    assert!(ready.starts_with("HTTP/1.1 200 "), "{ready}");
    let listed = json_of(&ask(address, "GET", "/v1/runs", ""));
    assert_eq!(listed["data"][0]["run_id"], run["run_id"], "{listed}");
    assert!(began.elapsed() < GRACE, "it stood still for {:?}", began.elapsed());
    wait_until("the step is made again", || asked[1].load(Ordering::SeqCst) == 2);
    drop((first, second));
}

/// A step that is under way ends where it is and is paid once: any step as long as nobody waits for the journal, one that nobody may make
/// again also while somebody does.
#[test]
fn steps_under_way_end_before_a_successor_has_the_journal() {
    for (effects, is_urged) in [("", false), ("effects = \"once\"\n", true)] {
        let (agents, asked) = agents();
        let config = quick_and("slow", agents);
        let workflow = format!("{WORKFLOW}{effects}");
        let project = folder(&[("workflow.toml", &workflow), ("watertight.toml", &config)]);
        let (first, address) = serve(text(project.path()));
        let run = json_of(&ask(address, "POST", "/v1/runs", r#"{"workflow":"two"}"#));
        let id = run["run_id"].as_str().unwrap();
        wait_until("its last step is under way", || asked[1].load(Ordering::SeqCst) == 1);
        let mut second = successor(text(project.path()));
        if is_urged {
            let listed = json_of(&ask(address, "GET", "/v1/runs", ""));
            assert_eq!(listed["data"][0]["run_id"], run["run_id"], "{listed}");
        }
        second.wait_for("journal: ");
        first.end().exits(0);
        let result = json_of(&ask(address, "GET", &format!("/v1/runs/{id}/result?wait=60"), ""));
        assert_eq!(
            (&result["status"], &result["output"]),
            (&json!("completed"), &json!("/slow")),
            "{effects}: {result}"
        );
        assert_eq!(asked[1].load(Ordering::SeqCst), 1, "{effects}: it was paid twice");
        second.signal("TERM");
        second.end().exits(0);
    }
}

/// Whoever is still sending when a successor comes has its answer from the process that it sends to, and what it asked for is there.
#[test]
fn whoever_is_still_sending_is_served_by_the_predecessor() {
    let (agents, _) = agents();
    let config = format!(
        "[providers.here]\nkind = \"http\"\nbase_url = \"http://{agents}\"\n[agents.quick]\nprovider = \"here\"\npath = \"/quick\"\n"
    );
    let workflow = WORKFLOW.replace("agent = \"slow\"", "agent = \"quick\"");
    let project = folder(&[("workflow.toml", &workflow), ("watertight.toml", &config)]);
    let (first, address) = serve(text(project.path()));
    let begun = [
        ("/v1/files", "application/octet-stream", "0123456789", "HTTP/1.1 201 "),
        ("/v1/runs", "application/json", r#"{"workflow":"two"}"#, "HTTP/1.1 202 "),
        ("/v1/agents/quick/call", "application/json", r#"{"input":{"a":1}}"#, "HTTP/1.1 200 "),
    ]
    .map(|(path, kind, body, wanted)| {
        let mut socket = TcpStream::connect(address).unwrap();
        socket.set_read_timeout(Some(BOUND)).unwrap();
        let head = format!("POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: {kind}");
        let (now, later) = body.split_at(5);
        write!(socket, "{head}\r\ncontent-length: {}\r\n\r\n{now}", body.len()).unwrap();
        (socket, later, wanted)
    });
    let mut second = successor(text(project.path()));
    // Somebody is in a hurry over there.
    let listing = std::thread::spawn(move || ask(address, "GET", "/v1/runs", ""));
    std::thread::sleep(LATER);
    assert!(!second.said().contains("journal: "), "the journal is still the first one's: {}", second.said());
    let [file, run, _] = begun.map(|(mut socket, later, wanted)| {
        socket.write_all(later.as_bytes()).unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with(wanted), "{answer}");
        json_of(&answer)
    });
    second.wait_for("journal: ");
    first.end().exits(0);
    let (file, run) = (file["file_id"].as_str().unwrap(), run["run_id"].as_str().unwrap());
    assert_eq!(json_of(&listing.join().unwrap())["data"][0]["run_id"], run);
    let sent = ask(address, "GET", &format!("/v1/files/{file}"), "");
    assert!(sent.starts_with("HTTP/1.1 200 ") && sent.ends_with("0123456789"), "{sent}");
    let result = json_of(&ask(address, "GET", &format!("/v1/runs/{run}/result?wait=60"), ""));
    assert_eq!((&result["status"], &result["output"]), (&json!("completed"), &json!("/quick")), "{result}");
    second.signal("TERM");
    second.end().exits(0);
}

/// Where a successor dies before it serves, its predecessor comes back: nobody is refused, no step is paid twice, keys are known, and the next
/// successor that lives takes over as ever.
#[test]
fn a_successor_that_dies_leaves_the_service_to_its_predecessor() {
    let (agents, asked) = agents();
    let config = quick_and("slow", agents);
    let project = folder(&[("workflow.toml", WORKFLOW), ("watertight.toml", &config)]);
    let (first, address) = serve(text(project.path()));
    let start =
        || json_of(&ask_with(address, "POST", "/v1/runs", &[("idempotency-key", "k")], r#"{"workflow":"two"}"#));
    let run = start();
    wait_until("its last step is under way", || asked[1].load(Ordering::SeqCst) == 1);
    successor(text(project.path())).kill();
    let id = run["run_id"].as_str().unwrap();
    let result = json_of(&ask(address, "GET", &format!("/v1/runs/{id}/result?wait=60"), ""));
    assert_eq!((&result["status"], &result["output"]), (&json!("completed"), &json!("/slow")), "{result}");
    assert_eq!(asked[1].load(Ordering::SeqCst), 1, "it was paid twice");
    assert_eq!(start()["run_id"], run["run_id"]);
    assert!(first.said().contains("this process goes on"), "{}", first.said());
    let mut third = successor(text(project.path()));
    third.wait_for("journal: ");
    first.end().exits(0);
    let listed = json_of(&ask(address, "GET", "/v1/runs", ""));
    assert_eq!(listed["data"][0]["run_id"], run["run_id"], "{listed}");
    third.signal("TERM");
    third.end().exits(0);
}

/// A program that cannot open the journal, here an older one, ends and leaves the service to the process that has it.
#[test]
fn whoever_cannot_open_the_journal_takes_nothing_over() {
    let project = folder(&[("workflow.toml", &WORKFLOW.replace("\"slow\"", "\"quick\"")), ("watertight.toml", QUICK)]);
    let (first, address) = serve(text(project.path()));
    let journal = || rusqlite::Connection::open(project.path().join(".watertight/journal.db")).unwrap();
    journal().execute_batch("PRAGMA user_version = 999").unwrap();
    let second = Running::start(command(&["serve", text(project.path()), "--listen", "127.0.0.1:0"]));
    let ended = second.end().exits(2);
    assert!(ended.err.contains("version 999 of a newer program"), "{}", ended.err);
    let listed = ask(address, "GET", "/v1/runs", "");
    assert!(listed.starts_with("HTTP/1.1 200 "), "{listed}");
    assert!(!first.said().contains("successor"), "{}", first.said());
    first.signal("TERM");
    first.end().exits(0);
}

/// Whoever reads a call log along sees each call soon, and a kill takes none of them.
#[test]
fn a_call_log_is_written_while_calls_are_made() {
    let (agents, _) = agents();
    let config = format!(
        "[providers.here]\nkind = \"http\"\nbase_url = \"http://{agents}\"\n[agents.quick]\nprovider = \"here\"\npath = \"/quick\"\n"
    );
    let project = folder(&[("watertight.toml", &config)]);
    let log = project.path().join("calls.jsonl");
    let args = ["serve", text(project.path()), "--listen", "127.0.0.1:0", "--call-log", text(&log)];
    let mut service = Running::start(command(&args));
    let address = bound(&mut service);
    for calls in 1..=2 {
        let answer = ask(address, "POST", "/v1/agents/quick/call", r#"{"input":{}}"#);
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        wait_until("it is written down", || std::fs::read_to_string(&log).unwrap().lines().count() == calls);
    }
    service.signal("KILL");
    drop(service.end());
    assert_eq!(std::fs::read_to_string(&log).unwrap().lines().count(), 2);
}

/// The agent that answers at once and one more, both where `agents` are.
pub fn quick_and(other: &str, agents: SocketAddr) -> String {
    format!(
        "[providers.here]\nkind = \"http\"\nbase_url = \"http://{agents}\"\n[agents.quick]\nprovider = \"here\"\npath = \"/quick\"\n[agents.{other}]\nprovider = \"here\"\npath = \"/{other}\"\n"
    )
}

/// A process that has the listening socket of the one before it, and waits for its journal.
#[track_caller]
pub fn successor(project: &str) -> Running {
    let mut second = Running::start(command(&["serve", project, "--listen", "127.0.0.1:0"]));
    second.wait_for("a predecessor hands over");
    second
}

/// Waits until it is so.
#[track_caller]
pub fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < BOUND, "{what}: never");
        std::thread::sleep(Duration::from_millis(5));
    }
}
