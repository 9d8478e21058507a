//! What became of each key of the other tool's file: one line each, none left out, no secret shown.

use serde_json::{Value as Json, json};

use super::yaml::{Node, Value};
use crate::{
    cli::table::table,
    settings::node::{holds_secret, looks_secret},
};

/// A longer value is shown by its beginning.
const VALUE_CHARS_SHOWN_MAX: usize = 60;

/// What became of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Outcome {
    /// It means the same here.
    Taken,
    /// It means nearly the same here; what differs is said.
    Changed,
    /// It could mean something here but was left, as said: overridden, another profile's, a secret.
    NotTaken,
    /// There is nothing here that it could mean.
    NotSupported,
    /// It is not in the file; our own value holds and is not what the other tool would do.
    Default,
}

impl Outcome {
    /// The word in table and JSON.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Taken => "taken",
            Self::Changed => "changed",
            Self::NotTaken => "not taken",
            Self::NotSupported => "not supported",
            Self::Default => "default",
        }
    }
}

/// One key and what became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    /// Its line; `None` = it is not in the file.
    pub(super) line: Option<u64>,
    /// The full key, as written.
    pub(super) key: String,
    /// Its value, as far as it may be shown.
    pub(super) value: Option<String>,
    pub(super) outcome: Outcome,
    /// What it became, or why not.
    pub(super) said: String,
}

/// What came out: the configuration's text, and the account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Imported {
    pub(super) config: String,
    pub(super) findings: Vec<Finding>,
}

/// The account as a table, in the file's order; what is not in the file comes last.
pub(super) fn as_table(findings: &[Finding]) -> String {
    table(
        &["line", "key", "value", "", "what became of it"],
        findings.iter().map(|finding| {
            vec![
                finding.line.map_or_else(|| "-".to_owned(), |line| line.to_string()),
                finding.key.clone(),
                finding.value.clone().unwrap_or_default(),
                finding.outcome.as_str().to_owned(),
                finding.said.clone(),
            ]
        }),
    )
}

/// The account as JSON.
pub(super) fn as_json(findings: &[Finding]) -> Json {
    let row = |finding: &Finding| {
        json!({
            "line": finding.line, "key": finding.key, "value": finding.value,
            "outcome": finding.outcome.as_str().replace(' ', "_"), "said": finding.said,
        })
    };
    findings.iter().map(row).collect()
}

/// The account in one line.
pub(super) fn in_short(findings: &[Finding]) -> String {
    let all = [Outcome::Taken, Outcome::Changed, Outcome::NotTaken, Outcome::NotSupported];
    let count = |outcome| findings.iter().filter(|finding| finding.outcome == outcome).count();
    all.map(|outcome| format!("{} {}", count(outcome), outcome.as_str())).join(", ")
}

/// Puts findings into the file's order and drops what would be said twice.
pub(super) fn sort(findings: &mut Vec<Finding>) {
    findings.sort_by_key(|finding| finding.line.unwrap_or(u64::MAX));
    let mut seen = std::collections::HashSet::new();
    findings.retain(|finding| seen.insert((finding.line, finding.key.clone(), finding.said.clone(), finding.outcome)));
}

/// The value of `key` as far as it may be shown.
pub(super) fn shown(key: &str, node: &Node) -> Option<String> {
    let text = match &node.value {
        Value::Null => return None,
        Value::Boolean(truth) => truth.to_string(),
        Value::Whole(number) => number.to_string(),
        Value::Number(number) => number.to_string(),
        Value::Text(text) if is_secret(key, text) => "(hidden)".to_owned(),
        Value::Text(text) => text.replace(char::is_control, " "),
        Value::List(list) => format!("[{} items]", list.len()),
        Value::Table(entries) => format!("{{{} keys}}", entries.len()),
    };
    if text.chars().count() <= VALUE_CHARS_SHOWN_MAX {
        return Some(text);
    }
    Some(text.chars().take(VALUE_CHARS_SHOWN_MAX).chain("...".chars()).collect())
}

/// Whether a text must not be copied or shown. The name of a place where a secret is kept is none.
pub(super) fn is_secret(key: &str, text: &str) -> bool {
    let names_a_place = text.starts_with("os.environ/");
    // Keys are given in an address's parameters, whatever those are called.
    let has_parameters = text.split_once("://").is_some_and(|(_, rest)| rest.contains(['?', '#']));
    let is_of_a_database = matches!(key, "database_url" | "connection_string");
    !names_a_place && (looks_secret(key) || holds_secret(text) || has_parameters || is_of_a_database)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_hidden_and_long_values_cut() {
        let show = |key: &str, text: &str| shown(key, &Node { value: Value::Text(text.to_owned()), line: 1 }).unwrap();
        for (key, text, want) in [
            ("api_key", "abc", "(hidden)"),
            ("api_key", "os.environ/OPENAI_API_KEY", "os.environ/OPENAI_API_KEY"),
            ("anything", "sk-123", "(hidden)"),
            ("database_url", "postgresql://host/db", "(hidden)"),
            ("api_base", "http://user:pw@host/v1", "(hidden)"),
            ("api_base", "http://host/v1?api_key=abc", "(hidden)"),
            ("api_base", "http://host/v1", "http://host/v1"),
            ("model", "openai/gpt", "openai/gpt"),
            ("note", "two\nlines", "two lines"),
        ] {
            assert_eq!(show(key, text), want, "{key}");
        }
        assert_eq!(show("note", &"가".repeat(500)).chars().count(), VALUE_CHARS_SHOWN_MAX + 3);
    }
}
