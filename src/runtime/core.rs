//! What outlives every actor: agents, providers, their slots, gates, budgets and ledgers. Each field names its one writer.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError},
    time::Duration,
};

use arc_swap::ArcSwap;
use metrics::{Counter, Gauge, Histogram};
use tokio::sync::broadcast;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    adaptive::{LimitEvent, ProviderLimit},
    address::Address,
    agent_actor::AgentMessage,
    callers::Callers,
    capture::Captures,
    compartments::Compartments,
    counted::RateBook,
    dead_letters::DeadLetters,
    deferred::queue::DeferredQueue,
    gate::Gate,
    journal::Journal,
    ladders::Ladders,
    metric,
    orchestrator::OrchestratorMessage,
    overload::Overload,
    ports::{Backend, CallLog, Clock},
    presence::Presence,
    pulse::Pulse,
    rates::Rate,
    reload::gone::GoneGauge,
    run_room::RunRoom,
    settings::{AgentSettings, ProviderSettings},
    shielded::{Shielded, shielded},
    spending::TokenBook,
    stop_signal::StopSignal,
    supervisor::{Book, SupervisorMessage},
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    warming::{ModelCore, Models},
};
use crate::{
    model::{clock::Timestamp, name::Name},
    policy::{
        breaker::window::Source, chance::Chance, compartment::needs::CountId, fallback::Rank, restart::RestartLedger,
        retry::RetryBudget, run_caps::RunCaps, verdict::Keyed,
    },
};

/// A breaker's place in the supervisor's book.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BreakerId(pub(crate) usize);

/// A breaker as callers know it: its name, its place in the book, its published gate.
#[derive(Debug, Clone)]
pub(crate) struct Guard {
    pub(crate) name: Arc<str>,
    pub(crate) id: BreakerId,
    /// Written by the supervisor; trials are taken by callers.
    pub(crate) gate: Arc<Gate>,
}

/// One provider.
pub(crate) struct ProviderCore {
    pub(crate) settings: ProviderSettings,
    /// Its slots; `None` = no cap.
    pub(crate) count: Option<CountId>,
    /// Its requests a minute. It outlives a reload.
    pub(crate) rate: Option<Arc<Rate>>,
    /// Those of a limit that it has no more: a later one goes on from there.
    pub(crate) rate_at_rest: Option<Arc<Rate>>,
    /// Its adaptive limit, if it has one.
    pub(crate) adaptive: Option<ProviderLimit>,
    /// Only where two or more agents lean on it.
    pub(crate) guard: Option<Guard>,
    pub(crate) key_guard: Option<Guard>,
    /// Written by attempts. It outlives a reload.
    pub(crate) retry_budget: Arc<Mutex<RetryBudget>>,
    /// The agents that lean on it, those that once did included: their places do not change.
    pub(crate) members: Vec<Name>,
    /// Where it is, if it is one place outside this program.
    pub(crate) stands_at: Option<Arc<str>>,
}

/// What all targets of one agent share. It outlives a reload.
pub(crate) struct AgentCommon {
    /// Who it is in the windows of breakers.
    pub(crate) number: u16,
    /// Its slots.
    pub(crate) count: CountId,
    /// Written by attempts.
    pub(crate) retry_budget: Mutex<RetryBudget>,
    pub(crate) mailbox_depth: AtomicU32,
    pub(crate) slot_milliseconds: AtomicU64,
}

impl AgentCommon {
    pub(crate) fn of(settings: &AgentSettings, number: u16, count: CountId) -> Self {
        Self {
            number,
            count,
            retry_budget: Mutex::new(RetryBudget::new(&settings.retry)),
            mailbox_depth: AtomicU32::new(0),
            slot_milliseconds: AtomicU64::new(0),
        }
    }
}

/// One agent at one of its targets: the first stands for the agent itself, further ones are cores of their own behind it. A reload makes
/// another core with other settings at the same place; what both share stands behind an [`Arc`].
pub(crate) struct AgentCore {
    pub(crate) index: usize,
    /// `provider/model`.
    pub(crate) target: Arc<str>,
    pub(crate) rank: Rank,
    /// Where the agent's first target is: here, unless this is a further one.
    pub(crate) first: usize,
    /// Where the further ones are; empty in those themselves.
    pub(crate) further: Vec<usize>,
    pub(crate) common: Arc<AgentCommon>,
    pub(crate) settings: AgentSettings,
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) provider: Arc<ProviderCore>,
    /// Its place among the provider's members.
    pub(crate) member: u16,
    pub(crate) source: Source,
    pub(crate) keyed: Keyed,
    pub(crate) guard: Guard,
    /// Written by root (deaths) and supervisor (panics).
    pub(crate) ledger: Arc<Mutex<RestartLedger>>,
    pub(crate) address: Arc<Address<AgentMessage>>,
    pub(crate) metrics: Arc<AgentMetrics>,
    /// Whether it can be called, and by how many it is.
    pub(crate) presence: Arc<Presence>,
    /// There is another core at its place: it serves those who have it, and nobody else.
    pub(crate) superseded: AtomicBool,
    /// Its model on its provider, if anybody looks after it being loaded; shared by all agents that use it.
    pub(crate) model: Option<Arc<ModelCore>>,
    /// Where its work is done, if that is one place outside this program.
    pub(crate) stands_at: Option<Arc<str>>,
}

impl AgentCore {
    /// Whether it is the only target of its agent.
    pub(crate) fn is_alone(&self) -> bool {
        self.is_first() && self.further.is_empty()
    }

    /// Whether it stands for its agent.
    pub(crate) fn is_first(&self) -> bool {
        self.first == self.index
    }

    /// Whether its model at its provider is one of these places. Services without models are told apart by their paths, not by these.
    pub(crate) fn is_among(&self, places: &[Arc<str>]) -> bool {
        self.settings.model.is_some() && places.contains(&self.target)
    }

    /// One of its slots is taken. Metrics count up and down, so that nothing is asked of the lock that every call takes.
    pub(crate) fn show_taken(&self) {
        self.metrics.in_flight.increment(1.0);
    }

    /// One of its slots is given back, after so long.
    pub(crate) fn show_given_back(&self, held: Duration) {
        let held_ms = u64::try_from(held.as_millis()).unwrap_or(u64::MAX);
        let total_ms = self.common.slot_milliseconds.fetch_add(held_ms, Ordering::Relaxed).saturating_add(held_ms);
        self.metrics.in_flight.decrement(1.0);
        self.metrics.slot_seconds.absolute(total_ms / 1_000);
    }

    /// The breakers in front of it, from the outside in.
    pub(crate) fn guards(&self) -> impl Iterator<Item = &Guard> {
        self.provider.guard.iter().chain(&self.provider.key_guard).chain(std::iter::once(&self.guard))
    }

    /// The one of them that is `breaker`'s.
    pub(crate) fn guard_of(&self, breaker: BreakerId) -> Option<&Guard> {
        self.guards().find(|guard| guard.id == breaker)
    }
}

/// An agent's metrics, looked up once.
pub(crate) struct AgentMetrics {
    pub(crate) admitted: Shielded<Counter>,
    pub(crate) in_flight: Shielded<Gauge>,
    pub(crate) slot_seconds: Shielded<Counter>,
    pub(crate) call_seconds: Shielded<Histogram>,
    pub(crate) attempt_seconds: Shielded<Histogram>,
    pub(crate) first_token_seconds: Shielded<Histogram>,
    pub(crate) retries: Shielded<Counter>,
    pub(crate) restarts: Shielded<Counter>,
    pub(crate) mailbox_depth: Shielded<Gauge>,
    pub(crate) prompt_tokens: Shielded<Counter>,
    pub(crate) output_tokens: Shielded<Counter>,
    pub(crate) usage_estimated: Shielded<Counter>,
}

impl AgentMetrics {
    /// Shows its slots.
    pub(crate) fn show_slots(agent: &str, slots: u32) {
        metric::set(metric::SLOTS, vec![metrics::Label::new("agent", agent.to_owned())], f64::from(slots));
    }

    pub(crate) fn of(agent: &str, slots: u32) -> Self {
        let labels = || vec![metrics::Label::new("agent", agent.to_owned())];
        let tokens = |kind: &'static str| {
            let labels =
                vec![metrics::Label::new("agent", agent.to_owned()), metrics::Label::from_static_parts("kind", kind)];
            Shielded::from(metrics::counter!(metric::TOKENS.name, labels))
        };
        Self::show_slots(agent, slots);
        Self {
            admitted: metrics::counter!(metric::ADMITTED.name, labels()).into(),
            in_flight: metrics::gauge!(metric::IN_FLIGHT.name, labels()).into(),
            slot_seconds: metrics::counter!(metric::SLOT_SECONDS.name, labels()).into(),
            call_seconds: metrics::histogram!(metric::CALL_SECONDS.name, labels()).into(),
            attempt_seconds: metrics::histogram!(metric::ATTEMPT_SECONDS.name, labels()).into(),
            first_token_seconds: metrics::histogram!(metric::FIRST_TOKEN_SECONDS.name, labels()).into(),
            retries: metrics::counter!(metric::RETRIES.name, labels()).into(),
            restarts: metrics::counter!(metric::ACTOR_RESTARTS.name, labels()).into(),
            mailbox_depth: metrics::gauge!(metric::MAILBOX_DEPTH.name, labels()).into(),
            prompt_tokens: tokens("prompt"),
            output_tokens: tokens("output"),
            usage_estimated: metrics::counter!(metric::USAGE_ESTIMATED.name, labels()).into(),
        }
    }
}

/// All targets of all agents.
#[derive(Default)]
pub(crate) struct AgentTable {
    /// The first ones of all agents, then the further ones. A place is never used for another one.
    pub(crate) agents: Vec<Arc<AgentCore>>,
    /// Where the agents that can be called are in `agents`.
    pub(crate) places: HashMap<Name, usize>,
    /// All providers, those that are gone included.
    pub(crate) providers: HashMap<Name, Arc<ProviderCore>>,
    /// The models of all targets: their places are who they are in the windows of breakers.
    pub(crate) models: Vec<(Name, Option<String>)>,
}

/// Everything that all parts of one runtime share.
pub(crate) struct Shared {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) chance: Chance,
    /// Who is there; replaced as a whole by a reload.
    pub(crate) table: ArcSwap<AgentTable>,
    /// What each run may use in all; written by a reload.
    pub(crate) run_caps: Mutex<RunCaps>,
    /// What the outputs of live runs take.
    pub(crate) run_room: Arc<RunRoom>,
    /// Token budgets and prices.
    pub(crate) tokens: TokenBook,
    /// All slots, and who waits for them.
    pub(crate) compartments: Compartments,
    /// Callers' volume guards and requests a minute.
    pub(crate) callers: Callers,
    /// What features and tiers have in a minute; replaced by a reload.
    pub(crate) rate_book: ArcSwap<RateBook>,
    /// Which classes are refused for higher ones.
    pub(crate) overload: Overload,
    /// Who watches adaptive limits.
    pub(crate) limits: broadcast::Sender<LimitEvent>,
    pub(crate) supervisor: Address<SupervisorMessage>,
    pub(crate) orchestrator: Address<OrchestratorMessage>,
    /// Written by the supervisor; read by whoever shows it. Who needs the compartments as well takes this first.
    pub(crate) book: Mutex<Book>,
    /// Attempts and timers belong here, to no actor: they survive restarts.
    pub(crate) tracker: TaskTracker,
    /// Cancelled when the runtime stops.
    pub(crate) stopping: StopSignal,
    /// Cancelled when the grace of a stop is over: whatever still runs is aborted.
    pub(crate) aborting: CancellationToken,
    /// Durable runs begin nothing more here, while calls go on.
    pub(crate) leaving_runs: CancellationToken,
    /// Cancelled when what runs have under way here is given up; with `aborting` too.
    pub(crate) aborting_runs: CancellationToken,
    /// The calls of runs.
    pub(crate) run_steps: TaskTracker,
    /// Those of them that are not to be made twice.
    pub(crate) steps_made_once: TaskTracker,
    /// Where runs are written down, if anywhere.
    pub(crate) journal: Option<Arc<dyn Journal>>,
    /// Durable runs move no more: the node is about to go.
    pub(crate) frozen: AtomicBool,
    pub(crate) calls: AtomicU64,
    /// When supervisor and orchestrator last turned.
    pub(crate) pulse: Pulse,
    /// The models that are looked after.
    pub(crate) models: Models,
    /// Calls that are made no more.
    pub(crate) dead_letters: DeadLetters,
    /// Where finished calls are written down, if anywhere.
    pub(crate) call_log: Option<Arc<dyn CallLog>>,
    /// What calls do next when they are refused or fail; replaced as a whole by a reload.
    pub(crate) ladders: ArcSwap<Ladders>,
    /// Calls that are made later, where there is a place to keep them.
    pub(crate) deferred: Option<Arc<DeferredQueue>>,
    /// Who keeps attempts word for word, if anybody.
    pub(crate) captures: Option<Captures>,
    /// One reload at a time.
    pub(crate) reloading: tokio::sync::Mutex<()>,
    /// Told whenever a reload is in place.
    pub(crate) reloaded: tokio::sync::Notify,
    /// Gauges of what is gone: they say nothing any more. Written by a reload.
    pub(crate) gone_gauges: ArcSwap<Vec<GoneGauge>>,
}

impl Shared {
    /// Whether durable runs begin nothing more here.
    pub(crate) fn holds_runs(&self) -> bool {
        self.stopping.is_cancelled() || self.leaving_runs.is_cancelled()
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// The time for a drop: a clock that panics there must not keep what is given back.
    pub(crate) fn now_or(&self, otherwise: Timestamp) -> Timestamp {
        shielded(|| self.now()).unwrap_or(otherwise)
    }

    /// The agents as they are now.
    pub(crate) fn agents(&self) -> arc_swap::Guard<Arc<AgentTable>> {
        self.table.load()
    }

    /// The agent of this name: its first target.
    pub(crate) fn agent(&self, name: &str) -> Option<Arc<AgentCore>> {
        let table = self.table.load();
        table.places.get(name).and_then(|place| table.agents.get(*place)).map(Arc::clone)
    }

    /// The target at this place.
    pub(crate) fn at(&self, index: usize) -> Option<Arc<AgentCore>> {
        self.table.load().agents.get(index).map(Arc::clone)
    }

    /// All targets of the agent whose first one is `first`, in the order in which they are configured.
    pub(crate) fn targets_of(&self, first: &Arc<AgentCore>) -> Vec<Arc<AgentCore>> {
        let table = self.table.load();
        let further = first.further.iter().filter_map(|index| table.agents.get(*index));
        std::iter::once(first).chain(further).map(Arc::clone).collect()
    }

    /// An outward id that sorts by time. It only has to be unique, so its random part is not asked of the kernel.
    pub(crate) fn call_id(&self, at: Timestamp) -> String {
        let mut random = [0; 10];
        fastrand::fill(&mut random);
        uuid::Builder::from_unix_timestamp_millis(self.clock.unix_ms(at), &random).into_uuid().to_string()
    }

    pub(crate) fn next_call(&self) -> u64 {
        self.calls.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// Locks a mutex whose data stay valid whatever panicked: each change under it is one call of a policy struct.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
