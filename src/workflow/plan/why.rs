//! Why a run is not further: for the run one answer, for each of its open calls and steps one. Nothing waits without a reason.

use serde::Serialize;

use super::{
    run_plan::RunPlan,
    state::{Hold, Item, ItemState, StepState},
};
use crate::model::{clock::Timestamp, run::RunStatus};

/// Why a call waits for an operator: it may have acted and must not act twice, or the process died with it too often.
pub const IN_DOUBT: &str = "in_doubt";
/// Why a call waits with which the process died several times: such calls are begun one at a time.
pub const SUSPECT: &str = "suspect";
/// Why a call waits whose agent a reload took away: it is made when another one brings the agent back.
pub const AGENT_GONE: &str = "agent_gone";

/// What one step, or one item of it, waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StepWhy {
    /// The step.
    pub step: String,
    /// The item of a `map`.
    pub index: Option<u32>,
    /// The iteration of a revision.
    pub iteration: u32,
    /// What it waits for.
    #[serde(flatten)]
    pub why: Why,
}

/// What is waited for. Times are Unix milliseconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Why {
    /// An agent's answer, until the call's deadline.
    Call {
        /// The agent.
        agent: String,
        /// The deadline.
        deadline_ms: u64,
    },
    /// A slot of the agent.
    Line {
        /// The agent.
        agent: String,
        /// Since when.
        since_ms: u64,
    },
    /// A gate or a time.
    Parked {
        /// The agent whose gate it is.
        agent: String,
        /// Until when; `None` until the gate changes.
        wake_ms: Option<u64>,
        /// Why.
        reason: String,
    },
    /// The journal: nothing goes on before what it said is written down.
    Journal,
    /// The orchestrator, which has not begun with it.
    Start,
    /// Its turn: its siblings use up the pace of the `map` or this run's share of the agent.
    Turn,
    /// Other steps.
    Steps {
        /// Those that have not ended.
        names: Vec<String>,
    },
}

impl RunPlan {
    /// What the run as a whole waits for: its start, else a call, a line or a gate, in this order; `None` after its end.
    pub fn why(&self) -> Option<Why> {
        if self.status == RunStatus::Queued {
            return Some(Why::Start);
        }
        if !self.is_live() {
            return None;
        }
        let first = |fits: fn(&ItemState) -> bool| self.open_items().find(|(_, item)| fits(&item.state));
        let call = || first(|state| matches!(state, ItemState::Calling { .. }));
        let line = || first(|state| matches!(state, ItemState::InLine { .. }));
        let parked = || self.first_parked().map(|hold| self.why_held(&hold));
        call().or_else(line).map(|(step, item)| self.why_item(step, item)).or_else(parked)
    }

    /// What each step and item that has not ended waits for, in the workflow's order.
    pub fn why_steps(&self) -> Vec<StepWhy> {
        if !self.is_live() {
            return Vec::new();
        }
        let mut all = self.why_items();
        for (step, definition) in self.workflow.steps.iter().enumerate() {
            let state = &self.steps[step];
            if state.round().opened.is_some() || state.round().end.is_some() || self.loop_is_over(step) {
                continue;
            }
            let open = definition.needs.iter().filter(|needed| {
                let inside =
                    definition.in_loop.is_some() && definition.in_loop == self.workflow.steps[**needed].in_loop;
                let round = if inside { self.steps[**needed].round() } else { self.counting_round(**needed) };
                let needed_loop = self.workflow.steps[**needed].in_loop.filter(|_| !inside);
                round.end.is_none() || needed_loop.is_some_and(|found| self.loops[found].result.is_none())
            });
            let names = open.map(|needed| self.workflow.steps[*needed].id.to_string()).collect();
            let why = Why::Steps { names };
            all.push(StepWhy { step: definition.id.to_string(), index: None, iteration: state.iteration(), why });
        }
        all
    }

    /// The hold of a parked run, or the parked item that wakes first.
    pub(super) fn first_parked(&self) -> Option<Hold> {
        if let Some(hold) = &self.hold {
            return Some(hold.clone());
        }
        let mut first: Option<Hold> = None;
        for (step, state) in self.steps.iter().enumerate() {
            for item in &state.round().items {
                let (until, reason) = match &item.state {
                    ItemState::Parked { until, reason, .. } => (*until, reason.as_str()),
                    ItemState::InDoubt(_) => (None, IN_DOUBT),
                    ItemState::Suspect => (None, SUSPECT),
                    _ => continue,
                };
                let wake = |hold: &Hold| hold.until.unwrap_or(Timestamp::NEVER);
                if first.as_ref().is_none_or(|known| until.unwrap_or(Timestamp::NEVER) < wake(known)) {
                    let agent = self.workflow.steps[step].agent.clone();
                    first = Some(Hold { step, agent, until, reason: reason.to_owned() });
                }
            }
        }
        first
    }

    fn why_items(&self) -> Vec<StepWhy> {
        let named = |(step, item): (usize, &Item)| StepWhy {
            step: self.workflow.steps[step].id.to_string(),
            index: item.index,
            iteration: self.steps[step].iteration(),
            why: self.why_item(step, item),
        };
        self.open_items().map(named).collect()
    }

    /// Items that have not ended, with their steps.
    fn open_items(&self) -> impl Iterator<Item = (usize, &Item)> {
        let rounds = self.steps.iter().map(StepState::round).enumerate();
        rounds
            .filter(|(_, round)| round.unfinished > 0)
            .flat_map(|(step, round)| round.items.iter().map(move |item| (step, item)))
            .filter(|(_, item)| item.end().is_none())
    }

    fn why_item(&self, step: usize, item: &Item) -> Why {
        let agent = self.workflow.steps[step].agent.to_string();
        match &item.state {
            ItemState::Calling { until, .. } => Why::Call { agent, deadline_ms: self.unix_ms(*until) },
            ItemState::InLine { since } => Why::Line { agent, since_ms: self.unix_ms(*since) },
            ItemState::Parked { until, reason, .. } => {
                let wake_ms = until.map(|until| self.unix_ms(until));
                Why::Parked { agent, wake_ms, reason: reason.clone() }
            }
            ItemState::InDoubt(_) => Why::Parked { agent, wake_ms: None, reason: IN_DOUBT.to_owned() },
            ItemState::Suspect => Why::Parked { agent, wake_ms: None, reason: SUSPECT.to_owned() },
            ItemState::Waiting | ItemState::Ended(_) => {
                self.hold.as_ref().map_or(Why::Turn, |hold| self.why_held(hold))
            }
        }
    }

    fn why_held(&self, hold: &Hold) -> Why {
        Why::Parked {
            agent: hold.agent.to_string(),
            wake_ms: hold.until.map(|until| self.unix_ms(until)),
            reason: hold.reason.clone(),
        }
    }

    /// True if the run is where its status says and something will move it: what a watchdog asks.
    pub fn is_explained(&self) -> bool {
        match self.status {
            RunStatus::Running => matches!(self.why(), Some(Why::Call { .. } | Why::Line { .. })),
            RunStatus::Parked => matches!(self.why(), Some(Why::Parked { .. })),
            _ => true,
        }
    }
}
