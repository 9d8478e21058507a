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
    policy::{
        bulkhead::{Bulkhead, Guarantees},
        setting::InvalidSetting,
    },
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
    let Guarantees { features, .. } = guarantees(settings, most, (members, places), compartments)?;
    let named = |name: &Name| settings.guaranteed.iter().find(|(agent, _)| agent == name).map(|(_, share)| *share);
    // Who is gone has no share.
    let is_here = |name: &Name| members.iter().any(|member| member.name == *name);
    let share = |name: &Name| if is_here(name) { named(name) } else { Some(0) };
    let shares = ProviderShares { agents: places.iter().map(share).collect(), features };
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
    let features = compartments.guaranteed_of(&settings.name);
    let sum: u64 = features.iter().copied().map(u64::from).sum();
    if sum > u64::from(cap) {
        return Err(StartError::FeatureShares { provider: settings.name.clone(), guaranteed: sum, slots: cap });
    }
    let shares = shares(settings, cap, members)?;
    // By place; who is gone has none.
    let share_of = |name: &Name| members.iter().position(|member| member.name == *name).and_then(|at| shares.get(at));
    let agents = places.iter().map(|name| share_of(name).copied().unwrap_or(0)).collect();
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
