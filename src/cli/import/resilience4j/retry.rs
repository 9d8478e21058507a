//! Retries of one agent. Resilience4j wraps retries around the breaker, here they lie inside the call: that is said once.

use std::time::Duration;

use super::ledger::Effective;
use crate::{
    cli::import::{
        scalar::{BareUnit, duration, number, truth, whole},
        toml_text::{TomlTable, float, span},
    },
    model::duration::format,
    policy::{backoff::BACKOFF_FLOOR, retry_settings::ATTEMPTS_MAX},
};

/// What Resilience4j takes where the file says nothing.
const THEIR_ATTEMPTS: u64 = 3;
const THEIR_WAIT: Duration = Duration::from_millis(500);
const THEIR_FACTOR: f64 = 1.5;
/// Where growth ends here unless configured.
const OUR_BACKOFF_MAX: Duration = Duration::from_secs(30);

/// What the rest of the agent needs to know of its retries.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Plan {
    pub(super) attempts: u32,
    /// The longest that all waits can take together.
    pub(super) waits: Duration,
}

/// An agent that has no retry instance.
pub(super) fn write_none(table: &mut TomlTable) -> Plan {
    table.set_noted("attempts_max", "1", "there is no retry instance of this name");
    Plan { attempts: 1, waits: Duration::ZERO }
}

/// Writes the retry table.
pub(super) fn write(own: &mut Effective<'_>, table: &mut TomlTable) -> Plan {
    let attempts = attempts(own, table);
    let wait = own.read("waitduration", |node| duration(node, BareUnit::Milliseconds));
    let backoff = wait.as_ref().map_or(THEIR_WAIT, |(_, wait)| *wait).max(BACKOFF_FLOOR);
    let (factor, longest) = growth(own, backoff);
    table.set("backoff", span(backoff));
    table.set("factor", float(factor));
    if longest != OUR_BACKOFF_MAX {
        table.set("backoff_max", span(longest));
    }
    if let Some((given, _)) = wait {
        let said = format!("retry.backoff = {}, factor = {factor}", format(backoff));
        own.changed(given, said + ": waits are drawn between 50ms and that (full jitter); a Retry-After goes first");
    }
    randomness(own);
    Plan { attempts, waits: longest.saturating_mul(attempts.saturating_sub(1)) }
}

fn attempts(own: &mut Effective<'_>, table: &mut TomlTable) -> u32 {
    let given = own.read("maxattempts", whole);
    let wanted = given.as_ref().map_or(THEIR_ATTEMPTS, |(_, attempts)| *attempts);
    let attempts = u32::try_from(wanted).unwrap_or(u32::MAX).clamp(1, ATTEMPTS_MAX);
    table.set("attempts_max", attempts.to_string());
    match given {
        Some((given, wanted)) if wanted != u64::from(attempts) => {
            own.changed(given, format!("retry.attempts_max = {attempts}: 1 to {ATTEMPTS_MAX} are allowed"));
        }
        Some((given, _)) => own.taken(given, format!("retry.attempts_max = {attempts}")),
        None => {}
    }
    attempts
}

/// Factor and longest wait.
fn growth(own: &mut Effective<'_>, backoff: Duration) -> (f64, Duration) {
    let grows = own.read("enableexponentialbackoff", truth);
    let factor = own.read("exponentialbackoffmultiplier", number);
    let longest = own.read("exponentialmaxwaitduration", |node| duration(node, BareUnit::Milliseconds));
    let Some((given, true)) = grows else {
        if let Some((given, _)) = grows {
            own.taken(given, "retry.factor = 1.0");
        }
        for given in [factor.map(|(given, _)| given), longest.map(|(given, _)| given)].into_iter().flatten() {
            own.left(given, "only used where enableExponentialBackoff is true");
        }
        return (1.0, backoff.max(OUR_BACKOFF_MAX));
    };
    let wanted = factor.as_ref().map_or(THEIR_FACTOR, |(_, factor)| *factor);
    let grown = wanted.max(1.0);
    own.taken(given, format!("retry.factor = {grown}"));
    match factor {
        Some((given, wanted)) if wanted < 1.0 => own.left(given, "must be at least 1"),
        Some((given, _)) => own.taken(given, format!("retry.factor = {grown}")),
        None => {}
    }
    let cap = longest.as_ref().map_or(OUR_BACKOFF_MAX, |(_, longest)| *longest).max(backoff);
    if let Some((given, longest)) = longest {
        let said = format!("retry.backoff_max = {}", format(cap));
        if longest == cap { own.taken(given, said) } else { own.changed(given, said + ": not below backoff") }
    }
    (grown, cap)
}

fn randomness(own: &mut Effective<'_>) {
    if let Some((given, random)) = own.read("enablerandomizedwait", truth) {
        let said = "waits are always drawn by chance, between 50ms and the grown back-off";
        if random { own.taken(given, said) } else { own.changed(given, said) }
    }
    if let Some((given, _)) = own.read("randomizedwaitfactor", number) {
        own.changed(given, "waits are always drawn by chance, between 50ms and the grown back-off");
    }
}
