//! One ordered event log a run: the one source that progress, dashboard, replay and audit read.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What happened. The list is closed: readers can rely on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[allow(missing_docs, reason = "each name is its own sentence")]
pub enum EventType {
    #[serde(rename = "run.started")]
    RunStarted,
    #[serde(rename = "run.parked")]
    RunParked,
    #[serde(rename = "run.resumed")]
    RunResumed,
    /// Terminal, guaranteed: the last event of every run.
    #[serde(rename = "run.finished")]
    RunFinished,
    #[serde(rename = "step.started")]
    StepStarted,
    #[serde(rename = "step.delta")]
    StepDelta,
    #[serde(rename = "step.refused")]
    StepRefused,
    #[serde(rename = "step.retried")]
    StepRetried,
    #[serde(rename = "step.degraded")]
    StepDegraded,
    #[serde(rename = "step.finished")]
    StepFinished,
    #[serde(rename = "step.skipped")]
    StepSkipped,
}

impl EventType {
    /// The name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::RunStarted => "run.started",
            Self::RunParked => "run.parked",
            Self::RunResumed => "run.resumed",
            Self::RunFinished => "run.finished",
            Self::StepStarted => "step.started",
            Self::StepDelta => "step.delta",
            Self::StepRefused => "step.refused",
            Self::StepRetried => "step.retried",
            Self::StepDegraded => "step.degraded",
            Self::StepFinished => "step.finished",
            Self::StepSkipped => "step.skipped",
        }
    }
}

/// One event of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// 1, 2, 3, ... without a gap.
    pub id: u64,
    /// Unix time in milliseconds.
    pub ts_ms: u64,
    /// What happened.
    #[serde(rename = "type")]
    pub kind: EventType,
    /// The run.
    pub run_id: String,
    /// The step, where it concerns one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub step: Option<String>,
    /// Further facts: `index`, `iteration`, `error`, `output_bytes`, `cause`, `action`, `status`, ...
    #[serde(default)]
    pub data: Value,
}
