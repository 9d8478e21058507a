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
    permit::Permit,
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
            AgentMessage::Call(mut job) => {
                job.queued.leave();
                self.shared.tracker.spawn(attempts::run(job));
                Ok(())
            }
            AgentMessage::Crash => Err("told to crash".into()),
        }
    }
}
