//! What every handler holds: settings, keys, caps, workflows, and the door to the runtime. Decides nothing.

use std::{
    collections::BTreeMap,
    ops::Deref,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use metrics_exporter_prometheus::PrometheusHandle;
use tokio::sync::watch;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    access::{keys::KeyRing, signature::Signer},
    answer::failure::Failure,
    arriving::Arriving,
    caps::Caps,
    operator::config::ConfigDesk,
};
use crate::{
    journal::{files::store::FileStore, journal::SqliteJournal},
    model::language::Language,
    runtime::{engine::Runtime, handle::AgentHandle},
    settings::{
        general::{Limits, PlaceSharing},
        serve::ServeSettings,
    },
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
    /// The language of texts for a screen, where a request asks for none.
    pub language: Language,
    /// What inputs may be.
    pub limits: Limits,
    /// No run takes longer; `None` = only the workflow's own deadline holds.
    pub run_deadline: Option<Duration>,
    /// How far runs may tell the places of photos, whatever their inputs say.
    pub places: PlaceSharing,
    /// The workflows that it serves, by name.
    pub workflows: BTreeMap<String, Arc<Workflow>>,
    /// What does the work, once it is there.
    pub door: Door<Running>,
    /// Signs what is given out for a short while.
    pub signer: Signer,
    /// How it ends.
    pub ending: Ending,
    /// The configuration in force.
    pub config: ConfigDesk,
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

    /// The runtime with its journal. Waits for them where a predecessor still holds the journal, which hears that somebody does.
    pub async fn running(&self) -> Result<Arc<Running>, Failure> {
        self.door.wait_in_a_hurry(self.settings.handover_wait).await
    }

    /// The same for whoever waits for something to happen in any case: no step of a predecessor's is cut for that.
    pub async fn running_at_leisure(&self) -> Result<Arc<Running>, Failure> {
        self.door.wait(self.settings.handover_wait).await
    }

    /// The runtime; waits for it as [`AppState::running`] does.
    pub async fn runtime(&self) -> Result<Arc<Runtime>, Failure> {
        Ok(Arc::clone(&self.running().await?.runtime))
    }

    /// The files. Waits for them as for the runtime.
    pub async fn files(&self) -> Result<Arc<FileStore>, Failure> {
        Ok(Arc::clone(&self.running().await?.files))
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
#[derive(Debug)]
pub struct Running {
    /// The runtime.
    pub runtime: Arc<Runtime>,
    /// Where its runs are written down.
    pub journal: Arc<SqliteJournal>,
    /// Files that runs name.
    pub files: Arc<FileStore>,
}

/// Where something is put once it is there, and taken from: what waits for a predecessor's journal.
#[derive(Debug)]
pub struct Door<T> {
    inside: watch::Sender<Option<Arc<T>>>,
    /// Somebody who is in a hurry has come to it while it was shut.
    wanted: CancellationToken,
    /// A predecessor is about to hand over what will be inside.
    is_handed_over: AtomicBool,
    /// Nothing will be inside.
    given_up: CancellationToken,
}

/// Whether a predecessor is about to hand something over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coming {
    /// It said so.
    Soon,
    /// It is there, or there is no telling when it comes.
    NotSaid,
}

impl<T> Default for Door<T> {
    fn default() -> Self {
        let (wanted, is_handed_over, given_up) =
            (CancellationToken::new(), AtomicBool::new(false), CancellationToken::new());
        Self { inside: watch::Sender::new(None), wanted, is_handed_over, given_up }
    }
}

impl<T> Door<T> {
    /// Lets requests in.
    pub fn open(&self, inside: Arc<T>) {
        self.inside.send_replace(Some(inside));
    }

    /// Lets no more requests in, and gives back what is inside.
    pub fn shut(&self) -> Option<Arc<T>> {
        self.inside.send_replace(None)
    }

    /// Whoever waits at it, or comes, is told that nothing comes.
    pub fn give_up(&self) {
        self.given_up.cancel();
    }

    /// What is inside, if it is there.
    pub fn now(&self) -> Option<Arc<T>> {
        self.inside.borrow().clone()
    }

    /// Whether what will be inside is on its way: a predecessor said that it hands it over.
    pub fn is_handed_over(&self) -> bool {
        self.is_handed_over.load(Ordering::Relaxed)
    }

    /// A predecessor hands over what will be inside, or it does not any more.
    pub fn comes_from_predecessor(&self, is_so: Coming) {
        self.is_handed_over.store(is_so == Coming::Soon, Ordering::Relaxed);
    }

    /// Waits until somebody in a hurry has come to the shut door.
    pub async fn wanted(&self) {
        self.wanted.cancelled().await;
    }

    async fn wait_in_a_hurry(&self, longest: Duration) -> Result<Arc<T>, Failure> {
        if let Some(inside) = self.now() {
            return Ok(inside);
        }
        self.wanted.cancel();
        self.wait(longest).await
    }

    async fn wait(&self, longest: Duration) -> Result<Arc<T>, Failure> {
        if let Some(inside) = self.now() {
            return Ok(inside);
        }
        let mut seen = self.inside.subscribe();
        let there = async {
            tokio::select! {
                biased;
                there = seen.wait_for(Option::is_some) => there.ok(),
                () = self.given_up.cancelled() => None,
            }
        };
        let found = tokio::time::timeout(longest, there).await.ok().flatten();
        found.and_then(|inside| inside.clone()).ok_or_else(Failure::shutting_down)
    }
}

/// How the service ends, in steps that never go back.
#[derive(Debug, Clone, Default)]
pub struct Ending {
    /// Nobody is to send new work here.
    pub leaving: CancellationToken,
    /// No new work is taken; what is under way goes on.
    pub draining: CancellationToken,
    /// Streams get their last line.
    pub closing_streams: CancellationToken,
    /// Grace is nearly over: whoever still waits for an answer is told why there is none.
    pub last_words: CancellationToken,
    /// Requests that were taken in and need the journal once they are read.
    arriving: TaskTracker,
}

impl Ending {
    /// Whether the service is still to be sent new work.
    pub fn check_ready(&self) -> Result<(), Failure> {
        if self.leaving.is_cancelled() { Err(Failure::shutting_down()) } else { self.check() }
    }

    /// Takes a request in that needs the journal once it is read; refuses it like [`Ending::check`].
    pub(super) fn arrive(&self) -> Result<Arriving, Failure> {
        // Counted before it is looked: whoever drains either finds it or has it refused.
        let arriving = Arriving::counted(self.arriving.token());
        self.check().map(|()| arriving)
    }

    /// Waits until all requests that were taken in are read and have what they need of the journal. Only after `draining`: before, there
    /// are always more.
    pub async fn arrived(&self) {
        self.arriving.close();
        self.arriving.wait().await;
    }

    /// Refuses new work once the service is stopping.
    pub fn check(&self) -> Result<(), Failure> {
        if self.draining.is_cancelled() { Err(Failure::shutting_down()) } else { Ok(()) }
    }
}
