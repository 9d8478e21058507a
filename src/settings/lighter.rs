//! Who a lighter target is. One that is named as `provider/model` becomes an agent of its own beside the one that it stands in for, with
//! its prompt and settings, but with a breaker, slots and budgets of its own; `agent:NAME` is that agent. Ways that lead back are refused.

use std::collections::{BTreeMap, HashMap};

use super::{
    agent::Agent,
    ladder::{ReadLadder, ReadLighter, read_feature_ladders},
    node::Table,
    problem::Problem,
    provider::{Flavor, Kind, ReadProvider},
    report::Report,
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

/// The ladders of all agents and features; the agents that lighter targets are come to `agents`.
pub(super) fn settle_ladders(
    agents: &mut Vec<Agent>,
    root: &Table,
    providers: &BTreeMap<Name, ReadProvider>,
    report: &mut Report,
) -> Ladders {
    let features = read_feature_ladders(root, report);
    let mut ladders = Ladders::default();
    let mut ways: BTreeMap<Name, Vec<Name>> = BTreeMap::new();
    let mut keys: HashMap<Name, ReadLighter> = HashMap::new();
    let mut made = Vec::new();
    for agent in agents.iter().filter(|agent| agent.ladder.place.is_some()) {
        let mut settings = agent.ladder.settings.clone();
        // Where the lighter targets so far are: a call asks none of them twice.
        let mut places: Vec<(Name, Option<String>)> = Vec::new();
        for (at, read) in agent.ladder.lighter.iter().enumerate() {
            let found = match read.text.strip_prefix("agent:") {
                Some(other) => named(agents, agent, other).map(|name| {
                    ways.entry(agent.settings.name.clone()).or_default().push(name.clone());
                    keys.insert(agent.settings.name.clone(), read.clone());
                    let place = agents.iter().find(|known| known.settings.name == name).unwrap_or(agent);
                    let effect = effect_of(agent, &place.settings.provider, place.settings.model.as_deref(), providers);
                    (name, effect, place_of(place))
                }),
                None => stand_in(agents, agent, (at, read), providers).map(|(stand_in, effect)| {
                    let (name, place) = (stand_in.settings.name.clone(), place_of(&stand_in));
                    made.push(stand_in);
                    (name, effect, place)
                }),
            };
            match found {
                Ok((_, _, place)) if places.contains(&place) => {
                    report.problems.push(problem(read, "is named before: it would be asked twice".to_owned()));
                }
                Ok((agent, effect, place)) => {
                    places.push(place);
                    if effect == Effect::Evicts {
                        let rule = "is never asked: it would push the main model out of a server that holds one model"
                            .to_owned();
                        report.warnings.push(problem(read, rule));
                    }
                    let context_tokens = read.context_tokens;
                    settings.lighter.push(LighterTarget { agent, context_tokens, effect });
                }
                Err(rule) => report.problems.push(problem(read, rule)),
            }
        }
        ladders.agents.insert(agent.settings.name.clone(), settings);
    }
    for way in cycles(&ways) {
        let Some(read) = way.first().and_then(|first| keys.get(first)) else { continue };
        let names: Vec<&str> = way.iter().chain(way.first()).map(Name::as_str).collect();
        let rule = format!("leads back to where it began: {}", names.join(" -> "));
        report.problems.push(problem(read, rule));
    }
    agents.append(&mut made);
    ladders.features = features.into_iter().map(|(name, read)| (name, read.settings)).collect();
    ladders
}

/// Where an agent's first target is.
fn place_of(agent: &Agent) -> (Name, Option<String>) {
    (agent.settings.provider.clone(), agent.settings.model.clone())
}

fn problem(read: &ReadLighter, rule: String) -> Problem {
    Problem { origin: read.origin.clone(), key: read.key.clone(), value: Some(format!("{:?}", read.text)), rule }
}

/// The agent that `other` is the name of.
fn named(agents: &[Agent], agent: &Agent, other: &str) -> Result<Name, String> {
    if agent.settings.name.as_str() == other {
        return Err("leads back to where it began: an agent cannot stand in for itself".to_owned());
    }
    let known = agents.iter().map(|agent| &agent.settings.name);
    let found = known.clone().find(|name| name.as_str() == other);
    found.cloned().ok_or_else(|| {
        format!("there is no agent {other:?}{}", hint(other, known.map(Name::as_str).collect::<Vec<_>>()))
    })
}

/// The agent that a place is, and what its use does to the main model.
fn stand_in(
    agents: &[Agent],
    agent: &Agent,
    (at, read): (usize, &ReadLighter),
    providers: &BTreeMap<Name, ReadProvider>,
) -> Result<(Agent, Effect), String> {
    let own = &agent.settings;
    let (provider_name, model) = match read.text.split_once('/') {
        Some((provider, model)) if !model.is_empty() => (provider, Some(model.to_owned())),
        _ => (read.text.trim_end_matches('/'), None),
    };
    let Some((name, provider)) = providers.iter().find(|(name, _)| name.as_str() == provider_name) else {
        let near = nearest(provider_name, providers.keys().map(Name::as_str));
        let near = near.map(|near| format!(", did you mean `{near}`?")).unwrap_or_default();
        return Err(format!("there is no such provider{near}"));
    };
    let kind = providers.get(&own.provider).and_then(|read| read.kind);
    if provider.kind != kind {
        return Err("must be of the agent's own kind; an agent of another kind is named with \"agent:NAME\"".to_owned());
    }
    if kind == Some(Kind::Embedded) {
        return Err("must not be embedded: there is only one such place".to_owned());
    }
    let model = model.or_else(|| provider.model.as_ref().map(|(model, _)| model.clone()));
    let needs_model = kind != Some(Kind::Http) && provider.flavor != Flavor::LlamaCpp;
    if needs_model && model.is_none() {
        return Err("needs a model: \"provider/model\"".to_owned());
    }
    let is_known = |place: (&Name, &Option<String>)| place == (name, &model);
    let targets = agent.targets.iter().map(|target| (&target.provider, &target.model));
    if targets.chain([(&own.provider, &own.model)]).any(is_known) {
        return Err("is a target of the agent already: it would be asked twice".to_owned());
    }
    let number = if at == 0 { String::new() } else { format!("-{}", at + 1) };
    let stands_as = Name::try_new(&format!("{}.{SUFFIX}{number}", own.name))
        .map_err(|_| "is of an agent whose name is too long for a stand-in".to_owned())?;
    if agents.iter().any(|agent| agent.settings.name == stands_as) {
        return Err(format!("needs the name {stands_as}, which an agent has already"));
    }
    let effect = effect_of(agent, name, model.as_deref(), providers);
    let mut stand_in = agent.clone();
    stand_in.settings.name = stands_as;
    stand_in.settings.provider = name.clone();
    stand_in.settings.model = model;
    stand_in.settings.slots = read.slots.unwrap_or(own.slots);
    stand_in.settings.timeouts.connect = provider.connect_timeout;
    stand_in.stands_in_for = Some(own.name.clone());
    stand_in.model_names = Vec::new();
    stand_in.targets = Vec::new();
    stand_in.rank = ALONE;
    stand_in.ladder = ReadLadder::default();
    Ok((stand_in, effect))
}

/// What the use of a place does to an agent's main model, as far as the configuration says how many models its server keeps.
fn effect_of(agent: &Agent, provider: &Name, model: Option<&str>, providers: &BTreeMap<Name, ReadProvider>) -> Effect {
    let main = Place { provider: agent.settings.provider.as_str(), model: agent.settings.model.as_deref() };
    let other = Place { provider: provider.as_str(), model };
    let models_max = providers.get(provider).and_then(|read| read.provider.settings.loaded_models.at_most());
    if would_evict(main, other, models_max) { Effect::Evicts } else { Effect::None }
}
