//! Which slots a call needs at a target, in the fixed order in which they are taken.

use crate::{
    policy::{
        bulkhead::{Member, NO_MEMBER},
        compartment::{
            directory::Place,
            needs::{Needs, Seat},
        },
    },
    runtime::core::AgentCore,
};

/// What of a call's slots is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// All of them.
    Everything,
    /// Those that this target adds to what the call has.
    Target,
}

/// A target's slots first (its provider's), then those of the call: the agent's, the feature's, the tenant's, the cell's.
pub(super) fn needs_of(agent: &AgentCore, place: &Place, class: u16, part: Part) -> Needs {
    let target = target_needs(agent, place.feature, class);
    if part == Part::Target {
        return target;
    }
    let own = Member { agent: NO_MEMBER, feature: place.feature, class };
    let mut needs = target;
    needs.push(Seat::of(agent.common.count, own));
    place.needs.iter().for_each(|seat| needs.push(seat));
    needs
}

pub(super) fn target_needs(agent: &AgentCore, feature: u16, class: u16) -> Needs {
    let member = Member { agent: agent.member, feature, class };
    Needs::of(agent.provider.count.map(|count| Seat::of(count, member)))
}

/// The slots that a target adds to those of its call.
pub(crate) fn is_of_target(agent: &AgentCore) -> Needs {
    target_needs(agent, NO_MEMBER, NO_MEMBER)
}
