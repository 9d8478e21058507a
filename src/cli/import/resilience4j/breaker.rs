//! One circuit breaker: windows, shares, open and half-open states. What Resilience4j clamps or works out is written out.

use std::time::Duration;

use super::ledger::{Effective, Given, word};
use crate::{
    cli::import::{
        scalar::{BareUnit, DURATION_MAX, duration, number, share_of_percent, truth, whole},
        toml_text::{TomlTable, float, quoted, span},
    },
    model::duration::format,
    policy::breaker::settings::{BreakerSettings, WINDOW_CALLS_MAX, WINDOW_MAX},
};

/// What Resilience4j takes where the file says nothing.
const THEIR_WINDOW: u64 = 100;
/// Calls of our own window unless configured.
const OUR_WINDOW: u64 = 20;
/// How many trials, by its relaxed name.
const TRIALS: &str = "permittednumberofcallsinhalfopenstate";
const THEIR_CALLS_MIN: u64 = 100;
const THEIR_GROWTH: f64 = 1.5;
const THEIR_RANDOM_FACTOR: f64 = 0.5;

/// Writes the breaker's table. `slow_call` is judged by the agent's timeouts and comes from there.
/// `unseen` is after how long an attempt ends, where that is before it could be slow.
pub(super) fn write(own: &mut Effective<'_>, table: &mut TomlTable, unseen: Option<Duration>) {
    shares(own, table, unseen);
    let window = window(own, table);
    open(own, table);
    half_open(own, table, window);
    if let Some((given, state)) = own.read("initialstate", word) {
        let mode = match state.as_str() {
            "CLOSED" => "auto",
            "FORCED_OPEN" => "forced_open",
            "DISABLED" => "disabled",
            "METRICS_ONLY" => "metrics_only",
            _ => return own.left(given, "a breaker starts closed, or in a state that it is forced into"),
        };
        table.set("mode", quoted(mode));
        own.taken(given, format!("breaker.mode = {mode}"));
    }
}

fn shares(own: &mut Effective<'_>, table: &mut TomlTable, unseen: Option<Duration>) {
    for (name, key) in [("failureratethreshold", "failure_share"), ("slowcallratethreshold", "slow_share")] {
        if let Some((given, share)) = own.read(name, share_of_percent) {
            if let Some(ends) = unseen.filter(|_| key == "slow_share") {
                let ends = format(ends);
                own.left(
                    given,
                    format!("an attempt ends after {ends} (its time limit): none could be seen to be slow"),
                );
                continue;
            }
            table.set(key, float(share));
            own.taken(given, format!("breaker.{key} = {share}"));
        }
    }
}

/// Window and least number of calls. Returns the calls of a count window.
fn window(own: &mut Effective<'_>, table: &mut TomlTable) -> Option<u64> {
    let kind = own.read("slidingwindowtype", word);
    let by_time = match &kind {
        Some((_, word)) if word == "TIME_BASED" => true,
        Some((_, word)) if word == "COUNT_BASED" => false,
        Some((given, _)) => {
            own.left(given, "is neither COUNT_BASED nor TIME_BASED: counted");
            false
        }
        None => false,
    };
    let size = own.read("slidingwindowsize", whole).filter(|(given, size)| {
        if *size == 0 {
            own.left(given, "a window of 0 never judges");
        }
        *size > 0
    });
    let calls_min = own.read("minimumnumberofcalls", whole).filter(|(given, calls)| {
        if *calls == 0 {
            own.left(given, "must be at least 1");
        }
        *calls > 0
    });
    // More trials than our own window holds need theirs.
    let many_trials = own.given(TRIALS).and_then(|given| whole(&given.property.node).ok());
    let fits_ours = many_trials.is_none_or(|trials| trials <= OUR_WINDOW);
    if size.is_none() && calls_min.is_none() && !by_time && fits_ours {
        if let Some((given, _)) = kind.filter(|(_, word)| word == "COUNT_BASED") {
            own.taken(given, "breaker.window_calls, by default");
        }
        return Some(OUR_WINDOW);
    }
    let wanted = size.as_ref().map_or(THEIR_WINDOW, |(_, size)| *size);
    let (key, written, capped) = if by_time {
        let capped = wanted.min(WINDOW_MAX.as_secs());
        ("window", span(Duration::from_secs(capped)), capped)
    } else {
        let capped = wanted.min(u64::from(WINDOW_CALLS_MAX));
        ("window_calls", capped.to_string(), capped)
    };
    table.set(key, written.clone());
    let said = format!("breaker.{key} = {written}");
    match &size {
        Some((given, size)) if *size > capped => own.changed(given, format!("{said}, the largest allowed")),
        Some((given, _)) => own.taken(given, said.clone()),
        None => {}
    }
    if let Some((given, word)) = kind.filter(|(_, word)| word.ends_with("_BASED")) {
        let by_default = if size.is_none() { ", their own default" } else { "" };
        own.taken(given, format!("{said}{by_default} ({})", word.to_lowercase()));
    }
    least_calls(own, table, calls_min, capped, by_time);
    (!by_time).then_some(capped)
}

fn least_calls(
    own: &mut Effective<'_>,
    table: &mut TomlTable,
    given: Option<(&Given, u64)>,
    window: u64,
    by_time: bool,
) {
    let bound = if by_time { u64::from(u32::MAX) } else { window };
    let wanted = given.as_ref().map_or(THEIR_CALLS_MIN, |(_, calls)| *calls);
    let calls = wanted.min(bound);
    match given {
        Some((given, _)) if calls < wanted => {
            own.changed(given, format!("breaker.calls_min = {calls}: not more than the window holds"));
        }
        Some((given, _)) => own.taken(given, format!("breaker.calls_min = {calls}")),
        None => {
            let said = format!("their own default of {THEIR_CALLS_MIN}, not more than the window");
            table.set_noted("calls_min", calls.to_string(), said);
            let said = format!("breaker.calls_min = {calls}, as Resilience4j works it out");
            own.ledger.silent_for(own.agent, "minimumNumberOfCalls", said);
            return;
        }
    }
    table.set("calls_min", calls.to_string());
}

/// A duration over 0.
fn some_time(node: &crate::cli::import::yaml::Node) -> Result<Duration, String> {
    duration(node, BareUnit::Milliseconds)
        .and_then(|time| if time.is_zero() { Err("must be longer than 0".to_owned()) } else { Ok(time) })
}

fn open(own: &mut Effective<'_>, table: &mut TomlTable) {
    let ours = BreakerSettings::default();
    let wait = own.read("waitdurationinopenstate", some_time);
    let open = wait.as_ref().map_or(ours.open, |(_, wait)| *wait);
    if let Some((given, wait)) = &wait {
        table.set("open", span(*wait));
        own.taken(given, format!("breaker.open = {}", format(*wait)));
    }
    let grows = own.read("enableexponentialbackoff", truth);
    let factor = own.read("exponentialbackoffmultiplier", number);
    let longest = own.read("exponentialmaxwaitdurationinopenstate", some_time);
    let mut open_max = ours.open_max;
    if let Some((given, true)) = &grows {
        let growth = factor.as_ref().map_or(THEIR_GROWTH, |(_, factor)| *factor).max(1.0);
        table.set("open_growth", float(growth));
        let at_most = longest.as_ref().map_or(ours.open_max, |(_, longest)| *longest);
        let said = format!("breaker.open_growth = {growth}, up to {}", format(at_most.max(open)));
        if longest.is_some() {
            own.taken(given, said);
        } else {
            own.changed(given, said + ": growth ends there");
        }
        if let Some((given, factor)) = &factor {
            if *factor < 1.0 {
                own.left(given, "must be at least 1");
            } else {
                own.taken(given, format!("breaker.open_growth = {growth}"));
            }
        }
        if let Some((given, longest)) = &longest {
            open_max = *longest;
            own.taken(given, format!("breaker.open_max = {}", format((*longest).max(open))));
        }
    } else {
        if let Some((given, _)) = &grows {
            own.taken(given, "breaker.open does not grow, by default");
        }
        for given in [factor.map(|(given, _)| given), longest.map(|(given, _)| given)].into_iter().flatten() {
            own.left(given, "only used where enableExponentialBackoff is true");
        }
    }
    if open_max < open || open_max != ours.open_max {
        table.set("open_max", span(open_max.max(open)));
    }
    jitter(own, table);
}

fn jitter(own: &mut Effective<'_>, table: &mut TomlTable) {
    let random = own.read("enablerandomizedwait", truth);
    let factor = own.read("randomizedwaitfactor", number);
    let Some((given, true)) = random else {
        if let Some((given, _)) = random {
            own.changed(given, "breaker.open_jitter stays at our default of 0.1, which only lengthens");
        }
        if let Some((given, _)) = factor {
            own.left(given, "only used where enableRandomizedWait is true");
        }
        return;
    };
    let share = factor.as_ref().map_or(THEIR_RANDOM_FACTOR, |(_, share)| *share);
    let share = share.clamp(0.0, 1.0);
    table.set("open_jitter", float(share));
    let said = format!("breaker.open_jitter = {share}: ours only lengthens the open time, theirs also shortens it");
    own.changed(given, said.clone());
    if let Some((given, _)) = factor {
        own.changed(given, said);
    }
}

fn half_open(own: &mut Effective<'_>, table: &mut TomlTable, window: Option<u64>) {
    let ours = BreakerSettings::default();
    let trials = own.read(TRIALS, whole);
    let bound = window.unwrap_or_else(|| u64::from(WINDOW_CALLS_MAX));
    match trials {
        Some((given, 0)) => own.left(given, "without a trial it could never close"),
        Some((given, wanted)) if wanted > bound => {
            table.set("trials", bound.to_string());
            own.changed(given, format!("breaker.trials = {bound}: not more than the window holds"));
        }
        Some((given, wanted)) => {
            table.set("trials", wanted.to_string());
            own.taken(given, format!("breaker.trials = {wanted}"));
        }
        None if bound < u64::from(ours.trials) => {
            table.set_noted("trials", bound.to_string(), "not more than the window holds");
            let said = format!("breaker.trials = {bound}, not more than the window holds");
            own.ledger.silent_for(own.agent, "permittedNumberOfCallsInHalfOpenState", said);
        }
        None => {}
    }
    let read = |node: &_| duration(node, BareUnit::Milliseconds);
    match own.read("maxwaitdurationinhalfopenstate", read) {
        Some((given, Duration::ZERO)) => {
            table.set("half_open_max", quoted("off"));
            own.taken(given, "breaker.half_open_max = off");
        }
        Some((given, longest)) => {
            table.set("half_open_max", span(longest.min(DURATION_MAX)));
            table.set("half_open_from", quoted("entry"));
            own.taken(given, format!("breaker.half_open_max = {}, half_open_from = entry", format(longest)));
        }
        None => {}
    }
    if let Some((given, state)) = own.read("transitiontostateafterwaitduration", word) {
        let end = match state.as_str() {
            "OPEN" => "open",
            "CLOSED" => "closed",
            _ => return own.left(given, "leads to open or closed only"),
        };
        table.set("half_open_end", quoted(end));
        own.taken(given, format!("breaker.half_open_end = {end}"));
    }
    if let Some((given, by_itself)) = own.read("automatictransitionfromopentohalfopenenabled", truth) {
        let by = if by_itself { "timer" } else { "first_call" };
        table.set("half_open_by", quoted(by));
        own.taken(given, format!("breaker.half_open_by = {by}"));
    }
}
