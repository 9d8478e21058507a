//! Two configurations side by side, value by value. Decides which keys hold from the next start on only; reads nothing.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::{model::hex::hex, workflow::checked::Workflow};

use super::{
    agent_backend::AgentBackend,
    load::{Settings, explain},
};

/// Tables whose values a running service does not take over ...
const NEEDS_RESTART: [&str; 10] =
    ["capture", "files", "journal", "limits", "node", "places", "run", "serve", "usage", "workflows"];
/// ... but for these keys of theirs ...
const TAKEN_OVER: [&str; 3] = ["run.calls_max", "run.cost_max", "run.tokens_max"];
/// ... and keys of other tables, with everything below them.
const KEYS_NEED_RESTART: [&str; 4] = ["deferred.parallel", "deferred.webhook", "prices.currency", "priorities.order"];
/// So many digits of a text's hash tell it from another one.
const DIGITS: usize = 12;

/// One effective value: its key, itself, where it comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigRow {
    /// The full key.
    pub key: String,
    /// The value as it holds.
    pub value: String,
    /// Where it comes from.
    pub origin: String,
}

/// A value that is another one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The full key.
    pub key: String,
    /// As it was; `None` = it was not there.
    pub before: Option<String>,
    /// As it is; `None` = it is gone.
    pub after: Option<String>,
    /// It holds from the next start on only.
    pub needs_restart: bool,
}

/// Every effective value, by key, a hash of each text that agents are told (prompts, schemas), and one of each workflow. No secrets.
pub fn rows<'a>(settings: &Settings, workflows: impl IntoIterator<Item = &'a Workflow>) -> Vec<ConfigRow> {
    let row =
        |row: super::report::ExplainRow| ConfigRow { key: row.key, value: row.value, origin: row.origin.to_string() };
    let mut rows: Vec<ConfigRow> = explain(settings).into_iter().map(row).collect();
    for agent in &settings.agents {
        // What an agent is told may stand in a file of its own: its content counts.
        if matches!(agent.backend, AgentBackend::Embedded { .. }) {
            continue;
        }
        let key = format!("agents.{}.texts", agent.settings.name);
        let value = digits_of(&format!("{:?}", agent.backend));
        rows.push(ConfigRow {
            key,
            value,
            origin: "a hash of prompt, schema and what else its backend is told".to_owned(),
        });
    }
    for workflow in workflows {
        // Its own hash is one of its content.
        let value = workflow.hash().chars().take(DIGITS).collect();
        let key = format!("workflows.{}", workflow.name());
        rows.push(ConfigRow { key, value, origin: "a hash of the workflow".to_owned() });
    }
    rows.sort_by(|left, right| left.key.cmp(&right.key));
    rows
}

/// What holds once a running service has taken over `loaded`: what needs a restart is as it was.
pub fn taken_over(before: &[ConfigRow], loaded: Vec<ConfigRow>) -> Vec<ConfigRow> {
    let mut rows: Vec<ConfigRow> = loaded.into_iter().filter(|row| !needs_restart(&row.key)).collect();
    rows.extend(before.iter().filter(|row| needs_restart(&row.key)).cloned());
    rows.sort_by(|left, right| left.key.cmp(&right.key));
    rows
}

/// The hash of a configuration as a whole.
pub fn hash_of(rows: &[ConfigRow]) -> String {
    let mut hash = Sha256::new();
    for row in rows {
        // Lengths keep neighbours apart.
        hash.update(format!("{}:{}={}:{};", row.key.len(), row.key, row.value.len(), row.value));
    }
    hex(&hash.finalize())
}

/// What is different in `after`, by key.
pub fn difference(before: &[ConfigRow], after: &[ConfigRow]) -> Vec<Change> {
    let values = |rows: &[ConfigRow]| -> BTreeMap<String, String> {
        rows.iter().map(|row| (row.key.clone(), row.value.clone())).collect()
    };
    let (before, after) = (values(before), values(after));
    let keys: std::collections::BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let is_other = |key: &&&String| before.get(**key) != after.get(**key);
    let change = |key: &String| Change {
        key: key.clone(),
        before: before.get(key).cloned(),
        after: after.get(key).cloned(),
        needs_restart: needs_restart(key),
    };
    keys.iter().filter(is_other).map(|key| change(key)).collect()
}

fn needs_restart(key: &str) -> bool {
    let table = key.split('.').next().unwrap_or_default();
    let is_below = |of: &&str| key.strip_prefix(*of).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    let of_table = NEEDS_RESTART.contains(&table) && !TAKEN_OVER.contains(&key);
    of_table || KEYS_NEED_RESTART.iter().any(is_below)
}

/// Enough of a text's hash to tell it from another text.
pub(super) fn digits_of(text: &str) -> String {
    hex(&Sha256::digest(text.as_bytes())).chars().take(DIGITS).collect()
}

impl std::fmt::Display for Change {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = |value: &Option<String>| value.clone().unwrap_or_else(|| "(nothing)".to_owned());
        write!(formatter, "{}: {} -> {}", self.key, shown(&self.before), shown(&self.after))?;
        if self.needs_restart { formatter.write_str(" (needs a restart)") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows_of(rows: &[(&str, &str)]) -> Vec<ConfigRow> {
        let row = |(key, value): &(&str, &str)| ConfigRow {
            key: (*key).to_owned(),
            value: (*value).to_owned(),
            origin: "default".to_owned(),
        };
        rows.iter().map(row).collect()
    }

    #[test]
    fn what_is_other_new_or_gone_is_told() {
        let before =
            rows_of(&[("agents.a.slots", "3"), ("agents.b.slots", "3"), ("serve.listen", "x"), ("run.language", "ko")]);
        let after =
            rows_of(&[("agents.a.slots", "5"), ("agents.c.slots", "1"), ("serve.listen", "y"), ("run.language", "ko")]);
        let told: Vec<String> = difference(&before, &after).iter().map(ToString::to_string).collect();
        assert_eq!(
            told,
            [
                "agents.a.slots: 3 -> 5",
                "agents.b.slots: 3 -> (nothing)",
                "agents.c.slots: (nothing) -> 1",
                "serve.listen: x -> y (needs a restart)",
            ]
        );
        for (key, want) in [
            ("run.deadline", true),
            ("workflows.momently", true),
            ("run.cost_max", false),
            ("deferred.webhook.url", true),
            ("deferred.delay", false),
            ("priorities.order", true),
            ("priorities.reserved.batch", false),
            ("volume_guard.calls_per_hour", false),
            ("features.chat.tokens_per_minute", false),
        ] {
            assert_eq!(needs_restart(key), want, "{key}");
        }
        assert!(difference(&after, &after).is_empty());
        let holds = taken_over(&before, after.clone());
        assert_eq!(
            holds,
            rows_of(&[("agents.a.slots", "5"), ("agents.c.slots", "1"), ("run.language", "ko"), ("serve.listen", "x")])
        );
        let pending: Vec<String> = difference(&holds, &after).iter().map(ToString::to_string).collect();
        assert_eq!(pending, ["serve.listen: x -> y (needs a restart)"], "told until there is a restart");
        assert_eq!((hash_of(&before) == hash_of(&after), hash_of(&after).len()), (false, 64));
    }
}
