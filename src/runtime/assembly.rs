//! Putting the cores together: providers with their guards and slots, agents with their targets, each with its breaker. Nothing is
//! started here, and every rule between the parts is checked.

use std::{
    collections::HashMap,
    num::NonZeroU32,
    sync::{Arc, Mutex},
    time::Duration,
};

use arc_swap::ArcSwapOption;

use super::{
    adaptive::{ProviderLimit, ProviderShares},
    address::Address,
    builder::StartError,
    compartments::CompartmentsBuilder,
    core::{AgentCommon, AgentCore, AgentMetrics, Guard, ProviderCore},
    ports::{Backend, Clock, ColdStart},
    rates::Rate,
    settings::{AgentSettings, ProviderSettings, SLOTS_MAX, TargetSettings},
    supervisor::Book,
    warming::{Models, cold_start},
};
use crate::{
    model::{clock::Timestamp, name::Name},
    policy::{
        breaker::{
            machine::Breaker,
            settings::{BreakerSettings, Scope},
            window::Source,
        },
        bulkhead::{Bulkhead, Guarantees, NO_MEMBER},
        chance::Chance,
        compartment::needs::CountId,
        fallback::Rank,
        restart::RestartLedger,
        retry::RetryBudget,
        setting::InvalidSetting,
        verdict::Keyed,
    },
};

/// An agent as it was handed to the builder.
pub(crate) struct AgentParts {
    pub(crate) settings: AgentSettings,
    pub(crate) rank: Rank,
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) further: Vec<(TargetSettings, Arc<dyn Backend>)>,
}

/// One target of one agent.
pub(crate) struct TargetParts {
    /// The agent's, with the target's provider and model.
    settings: AgentSettings,
    rank: Rank,
    backend: Arc<dyn Backend>,
    /// The place of its agent's first target, if this is a further one.
    further_of: Option<usize>,
}

pub(crate) fn make_providers(
    settings: &[ProviderSettings],
    targets: &[TargetParts],
    (book, compartments): (&mut Book, &mut CompartmentsBuilder),
    (chance, clock): (Chance, &Arc<dyn Clock>),
) -> Result<HashMap<Name, Arc<ProviderCore>>, StartError> {
    let mut providers = HashMap::new();
    for settings in settings {
        let name = &settings.name;
        let members = members_of(name, targets);
        let here = targets.iter().filter(|target| target.settings.provider == *name);
        let longest = here.map(|target| attempt_bound(&target.settings, &*target.backend)).max().unwrap_or_default();
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
        let adaptive = adaptive_limit(settings, &members, compartments, clock.now())?;
        let slots = match (&adaptive, settings.slots) {
            (Some(adaptive), _) => Some(adaptive.slots(compartments.classes().shares_of(adaptive.limit()))),
            (None, Some(cap)) => Some(Bulkhead::shared(cap, &guarantees(settings, cap, &members, compartments)?)),
            (None, None) => None,
        };
        let compartment = || -> Arc<str> { format!("provider:{name}").into() };
        let count = slots.map(|slots| compartments.add(compartment(), slots));
        let per_minute = settings.rates.requests_per_minute.and_then(NonZeroU32::new);
        let rate = per_minute.map(|per_minute| Arc::new(Rate::new(compartment(), per_minute, Arc::clone(clock))));
        let retry = members.first().map(|agent| agent.retry.clone()).unwrap_or_default();
        let core = ProviderCore {
            settings: settings.clone(),
            count,
            rate: ArcSwapOption::from(rate),
            adaptive,
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

/// The adaptive limit of a provider, if it has one. What is kept of its slots must fit into the most that they can be.
fn adaptive_limit(
    settings: &ProviderSettings,
    members: &[&AgentSettings],
    compartments: &CompartmentsBuilder,
    now: Timestamp,
) -> Result<Option<ProviderLimit>, StartError> {
    let Some(adaptive) = settings.adaptive else { return Ok(None) };
    if let Some(broken) = adaptive.check().into_iter().next() {
        return Err(StartError::Setting { name: settings.name.clone(), broken });
    }
    let most = adaptive.under(settings.slots).max;
    let Guarantees { features, .. } = guarantees(settings, most, members, compartments)?;
    let named = |member: &&AgentSettings| {
        settings.guaranteed.iter().find(|(agent, _)| *agent == member.name).map(|(_, share)| *share)
    };
    let shares = ProviderShares { agents: members.iter().map(named).collect(), features };
    Ok(Some(ProviderLimit::new(settings, adaptive, shares, now)))
}

/// What of a provider's slots is kept for agents, features and classes.
fn guarantees(
    settings: &ProviderSettings,
    cap: u32,
    members: &[&AgentSettings],
    compartments: &CompartmentsBuilder,
) -> Result<Guarantees, StartError> {
    let features = compartments.directory.guaranteed_of(&settings.name);
    let sum: u64 = features.iter().copied().map(u64::from).sum();
    if sum > u64::from(cap) {
        return Err(StartError::FeatureShares { provider: settings.name.clone(), guaranteed: sum, slots: cap });
    }
    let agents = shares(settings, cap, members)?;
    Ok(Guarantees { agents, features, classes: compartments.classes().shares_of(cap) })
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

/// How long one attempt of the agent, or the warm-up before it, can take.
fn attempt_bound(agent: &AgentSettings, backend: &dyn Backend) -> Duration {
    let attempt = agent.timeouts.attempt.map_or(agent.timeouts.call, |attempt| attempt.min(agent.timeouts.call));
    match cold_start(agent, backend) {
        ColdStart::Never => attempt,
        ColdStart::Told | ColdStart::OnDemand { .. } => attempt.max(agent.warmth.timeout),
    }
}

/// The same settings with a trial timeout that no attempt outlives: a trial that still has its own time is not failed.
fn with_trial_bound(settings: &BreakerSettings, longest: Duration) -> BreakerSettings {
    let trial_timeout = settings.trial_timeout.map(|timeout| timeout.max(longest));
    BreakerSettings { trial_timeout, ..settings.clone() }
}

/// The agents that lean on a provider, each once, however many of its targets are there.
fn members_of<'a>(provider: &Name, targets: &'a [TargetParts]) -> Vec<&'a AgentSettings> {
    let mut members: Vec<&AgentSettings> = Vec::new();
    for settings in targets.iter().map(|target| &target.settings).filter(|settings| settings.provider == *provider) {
        if !members.iter().any(|member| member.name == settings.name) {
            members.push(settings);
        }
    }
    members
}

/// Every target as a part of its own: the first ones of all agents, in their order, then the further ones.
pub(crate) fn lay_out(agents: Vec<AgentParts>) -> Result<Vec<TargetParts>, StartError> {
    let mut targets: Vec<TargetParts> = Vec::new();
    let mut further = Vec::new();
    for (index, agent) in agents.into_iter().enumerate() {
        check_agent(&agent.settings)?;
        if targets.iter().any(|target| target.settings.name == agent.settings.name) {
            return Err(StartError::Twice(agent.settings.name));
        }
        let mut seen = vec![target_name(&agent.settings)];
        for (target, backend) in agent.further {
            let settings = AgentSettings { provider: target.provider, model: target.model, ..agent.settings.clone() };
            let name = target_name(&settings);
            if seen.contains(&name) {
                let broken = InvalidSetting::new("targets", name, "is there twice");
                return Err(StartError::Setting { name: settings.name, broken });
            }
            seen.push(name);
            further.push(TargetParts { settings, rank: target.rank, backend, further_of: Some(index) });
        }
        let (settings, rank, backend) = (agent.settings, agent.rank, agent.backend);
        targets.push(TargetParts { settings, rank, backend, further_of: None });
    }
    targets.append(&mut further);
    Ok(targets)
}

/// `provider/model`, or the provider alone where no model is named.
fn target_name(settings: &AgentSettings) -> String {
    match &settings.model {
        Some(model) => format!("{}/{model}", settings.provider),
        None => settings.provider.to_string(),
    }
}

pub(crate) fn make_agents(
    targets: Vec<TargetParts>,
    providers: &HashMap<Name, Arc<ProviderCore>>,
    (book, compartments): (&mut Book, &mut CompartmentsBuilder),
    chance: Chance,
    kept: &Models,
) -> Result<Vec<Arc<AgentCore>>, StartError> {
    let member_names = |name| members_of(name, &targets).iter().map(|member| member.name.clone()).collect();
    let members: HashMap<Name, Vec<Name>> = providers.keys().map(|name| (name.clone(), member_names(name))).collect();
    let mut further = further_by_first(&targets);
    let mut agents: Vec<Arc<AgentCore>> = Vec::new();
    let mut models: Vec<(Name, Option<String>)> = Vec::new();
    for (index, TargetParts { settings, rank, backend, further_of }) in targets.into_iter().enumerate() {
        let name = settings.name.clone();
        let Some(provider) = providers.get(&settings.provider).map(Arc::clone) else {
            return Err(StartError::NoProvider { agent: name, provider: settings.provider });
        };
        let target: Arc<str> = target_name(&settings).into();
        let guard_name = match further_of {
            None => format!("agent:{name}"),
            Some(_) => format!("agent:{name}:{target}"),
        };
        let guard = add_target(book, guard_name, (&settings, &*backend), &provider, chance)?;
        let member = members.get(&settings.provider).and_then(|all| all.iter().position(|member| *member == name));
        let model = (settings.provider.clone(), settings.model.clone());
        let model = models.iter().position(|known| *known == model).unwrap_or_else(|| {
            models.push(model);
            models.len() - 1
        });
        // proof of no loss: settings bound agents and targets, so no more models than that.
        let small = |number: usize| u16::try_from(number).unwrap_or(u16::MAX);
        let first = further_of.and_then(|first| agents.get(first));
        let common = first.map_or_else(
            || Arc::new(AgentCommon::of(&settings, add_slots(compartments, Arc::clone(&guard.name), settings.slots))),
            |first| Arc::clone(&first.common),
        );
        // proof of no loss: settings bound agents below this.
        let member = member.map_or(NO_MEMBER, |member| u16::try_from(member).unwrap_or(NO_MEMBER));
        agents.push(Arc::new(AgentCore {
            index,
            member,
            rank,
            target,
            first: further_of.unwrap_or(index),
            further: further.remove(&index).unwrap_or_default(),
            source: Source { agent: small(further_of.unwrap_or(index)), model: small(model) },
            keyed: if provider.key_guard.is_some() { Keyed::Yes } else { Keyed::No },
            guard,
            common,
            ledger: Mutex::new(RestartLedger::new(settings.restart.max, settings.restart.within)),
            address: Address::vacant(),
            metrics: AgentMetrics::of(name.as_str(), settings.slots),
            model: kept.of(&settings, &provider.settings, &*backend),
            provider,
            backend,
            settings,
        }));
    }
    Ok(agents)
}

/// An agent's slots.
fn add_slots(compartments: &mut CompartmentsBuilder, name: Arc<str>, slots: u32) -> CountId {
    let classes = compartments.classes().shares_of(slots);
    compartments.add(name, Bulkhead::shared(slots, &Guarantees { classes, ..Guarantees::default() }))
}

/// Where the further targets of each agent are, by the place of its first one.
fn further_by_first(targets: &[TargetParts]) -> HashMap<usize, Vec<usize>> {
    let mut further: HashMap<usize, Vec<usize>> = HashMap::new();
    for (index, target) in targets.iter().enumerate() {
        if let Some(first) = target.further_of {
            further.entry(first).or_default().push(index);
        }
    }
    further
}

/// A target's breaker, below its provider's.
fn add_target(
    book: &mut Book,
    guard_name: String,
    (settings, backend): (&AgentSettings, &dyn Backend),
    provider: &ProviderCore,
    chance: Chance,
) -> Result<Guard, StartError> {
    let breaker = with_trial_bound(&settings.breaker, attempt_bound(settings, backend));
    let guard = add_breaker(book, &settings.name, guard_name, breaker, Scope::Target, chance)?;
    if let Some(owner) = &provider.guard {
        book.add_member(owner.id, guard.id);
    }
    Ok(guard)
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
