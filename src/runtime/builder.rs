//! Building a runtime from its parts: checks that everything fits together, makes the cores and breakers, starts the actors.

use std::sync::Arc;

use arc_swap::ArcSwap;
use ractor::Actor;
use tokio::sync::broadcast;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    adaptive::LIMIT_EVENTS_MAX,
    address::Address,
    assembly::{self, Made},
    callers::{CallerSettings, Callers},
    capture::Captures,
    compartments::{Compartments, State},
    compartments_builder::CompartmentsBuilder,
    core::{AgentTable, Shared},
    counted::RateBook,
    dead_letters::{DeadLetterBox, DeadLetters},
    deferred::{push::Push, queue::DeferredQueue, settings::DeferredSettings, store::DeferredStore, worker::Worker},
    engine::Runtime,
    journal::Journal,
    ladders::Ladders,
    overload::Overload,
    parts::Parts,
    ports::{Backend, CallLog, Clock, TokioClock},
    pulse::Pulse,
    reload::before::Before,
    root::RootActor,
    run_room::RunRoom,
    run_table::RunTable,
    settings::{AgentSettings, ProviderSettings, TargetSettings},
    spending::{SpendingSettings, TokenBook},
    stop_signal::StopSignal,
    supervisor::Book,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64},
    },
    warming::Models,
};
use crate::{
    model::name::Name,
    policy::{
        chance::Chance, compartment::settings::CompartmentSettings, fallback::Rank, run_caps::RunCaps,
        setting::InvalidSetting,
    },
};

/// The most agents of one runtime.
pub const AGENTS_MAX: usize = 10_000;
/// Transitions that a slow observer may lag behind before it loses the oldest.
pub const BREAKER_EVENTS_MAX: usize = 1_024;

/// Why a runtime cannot start.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum StartError {
    /// A ladder puts calls off, but there is no place to keep them.
    #[error("a ladder has the rung \"deferred\", but there is no journal to keep calls in")]
    NoQueue,
    /// The program aborts on panic: nothing could be supervised.
    #[error("this program is built with panic = \"abort\"; supervision needs panic = \"unwind\"")]
    PanicAbort,
    /// Two agents or providers of one name.
    #[error("{0} is there twice")]
    Twice(Name),
    /// An agent's provider is not there.
    #[error("agent {agent} leans on provider {provider}, which is not there")]
    NoProvider {
        /// The agent.
        agent: Name,
        /// The provider that it names.
        provider: Name,
    },
    /// A setting of an agent or provider breaks a rule.
    #[error("{name}: {broken}")]
    Setting {
        /// The agent or provider.
        name: Name,
        /// The rule.
        broken: InvalidSetting,
    },
    /// What a provider keeps for agents, features and classes does not fit into its slots.
    #[error("{provider}: {guaranteed} slots are kept for agents, features and classes, but there are {slots}")]
    Shares {
        /// The provider.
        provider: Name,
        /// The sum of the shares.
        guaranteed: u64,
        /// Its slots.
        slots: u32,
    },
    /// A guaranteed share names an agent that does not lean on the provider.
    #[error("{provider}: a share is guaranteed to {agent}, which does not lean on it")]
    StrangeShare {
        /// The provider.
        provider: Name,
        /// The agent that it names.
        agent: Name,
    },
    /// A reload has no place left for what is new: places of what is gone are never given to others.
    #[error("too many agents, providers or features have come and gone; this needs a restart")]
    NoPlaceLeft,
    /// More agents than [`AGENTS_MAX`].
    #[error("more than {AGENTS_MAX} agents")]
    TooManyAgents,
    /// An actor did not start.
    #[error("the actors did not start: {0}")]
    Actors(String),
}

/// Collects what a runtime is made of.
#[derive(Default)]
pub struct RuntimeBuilder {
    clock: Option<Arc<dyn Clock>>,
    seed: Option<u64>,
    parts: Parts,
    call_log: Option<Arc<dyn CallLog>>,
    dead_letter_box: Option<Arc<dyn DeadLetterBox>>,
    journal: Option<Arc<dyn Journal>>,
    captures: Option<Captures>,
    queue: Option<QueuePlace>,
    run_outputs_bytes_max: Option<u64>,
}

/// Where calls that are put off are kept, and who is told of their end.
type QueuePlace = (Arc<dyn DeferredStore>, Option<Arc<dyn Push>>);

/// The queue, if there is a place for one; an error if a ladder needs it.
fn queue_of(place: Option<QueuePlace>, parts: &Parts) -> Result<Option<Arc<DeferredQueue>>, StartError> {
    let Some((store, push)) = place else {
        return if parts.ladders.any_defers() { Err(StartError::NoQueue) } else { Ok(None) };
    };
    // One life of one process: what is left of an earlier one is known by its name.
    let life = format!("{}-{:x}", std::process::id(), fastrand::u64(..));
    Ok(Some(Arc::new(DeferredQueue::new(store, parts.deferred.clone(), push, life))))
}

impl std::fmt::Debug for RuntimeBuilder {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("RuntimeBuilder").field("parts", &self.parts).finish_non_exhaustive()
    }
}

impl RuntimeBuilder {
    /// Time comes from here; tokio's clock if nothing is given.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// All jitter comes from this seed; a random one if nothing is given.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Everything that a reload can change, as a whole; it stands instead of what was given before.
    #[must_use]
    pub fn parts(mut self, parts: Parts) -> Self {
        self.parts = parts;
        self
    }

    /// See [`Parts::provider`].
    #[must_use]
    pub fn provider(self, settings: ProviderSettings) -> Self {
        self.with(|parts| parts.provider(settings))
    }

    /// See [`Parts::agent`].
    #[must_use]
    pub fn agent(self, settings: AgentSettings, backend: Arc<dyn Backend>) -> Self {
        self.with(|parts| parts.agent(settings, backend))
    }

    /// See [`Parts::agent_with_targets`].
    #[must_use]
    pub fn agent_with_targets(
        self,
        settings: AgentSettings,
        rank: Rank,
        backend: Arc<dyn Backend>,
        further: Vec<(TargetSettings, Arc<dyn Backend>)>,
    ) -> Self {
        self.with(|parts| parts.agent_with_targets(settings, rank, backend, further))
    }

    /// See [`Parts::guarded`].
    #[must_use]
    pub fn guarded(self, settings: AgentSettings) -> Self {
        self.with(|parts| parts.guarded(settings))
    }

    /// See [`Parts::compartments`].
    #[must_use]
    pub fn compartments(self, settings: CompartmentSettings) -> Self {
        self.with(|parts| parts.compartments(settings))
    }

    /// See [`Parts::spending`].
    #[must_use]
    pub fn spending(self, settings: SpendingSettings) -> Self {
        self.with(|parts| parts.spending(settings))
    }

    /// See [`Parts::run_caps`].
    #[must_use]
    pub fn run_caps(self, caps: RunCaps) -> Self {
        self.with(|parts| parts.run_caps(caps))
    }

    /// About the memory, in bytes, that outputs of live runs may take: no run is accepted while they take more, and of those that are live
    /// one at a time goes on. One run may take half. Not bounded without this.
    #[must_use]
    pub fn run_outputs_bytes_max(mut self, bytes: u64) -> Self {
        self.run_outputs_bytes_max = Some(bytes);
        self
    }

    /// See [`Parts::callers`].
    #[must_use]
    pub fn callers(self, settings: CallerSettings) -> Self {
        self.with(|parts| parts.callers(settings))
    }

    /// See [`Parts::ladders`]. Those that put calls off need [`RuntimeBuilder::deferred`].
    #[must_use]
    pub fn ladders(self, ladders: Ladders) -> Self {
        self.with(|parts| parts.ladders(ladders))
    }

    fn with(mut self, add: impl FnOnce(Parts) -> Parts) -> Self {
        self.parts = add(self.parts);
        self
    }

    /// Writes every finished or refused call down there.
    #[must_use]
    pub fn call_log(mut self, call_log: Arc<dyn CallLog>) -> Self {
        self.call_log = Some(call_log);
        self
    }

    /// Keeps attempts of agents that are reached over a wire word for word; none without this.
    #[must_use]
    pub fn captures(mut self, captures: Captures) -> Self {
        self.captures = Some(captures);
        self
    }

    /// Calls that are put aside go there too, beside the runtime's own memory. A journal gets them by itself.
    #[must_use]
    pub fn dead_letter_box(mut self, dead_letter_box: Arc<dyn DeadLetterBox>) -> Self {
        self.dead_letter_box = Some(dead_letter_box);
        self
    }

    /// Writes runs down there, those that are asked for with [`Runtime::accept_run`]. The clock must then count from the Unix epoch, so
    /// that its moments mean the same after a restart.
    #[must_use]
    pub fn journal(mut self, journal: Arc<dyn Journal>) -> Self {
        self.journal = Some(journal);
        self
    }

    /// Keeps calls that are put off there, makes them when their time has come, and tells `push` of their end. The clock must then count
    /// from the Unix epoch.
    #[must_use]
    pub fn deferred(
        mut self,
        store: Arc<dyn DeferredStore>,
        settings: DeferredSettings,
        push: Option<Arc<dyn Push>>,
    ) -> Self {
        self.queue = Some((store, push));
        self.with(|parts| parts.deferred(settings))
    }

    /// Starts the actors on the present tokio runtime.
    pub async fn start(self) -> Result<Runtime, StartError> {
        begin(self.assemble()?).await
    }

    /// Everything that a runtime is made of, before its actors.
    pub(crate) fn assemble(self) -> Result<Arc<Shared>, StartError> {
        self.check()?;
        let seed = self.seed.unwrap_or_else(|| fastrand::u64(..));
        tracing::debug!(seed, "all jitter comes from this seed");
        let chance = Chance::from_seed(seed);
        let clock = self.clock.unwrap_or_else(|| Arc::new(TokioClock::start()));
        let before = Before::nothing(clock.now());
        let (mut book, mut state) = (Book::default(), State::default());
        let parts = self.parts;
        let mut compartments = CompartmentsBuilder::new(&parts.compartments, &mut state, before.now);
        let targets = assembly::lay_out(parts.agents.clone())?;
        let making = (&mut book, &mut compartments);
        let loaded = Models::default();
        let providers = assembly::make_providers(&parts.providers, &targets, making, (chance, &clock), &before)?;
        let making = (&mut book, &mut compartments);
        let Made { agents, models } = assembly::make_agents(targets, &providers, making, chance, &before, &loaded)?;
        compartments.begin();
        let firsts = agents.iter().filter(|agent| agent.is_first());
        let places = firsts.map(|agent| (agent.settings.name.clone(), agent.index)).collect();
        let deferred = queue_of(self.queue, &parts)?;
        let known = state.directory.known_tenants();
        let aborting = CancellationToken::new();
        Ok(Arc::new(Shared {
            chance,
            table: ArcSwap::from_pointee(AgentTable { agents, places, providers, models }),
            run_caps: Mutex::new(parts.run_caps),
            run_room: RunRoom::of(self.run_outputs_bytes_max),
            tokens: TokenBook::new(parts.spending, (&parts.compartments, &known), &parts.providers, clock.now()),
            callers: Callers::new(parts.callers, Arc::clone(&clock), self.journal.clone()),
            rate_book: ArcSwap::from_pointee(RateBook::default().renewed(&parts.compartments, &known, &clock)),
            overload: Overload::new(parts.compartments.shedding.clone(), chance, Arc::clone(&clock)),
            limits: broadcast::channel(LIMIT_EVENTS_MAX).0,
            compartments: Compartments::of(state),
            clock,
            models: loaded,
            supervisor: Address::vacant(),
            orchestrator: Address::vacant(),
            book: Mutex::new(book),
            tracker: TaskTracker::new(),
            stopping: StopSignal::default(),
            leaving_runs: CancellationToken::new(),
            aborting_runs: aborting.child_token(),
            run_steps: TaskTracker::new(),
            steps_made_once: TaskTracker::new(),
            aborting,
            calls: AtomicU64::new(0),
            pulse: Pulse::default(),
            dead_letters: DeadLetters::with(self.dead_letter_box),
            call_log: self.call_log,
            journal: self.journal,
            ladders: ArcSwap::from_pointee(parts.ladders),
            deferred,
            captures: self.captures,
            frozen: AtomicBool::new(false),
            reloading: tokio::sync::Mutex::new(()),
            reloaded: tokio::sync::Notify::new(),
            gone_gauges: ArcSwap::default(),
        }))
    }

    /// What can be wrong before anything is made.
    fn check(&self) -> Result<(), StartError> {
        if cfg!(panic = "abort") {
            Err(StartError::PanicAbort)
        } else if self.parts.agents.len() > AGENTS_MAX {
            Err(StartError::TooManyAgents)
        } else {
            Ok(())
        }
    }
}

/// Starts the actors.
async fn begin(shared: Arc<Shared>) -> Result<Runtime, StartError> {
    shared.pulse.begin(shared.now());
    let (events, _) = broadcast::channel(BREAKER_EVENTS_MAX);
    let runs = Arc::new(RunTable::default());
    let root = RootActor { shared: Arc::clone(&shared), events: events.clone(), runs: Arc::clone(&runs) };
    let (root, joined) = Actor::spawn(None, root, ()).await.map_err(|error| StartError::Actors(error.to_string()))?;
    if let Some(queue) = &shared.deferred {
        shared.tracker.spawn(Worker::new(Arc::clone(&shared), Arc::clone(queue)).work());
    }
    Ok(Runtime::new(shared, runs, events, root, joined))
}
