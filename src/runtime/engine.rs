//! The runtime as its owner holds it: agents by name, observers, operator acts, the stop. Several can live in one process.

use std::{sync::Arc, time::Duration};

use tokio::sync::broadcast;

use super::{
    agent_actor::AgentMessage,
    book::BreakerEvent,
    builder::RuntimeBuilder,
    core::{AgentCore, Shared, lock},
    handle::AgentHandle,
    orchestrator::{OrchestratorActor, OrchestratorMessage},
    ports::Clock,
    root::RootMessage,
    run_table::RunTable,
    supervisor::{BreakerAct, SupervisorMessage},
};
use crate::{
    model::name::Name,
    policy::{
        breaker::state::{Snapshot, StateName},
        warmth::machine::Belief,
    },
};

/// How long a node that stops waits for its journal.
const JOURNAL_PATIENCE: Duration = Duration::from_secs(10);

/// A running runtime. Dropping it stops the actors and cancels live runs; [`Runtime::stop`] does so with grace.
pub struct Runtime {
    pub(crate) shared: Arc<Shared>,
    pub(crate) runs: Arc<RunTable>,
    events: broadcast::Sender<BreakerEvent>,
    pub(crate) root: ractor::ActorRef<RootMessage>,
    #[allow(dead_code, reason = "held so that the root's task is not detached unseen")]
    joined: tokio::task::JoinHandle<()>,
}

impl std::fmt::Debug for Runtime {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Runtime").field("agents", &self.shared.agents().agents.len()).finish_non_exhaustive()
    }
}

/// A part that can be made to die.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part<'a> {
    /// The actor of the agent of this name.
    Agent(&'a str),
    /// The supervisor.
    Supervisor,
    /// The orchestrator.
    Orchestrator,
}

/// An agent as people see it: the items of `GET /v1/agents`.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct AgentView {
    /// Its name.
    pub name: Name,
    /// The provider it leans on.
    pub provider: Name,
    /// Its rollout stage.
    pub stage: &'static str,
    /// Slots in all.
    pub slots: u32,
    /// Slots taken.
    pub in_flight: u32,
    /// Calls in its mailbox.
    pub mailbox_depth: u32,
    /// How often it was started again.
    pub restarts: u64,
    /// Its first target's breaker.
    pub breaker: BreakerView,
    /// Its first target's model, where that has to be loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warmth: Option<WarmthView>,
    /// All its targets, where it has several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<TargetView>,
}

/// A model that has to be loaded as people see it.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct WarmthView {
    /// What is believed of it.
    pub state: Belief,
    /// Seconds until the warm-up under way is expected to end.
    pub retry_after: Option<f64>,
    /// How often another model threw it out while it was still wanted.
    pub swaps: u64,
}

/// One of several targets of an agent as people see it.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct TargetView {
    /// `provider/model`.
    pub target: String,
    /// Its breaker.
    pub breaker: BreakerView,
}

/// A breaker as people see it.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct BreakerView {
    /// Its state.
    pub state: StateName,
    /// Its generation.
    pub generation: u32,
    /// Failed of finished, once there are enough.
    pub failure_share: Option<f64>,
    /// Slow of all, once there are enough.
    pub slow_share: Option<f64>,
    /// Seconds until it can change by itself, if it refuses.
    pub retry_after: Option<f64>,
}

/// No agent or breaker of that name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no {0}")]
pub struct NoSuch(pub String);

impl Runtime {
    /// A builder with nothing in it.
    pub fn builder() -> RuntimeBuilder {
        RuntimeBuilder::default()
    }

    pub(crate) fn new(
        shared: Arc<Shared>,
        runs: Arc<RunTable>,
        events: broadcast::Sender<BreakerEvent>,
        root: ractor::ActorRef<RootMessage>,
        joined: tokio::task::JoinHandle<()>,
    ) -> Self {
        Self { shared, runs, events, root, joined }
    }

    /// The agent of this name.
    pub fn agent(&self, name: &str) -> Option<AgentHandle> {
        let agent = self.shared.agent(name)?;
        Some(AgentHandle { shared: Arc::clone(&self.shared), agent })
    }

    /// The runtime's clock: deadlines of calls are moments of it.
    pub fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.shared.clock)
    }

    /// Every change of every breaker from now on. A reader that lags loses the oldest and is told how many.
    pub fn breaker_events(&self) -> broadcast::Receiver<BreakerEvent> {
        self.events.subscribe()
    }

    /// All agents as they stand now.
    pub fn agents(&self) -> Vec<AgentView> {
        let table = self.shared.agents();
        let mut firsts: Vec<&usize> = table.places.values().collect();
        firsts.sort_unstable();
        firsts.into_iter().filter_map(|place| table.agents.get(*place)).map(|agent| self.view(agent)).collect()
    }

    /// The breaker of this name (`agent:draft`, `provider:local`, `key:local/main`) as it stands now.
    pub fn breaker(&self, name: &str) -> Result<Snapshot, NoSuch> {
        let book = lock(&self.shared.book);
        let found = book.find(name).and_then(|id| book.snapshot(id));
        found.ok_or_else(|| NoSuch(format!("breaker {name:?}")))
    }

    /// An operator's act on the breaker of this name.
    pub fn act(&self, name: &str, act: BreakerAct) -> Result<(), NoSuch> {
        let found = lock(&self.shared.book).find(name);
        let breaker = found.ok_or_else(|| NoSuch(format!("breaker {name:?}")))?;
        self.shared.supervisor.cast(SupervisorMessage::Act { breaker, act });
        Ok(())
    }

    /// Waits until every act that came before holds: callers meet it, and snapshots show it. An act that the supervisor took with it when
    /// it died never does.
    pub async fn acts_hold(&self) {
        self.shared.judged().await;
    }

    /// Aborts the call of an entry of the deferred queue that was cancelled, if it is under way here.
    pub fn abort_deferred(&self, id: &str) {
        if let Some(queue) = &self.shared.deferred {
            queue.abort(id);
        }
    }

    /// The same for whatever a run put off, which is deleted.
    pub fn abort_deferred_of_run(&self, run_id: &str) {
        if let Some(queue) = &self.shared.deferred {
            queue.abort_run(run_id);
        }
    }

    /// The same for whatever a tenant put off, whose data are deleted.
    pub fn abort_deferred_of_tenant(&self, tenant: &str) {
        if let Some(queue) = &self.shared.deferred {
            queue.abort_tenant(tenant);
        }
    }

    /// Makes ready for the end of a node whose runs go on after it: refuses new runs and calls, begins no step, lets what is under way end
    /// for `grace` and writes it down, aborts the rest without ending its run. Without a journal, runs end with the drop of this value.
    pub async fn drain(&self, grace: Duration) {
        self.shared.stopping.cancel();
        self.shared.tracker.close();
        if tokio::time::timeout(grace, self.shared.tracker.wait()).await.is_err() {
            tracing::warn!(tasks = self.shared.tracker.len(), "grace is over, aborting what is left");
        }
        self.freeze_runs(JOURNAL_PATIENCE).await;
        self.shared.aborting.cancel();
        self.shared.tracker.wait().await;
    }

    /// Gives durable runs up to whoever opens the journal next, while calls go on here: refuses new runs, begins no step, lets steps under
    /// way end and writes them down, aborts the rest without ending its run. They have `grace`; once `wanted` comes, because somebody waits
    /// for the journal, only steps with `effects = "once"` have it, since no other process may make those again. Until `arrived`, within
    /// `grace` too, runs are still accepted for whoever comes next. After it nothing of a run is written any more.
    pub async fn leave_runs(
        &self,
        grace: Duration,
        wanted: impl Future<Output = ()>,
        arrived: impl Future<Output = ()>,
    ) {
        let (all, made_once) = (&self.shared.run_steps, &self.shared.steps_made_once);
        self.shared.leaving_runs.cancel();
        all.close();
        made_once.close();
        let ended = async {
            tokio::select! {
                () = all.wait() => {}
                () = async { wanted.await; made_once.wait().await } => {}
            }
        };
        // Late or not, what is still under way is what is left.
        let _ = tokio::time::timeout(grace, async { tokio::join!(ended, arrived) }).await;
        if !all.is_empty() {
            tracing::warn!(steps = all.len(), "steps are left to whoever goes on");
        }
        self.freeze_runs(JOURNAL_PATIENCE).await;
    }

    /// Ends every call that is still under way with `SHUTTING_DOWN`, streams with an error event. Durable runs stand still from here on.
    pub fn abort_calls(&self) {
        self.shared.aborting.cancel();
    }

    /// Stops: refuses new calls, lets those in flight end for `grace`, then aborts them.
    pub async fn stop(self, grace: Duration) {
        if self.shared.journal.is_some() {
            self.drain(grace).await;
            self.root.kill();
            return;
        }
        self.shared.stopping.cancel();
        self.shared.tracker.close();
        if tokio::time::timeout(grace, self.shared.tracker.wait()).await.is_err() {
            tracing::warn!(tasks = self.shared.tracker.len(), "grace is over, aborting what is left");
            self.shared.aborting.cancel();
            self.shared.tracker.wait().await;
        }
        self.root.kill();
        // What is still live ends with the drop of this value, here.
    }

    /// Runs that are still live end as cancelled: no waiter of theirs hangs.
    fn end_runs(&self) {
        OrchestratorActor { shared: Arc::clone(&self.shared), runs: Arc::clone(&self.runs) }.end_all();
    }

    /// Makes an actor die as a fault of ours would: for drills, and for tests of supervision.
    pub fn crash(&self, part: Part<'_>) -> Result<(), NoSuch> {
        match part {
            Part::Agent(name) => {
                let agent = self.shared.agent(name).ok_or_else(|| NoSuch(format!("agent {name:?}")))?;
                agent.address.cast(AgentMessage::Crash);
            }
            Part::Supervisor => {
                self.shared.supervisor.cast(SupervisorMessage::Crash);
            }
            Part::Orchestrator => {
                self.shared.orchestrator.cast(OrchestratorMessage::Crash);
            }
        }
        Ok(())
    }

    fn view(&self, agent: &Arc<AgentCore>) -> AgentView {
        let handle = AgentHandle { shared: Arc::clone(&self.shared), agent: Arc::clone(agent) };
        let restarts = lock(&agent.ledger).total();
        let slots = self.shared.compartments.cap(agent.common.count);
        AgentView {
            name: agent.settings.name.clone(),
            provider: agent.settings.provider.clone(),
            stage: "integrated",
            slots,
            in_flight: handle.in_flight(),
            mailbox_depth: handle.mailbox_depth(),
            restarts,
            breaker: self.breaker_view(agent),
            warmth: self.warmth_view(agent),
            targets: self.target_views(agent),
        }
    }

    fn warmth_view(&self, agent: &AgentCore) -> Option<WarmthView> {
        let (model, now) = (agent.model.as_ref()?, self.shared.now());
        let retry_after = model.wait(now).map(|wait| wait.as_secs_f64());
        Some(WarmthView { state: model.belief(now), retry_after, swaps: model.swaps() })
    }

    /// The targets of an agent that has several.
    fn target_views(&self, agent: &Arc<AgentCore>) -> Vec<TargetView> {
        let view =
            |core: &Arc<AgentCore>| TargetView { target: core.target.to_string(), breaker: self.breaker_view(core) };
        if agent.further.is_empty() { Vec::new() } else { self.shared.targets_of(agent).iter().map(view).collect() }
    }

    fn breaker_view(&self, agent: &AgentCore) -> BreakerView {
        let snapshot = lock(&self.shared.book).snapshot(agent.guard.id);
        let until = match agent.guard.gate.look() {
            crate::policy::breaker::state::GateView::Refuse(refusal) => refusal.until,
            _ => None,
        };
        let now = self.shared.now();
        BreakerView {
            state: snapshot.map_or(StateName::Closed, |snapshot| snapshot.state),
            generation: snapshot.map_or(0, |snapshot| snapshot.generation),
            failure_share: snapshot.and_then(|snapshot| snapshot.failure_share),
            slow_share: snapshot.and_then(|snapshot| snapshot.slow_share),
            retry_after: until.map(|until| until.since(now).as_secs_f64()),
        }
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.shared.stopping.cancel();
        self.shared.aborting.cancel();
        self.shared.tracker.close();
        self.root.kill();
        self.end_runs();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::runtime::{
        function_agent::{AgentFailure, CallInfo, FunctionAgent},
        settings::{AgentSettings, ProviderSettings},
    };

    #[tokio::test(start_paused = true)]
    async fn agents_can_be_looked_at_while_they_work() {
        let name = |text| Name::try_new(text).unwrap();
        let hang = |_: Value, _: CallInfo| std::future::pending::<Result<Value, AgentFailure>>();
        let agent = AgentSettings { slots: 3, ..AgentSettings::new(name("draft"), name("local")) };
        let builder = Runtime::builder().provider(ProviderSettings::new(name("local")));
        let runtime = builder.agent(agent, Arc::new(FunctionAgent::new(hang))).start().await.unwrap();
        let handle = runtime.agent("draft").unwrap();
        let call = tokio::spawn(async move { handle.call(crate::runtime::call::CallRequest::of(Value::Null)).await });
        tokio::time::sleep(Duration::from_millis(1)).await;
        let views = runtime.agents();
        assert_eq!((views.len(), views[0].slots, views[0].in_flight), (1, 3, 1));
        assert_eq!(views[0].breaker.state, StateName::Closed);
        call.abort();
    }
}
