//! The actor of one agent. Its mailbox is ractor's and has no bound of its own; the bound is that a message needs a permit, and only
//! [`super::handle::AgentHandle`] makes permits. It hands each call to a task at once and never waits for one.

use std::sync::{Arc, atomic::Ordering};

use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::sync::oneshot;
use tokio_util::{sync::CancellationToken, task::task_tracker::TaskTrackerToken};

use super::{
    attempts,
    call::{CallError, CallReply, CallRequest},
    core::{AgentCore, Shared},
    dead_letters::{Killed, Killer},
    permit::Permit,
    refusal::Refusal,
};

/// What an agent's actor is told.
pub(crate) enum AgentMessage {
    /// Do this.
    Call(Box<Job>),
    /// Die, as a fault would make it: for drills and tests of supervision.
    Crash,
}

/// The part of a call that one of several targets has.
#[derive(Debug, Clone)]
pub(crate) struct Leg {
    /// The call's outward id, one for all targets.
    pub(crate) call_id: String,
    pub(crate) turn: Turn,
}

/// Whether a leg is its call's first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    First,
    Further,
}

/// An admitted call on its way.
pub(crate) struct Job {
    pub(crate) request: CallRequest,
    pub(crate) permit: Permit,
    pub(crate) reply: oneshot::Sender<Result<CallReply, CallError>>,
    pub(crate) cancel: CancellationToken,
    /// Where the call may ask several targets: which part of it this is.
    pub(crate) leg: Option<Leg>,
    queued: Queued,
    /// A stop waits for queued calls too.
    #[allow(dead_code, reason = "held for its drop")]
    tracked: TaskTrackerToken,
}

impl Job {
    pub(crate) fn new(
        request: CallRequest,
        permit: Permit,
        reply: oneshot::Sender<Result<CallReply, CallError>>,
        cancel: CancellationToken,
        leg: Option<Leg>,
    ) -> Self {
        let queued = Queued::enter(&permit.agent);
        let tracked = permit.shared.tracker.token();
        Self { request, permit, reply, cancel, leg, queued, tracked }
    }
}

/// The job that an actor has in hand until its task takes it over. One that is dropped by a panic on the way has killed the actor; those
/// that wait in the mailbox die with it and are innocent.
pub(crate) struct InHand(Option<Box<Job>>);

impl InHand {
    fn of(mut job: Box<Job>) -> Self {
        job.queued.leave();
        Self(Some(job))
    }

    /// The task has it now.
    pub(crate) fn take_over(mut self) -> Option<Box<Job>> {
        self.0.take()
    }
}

impl Drop for InHand {
    fn drop(&mut self) {
        let Some(job) = self.0.take().filter(|_| std::thread::panicking()) else { return };
        let Job { request, permit, reply, .. } = *job;
        let Some(killer) = Killer::of_call(&request, "its agent's actor panicked with it in hand") else { return };
        if permit.shared.dead_letters.killed(&killer, &permit.agent, &permit.shared) == Killed::Twice {
            let envelope = Refusal::DeadLetter.to_envelope(permit.agent.settings.name.as_str());
            // A caller that has left does not mind.
            let _ = reply.send(Err(CallError::refused(envelope)));
        }
    }
}

/// Counts a job as queued until it leaves the mailbox, in whatever way.
struct Queued(Option<Arc<AgentCore>>);

impl Queued {
    fn enter(agent: &Arc<AgentCore>) -> Self {
        let depth = agent.common.mailbox_depth.fetch_add(1, Ordering::AcqRel) + 1;
        agent.metrics.mailbox_depth.set(f64::from(depth));
        Self(Some(Arc::clone(agent)))
    }

    fn leave(&mut self) {
        if let Some(agent) = self.0.take() {
            let depth = agent.common.mailbox_depth.fetch_sub(1, Ordering::AcqRel) - 1;
            agent.metrics.mailbox_depth.set(f64::from(depth));
        }
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        self.leave();
    }
}

/// The actor.
pub(crate) struct AgentActor {
    pub(crate) shared: Arc<Shared>,
    pub(crate) agent: Arc<AgentCore>,
}

impl Actor for AgentActor {
    type Msg = AgentMessage;
    type State = ();
    type Arguments = ();

    async fn pre_start(&self, myself: ActorRef<Self::Msg>, (): ()) -> Result<(), ActorProcessingErr> {
        self.agent.address.set(myself);
        Ok(())
    }

    async fn handle(
        &self,
        _: ActorRef<Self::Msg>,
        message: AgentMessage,
        (): &mut (),
    ) -> Result<(), ActorProcessingErr> {
        match message {
            AgentMessage::Call(job) => {
                // Some kilobytes, that each step of spawning would copy.
                self.shared.tracker.spawn(Box::pin(attempts::run(InHand::of(job))));
                Ok(())
            }
            AgentMessage::Crash => Err("told to crash".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::{
        model::name::Name,
        runtime::{
            call::CallContext,
            engine::Runtime,
            handle::AgentHandle,
            outside::OutsideBackend,
            settings::{AgentSettings, ProviderSettings},
        },
    };

    /// The answer to a call whose actor panics while it has it in hand.
    async fn killing(handle: &AgentHandle, key: Option<&str>) -> Option<CallError> {
        let context = CallContext { idempotency_key: key.map(str::to_owned), ..CallContext::default() };
        let permit = match handle.admit(&context) {
            Ok(permit) => permit,
            Err(refusal) => return Some(handle.refused(&refusal, &context)),
        };
        let (reply, answer) = oneshot::channel();
        let request = CallRequest { context, ..CallRequest::of(serde_json::json!({ "x": 1 })) };
        let in_hand = InHand::of(Box::new(Job::new(request, permit, reply, CancellationToken::new(), None)));
        let died = catch_unwind(AssertUnwindSafe(|| {
            let _in_hand = in_hand;
            panic!("a fault of ours");
        }));
        assert!(died.is_err());
        assert_eq!((handle.in_flight(), handle.mailbox_depth()), (0, 0), "everything is given back");
        // Without an answer the caller is told that the agent restarted.
        answer.await.ok().and_then(Result::err)
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_that_kills_its_actor_twice_is_put_aside() {
        let name = |text| Name::try_new(text).unwrap();
        let agent = AgentSettings::new(name("draft"), name("local"));
        let builder = Runtime::builder().provider(ProviderSettings::new(name("local")));
        let runtime = builder.agent(agent, Arc::new(OutsideBackend)).start().await.unwrap();
        let handle = runtime.agent("draft").unwrap();
        for _ in 0..3 {
            assert_eq!(killing(&handle, None).await, None, "what has no key cannot be told again");
        }
        assert_eq!(killing(&handle, Some("k")).await, None);
        let second = killing(&handle, Some("k")).await.unwrap();
        let third = killing(&handle, Some("k")).await.unwrap();
        for error in [second, third] {
            assert_eq!((error.envelope.error_code.as_str(), error.envelope.retryable), ("INTERNAL", false));
            assert_eq!(error.envelope.details["reason"], "dead_letter");
        }
        assert_eq!(killing(&handle, Some("another")).await, None);
        let letters = runtime.dead_letters();
        assert_eq!((letters.len(), letters[0].idempotency_key.as_deref()), (1, Some("k")));
        // One that is dropped for another reason has killed nobody.
        let context = CallContext { idempotency_key: Some("innocent".into()), ..CallContext::default() };
        for _ in 0..3 {
            let permit = handle.admit(&context).unwrap();
            let (reply, _) = oneshot::channel();
            let request = CallRequest { context: context.clone(), ..CallRequest::of(serde_json::Value::Null) };
            drop(InHand::of(Box::new(Job::new(request, permit, reply, CancellationToken::new(), None))));
        }
        assert_eq!(runtime.dead_letters().len(), 1);
    }
}
