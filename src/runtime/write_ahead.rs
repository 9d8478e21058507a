//! Doing what a run's plan said only after it is durable, and the end of a run. Nothing is called, lined up or shown before what led
//! to it is written; without a journal both are the same moment.

use std::sync::Arc;

use super::{
    core::lock,
    journal::{DeadCause, DeadLetter, Entry},
    metric,
    orchestrator::OrchestratorActor,
    parked::ParkedAt,
    run_call,
    run_cell::{Deferred, RunCell, RunInner},
    run_log::Sender,
    run_table::RunTable,
};
use crate::{
    model::{
        contract,
        envelope::{Envelope, ErrorCode},
        event::EventType,
        run::{RunRecord, RunStatus},
        weight,
    },
    policy::suspects::{BLAMES_MAX, DEATHS_MAX, Guilt, QUIET_FACTOR},
    workflow::plan::{
        action::{Action, CallRequest, StepKey},
        open::Doubt,
    },
};

impl OrchestratorActor {
    /// Ends a turn: what was said is handed to the journal, and what may be done by now is done.
    pub(crate) fn write_ahead(&self, run: &Arc<RunCell>, inner: &mut RunInner) {
        if !run.is_journaled() {
            return;
        }
        loop {
            self.send_turn(run, inner);
            let durable = run.log.durable();
            let is_ready = |next: &Deferred| next.batch.is_some_and(|batch| batch <= durable);
            let mut ready = Vec::new();
            // While the node stops nothing new is begun: it goes on after the restart.
            while !self.shared.holds_runs() && inner.deferred.front().is_some_and(is_ready) {
                ready.extend(inner.deferred.pop_front());
            }
            if ready.is_empty() {
                return;
            }
            run.log.begin_turn();
            for Deferred { action, .. } in ready {
                self.do_now(run, inner, action);
            }
        }
    }

    /// Puts off what must not be done before this turn is durable.
    pub(crate) fn defer(inner: &mut RunInner, action: Action) {
        inner.deferred.push_back(Deferred { batch: None, action });
    }

    /// Forgets what was put off for a call that is not wanted any more.
    pub(crate) fn forget_deferred(inner: &mut RunInner, key: StepKey) {
        inner.deferred.retain(|deferred| match &deferred.action {
            Action::Call(request) | Action::Line(request) => request.key != key,
            _ => true,
        });
    }

    fn send_turn(&self, run: &Arc<RunCell>, inner: &mut RunInner) {
        let has_work = inner.deferred.iter().any(|deferred| deferred.batch.is_none());
        let (cell, runs) = (Arc::clone(run), Arc::clone(&self.runs));
        let last = inner.last.clone();
        let mut said = std::mem::take(&mut inner.said);
        let sender = if has_work { Sender::TurnThatWaits } else { Sender::Turn };
        let batch = run.send(&self.shared, &self.runs, sender, Some(&mut said), move || {
            if let Some(record) = last {
                conclude(&runs, &cell, record);
            }
        });
        for deferred in &mut inner.deferred {
            deferred.batch.get_or_insert(batch);
        }
    }

    fn do_now(&self, run: &Arc<RunCell>, inner: &mut RunInner, action: Action) {
        let (key, refused) = match action {
            Action::Call(request) => (request.key, self.call(run, inner, &request).err()),
            Action::Line(request) => (request.key, self.join_line(run, &request).err()),
            _ => return,
        };
        let Some(failed) = refused else { return };
        let actions = self.tell_refused(inner, key, failed);
        self.perform(run, inner, actions);
    }

    pub(crate) fn finish(&self, run: &Arc<RunCell>, inner: &mut RunInner) {
        let record = inner.plan.record();
        for (_, abort) in inner.calls.drain() {
            abort.cancel();
        }
        if let Some(timer) = inner.wake.take() {
            timer.abort();
        }
        inner.deferred.clear();
        inner.parked = ParkedAt::default();
        self.leave_line_for_good(run);
        if run.is_journaled() {
            run.log.write(Entry::Finished(Box::new(record.clone())));
            inner.last = Some(record);
        } else {
            conclude(&self.runs, run, record);
        }
    }

    /// Ends a run whose plan is broken: what it says of itself may be wrong, so as little of it as possible is asked.
    pub(crate) fn fail(&self, run: &Arc<RunCell>, message: &str) {
        run.log.drop_unsent();
        lock(&run.inner).parked = ParkedAt::default();
        self.leave_line_for_good(run);
        run.ended.cancel();
        self.put_plan_aside(run, message);
        let recorded = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| lock(&run.inner).plan.record()));
        let Ok(mut record) = recorded else {
            tracing::error!(run = run.id, "a run's plan is broken beyond a record");
            run.let_go();
            self.runs.forget(&run.id);
            return;
        };
        let mut envelope = Envelope::new(ErrorCode::Internal, message);
        envelope.run_id = Some(run.id.clone());
        envelope.trace_id = contract::trace_id_of(run.context.traceparent.as_deref());
        let data = serde_json::json!({ "status": RunStatus::Failed, "error": envelope });
        run.append(&self.shared, EventType::RunFinished, None, data);
        record.status = RunStatus::Failed;
        record.error = Some(envelope);
        record.ended_ms = Some(self.shared.clock.unix_ms(self.shared.now()));
        if !run.is_journaled() {
            return conclude(&self.runs, run, record);
        }
        run.log.write(Entry::Finished(Box::new(record.clone())));
        let mut inner = lock(&run.inner);
        inner.deferred.clear();
        inner.last = Some(record);
        // From here on it is a run like any other that is over; its broken plan is not asked again.
        run.inner.clear_poison();
        self.send_turn(run, &mut inner);
    }

    /// Calls of a restored run that are not made again by themselves are put where an operator sees them: those that may have acted and
    /// must not act twice, and those with which the process died too often.
    pub(crate) fn put_doubtful_aside(&self, run: &RunCell, inner: &RunInner) {
        let Some(end) = &run.log.journal else { return };
        for (CallRequest { key, agent, input, .. }, doubt) in inner.plan.in_doubt() {
            let idempotency_key = run_call::idempotency_key(run, &inner.plan, key);
            let (cause, message) = why_in_doubt(doubt);
            if cause == DeadCause::KilledProcess {
                tracing::error!(run = run.id, %agent, "a call is put aside: {message}");
                metric::count(metric::DEAD_LETTERS, vec![metrics::Label::new("agent", agent.to_string())], 1);
            }
            end.journal.put_aside(DeadLetter {
                // The same after each restart, and one segment of a path.
                id: idempotency_key.replace('/', ":"),
                at_ms: self.shared.clock.unix_ms(self.shared.now()),
                cause,
                agent: agent.to_string(),
                run_id: Some(run.id.clone()),
                step: idempotency_key.split_once('/').map(|(_, step)| step.to_owned()),
                owner: run.owner.clone(),
                idempotency_key: Some(idempotency_key),
                input: (*input).clone(),
                message,
            });
        }
    }

    fn put_plan_aside(&self, run: &RunCell, message: &str) {
        let Some(end) = &run.log.journal else { return };
        end.journal.put_aside(DeadLetter {
            id: run.id.clone(),
            at_ms: self.shared.clock.unix_ms(self.shared.now()),
            cause: DeadCause::PlanPanicked,
            agent: String::new(),
            run_id: Some(run.id.clone()),
            step: None,
            owner: run.owner.clone(),
            idempotency_key: None,
            input: serde_json::Value::Null,
            message: message.to_owned(),
        });
    }
}

/// What an operator is told of a call that is not made again by itself.
fn why_in_doubt(doubt: Doubt) -> (DeadCause, String) {
    match doubt {
        Doubt::ActsOnce => {
            let message = "it was under way when the node stopped; whether it acted is unknown".to_owned();
            (DeadCause::InDoubt, message)
        }
        Doubt::Kills(guilt) => {
            let seen = match guilt {
                Guilt::Blamed => format!(
                    "the process died {BLAMES_MAX} times in a row while this call was tried alone among suspects, and lived \
                     {QUIET_FACTOR} times as long without it in between"
                ),
                Guilt::Deaths => format!("it was under way {DEATHS_MAX} times when the process died"),
            };
            (DeadCause::KilledProcess, format!("{seen}; it is not begun again by itself"))
        }
    }
}

/// A run is over and that may be seen.
fn conclude(runs: &RunTable, run: &Arc<RunCell>, record: RunRecord) {
    if run.final_record().is_some() {
        return;
    }
    let status = metrics::Label::from_static_parts("status", record.status.as_str());
    metric::count(metric::RUNS, vec![status], 1);
    for step in &record.steps {
        let status = metrics::Label::from_static_parts("status", step.status.as_str());
        metric::count(metric::STEPS, vec![status], 1);
    }
    // Before anybody shares it; whoever still reads it afterwards holds it for that long.
    let durable_bytes = run.is_journaled().then(|| weight::of_record(&record) + run.log.bytes());
    run.finish(record);
    runs.retire(&run.id, durable_bytes);
    // Its record is all that is asked for from now on. Whoever holds the lock lets go itself, or leaves it to the last handle.
    if run.is_journaled()
        && let Ok(mut inner) = run.inner.try_lock()
    {
        inner.plan.let_go();
        inner.last = None;
    }
}
