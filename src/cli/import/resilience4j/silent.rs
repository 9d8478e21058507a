//! What holds for an agent because the file says nothing of it, where Resilience4j would do something else. Asked once all tables are
//! written: what stands there holds for what the file says, or is told by whoever wrote it.

use super::ledger::{Effective, Ledger};
use crate::cli::import::toml_text::TomlTable;

/// A property of a module.
struct Silent {
    /// Its relaxed name.
    name: &'static str,
    /// What it is called.
    key: &'static str,
    /// Our keys that say it.
    ours: &'static [&'static str],
    said: &'static str,
}

const BREAKER: &[Silent] = &[
    Silent {
        name: "slidingwindowsize",
        key: "slidingWindowSize",
        ours: &["window_calls", "window"],
        said: "breaker.window_calls = 20; Resilience4j would take 100",
    },
    Silent {
        name: "minimumnumberofcalls",
        key: "minimumNumberOfCalls",
        ours: &["calls_min"],
        said: "breaker.calls_min = 10; Resilience4j would take 100",
    },
    Silent {
        name: "slowcallratethreshold",
        key: "slowCallRateThreshold",
        ours: &["slow_share"],
        said: "breaker.slow_share = 0.7; Resilience4j would take 1.0",
    },
    Silent {
        name: "slowcalldurationthreshold",
        key: "slowCallDurationThreshold",
        ours: &["slow_call"],
        said: "breaker.slow_call = 30s; Resilience4j would take 60s",
    },
    Silent {
        name: "waitdurationinopenstate",
        key: "waitDurationInOpenState",
        ours: &["open"],
        said: "breaker.open = 30s; Resilience4j would take 60s",
    },
    Silent {
        name: "enablerandomizedwait",
        key: "enableRandomizedWait",
        ours: &["open_jitter"],
        said: "breaker.open_jitter = 0.1, which only lengthens; Resilience4j would add nothing",
    },
    Silent {
        name: "permittednumberofcallsinhalfopenstate",
        key: "permittedNumberOfCallsInHalfOpenState",
        ours: &["trials"],
        said: "breaker.trials = 5; Resilience4j would take 10",
    },
    Silent {
        name: "maxwaitdurationinhalfopenstate",
        key: "maxWaitDurationInHalfOpenState",
        ours: &["half_open_max"],
        said: "breaker.half_open_max = 5m; Resilience4j would wait for ever",
    },
    Silent {
        name: "automatictransitionfromopentohalfopenenabled",
        key: "automaticTransitionFromOpenToHalfOpenEnabled",
        ours: &["half_open_by"],
        said: "breaker.half_open_by = timer; Resilience4j would wait for a call",
    },
];
const BULKHEAD: &[Silent] = &[Silent {
    name: "maxconcurrentcalls",
    key: "maxConcurrentCalls",
    ours: &["slots"],
    said: "slots = 10; Resilience4j would take 25",
}];
const THREAD_POOL: &[Silent] = &[Silent {
    name: "maxthreadpoolsize",
    key: "maxThreadPoolSize",
    ours: &["slots"],
    said: "slots = 10; Resilience4j would take a thread for each processor",
}];
const TIME_LIMITER: &[Silent] = &[Silent {
    name: "timeoutduration",
    key: "timeoutDuration",
    ours: &["timeout"],
    said: "timeout = 1m: of each attempt; Resilience4j would take 1s",
}];

/// What is said of an agent that has a section in a module, by the module's relaxed name.
fn properties(module: &str) -> &'static [Silent] {
    match module {
        "circuitbreaker" => BREAKER,
        "bulkhead" => BULKHEAD,
        "threadpoolbulkhead" => THREAD_POOL,
        "timelimiter" => TIME_LIMITER,
        _ => &[],
    }
}

/// Tells what a module's section leaves open. `table` is where its keys are written.
pub(super) fn tell(module: &str, own: &mut Effective<'_>, table: &TomlTable) {
    for silent in properties(module) {
        if own.given(silent.name).is_none() && !silent.ours.iter().any(|key| table.has(key)) {
            own.ledger.silent_for(own.agent, silent.key, silent.said);
        }
    }
}

/// Tells what it means for an agent that it has no section in any of these modules.
pub(super) fn tell_absence(has: impl Fn(&str) -> bool, agent: &str, table: &TomlTable, ledger: &mut Ledger) {
    if !has("circuitbreaker") {
        ledger.silent_for(agent, "(breaker)", "has one with our defaults; Resilience4j has none without an instance");
    }
    if !has("bulkhead") && !has("threadpoolbulkhead") {
        ledger.silent_for(agent, "slots", "slots = 10; Resilience4j has no cap without a bulkhead");
    }
    if !has("timelimiter") && !table.has("timeout") {
        let said = "timeout = 1m: of each attempt; Resilience4j ends none without a time limiter";
        ledger.silent_for(agent, "timeout", said);
    }
}
