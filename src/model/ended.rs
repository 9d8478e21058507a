//! The end of one call of a run as it is written down: all that a run needs to go on from it, and nothing that a resume repeats.

use serde::{Deserialize, Serialize};

use super::{
    reply::Usage,
    run::{Cause, StepRecord},
};

/// What an end is the end of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndedScope {
    /// One call: a plain step, or one item of a `map`.
    Item,
    /// A whole step that ended without making its items.
    Round,
}

/// One call of a run that is over: what a resume never does again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ended {
    /// What it is the end of.
    pub scope: EndedScope,
    /// Which step, item and iteration, and how it ended, with its output.
    pub record: StepRecord,
    /// Why it has no output of its own, if it has none.
    pub cause: Option<Cause>,
    /// Tokens that it used.
    pub usage: Option<Usage>,
    /// Unix milliseconds.
    pub at_ms: u64,
}
