//! What starts when: a step as soon as what it needs has ended (no barrier between stages), an item as soon as pace, share and
//! gates allow.

use std::sync::Arc;

use serde_json::{Value as Json, json};

use super::{
    action::{Action, Ask, CallRequest, Gates, StepKey},
    open::ALONE,
    run_plan::RunPlan,
    settle::Failure,
    state::{End, Item, ItemState},
};
use crate::{
    model::{
        clock::Timestamp,
        envelope::{Envelope, ErrorCode},
        event::EventType,
        run::Cause,
    },
    workflow::{
        checked::About,
        definition::{Effects, Join, MAP_ITEMS_MAX},
        expression::{ExpressionError, from_json},
    },
};

/// What a step's `when` and `map` say once it may start.
enum Opening {
    Skip,
    Items(Vec<Item>),
    Broken(Envelope),
}

impl RunPlan {
    /// Opens every round that may open. Those that end at once are followed up by the caller.
    pub(super) fn open_rounds(&mut self, now: Timestamp) {
        let workflow = Arc::clone(&self.workflow);
        for step in workflow.order.iter().copied() {
            if self.culprit.is_none() && self.may_open(step) {
                self.open_round(step, now);
            }
        }
    }

    /// Starts waiting items, unless a gate further on makes it a waste.
    pub(super) fn start_items(&mut self, now: Timestamp, gates: &dyn Gates) {
        if self.is_held_back {
            return;
        }
        self.hold = None;
        let something_waits = self.steps.iter().any(|state| !state.round().waiting.is_empty());
        if self.culprit.is_some() || !something_waits || self.is_held(now, gates) {
            return;
        }
        for step in 0..self.steps.len() {
            while let Some(place) = self.next_to_start(step, gates) {
                self.start_item(step, place, now);
            }
        }
    }

    /// True if all that this step needs has ended, and what it needs of its own loop in this iteration.
    fn may_open(&self, step: usize) -> bool {
        let round = self.steps[step].round();
        round.opened.is_none() && round.end.is_none() && !self.loop_is_over(step) && self.needs_have_ended(step)
    }

    /// Whether everything that a step needs has ended for good, as seen from this step.
    pub(super) fn needs_have_ended(&self, step: usize) -> bool {
        let definition = &self.workflow.steps[step];
        definition.needs.iter().all(|needed| self.has_ended_for(*needed, definition.in_loop))
    }

    fn has_ended_for(&self, step: usize, from_loop: Option<usize>) -> bool {
        match self.workflow.steps[step].in_loop {
            Some(found) if from_loop != Some(found) => self.loops[found].result.is_some(),
            _ => self.steps[step].round().end.is_some(),
        }
    }

    fn open_round(&mut self, step: usize, now: Timestamp) {
        let opening = self.opening(step).unwrap_or_else(|error| Opening::Broken(invalid_expression(&error)));
        let definition = &self.workflow.steps[step];
        let join_at = match definition.map.as_ref().map(|map| map.join) {
            Some(Join::BestEffort(time)) => Some(now.after(time)),
            _ => None,
        };
        let round = self.steps[step].round_mut();
        round.opened = Some(now);
        match opening {
            Opening::Skip => self.finish_round(step, End::skipped(), now),
            Opening::Broken(envelope) => self.settle_step(step, &Failure::of(Cause::Error, envelope), now),
            Opening::Items(items) => {
                round.join_at = join_at;
                round.unfinished = items.len();
                round.waiting = (0..items.len()).collect();
                round.items = items;
                if self.workflow.steps[step].map.is_some() {
                    let data = json!({ "items": self.steps[step].round().unfinished });
                    self.emit_step(EventType::StepStarted, step, None, data);
                    self.join_if_done(step, now);
                }
            }
        }
    }

    fn opening(&self, step: usize) -> Result<Opening, ExpressionError> {
        let definition = &self.workflow.steps[step];
        let about_step = definition.when.as_ref().filter(|when| when.about == About::Step);
        if about_step.is_none() && definition.map.is_none() {
            return Ok(Opening::Items(vec![Item::new(None, minijinja::Value::from(()))]));
        }
        let context = self.step_context(step);
        if let Some(when) = about_step
            && !when.expression.holds(&context)?
        {
            return Ok(Opening::Skip);
        }
        let Some(map) = &definition.map else {
            return Ok(Opening::Items(vec![Item::new(None, minijinja::Value::from(()))]));
        };
        let list = match map.over.evaluate(&context)? {
            Json::Array(list) => list,
            // An optional input that was not given has no items.
            Json::Null => Vec::new(),
            _ => return Ok(Opening::Broken(invalid_list(definition.id(), "is no list"))),
        };
        if list.len() > MAP_ITEMS_MAX {
            let what = format!("has {} items; the limit is {MAP_ITEMS_MAX}", list.len());
            return Ok(Opening::Broken(invalid_list(definition.id(), &what)));
        }
        let items = list.iter().zip(0_u32..).map(|(value, index)| Item::new(Some(index), from_json(value)));
        Ok(Opening::Items(items.collect()))
    }

    /// The next item of a step that pace and share allow.
    fn next_to_start(&mut self, step: usize, gates: &dyn Gates) -> Option<usize> {
        let definition = &self.workflow.steps[step];
        let round = self.steps[step].round_mut();
        let paced = definition.map.as_ref().is_some_and(|map| round.active >= map.parallel);
        if self.culprit.is_some() || round.waiting.is_empty() || paced {
            return None;
        }
        let in_flight = self.in_flight.get(&definition.agent).copied().unwrap_or_default();
        if in_flight >= gates.share(&definition.agent).max(1) {
            return None;
        }
        round.waiting.pop_front()
    }

    pub(super) fn start_item(&mut self, step: usize, place: usize, now: Timestamp) {
        self.move_again();
        if self.steps[step].round().items[place].input.is_none() {
            match self.item_input(step, place) {
                Ok(Some(input)) => self.steps[step].round_mut().items[place].input = Some(Arc::new(input)),
                Ok(None) => return self.end_item(step, place, End::skipped(), now),
                Err(error) => {
                    let failure = Failure::of(Cause::Error, invalid_expression(&error));
                    return self.settle_item(step, place, &failure, now);
                }
            }
        }
        self.announce(step, place, now);
        let until = self.call_until(step, now);
        self.set_state(step, place, ItemState::Calling { since: now, until });
        if let Some(request) = self.request_of(step, place) {
            self.act(Action::Call(request));
        }
    }

    /// Says that an item starts: once, and again where its call may be made twice or must be known to have been made.
    fn announce(&mut self, step: usize, place: usize, now: Timestamp) {
        let item = &mut self.steps[step].round_mut().items[place];
        let (index, is_new) = (item.index, item.started.is_none());
        let was_interrupted = std::mem::take(&mut item.was_interrupted);
        let is_tried = std::mem::take(&mut item.is_tried);
        item.started.get_or_insert(now);
        if is_new {
            self.emit_step(EventType::StepStarted, step, index, json!({}));
        } else if is_tried {
            self.emit_step(EventType::StepStarted, step, index, json!({ "again": true, ALONE: true }));
        } else if was_interrupted || self.workflow.steps[step].effects == Effects::Once {
            self.emit_step(EventType::StepStarted, step, index, json!({ "again": true }));
        }
    }

    /// The agent's input for an item; `None` if its `when` leaves it out.
    pub(super) fn item_input(&self, step: usize, place: usize) -> Result<Option<Json>, ExpressionError> {
        let definition = &self.workflow.steps[step];
        let context = self.item_context(step, place);
        if let Some(when) = definition.when.as_ref().filter(|when| when.about == About::Item)
            && !when.expression.holds(&context)?
        {
            return Ok(None);
        }
        definition.input.evaluate(&context).map(Some)
    }

    /// The call of an item whose input was made.
    pub(super) fn request_of(&self, step: usize, place: usize) -> Option<CallRequest> {
        let definition = &self.workflow.steps[step];
        let item = self.steps[step].round().items.get(place)?;
        let key = StepKey { step, index: item.index, iteration: self.steps[step].iteration() };
        let input = Arc::clone(item.input.as_ref()?);
        Some(CallRequest { key, agent: definition.agent.clone(), input, timeout: definition.timeout, ask: Ask::Agent })
    }

    /// When a call that starts now must have ended.
    pub(super) fn call_until(&self, step: usize, now: Timestamp) -> Timestamp {
        self.workflow.steps[step].timeout.map_or(self.deadline, |timeout| now.after(timeout).min(self.deadline))
    }
}

/// An expression that failed in a run: the workflow's fault, told with its place.
pub(super) fn invalid_expression(error: &ExpressionError) -> Envelope {
    Envelope::new(ErrorCode::InvalidRequest, error.to_string()).with_detail("place", error.place())
}

fn invalid_list(step: &str, what: &str) -> Envelope {
    Envelope::new(ErrorCode::InvalidRequest, format!("step {step:?}: the value of `map.over` {what}"))
}
