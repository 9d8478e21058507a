//! What is said of properties that no agent took: those that have no counterpart here, with the reason, and those that are unknown.

use crate::cli::import::finding::Outcome;

/// Relaxed names and why nothing here is like them.
const REASONS: &[(&str, &str)] = &[
    ("recordexceptions", CLASSES),
    ("ignoreexceptions", CLASSES),
    ("recordexceptionpredicate", CLASSES),
    ("recordfailurepredicate", CLASSES),
    ("recordresultpredicate", CLASSES),
    ("ignoreexceptionpredicate", CLASSES),
    ("ignoreclassbindingexceptions", CLASSES),
    ("ignoreunknownexceptions", CLASSES),
    ("retryexceptions", RETRIES),
    ("retryexceptionpredicate", RETRIES),
    ("resultpredicate", RETRIES),
    ("consumeresultbeforeretryattempt", RETRIES),
    (
        "intervalbifunction",
        "waits grow by factor and follow the agent's own retry_after; code cannot be named in configuration",
    ),
    ("failaftermaxattempts", "the last attempt's error always goes out, with details.attempts"),
    ("registerhealthindicator", "every agent's state is shown without being registered"),
    ("allowhealthindicatortofail", "an open breaker is no illness of this program"),
    ("eventconsumerbuffersize", "events are not buffered by breaker"),
    ("subscribeforevents", "events are always there"),
    ("writablestacktraceenabled", "errors carry no stack"),
    ("slidingwindowsynchronizationstrategy", "one supervisor writes the window: there is nothing to synchronise"),
    ("ringbuffersizeinclosedstate", "a name from before 1.0: give slidingWindowSize"),
    ("ringbuffersizeinhalfopenstate", "a name from before 1.0: give permittedNumberOfCallsInHalfOpenState"),
    ("cancelrunningfuture", "a timed out attempt is always cancelled"),
    ("corethreadpoolsize", "no threads are kept: a call is a task"),
    ("keepaliveduration", "no threads are kept: a call is a task"),
    ("queuecapacity", "nothing waits for a slot except a run's own steps: a call that finds none is refused at once"),
    ("contextpropagators", "what a call carries goes with it, no thread does"),
];

const CLASSES: &str =
    "what counts as a failure is read from status and `retryable` of the answer, never from a class: docs/adr/0007";
const RETRIES: &str =
    "what is tried again is what the answer calls retryable (408, 425, 429, 5xx where it says nothing)";

/// What became of a property that no agent took.
pub(super) fn why(module: &str, name: &str) -> (Outcome, String) {
    if let Some((_, reason)) = REASONS.iter().find(|(known, _)| *known == name) {
        return (Outcome::NotSupported, (*reason).to_owned());
    }
    if super::agent::KNOWN.contains(&(module, name)) {
        return (Outcome::NotTaken, "no instance inherits it".to_owned());
    }
    (Outcome::NotSupported, "nothing here is known by this name".to_owned())
}
