//! The root actor: parent of agents, supervisor and orchestrator, which are siblings. It does nothing but restart them.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use ractor::{Actor, ActorId, ActorProcessingErr, ActorRef, SupervisionEvent};
use tokio::sync::{broadcast, oneshot};

use super::{
    agent_actor::AgentActor,
    book::BreakerEvent,
    core::{AgentCore, Shared, lock},
    orchestrator::OrchestratorActor,
    supervisor::{SupervisorActor, SupervisorMessage},
};
use crate::{
    model::clock::Timestamp,
    policy::restart::{Quarantine, Restart, RestartLedger},
};

/// Supervisor and orchestrator are never quarantined, but their restarts slow down after so many ...
const CENTRAL_RESTARTS_MAX: u32 = 20;
/// ... within this.
const CENTRAL_RESTARTS_WITHIN: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Child {
    Agent(usize),
    Supervisor,
    Orchestrator,
}

pub(crate) enum RootMessage {
    /// Start this child again.
    Start(Child),
    /// Start the actors of these targets, those that do not run already, and say when they do.
    Begin(Vec<Arc<AgentCore>>, oneshot::Sender<()>),
    /// These targets are gone: their actors end once nobody has work for them.
    Retire(Vec<usize>),
    /// Look whether somebody who is gone is idle by now.
    LookAtRetired,
}

/// So often it is looked at who is gone and idle.
const RETIRED_LOOK: Duration = Duration::from_secs(1);

/// The actor.
pub(crate) struct RootActor {
    pub(crate) shared: Arc<Shared>,
    pub(crate) events: broadcast::Sender<BreakerEvent>,
    pub(crate) runs: Arc<super::run_table::RunTable>,
}

pub(crate) struct RootState {
    children: HashMap<ActorId, Child>,
    supervisor: RestartLedger,
    orchestrator: RestartLedger,
    /// Targets that are gone and have an actor.
    retired: BTreeSet<usize>,
}

impl Actor for RootActor {
    type Msg = RootMessage;
    type State = RootState;
    type Arguments = ();

    async fn pre_start(&self, myself: ActorRef<Self::Msg>, (): ()) -> Result<RootState, ActorProcessingErr> {
        let central = || RestartLedger::new(CENTRAL_RESTARTS_MAX, CENTRAL_RESTARTS_WITHIN);
        let mut state = RootState {
            children: HashMap::new(),
            supervisor: central(),
            orchestrator: central(),
            retired: BTreeSet::new(),
        };
        let agents = (0..self.shared.agents().agents.len()).map(Child::Agent);
        for child in [Child::Supervisor, Child::Orchestrator].into_iter().chain(agents) {
            self.start(child, &myself, &mut state).await?;
        }
        Ok(state)
    }

    async fn handle(
        &self,
        myself: ActorRef<Self::Msg>,
        message: RootMessage,
        state: &mut RootState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            RootMessage::Start(child) => {
                if self.start(child, &myself, state).await.is_err() {
                    self.start_later(child, Duration::from_secs(1), &myself);
                }
            }
            RootMessage::Begin(cores, done) => {
                for core in cores {
                    self.begin(core, &myself, state).await;
                }
                // Who asked may have stopped waiting.
                let _ = done.send(());
            }
            RootMessage::Retire(places) => {
                state.retired.extend(places);
                self.end_idle(&myself, state);
            }
            RootMessage::LookAtRetired => self.end_idle(&myself, state),
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<Self::Msg>,
        event: SupervisionEvent,
        state: &mut RootState,
    ) -> Result<(), ActorProcessingErr> {
        let (cell, cause) = match event {
            SupervisionEvent::ActorFailed(cell, cause) => (cell, cause.to_string()),
            SupervisionEvent::ActorTerminated(cell, _, cause) => (cell, cause.unwrap_or_default()),
            _ => return Ok(()),
        };
        let Some(child) = state.children.remove(&cell.get_id()) else { return Ok(()) };
        if self.shared.stopping.is_cancelled() {
            return Ok(());
        }
        let after = self.died(child, &cause, state);
        if after.is_zero() && self.start(child, &myself, state).await.is_ok() {
            return Ok(());
        }
        self.start_later(child, after.max(Duration::from_millis(10)), &myself);
        Ok(())
    }
}

impl RootActor {
    /// Enters the death in its ledger. The time until it is started again.
    fn died(&self, child: Child, cause: &str, state: &mut RootState) -> Duration {
        let now = self.shared.now();
        let restart = match child {
            Child::Agent(index) => {
                let Some(agent) = self.shared.at(index) else { return Duration::ZERO };
                agent.metrics.restarts.increment(1);
                let restart = lock(&agent.ledger).died(now);
                tracing::warn!(agent = agent.settings.name.as_str(), cause, "agent died, restarting");
                if restart.quarantine != Quarantine::No {
                    let message = SupervisorMessage::Died { agent: index, quarantine: restart.quarantine };
                    self.shared.supervisor.cast(message);
                }
                restart
            }
            Child::Supervisor => {
                tracing::error!(cause, "supervisor died, restarting; the last gates hold");
                central_died(&mut state.supervisor, now)
            }
            Child::Orchestrator => {
                tracing::error!(cause, "orchestrator died, restarting");
                central_died(&mut state.orchestrator, now)
            }
        };
        restart.after
    }

    async fn start(
        &self,
        child: Child,
        myself: &ActorRef<RootMessage>,
        state: &mut RootState,
    ) -> Result<(), ractor::SpawnErr> {
        let root = myself.get_cell();
        let shared = Arc::clone(&self.shared);
        let id = match child {
            Child::Agent(index) => {
                let Some(agent) = self.shared.at(index) else { return Ok(()) };
                if agent.presence.is_gone() && agent.presence.is_idle() {
                    return Ok(());
                }
                Actor::spawn_linked(None, AgentActor { shared, agent }, (), root).await?.0.get_id()
            }
            Child::Supervisor => {
                let events = self.events.clone();
                Actor::spawn_linked(None, SupervisorActor { shared, events }, (), root).await?.0.get_id()
            }
            Child::Orchestrator => {
                let runs = Arc::clone(&self.runs);
                Actor::spawn_linked(None, OrchestratorActor { shared, runs }, (), root).await?.0.get_id()
            }
        };
        state.children.insert(id, child);
        Ok(())
    }

    /// Starts the actor of a target that is new, or that came back.
    async fn begin(&self, agent: Arc<AgentCore>, myself: &ActorRef<RootMessage>, state: &mut RootState) {
        let child = Child::Agent(agent.index);
        let has_actor = state.children.values().any(|running| *running == child);
        if state.retired.remove(&agent.index) && has_actor {
            return;
        }
        let shared = Arc::clone(&self.shared);
        match Actor::spawn_linked(None, AgentActor { shared, agent }, (), myself.get_cell()).await {
            Ok((actor, _)) => _ = state.children.insert(actor.get_id(), child),
            Err(error) => {
                tracing::error!(%error, "an agent's actor did not start, trying again");
                self.start_later(child, Duration::from_secs(1), myself);
            }
        }
    }

    /// Ends the actors of targets that are gone and that no admitted call needs; nobody is admitted there any more.
    fn end_idle(&self, myself: &ActorRef<RootMessage>, state: &mut RootState) {
        let is_idle = |index: &usize| self.shared.at(*index).is_none_or(|core| core.presence.is_idle());
        let idle: Vec<usize> = state.retired.iter().copied().filter(is_idle).collect();
        for index in idle {
            state.retired.remove(&index);
            let Some(core) = self.shared.at(index) else { continue };
            // Forgotten first, so that its end is no death.
            state.children.retain(|_, child| *child != Child::Agent(index));
            core.address.vacate_and_stop();
        }
        if !state.retired.is_empty() {
            let root = myself.clone();
            let stopping = self.shared.stopping.token();
            tokio::spawn(async move {
                tokio::select! {
                    () = tokio::time::sleep(RETIRED_LOOK) => {
                        // A root that is gone has no children.
                        let _ = root.cast(RootMessage::LookAtRetired);
                    }
                    () = stopping.cancelled() => {}
                }
            });
        }
    }

    fn start_later(&self, child: Child, after: Duration, myself: &ActorRef<RootMessage>) {
        let root = myself.clone();
        let stopping = self.shared.stopping.token();
        tokio::spawn(async move {
            tokio::select! {
                () = tokio::time::sleep(after) => {
                    // A root that is gone restarts nothing.
                    let _ = root.cast(RootMessage::Start(child));
                }
                () = stopping.cancelled() => {}
            }
        });
    }
}

/// Whoever lived for long enough since its last death starts at once again: nobody else ends the slow restarts of these two.
fn central_died(ledger: &mut RestartLedger, now: Timestamp) -> Restart {
    ledger.release(now);
    ledger.died(now)
}
