//! Calls that are made later, over HTTP and over the death of the process: two tenants, each of which sees its own and is bounded by
//! itself; results that are fetched and that are pushed; the ends of what cannot be made.

use std::{
    fmt::Write as _,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::{
    process::BOUND,
    project::{folder, text},
    service::{ask_with, json_of, serve},
};

const SECRET: &str = "a-secret-of-this-test-only";
/// So many calls of one tenant may wait.
const OF_ONE_TENANT: usize = 20;

/// One request that came.
#[derive(Debug, Clone)]
struct Request {
    path: String,
    headers: Vec<(String, String)>,
    body: String,
}

impl Request {
    fn header(&self, name: &str) -> &str {
        self.headers.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value)
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

/// A service that is ill until it is told otherwise, and that is told of ends at `/hook`, of which it takes only the second telling.
struct Far {
    url: String,
    is_well: Arc<AtomicBool>,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Far {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (is_well, requests) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let (well, seen) = (Arc::clone(&is_well), Arc::clone(&requests));
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let (well, seen) = (Arc::clone(&well), Arc::clone(&seen));
                std::thread::spawn(move || answer(&socket, &well, &seen));
            }
        });
        Self { url, is_well, requests }
    }

    fn at(&self, path: &str) -> Vec<Request> {
        self.requests.lock().unwrap().iter().filter(|request| request.path == path).cloned().collect()
    }
}

fn answer(socket: &TcpStream, is_well: &AtomicBool, seen: &Mutex<Vec<Request>>) {
    let Some(request) = read(socket) else { return };
    seen.lock().unwrap().push(request.clone());
    let (status, body) = match request.path.as_str() {
        "/hook" if request.header("x-watertight-attempt") == "1" => (503, String::new()),
        "/hook" => (204, String::new()),
        "/export" if is_well.load(Ordering::SeqCst) => {
            (200, json!({ "output": { "made_of": request.json()["input"] } }).to_string())
        }
        _ => (503, String::new()),
    };
    let head = format!("HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-type: application/json");
    let _ = write!(&*socket, "{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
}

fn read(socket: &TcpStream) -> Option<Request> {
    let mut reader = BufReader::new(socket);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let path = line.split(' ').nth(1)?.to_owned();
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        headers.push((name.to_ascii_lowercase(), value.to_owned()));
    }
    let length = headers.iter().find(|(name, _)| name == "content-length").and_then(|(_, value)| value.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    reader.read_exact(&mut body).ok()?;
    Some(Request { path, headers, body: String::from_utf8(body).ok()? })
}

fn config(url: &str, attempts_max: u32, expires_after: &str) -> String {
    let key = |name: &str, more: &str| format!("[keys.{name}]\nsha256 = \"{}\"\n{more}\n", hex(&Sha256::digest(name)));
    let keys = [("ann", "tenant = \"acme\""), ("bob", "tenant = \"brick\""), ("olga", "role = \"operator\"")];
    let keys: String = keys.iter().map(|(name, more)| key(name, more)).collect();
    let agent = |name: &str, more: &str| {
        format!("[agents.{name}]\npath = \"/{name}\"\n{more}\n[agents.{name}.ladder]\nrungs = [\"deferred\"]\n")
    };
    let agents = agent("export", "") + &agent("doomed", "") + &agent("shut", "slots = 0");
    format!(
        "[defaults.breaker]\nmode = \"disabled\"\n[defaults.retry]\nattempts_max = 1\n\
         [providers.far]\nkind = \"http\"\nbase_url = \"{url}\"\n{agents}{keys}\
         [deferred]\ntenant_entries_max = {OF_ONE_TENANT}\ndelay = \"1s\"\njitter = 0.0\nattempts_max = {attempts_max}\n\
         expires_after = \"{expires_after}\"\n[deferred.webhook]\nsecret_file = \"hook.secret\"\nurl = \"{url}/hook\"\n\
         backoff = \"50ms\"\n"
    )
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The status, the head and the body of an answer to `who`.
#[track_caller]
fn asked(address: SocketAddr, who: &str, method: &str, path: &str, body: &str) -> (u16, String, Value) {
    asked_with(address, &[("authorization", &format!("Bearer {who}"))], (method, path, body))
}

#[track_caller]
fn asked_with(
    address: SocketAddr,
    headers: &[(&str, &str)],
    (method, path, body): (&str, &str, &str),
) -> (u16, String, Value) {
    let answer = ask_with(address, method, path, headers, body);
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    (status, answer.split("\r\n\r\n").next().unwrap().to_ascii_lowercase(), json_of(&answer))
}

/// Asks an agent; the id of what was put off.
#[track_caller]
fn put_off(address: SocketAddr, who: &str, agent: &str, what: &str) -> String {
    let body = json!({ "input": { "what": what } }).to_string();
    let (status, head, told) = asked(address, who, "POST", &format!("/v1/agents/{agent}/call"), &body);
    assert_eq!(status, 202, "{head} {told}");
    let id = told["deferred"]["id"].as_str().unwrap().to_owned();
    assert!(head.contains(&format!("location: /v1/deferred/{}", id.to_ascii_lowercase())), "{head}");
    assert_eq!(told["degraded"]["action"], "deferred", "{told}");
    id
}

/// The ids that `who` is shown.
#[track_caller]
fn listed(address: SocketAddr, who: &str) -> Vec<String> {
    let (status, _, list) = asked(address, who, "GET", "/v1/deferred?limit=1000", "");
    assert_eq!(status, 200, "{list}");
    list["data"].as_array().unwrap().iter().map(|entry| entry["id"].as_str().unwrap().to_owned()).collect()
}

/// The entry once it is over.
#[track_caller]
fn ended(address: SocketAddr, who: &str, id: &str) -> Value {
    let began = Instant::now();
    loop {
        let (status, _, entry) = asked(address, who, "GET", &format!("/v1/deferred/{id}"), "");
        assert_eq!(status, 200, "{entry}");
        if entry["status"] != "waiting" {
            return entry;
        }
        assert!(began.elapsed() < BOUND, "never over: {entry}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// What is somebody else's is answered like what is not there.
fn nothing_of_anothers(address: SocketAddr, mine: &str, theirs: &str) {
    for method in ["GET", "DELETE"] {
        let (status, _, strange) = asked(address, "bob", method, &format!("/v1/deferred/{mine}"), "");
        let (none, _, absent) = asked(address, "bob", method, "/v1/deferred/0198d0000000000000000000", "");
        assert_eq!((status, none), (404, 404), "{strange} {absent}");
        assert_eq!(strange["error"]["error_code"], absent["error"]["error_code"]);
    }
    assert_eq!(listed(address, "bob"), [theirs]);
    assert!(!listed(address, "ann").contains(&theirs.to_owned()));
    assert_eq!(listed(address, "olga").len(), OF_ONE_TENANT + 1, "an operator sees all");
}

/// What was pushed of this entry, once it was taken.
#[track_caller]
fn pushed(far: &Far, id: &str) -> Vec<Request> {
    let began = Instant::now();
    loop {
        let hooks: Vec<_> =
            far.at("/hook").into_iter().filter(|hook| hook.header("x-watertight-delivery") == id).collect();
        if hooks.len() >= 2 {
            return hooks;
        }
        assert!(began.elapsed() < BOUND, "nobody was told of {id}: {hooks:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// As a receiver would do it.
#[track_caller]
fn assert_signed(hook: &Request) {
    let signature = hook.header("x-watertight-signature");
    let (time, code) = signature.strip_prefix("t=").unwrap().split_once(",v1=").unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    assert!(now.abs_diff(time.parse().unwrap()) <= 300, "{signature}");
    let mut mac = Hmac::<Sha256>::new_from_slice(SECRET.as_bytes()).unwrap();
    mac.update(format!("{time}.{}", hook.body).as_bytes());
    assert_eq!(hex(&mac.finalize().into_bytes()), code, "{signature}");
}

fn project(far: &Far, attempts_max: u32, expires_after: &str) -> tempfile::TempDir {
    folder(&[("watertight.toml", &config(&far.url, attempts_max, expires_after)), ("hook.secret", SECRET)])
}

fn rewrite(project: &Path, config: &str) {
    std::fs::write(project.join("watertight.toml"), config).unwrap();
}

#[test]
fn two_tenants_put_calls_off_and_a_kill_loses_none_of_them() {
    let far = Far::start();
    let project = project(&far, 1_000, "1h");
    let (mut service, address) = serve(text(project.path()));

    // One tenant defers without end; only so many are kept, and the other is not touched by it.
    let mine: Vec<String> =
        (0..OF_ONE_TENANT).map(|number| put_off(address, "ann", "export", &number.to_string())).collect();
    for _ in 0..10 {
        let body = json!({ "input": { "what": "one too many" } }).to_string();
        let (status, _, refused) = asked(address, "ann", "POST", "/v1/agents/export/call", &body);
        assert_eq!((status, &refused["error"]["http_status"]), (503, &json!(503)), "{refused}");
        let tries = refused["error"]["details"]["tries"].as_array().unwrap();
        assert_eq!(
            (tries[1]["target"].as_str(), tries[1]["error_code"].as_str()),
            (Some("deferred"), Some("AGENT_BULKHEAD_FULL"))
        );
    }
    let theirs = put_off(address, "bob", "export", "of brick");
    nothing_of_anothers(address, &mine[0], &theirs);

    // It dies while some of them are being made, and another one takes its place.
    service.kill();
    let first_life = service.said();
    let (service, address) = serve(text(project.path()));
    nothing_of_anothers(address, &mine[0], &theirs);
    let (status, _, cancelled) = asked(address, "ann", "DELETE", &format!("/v1/deferred/{}", mine[0]), "");
    assert_eq!((status, &cancelled["status"]), (200, &json!("cancelled")), "{cancelled}");
    far.is_well.store(true, Ordering::SeqCst);

    // Fetched, and pushed: each its own.
    for (number, id) in mine.iter().enumerate().skip(1) {
        let entry = ended(address, "ann", id);
        assert_eq!((&entry["status"], &entry["tenant"]), (&json!("done"), &json!("acme")), "{entry}");
        assert_eq!(entry["output"], json!({ "made_of": { "what": number.to_string() } }));
    }
    let entry = ended(address, "bob", &theirs);
    assert_eq!(
        (&entry["status"], &entry["output"]["made_of"]["what"]),
        (&json!("done"), &json!("of brick")),
        "{entry}"
    );
    for (id, tenant) in [(&mine[1], "acme"), (&theirs, "brick")] {
        let hooks = pushed(&far, id);
        let tries: Vec<&str> = hooks.iter().map(|hook| hook.header("x-watertight-attempt")).collect();
        assert_eq!(tries, ["1", "2"], "told again until it was taken");
        hooks.iter().for_each(assert_signed);
        let told = hooks[1].json();
        assert_eq!((&told["type"], &told["deferred"]["tenant"]), (&json!("deferred.done"), &json!(tenant)), "{told}");
        assert_eq!(
            told["deferred"]["output"],
            ended(address, if tenant == "acme" { "ann" } else { "bob" }, id)["output"]
        );
    }
    // One key a call, whatever it took; and each was answered once.
    let keys: std::collections::BTreeSet<String> =
        far.at("/export").iter().map(|request| request.header("idempotency-key").to_owned()).collect();
    assert!(keys.len() > OF_ONE_TENANT, "{}", keys.len());
    for said in [&first_life, &service.said()] {
        assert!(!said.contains(SECRET) && !said.contains("panicked"), "{said}");
    }
    service.signal("TERM");
    service.end().exits(0);
}

#[test]
fn what_cannot_be_made_ends_by_its_attempts_or_its_age() {
    let far = Far::start();
    far.is_well.store(true, Ordering::SeqCst);
    let project = project(&far, 2, "1h");
    let (service, address) = serve(text(project.path()));
    let doomed = ended(address, "ann", &put_off(address, "ann", "doomed", "x"));
    assert_eq!((&doomed["status"], &doomed["attempts"]), (&json!("failed"), &json!(2)), "{doomed}");
    assert_eq!(doomed["error"]["http_status"], 503, "{doomed}");
    // An entry of the life before, and one of the next.
    let old = put_off(address, "ann", "shut", "old");
    service.signal("TERM");
    service.end().exits(0);
    rewrite(project.path(), &config(&far.url, 2, "2s"));
    let (service, address) = serve(text(project.path()));
    let expired = ended(address, "ann", &put_off(address, "ann", "shut", "new"));
    assert_eq!(
        (&expired["status"], &expired["attempts"]),
        (&json!("expired"), &json!(0)),
        "refusals are no attempts: {expired}"
    );
    assert_eq!(expired["error"]["error_code"], "AGENT_BULKHEAD_FULL", "what it was put off for is what it ends with");
    assert_eq!(pushed(&far, expired["id"].as_str().unwrap())[1].json()["type"], "deferred.expired");
    // What was promised for an hour is kept for an hour.
    let (_, _, kept) = asked(address, "ann", "GET", &format!("/v1/deferred/{old}"), "");
    assert_eq!(kept["status"], "waiting", "{kept}");
    assert_eq!(kept["attempts"], 0, "{kept}");
    // The same key is the same call.
    let headers = [("authorization", "Bearer ann"), ("idempotency-key", "once")];
    let body = json!({ "input": { "what": "once" } }).to_string();
    let ids: Vec<Value> = (0..2)
        .map(|_| asked_with(address, &headers, ("POST", "/v1/agents/shut/call", &body)).2["deferred"]["id"].clone())
        .collect();
    assert!(ids[0].is_string() && ids[0] == ids[1], "{ids:?}");
    service.signal("TERM");
    service.end().exits(0);
}
