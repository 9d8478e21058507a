//! Rules between compartments and the rest: tiers and features that others name must be there, shares must fit into their provider, nodes
//! divide what is theirs together.

use std::collections::BTreeMap;

use super::{
    agent::Agent,
    budget_rules::check_budgets,
    compartments::{STRANGERS_NAME, check_tenants},
    guards::most_slots,
    keys::KeySettings,
    node::key_path,
    problem::Problem,
    provider::Provider,
    report::Report,
    whole::divided,
};
use crate::{
    model::name::Name,
    policy::compartment::{
        known_tenants::SHARED_TENANT,
        settings::{CompartmentSettings, Rates, TenantSettings, UnknownTenant},
    },
};

/// Applies every rule between compartments and the rest.
pub(super) fn check_compartments(
    settings: &mut CompartmentSettings,
    providers: &[Provider],
    (keys, agents): (&[KeySettings], &[Agent]),
    instances: u32,
    report: &mut Report,
) {
    let mut problems = Vec::new();
    check_tenants(settings, report, &mut problems);
    check_keys_of(settings, keys, report, &mut problems);
    report.tell_all(problems);
    for feature in &mut settings.features {
        let path = key_path("features", feature.name.as_str());
        feature.slots = feature.slots.map(|slots| divided(slots, &key_path(&path, "slots"), instances, report));
        divide_rates(&mut feature.rates, &path, instances, report);
        for (provider, slots) in &mut feature.guaranteed {
            let key = key_path(&key_path(&path, "guaranteed"), provider.as_str());
            *slots = divided(*slots, &key, instances, report);
        }
    }
    for tier in &mut settings.tiers {
        let path = key_path("tiers", tier.name.as_str());
        tier.slots = tier.slots.map(|slots| divided(slots, &key_path(&path, "slots"), instances, report));
        divide_rates(&mut tier.rates, &path, instances, report);
    }
    let mut problems = Vec::new();
    check_feature_shares(settings, providers, report, &mut problems);
    report.tell_all(problems);
    check_budgets(settings, providers, agents, report);
}

/// A minute's tokens and requests are the nodes' together.
pub(super) fn divide_rates(rates: &mut Rates, path: &str, instances: u32, report: &mut Report) {
    let requests = rates.requests_per_minute;
    rates.requests_per_minute =
        requests.map(|most| divided(most, &key_path(path, "requests_per_minute"), instances, report));
    if instances > 1
        && report.is_sound(&key_path(path, "tokens_per_minute"))
        && let Some(tokens) = &mut rates.tokens_per_minute
    {
        *tokens = (*tokens / u64::from(instances)).max(1);
        let how = format!("divided by node.instances = {instances}");
        report.derive(&key_path(path, "tokens_per_minute"), tokens.to_string(), &how);
    }
}

/// What providers keep for agents, features and classes must fit into their slots beside each other, and nothing is kept for a feature
/// beyond its own slots.
fn check_feature_shares(
    settings: &CompartmentSettings,
    providers: &[Provider],
    report: &Report,
    problems: &mut Vec<Problem>,
) {
    let mut problem = |key: String, value: u32, rule: String| {
        problems.push(Problem { origin: report.origin_of(&key), key, value: Some(value.to_string()), rule });
    };
    let mut sums: BTreeMap<&Name, u64> = BTreeMap::new();
    for feature in &settings.features {
        let path = key_path("features", feature.name.as_str());
        for (name, slots) in &feature.guaranteed {
            let key = key_path(&key_path(&path, "guaranteed"), name.as_str());
            let own = key_path(&path, "slots");
            if feature.slots.is_some_and(|most| *slots > most) && report.is_sound(&own) {
                problem(key.clone(), *slots, format!("is more than {own}"));
            }
            let there = key_path("providers", name.as_str());
            if !report.is_sound(&key_path(&there, "slots")) || !report.is_whole(&key_path(&there, "adaptive")) {
                continue;
            }
            match providers.iter().find(|known| known.settings.name == *name).map(|known| most_slots(&known.settings)) {
                None => problem(key, *slots, "names no provider".to_owned()),
                Some(None) => {
                    problem(key, *slots, format!("means nothing without {there}.slots or {there}.adaptive"));
                }
                Some(Some(_)) => *sums.entry(name).or_default() += u64::from(*slots),
            }
        }
    }
    for Provider { settings: provider, .. } in providers {
        let path = key_path("providers", provider.name.as_str());
        let is_sound = report.is_sound(&key_path(&path, "slots")) && report.is_whole(&key_path(&path, "adaptive"));
        let Some((slots, path)) = most_slots(provider).filter(|_| is_sound) else { continue };
        let of_agents: u64 = provider.guaranteed.iter().map(|(_, slots)| u64::from(*slots)).sum();
        let of_features = sums.get(&provider.name).copied().unwrap_or(0);
        let of_classes: u64 = settings.classes.shares_of(slots).iter().map(|share| u64::from(share.slots)).sum();
        let sum = of_agents + of_features + of_classes;
        // Shares of agents alone are judged where agents are.
        if sum > u64::from(slots) && sum > of_agents {
            let rule = format!(
                "is too few: {sum} of them are kept ({of_agents} for agents, {of_features} for features, {of_classes} for classes)"
            );
            problem(path, slots, rule);
        }
    }
}

/// A key's features and tier must be there, where any are configured.
fn check_keys_of(
    settings: &mut CompartmentSettings,
    keys: &[KeySettings],
    report: &Report,
    problems: &mut Vec<Problem>,
) {
    let mut refuse = |path: &str, key: &str, name: &Name, rule: &str| {
        let key = key_path(path, key);
        let value = Some(format!("{:?}", name.as_str()));
        problems.push(Problem { origin: report.origin_of(&key), key, value, rule: rule.to_owned() });
    };
    let counts_strangers = settings.unknown_tenant != UnknownTenant::Refused;
    for key in keys {
        let path = key_path("keys", key.name.as_str());
        let is_strange = |name: &Name| {
            let may_be = !report.is_sound(&key_path("features", name.as_str()));
            let is_known = settings.features.is_empty() || settings.features.iter().any(|known| known.name == *name);
            !may_be && !is_known
        };
        let is_among = |name: &Name| key.features.as_ref().is_none_or(|features| features.contains(name));
        for name in key.features.iter().flatten().filter(|name| is_strange(name)) {
            refuse(&path, "features", name, "must be one of [features]");
        }
        match &key.feature {
            Some(name) if is_strange(name) => refuse(&path, "feature", name, "must be one of [features]"),
            Some(name) if !is_among(name) && report.is_whole(&key_path(&path, "features")) => {
                refuse(&path, "feature", name, "is not among `features`");
            }
            _ => {}
        }
        if let Some(tenant) = key.tenant.as_ref().filter(|tenant| tenant.as_str() == SHARED_TENANT)
            && counts_strangers
        {
            refuse(&path, "tenant", tenant, STRANGERS_NAME);
            continue;
        }
        let Some(tier) = key.tier.as_ref().filter(|_| !settings.tiers.is_empty()) else { continue };
        if !report.is_sound(&key_path("tiers", tier.as_str())) {
            continue;
        }
        if !settings.tiers.iter().any(|known| known.name == *tier) {
            refuse(&path, "tier", tier, "must be one of [tiers]");
            continue;
        }
        let Some(tenant) = &key.tenant else { continue };
        match settings.tenants.iter().find(|known| known.name == *tenant) {
            // One that is of no tier that is there is told where it stands.
            Some(known) if !settings.tiers.iter().any(|tier| tier.name == known.tier) => {}
            Some(known) if known.tier != *tier => {
                refuse(&path, "tier", tier, &format!("tenant {tenant} is of tier {} elsewhere", known.tier));
            }
            Some(_) => {}
            None => settings.tenants.push(TenantSettings { name: tenant.clone(), tier: tier.clone() }),
        }
    }
}
