//! What expressions of a running workflow see. Only what a step waited for: nothing else is certain to have ended.

use minijinja::value::Value;

use super::run_plan::RunPlan;
use crate::model::run::StepStatus;

impl RunPlan {
    /// For the expressions of a step as a whole.
    pub(super) fn step_context(&self, step: usize) -> Value {
        Value::from_pairs(self.step_pairs(step))
    }

    /// For the expressions of one item.
    pub(super) fn item_context(&self, step: usize, place: usize) -> Value {
        let mut pairs = self.step_pairs(step);
        if let Some(map) = &self.workflow.steps[step].map {
            let item = &self.steps[step].round().items[place];
            pairs.push((map.item.clone(), item.value.clone()));
            pairs.push(("index".to_owned(), Value::from(item.index.unwrap_or_default())));
        }
        Value::from_pairs(pairs)
    }

    /// For the expressions of a reviewer over its own output.
    pub(super) fn review_context(&self, output: Value) -> Value {
        Value::from_pairs([("input", self.input.clone()), ("output", output)])
    }

    /// For the workflow's output.
    pub(super) fn output_context(&self) -> Value {
        let steps = (0..self.steps.len()).map(|step| (self.workflow.steps[step].id.to_string(), self.seen(step, None)));
        Value::from_pairs([("input", self.input.clone()), ("steps", Value::from_pairs(steps))])
    }

    fn step_pairs(&self, step: usize) -> Vec<(String, Value)> {
        let definition = &self.workflow.steps[step];
        let needed = definition
            .needs
            .iter()
            .map(|needed| (self.workflow.steps[*needed].id.to_string(), self.seen(*needed, definition.in_loop)));
        let mut pairs = vec![("input".to_owned(), self.input.clone()), ("steps".to_owned(), Value::from_pairs(needed))];
        if let Some(in_loop) = definition.in_loop {
            pairs.push(("revision".to_owned(), self.revision(in_loop, self.steps[step].iteration())));
        }
        pairs
    }

    /// A step's output and status: inside its own loop those of this iteration, outside those that count.
    fn seen(&self, step: usize, from_loop: Option<usize>) -> Value {
        let inside = from_loop.is_some() && from_loop == self.workflow.steps[step].in_loop;
        let round = if inside { self.steps[step].round() } else { self.counting_round(step) };
        let status = round.end.as_ref().map_or(StepStatus::Pending, |end| end.status);
        Value::from_pairs([("output", round.value.clone()), ("status", Value::from(status.as_str()))])
    }

    /// What a step of a loop is told of the version before: nothing at first.
    fn revision(&self, in_loop: usize, iteration: u32) -> Value {
        let Some(before) = iteration.checked_sub(1) else { return Value::from(()) };
        let found = &self.workflow.loops[in_loop];
        let output_before = |step: usize| {
            self.steps[step].round_of(before).map_or_else(|| Value::from(()), |round| round.value.clone())
        };
        Value::from_pairs([
            ("iteration", Value::from(iteration)),
            ("candidate", output_before(found.target)),
            ("feedback", output_before(found.reviewer)),
        ])
    }
}
