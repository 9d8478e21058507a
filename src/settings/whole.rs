//! Rules between tables: what several nodes divide, shares that must fit, trial timeouts that follow the agents' own.

use std::collections::BTreeMap;

use crate::{
    model::{duration, name::Name},
    policy::breaker::settings::BreakerSettings,
    runtime::settings::Timeouts,
};

use super::{
    agent::Agent,
    agent_backend::AgentBackend,
    breaker::raised_trial_timeout,
    compartment_rules::divide_rates,
    guards::most_slots,
    node::key_path,
    ollama::{Use, check_uses},
    problem::{Origin, Problem},
    provider::{Flavor, Provider, ProviderBackend},
    report::Report,
    roster::is_placed,
};

/// Applies every rule between tables.
pub(super) fn check_whole(providers: &mut [Provider], agents: &mut [Agent], instances: u32, report: &mut Report) {
    check_model_names(agents, report);
    check_contexts(providers, agents, report);
    for agent in agents.iter_mut() {
        let path = key_path("agents", agent.settings.name.as_str());
        agent.settings.slots = divided(agent.settings.slots, &key_path(&path, "slots"), instances, report);
        finish_breaker(&mut agent.settings.breaker, &path, &[agent.settings.timeouts], instances, report);
    }
    for provider in providers.iter_mut() {
        let name = &provider.settings.name;
        let path = key_path("providers", name.as_str());
        let leans = |agent: &&Agent| {
            agent.settings.provider == *name || agent.targets.iter().any(|target| target.provider == *name)
        };
        let leaning: Vec<&Agent> = agents.iter().filter(leans).collect();
        let unplaced: Vec<&Name> =
            agents.iter().filter(|agent| !is_placed(agent, report)).map(|agent| &agent.settings.name).collect();
        let timeouts: Vec<Timeouts> = leaning.iter().map(|agent| agent.settings.timeouts).collect();
        finish_breaker(&mut provider.settings.breaker, &path, &timeouts, instances, report);
        provider.settings.slots =
            provider.settings.slots.map(|slots| divided(slots, &key_path(&path, "slots"), instances, report));
        divide_rates(&mut provider.settings.rates, &path, instances, report);
        for (agent, slots) in &mut provider.settings.guaranteed {
            let key = key_path(&key_path(&path, "guaranteed"), agent.as_str());
            *slots = divided(*slots, &key, instances, report);
        }
        let names: Vec<&Name> = leaning.iter().map(|agent| &agent.settings.name).collect();
        check_guaranteed(provider, &path, (&names, &unplaced), report);
    }
}

/// Answers must leave their prompts room, and agents that share a model of Ollama's should share its context as well.
fn check_contexts(providers: &[Provider], agents: &[Agent], report: &mut Report) {
    let mut uses = Vec::new();
    for agent in agents {
        let AgentBackend::Model(model) = &agent.backend else { continue };
        let path = key_path("agents", agent.settings.name.as_str());
        let is_known = |key: &str| report.is_sound(&key_path(&path, key));
        if !is_placed(agent, report) || !is_known("num_ctx") || !is_known("max_output_tokens") {
            continue;
        }
        let first = (&agent.settings.provider, &agent.settings.model);
        let places = std::iter::once(first).chain(agent.targets.iter().map(|target| (&target.provider, &target.model)));
        for (name, served) in places {
            let provider = providers.iter().find(|provider| provider.settings.name == *name);
            if let (Some(ProviderBackend::Ollama { context, .. }), Some(served)) =
                (provider.map(|provider| &provider.backend), served)
            {
                let num_ctx = model.context.over(*context).num_ctx;
                if !report.is_sound(&key_path(&key_path("providers", name.as_str()), "num_ctx")) {
                    continue;
                }
                uses.push(Use {
                    agent: agent.settings.name.as_str(),
                    provider: name.as_str(),
                    model: served,
                    num_ctx,
                    max_output_tokens: model.max_output_tokens,
                });
            }
        }
    }
    check_uses(&uses, report);
}

/// A model's name means one agent: else the one that was read first would get all its requests.
fn check_model_names(agents: &[Agent], report: &mut Report) {
    let own_key = |agent: &Agent| key_path("agents", agent.settings.name.as_str());
    let mut known: BTreeMap<&str, (String, Origin)> = BTreeMap::new();
    for agent in agents {
        // A table has no row of its own in the account; its provider has.
        let key = own_key(agent);
        let origin = report.origin_of(&key_path(&key, "provider"));
        known.insert(agent.settings.name.as_str(), (key, origin));
    }
    let mut problems = Vec::new();
    for agent in agents {
        let key = key_path(&own_key(agent), "model_names");
        let origin = report.origin_of(&key);
        for name in &agent.model_names {
            match known.get(name.as_str()) {
                Some((other, place)) => {
                    let rule = if *other == key {
                        "stands there twice".to_owned()
                    } else if *other == own_key(agent) {
                        "is the agent's own name, which it answers to anyway".to_owned()
                    } else {
                        format!("means another agent already: {other} ({place})")
                    };
                    let value = Some(format!("{name:?}"));
                    problems.push(Problem { origin: origin.clone(), key: key.clone(), value, rule });
                }
                None => _ = known.insert(name, (key.clone(), origin.clone())),
            }
        }
    }
    report.tell_all(problems);
}

/// Divides a count by the nodes. 0 stays 0; what would fall under 1 is refused.
pub(super) fn divided(count: u32, key: &str, instances: u32, report: &mut Report) -> u32 {
    if instances <= 1 || count == 0 || !report.is_sound(key) {
        return count;
    }
    let share = count / instances;
    if share == 0 {
        let rule = format!("falls under 1 when divided by node.instances = {instances}");
        let problem =
            Problem { origin: report.origin_of(key), key: key.to_owned(), value: Some(count.to_string()), rule };
        report.tell(problem);
        return 1;
    }
    report.derive(key, share.to_string(), &format!("divided by node.instances = {instances}"));
    share
}

fn finish_breaker(
    breaker: &mut BreakerSettings,
    path: &str,
    timeouts: &[Timeouts],
    instances: u32,
    report: &mut Report,
) {
    let path = key_path(path, "breaker");
    breaker.trials = divided(breaker.trials, &key_path(&path, "trials"), instances, report);
    let raised = raised_trial_timeout(breaker.trial_timeout, timeouts);
    if let Some(timeout) = raised.filter(|_| raised != breaker.trial_timeout) {
        let how = "raised to the longest attempt or call of its agents";
        report.derive(&key_path(&path, "trial_timeout"), duration::format(timeout), how);
    }
    breaker.trial_timeout = raised;
}

/// Guaranteed shares must fit into the provider's slots, and name agents that lean on it. Of some agents it is not known where they lean.
fn check_guaranteed(provider: &Provider, path: &str, (leaning, unplaced): (&[&Name], &[&Name]), report: &mut Report) {
    let key = key_path(path, "guaranteed");
    let settings = &provider.settings;
    let most = most_slots(settings);
    let slots_are_sound = report.is_sound(&key_path(path, "slots")) && report.is_whole(&key_path(path, "adaptive"));
    let strange = settings.guaranteed.iter().filter(|(agent, _)| {
        let may_be = unplaced.contains(&agent) || !report.is_sound(&key_path("agents", agent.as_str()));
        !leaning.contains(&agent) && !may_be
    });
    for (agent, slots) in strange.collect::<Vec<_>>() {
        let inner = key_path(&key, agent.as_str());
        let rule = "names no agent of this provider".to_owned();
        let value = Some(slots.to_string());
        report.tell(Problem { origin: report.origin_of(&inner), key: inner, value, rule });
    }
    let agents = u32::try_from(leaning.len()).unwrap_or(u32::MAX);
    let Some((slots, slots_key)) = most else {
        if let Some((agent, guaranteed)) = settings.guaranteed.first().filter(|_| slots_are_sound) {
            let inner = key_path(&key, agent.as_str());
            let rule = format!("means nothing without {path}.slots or {path}.adaptive");
            let value = Some(guaranteed.to_string());
            report.tell(Problem { origin: report.origin_of(&inner), key: inner, value, rule });
        }
        return;
    };
    if !slots_are_sound {
        return;
    }
    if slots < agents && settings.guaranteed.is_empty() {
        // As many as a machine has are no choice: there is nothing to share out differently.
        let is_the_machines = match &provider.backend {
            ProviderBackend::Ollama { .. } => true,
            ProviderBackend::OpenAi { flavor, .. } => *flavor == Flavor::LlamaCpp,
            ProviderBackend::Embedded | ProviderBackend::Http(_) => false,
        };
        if slots > 0 && !is_the_machines {
            let rule = format!("is fewer than its {agents} agents: none of them has a guaranteed share");
            let origin = report.origin_of(&slots_key);
            report.warnings.push(Problem { origin, key: slots_key, value: Some(slots.to_string()), rule });
        }
        return;
    }
    let named: u64 = settings.guaranteed.iter().map(|(_, slots)| u64::from(*slots)).sum();
    let unnamed = u64::from(agents).saturating_sub(settings.guaranteed.len() as u64);
    let needed = named + unnamed * u64::from(slots.checked_div(agents).unwrap_or(0).max(1));
    if !settings.guaranteed.is_empty() && needed > u64::from(slots) {
        let rule = format!(
            "is too few: guaranteed shares need {needed} ({named} configured, {unnamed} agents with the usual share)"
        );
        report.tell(Problem {
            origin: report.origin_of(&slots_key),
            key: slots_key,
            value: Some(slots.to_string()),
            rule,
        });
    }
}
