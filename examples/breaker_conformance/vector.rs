//! The vectors as they stand in the file, read strictly: an expectation that is not understood is an error, never skipped.

use std::{collections::HashSet, fmt, fs};

use serde::Deserialize;

/// A file that cannot be played: where, and what is wrong.
#[derive(Debug)]
pub(crate) struct BadVector {
    place: String,
    what: String,
}

impl BadVector {
    pub(crate) fn new(file: &str, line: usize, what: impl fmt::Display) -> Self {
        Self { place: format!("{file}:{line}"), what: what.to_string() }
    }

    fn of_file(file: &str, what: impl fmt::Display) -> Self {
        Self { place: file.to_owned(), what: what.to_string() }
    }
}

impl fmt::Display for BadVector {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.place, self.what)
    }
}

/// One scenario.
#[derive(Debug, Deserialize)]
pub(crate) struct Scenario {
    pub(crate) name: String,
    pub(crate) profile: Profile,
    #[serde(default)]
    pub(crate) config: Config,
    pub(crate) steps: Vec<Step>,
}

/// Whose behaviour a scenario states.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Profile {
    /// Resilience4j's and ours.
    Both,
    /// Ours beyond it.
    Strict,
}

impl fmt::Display for Profile {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Both => "both",
            Self::Strict => "strict",
        })
    }
}

/// A breaker's settings in Resilience4j's words, with its defaults.
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Config {
    /// Percent.
    pub(crate) failure_rate_threshold: f64,
    /// Percent.
    pub(crate) slow_call_rate_threshold: f64,
    pub(crate) slow_call_duration_ms: u64,
    pub(crate) window_type: WindowType,
    /// Calls or seconds.
    pub(crate) window_size: u32,
    pub(crate) minimum_calls: u32,
    pub(crate) half_open_permits: u32,
    pub(crate) open_wait: OpenWait,
    pub(crate) auto_half_open: bool,
    /// 0 = never.
    pub(crate) half_open_max_wait_ms: u64,
    pub(crate) half_open_timeout_state: TimeoutState,
    pub(crate) initial_state: State,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            failure_rate_threshold: 50.0,
            slow_call_rate_threshold: 100.0,
            slow_call_duration_ms: 60_000,
            window_type: WindowType::Count,
            window_size: 100,
            minimum_calls: 100,
            half_open_permits: 10,
            open_wait: OpenWait::Fixed { ms: 60_000 },
            auto_half_open: false,
            half_open_max_wait_ms: 0,
            half_open_timeout_state: TimeoutState::Open,
            initial_state: State::Closed,
        }
    }
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WindowType {
    Count,
    Time,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum OpenWait {
    Fixed { ms: u64 },
    Exponential { initial_ms: u64, multiplier: f64, max_ms: Option<u64> },
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub(crate) enum TimeoutState {
    Open,
    Closed,
}

/// A state by its name in the vectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub(crate) enum State {
    Closed,
    Open,
    HalfOpen,
    ForcedOpen,
    Disabled,
    MetricsOnly,
}

/// One step.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Step {
    pub(crate) at_ms: u64,
    pub(crate) op: Operation,
    pub(crate) call: Option<String>,
    #[serde(default)]
    pub(crate) duration_ms: u64,
    pub(crate) wait_ms: Option<u64>,
    #[serde(default)]
    pub(crate) expect: Expectation,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Operation {
    Acquire,
    Success,
    Failure,
    Ignore,
    Cancel,
    Reset,
    Tick,
    ToOpen,
    ToHalfOpen,
    ToClosed,
    ToDisabled,
    ToForcedOpen,
    ToMetricsOnly,
}

/// What must hold right after a step; what is absent may be anything.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Expectation {
    pub(crate) admitted: Option<bool>,
    pub(crate) state: Option<State>,
    /// Percent; -1 = not known yet.
    pub(crate) failure_rate: Option<f64>,
    /// Percent; -1 = not known yet.
    pub(crate) slow_rate: Option<f64>,
    pub(crate) buffered: Option<u32>,
    pub(crate) failed: Option<u32>,
    pub(crate) slow: Option<u32>,
    pub(crate) not_permitted: Option<u32>,
    pub(crate) error: Option<String>,
    pub(crate) events: Option<Vec<String>>,
}

/// The scenarios of a file with their line numbers. Blank lines are no scenarios.
pub(crate) fn read(file: &str) -> Result<Vec<(usize, Scenario)>, BadVector> {
    let text = fs::read_to_string(file).map_err(|error| BadVector::of_file(file, error))?;
    let mut scenarios = Vec::new();
    for (index, text) in text.lines().enumerate().filter(|(_, text)| !text.trim().is_empty()) {
        let line = index + 1;
        let scenario: Scenario = serde_json::from_str(text).map_err(|error| {
            // Each line is a document of its own: its parser counts from 1.
            BadVector::new(file, line, error.to_string().replace(" at line 1 column", " at column"))
        })?;
        check_order(&scenario).map_err(|what| BadVector::new(file, line, what))?;
        scenarios.push((line, scenario));
    }
    if scenarios.is_empty() {
        return Err(BadVector::of_file(file, "holds no scenario"));
    }
    Ok(scenarios)
}

/// Time never falls, and what ends a call names one that was asked for before.
fn check_order(scenario: &Scenario) -> Result<(), String> {
    let mut asked = HashSet::new();
    let mut now_ms = 0;
    for (index, step) in scenario.steps.iter().enumerate() {
        if step.at_ms < now_ms {
            return Err(format!("{}, step {}: at_ms falls from {now_ms} to {}", scenario.name, index + 1, step.at_ms));
        }
        now_ms = step.at_ms;
        let ends_a_call =
            matches!(step.op, Operation::Success | Operation::Failure | Operation::Ignore | Operation::Cancel);
        match &step.call {
            Some(call) if step.op == Operation::Acquire => {
                asked.insert(call);
            }
            Some(call) if ends_a_call && !asked.contains(call) => {
                return Err(format!("{}, step {}: call {call} was never acquired", scenario.name, index + 1));
            }
            None if ends_a_call || step.op == Operation::Acquire => {
                return Err(format!("{}, step {}: names no call", scenario.name, index + 1));
            }
            _ => {}
        }
    }
    Ok(())
}
