//! The run as people and programs see it. Every step has a record, also one that never ran: no holes.

use super::{
    action::Action,
    run_plan::{Mode, RunPlan},
    state::{End, Item, ItemState, Round},
};
use crate::model::{
    clock::Timestamp,
    ended::{Ended, EndedScope},
    reply::Usage,
    run::{RunRecord, RunTokens, StepRecord, StepStatus},
};

impl RunPlan {
    /// The object of `run --json`.
    pub fn record(&self) -> RunRecord {
        RunRecord {
            run_id: self.run_id.clone(),
            workflow: self.workflow.name.to_string(),
            workflow_hash: self.workflow.hash.clone(),
            rerun_of: self.rerun_of.clone(),
            status: self.status,
            created_ms: self.unix_ms(self.created),
            started_ms: self.started.map(|at| self.unix_ms(at)),
            ended_ms: self.ended.map(|at| self.unix_ms(at)),
            duration_ms: self.ended.map(|at| milliseconds(at, self.created)),
            tokens: self.usage.into(),
            cost: self.usage.cost,
            currency: self.usage.cost.and(self.currency.as_deref()).map(str::to_owned),
            output: self.output.clone(),
            steps: self.step_records(),
            degraded: self.degraded(),
            error: self.error.clone(),
        }
    }

    /// Asks for the end of an item to be written down: as it came, before its loop judges it.
    pub(super) fn write_item_end(&mut self, step: usize, place: usize, end: &End, now: Timestamp) {
        if !self.is_journaled || self.mode != Mode::Live {
            return;
        }
        let item = &self.steps[step].round().items[place];
        let usage = item.usage;
        let record = self.item_record(step, self.steps[step].iteration(), item, Some(end));
        self.write_end(EndedScope::Item, record, end, usage, now);
    }

    /// The same for a step that ends without items.
    pub(super) fn write_round_end(&mut self, step: usize, end: &End, now: Timestamp) {
        if !self.is_journaled || self.mode != Mode::Live || !self.steps[step].round().items.is_empty() {
            return;
        }
        let record = self.end_record(step, self.steps[step].iteration(), StepStatus::Pending, Some(end));
        self.write_end(EndedScope::Round, record, end, None, now);
    }

    fn write_end(&mut self, scope: EndedScope, record: StepRecord, end: &End, usage: Option<Usage>, now: Timestamp) {
        let ended = Ended { scope, record, cause: end.cause, usage, at_ms: self.unix_ms(now) };
        self.act(Action::Record(Box::new(ended)));
    }

    fn step_records(&self) -> Vec<StepRecord> {
        let mut records = Vec::new();
        for (step, state) in self.steps.iter().enumerate() {
            for (iteration, round) in (0_u32..).zip(state.rounds()) {
                let is_mapped = self.workflow.steps[step].map.is_some();
                for item in &round.items {
                    // The one item of a plain step ended as its round did.
                    let end = if is_mapped { item.end() } else { round.end.as_ref() };
                    records.push(self.item_record(step, iteration, item, end));
                }
                // A revision that was not begun is none; a step that was not begun has a record all the same.
                if round.items.is_empty() && (iteration == 0 || round.end.is_some()) {
                    records.push(self.round_record(step, iteration, round));
                }
            }
        }
        records
    }

    fn item_record(&self, step: usize, iteration: u32, item: &Item, end: Option<&End>) -> StepRecord {
        let waits = matches!(item.state, ItemState::Waiting) && item.started.is_none();
        let status = if waits { StepStatus::Pending } else { StepStatus::Running };
        StepRecord {
            index: item.index.map(|index| index as usize),
            started_ms: item.started.map(|at| self.unix_ms(at)),
            duration_ms: item.started.zip(item.ended).map(|(started, ended)| milliseconds(ended, started)),
            attempts: item.attempts.clone(),
            refusals: item.refusals.clone(),
            tokens: item.usage.map(RunTokens::from),
            cost: item.usage.and_then(|usage| usage.cost),
            ..self.end_record(step, iteration, status, end)
        }
    }

    fn round_record(&self, step: usize, iteration: u32, round: &Round) -> StepRecord {
        if round.end.is_some() || !self.status.is_terminal() {
            return self.end_record(step, iteration, StepStatus::Pending, round.end.as_ref());
        }
        // The run ended before this step could begin: why is the culprit's name, or the run's own error.
        let error = match (&self.culprit, &self.error) {
            (Some(_), _) => self.collateral(),
            (None, Some(error)) => error.clone(),
            (None, None) => return self.end_record(step, iteration, StepStatus::Pending, None),
        };
        self.end_record(step, iteration, StepStatus::Cancelled, Some(&End::cancelled(None, error)))
    }

    fn end_record(&self, step: usize, iteration: u32, open: StepStatus, end: Option<&End>) -> StepRecord {
        let definition = &self.workflow.steps[step];
        StepRecord {
            id: definition.id.to_string(),
            agent: definition.agent.to_string(),
            index: None,
            iteration,
            status: end.map_or(open, |end| end.status),
            started_ms: None,
            duration_ms: None,
            attempts: Vec::new(),
            refusals: Vec::new(),
            tokens: None,
            cost: None,
            degraded: end.and_then(|end| end.degraded.clone()),
            error: end.and_then(|end| end.error.clone()),
            output: end.and_then(|end| end.output.clone()),
        }
    }
}

/// Between two moments as they are shown: the difference of two whole numbers, not a rounded difference.
pub(super) fn milliseconds(later: Timestamp, earlier: Timestamp) -> u64 {
    later.millis().saturating_sub(earlier.millis())
}
