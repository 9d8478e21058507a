//! Mistakes put into a good configuration, several at once: each is told once, at its own line, and nothing that only follows from one.

use proptest::prelude::*;

use super::given::Given;

/// A configuration with nothing wrong.
const GOOD: &str = r#"
[run]
cost_max = 5.0
language = "ko"
[node]
instances = 1
[limits]
reply_bytes_max = 1_000_000
[files]
pictures_max = 3
[capture]
mode = "errors"
[journal]
readers = 3
retention = { completed = "30d" }
[serve]
grace = "30s"
calls_max = 100
[volume_guard]
calls_per_hour = 1000
shut_for = "30m"
[defaults]
call_timeout = "170s"
[defaults.breaker]
open = "20s"
[providers.o]
kind = "openai"
base_url = "http://127.0.0.1:1/v1"
model = "m"
slots = 10
guaranteed = { draft = 2, review = 1 }
tokens_per_minute = 5000
[providers.p]
kind = "openai"
base_url = "http://127.0.0.1:2/v1"
model = "n"
adaptive = { min = 2, max = 40 }
[providers.h]
kind = "http"
base_url = "http://127.0.0.1:3"
[agents.draft]
provider = "o"
max_output_tokens = 500
slots = 4
timeout = "60s"
temperature = 0.5
model_names = ["writer", "author"]
[agents.draft.breaker]
window_calls = 30
calls_min = 12
failure_share = 0.5
mode = "auto"
[agents.draft.retry]
attempts_max = 2
backoff = "1s"
[agents.draft.ladder]
rungs = ["lighter", "deferred", "default", "notice"]
lighter = ["p/small", "agent:review"]
default = { text = "later" }
notice = { ko = "잠시", en = "Soon" }
[agents.review]
provider = "o"
model = "r"
max_output_tokens = 600
prewarm = true
[agents.meta]
provider = "p"
max_output_tokens = 700
restart = { max = 3, within = "60s" }
[agents.style]
provider = "h"
path = "/style"
method = "POST"
mapping = { output = "/data" }
[features.chat]
slots = 6
tokens_per_minute = 4000
ratio = 0.4
guaranteed = { o = 2 }
max_wait = "5s"
[features.batch]
slots = 3
line_max = 10
[features.batch.ladder]
rungs = ["deferred"]
[tiers.free]
slots = 5
tokens_per_minute = 3000
[tiers.pro]
slots = 9
[tenants.acme]
tier = "pro"
[tenants.solo]
tier = "free"
[compartments]
unknown_feature = "batch"
unknown_tenant = "own"
tier = "free"
[priorities]
wait_max = "200ms"
reserved = { interactive = 0.2 }
minimum = { background = 0.1 }
[keys.a]
sha256 = "0000000000000000000000000000000000000000000000000000000000000001"
tenant = "acme"
tier = "pro"
features = ["chat", "batch"]
feature = "chat"
[keys.b]
sha256 = "0000000000000000000000000000000000000000000000000000000000000002"
role = "operator"
[budgets]
output_tokens = 800
[prices]
currency = "EUR"
[prices."o/m"]
input = 1.0
output = 2.0
[prices."p/n"]
input = 1.0
[deferred]
delay = "5m"
attempts_max = 4
priority = "background"
[deferred.webhook]
url = "https://hooks.example/a"
secret_env = "HOOK"
"#;

/// One mistake: in which table, which line becomes which, and how the one line begins that tells of it.
type Mistake = (&'static str, &'static str, &'static str, &'static str);

/// Each alone is one mistake, and so is each beside all others.
const MISTAKES: &[Mistake] = &[
    ("run", "language = \"ko\"", "language = \"fr\"", "run.language = \"fr\": must be one of"),
    ("run", "cost_max = 5.0", "cost_max = 0", "run.cost_max = 0: must be more than 0"),
    ("node", "instances = 1", "instances = 0", "node.instances = 0: must be a whole number"),
    ("limits", "reply_bytes_max = 1_000_000", "reply_bytes_max = \"1M\"", "limits.reply_bytes_max = \"1M\": must be"),
    (
        "files",
        "pictures_max = 3",
        "picture_max = 3",
        "files.picture_max = 3: unknown key, did you mean `pictures_max`?",
    ),
    ("capture", "mode = \"errors\"", "mode = \"error\"", "capture.mode = \"error\": must be one of"),
    ("journal", "readers = 3", "readers = 0", "journal.readers = 0: must be a whole number"),
    (
        "journal",
        "retention = { completed = \"30d\" }",
        "retention = { completed = \"30\" }",
        "journal.retention.completed = \"30\": must",
    ),
    ("serve", "grace = \"30s\"", "grace = 30", "serve.grace = 30: must be a text"),
    ("serve", "calls_max = 100", "calls_max = -1", "serve.calls_max = -1: must be"),
    (
        "volume_guard",
        "calls_per_hour = 1000",
        "calls_per_huor = 1000",
        "volume_guard.calls_per_huor = 1000: unknown key",
    ),
    ("volume_guard", "shut_for = \"30m\"", "shut_for = \"0s\"", "volume_guard.shut_for = \"0s\": must be longer"),
    (
        "defaults",
        "call_timeout = \"170s\"",
        "call_timeout = \"170\"",
        "defaults.call_timeout = \"170\": must have a unit",
    ),
    ("defaults.breaker", "open = \"20s\"", "open = \"20\"", "defaults.breaker.open = \"20\": must have a unit"),
    ("providers.o", "slots = 10", "slots = \"10\"", "providers.o.slots = \"10\": must be a whole number"),
    (
        "providers.o",
        "guaranteed = { draft = 2, review = 1 }",
        "guaranteed = { draft = 2, reviw = 1 }",
        "providers.o.guaranteed.reviw = 1: names no agent",
    ),
    ("providers.o", "tokens_per_minute = 5000", "tokens_per_minute = 0", "providers.o.tokens_per_minute = 0: must be"),
    ("providers.p", "kind = \"openai\"", "kind = \"opnai\"", "providers.p.kind = \"opnai\": must be one of"),
    (
        "providers.p",
        "base_url = \"http://127.0.0.1:2/v1\"",
        "base_url = \"127.0.0.1\"",
        "providers.p.base_url = \"127.0.0.1\": must begin",
    ),
    (
        "providers.p",
        "adaptive = { min = 2, max = 40 }",
        "adaptive = { min = 50, max = 40 }",
        "providers.p.adaptive.max = 40: must be from min (50)",
    ),
    (
        "providers.h",
        "base_url = \"http://127.0.0.1:3\"",
        "base_ulr = \"http://127.0.0.1:3\"",
        "providers.h.base_ulr = \"http://127.0.0.1:3\": unknown key",
    ),
    (
        "agents.draft",
        "provider = \"o\"",
        "provider = \"oo\"",
        "agents.draft.provider = \"oo\": there is no such provider",
    ),
    ("agents.draft", "max_output_tokens = 500", "max_output_tokens = 0", "agents.draft.max_output_tokens = 0: must be"),
    ("agents.draft", "slots = 4", "slots = 4.5", "agents.draft.slots = 4.5: must be"),
    ("agents.draft", "timeout = \"60s\"", "timeout = \"never\"", "agents.draft.timeout = \"never\": must"),
    (
        "agents.draft",
        "temperature = 0.5",
        "temperature = 5",
        "agents.draft.temperature = 5: must be a number from 0 to 2",
    ),
    (
        "agents.draft",
        "model_names = [\"writer\", \"author\"]",
        "model_names = [\"writer\", \"\"]",
        "agents.draft.model_names[1] = \"\": must be a text",
    ),
    (
        "agents.draft.breaker",
        "window_calls = 30",
        "window_calls = 0",
        "agents.draft.breaker.window_calls = 0: must be 1 to 10000",
    ),
    (
        "agents.draft.breaker",
        "calls_min = 12",
        "calls_min = 0",
        "agents.draft.breaker.calls_min = 0: must be at least 1",
    ),
    (
        "agents.draft.breaker",
        "failure_share = 0.5",
        "failure_share = 50",
        "agents.draft.breaker.failure_share = 50: must be a share",
    ),
    (
        "agents.draft.breaker",
        "mode = \"auto\"",
        "mode = \"atuo\"",
        "agents.draft.breaker.mode = \"atuo\": must be one of",
    ),
    (
        "agents.draft.retry",
        "attempts_max = 2",
        "attempts_max = 99",
        "agents.draft.retry.attempts_max = 99: must be 1 to 20",
    ),
    ("agents.draft.retry", "backoff = \"1s\"", "backof = \"1s\"", "agents.draft.retry.backof = \"1s\": unknown key"),
    (
        "agents.draft.ladder",
        "rungs = [\"lighter\", \"deferred\", \"default\", \"notice\"]",
        "rungs = [\"lighter\", \"defered\", \"default\", \"notice\"]",
        "agents.draft.ladder.rungs[1] = \"defered\": must be one of",
    ),
    (
        "agents.draft.ladder",
        "lighter = [\"p/small\", \"agent:review\"]",
        "lighter = [\"p/small\", \"agent:reviw\"]",
        "agents.draft.ladder.lighter[1] = \"agent:reviw\": there is no agent",
    ),
    (
        "agents.draft.ladder",
        "default = { text = \"later\" }",
        "defualt = { text = \"later\" }",
        "agents.draft.ladder.defualt = { text = \"later\" }: unknown key",
    ),
    (
        "agents.draft.ladder",
        "notice = { ko = \"잠시\", en = \"Soon\" }",
        "notice = { fr = \"Bientôt\" }",
        "agents.draft.ladder.notice = { fr = \"Bientôt\" }: must",
    ),
    ("agents.review", "prewarm = true", "prewarm = 1", "agents.review.prewarm = 1: must be true or false"),
    (
        "agents.review",
        "max_output_tokens = 600",
        "max_output_token = 600",
        "agents.review.max_output_token = 600: unknown key",
    ),
    (
        "agents.meta",
        "restart = { max = 3, within = \"60s\" }",
        "restart = 3",
        "agents.meta.restart = 3: must be a table",
    ),
    ("agents.style", "path = \"/style\"", "path = \"style\"", "agents.style.path = \"style\": must begin"),
    ("agents.style", "method = \"POST\"", "method = \"GET\"", "agents.style.method = \"GET\": must be one of"),
    (
        "agents.style",
        "mapping = { output = \"/data\" }",
        "mapping = { output = \"data\" }",
        "agents.style.mapping.output = \"data\": must be a JSON",
    ),
    ("features.chat", "slots = 6", "slots = 1", "features.chat.guaranteed.o = 2: is more than features.chat.slots"),
    (
        "features.chat",
        "tokens_per_minute = 4000",
        "tokens_per_minute = 0",
        "features.chat.tokens_per_minute = 0: must be",
    ),
    ("features.chat", "ratio = 0.4", "ratio = 4", "features.chat.ratio = 4: must be a share"),
    ("features.chat", "max_wait = \"5s\"", "max_wait = \"2h\"", "features.chat.max_wait = \"2h\": must be at most 1h"),
    ("features.batch", "line_max = 10", "line_mx = 10", "features.batch.line_mx = 10: unknown key"),
    (
        "features.batch.ladder",
        "rungs = [\"deferred\"]",
        "rungs = []\nlighter = \"p/x\"",
        "features.batch.ladder.lighter = \"p/x\": is each agent's own",
    ),
    (
        "tiers.free",
        "tokens_per_minute = 3000",
        "tokens_per_minute = 30.5",
        "tiers.free.tokens_per_minute = 30.5: must be",
    ),
    ("tiers.pro", "slots = 9", "slots = -9", "tiers.pro.slots = -9: must be"),
    ("tenants.acme", "tier = \"pro\"", "tier = \"gold\"", "tenants.acme.tier = \"gold\": must be one of [tiers]"),
    ("tenants.solo", "tier = \"free\"", "teir = \"free\"", "tenants.solo.teir = \"free\": unknown key"),
    (
        "compartments",
        "unknown_feature = \"batch\"",
        "unknown_feature = \"btch\"",
        "compartments.unknown_feature = \"btch\": must be",
    ),
    ("compartments", "tier = \"free\"", "tier = \"fre\"", "compartments.tier = \"fre\": must be one of [tiers]"),
    ("priorities", "wait_max = \"200ms\"", "wait_max = \"2h\"", "priorities.wait_max = \"2h\": must be longer than 0"),
    (
        "priorities",
        "reserved = { interactive = 0.2 }",
        "reserved = { interactve = 0.2 }",
        "priorities.reserved.interactve = 0.2: unknown key",
    ),
    (
        "keys.a",
        "features = [\"chat\", \"batch\"]",
        "features = [\"chat\", \"bach\"]",
        "keys.a.features = \"bach\": must be one of [features]",
    ),
    ("keys.a", "feature = \"chat\"", "feature = \"a b\"", "keys.a.feature = \"a b\": "),
    (
        "keys.b",
        "sha256 = \"0000000000000000000000000000000000000000000000000000000000000002\"",
        "sha256 = \"0000000000000000000000000000000000000000000000000000000000000001\"",
        "keys.b.sha256 = \"0000000000000000000000000000000000000000000000000000000000000001\": is the hash of keys.a too",
    ),
    ("keys.b", "role = \"operator\"", "role = \"root\"", "keys.b.role = \"root\": must be one of"),
    ("budgets", "output_tokens = 800", "output_tokens = 0", "budgets.output_tokens = 0: must be"),
    ("prices.\"o/m\"", "output = 2.0", "output = -2.0", "prices.\"o/m\".output = -2.0: must be an amount"),
    ("deferred", "priority = \"background\"", "priority = \"low\"", "deferred.priority = \"low\": must be one of"),
];

/// `GOOD` with these mistakes, and for each the line that must tell of it.
fn with(mistakes: &[&Mistake]) -> (String, Vec<String>) {
    let mut table = "";
    let mut lines: Vec<String> = Vec::new();
    let mut told = Vec::new();
    let mut done = 0;
    let mut number = 0;
    // Where a table's rule is told at another line of it than the mistake's.
    let mut places: Vec<(String, usize)> = Vec::new();
    for line in GOOD.lines() {
        number += 1;
        if let Some(header) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            table = header;
        }
        let key = line.split(" = ").next().unwrap_or_default();
        places.push((format!("{table}.{key}"), number));
        let found = mistakes.iter().find(|(of, good, _, _)| *of == table && *good == line);
        let Some((_, _, wrong, said)) = found else {
            lines.push(line.to_owned());
            continue;
        };
        done += 1;
        lines.extend(wrong.lines().map(str::to_owned));
        told.push((number + wrong.lines().count() - 1, *said));
        number += wrong.lines().count() - 1;
    }
    assert_eq!(done, mistakes.len(), "each stands in the file");
    let place_of = |line: usize, said: &str| {
        let other = places.iter().find(|(key, _)| said.starts_with(key) && key.ends_with("guaranteed"));
        other.map_or(line, |(_, line)| *line)
    };
    let told = told.into_iter().map(|(line, said)| format!("w.toml:{}: {said}", place_of(line, said))).collect();
    (lines.join("\n"), told)
}

fn told_exactly(mistakes: &[&Mistake]) {
    let (text, want) = with(mistakes);
    let error = match Given::config(&text).load() {
        Ok(_) => String::new(),
        Err(error) => error.to_string(),
    };
    let lines: Vec<&str> = error.lines().collect();
    for want in &want {
        let times = lines.iter().filter(|line| line.starts_with(want.as_str())).count();
        assert_eq!(times, 1, "{want:?} is told {times} times:\n{error}\n{text}");
    }
    let false_ones: Vec<&&str> =
        lines.iter().filter(|line| !want.iter().any(|want| line.starts_with(want.as_str()))).collect();
    assert!(false_ones.is_empty(), "these only follow: {false_ones:#?}\n{error}");
}

#[test]
fn the_good_one_is_good() {
    assert_eq!(
        Given::config(GOOD).load().map(|settings| settings.agents.len()).map_err(|error| error.to_string()),
        Ok(5)
    );
}

#[test]
fn each_mistake_alone_is_told_once() {
    for mistake in MISTAKES {
        told_exactly(&[mistake]);
    }
}

#[test]
fn all_mistakes_at_once_are_told_once_each() {
    told_exactly(&MISTAKES.iter().collect::<Vec<_>>());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_mistakes_together_are_told_once_each(chosen in proptest::collection::btree_set(0..MISTAKES.len(), 1..12)) {
        let mistakes: Vec<&Mistake> = chosen.into_iter().map(|at| &MISTAKES[at]).collect();
        told_exactly(&mistakes);
    }
}
