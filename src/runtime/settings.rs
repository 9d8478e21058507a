//! What the runtime is told about providers and agents: plain, checked values. Files, layers and defaults are the adapter's business.

use std::time::Duration;

use crate::{
    model::name::Name,
    policy::{
        adaptive::settings::AdaptiveSettings, breaker::settings::BreakerSettings, compartment::settings::Rates,
        fallback::Rank, retry_settings::RetrySettings, slow::SlowBy,
    },
};

/// The most slots an agent or provider can have.
pub const SLOTS_MAX: u32 = 100_000;
/// How long a warm-up may take, unless configured: a cold start takes 30 to 60 s, a large model on a slow disk minutes.
pub const WARM_UP_TIMEOUT: Duration = Duration::from_secs(180);
/// Calls of one agent in flight at once, unless configured.
pub const SLOTS_DEFAULT: u32 = 10;

/// A shared place that agents lean on.
#[derive(Debug, Clone, PartialEq)]
pub struct ProviderSettings {
    /// Its name.
    pub name: Name,
    /// Slots of all its agents together; `None` = no cap of its own.
    pub slots: Option<u32>,
    /// The share of those slots that each agent is guaranteed, by agent; agents not named get `slots / agents`, at least 1.
    pub guaranteed: Vec<(Name, u32)>,
    /// What may be used of it in a minute.
    pub rates: Rates,
    /// Learns how many calls it gets at once; its slots are then the most. `None` = as many as there are slots.
    pub adaptive: Option<AdaptiveSettings>,
    /// The breaker of the provider as a whole.
    pub breaker: BreakerSettings,
    /// The name of the key that calls are made with, if there is one; its breaker is `key:<provider>/<name>`.
    pub key: Option<Name>,
    /// How many models it keeps loaded.
    pub loaded_models: LoadedModels,
}

/// How many models a provider keeps loaded at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LoadedModels {
    /// Nobody said: which model throws out which is only known when it has happened.
    #[default]
    Unknown,
    /// At most so many. With one, each model that is loaded throws out the one before.
    AtMost(u32),
    /// One, whatever name a request gives it.
    TheOneItHas,
}

impl LoadedModels {
    /// The number, if it is known.
    pub const fn at_most(self) -> Option<u32> {
        match self {
            Self::Unknown => None,
            Self::AtMost(models) => Some(models),
            Self::TheOneItHas => Some(1),
        }
    }
}

/// When a model is warmed up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WarmUpWhen {
    /// When its server is known to load on demand, or said that it is loading.
    #[default]
    Auto,
    /// Never: what the server says of loading is an error like any other.
    Off,
    /// Whenever it is not known to be loaded.
    Always,
}

/// How a cold model of an agent's is dealt with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WarmthSettings {
    /// When it is warmed up.
    pub when: WarmUpWhen,
    /// How long that may take.
    pub timeout: Duration,
    /// How long an unused model stays loaded, where the server does not say.
    pub keeps_for: Option<Duration>,
    /// Whether it is warmed when a run that needs the agent is accepted.
    pub prewarm: Prewarm,
}

/// Whether a model is warmed before anybody calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Prewarm {
    /// When the first call needs it.
    #[default]
    No,
    /// When a run is accepted.
    AtRuns,
}

impl Default for WarmthSettings {
    fn default() -> Self {
        Self { when: WarmUpWhen::Auto, timeout: WARM_UP_TIMEOUT, keeps_for: None, prewarm: Prewarm::No }
    }
}

/// How long an attempt, its parts and its call may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// To a connection.
    pub connect: Duration,
    /// To the first content of a stream; `None` where nothing streams.
    pub first_token: Option<Duration>,
    /// Between two pieces of content of a stream.
    pub stall: Option<Duration>,
    /// The attempt as a whole; `None` = bounded by the others.
    pub attempt: Option<Duration>,
    /// The call with all its attempts and waits.
    pub call: Duration,
}

/// How often a dying agent is started again before it is quarantined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestartSettings {
    /// So many restarts ...
    pub max: u32,
    /// ... within this time are still normal.
    pub within: Duration,
}

impl ProviderSettings {
    /// A provider without key and without slots of its own, with the breaker of the documentation.
    pub fn new(name: Name) -> Self {
        Self {
            name,
            slots: None,
            guaranteed: Vec::new(),
            rates: Rates::default(),
            adaptive: None,
            breaker: BreakerSettings::provider_default(),
            key: None,
            loaded_models: LoadedModels::Unknown,
        }
    }
}

impl AgentSettings {
    /// An agent on `provider` with the defaults of the documentation for work that does not stream.
    pub fn new(name: Name, provider: Name) -> Self {
        Self {
            name,
            provider,
            model: None,
            slots: SLOTS_DEFAULT,
            timeouts: Timeouts::default(),
            slow_by: SlowBy::Total,
            breaker: BreakerSettings::default(),
            retry: RetrySettings::default(),
            restart: RestartSettings::default(),
            warmth: WarmthSettings::default(),
        }
    }
}

impl Default for Timeouts {
    /// Those of work that does not stream.
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(2),
            first_token: None,
            stall: None,
            attempt: Some(Duration::from_secs(60)),
            call: Duration::from_secs(180),
        }
    }
}

impl Default for RestartSettings {
    fn default() -> Self {
        Self { max: 5, within: Duration::from_secs(60) }
    }
}

/// One agent.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentSettings {
    /// Its name.
    pub name: Name,
    /// The provider it leans on.
    pub provider: Name,
    /// The model it uses there, if it uses one.
    pub model: Option<String>,
    /// Calls in flight at once; 0 closes it.
    pub slots: u32,
    /// How long things may take.
    pub timeouts: Timeouts,
    /// What counts as slow.
    pub slow_by: SlowBy,
    /// Its target's breaker.
    pub breaker: BreakerSettings,
    /// How failed attempts are repeated.
    pub retry: RetrySettings,
    /// How often it may die.
    pub restart: RestartSettings,
    /// How its model is warmed up.
    pub warmth: WarmthSettings,
}

/// A further place where an agent's work can be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetSettings {
    /// The provider.
    pub provider: Name,
    /// The model there.
    pub model: Option<String>,
    /// When it is asked.
    pub rank: Rank,
}
