//! Guards around work that the runtime does not do itself: take everything that a call needs, do the work, say how it ended. The same
//! gates, slots and judge as for the runtime's own calls; no retries, which are the work's own business.

use std::{sync::Arc, time::Duration};

use super::{
    adaptive::Told,
    call::{CallContext, CallError},
    call_record::{Caller, logged_work},
    handle::AgentHandle,
    permit::Permit,
    ports::{AttemptRequest, Backend, BoxFuture, Progress},
    shielded::shielded,
    supervisor::{Facts, SupervisorMessage},
};
use crate::model::{
    clock::Timestamp,
    facts::Ending,
    reply::{AttemptFailure, Reply},
};

/// What an admitted piece of work holds. Dropping it without a word is a cancel: neutral, unless it had run past the slow threshold without
/// any content.
pub struct Admission {
    permit: Option<Permit>,
    started: Timestamp,
    aged: bool,
    caller: Caller,
    /// Something of the answer has come: whoever leaves now leaves nobody who is silent.
    has_content: bool,
}

impl std::fmt::Debug for Admission {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Admission").field("started", &self.started).finish_non_exhaustive()
    }
}

impl AgentHandle {
    /// Takes everything that a call of this agent needs, for work outside. Refused at once if any guard refuses.
    pub fn enter(&self, context: &CallContext) -> Result<Admission, CallError> {
        let permit = self.admit(context).map_err(|refusal| self.refused(&refusal, context))?;
        Ok(Admission {
            started: self.shared.now(),
            permit: Some(permit),
            aged: false,
            caller: Caller::of(context),
            has_content: false,
        })
    }

    /// How long a piece of work may take at all.
    pub fn attempt_timeout(&self) -> Duration {
        let timeouts = self.agent.settings.timeouts;
        timeouts.attempt.unwrap_or(timeouts.call)
    }

    /// The longest that nothing may come of an answer that has begun.
    pub fn stall_timeout(&self) -> Option<Duration> {
        self.agent.settings.timeouts.stall
    }

    /// How long a piece of work may run before it is slow.
    pub fn slow_call(&self) -> Duration {
        self.agent.settings.breaker.slow_call
    }
}

impl Admission {
    /// The work is still under way and past the slow threshold: it counts as slow from now on.
    pub fn grow_old(&mut self) {
        let Some(permit) = self.permit.as_mut().filter(|_| !self.aged) else { return };
        self.aged = true;
        permit.aged = true;
        let message =
            SupervisorMessage::Aged { agent: permit.agent.index, passes: permit.passes, at: permit.shared.now() };
        permit.shared.supervisor.cast(message);
    }

    /// Something of what was asked for has come.
    pub fn content(&mut self) {
        self.has_content = true;
    }

    /// The work ended like this.
    pub fn finish(mut self, ending: Ending) {
        self.settle(ending);
    }

    fn settle(&mut self, ending: Ending) {
        let Some(mut permit) = self.permit.take() else { return };
        // Nobody tells what work outside used: it counts as it was reserved.
        if let Some(spending) = permit.spending.as_mut().filter(|_| ending.connected()) {
            spending.sent();
        }
        let shared = Arc::clone(&permit.shared);
        let at = shared.now_or(self.started);
        let logged = (Arc::clone(&permit.agent), ending.clone());
        let slow = at.since(self.started) > permit.agent.settings.breaker.slow_call;
        let told = match &permit.agent.provider.adaptive {
            Some(_) => vec![Told::of_work(&ending, self.started, at)],
            None => Vec::new(),
        };
        let facts = Facts { agent: permit.agent.index, ending, slow, told, at, permit: permit.hand_over() };
        // While the supervisor is being restarted, dropping the message gives everything back.
        shared.supervisor.cast(SupervisorMessage::Outcome(Box::new(facts)));
        if let Some(log) = &shared.call_log {
            let (agent, ending) = logged;
            // This may be a drop, and whoever keeps the log is somebody else.
            shielded(|| log.finished(logged_work(&shared, &agent, (self.started, at), &ending, &self.caller)));
        }
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        let Some(permit) = &self.permit else { return };
        let held = permit.shared.now_or(self.started).since(self.started);
        let slow_without_content = !self.has_content && held > permit.agent.settings.breaker.slow_call;
        self.settle(Ending::Cancelled { slow_without_content });
    }
}

/// The backend of an agent whose work is done outside: it has none to do itself.
#[derive(Debug, Clone, Copy)]
pub struct OutsideBackend;

impl Backend for OutsideBackend {
    fn attempt<'a>(
        &'a self,
        request: &'a AttemptRequest,
        _: &'a Progress,
    ) -> BoxFuture<'a, Result<Reply, AttemptFailure>> {
        let message = format!("agent {} guards work outside; it cannot be called", request.agent);
        Box::pin(std::future::ready(Err(AttemptFailure::new(Ending::CallerShape, message))))
    }
}
