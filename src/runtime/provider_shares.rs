//! What of a provider's slots is kept for its agents, for features and for classes, and the adaptive limit that it may have instead of a
//! fixed number. Rules only: shares that do not fit are refused.

use super::{
    adaptive::{ProviderLimit, ProviderShares},
    builder::StartError,
    compartments_builder::CompartmentsBuilder,
    reload::before::Before,
    settings::{AgentSettings, ProviderSettings, SLOTS_MAX},
};
use crate::{
    model::name::Name,
    policy::{bulkhead::Guarantees, setting::InvalidSetting},
};

/// The adaptive limit of a provider, if it has one. What is kept of its slots must fit into the most that they can be.
pub(super) fn adaptive_limit(
    settings: &ProviderSettings,
    (members, places): (&[&AgentSettings], &[Name]),
    compartments: &CompartmentsBuilder<'_>,
    before: &Before,
) -> Result<Option<ProviderLimit>, StartError> {
    let Some(adaptive) = settings.adaptive else { return Ok(None) };
    if let Some(broken) = adaptive.check().into_iter().next() {
        return Err(StartError::Setting { name: settings.name.clone(), broken });
    }
    let most = adaptive.under(settings.slots).max;
    let shares = checked_shares(settings, most, (members, places), compartments)?;
    let shares = ProviderShares { common: 1, ..shares };
    Ok(Some(match before.adaptive(&settings.name) {
        Some(known) => known.renewed(settings, adaptive, shares, before.now),
        None => ProviderLimit::new(settings, adaptive, shares, before.now),
    }))
}

/// What of a provider's slots is kept for agents, features and classes.
pub(super) fn guarantees(
    settings: &ProviderSettings,
    cap: u32,
    (members, places): (&[&AgentSettings], &[Name]),
    compartments: &CompartmentsBuilder<'_>,
) -> Result<Guarantees, StartError> {
    let shares = checked_shares(settings, cap, (members, places), compartments)?;
    Ok(shares.at(cap, compartments.classes().shares_of(cap)))
}

/// The shares that are configured, which must fit into `cap` slots beside each other.
fn checked_shares(
    settings: &ProviderSettings,
    cap: u32,
    (members, places): (&[&AgentSettings], &[Name]),
    compartments: &CompartmentsBuilder<'_>,
) -> Result<ProviderShares, StartError> {
    let provider = &settings.name;
    if cap > SLOTS_MAX {
        let broken = InvalidSetting::new("slots", cap, format!("must be at most {SLOTS_MAX}"));
        return Err(StartError::Setting { name: provider.clone(), broken });
    }
    // Who is gone has no share.
    let is_here = |name: &Name| members.iter().any(|member| member.name == *name);
    if let Some((agent, _)) = settings.guaranteed.iter().find(|(agent, _)| !is_here(agent)) {
        return Err(StartError::StrangeShare { provider: provider.clone(), agent: agent.clone() });
    }
    let named = |name: &Name| settings.guaranteed.iter().find(|(agent, _)| agent == name).map(|(_, share)| *share);
    let share = |name: &Name| if is_here(name) { named(name) } else { Some(0) };
    let shares = ProviderShares {
        agents: places.iter().map(share).collect(),
        features: compartments.guaranteed_of(&settings.name),
        common: 0,
    };
    let configured = Guarantees {
        agents: shares.agents.iter().flatten().copied().collect(),
        features: shares.features.clone(),
        classes: compartments.classes().shares_of(cap),
    };
    let guaranteed = configured.sum();
    if guaranteed > u64::from(cap) {
        return Err(StartError::Shares { provider: provider.clone(), guaranteed, slots: cap });
    }
    Ok(shares)
}
