//! What an owner has in hand already, by agent and tenant: whoever has as much as one may have is passed over. It takes nothing itself.

use std::collections::HashMap;

use crate::{
    journal::{fault::Fault, work::Within},
    runtime::deferred::store::Held,
};

/// Who has how many entries in hand, as numbers of the file. Who has as many as one may have is passed over.
pub(super) struct InHand {
    agents: HashMap<i64, usize>,
    tenants: HashMap<i64, usize>,
    of_one_max: usize,
}

impl InHand {
    pub(super) fn of(within: &mut Within<'_>, held: &Held) -> Result<Self, Fault> {
        let of_one_max = if held.of_one_max == 0 { usize::MAX } else { held.of_one_max };
        let mut in_hand = Self { agents: HashMap::new(), tenants: HashMap::new(), of_one_max };
        for (agent, tenant) in &held.calls {
            let agent = within.names.number(within.connection, Some(agent))?;
            let tenant = within.names.number(within.connection, tenant.as_deref())?;
            in_hand.add(agent, tenant);
        }
        Ok(in_hand)
    }

    pub(super) fn add(&mut self, agent: i64, tenant: i64) {
        *self.agents.entry(agent).or_default() += 1;
        self.add_of_tenant(tenant);
    }

    /// Where agents do not matter.
    pub(super) fn add_of_tenant(&mut self, tenant: i64) {
        *self.tenants.entry(tenant).or_default() += 1;
    }

    pub(super) fn of_tenant(&self, tenant: i64) -> usize {
        self.tenants.get(&tenant).copied().unwrap_or_default()
    }

    pub(super) fn has_room(&self, tenant: i64) -> bool {
        self.of_tenant(tenant) < self.of_one_max
    }

    /// Agents and tenants that are passed over, each as a list of SQL.
    pub(super) fn passed_over(&self) -> (String, String) {
        let full = |counts: &HashMap<i64, usize>| {
            let full = counts.iter().filter(|(_, count)| **count >= self.of_one_max);
            full.map(|(number, _)| number.to_string()).collect::<Vec<_>>().join(", ")
        };
        (full(&self.agents), full(&self.tenants))
    }
}
