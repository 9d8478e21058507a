//! How items make a round and rounds make a step: joins, outputs, and what a failed step does to its run.

use serde_json::{Value as Json, json};

use super::{
    action::{Action, StepKey},
    record::milliseconds,
    run_plan::{Mode, RunPlan},
    settle::{Failure, json_bytes},
    state::{Culprit, End, Item, ItemState},
};
use crate::{
    model::{
        clock::Timestamp,
        envelope::{Envelope, ErrorCode},
        event::EventType,
        run::{AttemptRecord, Cause, Degradation, StepStatus},
        weight,
    },
    workflow::{checked::Mapping, definition::Join, expression::from_json},
};

/// A join that failed tells of so many items' errors.
const ITEM_ERRORS_MAX: usize = 10;
/// Of the message of each so many characters.
const ITEM_MESSAGE_CHARS_MAX: usize = 200;

/// What a join that failed tells of one of its items.
fn item_error(item: &Item, error: &Envelope) -> Json {
    let message: String = error.message.chars().take(ITEM_MESSAGE_CHARS_MAX).collect();
    json!({ "index": item.index, "error_code": error.error_code.as_str(), "message": message })
}

impl RunPlan {
    /// An item is over.
    pub(super) fn end_item(&mut self, step: usize, place: usize, end: End, now: Timestamp) {
        let is_mapped = self.workflow.steps[step].map.is_some();
        let item = &mut self.steps[step].round_mut().items[place];
        item.ended = item.started.map(|_| now);
        // Made of outputs, as large as they are, and of no more use.
        item.input = None;
        let (index, has_started) = (item.index, item.started.is_some());
        self.write_item_end(step, place, &end, now);
        if is_mapped {
            if has_started || end.status != StepStatus::Cancelled {
                self.emit_end(step, index, &end, None);
            }
            let is_good = end.status == StepStatus::Succeeded;
            self.note_output(&end, 1);
            self.set_state(step, place, ItemState::Ended(Box::new(end)));
            let round = self.steps[step].round_mut();
            round.unfinished -= 1;
            round.succeeded += u32::from(is_good);
            self.join_if_done(step, now);
        } else {
            // The one item of a plain step ends as its round does; the round keeps the output.
            self.set_state(step, place, ItemState::Ended(Box::new(end.without_output())));
            self.steps[step].round_mut().unfinished -= 1;
            self.finish_round(step, end, now);
        }
    }

    /// Ends a `map` whose items have all ended, or whose goal is reached or out of reach.
    pub(super) fn join_if_done(&mut self, step: usize, now: Timestamp) {
        self.cut_if_decided(step, now);
        let round = self.steps[step].round();
        if round.unfinished == 0 && round.end.is_none() {
            if self.mode == Mode::Restoring && self.loop_is_over(step) {
                // Cut, not joined: its items ended after its loop did.
                let cut = round.items.iter().filter_map(Item::end).find(|end| was_cut(end)).cloned();
                self.steps[step].round_mut().end = cut;
                return;
            }
            let end = self.joined(step);
            self.finish_round(step, end, now);
        }
    }

    /// Cuts what is left of a `map` once so many items have succeeded as were asked for, or no longer can.
    fn cut_if_decided(&mut self, step: usize, now: Timestamp) {
        let round = self.steps[step].round();
        let Some(goal) = self.goal(step).filter(|_| round.end.is_none() && round.unfinished > 0) else { return };
        let message = if round.succeeded >= goal {
            "not needed any more: enough items of its step succeeded"
        } else if round.unfinished < (goal - round.succeeded) as usize && self.culprit.is_none() {
            "not needed any more: too few items of its step can still succeed"
        } else {
            return;
        };
        let error = self.own_envelope(ErrorCode::Cancelled, message);
        self.cut_items(step, &End::cancelled(None, error), now);
    }

    fn goal(&self, step: usize) -> Option<u32> {
        self.workflow.steps[step].map.as_ref().and_then(|map| map.join.goal())
    }

    /// Ends every `map` whose best effort is over: what is under way is aborted, what has ended is kept.
    pub(super) fn end_due_joins(&mut self, now: Timestamp) {
        for step in 0..self.steps.len() {
            let round = self.steps[step].round();
            if round.end.is_some() || round.join_at.is_none_or(|at| at > now) {
                continue;
            }
            let message = "not finished within the best effort of its step";
            let error = self.own_envelope(ErrorCode::Cancelled, message);
            self.cut_items(step, &End::cancelled(Some(Cause::Deadline), error), now);
            self.join_if_done(step, now);
        }
    }

    /// Ends all unfinished items of a step in the same way, aborting their calls. The round itself is left to the caller.
    pub(super) fn cut_items(&mut self, step: usize, end: &End, now: Timestamp) {
        if self.mode == Mode::Restoring {
            return;
        }
        let iteration = self.steps[step].iteration();
        self.steps[step].round_mut().waiting.clear();
        for place in 0..self.steps[step].round().items.len() {
            let item = &self.steps[step].round().items[place];
            let (index, has_started) = (item.index, item.started.is_some());
            match item.state {
                ItemState::Ended(_) => continue,
                ItemState::Calling { .. } | ItemState::InLine { .. } => {
                    self.act(Action::Abort(StepKey { step, index, iteration }));
                }
                ItemState::Waiting | ItemState::Parked { .. } | ItemState::InDoubt(_) | ItemState::Suspect => {}
            }
            let cut = self.cut_attempt(step, place, end, now);
            if has_started {
                self.emit_end(step, index, end, None);
            }
            self.set_state(step, place, ItemState::Ended(Box::new(end.clone())));
            let round = self.steps[step].round_mut();
            round.items[place].attempts.extend(cut);
            round.items[place].ended = has_started.then_some(now);
            round.unfinished -= 1;
            self.write_item_end(step, place, end, now);
        }
    }

    /// A call that is cut off is written down as one attempt: nobody waits for its own account of what was sent by then.
    fn cut_attempt(&self, step: usize, place: usize, end: &End, now: Timestamp) -> Option<AttemptRecord> {
        let ItemState::Calling { since, .. } = self.steps[step].round().items[place].state else { return None };
        Some(AttemptRecord {
            started_ms: self.unix_ms(since),
            duration_ms: milliseconds(now, since),
            status: None,
            error_code: end.error.as_ref().map(|error| error.error_code.as_str().to_owned()),
            retry_after: None,
        })
    }

    /// What the items of a `map` come to.
    fn joined(&self, step: usize) -> End {
        if let Some(goal) = self.goal(step) {
            return self.joined_by_goal(step, goal);
        }
        let items = &self.steps[step].round().items;
        let ends: Vec<&End> = items.iter().filter_map(Item::end).collect();
        let is_all = |map: &Mapping| map.join == Join::All;
        let best_effort = !self.workflow.steps[step].map.as_ref().is_some_and(is_all);
        let failed: Vec<&End> = ends.iter().copied().filter(|end| end.status == StepStatus::Failed).collect();
        if let Some(first) = failed.first().filter(|_| !best_effort) {
            let error = first.error.clone().map(|error| error.with_detail("failed_items", failed.len()));
            return End { error, ..(*first).clone() };
        }
        if let Some(cut) = ends.iter().copied().find(|end| was_cut(end)) {
            return cut.clone();
        }
        let list: Vec<Json> = ends.iter().map(|end| end.output.clone().unwrap_or_default()).collect();
        let mut end = End::succeeded(Json::Array(list));
        let replaced: Vec<&End> = ends.iter().copied().filter(|end| end.cause.is_some()).collect();
        if let Some(first) = replaced.first() {
            // One word for all where one fits all and each has something in its place.
            let word = first.degraded.as_ref().map(|degraded| degraded.action.as_str());
            let is_alike = |end: &&End| {
                let own = end.degraded.as_ref().map(|degraded| degraded.action.as_str());
                end.status == StepStatus::Degraded && end.output.is_some() && own == word
            };
            let action = word.filter(|_| replaced.iter().all(is_alike)).unwrap_or("partial");
            end.degraded = first.cause.map(|cause| Degradation { cause, action: action.to_owned() });
            end.status = StepStatus::Degraded;
            end.cause = first.cause;
        }
        end
    }

    /// The outputs of those that succeeded, in the place of each; that others did not is no degradation. Too few are a failure
    /// of the first one's kind, that tells how many were needed and what became of the others.
    fn joined_by_goal(&self, step: usize, goal: u32) -> End {
        let round = self.steps[step].round();
        let ends = || round.items.iter().filter_map(Item::end);
        if round.succeeded >= goal {
            let good = |end: &End| end.output.clone().filter(|_| end.status == StepStatus::Succeeded);
            return End::succeeded(ends().map(|end| good(end).unwrap_or_default()).collect());
        }
        if self.culprit.is_some()
            && let Some(cut) = ends().find(|end| was_cut(end))
        {
            return cut.clone();
        }
        let failed = || {
            round.items.iter().filter_map(|item| {
                Some((item, item.end().filter(|end| end.status == StepStatus::Failed)?.error.as_ref()?))
            })
        };
        let first = ends().find_map(|end| end.cause.zip(end.error.clone()));
        let (cause, envelope) = if let Some((cause, mut envelope)) = first {
            let (succeeded, items) = (round.succeeded, round.items.len());
            let said = format!("{succeeded} of {items} items succeeded, {goal} must; the first that did not: ");
            envelope.message.insert_str(0, &said);
            let errors: Vec<Json> =
                failed().take(ITEM_ERRORS_MAX).map(|(item, error)| item_error(item, error)).collect();
            let envelope = envelope.with_detail("failed_items", failed().count());
            (cause, envelope.with_detail("item_errors", errors))
        } else {
            let message = format!("{goal} items must succeed, but there are only {}", round.items.len());
            (Cause::Error, self.own_envelope(ErrorCode::InvalidRequest, &message))
        };
        let envelope = envelope.with_detail("succeeded_items", round.succeeded).with_detail("needed_items", goal);
        self.end_for(step, &Failure::of(cause, envelope))
    }

    /// A step is over, for this iteration at least.
    pub(super) fn finish_round(&mut self, step: usize, end: End, now: Timestamp) {
        self.write_round_end(step, &end, now);
        let (end, review) = self.judged(step, end);
        let decision = self.loop_decision(step, &end, review);
        let round = self.steps[step].round();
        let never_began = round.items.iter().all(|item| item.started.is_none());
        if !(end.status == StepStatus::Cancelled && never_began) {
            self.emit_end(step, None, &end, decision.data());
        }
        let failed = (end.status == StepStatus::Failed).then(|| end.error.clone());
        // Once for the record, once for expressions.
        self.note_output(&end, 2);
        let round = self.steps[step].round_mut();
        round.opened.get_or_insert(now);
        round.value = from_json(end.output.as_ref().unwrap_or(&Json::Null));
        round.end = Some(end);
        self.unsettled = true;
        self.follow(step, decision, now);
        if let Some(error) = failed {
            self.fail_because_of(step, error, now);
        }
    }

    /// Counts an output that is held so many times.
    fn note_output(&mut self, end: &End, times: u64) {
        let bytes = end.output.as_ref().map_or(0, weight::of_value) as u64;
        self.output_bytes = self.output_bytes.saturating_add(bytes.saturating_mul(times));
    }

    /// Ends a step that is under way, whatever its items do.
    pub(super) fn cut_round(&mut self, step: usize, end: &End, now: Timestamp) {
        if self.mode == Mode::Restoring {
            return;
        }
        self.cut_items(step, end, now);
        if self.workflow.steps[step].map.is_some() {
            self.emit_end(step, None, end, None);
        }
        self.steps[step].round_mut().end = Some(end.clone());
    }

    /// The run will fail. What is under way is let finish, so that nothing paid for is lost; nothing new starts.
    fn fail_because_of(&mut self, step: usize, error: Option<Envelope>, now: Timestamp) {
        if self.culprit.is_some() {
            return;
        }
        let envelope = error.unwrap_or_else(|| self.own_envelope(ErrorCode::Internal, "failed without a reason"));
        self.culprit = Some(Culprit { step, envelope: envelope.with_detail("step", self.workflow.steps[step].id()) });
        self.cut_everything_idle(now);
    }

    /// Ends, as collateral of the step that fails the run, whatever is in no call.
    pub(super) fn cut_everything_idle(&mut self, now: Timestamp) {
        if self.mode == Mode::Restoring {
            return;
        }
        let collateral = End::cancelled(None, self.collateral());
        for other in 0..self.steps.len() {
            if self.steps[other].round().end.is_none() {
                self.cut_idle_items(other, &collateral, now);
            }
        }
    }

    /// Ends the items of a step that are in no call.
    fn cut_idle_items(&mut self, step: usize, end: &End, now: Timestamp) {
        let iteration = self.steps[step].iteration();
        let places = 0..self.steps[step].round().items.len();
        let idle: Vec<usize> = places
            .filter(|place| {
                let state = &self.steps[step].round().items[*place].state;
                !matches!(state, ItemState::Calling { .. } | ItemState::Ended(_))
            })
            .collect();
        self.steps[step].round_mut().waiting.clear();
        for place in idle {
            let item = &self.steps[step].round().items[place];
            let key = StepKey { step, index: item.index, iteration };
            if matches!(item.state, ItemState::InLine { .. }) {
                self.act(Action::Abort(key));
            }
            self.end_item(step, place, end.clone(), now);
        }
    }

    /// The error of what could not run because another step failed.
    pub(super) fn collateral(&self) -> Envelope {
        let culprit = self.culprit.as_ref().map_or("", |culprit| self.workflow.steps[culprit.step].id());
        let message = format!("not run to its end because step {culprit:?} failed");
        self.own_envelope(ErrorCode::Cancelled, &message).with_detail("culprit", culprit)
    }

    pub(super) fn own_envelope(&self, code: ErrorCode, message: &str) -> Envelope {
        self.of_this_run(Envelope::new(code, message))
    }

    /// An error of this run, by its id and trace.
    pub(super) fn of_this_run(&self, mut envelope: Envelope) -> Envelope {
        envelope.run_id.get_or_insert_with(|| self.run_id.clone());
        envelope.trace_id = envelope.trace_id.or_else(|| self.trace_id.clone());
        envelope
    }

    /// The events of an end, in their order: what was degraded, then that it is over.
    fn emit_end(&mut self, step: usize, index: Option<u32>, end: &End, revise: Option<Json>) {
        let error_code = end.error.as_ref().map(|error| error.error_code);
        if let Some(degraded) = &end.degraded {
            let data = json!({ "cause": degraded.cause, "action": degraded.action, "error_code": error_code });
            self.emit_step(EventType::StepDegraded, step, index, data);
        }
        if end.status == StepStatus::Skipped {
            let why = end.cause.map_or("when", Cause::as_str);
            return self.emit_step(EventType::StepSkipped, step, index, json!({ "why": why }));
        }
        let bytes = end.output.as_ref().map(json_bytes);
        let reused = (self.mode == Mode::Seeding).then_some(true);
        let mut data = json!({ "status": end.status, "output_bytes": bytes, "error": end.error, "reused": reused });
        if let (Some(revise), Some(fields)) = (revise, data.as_object_mut()) {
            fields.insert("revise".to_owned(), revise);
        }
        self.emit_step(EventType::StepFinished, step, index, data);
    }
}

/// By something else than its own call or time.
fn was_cut(end: &End) -> bool {
    end.status == StepStatus::Cancelled && end.cause.is_none()
}
