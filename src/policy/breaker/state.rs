//! The words of a breaker: its states, why it changes, what a call holds, what its gate shows.

use serde::Serialize;

use super::window::{Counts, Source};
use crate::{model::clock::Timestamp, policy::verdict::Verdict};

/// The state of a breaker. Electric: closed lets calls through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StateName {
    /// Admits and judges.
    Closed,
    /// Refuses.
    Open,
    /// Admits a few trials.
    HalfOpen,
    /// Refuses until told otherwise.
    ForcedOpen,
    /// Admits and measures nothing.
    Disabled,
    /// Admits, measures, and says what it would have done.
    MetricsOnly,
}

impl StateName {
    /// Every state.
    pub const ALL: [Self; 6] =
        [Self::Closed, Self::Open, Self::HalfOpen, Self::ForcedOpen, Self::Disabled, Self::MetricsOnly];

    /// The name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half_open",
            Self::ForcedOpen => "forced_open",
            Self::Disabled => "disabled",
            Self::MetricsOnly => "metrics_only",
        }
    }
}

/// Why a breaker changed its state, or refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The share of failures.
    FailureShare,
    /// The share of slow calls.
    SlowShare,
    /// Failures in a row.
    Consecutive,
    /// The agent dies again and again.
    CrashLoop,
    /// An operator, or the configuration.
    Forced,
    /// The key was refused.
    KeyRejected,
    /// The key's quota is spent.
    QuotaSpent,
    /// The open time is over.
    OpenElapsed,
    /// The open time was over and a call came.
    FirstCall,
    /// The trials went well.
    TrialsPassed,
    /// Half-open for too long without a decision.
    HalfOpenMax,
    /// An operator's reset, or the end of a manual state.
    Reset,
}

impl Reason {
    /// The name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::FailureShare => "failure_share",
            Self::SlowShare => "slow_share",
            Self::Consecutive => "consecutive",
            Self::CrashLoop => "crash_loop",
            Self::Forced => "forced",
            Self::KeyRejected => "key_rejected",
            Self::QuotaSpent => "quota_spent",
            Self::OpenElapsed => "open_elapsed",
            Self::FirstCall => "first_call",
            Self::TrialsPassed => "trials_passed",
            Self::HalfOpenMax => "half_open_max",
            Self::Reset => "reset",
        }
    }
}

/// A change of state, as an event.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Transition {
    /// From which state.
    pub from: StateName,
    /// To which.
    pub to: StateName,
    /// Why.
    pub reason: Reason,
    /// The share or count behind the reason.
    pub value: Option<f64>,
    /// The event's own time: when it was due, not when somebody looked.
    pub at: Timestamp,
    /// The generation that begins with it.
    pub generation: u32,
}

/// What an admitted call holds: under which generation, and whether it took a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pass {
    /// The call.
    pub id: u64,
    /// The generation that admitted it.
    pub generation: u32,
    /// Whether it is one of a half-open state's trials.
    pub kind: PassKind,
}

/// Whether a call is a trial. As wide as what stands beside it in a pass, so that a pass is copied in whole words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum PassKind {
    /// An ordinary call.
    Plain,
    /// A trial.
    Trial,
}

/// Why a breaker refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// Why it is not closed.
    pub reason: Reason,
    /// When it can change by itself; `None` if only a trial's end or an operator changes it.
    pub until: Option<Timestamp>,
}

/// An outcome as a breaker takes it in.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outcome {
    /// What it counts as.
    pub verdict: Verdict,
    /// Whether any attempt was slow.
    pub slow: bool,
    /// Whose it is.
    pub source: Source,
    /// Whether a connection came to be.
    pub connected: bool,
}

/// What taking in something did.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Effect {
    /// It came from an earlier generation, or its trial was settled already: nothing changed.
    pub stale: bool,
    /// A trial went back and can be taken again.
    pub trial_returned: bool,
    /// Thresholds that are exceeded now and were not before.
    pub exceeded: Vec<(Reason, f64)>,
    /// Changes of state, in order.
    pub transitions: Vec<Transition>,
}

/// What the owner publishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GateView {
    /// Everybody may pass.
    Admit,
    /// So many trials may pass.
    Probe {
        /// Trials that nobody has taken.
        free: u32,
        /// Why it had opened.
        reason: Reason,
    },
    /// Nobody may pass.
    Refuse(Refusal),
}

/// A breaker as people see it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Snapshot {
    /// Its state.
    pub state: StateName,
    /// Its generation.
    pub generation: u32,
    /// The counts behind the shares.
    pub counts: Counts,
    /// Failed of finished, once there are enough.
    pub failure_share: Option<f64>,
    /// Slow of all, once there are enough.
    pub slow_share: Option<f64>,
}
