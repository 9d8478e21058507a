//! What stands beside `model_list`: settings of router, library and proxy.

use std::time::Duration;

use super::account::{Account, join};
use crate::cli::import::{
    finding::{Outcome, is_secret},
    scalar::{BareUnit, duration, whole},
    yaml::{Entry, Node, Value},
};

/// What the router's and the library's settings mean for every agent.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct General {
    pub(super) retries: Option<u64>,
    pub(super) timeout: Option<Duration>,
    pub(super) stream_timeout: Option<Duration>,
    pub(super) retry_after: Option<Duration>,
    pub(super) allowed_fails: Option<u64>,
    pub(super) cooldown: Option<Duration>,
    /// Other names that clients use, and for which model name.
    pub(super) aliases: Vec<Alias>,
}

/// Another name of a model. What becomes of it is told once the agents are known.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Alias {
    /// Where it stands.
    pub(super) path: String,
    /// The name, with its line.
    pub(super) entry: Entry,
    /// What it means.
    pub(super) model: String,
}

const NO_LADDERS: &str = "not carried over: ladders to another model are written by hand, see docs/ladder.md";
const NO_BUDGETS: &str = "not carried over: a run has caps (run.cost_max, see README.md), days have none";
const OBSERVED: &str = "callbacks are not known here; /metrics, the call log and events are there by themselves";
const NO_STORE: &str = "there is no shared store: each process learns by itself";

/// Names, and why nothing here is like them.
const REASONS: &[(&str, &str)] = &[
    ("fallbacks", NO_LADDERS),
    ("default_fallbacks", NO_LADDERS),
    ("context_window_fallbacks", NO_LADDERS),
    ("content_policy_fallbacks", NO_LADDERS),
    ("callbacks", OBSERVED),
    ("success_callback", OBSERVED),
    ("failure_callback", OBSERVED),
    ("service_callbacks", OBSERVED),
    ("set_verbose", "--log says what is logged"),
    ("json_logs", "--log says what is logged"),
    ("drop_params", "what a client sends passes through untouched"),
    ("modify_params", "what a client sends passes through untouched"),
    ("cache", "answers are not cached"),
    ("cache_params", "answers are not cached"),
    ("redis_host", NO_STORE),
    ("redis_port", NO_STORE),
    ("redis_url", NO_STORE),
    ("database_connection_pool_limit", NO_STORE),
    ("store_model_in_db", "models are in the configuration only"),
    ("enable_pre_call_checks", "a request too large for its model is the server's to refuse"),
    ("retry_policy", "what is tried again is what the answer calls retryable"),
    ("allowed_fails_policy", "what counts as a failure is one table: docs/adr/0007"),
    ("disable_cooldowns", "breakers are always there; breaker.mode = \"disabled\" measures nothing"),
    ("max_budget", NO_BUDGETS),
    ("budget_duration", NO_BUDGETS),
];

/// Reads one of the three tables of settings. What the router's own table (`router`) also says goes before the library's.
pub(super) fn read(path: &str, node: &Node, router: Option<&Node>, general: &mut General, account: &mut Account) {
    for entry in node.entries() {
        let key = if entry.key == "request_timeout" { "timeout" } else { entry.key.as_str() };
        if path != "router_settings" && router.is_some_and(|router| router.get(key).is_some()) {
            account.note(path, entry, Outcome::NotTaken, format!("router_settings.{key} goes first"));
        } else if !setting(path, entry, general, account) {
            other(path, entry, account);
        }
    }
}

/// Reads a setting that means something here; false if it means nothing.
fn setting(path: &str, entry: &Entry, general: &mut General, account: &mut Account) -> bool {
    let seconds = |node: &Node| duration(node, BareUnit::Seconds);
    let mut note = |outcome, said: &str| account.note(path, entry, outcome, said);
    let is_there = |seconds: &Result<Duration, String>| seconds.as_ref().is_ok_and(|seconds| !seconds.is_zero());
    match entry.key.as_str() {
        "num_retries" => match whole(&entry.node) {
            Ok(retries) => {
                general.retries = Some(retries);
                note(Outcome::Taken, "retry.attempts_max of every agent without its own: one more, the first counts");
            }
            Err(rule) => note(Outcome::NotTaken, &format!("its value {rule}")),
        },
        "timeout" | "request_timeout" | "stream_timeout" | "cooldown_time" | "retry_after" => {
            let read = seconds(&entry.node);
            if !is_there(&read) {
                let rule = read.err().unwrap_or_else(|| "is 0, which is our floor anyway".to_owned());
                note(Outcome::NotTaken, &format!("its value {rule}"));
                return true;
            }
            let value = read.ok();
            match entry.key.as_str() {
                "cooldown_time" => {
                    general.cooldown = value;
                    note(Outcome::Taken, "breaker.open of every agent");
                }
                "retry_after" => {
                    general.retry_after = value;
                    note(Outcome::Changed, "retry.backoff of every agent: waits are drawn by chance up to it and grow");
                }
                "stream_timeout" => {
                    general.stream_timeout = value;
                    note(Outcome::Changed, "first_token of every agent without its own; `stall` bounds the rest");
                }
                _ => {
                    general.timeout = value;
                    note(Outcome::Taken, "timeout of every agent without its own: of each attempt");
                }
            }
        }
        "allowed_fails" => match whole(&entry.node) {
            Ok(fails) => {
                general.allowed_fails = Some(fails);
                let said = "breaker.consecutive_failures of every agent: one more, in a row instead of in a minute; shares count as well";
                note(Outcome::Changed, said);
            }
            Err(rule) => note(Outcome::NotTaken, &format!("its value {rule}")),
        },
        "routing_strategy" => match &entry.node.value {
            Value::Text(strategy) if strategy == "simple-shuffle" => {
                note(Outcome::Taken, "targets of one order are drawn by weight");
            }
            _ => note(Outcome::NotSupported, "targets are drawn by order and weight, never by load or latency"),
        },
        "model_group_alias" => aliases(path, entry, general, account),
        _ => return false,
    }
    true
}

fn aliases(path: &str, entry: &Entry, general: &mut General, account: &mut Account) {
    let path = join(path, &entry.key);
    for alias in entry.node.entries() {
        let target = alias.node.get("model").unwrap_or(&alias.node);
        let Value::Text(model) = &target.value else {
            account.note(&path, alias, Outcome::NotTaken, "names no model");
            continue;
        };
        general.aliases.push(Alias { path: path.clone(), entry: alias.clone(), model: model.clone() });
    }
}

fn other(path: &str, entry: &Entry, account: &mut Account) {
    let said = match entry.key.as_str() {
        "master_key" => "never copied: callers' keys are made and told in [keys]",
        key if is_secret(key, "") => "secrets are never copied, and this one has no use here",
        key => REASONS.iter().find(|(known, _)| *known == key).map_or("it has no counterpart here", |(_, said)| said),
    };
    if is_secret(&entry.key, "") || entry.key == "master_key" {
        account.note_hidden(path, entry, Outcome::NotTaken, said);
    } else {
        account.note(path, entry, Outcome::NotSupported, said);
    }
}
