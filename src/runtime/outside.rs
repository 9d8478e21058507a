//! Guards around work that the runtime does not do itself: take everything that a call needs, do the work, say how it ended. The same
//! gates, slots and judge as for the runtime's own calls; no retries, which are the work's own business.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep, sleep_until};

use super::{
    adaptive::Told,
    attempt_cut::{cut_between, cut_failure},
    call::{CallContext, CallError},
    call_record::{Caller, OutsideWork, logged_work},
    fallback::Admitted,
    handle::AgentHandle,
    line::Targets,
    permit::Permit,
    ports::{AttemptRequest, Backend, BoxFuture, Progress},
    shielded::shielded,
    spending::Spending,
    spent::is_unpaid,
    supervisor::{Facts, SupervisorMessage},
};
use crate::{
    model::{
        clock::Timestamp,
        facts::{Ending, TimeoutKind},
        reply::{AttemptFailure, Reply, SIDE_TOKENS_MAX, Usage},
    },
    policy::{retry, verdict::with_far_reset},
};

/// No sleep is longer: a threshold that never comes.
const AGE_MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// What an admitted piece of work holds. Dropping it without a word is a cancel: neutral, unless it had run past the slow threshold without
/// any content.
pub struct Admission {
    permit: Option<Permit>,
    started: Timestamp,
    /// When the caller's own patience ends.
    deadline: Option<Timestamp>,
    /// What the work took so far; what its caller takes between two parts of it is not in it.
    worked: Duration,
    /// Since when the work is waited for, if it is.
    waiting_since: Option<Timestamp>,
    /// What the work took to its first content: whoever leaves after it leaves nobody who is silent.
    first_content: Option<Duration>,
    status: Option<u16>,
    aged: bool,
    /// What it said that it used.
    usage: Option<Usage>,
    /// So many tokens of its answer came at least, by what was seen of it.
    heard: u64,
    caller: Caller,
}

/// A part of a piece of work that is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// All of it, or all that must be there before anything can be handed on: bounded by the attempt's timeout.
    Head,
    /// The next piece of what is handed on as it comes: bounded by the stall timeout, or the attempt's where that is shorter. However many
    /// pieces there are, they may take any time together.
    Piece,
}

impl std::fmt::Debug for Admission {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Admission").field("started", &self.started).finish_non_exhaustive()
    }
}

impl AgentHandle {
    /// Takes everything that a call of this agent needs, for work outside. Refused at once if any guard refuses.
    pub fn enter(&self, context: &CallContext) -> Result<Admission, CallError> {
        self.admit(context)
            .map(|permit| self.admission(permit, context))
            .map_err(|refusal| self.refused(&refusal, context))
    }

    /// The same for work that may wait: where a line is configured it stands there, among all others and by the same rules, for a slot
    /// or for a model that is being loaded. It is done at the agent's own target only. Dropping the future leaves the line.
    pub async fn enter_in_line(&self, context: &CallContext) -> Result<Admission, CallError> {
        let permit = match self.admit(context) {
            Ok(permit) => Ok(permit),
            Err(refusal) => self.line_up(Targets::Own, context, refusal).await.map(Admitted::into_permit),
        };
        permit.map(|permit| self.admission(permit, context)).map_err(|refusal| self.refused(&refusal, context))
    }

    fn admission(&self, permit: Permit, context: &CallContext) -> Admission {
        let started = self.shared.now();
        let impatient = context.timeout.map(|timeout| started.after(timeout));
        Admission {
            permit: Some(permit),
            started,
            deadline: context.deadline.into_iter().chain(impatient).min(),
            worked: Duration::ZERO,
            waiting_since: Some(started),
            first_content: None,
            status: None,
            aged: false,
            usage: None,
            heard: 0,
            caller: Caller::of(context),
        }
    }

    /// Whether a budget or a price makes the size of a call matter: then its context should say what is asked.
    pub fn asks_for_size(&self) -> bool {
        self.shared.tokens.is_asked()
    }

    /// How long a piece of work may run before it is slow.
    pub fn slow_call(&self) -> Duration {
        self.agent.settings.breaker.slow_call
    }
}

impl Admission {
    /// Waits for a part of the work. It is cut by the agent's timeout, or by the caller's deadline if that comes first, which says nothing
    /// of the agent. Once waited for so, the work's time goes on only while somebody waits here.
    pub async fn wait_for<T>(
        &mut self,
        part: Part,
        work: impl Future<Output = Result<T, AttemptFailure>>,
    ) -> Result<T, AttemptFailure> {
        let Some(permit) = &self.permit else { return work.await };
        let slow_call = permit.agent.settings.breaker.slow_call;
        let now = permit.shared.now();
        self.waiting_since.get_or_insert(now);
        let (limit, cut_ending) = self.limit_of(part, now);
        let cut = sleep(limit);
        // Exactly the threshold is not slow yet.
        let age = slow_call.saturating_add(Duration::from_millis(1)).saturating_sub(self.took(now));
        let age = sleep_until(Instant::now() + age.min(AGE_MAX));
        tokio::pin!(work, cut, age);
        let mut may_grow_old = !self.aged && self.first_content.is_none();
        let result = loop {
            tokio::select! {
                biased;
                result = &mut work => break result,
                () = &mut cut => break Err(match part {
                    Part::Head => cut_failure(cut_ending, limit),
                    Part::Piece => cut_between(cut_ending, limit),
                }),
                () = &mut age, if may_grow_old => {
                    may_grow_old = false;
                    self.grow_old();
                }
            }
        };
        self.pause();
        result
    }

    /// How long a part may take, and how it ends if it takes longer.
    fn limit_of(&self, part: Part, now: Timestamp) -> (Duration, Ending) {
        let Some(permit) = &self.permit else { return (Duration::ZERO, Ending::Internal) };
        let timeouts = permit.agent.settings.timeouts;
        let left = self.deadline.map(|deadline| deadline.since(now));
        match part {
            Part::Head => {
                let took = self.took(now);
                let attempt = timeouts.attempt.map(|attempt| attempt.saturating_sub(took));
                retry::cut(attempt, timeouts.call.saturating_sub(took), left)
            }
            Part::Piece => {
                let whole = timeouts.attempt.unwrap_or(timeouts.call);
                let idle = timeouts.stall.map_or(whole, |stall| stall.min(whole));
                match left {
                    Some(left) if left < idle => (left, Ending::DeadlineCut),
                    _ => (idle, Ending::Timeout { timeout: TimeoutKind::Stall }),
                }
            }
        }
    }

    /// Nobody waits for the work now: the caller is at its turn.
    fn pause(&mut self) {
        let now = self.permit.as_ref().map(|permit| permit.shared.now());
        if let (Some(since), Some(now)) = (self.waiting_since.take(), now) {
            self.worked += now.since(since);
        }
    }

    /// What the work took by now.
    fn took(&self, now: Timestamp) -> Duration {
        self.worked + self.waiting_since.map_or(Duration::ZERO, |since| now.since(since))
    }

    /// Work that hands on what it has as it comes is as slow as its beginning; other work as all of it.
    fn is_slow(&self, slow_call: Duration, now: Timestamp) -> bool {
        self.first_content.unwrap_or_else(|| self.took(now)) > slow_call
    }

    /// The work is still under way and past the slow threshold: it counts as slow from now on, unless it has content already.
    pub fn grow_old(&mut self) {
        let Some(permit) = self.permit.as_ref().filter(|_| !self.aged) else { return };
        let (now, slow_call) = (permit.shared.now(), permit.agent.settings.breaker.slow_call);
        if !self.is_slow(slow_call, now) {
            return;
        }
        self.aged = true;
        let Some(permit) = &mut self.permit else { return };
        permit.aged = true;
        let message = SupervisorMessage::Aged { agent: permit.agent.index, passes: permit.passes, at: now };
        permit.shared.supervisor.cast(message);
    }

    /// Something of what was asked for has come.
    pub fn content(&mut self) {
        if let Some(now) = self.permit.as_ref().map(|permit| permit.shared.now()) {
            let took = self.took(now);
            self.first_content.get_or_insert(took);
            self.flow(now);
        }
    }

    /// A trial whose answer began in time and still flows after as long as a slow one takes has done well: nobody waits for its end, which
    /// may be hours away.
    fn flow(&mut self, now: Timestamp) {
        let Some(permit) = self.permit.as_ref().filter(|permit| permit.passes.any_trial()) else { return };
        let breaker = &permit.agent.settings.breaker;
        let shown_after = breaker.trial_timeout.map_or(breaker.slow_call, |timeout| breaker.slow_call.min(timeout / 2));
        if now.since(self.started) <= shown_after || self.is_slow(breaker.slow_call, now) {
            return;
        }
        let Some(permit) = &mut self.permit else { return };
        let message = SupervisorMessage::Flows { agent: permit.agent.index, passes: permit.passes, at: now };
        permit.shared.supervisor.cast(message);
        permit.passes.end_trials();
    }

    /// It answered with this status.
    pub fn answered(&mut self, status: u16) {
        self.status = Some(status);
    }

    /// It used so much, by its own word. What is never told counts as it was reserved, if it was no error.
    pub fn used(&mut self, usage: Usage) {
        self.usage = Some(usage.at_most(SIDE_TOKENS_MAX));
    }

    /// So many tokens of its answer have come by now, at least: where they are more than were reserved and nobody tells, they count.
    pub fn heard(&mut self, output_tokens: u64) {
        self.heard = output_tokens.min(SIDE_TOKENS_MAX);
    }

    /// The work ended like this.
    pub fn finish(mut self, ending: Ending) {
        self.settle(ending, None);
    }

    /// The work failed.
    pub fn fail(mut self, failure: &AttemptFailure) {
        self.settle(failure.ending.clone(), failure.retry_after);
    }

    fn settle(&mut self, ending: Ending, retry_after: Option<Duration>) {
        let Some(mut permit) = self.permit.take() else { return };
        let (shared, agent) = (Arc::clone(&permit.shared), Arc::clone(&permit.agent));
        let settings = &agent.settings;
        let ending = with_far_reset(ending, retry_after, settings.retry.retry_wait_max);
        let at = shared.now_or(self.started);
        let slow = self.is_slow(settings.breaker.slow_call, at);
        let took = self.took(at);
        let usage = spent_outside(permit.spending.take(), (self.usage, self.heard), &ending, took);
        let told = match &agent.provider.adaptive {
            Some(_) => vec![Told::of_work(&ending, self.started, self.started.after(took))],
            None => Vec::new(),
        };
        let logged = shared.call_log.is_some().then(|| ending.clone());
        let facts = Facts { agent: agent.index, ending, slow, told, at, permit: permit.hand_over() };
        // While the supervisor is being restarted, dropping the message gives everything back.
        shared.supervisor.cast(SupervisorMessage::Outcome(Box::new(facts)));
        if let (Some(log), Some(ending)) = (&shared.call_log, &logged) {
            let work = OutsideWork { started: self.started, took, status: self.status, usage, ending };
            // This may be a drop, and whoever keeps the log is somebody else.
            shielded(|| log.finished(logged_work(&shared, &agent, &work, &self.caller)));
        }
    }
}

/// Settles the tokens of a piece of work: by its own word, else as they were reserved if it may have used any, and no less than was seen.
fn spent_outside(
    spending: Option<Box<Spending>>,
    (told, heard): (Option<Usage>, u64),
    ending: &Ending,
    took: Duration,
) -> Option<Usage> {
    let Some(mut spending) = spending else { return told };
    if let Some(usage) = told {
        return Some(spending.settle_told(usage, took));
    }
    if is_unpaid(ending) {
        return None;
    }
    spending.sent();
    spending.lose(heard, took)
}

impl Drop for Admission {
    fn drop(&mut self) {
        let Some(permit) = &self.permit else { return };
        let slow_call = permit.agent.settings.breaker.slow_call;
        let is_hung = self.first_content.is_none() && self.took(permit.shared.now_or(self.started)) > slow_call;
        self.settle(Ending::Cancelled { slow_without_content: is_hung }, None);
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
