//! The attempts of one call, in a task that belongs to no actor: retry by envelope, timeouts from the outside in, cancel to the socket,
//! ageing. It ends in two messages: the answer to the caller, the facts with the permit to the supervisor.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures_util::FutureExt;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{
    adaptive::Told,
    agent_actor::{InHand, Job, Leg, Turn},
    attempt_cut::{Patience, cancelled},
    attempt_request::{Watchers, attempt_request},
    call::{CallError, CallReply, CallRequest},
    call_record::{Caller, attempt_record},
    capture,
    core::{AgentCore, Shared, lock},
    dead_letters::{Killed, Killer},
    permit::Permit,
    ports::{AttemptRequest, Progress},
    promise::within_depth,
    refusal::Refusal,
    spending::Spending,
    spent::spent_unasked,
    supervisor::SupervisorMessage,
    warming::Sight,
};
use crate::{
    model::{
        clock::Timestamp,
        facts::Ending,
        reply::{AttemptFailure, Reply, Usage},
        run::AttemptRecord,
    },
    policy::{
        breaker::state::{GateView, PassKind},
        retry::{self, Failed, Next, Stop},
        slow::SlowBy,
        verdict::with_far_reset,
    },
};

mod beginning;
mod cold;
mod ending;

/// A pace is asked about again so often, once an attempt is past the slow threshold.
const PACE_QUESTION: Duration = Duration::from_secs(5);

/// Runs a call to its end, whatever happens in it.
pub(crate) async fn run(in_hand: InHand) {
    let Some(job) = in_hand.take_over() else { return };
    let Job { request, permit, reply, cancel, leg, .. } = *job;
    let mut call = Call::begin(permit, &request, leg, reply);
    let (mut request, watchers) = attempt_request(request, &call.agent.settings, &call.id, &call.permit.lease);
    let unwound = AssertUnwindSafe(call.drive(&mut request, watchers, &cancel)).catch_unwind().await;
    let (result, stop) = unwound.unwrap_or_else(|_| (Err(call.panicked(&request)), None));
    // It holds the slots too: whoever hears of the end finds them free.
    drop(request);
    call.finish(result, stop);
}

/// Where a call's answer goes.
type ReplyTo = tokio::sync::oneshot::Sender<Result<CallReply, CallError>>;

struct Call {
    shared: Arc<Shared>,
    agent: Arc<AgentCore>,
    permit: Permit,
    started: Timestamp,
    /// When our own patience with the agent ends.
    end: Timestamp,
    /// When the caller's or run's ends, if it has one.
    deadline: Option<Timestamp>,
    id: String,
    /// `None` where only one target can be asked.
    turn: Option<Turn>,
    caller: Caller,
    slow: bool,
    records: Vec<AttemptRecord>,
    /// When the attempt under way began.
    under_way: Option<Timestamp>,
    usage: Option<Usage>,
    /// Where a budget or a price concerns it.
    spending: Option<Box<Spending>>,
    /// In attempts, all together.
    spent: Duration,
    /// Something was passed on.
    committed: bool,
    bad_replies: u32,
    /// Attempts that a backend refused itself before it sent anything.
    own_refusals: u32,
    /// Why the attempt was not made that would have been the first one.
    refusal: Option<Refusal>,
    /// It killed twice: nobody is to try it again.
    killed: Killed,
    /// What attempts say about pressure, where their provider's limit learns from it.
    told: Vec<Told>,
    /// `None` once the caller was let go before the call's end.
    reply: Option<ReplyTo>,
    /// Its model, where that has to be loaded.
    sight: Option<Sight>,
    warmth: cold::Met,
}

type CallEnd = (Result<Reply, AttemptFailure>, Option<Stop>);

impl Call {
    fn begin(mut permit: Permit, request: &CallRequest, leg: Option<Leg>, reply: ReplyTo) -> Self {
        let (shared, agent) = (Arc::clone(&permit.shared), Arc::clone(&permit.agent));
        let spending = permit.spending.take();
        let started = shared.now();
        let turn = leg.as_ref().map(|leg| leg.turn);
        // A caller's own timeout is a deadline like any other: an impatient caller says nothing about the agent.
        let impatient = request.context.timeout.map(|timeout| started.after(timeout));
        Self {
            end: started.after(agent.settings.timeouts.call),
            deadline: request.context.deadline.into_iter().chain(impatient).min(),
            id: leg.map_or_else(|| shared.call_id(started), |leg| leg.call_id),
            turn,
            caller: Caller::of(&request.context),
            started,
            shared,
            agent,
            permit,
            slow: false,
            records: Vec::new(),
            under_way: None,
            usage: None,
            spending,
            spent: Duration::ZERO,
            committed: false,
            bad_replies: 0,
            own_refusals: 0,
            refusal: None,
            killed: Killed::Once,
            told: Vec::new(),
            reply: Some(reply),
            sight: None,
            warmth: cold::Met::default(),
        }
    }

    /// All attempts and the waits between them.
    async fn drive(&mut self, request: &mut AttemptRequest, watchers: Watchers, cancel: &CancellationToken) -> CallEnd {
        // A call counts once for its agent, however many targets it asks.
        if self.turn != Some(Turn::Further) {
            lock(&self.agent.common.retry_budget).count_call(self.started);
        }
        lock(&self.agent.provider.retry_budget).count_call(self.started);
        if let Err(end) = self.get_warm(request, cancel).await {
            return end;
        }
        let mut last = None;
        for attempt in 1.. {
            if cancel.is_cancelled() {
                return (Err(cancelled(false)), Some(Stop::NotRetryable));
            }
            let now = self.shared.now();
            let (call_left, run_left) = (self.end.since(now), self.deadline.map(|deadline| deadline.since(now)));
            let (limit, cut_ending) = retry::cut(self.agent.settings.timeouts.attempt, call_left, run_left);
            if limit.is_zero() {
                let no_time = || AttemptFailure::new(cut_ending, "no time left for an attempt");
                return (Err(last.unwrap_or_else(no_time)), Some(Stop::NoTimeLeft));
            }
            let left = run_left.map_or(call_left, |run_left| run_left.min(call_left));
            (request.attempt, request.deadline, request.capture) = (attempt, left, capture::slot(&self.shared));
            let progress = self.progress(&watchers);
            if let Err(refusal) = self.begin_attempt(now) {
                return (Err(last.unwrap_or_else(|| self.refused(refusal))), Some(Stop::AttemptsUsed));
            }
            self.under_way = Some(progress.started());
            let result = self.attempt(request, &progress, limit, cut_ending, cancel).await;
            self.under_way = None;
            capture::settle(&self.shared, &self.agent, request, &progress, &result);
            let failure = match self.note(result, request, &progress) {
                Ok(reply) => return (Ok(reply), None),
                Err(failure) => failure,
            };
            if self.meets_cold(&failure) {
                match self.get_warm(request, cancel).await {
                    Ok(()) => continue,
                    Err(end) => return end,
                }
            }
            match self.plan(&failure, attempt, &progress) {
                Next::Stop(stop) => return (Err(failure), Some(stop)),
                Next::Again { after } => {
                    self.tell_retried(watchers.retried.as_ref());
                    let waited = tokio::time::timeout(after, cancel.cancelled()).await;
                    if waited.is_ok() {
                        return (Err(cancelled(false)), Some(Stop::NotRetryable));
                    }
                    // What was refused meanwhile is not asked again.
                    if self.is_shut_out() {
                        return (Err(failure), Some(Stop::AttemptsUsed));
                    }
                    self.agent.metrics.retries.increment(1);
                    last = Some(failure);
                }
            }
        }
        (Err(AttemptFailure::new(Ending::Internal, "attempts without end")), None)
    }

    /// A watcher that is slow or gone misses it; the record of the call has it all the same.
    fn tell_retried(&self, watcher: Option<&mpsc::Sender<AttemptRecord>>) {
        if let (Some(watcher), Some(record)) = (watcher, self.records.last()) {
            let _ = watcher.try_send(record.clone());
        }
    }

    /// A panic ends this call only. The attempt it happened in is written down: what was sent by then, nobody knows.
    fn panicked(&mut self, request: &AttemptRequest) -> AttemptFailure {
        if let Some(killer) = Killer::of_attempt(request, "the attempt's task panicked") {
            self.killed = self.shared.dead_letters.killed(&killer, &self.agent, &self.shared);
        }
        let failure = AttemptFailure::new(Ending::Restarted, "the attempt's task panicked");
        // What was passed on by then, nobody knows either.
        self.committed = true;
        let spending = self.spending.take();
        if let Some(started) = self.under_way.take() {
            let took = (started, self.shared.now());
            // ... nor what it used: it counts as it was reserved.
            let lost = spending.and_then(|spending| spending.lose(0, took.1.since(started)));
            if let Some(usage) = lost {
                self.usage = Some(self.usage.unwrap_or_default().plus(usage));
            }
            self.records.push(attempt_record(&self.shared, &self.agent, took, Some(&failure), None));
        }
        failure
    }

    /// One attempt, cut by time or cancel; reports itself as slow while it is in flight.
    async fn attempt(
        &mut self,
        request: &AttemptRequest,
        progress: &Progress,
        limit: Duration,
        cut_ending: Ending,
        cancel: &CancellationToken,
    ) -> Result<Reply, AttemptFailure> {
        let agent = Arc::clone(&self.agent);
        let slow_call = agent.settings.breaker.slow_call;
        let mut work = agent.backend.attempt(request, progress);
        let cut = tokio::time::sleep(limit);
        tokio::pin!(cut);
        let age = tokio::time::sleep(slow_call);
        tokio::pin!(age);
        let mut ageing = !self.slow;
        let mut patience = Patience::new(limit, cut_ending);
        loop {
            tokio::select! {
                biased;
                result = &mut work => return result.and_then(within_depth),
                () = cancel.cancelled() => {
                    let elapsed = self.shared.now().since(progress.started());
                    let is_hung = elapsed > slow_call && progress.first_content().is_none();
                    return Err(cancelled(is_hung && !self.is_excused(progress)));
                }
                () = &mut cut => {
                    let left = self.deadline.map(|deadline| deadline.since(self.shared.now()));
                    match patience.for_reader(progress.reader_wait(), left) {
                        Some(more) => cut.as_mut().reset(tokio::time::Instant::now() + more),
                        None => return Err(patience.over()),
                    }
                }
                () = &mut age, if ageing => {
                    let now = self.shared.now();
                    if self.is_excused(progress) {
                        ageing = false;
                    } else if agent.settings.slow_by.is_slow(slow_call, progress.timing(now)) {
                        ageing = false;
                        self.report_ageing(now);
                    } else {
                        // At the threshold exactly nothing is slow yet; a stream's pace is asked about again.
                        let young = slow_call.saturating_sub(progress.timing(now).elapsed);
                        let again = match agent.settings.slow_by {
                            SlowBy::Pace(_) => PACE_QUESTION,
                            SlowBy::Total | SlowBy::FirstToken => young + Duration::from_millis(1),
                        };
                        ageing = agent.settings.slow_by != SlowBy::FirstToken || progress.first_content().is_none();
                        age.as_mut().reset(tokio::time::Instant::now() + again);
                    }
                }
            }
        }
    }

    fn report_ageing(&mut self, now: Timestamp) {
        self.slow = true;
        self.permit.aged = true;
        let message = SupervisorMessage::Aged { agent: self.agent.index, passes: self.permit.passes, at: now };
        self.shared.supervisor.cast(message);
    }

    /// Writes an attempt down: its record, its slowness, its tokens.
    fn note(
        &mut self,
        result: Result<Reply, AttemptFailure>,
        request: &AttemptRequest,
        progress: &Progress,
    ) -> Result<Reply, AttemptFailure> {
        let result = self.see_model(result, progress);
        let now = self.shared.now();
        let elapsed = now.since(progress.started());
        let agent = &self.agent;
        agent.metrics.attempt_seconds.record(elapsed.as_secs_f64());
        self.spent += elapsed;
        self.committed |= progress.first_content().is_some();
        if let Some(first) = progress.first_content() {
            agent.metrics.first_token_seconds.record(first.since(progress.started()).as_secs_f64());
        }
        let mut timing = progress.timing(now);
        if let Ok(Reply { usage: Some(usage), .. }) = &result {
            timing.tokens = timing.tokens.max(usage.output_tokens);
        }
        self.slow |=
            !self.warmth.is_excused && agent.settings.slow_by.is_slow(agent.settings.breaker.slow_call, timing);
        let result = result.map_err(|failure| AttemptFailure {
            ending: with_far_reset(failure.ending.clone(), failure.retry_after, agent.settings.retry.retry_wait_max),
            ..failure
        });
        let (status, failure) = match &result {
            Ok(reply) => (reply.status, None),
            Err(failure) => (failure.status, Some(failure)),
        };
        let usage = match &mut self.spending {
            Some(spending) => spending.settle(&result, progress, elapsed),
            None => spent_unasked(agent, request, &result, progress),
        };
        if agent.provider.adaptive.is_some() {
            let ending = failure.map_or(&Ending::Success, |failure| &failure.ending);
            self.told.push(Told::of(ending, progress, usage, now));
        }
        if let Some(usage) = usage {
            agent.metrics.prompt_tokens.increment(usage.prompt_tokens);
            agent.metrics.output_tokens.increment(usage.output_tokens);
            if usage.estimated {
                agent.metrics.usage_estimated.increment(1);
            }
            self.usage = Some(self.usage.unwrap_or_default().plus(usage));
        }
        if failure.is_some_and(|failure| matches!(failure.ending, Ending::BadReply | Ending::NoDraft)) {
            self.bad_replies += 1;
        }
        let is_unsent = |failure: &AttemptFailure| matches!(failure.ending, Ending::OwnRefusal | Ending::Loading);
        self.own_refusals += u32::from(failure.is_some_and(is_unsent));
        let took = (progress.started(), now);
        self.records.push(attempt_record(&self.shared, &self.agent, took, failure, status));
        result
    }

    fn plan(&self, failure: &AttemptFailure, attempt: u32, progress: &Progress) -> Next {
        let now = self.shared.now();
        let end = self.deadline.map_or(self.end, |deadline| deadline.min(self.end));
        let failed = Failed {
            ending: &failure.ending,
            attempt: attempt - self.warmth.rounds,
            elapsed: now.since(progress.started()),
            retry_after: failure.retry_after,
            should_retry: failure.should_retry,
            bad_replies: self.bad_replies,
            committed: progress.first_content().is_some(),
            trial: self.permit.passes.any_trial(),
            time_left: end.since(now),
        };
        let next = retry::next(&self.agent.settings.retry, failed, self.shared.chance.fork(self.permit.id));
        if matches!(next, Next::Again { .. }) {
            if self.is_shut_out() {
                return Next::Stop(Stop::AttemptsUsed);
            }
            let mut own = lock(&self.agent.common.retry_budget);
            let mut shared = lock(&self.agent.provider.retry_budget);
            if !own.allows(now) || !shared.allows(now) {
                return Next::Stop(Stop::AttemptsUsed);
            }
            own.count_retry(now);
            shared.count_retry(now);
        }
        next
    }

    /// Whether a gate that this call passed would not admit it now. One that is on trial by now would not either: this call is none
    /// of its trials.
    fn is_shut_out(&self) -> bool {
        self.permit
            .passes
            .all()
            .filter(|passed| passed.pass.kind == PassKind::Plain)
            .filter_map(|passed| self.agent.guard_of(passed.breaker))
            .any(|guard| guard.gate.look() != GateView::Admit)
    }
}
