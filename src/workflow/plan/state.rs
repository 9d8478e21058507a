//! Where each step of a run stands. Plain data with one writer, the plan; per item, never as a whole.

use std::{collections::VecDeque, sync::Arc};

use minijinja::value::Value;
use serde_json::Value as Json;

use super::{open::Doubt, settle::Failure};
use crate::model::{
    clock::Timestamp,
    envelope::Envelope,
    name::Name,
    reply::Usage,
    run::{AttemptRecord, Cause, Degradation, RefusalRecord, StepStatus},
};

/// How a step or item ended.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct End {
    pub(super) status: StepStatus,
    pub(super) output: Option<Json>,
    pub(super) error: Option<Envelope>,
    /// Why it has no output of its own, if it has none.
    pub(super) cause: Option<Cause>,
    pub(super) degraded: Option<Degradation>,
}

impl End {
    /// With its own output.
    pub(super) fn succeeded(output: Json) -> Self {
        Self { status: StepStatus::Succeeded, output: Some(output), error: None, cause: None, degraded: None }
    }

    /// The same, its output left out.
    pub(super) fn without_output(&self) -> Self {
        let Self { status, output: _, error, cause, degraded } = self;
        Self { status: *status, output: None, error: error.clone(), cause: *cause, degraded: degraded.clone() }
    }

    /// By its `when`.
    pub(super) fn skipped() -> Self {
        Self { status: StepStatus::Skipped, output: None, error: None, cause: None, degraded: None }
    }

    /// Because of something else.
    pub(super) fn cancelled(cause: Option<Cause>, error: Envelope) -> Self {
        Self { status: StepStatus::Cancelled, output: None, error: Some(error), cause, degraded: None }
    }
}

/// Where an item stands.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum ItemState {
    /// In the run's own list.
    Waiting,
    /// In a call.
    Calling { since: Timestamp, until: Timestamp },
    /// In the line for a slot.
    InLine { since: Timestamp },
    /// Until a time, a change of the gate, or both.
    Parked { until: Option<Timestamp>, cause: Cause, reason: String },
    /// It waits for an operator.
    InDoubt(Doubt),
    /// The process died with it several times: it waits to be tried.
    Suspect,
    /// Over.
    Ended(Box<End>),
}

/// One call of a step: the step itself, or one item of its `map`.
#[derive(Debug, Clone)]
pub(super) struct Item {
    pub(super) index: Option<u32>,
    /// The item of the list.
    pub(super) value: Value,
    /// The agent's input, made when the item is first started and kept from then on.
    pub(super) input: Option<Arc<Json>>,
    pub(super) state: ItemState,
    pub(super) started: Option<Timestamp>,
    pub(super) ended: Option<Timestamp>,
    pub(super) attempts: Vec<AttemptRecord>,
    pub(super) refusals: Vec<RefusalRecord>,
    /// Tokens that are known to have been used.
    pub(super) usage: Option<Usage>,
    /// True if its call was under way when whoever made it was gone, and was not asked for since.
    pub(super) was_interrupted: bool,
    /// True if it is begun next as the only suspect.
    pub(super) is_tried: bool,
    /// The failure for which a rung of the agent's ladder was asked.
    pub(super) instead_of: Option<Failure>,
}

impl Item {
    pub(super) fn new(index: Option<u32>, value: Value) -> Self {
        Self {
            index,
            value,
            input: None,
            state: ItemState::Waiting,
            started: None,
            ended: None,
            attempts: Vec::new(),
            refusals: Vec::new(),
            usage: None,
            was_interrupted: false,
            is_tried: false,
            instead_of: None,
        }
    }

    /// How it ended, if it has.
    pub(super) fn end(&self) -> Option<&End> {
        match &self.state {
            ItemState::Ended(end) => Some(end),
            _ => None,
        }
    }
}

/// One execution of a step: its only one, or one iteration of a revision.
#[derive(Debug, Clone)]
pub(super) struct Round {
    /// `None` until what it needs has ended.
    pub(super) opened: Option<Timestamp>,
    /// One item for a plain step, one for each of the list for a `map`.
    pub(super) items: Vec<Item>,
    /// Items in the run's own list, by place.
    pub(super) waiting: VecDeque<usize>,
    /// Items in a call, in line or parked.
    pub(super) active: u32,
    /// Items that have not ended.
    pub(super) unfinished: usize,
    /// Items of a `map` that have an output of their own.
    pub(super) succeeded: u32,
    /// When `best_effort` ends it.
    pub(super) join_at: Option<Timestamp>,
    /// How it ended.
    pub(super) end: Option<End>,
    /// Its output for expressions.
    pub(super) value: Value,
}

impl Round {
    pub(super) fn new() -> Self {
        Self {
            opened: None,
            items: Vec::new(),
            waiting: VecDeque::new(),
            active: 0,
            unfinished: 0,
            succeeded: 0,
            join_at: None,
            end: None,
            value: Value::from(()),
        }
    }
}

/// One step: its rounds, the last of which is the current one.
#[derive(Debug, Clone)]
pub(super) struct StepState {
    past: Vec<Round>,
    current: Round,
}

impl StepState {
    pub(super) fn new() -> Self {
        Self { past: Vec::new(), current: Round::new() }
    }

    /// All rounds, by iteration.
    pub(super) fn rounds(&self) -> impl Iterator<Item = &Round> {
        self.past.iter().chain([&self.current])
    }

    /// The round of this iteration.
    pub(super) fn round_of(&self, iteration: u32) -> Option<&Round> {
        if iteration == self.iteration() { Some(&self.current) } else { self.past.get(iteration as usize) }
    }

    /// The iteration of the current round.
    pub(super) fn iteration(&self) -> u32 {
        u32::try_from(self.past.len()).unwrap_or(u32::MAX)
    }

    /// Begins another iteration.
    pub(super) fn next_round(&mut self) {
        self.past.push(std::mem::replace(&mut self.current, Round::new()));
    }

    /// The current round.
    pub(super) fn round(&self) -> &Round {
        &self.current
    }

    /// The current round.
    pub(super) fn round_mut(&mut self) -> &mut Round {
        &mut self.current
    }
}

/// A version that was judged.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Candidate {
    pub(super) iteration: u32,
    pub(super) score: Option<f64>,
}

/// Why a revision stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    Passed,
    Cap,
    NoImprovement,
    Budget,
    ReviewerDown,
    /// The reviewer was not asked at all.
    NotReviewed,
}

impl Stop {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Cap => "cap",
            Self::NoImprovement => "no_improvement",
            Self::Budget => "budget",
            Self::ReviewerDown => "reviewer_down",
            Self::NotReviewed => "not_reviewed",
        }
    }
}

/// A revision loop.
#[derive(Debug, Clone, Default)]
pub(super) struct LoopState {
    pub(super) candidates: Vec<Candidate>,
    /// Versions in a row that were no better than the best before them.
    pub(super) in_vain: u32,
    /// The iteration whose outputs count, once the loop is over.
    pub(super) result: Option<u32>,
    /// The step at which it gave up, and why.
    pub(super) degraded: Option<(usize, Degradation)>,
}

/// A gate that keeps the run from starting anything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hold {
    pub(super) step: usize,
    pub(super) agent: Name,
    pub(super) until: Option<Timestamp>,
    pub(super) reason: String,
}

/// The step that fails the run.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Culprit {
    pub(super) step: usize,
    pub(super) envelope: Envelope,
}

/// How many items stand where, over the whole run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Totals {
    pub(super) calling: usize,
    pub(super) in_line: usize,
    pub(super) parked: usize,
}
