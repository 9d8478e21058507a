//! How a call ends: what its caller is told, what is written down, and the facts that the supervisor judges.

use std::sync::Arc;

use super::Call;
use crate::{
    model::{
        call_log::CallRecord,
        envelope::Envelope,
        facts::Ending,
        reply::{AttemptFailure, Reply},
    },
    policy::{
        fallback::{Content, Elsewhere, elsewhere},
        retry::Stop,
    },
    runtime::{
        call::{CallError, CallReply},
        call_record::logged_call,
        dead_letters::Killed,
        refusal::{Refusal, failure_envelope},
        supervisor::{Facts, SupervisorMessage},
    },
};

impl Call {
    /// A failure's outward shape.
    fn envelope_of(&self, failure: &AttemptFailure, attempts: u32) -> Envelope {
        let name = self.agent.settings.name.as_str();
        // Who was cut off because the node stops has not left.
        let stopped = matches!(failure.ending, Ending::Cancelled { .. }) && self.shared.aborting.is_cancelled();
        if stopped {
            Refusal::ShuttingDown.to_envelope(name).with_detail("attempts", attempts)
        } else if let Some(refusal) = &self.refusal {
            refusal.to_envelope(name).with_detail("attempts", attempts)
        } else if self.killed == Killed::Twice {
            Refusal::DeadLetter.to_envelope(name).with_detail("attempts", attempts)
        } else {
            failure_envelope(failure, name, self.agent.keyed, attempts)
        }
    }

    /// The two messages at the end: facts and permit to the supervisor, the answer to the caller.
    pub(super) fn finish(mut self, result: Result<Reply, AttemptFailure>, stop: Option<Stop>) {
        let now = self.shared.now();
        let ending = result.as_ref().map_or_else(|failure| failure.ending.clone(), |_| Ending::Success);
        let ending = self.judged(ending);
        let answer = self.reply.take().map(|reply| (reply, self.answer(result, stop)));
        if self.warmth.is_excused {
            // The time that a model takes to be loaded says nothing about how much it can do at once.
            self.told.pop();
        }
        let permit = self.permit.hand_over();
        let facts = Facts { agent: self.agent.index, ending, slow: self.slow, told: self.told, at: now, permit };
        self.shared.supervisor.cast(SupervisorMessage::Outcome(Box::new(facts)));
        if let Some((reply, answer)) = answer {
            // A caller that has left does not mind.
            let _ = reply.send(answer);
        }
    }

    /// What the caller is told, which is written down as well.
    pub(super) fn answer(
        &mut self,
        result: Result<Reply, AttemptFailure>,
        stop: Option<Stop>,
    ) -> Result<CallReply, CallError> {
        if self.turn.is_none() {
            self.agent.metrics.call_seconds.record(self.shared.now().since(self.started).as_secs_f64());
        }
        let ending = result.as_ref().map_or_else(|failure| failure.ending.clone(), |_| Ending::Success);
        let attempts = u32::try_from(self.records.len()).unwrap_or(u32::MAX);
        let records = std::mem::take(&mut self.records);
        let answer = match result {
            Ok(good) => Ok(CallReply {
                output: good.output,
                usage: self.usage,
                finish_reason: good.finish_reason,
                attempts: records,
                call_id: self.id.clone(),
                spent: self.spent,
                target: Arc::clone(&self.agent.target),
                fallback: None,
                tries: Vec::new(),
                degraded: None,
            }),
            Err(failure) => {
                let content = if self.committed { Content::Passed } else { Content::None };
                let envelope = self.envelope_of(&failure, attempts);
                Err(CallError {
                    // An agent that was not up all along was sent nothing, however often it was asked for.
                    nothing_sent: attempts == self.own_refusals,
                    exhausted: !matches!(ending, Ending::OwnRefusal | Ending::Loading)
                        && (!envelope.retryable || stop.is_some_and(Stop::is_final)),
                    envelope: Box::new(envelope),
                    attempts: records,
                    usage: self.usage,
                    call_id: Some(self.id.clone()),
                    spent: self.spent,
                    target: Some(Arc::clone(&self.agent.target)),
                    tries: Vec::new(),
                    degraded: None,
                    deferred: None,
                    content,
                    elsewhere: match &self.refusal {
                        Some(refusal) => refusal.passed_over_for().map_or(Elsewhere::MayNot, Elsewhere::May),
                        None => elsewhere(&ending, content, self.agent.keyed),
                    },
                })
            }
        };
        if let Some(log) = &self.shared.call_log {
            let id = self.id.clone();
            let record = logged_call(&self.shared, &self.agent, id, self.started, &ending, &answer, &self.caller);
            log.finished(CallRecord { warming: self.warmth.has_waited.then_some(true), ..record });
        }
        answer
    }
}
