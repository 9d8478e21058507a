//! What becomes of a refusal or failure: wait, ask a rung of the agent's ladder, go on without, go on with the default, or fail. The author's word first, then
//! whether the step is optional, then what its cause allows. Only what was refused by us and never sent is asked for again.

use std::{fmt::Write as _, time::Duration};

use serde_json::json;

use super::{
    action::{Action, Ask, CallDone, CallFailed, CallRequest, GateLook, Gates, Instead, Resend},
    ahead::PARKED_MIN,
    run_plan::RunPlan,
    state::{End, ItemState},
    why::AGENT_GONE,
};
use crate::{
    model::{
        clock::Timestamp,
        envelope::{Envelope, ErrorCode},
        event::EventType,
        reply::Usage,
        run::{AttemptRecord, Cause, Degradation, RefusalRecord, StepStatus},
    },
    policy::ladder::{Rung, cause_of},
    workflow::definition::{OUTPUT_BYTES_MAX, OnCause},
};

/// The most refusals that the record of one call keeps.
pub(super) const REFUSALS_MAX: usize = 100;

/// A refusal or failure with its cause.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Failure {
    pub(super) cause: Cause,
    pub(super) envelope: Envelope,
}

impl Failure {
    pub(super) fn of(cause: Cause, envelope: Envelope) -> Self {
        Self { cause, envelope }
    }
}

impl RunPlan {
    /// Takes up the answer to a call.
    pub(super) fn settle_reply(
        &mut self,
        step: usize,
        place: usize,
        result: Result<CallDone, CallFailed>,
        now: Timestamp,
        gates: &dyn Gates,
    ) {
        match result {
            Ok(done) => {
                self.note_usage(step, place, done.usage);
                self.note_attempts(step, place, done.attempts);
                let bytes = json_bytes(&done.output);
                if bytes > OUTPUT_BYTES_MAX {
                    let message = format!("an output of {bytes} bytes is over the limit of {OUTPUT_BYTES_MAX}");
                    let envelope = Envelope::new(ErrorCode::AgentBadReply, message)
                        .with_agent(self.workflow.steps[step].agent.as_str());
                    return self.settle_item(step, place, &Failure::of(Cause::Error, envelope), now);
                }
                let end = match done.instead {
                    None => End::succeeded(done.output),
                    Some(instead) => self.end_instead(*instead, done.output),
                };
                self.end_item(step, place, end, now);
            }
            Err(failed) => {
                self.note_usage(step, place, failed.usage);
                self.note_attempts(step, place, failed.attempts);
                let failure = Failure::of(cause_of(failed.envelope.error_code), failed.envelope);
                match failed.resend {
                    // The rung that stood in for it has failed too: what it stood in for is what counts.
                    _ if self.was_asked_instead(step, place) => self.settle_item(step, place, &failure, now),
                    resend @ (Resend::Allowed | Resend::WhenBack) => {
                        self.settle_refusal((step, place), &failure, resend, now, gates);
                    }
                    Resend::Never => self.settle_item(step, place, &failure, now),
                }
            }
        }
    }

    /// A refusal of our own: noted, and waited out where that is what the step does. Joining the line is no refusal.
    fn settle_refusal(
        &mut self,
        (step, place): (usize, usize),
        failure: &Failure,
        resend: Resend,
        now: Timestamp,
        gates: &dyn Gates,
    ) {
        let waits = self.workflow.steps[step].on(failure.cause) == OnCause::Wait;
        if waits && self.culprit.is_none() && failure.cause == Cause::BulkheadFull && self.line_up(step, place, now) {
            return;
        }
        let at_ms = self.unix_ms(now);
        let item = &mut self.steps[step].round_mut().items[place];
        let index = item.index;
        let envelope = &failure.envelope;
        // Of a long row the first ones and the latest are kept.
        item.refusals.truncate(REFUSALS_MAX - 1);
        item.refusals.push(RefusalRecord {
            at_ms,
            error_code: envelope.error_code.as_str().to_owned(),
            retry_after: envelope.retry_after,
        });
        let data = json!({ "error_code": envelope.error_code, "retry_after": envelope.retry_after });
        self.emit_step(EventType::StepRefused, step, index, data);
        if self.culprit.is_some() {
            let error = self.collateral();
            return self.end_item(step, place, End::cancelled(None, error), now);
        }
        let parks = match resend {
            Resend::WhenBack => self.park_until_back(step, place),
            _ => waits && self.park(step, place, failure, now, gates),
        };
        if !parks {
            self.settle_item(step, place, failure, now);
        }
    }

    /// Asks for a place in the line; false if it stands there already and is sent away.
    fn line_up(&mut self, step: usize, place: usize, now: Timestamp) -> bool {
        let stands_there = matches!(self.steps[step].round().items[place].state, ItemState::InLine { .. });
        let Some(request) = self.request_of(step, place).filter(|_| !stands_there) else { return false };
        self.set_state(step, place, ItemState::InLine { since: now });
        self.act(Action::Line(request));
        true
    }

    /// Parks; false if waiting is no way out.
    fn park(&mut self, step: usize, place: usize, failure: &Failure, now: Timestamp, gates: &dyn Gates) -> bool {
        if !failure.envelope.retryable || failure.cause == Cause::BulkheadFull {
            return false;
        }
        let told = failure.envelope.retry_after.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        let mut until = Some(now.after(told.unwrap_or(PARKED_MIN).max(PARKED_MIN)));
        if told.is_none()
            && failure.cause == Cause::CircuitOpen
            && let GateLook::Refuses { until: shut_until, .. } = gates.look(&self.workflow.steps[step].agent)
        {
            until = shut_until.map(|shut_until| shut_until.max(now.after(PARKED_MIN)));
        }
        if until.is_some_and(|until| until >= self.deadline) {
            return false;
        }
        let reason = failure.envelope.details.get("reason").and_then(|reason| reason.as_str());
        let reason = reason.unwrap_or(failure.cause.as_str()).to_owned();
        self.set_state(step, place, ItemState::Parked { until, cause: failure.cause, reason });
        true
    }

    /// Parks until its agent is back, or the run's deadline; false if the step does without the agent.
    fn park_until_back(&mut self, step: usize, place: usize) -> bool {
        let fails = self.workflow.steps[step].on(Cause::Error) == OnCause::Fail;
        if !fails || self.has_version_to_fall_back_on(step) {
            return false;
        }
        let state = ItemState::Parked { until: None, cause: Cause::Error, reason: AGENT_GONE.to_owned() };
        self.set_state(step, place, state);
        true
    }

    /// Ends an item by what its step does with this failure, waiting excepted; or has a rung of the agent's ladder asked first.
    pub(super) fn settle_item(&mut self, step: usize, place: usize, failure: &Failure, now: Timestamp) {
        if self.ask_instead(step, place, failure, now) {
            return;
        }
        let first = self.steps[step].round_mut().items[place].instead_of.take();
        let end = match first {
            None => self.end_for(step, failure),
            Some(first) => {
                // The list of what was tried, where whoever asked the rung brought one.
                let own =
                    || json!([{ "error_code": failure.envelope.error_code, "message": failure.envelope.message }]);
                let tried = failure.envelope.details.get("tries").cloned().unwrap_or_else(own);
                let envelope = first.envelope.with_detail("tries", tried);
                self.end_for(step, &Failure::of(first.cause, envelope))
            }
        };
        self.end_item(step, place, end, now);
    }

    /// Ends a step that has no items by what it does with this failure, waiting excepted.
    pub(super) fn settle_step(&mut self, step: usize, failure: &Failure, now: Timestamp) {
        let end = self.end_for(step, failure);
        self.finish_round(step, end, now);
    }

    /// Whether a rung of the ladder was asked for this item.
    fn was_asked_instead(&self, step: usize, place: usize) -> bool {
        self.steps[step].round().items[place].instead_of.is_some()
    }

    /// Has a rung asked, where that is what the step does with this failure and it was not asked yet. False if there is nothing to ask.
    fn ask_instead(&mut self, step: usize, place: usize, failure: &Failure, now: Timestamp) -> bool {
        let Some(rung) = self.workflow.steps[step].on(failure.cause).rung() else { return false };
        let over = self.culprit.is_some() || now >= self.deadline;
        if over || self.was_asked_instead(step, place) || self.has_version_to_fall_back_on(step) {
            return false;
        }
        let Some(request) = self.request_of(step, place) else { return false };
        if self.is_held_back {
            // The node is about to go: whoever takes the run over makes the call again, and asks the rung if need be.
            self.set_state(step, place, ItemState::Waiting);
            self.steps[step].round_mut().waiting.push_back(place);
            return true;
        }
        let (cause, error) = (failure.cause, failure.envelope.clone());
        let item = &mut self.steps[step].round_mut().items[place];
        item.instead_of = Some(failure.clone());
        let until = self.call_until(step, now);
        self.set_state(step, place, ItemState::Calling { since: now, until });
        let ask = Ask::Instead(Box::new(Instead { rung, cause, error }));
        self.act(Action::Call(CallRequest { ask, ..request }));
        true
    }

    /// The end of a call that a rung answered in its agent's stead.
    fn end_instead(&self, instead: Instead, output: serde_json::Value) -> End {
        let Instead { rung, cause, error } = instead;
        let error = self.of_this_run(error);
        // What is made later has no output yet.
        let output = (rung != Rung::Deferred).then_some(output);
        let degraded = Some(Degradation { cause, action: rung.as_str().to_owned() });
        End { status: StepStatus::Degraded, output, error: Some(error), cause: Some(cause), degraded }
    }

    pub(super) fn end_for(&self, step: usize, failure: &Failure) -> End {
        let definition = &self.workflow.steps[step];
        let envelope = self.of_this_run(failure.envelope.clone());
        let action = match definition.on(failure.cause) {
            // Once there is a version to fall back on, it is better than any default.
            _ if self.has_version_to_fall_back_on(step) => OnCause::Fail,
            OnCause::Wait | OnCause::Lighter | OnCause::Deferred => definition.instead_of_waiting(),
            stated => stated,
        };
        let cause = failure.cause;
        let degraded = |what: OnCause| Some(Degradation { cause, action: what.as_str().to_owned() });
        let (status, output, degraded) = match action {
            OnCause::Skip => (StepStatus::Skipped, None, degraded(OnCause::Skip)),
            OnCause::Default => (StepStatus::Degraded, definition.default.clone(), degraded(OnCause::Default)),
            OnCause::Notice => (StepStatus::Degraded, None, degraded(OnCause::Notice)),
            OnCause::Fail | OnCause::Wait | OnCause::Lighter | OnCause::Deferred => (StepStatus::Failed, None, None),
        };
        End { status, output, error: Some(envelope), cause: Some(cause), degraded }
    }

    fn note_usage(&mut self, step: usize, place: usize, usage: Option<Usage>) {
        let Some(usage) = usage else { return };
        self.usage = self.usage.plus(usage);
        let item = &mut self.steps[step].round_mut().items[place];
        item.usage = Some(item.usage.unwrap_or_default().plus(usage));
    }

    fn note_attempts(&mut self, step: usize, place: usize, attempts: Vec<AttemptRecord>) {
        self.calls += u64::from(!attempts.is_empty());
        self.steps[step].round_mut().items[place].attempts.extend(attempts);
    }
}

/// The length of a value as JSON text, without making the text.
pub(super) fn json_bytes(value: &serde_json::Value) -> usize {
    struct Counter(usize);
    impl std::fmt::Write for Counter {
        fn write_str(&mut self, text: &str) -> std::fmt::Result {
            self.0 += text.len();
            Ok(())
        }
    }
    let mut counter = Counter(0);
    // Counting cannot fail.
    let _ = write!(counter, "{value}");
    counter.0
}
