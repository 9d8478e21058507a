//! Who a lighter target is. One that is named as `provider/model` becomes an agent of its own beside the one that it stands in for, with
//! its prompt and settings, but with a breaker, slots and budgets of its own; `agent:NAME` is that agent. Ways that lead back are refused.

use std::collections::{BTreeMap, HashMap};

use super::{
    agent::Agent,
    agent_backend::AgentBackend,
    ladder::{ReadLadder, ReadLighter, read_feature_ladders},
    node::{Table, key_path},
    problem::Problem,
    provider::{Flavor, Kind, ReadProvider},
    report::Report,
    roster::is_placed,
    targets::ALONE,
};
use crate::{
    model::{
        name::Name,
        nearest::{hint, nearest},
    },
    policy::{
        ladder::{Effect, LighterTarget, cycles},
        warmth::swaps::{Place, would_evict},
    },
    runtime::ladders::Ladders,
};

/// What the name of an agent that stands in for another one adds to that one's name.
const SUFFIX: &str = "lighter";

/// Where calls are made.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Spot {
    provider: Name,
    model: Option<String>,
    /// What does the work where no model tells it: the path of a service, or who works inside the program.
    work: String,
}

/// A lighter target that was found.
struct FoundLighter {
    agent: Name,
    effect: Effect,
    /// All places that it may ask.
    spots: Vec<Spot>,
    /// The agent that was made for it, if one was.
    made: Option<Agent>,
}

/// What settling has come to.
#[derive(Default)]
struct Settled {
    ladders: Ladders,
    ways: BTreeMap<Name, Vec<Name>>,
    keys: HashMap<(Name, Name), ReadLighter>,
    made: Vec<Agent>,
}

/// The ladders of all agents and features; the agents that lighter targets are come to `agents`.
pub(super) fn settle_ladders(
    agents: &mut Vec<Agent>,
    root: &Table,
    providers: &BTreeMap<Name, ReadProvider>,
    report: &mut Report,
) -> Ladders {
    let features = read_feature_ladders(root, report);
    let mut settled = Settled::default();
    for agent in agents.iter().filter(|agent| agent.ladder.place.is_some()) {
        settle_one(agent, agents, providers, &mut settled, report);
    }
    let Settled { mut ladders, ways, keys, mut made } = settled;
    for way in cycles(&ways) {
        let step = way.first().zip(way.get(1).or(way.first()));
        let Some(read) = step.and_then(|(from, to)| keys.get(&(from.clone(), to.clone()))) else { continue };
        let names: Vec<&str> = way.iter().chain(way.first()).map(Name::as_str).collect();
        let rule = format!("leads back to where it began: {}", names.join(" -> "));
        report.tell(problem(read, rule));
    }
    agents.append(&mut made);
    ladders.features = features.into_iter().map(|(name, read)| (name, read.settings)).collect();
    ladders
}

/// Settles the ladder of one agent. A call asks no place twice: neither one of the agent's own nor one of an agent named before.
fn settle_one(
    agent: &Agent,
    agents: &[Agent],
    providers: &BTreeMap<Name, ReadProvider>,
    settled: &mut Settled,
    report: &mut Report,
) {
    let mut settings = agent.ladder.settings.clone();
    let mut asked: Vec<Spot> = spots_of(agent);
    for (at, read) in agent.ladder.lighter.iter().enumerate() {
        let found = match read.text.strip_prefix("agent:") {
            Some(other) => named(agents, agent, other, providers),
            None => stand_in(agents, agent, (at, read), providers),
        };
        let found = match found {
            Ok(found) => found,
            Err(strange) => {
                if strange.follows_from.iter().all(|key| report.is_sound(key)) {
                    report.tell(problem(read, strange.rule));
                }
                continue;
            }
        };
        if found.made.is_none() {
            settled.ways.entry(agent.settings.name.clone()).or_default().push(found.agent.clone());
            settled.keys.insert((agent.settings.name.clone(), found.agent.clone()), read.clone());
        }
        let are_placed = std::iter::once(agent)
            .chain(agents.iter().filter(|known| known.settings.name == found.agent))
            .all(|agent| is_placed(agent, report));
        if let Some(twice) = found.spots.iter().find(|spot| asked.contains(spot)).filter(|_| are_placed) {
            report.tell(problem(read, twice_rule(agent, found.made.is_some(), twice)));
            continue;
        }
        asked.extend(found.spots);
        if found.effect == Effect::Evicts {
            let rule = "is never asked: it would push the main model out of a server that holds one model";
            report.warnings.push(problem(read, rule.to_owned()));
        }
        settled.made.extend(found.made);
        let (agent, effect, context_tokens) = (found.agent, found.effect, read.context_tokens);
        settings.lighter.push(LighterTarget { agent, context_tokens, effect });
    }
    settled.ladders.agents.insert(agent.settings.name.clone(), settings);
}

/// What is said of a lighter target that asks what was asked before.
fn twice_rule(agent: &Agent, is_place: bool, spot: &Spot) -> String {
    let shown = match &spot.model {
        Some(model) => format!("{}/{model}", spot.provider),
        None => format!("{}{}", spot.provider, spot.work),
    };
    let of_agent = spots_of(agent).contains(spot);
    match (of_agent, is_place) {
        (true, true) => "is a target of the agent already: it would be asked twice".to_owned(),
        (true, false) => format!("asks {shown}, which is a target of the agent already: it would be asked twice"),
        (false, true) => "is named before: it would be asked twice".to_owned(),
        (false, false) => format!("asks {shown}, which is named before: it would be asked twice"),
    }
}

/// Where an agent's targets are.
fn spots_of(agent: &Agent) -> Vec<Spot> {
    let work = match &agent.backend {
        AgentBackend::Http(http) => http.path.clone(),
        AgentBackend::Embedded { twin } => format!(" {twin}"),
        AgentBackend::Model(_) => String::new(),
    };
    let first = (&agent.settings.provider, &agent.settings.model);
    let places = std::iter::once(first).chain(agent.targets.iter().map(|target| (&target.provider, &target.model)));
    let spot = |(provider, model): (&Name, &Option<String>)| Spot {
        provider: provider.clone(),
        model: model.clone(),
        work: work.clone(),
    };
    places.map(spot).collect()
}

/// Why a lighter target is none, and which keys that may only follow from.
struct Strange {
    rule: String,
    follows_from: Vec<String>,
}

impl Strange {
    fn new(rule: impl Into<String>) -> Self {
        Self { rule: rule.into(), follows_from: Vec::new() }
    }

    fn following(self, key: String) -> Self {
        Self { follows_from: self.follows_from.into_iter().chain([key]).collect(), ..self }
    }
}

fn problem(read: &ReadLighter, rule: String) -> Problem {
    Problem { origin: read.origin.clone(), key: read.key.clone(), value: Some(format!("{:?}", read.text)), rule }
}

/// The agent that `other` is the name of.
fn named(
    agents: &[Agent],
    agent: &Agent,
    other: &str,
    providers: &BTreeMap<Name, ReadProvider>,
) -> Result<FoundLighter, Strange> {
    if agent.settings.name.as_str() == other {
        return Err(Strange::new("leads back to where it began: an agent cannot stand in for itself"));
    }
    let Some(place) = agents.iter().find(|known| known.settings.name.as_str() == other) else {
        let known: Vec<&str> = agents.iter().map(|agent| agent.settings.name.as_str()).collect();
        let rule = format!("there is no agent {other:?}{}", hint(other, known));
        return Err(Strange::new(rule).following(key_path("agents", other)));
    };
    let effect = effect_of(agent, &place.settings.provider, place.settings.model.as_deref(), providers);
    Ok(FoundLighter { agent: place.settings.name.clone(), effect, spots: spots_of(place), made: None })
}

/// The agent that a place is, and what its use does to the main model.
fn stand_in(
    agents: &[Agent],
    agent: &Agent,
    (at, read): (usize, &ReadLighter),
    providers: &BTreeMap<Name, ReadProvider>,
) -> Result<FoundLighter, Strange> {
    let own = &agent.settings;
    let (provider_name, model) = match read.text.split_once('/') {
        Some((provider, model)) if !model.is_empty() => (provider, Some(model.to_owned())),
        _ => (read.text.trim_end_matches('/'), None),
    };
    let there = key_path("providers", provider_name);
    let Some((name, provider)) = providers.iter().find(|(name, _)| name.as_str() == provider_name) else {
        let near = nearest(provider_name, providers.keys().map(Name::as_str));
        let near = near.map(|near| format!(", did you mean `{near}`?")).unwrap_or_default();
        return Err(Strange::new(format!("there is no such provider{near}")).following(there));
    };
    let own_provider = key_path(&key_path("agents", own.name.as_str()), "provider");
    let kind = providers.get(&own.provider).and_then(|read| read.kind);
    if provider.kind != kind {
        let rule = "must be of the agent's own kind; an agent of another kind is named with \"agent:NAME\"";
        return Err(Strange::new(rule).following(own_provider).following(key_path(&there, "kind")));
    }
    if kind == Some(Kind::Embedded) {
        return Err(Strange::new("must not be embedded: there is only one such place"));
    }
    let model = model.or_else(|| provider.model.as_ref().map(|(model, _)| model.clone()));
    let needs_model = kind != Some(Kind::Http) && provider.flavor != Flavor::LlamaCpp;
    if needs_model && model.is_none() {
        let strange = Strange::new("needs a model: \"provider/model\"").following(key_path(&there, "model"));
        return Err(strange.following(key_path(&there, "flavor")).following(own_provider));
    }
    let number = if at == 0 { String::new() } else { format!("-{}", at + 1) };
    let stands_as = Name::try_new(&format!("{}.{SUFFIX}{number}", own.name))
        .map_err(|_| Strange::new("is of an agent whose name is too long for a stand-in"))?;
    if agents.iter().any(|agent| agent.settings.name == stands_as) {
        return Err(Strange::new(format!("needs the name {stands_as}, which an agent has already")));
    }
    let effect = effect_of(agent, name, model.as_deref(), providers);
    let mut stand_in = agent.clone();
    stand_in.settings.name = stands_as.clone();
    stand_in.settings.provider = name.clone();
    stand_in.settings.model = model;
    stand_in.settings.slots = read.slots.unwrap_or(own.slots);
    stand_in.settings.timeouts.connect = provider.connect_timeout;
    stand_in.stands_in_for = Some(own.name.clone());
    stand_in.model_names = Vec::new();
    stand_in.targets = Vec::new();
    stand_in.rank = ALONE;
    stand_in.ladder = ReadLadder::default();
    let spots = spots_of(&stand_in);
    Ok(FoundLighter { agent: stands_as, effect, spots, made: Some(stand_in) })
}

/// What the use of a place does to an agent's main model, as far as the configuration says how many models its server keeps.
fn effect_of(agent: &Agent, provider: &Name, model: Option<&str>, providers: &BTreeMap<Name, ReadProvider>) -> Effect {
    let main = Place { provider: agent.settings.provider.as_str(), model: agent.settings.model.as_deref() };
    let other = Place { provider: provider.as_str(), model };
    let models_max = providers.get(provider).and_then(|read| read.provider.settings.loaded_models.at_most());
    if would_evict(main, other, models_max) { Effect::Evicts } else { Effect::None }
}
