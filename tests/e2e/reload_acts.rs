//! What a reload of a running service does to its calls: each kind of setting is seen to act without a restart, what was counted stays
//! counted, an open breaker stays open; one mistake among changes of every kind changes nothing. And what `check --against` says before.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    process::{BOUND, Running, command, watertight},
    project::{folder, put, text},
    service::{ask, json_of, serve},
};

/// A server of models: every answer took 100 tokens to read and 50 to write. It dies with the test.
struct Models {
    address: SocketAddr,
    /// `big` fails.
    is_ill: Arc<AtomicBool>,
    asked: Arc<AtomicUsize>,
}

impl Models {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let models = Self { address: listener.local_addr().unwrap(), is_ill: Arc::default(), asked: Arc::default() };
        let (is_ill, asked) = (Arc::clone(&models.is_ill), Arc::clone(&models.asked));
        std::thread::spawn(move || {
            for socket in listener.incoming().map_while(Result::ok) {
                let (is_ill, asked) = (Arc::clone(&is_ill), Arc::clone(&asked));
                std::thread::spawn(move || {
                    let mut reader = BufReader::new(socket);
                    let mut length = 0;
                    let mut line = String::new();
                    while reader.read_line(&mut line).unwrap_or(0) > 2 {
                        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                            length = value.trim().parse().unwrap();
                        }
                        line.clear();
                    }
                    let mut body = vec![0; length];
                    reader.read_exact(&mut body).unwrap();
                    let model = serde_json::from_slice::<Value>(&body).unwrap_or_default()["model"].clone();
                    asked.fetch_add(1, Ordering::SeqCst);
                    let is_ill = model == "sick" || (model == "big" && is_ill.load(Ordering::SeqCst));
                    let (status, answer) = if is_ill {
                        ("500 Ill", json!({ "error": { "message": "ill" } }))
                    } else {
                        let choice = json!({
                            "index": 0, "finish_reason": "stop",
                            "message": { "role": "assistant", "content": format!("from {}", model.as_str().unwrap()) },
                        });
                        let usage = json!({ "prompt_tokens": 100, "completion_tokens": 50, "total_tokens": 150 });
                        (
                            "200 OK",
                            json!({ "id": "x", "object": "chat.completion", "created": 1, "model": model, "choices": [choice], "usage": usage }),
                        )
                    };
                    let answer = answer.to_string();
                    let length = answer.len();
                    let _ = write!(
                        reader.get_mut(),
                        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{answer}"
                    );
                });
            }
        });
        models
    }
}

/// A service in front of it, whose configuration the test writes.
struct Service {
    process: Running,
    address: SocketAddr,
    project: TempDir,
    models: Models,
}

impl Service {
    fn start() -> Self {
        let models = Models::start();
        let project = folder(&[("prompt.md", "Say it."), ("watertight.toml", &config(&models, ""))]);
        let (process, address) = serve(text(project.path()));
        Self { process, address, project, models }
    }

    /// The usual configuration and `more`, from now on: by this order, or by the service's own look at its files before it.
    #[track_caller]
    fn becomes(&self, more: &str) {
        write(self.project.path(), &config(&self.models, more));
        let answer = json_of(&ask(self.address, "POST", "/v1/config/reload", ""));
        assert!(answer["changes"].is_array(), "{more}: {answer:#}");
    }

    /// What a call of an agent comes to: its output or its code, and the whole answer.
    fn call(&self, agent: &str) -> (String, Value, String) {
        let whole = ask(self.address, "POST", &format!("/v1/agents/{agent}/call"), r#"{"input":{}}"#);
        let answer = json_of(&whole);
        let output = answer["output"]["text"].as_str().or(answer["output"].as_str());
        let word = output.or(answer["error"]["error_code"].as_str());
        (word.unwrap_or_default().to_owned(), answer, whole)
    }

    #[track_caller]
    fn says(&self, agent: &str, want: &str) -> Value {
        let (word, answer, _) = self.call(agent);
        assert_eq!(word, want, "{answer:#}");
        answer
    }

    /// The cost of everything so far that has a price; looked for until the ledger has all calls.
    #[track_caller]
    fn cost(&self, calls: u64) -> Value {
        let began = Instant::now();
        loop {
            let sums = json_of(&ask(self.address, "GET", "/v1/usage?group=agent", ""));
            let of = |line: &&Value| line["agent"] == "draft";
            let line = sums["data"].as_array().unwrap().iter().find(of).cloned().unwrap_or_default();
            if line["calls"].as_u64() == Some(calls) {
                // Where some of it has none, what is known stands apart.
                return if line["costs"].is_null() { &line["cost"] } else { &line["costs"][0]["cost"] }.clone();
            }
            assert!(began.elapsed() < BOUND, "{calls}: {sums:#}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The breaker of an agent.
    fn breaker(&self, agent: &str) -> String {
        let agents = json_of(&ask(self.address, "GET", "/v1/agents", ""));
        let all = agents["data"].as_array().or_else(|| agents.as_array()).unwrap().clone();
        let found = all.into_iter().find(|listed| listed["name"] == agent).unwrap();
        found["breaker"]["state"].as_str().or(found["state"].as_str()).unwrap_or_default().to_owned()
    }
}

fn config(models: &Models, more: &str) -> String {
    let url = format!("http://{}/v1", models.address);
    // `more` may set keys of the provider `up`: it stands last among the usual tables.
    let agent = |name: &str, provider: &str, rest: &str| {
        format!(
            "[agents.{name}]\nprovider = \"{provider}\"\nprompt = \"prompt.md\"\nanswer = \"text\"\nmax_output_tokens = 60\nretry = {{ attempts_max = 1 }}\n{rest}"
        )
    };
    let provider = |name: &str, model: &str| {
        format!(
            "[providers.{name}]\nkind = \"openai\"\nbase_url = \"{url}\"\nmodel = \"{model}\"\nstream_upstream = \"as_asked\"\n"
        )
    };
    let sick = "breaker = { consecutive_failures = 3, open = \"1h\", open_max = \"1h\" }\n";
    [
        provider("other", "sick"),
        agent("sick", "other", sick),
        agent("draft", "up", "breaker = { consecutive_failures = 1000, failure_share = 1.0 }\n"),
        provider("up", "big"),
        more.to_owned(),
    ]
    .concat()
}

fn write(folder: &Path, config: &str) {
    std::fs::write(folder.join("new"), config).unwrap();
    std::fs::rename(folder.join("new"), folder.join("watertight.toml")).unwrap();
}

#[test]
fn every_kind_of_setting_acts_at_once_and_forgets_nothing() {
    let service = Service::start();
    for _ in 0..3 {
        service.says("sick", "AGENT_ERROR");
    }
    service.says("sick", "AGENT_CIRCUIT_OPEN");

    // Prices: what was called before has none.
    service.says("draft", "from big");
    assert_eq!(service.cost(1), Value::Null);
    service.becomes("[prices.\"up/big\"]\ninput = 10.0\noutput = 20.0\n");
    service.says("draft", "from big");
    assert_eq!(service.cost(2), json!(0.002), "100 x 10 and 50 x 20 a million");
    service.becomes("[prices.\"up/big\"]\ninput = 20.0\noutput = 40.0\n");
    service.says("draft", "from big");
    assert_eq!(service.cost(3), json!(0.006));

    // A budget of tokens: 150 are used when it is made smaller, and a request of less than 100 would fit into an empty one.
    service.becomes("tokens_per_minute = 10_000\n");
    service.says("draft", "from big");
    service.becomes("tokens_per_minute = 200\n");
    let refused = service.says("draft", "TOKEN_BUDGET_EXHAUSTED");
    assert_eq!(refused["error"]["details"]["compartment"], "provider:up", "{refused:#}");
    service.becomes("tokens_per_minute = 10_000\n");
    service.says("draft", "from big");

    // Requests a minute.
    service.becomes("requests_per_minute = 100\n");
    service.says("draft", "from big");
    service.says("draft", "from big");
    service.becomes("requests_per_minute = 2\n");
    let refused = service.says("draft", "RATE_LIMITED");
    assert_eq!(refused["error"]["details"]["limit"], "provider:up", "{refused:#}");

    // The volume guard: 2 of the hour are used when it is made smaller; who is shut stays so.
    let guard = |calls: u32| format!("[volume_guard]\ncalls_per_hour = {calls}\n");
    service.becomes(&guard(100));
    service.says("draft", "from big");
    service.says("draft", "from big");
    service.becomes(&guard(2));
    service.says("draft", "CALL_VOLUME_EXCEEDED");
    service.becomes(&guard(100));
    service.says("draft", "CALL_VOLUME_EXCEEDED");
    service.becomes("");
    service.says("draft", "from big");

    // Slots of a feature.
    service.becomes("[features.chat]\nslots = 0\n[compartments]\nunknown_feature = \"chat\"\n");
    let refused = service.says("draft", "AGENT_BULKHEAD_FULL");
    assert_eq!(refused["error"]["details"]["compartment"], "feature:chat", "{refused:#}");

    ladders_and_deferral(&service);
    warmth(&service);
    assert_eq!(service.breaker("sick"), "open");
    service.says("sick", "AGENT_CIRCUIT_OPEN");
    service.process.signal("TERM");
    service.process.end().exits(0);
}

fn ladders_and_deferral(service: &Service) {
    service.becomes("");
    service.models.is_ill.store(true, Ordering::SeqCst);
    service.says("draft", "AGENT_ERROR");
    service.becomes("[agents.draft.ladder]\nrungs = [\"default\"]\ndefault = \"stated\"\n");
    service.says("draft", "stated");
    service.becomes("[agents.draft.ladder]\nrungs = [\"lighter\"]\nlighter = \"up/small\"\n");
    let (word, answer, whole) = service.call("draft");
    assert_eq!(word, "from small", "{answer:#}");
    assert!(whole.to_ascii_lowercase().contains("x-watertight-degraded: lighter"), "{whole}");
    // Put off for as long as it is said now; what was put off before comes at its own time.
    let deferring = |delay: &str| {
        format!("[agents.draft.ladder]\nrungs = [\"deferred\"]\n[deferred]\ndelay = \"{delay}\"\njitter = 0.0\n")
    };
    let put_off = |delay: &str| {
        service.becomes(&deferring(delay));
        let (_, answer, whole) = service.call("draft");
        assert!(whole.starts_with("HTTP/1.1 202"), "{whole}");
        let deferred = answer["deferred"].clone();
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let left = u128::from(deferred["due_ms"].as_u64().unwrap()).saturating_sub(now.as_millis());
        (deferred["id"].as_str().unwrap().to_owned(), Duration::from_millis(u64::try_from(left).unwrap()))
    };
    let (almost, hour) = (Duration::from_secs(3_540), Duration::from_secs(3_600));
    let (late, left) = put_off("1h");
    assert!(left > almost && left <= hour, "{left:?}");
    service.models.is_ill.store(true, Ordering::SeqCst);
    let (soon, left) = put_off("1s");
    assert!(left <= Duration::from_secs(1), "{left:?}");
    service.models.is_ill.store(false, Ordering::SeqCst);
    let state = |id: &str| json_of(&ask(service.address, "GET", &format!("/v1/deferred/{id}"), ""));
    let began = Instant::now();
    while !state(&soon).to_string().contains("from big") {
        assert!(began.elapsed() < BOUND, "{:#}", state(&soon));
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(!state(&late).to_string().contains("from big"), "{:#}", state(&late));
}

fn warmth(service: &Service) {
    let asked = || service.models.asked.load(Ordering::SeqCst);
    service.becomes("");
    let before = asked();
    service.says("draft", "from big");
    assert_eq!(asked() - before, 1, "nobody warms it up");
    // A model that is put away when it is not used for a moment: the first call finds out that it is there, the next one that it is gone.
    service.becomes("warm_up = \"always\"\nkeeps_warm = \"10ms\"\n");
    let before = asked();
    service.says("draft", "from big");
    std::thread::sleep(Duration::from_millis(50));
    service.says("draft", "from big");
    assert_eq!(asked() - before, 3, "two calls, and a warm-up before the second");
    service.becomes("warm_up = \"off\"\n");
    let before = asked();
    std::thread::sleep(Duration::from_millis(50));
    service.says("draft", "from big");
    assert_eq!(asked() - before, 1);
}

/// One mistake among good changes of every kind.
#[test]
fn a_reload_with_mistakes_changes_nothing_and_tells_all_of_them() {
    let service = Service::start();
    service.becomes("tokens_per_minute = 10_000\n[prices.\"up/big\"]\ninput = 10.0\n");
    service.says("draft", "from big");
    let before = json_of(&ask(service.address, "GET", "/v1/config", ""));
    let bad = "tokens_per_minute = 160\nrequests_per_minute = 1\nslots = -1\n[volume_guard]\ncalls_per_hour = 1\n\
        [prices.\"up/big\"]\ninput = -5.0\n[prices.\"up/small\"]\ninputt = 5.0\n\
        [agents.draft.ladder]\nrungs = [\"later\"]\n[deferred]\ndelay = \"soon\"\n[features.chat]\nslotz = 0\n[agents.new]\nprovider = \"up\"\n";
    write(service.project.path(), &config(&service.models, bad));
    let url = format!("http://{}", service.address);
    let checked = watertight(&["check", text(service.project.path()), "--against", &url]).exits(2);
    let answer = json_of(&ask(service.address, "POST", "/v1/config/reload", ""));
    let problems = answer["error"]["details"]["problems"].as_array().unwrap_or_else(|| panic!("{answer:#}"));
    let problems: Vec<&str> = problems.iter().map(|problem| problem.as_str().unwrap()).collect();
    for key in [
        "providers.up.slots = -1",
        "prices.\"up/big\".input",
        "prices.\"up/small\".inputt",
        "agents.draft.ladder.rungs[0] = \"later\"",
        "deferred.delay = \"soon\"",
        "features.chat.slotz",
    ] {
        let found = problems.iter().find(|problem| problem.contains(key));
        let found = found.unwrap_or_else(|| panic!("{key}: {problems:#?}"));
        assert!(found.contains("watertight.toml:"), "{found}");
        assert!(checked.err.contains(found), "a check says the same: {found}: {}", checked.err);
    }
    for _ in 0..3 {
        service.says("draft", "from big");
    }
    let after = json_of(&ask(service.address, "GET", "/v1/config", ""));
    assert_eq!((&after["values"], &after["hash"]), (&before["values"], &before["hash"]));
    assert_eq!(after["last_refusal"]["problems"].as_array().map(Vec::len), Some(problems.len()));
    assert_eq!(service.call("new").0, "NOT_FOUND");
    service.process.signal("TERM");
    service.process.end().exits(0);
}

#[test]
fn check_against_shows_every_kind_of_change_before_it_is_made() {
    const STEP: &str =
        "[workflow]\nname = \"one\"\noutput = \"steps.a.output\"\n[[step]]\nid = \"a\"\nagent = \"draft\"\n";
    let models = Models::start();
    let first = config(
        &models,
        "tokens_per_minute = 10_000\n[prices.\"up/big\"]\ninput = 10.0\n[volume_guard]\ncalls_per_hour = 100\n[agents.old]\nprovider = \"up\"\n",
    );
    let project = folder(&[("prompt.md", "Say it."), ("watertight.toml", &first), ("workflows/one.toml", STEP)]);
    let (mut process, address) = serve(text(project.path()));
    let url = format!("http://{address}");
    let check = |more: &[&str]| watertight(&[&["check", text(project.path()), "--against", &url], more].concat());
    assert!(check(&[]).exits(0).out.contains("a reload would change nothing"));
    assert_eq!(check(&["--json"]).exits(0).json(), json!({ "ok": true, "changes": [] }));

    let second = config(
        &models,
        "tokens_per_minute = 5_000\nslots = 9\n[prices.\"up/big\"]\ninput = 30.0\n[volume_guard]\ncalls_per_hour = 50\n[agents.new]\nprovider = \"up\"\n[agents.draft.ladder]\nrungs = [\"default\"]\ndefault = 1\n[deferred]\ndelay = \"9m\"\n[features.chat]\nslots = 4\n[serve]\ngrace = \"7s\"\n[priorities]\norder = [\"standard\", \"critical\", \"interactive\", \"batch\", \"background\"]\n",
    );
    // It stands elsewhere: the service looks at its own files.
    let other_step = format!("{STEP}in = {{ more = \"1\" }}\n");
    let files = [("prompt.md", "Say it again."), ("watertight.toml", &*second), ("workflows/one.toml", &*other_step)];
    let to_come = folder(&files);
    let check = |more: &[&str]| watertight(&[&["check", text(to_come.path()), "--against", &url], more].concat());
    let told = check(&["--json"]).exits(0).json();
    let changes = told["changes"].as_array().unwrap();
    let of = |key: &str| {
        let found = changes.iter().find(|change| change["key"] == key);
        found.unwrap_or_else(|| panic!("{key}: {told:#}")).clone()
    };
    for (key, before, after, needs_restart) in [
        ("providers.up.tokens_per_minute", "10000", "5000", false),
        ("prices.\"up/big\".input", "10", "30", false),
        ("volume_guard.calls_per_hour", "100", "50", false),
        ("serve.grace", "30s", "7s", true),
    ] {
        let change = of(key);
        assert_eq!((&change["before"], &change["after"]), (&json!(before), &json!(after)), "{key}");
        assert_eq!(change["needs_restart"], needs_restart, "{key}");
    }
    for (key, is_there, comes) in [
        ("agents.old.slots", true, false),
        ("agents.new.slots", false, true),
        ("agents.draft.ladder.rungs", false, true),
        ("features.chat.slots", false, true),
    ] {
        let change = of(key);
        assert_eq!((change["before"].is_string(), change["after"].is_string()), (is_there, comes), "{key}: {change}");
        assert_eq!(change["needs_restart"], false, "{key}");
    }
    for (key, needs_restart) in [
        ("providers.up.slots", false),
        ("deferred.delay", false),
        ("agents.draft.texts", false),
        ("priorities.order", true),
        ("workflows.one", true),
    ] {
        assert_eq!(of(key)["needs_restart"], needs_restart, "{key}");
    }
    let table = check(&[]).exits(0).out;
    for (key, when) in [("volume_guard.calls_per_hour", "with a reload"), ("workflows.one", "with a restart")] {
        let line = table.lines().find(|line| line.starts_with(key)).unwrap_or_else(|| panic!("{key}: {table}"));
        assert!(line.ends_with(when), "{line}");
    }

    // Looking changes nothing; the reload does what was said, and what needs a restart is still told.
    assert_eq!(check(&["--json"]).exits(0).json(), told);
    for (name, text) in files {
        put(project.path(), name, text.as_bytes());
    }
    assert!(json_of(&ask(address, "POST", "/v1/config/reload", ""))["changes"].is_array());
    for change in changes {
        process.wait_for(&format!("  {}: ", change["key"].as_str().unwrap()));
    }
    let left = check(&["--json"]).exits(0).json()["changes"].as_array().unwrap().clone();
    let keys: Vec<&str> = left.iter().map(|change| change["key"].as_str().unwrap()).collect();
    assert_eq!(keys, ["priorities.order", "serve.grace", "workflows.one"], "{left:#?}");

    // What cannot be asked, and what cannot be: one word of the exit code each.
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let nobody = format!("http://{nobody}");
    watertight(&["check", text(to_come.path()), "--against", &nobody]).exits(2);
    let told = watertight(&["check", text(to_come.path()), "--against", &nobody, "--json"]).exits(2).json();
    assert!(told["error"]["message"].as_str().unwrap().contains(&nobody), "{told:#}");
    write(to_come.path(), "[agents.draft]\nslots = -1\n");
    let told = check(&["--json"]).exits(2).json();
    assert!(told["error"]["message"].as_str().unwrap().contains("agents.draft.slots = -1"), "{told:#}");
    process.signal("TERM");
    process.end().exits(0);
}

/// A hang-up before the service is there: it waits for its journal, which somebody else holds.
#[test]
fn a_hang_up_during_the_start_is_heard_after_it() {
    const CONFIG: &str = "[providers.local]\nkind = \"embedded\"\n[agents.draft]\nprovider = \"local\"\nslots = 3\n\
        [serve]\nhandover_wait = \"100s\"\n[journal]\npath = \"kept/journal.db\"\n";
    let project = folder(&[("watertight.toml", CONFIG), ("kept/journal.db.lock", "")]);
    let held = std::fs::File::open(project.path().join("kept/journal.db.lock")).unwrap();
    held.lock().unwrap();
    let mut service = Running::start(command(&["serve", text(project.path()), "--listen", "127.0.0.1:0"]));
    // It has read its configuration once this is there.
    let began = Instant::now();
    while !project.path().join("kept/signing.key").exists() {
        assert!(began.elapsed() < BOUND, "{}", service.said());
        std::thread::sleep(Duration::from_millis(5));
    }
    write(project.path(), &CONFIG.replace("slots = 3", "slots = 5"));
    service.signal("HUP");
    service.signal("HUP");
    drop(held);
    service.wait_for("journal: ");
    service.wait_for("SIGHUP, loading the configuration anew");
    service.wait_for("agents.draft.slots: 3 -> 5");
    let said = service.said();
    assert!(said.find("journal: ").unwrap() < said.find("SIGHUP").unwrap(), "{said}");
    service.signal("TERM");
    service.end().exits(0);
}
