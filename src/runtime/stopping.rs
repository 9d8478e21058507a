//! What becomes of live runs when their node stops: those without a journal end, durable ones stand still and leave word of what was
//! not sent. When a node stops is not decided here.

use std::sync::{Arc, atomic::Ordering};

use tokio::sync::oneshot;

use super::{
    core::lock,
    orchestrator::OrchestratorActor,
    run_cell::{Deferred, RunCell, RunInner},
};
use crate::workflow::plan::action::Action;

impl OrchestratorActor {
    /// Ends every live run, as the last act of a runtime that stops: nobody is left who could move it further.
    pub(crate) fn end_all(&self) {
        for run in self.runs.live() {
            if run.is_journaled() {
                // It goes on after the restart. Who waits for it here is let go.
                run.let_go();
                continue;
            }
            let mut inner = lock(&run.inner);
            let actions = inner.plan.cancel(self.shared.now());
            self.perform(&run, &mut inner, actions);
        }
    }

    /// True if a durable run must not move here any more. While its node stops it only takes in what is under way.
    pub(crate) fn is_frozen(&self, inner: &mut RunInner) -> bool {
        if self.shared.holds_runs() {
            inner.plan.hold_back();
        }
        self.shared.aborting.is_cancelled() || self.shared.frozen.load(Ordering::Acquire)
    }

    /// Durable runs move no more: what was asked for and not sent is written down as such.
    pub(crate) fn leave_all_unsent(&self, done: oneshot::Sender<()>) {
        for run in self.oldest_first() {
            self.leave_unsent(&run);
        }
        // Who stops may be out of patience.
        let _ = done.send(());
    }

    /// What was put off, or stands in the line, is not begun here any more, and the next node must know that it was not sent.
    fn leave_unsent(&self, run: &Arc<RunCell>) {
        if !run.is_journaled() || run.final_record().is_some() || run.inner.is_poisoned() {
            return;
        }
        let mut inner = lock(&run.inner);
        let mut put_off = Vec::new();
        for Deferred { action, .. } in std::mem::take(&mut inner.deferred) {
            if let Action::Call(request) | Action::Line(request) = action {
                put_off.push(request.key);
            }
        }
        run.log.begin_turn();
        let said = inner.plan.leave_unsent(&put_off);
        self.perform(run, &mut inner, said);
        self.write_ahead(run, &mut inner);
    }
}
