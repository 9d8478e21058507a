//! What every handler holds: settings, keys, caps, workflows, and the door to the runtime. Decides nothing.

use std::{collections::BTreeMap, ops::Deref, sync::Arc, time::Duration};

use metrics_exporter_prometheus::PrometheusHandle;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{access::keys::KeyRing, answer::failure::Failure, caps::Caps};
use crate::{
    journal::journal::SqliteJournal,
    runtime::{engine::Runtime, handle::AgentHandle},
    settings::{general::Limits, serve::ServeSettings},
    workflow::checked::Workflow,
};

/// What the service is made of.
#[derive(Debug)]
pub struct Service {
    /// How it serves.
    pub settings: ServeSettings,
    /// Who may use it.
    pub keys: KeyRing,
    /// How much it does at once.
    pub caps: Caps,
    /// What inputs may be.
    pub limits: Limits,
    /// No run takes longer; `None` = only the workflow's own deadline holds.
    pub run_deadline: Option<Duration>,
    /// The workflows that it serves, by name.
    pub workflows: BTreeMap<String, Arc<Workflow>>,
    /// The runtime and its journal, once they are there.
    pub door: Door,
    /// How it ends.
    pub ending: Ending,
    /// What `/metrics` shows; `None` where the program that the service is part of has a recorder of its own.
    pub metrics: Option<MetricsPage>,
}

/// The metrics as Prometheus reads them.
#[derive(Clone)]
pub struct MetricsPage(pub PrometheusHandle);

impl std::fmt::Debug for MetricsPage {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("MetricsPage")
    }
}

/// A cloneable front of the service.
#[derive(Debug, Clone)]
pub struct AppState(Arc<Service>);

impl AppState {
    /// The front of `service`.
    pub fn new(service: Service) -> Self {
        Self(Arc::new(service))
    }

    /// The runtime with its journal. Waits for them where a predecessor still holds the journal.
    pub async fn running(&self) -> Result<Running, Failure> {
        self.door.wait(self.settings.handover_wait).await
    }

    /// The runtime; waits for it as [`AppState::running`] does.
    pub async fn runtime(&self) -> Result<Arc<Runtime>, Failure> {
        Ok(self.running().await?.runtime)
    }

    /// The agent of this name.
    pub async fn agent(&self, name: &str) -> Result<AgentHandle, Failure> {
        let runtime = self.runtime().await?;
        runtime.agent(name).ok_or_else(|| Failure::not_found(format_args!("agent {name:?}")))
    }
}

impl Deref for AppState {
    type Target = Service;

    fn deref(&self) -> &Service {
        &self.0
    }
}

/// What does the work.
#[derive(Debug, Clone)]
pub struct Running {
    /// The runtime.
    pub runtime: Arc<Runtime>,
    /// Where its runs are written down.
    pub journal: Arc<SqliteJournal>,
}

/// Where the runtime is put once it is there, and taken from.
#[derive(Debug)]
pub struct Door {
    running: watch::Sender<Option<Running>>,
}

impl Default for Door {
    fn default() -> Self {
        Self { running: watch::Sender::new(None) }
    }
}

impl Door {
    /// Lets requests in.
    pub fn open(&self, running: Running) {
        self.running.send_replace(Some(running));
    }

    /// Lets no more requests in, and gives back what was there.
    pub fn shut(&self) -> Option<Running> {
        self.running.send_replace(None)
    }

    /// What is there now.
    pub fn now(&self) -> Option<Running> {
        self.running.borrow().clone()
    }

    async fn wait(&self, longest: Duration) -> Result<Running, Failure> {
        if let Some(running) = self.now() {
            return Ok(running);
        }
        let mut seen = self.running.subscribe();
        let there = seen.wait_for(Option::is_some);
        let found = tokio::time::timeout(longest, there).await.ok().and_then(Result::ok);
        found.and_then(|running| running.clone()).ok_or_else(Failure::shutting_down)
    }
}

/// How the service ends, in three steps that never go back.
#[derive(Debug, Clone, Default)]
pub struct Ending {
    /// No new work is taken; what is under way goes on.
    pub draining: CancellationToken,
    /// Streams get their last line.
    pub closing_streams: CancellationToken,
}

impl Ending {
    /// Refuses new work once the service is stopping.
    pub fn check(&self) -> Result<(), Failure> {
        if self.draining.is_cancelled() { Err(Failure::shutting_down()) } else { Ok(()) }
    }
}
