//! Building a runtime: checks that everything fits together, makes the cores and breakers, starts the actors.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, AtomicU64},
    },
};

use ractor::Actor;
use tokio::sync::broadcast;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    address::Address,
    core::{AgentCore, AgentMetrics, Guard, ProviderCore, Shared},
    engine::Runtime,
    ports::{Backend, Clock, TokioClock},
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
        let guard = match members.len() {
            // A lone agent's target stands for its provider.
            0 | 1 => None,
            _ => Some(add_breaker(book, name, format!("provider:{name}"), &settings.breaker, Scope::Provider, chance)?),
        };
        let key_guard = settings
            .key
            .as_ref()
            .map(|key| add_breaker(book, name, format!("key:{name}/{key}"), &settings.breaker, Scope::Key, chance));
        let slots = settings.slots.map(|cap| {
            let mut shares = Bulkhead::equal_shares(cap, members.len());
            for (share, member) in shares.iter_mut().zip(&members) {
                if let Some((_, own)) = settings.guaranteed.iter().find(|(agent, _)| *agent == member.name) {
                    *share = *own;
                }
            }
            Mutex::new(Bulkhead::shared(cap, &shares))
        });
        let retry = members.first().map(|agent| agent.retry.clone()).unwrap_or_default();
        let core = ProviderCore {
            settings: settings.clone(),
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
        let guard = add_breaker(book, &name, format!("agent:{name}"), &settings.breaker, Scope::Target, chance)?;
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
    settings: &BreakerSettings,
    scope: Scope,
    chance: Chance,
) -> Result<Guard, StartError> {
    let purpose = name.bytes().fold(0_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(byte)));
    let breaker = Breaker::try_new(settings.clone(), scope, chance.fork(purpose))
        .map_err(|broken| StartError::Setting { name: owner.clone(), broken })?;
    Ok(book.add(name, breaker))
}
