//! Every key that the loader asks for is among the values in force: to change it is a change of a reload. The keys are those that reading
//! asks for, so that none can be forgotten here.

use std::collections::{BTreeMap, BTreeSet};

use super::given::Given;
use crate::settings::difference::{ConfigRow, difference, rows};

/// Something of every kind of table. What a key does not fit in one agent or provider, it fits in another one of its kind.
const ALL: &str = r#"
[providers.o]
kind = "openai"
base_url = "http://127.0.0.1:1/v1"
model = "m"
slots = 10
tokens_per_minute = 900_000
adaptive = {}
[providers.l]
kind = "ollama"
model = "g"
slots = 4
[providers.h]
kind = "http"
base_url = "http://127.0.0.1:3"
[providers.e]
kind = "embedded"
[agents.chat]
provider = "o"
[agents.chat.ladder]
rungs = ["lighter", "notice"]
lighter = ["o/small"]
[agents.chat2]
provider = "o"
model = "b"
slow_by = "pace"
[agents.home]
provider = "l"
[agents.web]
provider = "h"
health = "/health"
[agents.draft]
provider = "e"
[agents.web.mapping]
output = "/x"
[features.chat]
slots = 5
ladder = { rungs = ["notice"] }
[features.batch]
[tiers.free]
slots = 5
[tiers.pro]
[tenants.acme]
tier = "pro"
[compartments]
unknown_tenant = "own"
tier = "free"
[keys.a]
key_env = "A"
tenant = "acme"
[keys.b]
sha256 = "0000000000000000000000000000000000000000000000000000000000000002"
[keys.c]
key_file = "c"
[prices."o/m"]
input = 1.0
[defaults]
slots = 5
[deferred.webhook]
url = "https://hooks.example/a"
secret_env = "HOOK"
[volume_guard]
calls_per_hour = 5
[defaults.breaker]
[defaults.retry]
[defaults.restart]
"#;

/// What is tried as a key's value, as it is written. A key must take two of them that mean something different.
const VALUES: &[&str] = &[
    "7",
    "2",
    "3000000",
    "60000000",
    "\"o\"",
    "\"l\"",
    "\"8m\"",
    "\"9m\"",
    "\"17s\"",
    "\"18s\"",
    "\"2m\"",
    "true",
    "false",
    "0.25",
    "0.3",
    "2.5",
    "1.5",
    "40",
    "300",
    "400",
    "\"/a/b\"",
    "\"/a/c\"",
    "\"http://127.0.0.1:11/x\"",
    "\"http://127.0.0.1:12/x\"",
    "\"NAME_A\"",
    "\"NAME_B\"",
    "\"p1.md\"",
    "\"p2.md\"",
    "\"s1.json\"",
    "\"s2.json\"",
    "\"127.0.0.1:7001\"",
    "\"127.0.0.1:7002\"",
    "[\"https://a.example\"]",
    "[\"https://b.example\"]",
    "[\"one\", \"two\"]",
    "[\"one\"]",
    "[\"chat\"]",
    "[\"chat\", \"batch\"]",
    "\"chat\"",
    "\"batch\"",
    "\"free\"",
    "\"pro\"",
    "{ chat = \"https://hooks.example/b\" }",
    "{ chat = \"https://hooks.example/c\" }",
    "{ acme = \"https://hooks.example/b\" }",
    "{ acme = \"https://hooks.example/c\" }",
    "{ x = \"1\" }",
    "{ x = \"2\" }",
    "{ chat = 1 }",
    "{ chat = 2 }",
    "{ o = 1 }",
    "{ o = 2 }",
    "{ header = \"x-a\" }",
    "{ header = \"x-b\" }",
    "{ interactive = 0.1 }",
    "{ interactive = 0.2 }",
    "{ chat = \"/v1/{model}\" }",
    "{ chat = \"/v2/{model}\" }",
    "[\"notice\"]",
    "[{ rung = \"notice\", causes = [\"budget\"] }]",
    "[\"notice\", \"lighter\"]",
    "\"o/s2\"",
    "[{ target = \"o/s2\", slots = 3 }]",
    "{ ko = \"가\", en = \"a\" }",
    "{ ko = \"나\", en = \"a\" }",
    "[{ provider = \"o\", model = \"t1\" }]",
    "[{ provider = \"o\", model = \"t2\" }]",
    "[\"critical\", \"standard\", \"interactive\", \"batch\", \"background\"]",
    "[\"interactive\", \"critical\", \"standard\", \"batch\", \"background\"]",
    "\"1111111111111111111111111111111111111111111111111111111111111111\"",
    "\"2222222222222222222222222222222222222222222222222222222222222222\"",
];

/// The words of choices: what is tried where nothing else fits. One of each pair may be the default.
const WORDS: &[&str] = &[
    "off",
    "on",
    "always",
    "never",
    "auto",
    "en",
    "ko",
    "rounded",
    "as_asked",
    "any",
    "llama_cpp",
    "total",
    "first_token",
    "pace",
    "json",
    "text",
    "named",
    "attached",
    "POST",
    "PUT",
    "passed_on",
    "taken",
    "disabled",
    "timer",
    "first_call",
    "entry",
    "first_trial",
    "open",
    "closed",
    "health",
    "request",
    "process",
    "power",
    "errors",
    "all",
    "caller",
    "tenant",
    "operator",
    "both",
    "input",
    "refuse",
    "own",
    "shared",
    "background",
    "without keys",
    "forever",
    "EUR",
    "USD",
    "8h",
    "5d",
    "6d",
    "draft",
    "review",
];

/// Keys that cannot be changed by themselves.
const ALONE: &[&str] = &[
    // Asked for so that they can be refused in their own words.
    "agents.*.api_key",
    "deferred.webhook.secret",
    "features.*.ladder.context_tokens",
    "features.*.ladder.lighter",
    "features.*.ladder.slots",
    "keys.*.key",
    "providers.*.api_key",
    // Its keys are asked for where they hold.
    "defaults",
    // In the place of `secret_env`, which is given.
    "deferred.webhook.secret_file",
    // There is one of each: the other words are not built.
    "agents.*.stage",
    "defaults.stage",
    // What a provider is makes all else fit or not.
    "providers.*.kind",
];

/// A key without the names that are the user's own.
pub(super) fn pattern(key: &str) -> String {
    let mut parts: Vec<&str> = key.split('.').collect();
    let section = parts.first().copied().unwrap_or_default();
    if ["agents", "providers", "features", "tiers", "tenants", "keys", "prices"].contains(&section) && parts.len() > 2 {
        parts[1] = "*";
    }
    parts.join(".")
}

pub(super) fn given() -> Given {
    Given::config(ALL)
        .file("p1.md", "One {{ input.a }}.")
        .file("p2.md", "Two {{ input.a }}.")
        .file("s1.json", "{\"type\": \"object\"}")
        .file("s2.json", "{\"type\": \"string\"}")
}

/// What is likely to fit where this value stands now.
fn likely(now: &str) -> &'static [&'static str] {
    if now.parse::<u64>().is_ok() {
        &["7", "2", "300", "3000000"]
    } else if now.parse::<f64>().is_ok() {
        &["0.25", "0.3", "2.5", "1.5"]
    } else if now == "true" || now == "false" {
        &["true", "false"]
    } else if now.starts_with(|first: char| first.is_ascii_digit()) {
        &["\"8m\"", "\"9m\"", "\"17s\"", "\"18s\""]
    } else {
        &[]
    }
}

/// Whether a change of `key` is seen, from `now` to one of two values that it takes; `None` if it takes none.
fn seen(key: &str, now: &str, before: &[ConfigRow]) -> Option<bool> {
    let words = WORDS.iter().map(|word| format!("{word:?}"));
    let first = likely(now).iter().map(|value| (*value).to_owned());
    let rest = VALUES.iter().filter(|value| !likely(now).contains(value)).map(|value| (*value).to_owned());
    let mut is_taken = None;
    // The first may be what it holds.
    let loaded = |value: String| given().flag(&format!("{key}={value}")).load().ok();
    for settings in first.chain(rest).chain(words).filter_map(loaded).take(2) {
        is_taken = Some(!difference(before, &rows(&settings, [])).is_empty());
        if is_taken == Some(true) {
            break;
        }
    }
    is_taken
}

#[test]
fn every_key_is_among_the_values_in_force() {
    let examined = given().examine();
    assert!(examined.problems().is_empty(), "{:?}", examined.problems());
    let asked = &examined.asked;
    let patterns: BTreeSet<String> = asked.iter().map(|key| pattern(key)).collect();
    let is_table = |pattern: &str| {
        let below = format!("{pattern}.");
        patterns.range(below.clone()..).next().is_some_and(|other| other.starts_with(&below))
    };
    let mut by_pattern: BTreeMap<String, BTreeSet<&String>> = BTreeMap::new();
    for key in asked.iter().filter(|key| !key.starts_with("prices.")) {
        by_pattern.entry(pattern(key)).or_default().insert(key);
    }
    by_pattern.retain(|pattern, _| !ALONE.contains(&pattern.as_str()) && !is_table(pattern));
    assert!(by_pattern.len() > 250, "{}", by_pattern.len());
    let before = rows(examined.settings(), []);
    let held: BTreeMap<&str, &str> = before.iter().map(|row| (row.key.as_str(), row.value.as_str())).collect();
    let (mut unseen, mut untried) = (Vec::new(), Vec::new());
    for (pattern, keys) in by_pattern {
        let holds = |key: &str| held.get(key).copied().unwrap_or_default();
        let mut is_taken = false;
        let is_seen = keys.iter().any(|key| {
            let found = seen(key, holds(key), &before);
            is_taken |= found.is_some();
            found == Some(true)
        });
        match (is_seen, is_taken) {
            (true, _) => {}
            (false, true) => unseen.push(pattern),
            (false, false) => untried.push(pattern),
        }
    }
    assert!(
        unseen.is_empty() && untried.is_empty(),
        "a change of these is no change of a reload: {unseen:#?}\nno value of these are known here, add some to VALUES: {untried:#?}"
    );
}
