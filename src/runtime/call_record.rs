//! A call's end as a line of the call log, and an attempt's as a part of the call's record.

use std::time::Duration;

use super::{
    call::{CallContext, CallError, CallReply},
    core::{AgentCore, Shared},
    refusal::failure_envelope,
    spending::SpentFor,
};
use crate::model::{
    call_log::{CallRecord, LoggedAttempt},
    clock::Timestamp,
    envelope::Envelope,
    facts::Ending,
    reply::{AttemptFailure, Usage},
    run::AttemptRecord,
};

/// For whom the call was.
pub(crate) struct Caller {
    pub(crate) tenant: Option<String>,
    pub(crate) feature: Option<String>,
    /// The name of the key that the caller showed; another one than the provider's, which is `key_id`.
    pub(crate) key: Option<String>,
}

impl Caller {
    pub(crate) fn of(context: &CallContext) -> Self {
        Self { tenant: context.tenant.clone(), feature: context.feature.clone(), key: context.key_id.clone() }
    }

    /// For whom tokens are taken.
    pub(crate) fn spent_for(&self) -> SpentFor<'_> {
        SpentFor { feature: self.feature.as_deref(), tenant: self.tenant.as_deref() }
    }
}

/// An attempt that `took` from one moment to another, and how it ended.
pub(crate) fn attempt_record(
    shared: &Shared,
    agent: &AgentCore,
    took: (Timestamp, Timestamp),
    failure: Option<&AttemptFailure>,
    status: Option<u16>,
) -> AttemptRecord {
    let (started, ended) = took;
    let envelope = failure.map(|failure| failure_envelope(failure, "", agent.keyed, 0));
    AttemptRecord {
        started_ms: shared.clock.unix_ms(started),
        duration_ms: u64::try_from(ended.since(started).as_millis()).unwrap_or(u64::MAX),
        status,
        error_code: envelope.as_ref().map(|envelope| envelope.error_code.as_str().to_owned()),
        retry_after: failure.and_then(|failure| failure.retry_after).map(|wait| wait.as_secs_f64()),
    }
}

/// A call that was made.
pub(crate) fn logged_call(
    shared: &Shared,
    agent: &AgentCore,
    call_id: String,
    started: Timestamp,
    ending: &Ending,
    answer: &Result<CallReply, CallError>,
    caller: &Caller,
) -> CallRecord {
    let (attempts, usage, envelope) = match answer {
        Ok(reply) => (&reply.attempts, reply.usage, None),
        Err(error) => (&error.attempts, error.usage, Some(&*error.envelope)),
    };
    let status = match ending {
        Ending::Status { status, .. } => Some(*status),
        // Work without HTTP that ended well has the status that it would have had.
        Ending::Success => attempts.last().and_then(|attempt| attempt.status).or(Some(200)),
        _ => None,
    };
    CallRecord {
        duration_ms: u64::try_from(shared.now().since(started).as_millis()).unwrap_or(u64::MAX),
        status,
        attempts: attempts.iter().map(logged_attempt).collect(),
        cancelled: matches!(ending, Ending::Cancelled { .. }).then_some(true),
        tokens: usage.map(|usage| usage.prompt_tokens.saturating_add(usage.output_tokens)),
        usage,
        cost: usage.and_then(|usage| usage.cost),
        call_id: Some(call_id),
        ..common(shared, agent, started, envelope, caller)
    }
}

/// Work that was done outside under our guards, once it is over.
pub(crate) struct OutsideWork<'a> {
    pub(crate) started: Timestamp,
    /// Without the time in which its caller did not take what was there.
    pub(crate) took: Duration,
    /// The status that it answered with, if it speaks HTTP.
    pub(crate) status: Option<u16>,
    /// What it used, by its own word or as it was reserved.
    pub(crate) usage: Option<Usage>,
    pub(crate) ending: &'a Ending,
}

/// The same as a line.
pub(crate) fn logged_work(shared: &Shared, agent: &AgentCore, work: &OutsideWork<'_>, caller: &Caller) -> CallRecord {
    let failure = (*work.ending != Ending::Success).then(|| AttemptFailure::new(work.ending.clone(), String::new()));
    let envelope = failure.map(|failure| failure_envelope(&failure, "", agent.keyed, 1));
    let status = match work.ending {
        Ending::Status { status, .. } => Some(*status),
        Ending::Success => work.status.or(Some(200)),
        _ => None,
    };
    CallRecord {
        duration_ms: u64::try_from(work.took.as_millis()).unwrap_or(u64::MAX),
        status,
        cancelled: matches!(work.ending, Ending::Cancelled { .. }).then_some(true),
        tokens: work.usage.map(|usage| usage.prompt_tokens.saturating_add(usage.output_tokens)),
        usage: work.usage,
        cost: work.usage.and_then(|usage| usage.cost),
        call_id: Some(uuid::Uuid::now_v7().to_string()),
        ..common(shared, agent, work.started, envelope.as_ref(), caller)
    }
}

/// A call that a guard refused.
pub(crate) fn logged_refusal(shared: &Shared, agent: &AgentCore, envelope: &Envelope, caller: &Caller) -> CallRecord {
    CallRecord { status: Some(envelope.http_status), ..common(shared, agent, shared.now(), Some(envelope), caller) }
}

fn common(
    shared: &Shared,
    agent: &AgentCore,
    started: Timestamp,
    envelope: Option<&Envelope>,
    caller: &Caller,
) -> CallRecord {
    let settings = &agent.settings;
    CallRecord {
        ts_ms: shared.clock.unix_ms(started),
        agent: settings.name.as_str().to_owned(),
        error_code: envelope.map(|envelope| envelope.error_code.as_str().to_owned()),
        retryable: envelope.map(|envelope| envelope.retryable),
        provider: Some(settings.provider.as_str().to_owned()),
        model: settings.model.clone(),
        key_id: agent.provider.settings.key.as_ref().map(|key| key.as_str().to_owned()),
        caller: caller.key.clone(),
        tenant: caller.tenant.clone(),
        feature: caller.feature.clone(),
        counted: Some(shared.compartments.counted(caller.feature.as_deref(), caller.tenant.as_deref())),
        ..CallRecord::default()
    }
}

fn logged_attempt(attempt: &AttemptRecord) -> LoggedAttempt {
    LoggedAttempt { start_ms: attempt.started_ms, duration_ms: attempt.duration_ms, status: attempt.status }
}
