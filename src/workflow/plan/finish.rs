//! Drawing consequences until nothing more follows, and the ends of a run. Every way out of a run goes through `end_run`.

use serde_json::{Value as Json, json};

use super::{
    action::{Action, Gates},
    record::milliseconds,
    run_plan::RunPlan,
    settle::json_bytes,
    start::invalid_expression,
    state::End,
};
use crate::{
    model::{
        clock::Timestamp,
        envelope::{Envelope, ErrorCode},
        event::EventType,
        run::{DegradedStep, RunStatus},
    },
    workflow::definition::OUTPUT_BYTES_MAX,
};

impl RunPlan {
    /// Starts what may start, ends what is over, says what the run waits for.
    pub(super) fn advance(&mut self, now: Timestamp, gates: &dyn Gates) {
        if !self.is_live() {
            return;
        }
        // What was answered at the last moment still counts; nothing more is begun.
        let is_late = now >= self.deadline;
        // Bounded: every turn but the last ends a round, and a workflow has only so many.
        loop {
            self.unsettled = false;
            if !is_late {
                self.open_rounds(now);
                self.start_items(now, gates);
            }
            if !self.unsettled {
                break;
            }
        }
        if self.culprit.is_none() && self.all_have_ended() {
            self.end_completed(now);
        } else if is_late {
            self.end_timed_out(now);
        } else if self.culprit.is_some() && self.totals.calling == 0 {
            self.end_failed(now);
        } else {
            self.say_what_it_waits_for(now);
        }
    }

    /// By the caller.
    pub(super) fn end_cancelled(&mut self, now: Timestamp) {
        let error = self.own_envelope(ErrorCode::Cancelled, "cancelled by the caller");
        self.cut_all(&End::cancelled(None, error.clone()), now);
        self.end_run(RunStatus::Cancelled, Some(error), now);
    }

    /// What was replaced or left out in what counts, and why.
    pub(super) fn degraded(&self) -> Vec<DegradedStep> {
        let mut list = Vec::new();
        for (step, definition) in self.workflow.steps.iter().enumerate() {
            let own = self.counting_round(step).end.as_ref().and_then(|end| end.degraded.as_ref());
            let of_loop = self.loops.iter().filter_map(|state| state.degraded.as_ref());
            let given_up = of_loop.filter(|(at, _)| *at == step).map(|(_, degraded)| degraded);
            list.extend(own.into_iter().chain(given_up).map(|degraded| DegradedStep {
                step: definition.id.to_string(),
                cause: degraded.cause,
                action: degraded.action.clone(),
            }));
        }
        list
    }

    fn all_have_ended(&self) -> bool {
        self.workflow.steps.iter().zip(&self.steps).all(|(definition, state)| match definition.in_loop {
            Some(found) => self.loops[found].result.is_some(),
            None => state.round().end.is_some(),
        })
    }

    fn end_completed(&mut self, now: Timestamp) {
        match self.workflow.output.evaluate(&self.output_context()) {
            Ok(output) if json_bytes(&output) <= OUTPUT_BYTES_MAX => {
                self.output = Some(output);
                let is_degraded = !self.degraded().is_empty();
                let status = if is_degraded { RunStatus::CompletedDegraded } else { RunStatus::Completed };
                self.end_run(status, None, now);
            }
            Ok(_) => {
                let message = format!("the output of workflow {} is over {OUTPUT_BYTES_MAX} bytes", self.workflow.name);
                let error = self.own_envelope(ErrorCode::InvalidRequest, &message);
                self.end_run(RunStatus::Failed, Some(error), now);
            }
            Err(error) => {
                let error = self.of_this_run(invalid_expression(&error));
                self.end_run(RunStatus::Failed, Some(error), now);
            }
        }
    }

    fn end_timed_out(&mut self, now: Timestamp) {
        let error = self.own_envelope(ErrorCode::DeadlineExceeded, "the deadline of the run passed");
        self.cut_all(&End::cancelled(None, error.clone()), now);
        self.end_run(RunStatus::TimedOut, Some(error), now);
    }

    fn end_failed(&mut self, now: Timestamp) {
        let error = self.culprit.as_ref().map(|culprit| culprit.envelope.clone());
        self.end_run(RunStatus::Failed, error, now);
    }

    /// Ends everything that is under way.
    fn cut_all(&mut self, end: &End, now: Timestamp) {
        for step in 0..self.steps.len() {
            let round = self.steps[step].round();
            if round.opened.is_some() && round.end.is_none() {
                self.cut_round(step, end, now);
            }
        }
    }

    fn end_run(&mut self, status: RunStatus, error: Option<Envelope>, now: Timestamp) {
        self.status = status;
        self.ended = Some(now);
        self.hold = None;
        let data = json!({
            "status": status,
            "duration_ms": milliseconds(now, self.created),
            "degraded": self.degraded(),
            "error": error,
        });
        self.error = error;
        self.emit(EventType::RunFinished, None, data);
        self.act(Action::Finished);
    }

    /// A live run is in a call, in a line or parked; anything else is a fault of ours and ends it rather than let it hang.
    fn say_what_it_waits_for(&mut self, now: Timestamp) {
        if self.is_held_back {
            return;
        }
        let moves = self.totals.calling + self.totals.in_line > 0;
        let parked = self.hold.is_some() || self.totals.parked > 0;
        if !moves && !parked {
            let error = self.own_envelope(ErrorCode::Internal, "the run has nothing left to wait for");
            self.cut_all(&End::cancelled(None, error.clone()), now);
            return self.end_run(RunStatus::Failed, Some(error), now);
        }
        match (self.status, moves) {
            (RunStatus::Running, false) => {
                self.status = RunStatus::Parked;
                let (step, data) = self.parked_data();
                self.emit(EventType::RunParked, step, data);
            }
            (RunStatus::Parked, true) => self.move_again(),
            _ => {}
        }
        self.ask_to_wake();
    }

    /// A parked run moves again; of one that moves already nothing is said.
    pub(super) fn move_again(&mut self) {
        if self.status == RunStatus::Parked {
            self.status = RunStatus::Running;
            self.emit(EventType::RunResumed, None, json!({}));
        }
    }

    /// Where a parked run waits: the gate that holds all of it, else the step that wakes first.
    fn parked_data(&self) -> (Option<usize>, Json) {
        let parked = self.first_parked();
        let data = json!({
            "wake_ms": parked.as_ref().and_then(|parked| parked.until).map(|until| self.unix_ms(until)),
            "agent": parked.as_ref().map(|parked| parked.agent.clone()),
            "reason": parked.as_ref().map(|parked| parked.reason.clone()),
        });
        (parked.map(|parked| parked.step), data)
    }
}
