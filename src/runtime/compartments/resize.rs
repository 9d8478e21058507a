//! Another number of slots while calls run: who is in flight stays, who waits gets what it adds. It decides no number.

use std::sync::Arc;

use super::{Compartments, deliver};
use crate::{
    policy::{
        bulkhead::{ClassShare, Guarantees, Member},
        compartment::needs::CountId,
    },
    runtime::core::{Shared, lock},
};

impl Compartments {
    /// Calls in flight in a count, and how many there could be with more callers like `member`: all but what is kept from it.
    pub(crate) fn reach(&self, count: CountId, member: Member) -> (u32, u32) {
        let state = lock(&self.state);
        let in_flight = state.pool.in_flight(count);
        (in_flight, in_flight.saturating_add(state.pool.room_for(count, member)))
    }

    /// Another cap of a count and what is kept of it, while calls run. Those who wait get what it adds.
    pub(crate) fn resize(
        &self,
        shared: &Arc<Shared>,
        count: CountId,
        cap: u32,
        kept: impl FnOnce(Vec<ClassShare>) -> Guarantees,
    ) {
        let mut state = lock(&self.state);
        let guarantees = kept(state.classes.shares_of(cap));
        let granted = state.pool.resize(count, cap, &guarantees, shared.now());
        Self::show_line(&state.pool);
        drop(state);
        for granted in granted {
            deliver(shared, granted);
        }
    }
}
