//! One agent: slots, timeouts and the tables of its breaker and retries. Timeouts come last, because they have to fit the rest.

use std::time::Duration;

use super::{
    breaker,
    ledger::{Effective, Ledger},
    modules::Modules,
    retry::{self, Plan},
    silent,
};
use crate::{
    cli::import::{
        scalar::{BareUnit, DURATION_MAX, duration, nearly_all, truth, whole},
        toml_text::{TomlTable, float, quoted, span},
    },
    model::duration::format,
    runtime::settings::SLOTS_MAX,
};

/// What an attempt of an `http` agent, and a call, have here unless configured.
const OUR_TIMEOUT: Duration = Duration::from_secs(60);
/// What is slow unless configured.
const OUR_SLOW_CALL: Duration = Duration::from_secs(30);
const OUR_CALL_TIMEOUT: Duration = Duration::from_secs(180);

/// Every property that some agent may take, as (module, relaxed name).
pub(super) const KNOWN: &[(&str, &str)] = &[
    ("circuitbreaker", "baseconfig"),
    ("circuitbreaker", "failureratethreshold"),
    ("circuitbreaker", "slowcallratethreshold"),
    ("circuitbreaker", "slowcalldurationthreshold"),
    ("circuitbreaker", "slidingwindowtype"),
    ("circuitbreaker", "slidingwindowsize"),
    ("circuitbreaker", "minimumnumberofcalls"),
    ("circuitbreaker", "waitdurationinopenstate"),
    ("circuitbreaker", "enableexponentialbackoff"),
    ("circuitbreaker", "exponentialbackoffmultiplier"),
    ("circuitbreaker", "exponentialmaxwaitdurationinopenstate"),
    ("circuitbreaker", "enablerandomizedwait"),
    ("circuitbreaker", "randomizedwaitfactor"),
    ("circuitbreaker", "permittednumberofcallsinhalfopenstate"),
    ("circuitbreaker", "maxwaitdurationinhalfopenstate"),
    ("circuitbreaker", "transitiontostateafterwaitduration"),
    ("circuitbreaker", "automatictransitionfromopentohalfopenenabled"),
    ("circuitbreaker", "initialstate"),
    ("bulkhead", "baseconfig"),
    ("bulkhead", "maxconcurrentcalls"),
    ("bulkhead", "maxwaitduration"),
    ("threadpoolbulkhead", "baseconfig"),
    ("threadpoolbulkhead", "maxthreadpoolsize"),
    ("retry", "baseconfig"),
    ("retry", "maxattempts"),
    ("retry", "waitduration"),
    ("retry", "enableexponentialbackoff"),
    ("retry", "exponentialbackoffmultiplier"),
    ("retry", "exponentialmaxwaitduration"),
    ("retry", "enablerandomizedwait"),
    ("retry", "randomizedwaitfactor"),
    ("timelimiter", "baseconfig"),
    ("timelimiter", "timeoutduration"),
    ("timelimiter", "cancelrunningfuture"),
    ("ratelimiter", "baseconfig"),
    ("ratelimiter", "limitforperiod"),
    ("ratelimiter", "limitrefreshperiod"),
    ("ratelimiter", "timeoutduration"),
];

/// The tables of the agent that instance `instance` becomes, under `name`.
pub(super) fn tables(modules: &Modules, instance: &str, name: &str, ledger: &mut Ledger) -> Vec<TomlTable> {
    let mut own = TomlTable::new(&["agents", name]);
    own.set("provider", quoted(super::importer::PROVIDER));
    own.comment("path = \"/...\" joined to the provider's base_url, where one service does not answer at its root");
    let mut breaker_table = TomlTable::new(&["agents", name, "breaker"]);
    let mut retry_table = TomlTable::new(&["agents", name, "retry"]);
    slots(modules, instance, &mut own, ledger);
    let plan = with(modules, "retry", instance, ledger, |effective| retry::write(effective, &mut retry_table));
    let plan = plan.unwrap_or_else(|| retry::write_none(&mut retry_table));
    let limit = with(modules, "timelimiter", instance, ledger, time_limit).flatten();
    let slow = with(modules, "circuitbreaker", instance, ledger, |effective| {
        let slow = slow_call(effective, &mut breaker_table, limit);
        breaker::write(effective, &mut breaker_table, slow.unseen);
        slow
    });
    let slow = slow.unwrap_or_else(|| Slowness { asked: None, unseen: unseen_by_ours(limit) });
    if let Some(ends) = slow.unseen {
        write_unseen(&mut breaker_table, instance, ends, ledger);
    }
    write_timeouts(&mut own, limit, slow.asked, plan);
    with(modules, "ratelimiter", instance, ledger, rate_limit);
    for (module, table) in
        [("circuitbreaker", &breaker_table), ("bulkhead", &own), ("threadpoolbulkhead", &own), ("timelimiter", &own)]
    {
        with(modules, module, instance, ledger, |effective| silent::tell(module, effective, table));
    }
    silent::tell_absence(|module| modules.has(module, instance), instance, &own, ledger);
    let mut tables = vec![own];
    tables.extend([breaker_table, retry_table].into_iter().filter(|table| !table.is_empty()));
    tables
}

/// Hands the properties of a module that hold for the instance to `write`, if it has any section there.
fn with<T>(
    modules: &Modules,
    module: &str,
    instance: &str,
    ledger: &mut Ledger,
    write: impl FnOnce(&mut Effective<'_>) -> T,
) -> Option<T> {
    if !modules.has(module, instance) {
        return None;
    }
    let givens = modules.effective(module, instance, ledger);
    Some(write(&mut Effective { agent: instance, givens, ledger }))
}

/// Slots of the semaphore and of the thread pool; where both are given, the smaller holds.
fn slots(modules: &Modules, instance: &str, table: &mut TomlTable, ledger: &mut Ledger) {
    let mut least: Option<u64> = None;
    for (module, name) in [("bulkhead", "maxconcurrentcalls"), ("threadpoolbulkhead", "maxthreadpoolsize")] {
        with(modules, module, instance, ledger, |own| {
            if let Some((given, wanted)) = own.read(name, whole) {
                let slots = wanted.min(u64::from(SLOTS_MAX));
                least = Some(least.map_or(slots, |least| least.min(slots)));
                let said = format!("slots = {slots}");
                if slots == wanted { own.taken(given, said) } else { own.changed(given, said + ", the most allowed") }
            }
            let read = |node: &_| duration(node, BareUnit::Milliseconds);
            match own.read("maxwaitduration", read) {
                Some((given, Duration::ZERO)) => own.taken(given, "nothing waits for a slot, always"),
                Some((given, _)) => own.left(
                    given,
                    "nothing waits for a slot while holding others: a call is refused at once, a run's step stands in a line",
                ),
                None => {}
            }
        });
    }
    if let Some(slots) = least {
        table.set("slots", slots.to_string());
    }
}

/// The time limit of an attempt.
fn time_limit(own: &mut Effective<'_>) -> Option<Duration> {
    if let Some((given, cancels)) = own.read("cancelrunningfuture", truth) {
        let said = "a timed out attempt is always cancelled";
        if cancels { own.taken(given, said) } else { own.changed(given, said) }
    }
    let (given, limit) = own.read("timeoutduration", |node| duration(node, BareUnit::Milliseconds))?;
    if limit.is_zero() {
        own.left(given, "a limit of 0 would fail every call");
        return None;
    }
    own.taken(given, format!("timeout = {}: of each attempt", format(limit)));
    Some(limit)
}

/// After how long an attempt ends, where our own threshold of slowness lies beyond that.
fn unseen_by_ours(limit: Option<Duration>) -> Option<Duration> {
    limit.filter(|limit| OUR_SLOW_CALL >= *limit)
}

/// A threshold that an attempt can reach and that says no more than its end: `check` would doubt ours, and Resilience4j has none here.
fn write_unseen(breaker: &mut TomlTable, instance: &str, ends: Duration, ledger: &mut Ledger) {
    let (slow, ends) = (nearly_all(ends), format(ends));
    breaker.set_noted("slow_call", span(slow), format!("an attempt ends after {ends}: only one that does is slow"));
    breaker.set("slow_share", float(1.0));
    let said = "slow_share = 1: an attempt ends after";
    let said = format!("breaker.slow_call = {}, {said} {ends}, so that only one that does is slow", format(slow));
    ledger.silent_for(instance, "slowCallDurationThreshold", said);
}

/// What is slow.
struct Slowness {
    /// The threshold that was written.
    asked: Option<Duration>,
    /// After how long an attempt ends, where that is before it could be slow: a share of slow ones means nothing then.
    unseen: Option<Duration>,
}

/// The threshold of slowness, if an attempt can reach it before it ends.
fn slow_call(own: &mut Effective<'_>, table: &mut TomlTable, limit: Option<Duration>) -> Slowness {
    let read = |node: &_| duration(node, BareUnit::Milliseconds);
    let Some((given, slow)) = own.read("slowcalldurationthreshold", read) else {
        return Slowness { asked: None, unseen: unseen_by_ours(limit) };
    };
    if slow.is_zero() {
        own.left(given, "must be longer than 0");
        return Slowness { asked: None, unseen: unseen_by_ours(limit) };
    }
    if let Some(limit) = limit.filter(|limit| slow >= *limit) {
        let said = format!("an attempt ends after {} (its time limit): none could be seen to be slow", format(limit));
        own.left(given, said);
        return Slowness { asked: None, unseen: Some(limit) };
    }
    // Room for the call around it within what can be configured.
    let slow_max = DURATION_MAX / 2;
    let written = slow.min(slow_max);
    table.set("slow_call", span(written));
    let said = format!("breaker.slow_call = {}", format(written));
    if written < slow {
        own.changed(given, said + ", the longest that leaves room for the call");
    } else if limit.is_none() && slow >= OUR_TIMEOUT {
        own.changed(given, said + "; timeout = off, as without a time limiter nothing ends a call there");
    } else {
        own.taken(given, said);
    }
    Slowness { asked: Some(written), unseen: None }
}

/// Timeouts of attempt and call that leave room for all that was taken.
fn write_timeouts(table: &mut TomlTable, limit: Option<Duration>, slow: Option<Duration>, plan: Plan) {
    if let Some(limit) = limit {
        table.set("timeout", span(limit));
    } else if slow.is_some_and(|slow| slow >= OUR_TIMEOUT) {
        table.set_noted("timeout", quoted("off"), "no time limiter; ours would end an attempt after 1m");
    }
    let all_attempts = limit.map(|limit| limit.saturating_mul(plan.attempts).saturating_add(plan.waits));
    let beyond_slow = slow.filter(|slow| *slow >= OUR_CALL_TIMEOUT).map(|slow| slow * 2);
    let call = all_attempts.max(beyond_slow).unwrap_or_default().min(DURATION_MAX);
    if call > OUR_CALL_TIMEOUT {
        table.set_noted("call_timeout", span(call), "room for all attempts and waits; ours would end a call after 3m");
    }
}

fn rate_limit(own: &mut Effective<'_>) {
    for name in ["limitforperiod", "limitrefreshperiod", "timeoutduration"] {
        if let Some(given) = own.given(name) {
            own.ledger.note(
                given,
                own.agent,
                crate::cli::import::finding::Outcome::NotSupported,
                "limits of requests are not carried over: requests_per_minute, see docs/compartments.md",
            );
        }
    }
}
