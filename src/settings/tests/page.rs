//! `docs/settings.md` against the loader: every key that it asks for stands there and no other, with the default and the bounds that hold.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    given::Given,
    in_force::{given, pattern},
};
use crate::settings::{
    load::{Settings, explain},
    problem::Origin,
};

const PAGE: &str = include_str!("../../../docs/settings.md");
const HEAD: &str = "| key | unless set | range | what it does |";

/// Asked for only to be refused in their own words, or told by the table that they stand in.
const UNTOLD: &[&str] = &[
    "agents.*.api_key",
    "defaults",
    "deferred.webhook.secret",
    "features.*.ladder.context_tokens",
    "features.*.ladder.lighter",
    "features.*.ladder.slots",
    "keys.*.key",
    "providers.*.api_key",
    "providers.*.paths.chat",
    "providers.*.paths.embeddings",
    "providers.*.paths.models",
];

/// Read in a way of their own.
const READ_ELSEWHERE: &[&str] =
    &["agents.*.targets", "prices.*.cached_input", "providers.*.adaptive", "providers.*.paths"];

/// One of each kind, nothing else said.
const BARE: &str = "
[providers.o]
kind = 'openai'
base_url = 'http://127.0.0.1:1/v1'
model = 'm'
[providers.c]
kind = 'openai'
base_url = 'http://127.0.0.1:1/v1'
flavor = 'llama_cpp'
[providers.l]
kind = 'ollama'
model = 'g'
[providers.h]
kind = 'http'
base_url = 'http://127.0.0.1:3'
[agents.chat]
provider = 'o'
[agents.home]
provider = 'l'
[agents.web]
provider = 'h'
[agents.draft]
provider = 'embedded'
";

/// A row of the page.
struct Row {
    /// Its keys, of each table that it is about.
    keys: Vec<String>,
    default: &'static str,
    range: &'static str,
}

fn quoted(text: &str) -> BTreeSet<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

fn rows_of_page() -> Vec<Row> {
    let (mut tables, mut rows): (Vec<String>, Vec<Row>) = (Vec::new(), Vec::new());
    let mut is_table = false;
    for line in PAGE.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            let named = quoted(heading).into_iter().map(|text| text.trim_matches(['[', ']']).replace(".X", ".*"));
            tables = named.collect();
        }
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        is_table = line == HEAD || (is_table && line.starts_with('|'));
        if !is_table || line == HEAD || line.starts_with("|---") {
            continue;
        }
        let [key, default, range, told] = cells[..] else { panic!("{line}") };
        assert!(!told.is_empty(), "{line}");
        let key = key.trim_matches('`').replace(".X.", ".*.");
        let keys =
            if key.contains('.') { vec![key] } else { tables.iter().map(|table| format!("{table}.{key}")).collect() };
        rows.push(Row { keys, default, range });
    }
    rows
}

/// The values of keys that nobody set.
fn defaults_in<'s>(settings: impl IntoIterator<Item = &'s Settings>) -> BTreeMap<String, BTreeSet<String>> {
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for row in settings.into_iter().flat_map(explain).filter(|row| row.origin == Origin::Default) {
        found.entry(pattern(&row.key)).or_default().insert(row.value);
    }
    found
}

#[test]
fn the_page_has_every_key_and_no_other() {
    let asked = given().examine().asked;
    let patterns: BTreeSet<String> = asked.iter().map(|key| pattern(key)).collect();
    let is_table = |key: &str| patterns.iter().any(|other| other.starts_with(&format!("{key}.")));
    let known: BTreeSet<&str> = patterns
        .iter()
        .map(String::as_str)
        .filter(|key| key.contains('.') && !is_table(key) && !UNTOLD.contains(key))
        .chain(READ_ELSEWHERE.iter().copied())
        .collect();
    let rows = rows_of_page();
    let told: Vec<&str> = rows.iter().flat_map(|row| &row.keys).map(String::as_str).collect();
    let once: BTreeSet<&str> = told.iter().copied().collect();
    let missing: Vec<&&str> = known.difference(&once).collect();
    let strange: Vec<&&str> = once.difference(&known).collect();
    assert!(missing.is_empty() && strange.is_empty(), "missing: {missing:#?}\nnot read by anybody: {strange:#?}");
    assert_eq!(told.len(), once.len(), "a key stands there twice");
}

#[test]
fn the_page_has_the_defaults_that_hold() {
    let (all, bare) = (given().settings(), Given::config(BARE).settings());
    let held = defaults_in([&all, &bare]);
    // The embedded provider, which is there by itself, is no default of others.
    let rows = rows_of_page().into_iter().filter(|row| row.keys != ["providers.*.kind"]);
    for Row { keys, default, .. } in rows {
        let held: BTreeSet<&str> = keys.iter().filter_map(|key| held.get(key)).flatten().map(String::as_str).collect();
        let said = quoted(default);
        // A text without a value says where it comes from.
        let says_none = default == "-";
        if !held.is_empty() && (says_none || !said.is_empty()) {
            assert_eq!(said, held, "docs/settings.md: {keys:?} unless set");
        }
    }
}

/// Beyond its bounds a number is refused.
#[test]
fn the_page_has_the_bounds_that_hold() {
    let asked = given().examine().asked;
    let mut tried = 0;
    for Row { keys, range, .. } in rows_of_page() {
        let bounds = range.trim_end_matches(", `off`").split_once(" to ");
        let Some((Ok(min), Ok(max))) = bounds.map(|(min, max)| (min.parse::<i64>(), max.parse::<i64>())) else {
            continue;
        };
        let concrete: Vec<&String> = asked.iter().filter(|key| keys.contains(&pattern(key))).collect();
        // That a key does not fit where it stands is no matter of bounds.
        let refused = |value: i64| {
            concrete.iter().any(|key| {
                let problems = given().flag(&format!("{key}={value}")).examine().problems().to_vec();
                problems.iter().any(|problem| problem.key == **key && !problem.rule.starts_with("is "))
            })
        };
        // A price's key has a slash, which no flag can name.
        if keys.iter().any(|key| key.starts_with("prices.")) {
            continue;
        }
        assert!(refused(min - 1), "{keys:?} may be {}", min - 1);
        assert!(max.checked_add(1).is_none_or(refused), "{keys:?} may be more than {max}");
        tried += 1;
    }
    assert!(tried > 70, "{tried}");
}
