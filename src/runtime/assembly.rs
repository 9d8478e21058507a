//! Putting the cores together: providers with their guards and slots, agents with their targets, each with its breaker. Nothing is
//! started here, and every rule between the parts is checked.

use std::{collections::HashMap, sync::Arc, time::Duration};

use super::{
    address::Address,
    builder::StartError,
    compartments_builder::CompartmentsBuilder,
    core::{AgentCommon, AgentCore, BreakerId, Guard, ProviderCore},
    ports::{Backend, Clock, ColdStart},
    presence::Presence,
    provider_shares::{adaptive_limit, guarantees},
    reload::before::Before,
    settings::{AgentSettings, ProviderSettings, SLOTS_MAX, TargetSettings},
    supervisor::Book,
    sync::atomic::AtomicBool,
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
        bulkhead::{Guarantees, NO_MEMBER},
        chance::Chance,
        compartment::needs::CountId,
        fallback::Rank,
        setting::InvalidSetting,
        verdict::Keyed,
    },
};

/// An agent as it was handed to the builder.
#[derive(Clone)]
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
    (book, compartments): (&mut Book, &mut CompartmentsBuilder<'_>),
    (chance, clock): (Chance, &Arc<dyn Clock>),
    before: &Before,
) -> Result<HashMap<Name, Arc<ProviderCore>>, StartError> {
    let mut providers = HashMap::new();
    for settings in settings {
        let name = &settings.name;
        let members = members_of(name, targets);
        let here = || targets.iter().filter(|target| target.settings.provider == *name);
        let longest = here().map(|target| attempt_bound(&target.settings, &*target.backend)).max().unwrap_or_default();
        let breaker = with_trial_bound(&settings.breaker, longest);
        let stands_at = here().find_map(|target| target.backend.stands_at());
        let known_at = before.provider(name).and_then(|known| known.stands_at.clone());
        let place = Place::of(known_at.as_ref(), stands_at.as_ref());
        let mut add = |guard_name: String, scope| {
            let kept = book.find_ever(&guard_name);
            // Whose key it is does not change with the server that takes it.
            let place = if scope == Scope::Key { Place::AsBefore } else { place };
            add_breaker(book, name, (guard_name, kept, place), breaker.clone(), scope, (chance, before.now))
        };
        // A lone agent's target stands for its provider; but what was shared once may be open now.
        let is_shared = members.len() > 1 || before.provider(name).is_some_and(|known| known.guard.is_some());
        let guard = if is_shared { Some(add(format!("provider:{name}"), Scope::Provider)?) } else { None };
        let key_guard = settings.key.as_ref().map(|key| add(format!("key:{name}/{key}"), Scope::Key));
        let places = before.members(name, members.iter().map(|member| &member.name));
        let kept = before.provider(name).and_then(|known| known.count);
        let adaptive = adaptive_limit(settings, (&members, &places), compartments, before)?;
        let slots = match (&adaptive, settings.slots) {
            (Some(adaptive), _) => Some(adaptive.kept(compartments.classes())),
            (None, Some(cap)) => Some((cap, guarantees(settings, cap, (&members, &places), compartments)?)),
            // A count that has no cap any more counts on, so that a later cap holds for who is under way.
            (None, None) => kept.map(|_| (u32::MAX, Guarantees::default())),
        };
        let compartment = || -> Arc<str> { format!("provider:{name}").into() };
        let count = slots.map(|(cap, guarantees)| compartments.renew(kept, compartment, cap, &guarantees));
        let retry = members.first().map(|agent| agent.retry.clone()).unwrap_or_default();
        let rate = before.rate(settings, compartment, clock);
        let core = ProviderCore {
            settings: settings.clone(),
            count,
            rate_at_rest: if rate.is_none() { before.rate_known(name) } else { None },
            rate,
            adaptive,
            guard,
            key_guard: key_guard.transpose()?,
            retry_budget: before.provider_budget(name, &retry),
            members: places,
            stands_at: stands_at.or(known_at),
        };
        if providers.insert(name.clone(), Arc::new(core)).is_some() {
            return Err(StartError::Twice(name.clone()));
        }
    }
    Ok(providers)
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
    (book, compartments): (&mut Book, &mut CompartmentsBuilder<'_>),
    chance: Chance,
    before: &Before,
    loaded: &Models,
) -> Result<Made, StartError> {
    let places = before.places(targets.iter().map(|parts| (&parts.settings.name, target_name(&parts.settings))));
    let place_of = |position: usize| places.get(position).copied().unwrap_or(usize::MAX);
    begin_models(loaded, &targets, providers);
    let mut further = further_by_first(&targets);
    let mut agents: Vec<Arc<AgentCore>> = Vec::new();
    let mut models = before.models();
    for (position, TargetParts { settings, rank, backend, further_of }) in targets.into_iter().enumerate() {
        let name = settings.name.clone();
        let Some(provider) = providers.get(&settings.provider).map(Arc::clone) else {
            return Err(StartError::NoProvider { agent: name, provider: settings.provider });
        };
        let target: Arc<str> = target_name(&settings).into();
        let guard_name = further_of.map_or_else(|| format!("agent:{name}"), |_| format!("agent:{name}:{target}"));
        let kept = before.target(place_of(position));
        let (stands_at, place) = place_of_target(kept, &*backend);
        let guard_name = (guard_name, kept.map(|core| core.guard.id), place);
        let guard = add_target(book, guard_name, (&settings, &*backend), &provider, (chance, before.now))?;
        let member = provider.members.iter().position(|member| *member == name);
        let model = place_in(&mut models, (settings.provider.clone(), settings.model.clone()));
        // proof of no loss: settings bound agents and targets, so no more models than that; and no agent has the number of nobody.
        let small = |number: usize| u16::try_from(number).unwrap_or(u16::MAX);
        let first = further_of.and_then(|first| agents.get(first));
        let common = match first {
            Some(first) => Arc::clone(&first.common),
            None => common_of(&settings, &guard.name, small(place_of(position)), compartments, before),
        };
        let member = member.map_or(NO_MEMBER, small);
        agents.push(Arc::new(AgentCore {
            index: place_of(position),
            member,
            rank,
            target,
            first: place_of(further_of.unwrap_or(position)),
            further: further.remove(&position).unwrap_or_default().into_iter().map(place_of).collect(),
            source: Source { agent: common.number, model: small(model) },
            keyed: if provider.key_guard.is_some() { Keyed::Yes } else { Keyed::No },
            guard,
            common,
            ledger: Before::ledger(kept, settings.restart),
            address: kept.map_or_else(|| Arc::new(Address::vacant()), |core| Arc::clone(&core.address)),
            metrics: Before::metrics(kept, name.as_str(), settings.slots),
            presence: kept.map_or_else(|| Arc::new(Presence::default()), |core| Arc::clone(&core.presence)),
            superseded: AtomicBool::new(false),
            model: loaded.of(&settings, &provider.settings, &*backend),
            stands_at,
            provider,
            backend,
            settings,
        }));
    }
    Ok(Made { agents, models })
}

/// Looks after the models of all targets.
fn begin_models(loaded: &Models, targets: &[TargetParts], providers: &HashMap<Name, Arc<ProviderCore>>) {
    loaded.begin(targets.iter().filter_map(|parts| {
        let provider = providers.get(&parts.settings.provider)?;
        Some((&parts.settings, &provider.settings, &*parts.backend))
    }));
}

/// Where a target is, and whether it was somewhere else before.
fn place_of_target(kept: Option<&Arc<AgentCore>>, backend: &dyn Backend) -> (Option<Arc<str>>, Place) {
    let (before, now) = (kept.and_then(|core| core.stands_at.clone()), backend.stands_at());
    let place = Place::of(before.as_ref(), now.as_ref());
    (now.or(before), place)
}

/// What an agent's targets share: what they shared before, with its new settings, else something new.
fn common_of(
    settings: &AgentSettings,
    name: &Arc<str>,
    number: u16,
    compartments: &mut CompartmentsBuilder<'_>,
    before: &Before,
) -> Arc<AgentCommon> {
    let known = before.common(&settings.name);
    let count = renew_slots(compartments, known.as_ref().map(|known| known.count), name, settings.slots);
    match known {
        Some(common) => {
            Before::renew_common(&common, settings);
            common
        }
        None => Arc::new(AgentCommon::of(settings, number, count)),
    }
}

/// Where `model` is among `models`; it is added where it is not there.
fn place_in(models: &mut Vec<(Name, Option<String>)>, model: (Name, Option<String>)) -> usize {
    models.iter().position(|known| *known == model).unwrap_or_else(|| {
        models.push(model);
        models.len() - 1
    })
}

/// Targets with a core each, and the models that they use.
pub(crate) struct Made {
    pub(crate) agents: Vec<Arc<AgentCore>>,
    pub(crate) models: Vec<(Name, Option<String>)>,
}

/// An agent's slots.
fn renew_slots(
    compartments: &mut CompartmentsBuilder<'_>,
    kept: Option<CountId>,
    name: &Arc<str>,
    slots: u32,
) -> CountId {
    let classes = compartments.classes().shares_of(slots);
    compartments.renew(kept, || Arc::clone(name), slots, &Guarantees { classes, ..Guarantees::default() })
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
    guard_name: (String, Option<BreakerId>, Place),
    (settings, backend): (&AgentSettings, &dyn Backend),
    provider: &ProviderCore,
    by: (Chance, Timestamp),
) -> Result<Guard, StartError> {
    let breaker = with_trial_bound(&settings.breaker, attempt_bound(settings, backend));
    let guard = add_breaker(book, &settings.name, guard_name, breaker, Scope::Target, by)?;
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

/// Whether what a breaker guards is where it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    AsBefore,
    Another,
}

impl Place {
    /// Only two places that are both known are known to be two.
    fn of(before: Option<&Arc<str>>, now: Option<&Arc<str>>) -> Self {
        let is_another = before.zip(now).is_some_and(|(before, now)| before != now);
        if is_another { Self::Another } else { Self::AsBefore }
    }
}

/// The breaker that is kept, with other settings, else a new one.
fn add_breaker(
    book: &mut Book,
    owner: &Name,
    (name, kept, place): (String, Option<BreakerId>, Place),
    settings: BreakerSettings,
    scope: Scope,
    (chance, now): (Chance, Timestamp),
) -> Result<Guard, StartError> {
    let broken = |broken| StartError::Setting { name: owner.clone(), broken };
    if let Some(kept) = kept
        && let Some(guard) = book.renew(kept, name.clone(), settings.clone(), now).map_err(broken)?
    {
        if place == Place::Another {
            book.moved(kept, now);
        }
        return Ok(guard);
    }
    let purpose = name.bytes().fold(0_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(byte)));
    let breaker = Breaker::try_new(settings, scope, chance.fork(purpose)).map_err(broken)?;
    Ok(book.add(name, breaker))
}
