//! The attempts of one call, in a task that belongs to no actor: retry by envelope, timeouts from the outside in, cancel to the socket,
//! ageing. It ends in two messages: the answer to the caller, the facts with the permit to the supervisor.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures_util::FutureExt;

use super::{
    agent_actor::Job,
    call::{CallError, CallReply},
    core::{AgentCore, Shared, lock},
    permit::Permit,
    ports::{AttemptRequest, AttemptTimeouts, Hold, Progress},
    refusal::failure_envelope,
    supervisor::{Facts, SupervisorMessage},
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
        slow::{SlowBy, Timing},
        verdict::with_far_reset,
    },
};

/// A pace is asked about again so often, once an attempt is past the slow threshold.
const PACE_QUESTION: Duration = Duration::from_secs(5);

/// Runs a call to its end, whatever happens in it.
pub(crate) async fn run(job: Box<Job>) {
    let Job { request, permit, reply, cancel, .. } = *job;
    let shared = Arc::clone(&permit.shared);
    let mut call = Call {
        agent: Arc::clone(&permit.agent),
        started: shared.now(),
        shared,
        permit,
        slow: false,
        records: Vec::new(),
        usage: None,
        bad_replies: 0,
        own_refusals: 0,
    };
    let unwound = AssertUnwindSafe(call.drive(&request, &cancel)).catch_unwind().await;
    let (result, stop) = unwound.unwrap_or_else(|_| {
        let failure = AttemptFailure::new(Ending::Restarted, "the attempt's task panicked");
        (Err(failure), Some(Stop::NotRetryable))
    });
    call.finish(result, stop, reply);
}

struct Call {
    shared: Arc<Shared>,
    agent: Arc<AgentCore>,
    permit: Permit,
    started: Timestamp,
    slow: bool,
    records: Vec<AttemptRecord>,
    usage: Option<Usage>,
    bad_replies: u32,
    /// Attempts that a backend refused itself before it sent anything.
    own_refusals: u32,
}

type CallEnd = (Result<Reply, AttemptFailure>, Option<Stop>);

impl Call {
    /// All attempts and the waits between them.
    async fn drive(
        &mut self,
        request: &super::call::CallRequest,
        cancel: &tokio_util::sync::CancellationToken,
    ) -> CallEnd {
        let agent = Arc::clone(&self.agent);
        lock(&agent.retry_budget).count_call(self.started);
        lock(&agent.provider.retry_budget).count_call(self.started);
        let call_timeout =
            request.context.timeout.map_or(agent.settings.timeouts.call, |own| own.min(agent.settings.timeouts.call));
        let call_end = self.started.after(call_timeout);
        let call_id = uuid::Uuid::now_v7().to_string();
        let idempotency_key = request.context.idempotency_key.clone().unwrap_or_else(|| call_id.clone());
        for attempt in 1.. {
            if cancel.is_cancelled() {
                return (Err(cancelled(false)), Some(Stop::NotRetryable));
            }
            let now = self.shared.now();
            let run_left = request.context.deadline.map(|deadline| deadline.since(now));
            let call_left = call_end.since(now);
            let (limit, cut_ending) = retry::cut(agent.settings.timeouts.attempt, call_left, run_left);
            if limit.is_zero() {
                return (Err(AttemptFailure::new(cut_ending, "no time left for another attempt")), None);
            }
            let attempt_request = AttemptRequest {
                agent: agent.settings.name.clone(),
                input: Arc::clone(&request.input),
                call_id: call_id.clone(),
                run_id: request.context.run_id.clone(),
                attempt,
                idempotency_key: idempotency_key.clone(),
                traceparent: request.context.traceparent.clone(),
                deadline: run_left.map_or(call_left, |run_left| run_left.min(call_left)),
                tenant: request.context.tenant.clone(),
                feature: request.context.feature.clone(),
                priority: request.context.priority.clone(),
                timeouts: AttemptTimeouts {
                    first_token: agent.settings.timeouts.first_token,
                    stall: agent.settings.timeouts.stall,
                },
                hold: Hold::of(Arc::clone(&self.permit.lease) as Arc<dyn Send + Sync>),
            };
            let progress = Progress::start(Arc::clone(&self.shared.clock), request.deltas.clone());
            let result = self.attempt(&attempt_request, &progress, limit, cut_ending, cancel).await;
            let failure = match self.note(result, &progress) {
                Ok(reply) => return (Ok(reply), None),
                Err(failure) => failure,
            };
            match self.plan(&failure, attempt, &progress, call_end, request.context.deadline) {
                Next::Stop(stop) => return (Err(failure), Some(stop)),
                Next::Again { after } => {
                    let waited = tokio::time::timeout(after, cancel.cancelled()).await;
                    if waited.is_ok() {
                        return (Err(cancelled(false)), Some(Stop::NotRetryable));
                    }
                    // What was refused meanwhile is not asked again.
                    if self.any_gate_refuses() {
                        return (Err(failure), None);
                    }
                    self.agent.metrics.retries.increment(1);
                }
            }
        }
        (Err(AttemptFailure::new(Ending::Internal, "attempts without end")), None)
    }

    /// One attempt, cut by time or cancel; reports itself as slow while it is in flight.
    async fn attempt(
        &mut self,
        request: &AttemptRequest,
        progress: &Progress,
        limit: Duration,
        cut_ending: Ending,
        cancel: &tokio_util::sync::CancellationToken,
    ) -> Result<Reply, AttemptFailure> {
        let agent = Arc::clone(&self.agent);
        let slow_call = agent.settings.breaker.slow_call;
        let mut work = agent.backend.attempt(request, progress);
        let cut = tokio::time::sleep(limit);
        tokio::pin!(cut);
        let age = tokio::time::sleep(slow_call);
        tokio::pin!(age);
        let mut ageing = !self.slow;
        loop {
            tokio::select! {
                biased;
                result = &mut work => return result,
                () = cancel.cancelled() => {
                    let elapsed = self.shared.now().since(progress.started());
                    return Err(cancelled(elapsed > slow_call && progress.first_content().is_none()));
                }
                () = &mut cut => return Err(cut_failure(cut_ending, limit)),
                () = &mut age, if ageing => {
                    let now = self.shared.now();
                    if agent.settings.slow_by.is_slow(slow_call, timing(progress, now)) {
                        ageing = false;
                        self.report_ageing(now);
                    } else {
                        // At the threshold exactly nothing is slow yet; a stream's pace is asked about again.
                        let again = match agent.settings.slow_by {
                            SlowBy::Pace(_) => PACE_QUESTION,
                            SlowBy::Total | SlowBy::FirstToken => Duration::from_millis(1),
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
        let message = SupervisorMessage::Aged { agent: self.agent.index, passes: self.permit.passes.clone(), at: now };
        self.shared.supervisor.cast(message);
    }

    /// Writes an attempt down: its record, its slowness, its tokens.
    fn note(&mut self, result: Result<Reply, AttemptFailure>, progress: &Progress) -> Result<Reply, AttemptFailure> {
        let now = self.shared.now();
        let elapsed = now.since(progress.started());
        let agent = &self.agent;
        agent.metrics.attempt_seconds.record(elapsed.as_secs_f64());
        if let Some(first) = progress.first_content() {
            agent.metrics.first_token_seconds.record(first.since(progress.started()).as_secs_f64());
        }
        let mut timing = timing(progress, now);
        if let Ok(Reply { usage: Some(usage), .. }) = &result {
            timing.tokens = timing.tokens.max(usage.output_tokens);
        }
        self.slow |= agent.settings.slow_by.is_slow(agent.settings.breaker.slow_call, timing);
        let result = result.map_err(|failure| AttemptFailure {
            ending: with_far_reset(failure.ending.clone(), failure.retry_after, agent.settings.retry.retry_wait_max),
            ..failure
        });
        let (status, failure, usage) = match &result {
            Ok(reply) => (reply.status, None, reply.usage),
            Err(failure) => (failure.status, Some(failure), failure.usage),
        };
        if let Some(usage) = usage {
            agent.metrics.prompt_tokens.increment(usage.prompt_tokens);
            agent.metrics.output_tokens.increment(usage.output_tokens);
            self.usage = Some(self.usage.unwrap_or_default().plus(usage));
        }
        if failure.is_some_and(|failure| failure.ending == Ending::BadReply) {
            self.bad_replies += 1;
        }
        self.own_refusals += u32::from(failure.is_some_and(|failure| failure.ending == Ending::OwnRefusal));
        let envelope = failure.map(|failure| failure_envelope(failure, "", agent.keyed, 0));
        self.records.push(AttemptRecord {
            started_ms: self.shared.clock.unix_ms(progress.started()),
            duration_ms: u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX),
            status,
            error_code: envelope.as_ref().map(|envelope| envelope.error_code.as_str().to_owned()),
            retry_after: failure.and_then(|failure| failure.retry_after).map(|wait| wait.as_secs_f64()),
        });
        result
    }

    fn plan(
        &self,
        failure: &AttemptFailure,
        attempt: u32,
        progress: &Progress,
        call_end: Timestamp,
        deadline: Option<Timestamp>,
    ) -> Next {
        let now = self.shared.now();
        let end = deadline.map_or(call_end, |deadline| deadline.min(call_end));
        let failed = Failed {
            ending: &failure.ending,
            attempt,
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
            if self.any_gate_refuses() {
                return Next::Stop(Stop::AttemptsUsed);
            }
            let mut own = lock(&self.agent.retry_budget);
            let mut shared = lock(&self.agent.provider.retry_budget);
            if !own.allows(now) || !shared.allows(now) {
                return Next::Stop(Stop::AttemptsUsed);
            }
            own.count_retry(now);
            shared.count_retry(now);
        }
        next
    }

    fn any_gate_refuses(&self) -> bool {
        self.permit.passes.all().any(|passed| {
            passed.pass.kind == PassKind::Plain && matches!(passed.guard.gate.look(), GateView::Refuse(_))
        })
    }

    /// The two messages at the end: facts and permit to the supervisor, the answer to the caller.
    fn finish(
        self,
        result: Result<Reply, AttemptFailure>,
        stop: Option<Stop>,
        reply: tokio::sync::oneshot::Sender<Result<CallReply, CallError>>,
    ) {
        let now = self.shared.now();
        self.agent.metrics.call_seconds.record(now.since(self.started).as_secs_f64());
        let attempts = u32::try_from(self.records.len()).unwrap_or(u32::MAX);
        let ending = result.as_ref().map_or_else(|failure| failure.ending.clone(), |_| Ending::Success);
        let answer = match result {
            Ok(good) => Ok(CallReply {
                output: good.output,
                usage: self.usage,
                finish_reason: good.finish_reason,
                attempts: self.records,
            }),
            Err(failure) => Err(CallError {
                envelope: Box::new(failure_envelope(
                    &failure,
                    self.agent.settings.name.as_str(),
                    self.agent.keyed,
                    attempts,
                )),
                // An agent that was not up all along was sent nothing, however often it was asked for.
                nothing_sent: attempts == self.own_refusals,
                exhausted: ending != Ending::OwnRefusal
                    && stop.is_none_or(|stop| stop != Stop::WaitTooLong && stop != Stop::NoTimeLeft),
                attempts: self.records,
                usage: self.usage,
            }),
        };
        let facts = Facts { agent: self.agent.index, ending, slow: self.slow, at: now, permit: self.permit };
        if !self.shared.supervisor.cast(SupervisorMessage::Outcome(Box::new(facts))) {
            super::metric::count(super::metric::OUTCOMES_LOST, Vec::new(), 1);
        }
        // A caller that has left does not mind.
        let _ = reply.send(answer);
    }
}

fn timing(progress: &Progress, now: Timestamp) -> Timing {
    Timing {
        elapsed: now.since(progress.started()),
        first_content: progress.first_content().map(|first| first.since(progress.started())),
        tokens: progress.pieces(),
    }
}

fn cancelled(slow_without_content: bool) -> AttemptFailure {
    AttemptFailure::new(Ending::Cancelled { slow_without_content }, "the caller left")
}

fn cut_failure(ending: Ending, limit: Duration) -> AttemptFailure {
    let message = match ending {
        Ending::DeadlineCut => format!("the deadline passed after {:.1} s of this attempt", limit.as_secs_f64()),
        _ => format!("no complete answer within {:.1} s", limit.as_secs_f64()),
    };
    AttemptFailure::new(ending, message)
}
