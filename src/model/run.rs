//! A run as people and programs see it: the object of `run --json` and of `GET /v1/runs/{id}`. Times are Unix milliseconds.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{cost::Cost, envelope::Envelope, reply::Usage};

/// Where a run stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunStatus {
    /// Accepted, nothing started.
    Queued,
    /// At work.
    Running,
    /// Waiting for a gate, with a wake time.
    Parked,
    /// Done, everything as asked.
    Completed,
    /// Done; `degraded` says what was replaced or left out, and why.
    CompletedDegraded,
    /// A required step failed.
    Failed,
    /// By the caller.
    Cancelled,
    /// The run's deadline passed.
    TimedOut,
}

impl RunStatus {
    /// True once nothing more will happen.
    pub const fn is_terminal(self) -> bool {
        !matches!(self, Self::Queued | Self::Running | Self::Parked)
    }

    /// The name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Parked => "parked",
            Self::Completed => "completed",
            Self::CompletedDegraded => "completed_degraded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::TimedOut => "timed_out",
        }
    }
}

/// Where one step (or one item of a `map`, or one iteration of a revision) stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepStatus {
    /// Not started.
    Pending,
    /// In a call, a line or parked.
    Running,
    /// With its own output.
    Succeeded,
    /// With a replacement for its output.
    Degraded,
    /// Without output, and that ends the run.
    Failed,
    /// By its `when`, or left out because it was optional.
    Skipped,
    /// Because the run ended first.
    Cancelled,
}

impl StepStatus {
    /// The name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Succeeded => "succeeded",
            Self::Degraded => "degraded",
            Self::Failed => "failed",
            Self::Skipped => "skipped",
            Self::Cancelled => "cancelled",
        }
    }
}

/// Why a step was replaced or left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// A gate refused.
    CircuitOpen,
    /// No slot.
    BulkheadFull,
    /// No time left.
    Deadline,
    /// No tokens left, or a spent quota.
    Budget,
    /// The model is being loaded.
    Cold,
    /// Anything else that went wrong.
    Error,
}

impl Cause {
    /// Every cause, in the order of the documentation.
    pub const ALL: [Self; 6] =
        [Self::CircuitOpen, Self::BulkheadFull, Self::Deadline, Self::Budget, Self::Cold, Self::Error];

    /// The name in workflows and on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::CircuitOpen => "circuit_open",
            Self::BulkheadFull => "bulkhead_full",
            Self::Deadline => "deadline",
            Self::Budget => "budget",
            Self::Cold => "cold",
            Self::Error => "error",
        }
    }
}

/// One exchange with an agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AttemptRecord {
    /// When it began.
    pub started_ms: u64,
    /// How long it took.
    pub duration_ms: u64,
    /// HTTP status, if there was one.
    pub status: Option<u16>,
    /// What went wrong, if anything did.
    pub error_code: Option<String>,
    /// Seconds the other side asked us to stay away.
    pub retry_after: Option<f64>,
}

/// One refusal of our own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RefusalRecord {
    /// When.
    pub at_ms: u64,
    /// By which guard.
    pub error_code: String,
    /// Seconds until a later call makes sense.
    pub retry_after: Option<f64>,
}

/// What was done instead, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Degradation {
    /// Why.
    pub cause: Cause,
    /// What was done instead: `default`, `skip`, `best_so_far`, `partial`, `embedded`.
    pub action: String,
}

/// One step, or one item or iteration of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepRecord {
    /// The step's name in the workflow.
    pub id: String,
    /// The agent it called.
    pub agent: String,
    /// The item of a `map`, from 0.
    pub index: Option<usize>,
    /// The iteration of a revision, from 0.
    pub iteration: u32,
    /// Where it stands.
    pub status: StepStatus,
    /// When it began.
    pub started_ms: Option<u64>,
    /// How long it took.
    pub duration_ms: Option<u64>,
    /// All exchanges.
    pub attempts: Vec<AttemptRecord>,
    /// All our own refusals.
    pub refusals: Vec<RefusalRecord>,
    /// What was done instead, if anything was.
    pub degraded: Option<Degradation>,
    /// Tokens of all its attempts; left out where it used none that are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<RunTokens>,
    /// What they cost; left out where no price is known, which is not the same as nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
    /// The error, if it ended with one.
    pub error: Option<Envelope>,
    /// The output, if it has one.
    pub output: Option<Value>,
}

/// One line of a run's list of degradations.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DegradedStep {
    /// The step.
    pub step: String,
    /// Why.
    pub cause: Cause,
    /// What was done instead.
    pub action: String,
}

/// Tokens of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RunTokens {
    /// Of all prompts.
    pub prompt: u64,
    /// Of all answers.
    pub output: u64,
    /// True if any of it was counted by us.
    pub estimated: bool,
}

impl From<Usage> for RunTokens {
    fn from(usage: Usage) -> Self {
        Self { prompt: usage.prompt_tokens, output: usage.output_tokens, estimated: usage.estimated }
    }
}

/// Why a run goes on from another one's results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OriginKind {
    /// Only what was degraded or did not succeed is done again.
    Repair,
    /// Everything from one step on is done again.
    Rerun,
}

/// The run that another one goes on from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RerunOf {
    /// That run.
    pub run_id: String,
    /// Whether it is repaired or rerun.
    pub kind: OriginKind,
    /// The step that it is rerun from; left out of a repair.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The steps that are done again, by name.
    pub again: Vec<String>,
}

/// One execution of a workflow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunRecord {
    /// The run.
    pub run_id: String,
    /// Its workflow.
    pub workflow: String,
    /// The content hash of that workflow's definition.
    pub workflow_hash: String,
    /// The run that it goes on from; left out where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rerun_of: Option<RerunOf>,
    /// Where it stands.
    pub status: RunStatus,
    /// Accepted.
    pub created_ms: u64,
    /// First step.
    pub started_ms: Option<u64>,
    /// Terminal.
    pub ended_ms: Option<u64>,
    /// From acceptance to the end.
    pub duration_ms: Option<u64>,
    /// Tokens of all steps.
    pub tokens: RunTokens,
    /// What they cost, as far as prices are known; left out where none is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
    /// The money of all costs, as it was configured when the run was accepted; only beside a cost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub currency: Option<String>,
    /// What the workflow's `output` says, once completed.
    pub output: Option<Value>,
    /// Every step, in the workflow's order.
    pub steps: Vec<StepRecord>,
    /// What was replaced or left out, and why.
    pub degraded: Vec<DegradedStep>,
    /// Why it failed, if it did.
    pub error: Option<Envelope>,
}
