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
    let mut needs = Needs::default();
    push_target(&mut needs, agent, place.feature, class);
    if part == Part::Everything {
        let own = Member { agent: NO_MEMBER, feature: place.feature, class };
        needs.push(Seat::of(agent.common.count, own));
        place.needs.iter().for_each(|seat| needs.push(seat));
    }
    needs
}

/// Filled where it stands: each copy of it that is made on the way costs more than filling it.
fn push_target(needs: &mut Needs, agent: &AgentCore, feature: u16, class: u16) {
    if let Some(count) = agent.provider.count {
        needs.push(Seat::of(count, Member { agent: agent.member, feature, class }));
    }
}

/// The slots that a target adds to those of its call.
pub(crate) fn is_of_target(agent: &AgentCore) -> Needs {
    let mut needs = Needs::default();
    push_target(&mut needs, agent, NO_MEMBER, NO_MEMBER);
    needs
}
