//! Building a runtime: checks that everything fits together, makes the cores and breakers, starts the actors.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, AtomicU64},
    },
    time::Duration,
};

use ractor::Actor;
use tokio::sync::broadcast;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    address::Address,
    core::{AgentCore, AgentMetrics, Guard, ProviderCore, Shared},
    dead_letters::{DeadLetterBox, DeadLetters},
    engine::Runtime,
    outside::OutsideBackend,
    ports::{Backend, CallLog, Clock, TokioClock},
    pulse::Pulse,
    root::RootActor,
    run_table::RunTable,
    settings::{AgentSettings, ProviderSettings, SLOTS_MAX},
    supervisor::Book,
};
use crate::{
    model::name::Name,
    policy::{
        breaker::{
            machine::Breaker,
            settings::{BreakerSettings, Scope},
            window::Source,
        },
        bulkhead::Bulkhead,
        chance::Chance,
        restart::RestartLedger,
        retry::RetryBudget,
        setting::InvalidSetting,
        verdict::Keyed,
    },
};

/// The most agents of one runtime.
pub const AGENTS_MAX: usize = 10_000;
/// Transitions that a slow observer may lag behind before it loses the oldest.
pub const BREAKER_EVENTS_MAX: usize = 1_024;

/// Why a runtime cannot start.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum StartError {
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
    /// The shares guaranteed to a provider's agents do not fit into its slots.
    #[error("{provider}: agents are guaranteed {guaranteed} slots, but there are {slots}")]
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
    providers: Vec<ProviderSettings>,
    agents: Vec<(AgentSettings, Arc<dyn Backend>)>,
    call_log: Option<Arc<dyn CallLog>>,
    dead_letter_box: Option<Arc<dyn DeadLetterBox>>,
}

impl std::fmt::Debug for RuntimeBuilder {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let agents: Vec<&str> = self.agents.iter().map(|(agent, _)| agent.name.as_str()).collect();
        formatter.debug_struct("RuntimeBuilder").field("agents", &agents).finish_non_exhaustive()
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

    /// Adds a provider.
    #[must_use]
    pub fn provider(mut self, settings: ProviderSettings) -> Self {
        self.providers.push(settings);
        self
    }

    /// Adds an agent whose work `backend` does.
    #[must_use]
    pub fn agent(mut self, settings: AgentSettings, backend: Arc<dyn Backend>) -> Self {
        self.agents.push((settings, backend));
        self
    }

    /// Writes every finished or refused call down there.
    #[must_use]
    pub fn call_log(mut self, call_log: Arc<dyn CallLog>) -> Self {
        self.call_log = Some(call_log);
        self
    }

    /// Calls that are put aside go there too, beside the runtime's own memory: every journal is such a place.
    #[must_use]
    pub fn dead_letter_box(mut self, dead_letter_box: Arc<dyn DeadLetterBox>) -> Self {
        self.dead_letter_box = Some(dead_letter_box);
        self
    }

    /// Adds an agent whose work is done outside: its guards are asked with [`super::handle::AgentHandle::enter`] or stand around a
    /// client as a [`super::guard_layer::GuardLayer`].
    #[must_use]
    pub fn guarded(self, settings: AgentSettings) -> Self {
        self.agent(settings, Arc::new(OutsideBackend))
    }

    /// Starts the actors on the present tokio runtime.
    pub async fn start(self) -> Result<Runtime, StartError> {
        if cfg!(panic = "abort") {
            return Err(StartError::PanicAbort);
        }
        if self.agents.len() > AGENTS_MAX {
            return Err(StartError::TooManyAgents);
        }
        let seed = self.seed.unwrap_or_else(|| fastrand::u64(..));
        tracing::debug!(seed, "all jitter comes from this seed");
        let chance = Chance::from_seed(seed);
        let mut book = Book::default();
        let providers = make_providers(&self.providers, &self.agents, &mut book, chance)?;
        let agents = make_agents(self.agents, &providers, &mut book, chance)?;
        let shared = Arc::new(Shared {
            clock: self.clock.unwrap_or_else(|| Arc::new(TokioClock::start())),
            chance,
            places: agents.iter().map(|agent| (agent.settings.name.clone(), agent.index)).collect(),
            agents,
            supervisor: Address::vacant(),
            orchestrator: Address::vacant(),
            book: Mutex::new(book),
            tracker: TaskTracker::new(),
            stopping: CancellationToken::new(),
            aborting: CancellationToken::new(),
            line_length: AtomicU32::new(0),
            line_woken: AtomicBool::new(false),
            calls: AtomicU64::new(0),
            pulse: Pulse::default(),
            dead_letters: DeadLetters::with(self.dead_letter_box),
            call_log: self.call_log,
        });
        let (events, _) = broadcast::channel(BREAKER_EVENTS_MAX);
        let runs = Arc::new(RunTable::default());
        let root = RootActor { shared: Arc::clone(&shared), events: events.clone(), runs: Arc::clone(&runs) };
        let (root, joined) =
            Actor::spawn(None, root, ()).await.map_err(|error| StartError::Actors(error.to_string()))?;
        Ok(Runtime::new(shared, runs, events, root.get_cell(), joined))
    }
}

fn make_providers(
    settings: &[ProviderSettings],
    agents: &[(AgentSettings, Arc<dyn Backend>)],
    book: &mut Book,
    chance: Chance,
) -> Result<HashMap<Name, Arc<ProviderCore>>, StartError> {
    let mut providers = HashMap::new();
    for settings in settings {
        let name = &settings.name;
        let members: Vec<&AgentSettings> =
            agents.iter().map(|(agent, _)| agent).filter(|agent| agent.provider == *name).collect();
        let longest = members.iter().map(|agent| attempt_bound(agent)).max().unwrap_or_default();
        let breaker = with_trial_bound(&settings.breaker, longest);
        let guard = match members.len() {
            // A lone agent's target stands for its provider.
            0 | 1 => None,
            _ => Some(add_breaker(book, name, format!("provider:{name}"), breaker.clone(), Scope::Provider, chance)?),
        };
        let key_guard = settings
            .key
            .as_ref()
            .map(|key| add_breaker(book, name, format!("key:{name}/{key}"), breaker, Scope::Key, chance));
        let slots = match settings.slots {
            Some(cap) => Some(Mutex::new(Bulkhead::shared(cap, &shares(settings, cap, &members)?))),
            None => None,
        };
        let retry = members.first().map(|agent| agent.retry.clone()).unwrap_or_default();
        let core = ProviderCore {
            settings: settings.clone(),
            compartment: format!("provider:{name}").into(),
            slots,
            guard,
            key_guard: key_guard.transpose()?,
            retry_budget: Mutex::new(RetryBudget::new(&retry)),
        };
        if providers.insert(name.clone(), Arc::new(core)).is_some() {
            return Err(StartError::Twice(name.clone()));
        }
    }
    Ok(providers)
}

/// What each member of a provider is guaranteed of its `cap` slots: as configured, else an equal part of all, or of what the
/// configured shares leave where that is less.
fn shares(settings: &ProviderSettings, cap: u32, members: &[&AgentSettings]) -> Result<Vec<u32>, StartError> {
    let provider = &settings.name;
    if cap > SLOTS_MAX {
        let broken = InvalidSetting::new("slots", cap, format!("must be at most {SLOTS_MAX}"));
        return Err(StartError::Setting { name: provider.clone(), broken });
    }
    for (agent, _) in &settings.guaranteed {
        if !members.iter().any(|member| member.name == *agent) {
            return Err(StartError::StrangeShare { provider: provider.clone(), agent: agent.clone() });
        }
    }
    let named = |member: &AgentSettings| {
        settings.guaranteed.iter().find(|(agent, _)| *agent == member.name).map(|(_, share)| *share)
    };
    let guaranteed: u64 = members.iter().filter_map(|member| named(member)).map(u64::from).sum();
    let left = u64::from(cap).checked_sub(guaranteed).and_then(|left| u32::try_from(left).ok());
    let Some(left) = left else {
        return Err(StartError::Shares { provider: provider.clone(), guaranteed, slots: cap });
    };
    let unnamed = members.iter().filter(|member| named(member).is_none()).count();
    let equal = Bulkhead::equal_shares(cap, members.len()).first().copied().unwrap_or(0);
    let rest = Bulkhead::equal_shares(left, unnamed).first().copied().unwrap_or(0);
    Ok(members.iter().map(|member| named(member).unwrap_or(equal.min(rest))).collect())
}

/// How long one attempt of the agent can take.
fn attempt_bound(agent: &AgentSettings) -> Duration {
    agent.timeouts.attempt.map_or(agent.timeouts.call, |attempt| attempt.min(agent.timeouts.call))
}

/// The same settings with a trial timeout that no attempt outlives: a trial that still has its own time is not failed.
fn with_trial_bound(settings: &BreakerSettings, longest: Duration) -> BreakerSettings {
    let trial_timeout = settings.trial_timeout.map(|timeout| timeout.max(longest));
    BreakerSettings { trial_timeout, ..settings.clone() }
}

fn make_agents(
    settings: Vec<(AgentSettings, Arc<dyn Backend>)>,
    providers: &HashMap<Name, Arc<ProviderCore>>,
    book: &mut Book,
    chance: Chance,
) -> Result<Vec<Arc<AgentCore>>, StartError> {
    let mut agents: Vec<Arc<AgentCore>> = Vec::new();
    let mut members: HashMap<Name, usize> = HashMap::new();
    let mut models: Vec<(Name, Option<String>)> = Vec::new();
    for (index, (settings, backend)) in settings.into_iter().enumerate() {
        let name = settings.name.clone();
        if agents.iter().any(|agent| agent.settings.name == name) {
            return Err(StartError::Twice(name));
        }
        let Some(provider) = providers.get(&settings.provider).map(Arc::clone) else {
            return Err(StartError::NoProvider { agent: name, provider: settings.provider });
        };
        check_agent(&settings)?;
        let guard = {
            let breaker = with_trial_bound(&settings.breaker, attempt_bound(&settings));
            add_breaker(book, &name, format!("agent:{name}"), breaker, Scope::Target, chance)?
        };
        if let Some(owner) = &provider.guard {
            book.add_member(owner.id, guard.id);
        }
        let member = members.entry(settings.provider.clone()).or_default();
        let model = (settings.provider.clone(), settings.model.clone());
        let model = models.iter().position(|known| *known == model).unwrap_or_else(|| {
            models.push(model);
            models.len() - 1
        });
        // proof of no loss: at most AGENTS_MAX agents, so at most as many models.
        let small = |number: usize| u16::try_from(number).unwrap_or(u16::MAX);
        agents.push(Arc::new(AgentCore {
            index,
            member: *member,
            source: Source { agent: small(index), model: small(model) },
            keyed: if provider.key_guard.is_some() { Keyed::Yes } else { Keyed::No },
            guard,
            slots: Mutex::new(Bulkhead::single(settings.slots)),
            retry_budget: Mutex::new(RetryBudget::new(&settings.retry)),
            ledger: Mutex::new(RestartLedger::new(settings.restart.max, settings.restart.within)),
            address: Address::vacant(),
            mailbox_depth: AtomicU32::new(0),
            slot_milliseconds: AtomicU64::new(0),
            metrics: AgentMetrics::of(name.as_str(), settings.slots),
            provider,
            backend,
            settings,
        }));
        *member += 1;
    }
    Ok(agents)
}

fn check_agent(settings: &AgentSettings) -> Result<(), StartError> {
    let mut broken = settings.retry.check();
    if settings.slots > SLOTS_MAX {
        broken.push(InvalidSetting::new("slots", settings.slots, "must be at most 100000"));
    }
    if settings.timeouts.call.is_zero() {
        broken.push(InvalidSetting::new("call_timeout", "0s", "must be longer than 0"));
    }
    match broken.into_iter().next() {
        Some(broken) => Err(StartError::Setting { name: settings.name.clone(), broken }),
        None => Ok(()),
    }
}

fn add_breaker(
    book: &mut Book,
    owner: &Name,
    name: String,
    settings: BreakerSettings,
    scope: Scope,
    chance: Chance,
) -> Result<Guard, StartError> {
    let purpose = name.bytes().fold(0_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(byte)));
    let breaker = Breaker::try_new(settings, scope, chance.fork(purpose))
        .map_err(|broken| StartError::Setting { name: owner.clone(), broken })?;
    Ok(book.add(name, breaker))
}
