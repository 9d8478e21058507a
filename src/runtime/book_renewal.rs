//! Breakers of the book that go on with other settings, and those whose agents are gone: they live on unseen for calls that are under way.

use std::{collections::BTreeSet, sync::Arc};

use super::{
    book::{Book, Shown, follow_gate},
    book_metrics::{EntryMetrics, show_state},
    core::{BreakerId, Guard},
};
use crate::{
    model::clock::Timestamp,
    policy::{breaker::settings::BreakerSettings, setting::InvalidSetting},
};

impl Book {
    /// The breaker of this name, though what it guards be gone.
    pub(crate) fn find_ever(&self, name: &str) -> Option<BreakerId> {
        self.find(name).or_else(|| self.entries.iter().position(|entry| &*entry.name == name).map(BreakerId))
    }

    /// A breaker goes on with other settings, and maybe under another name. The supervisor is to be told that there may be news.
    pub(crate) fn renew(
        &mut self,
        id: BreakerId,
        name: String,
        settings: BreakerSettings,
        now: Timestamp,
    ) -> Result<Option<Guard>, InvalidSetting> {
        let Some(entry) = self.entries.get_mut(id.0) else { return Ok(None) };
        if *entry.name != *name {
            entry.name = name.into();
            entry.metrics = EntryMetrics::of(&entry.name);
        }
        entry.shown = Shown::Yes;
        let guard = Guard { name: Arc::clone(&entry.name), id, gate: Arc::clone(&entry.gate) };
        guard.gate.set_trials(settings.trials);
        let mut broken = Ok(());
        self.change(id, |breaker| {
            // A caller may have turned the gate half-open a moment ago: its trials are out.
            let opened = follow_gate(breaker, guard.gate.generation(), now);
            let changes = breaker.reconfigure(settings, now).unwrap_or_else(|error| {
                broken = Err(error);
                Vec::new()
            });
            opened.into_iter().chain(changes).collect()
        });
        broken?;
        if let Some(entry) = self.entries.get(id.0) {
            show_state(entry);
        }
        Ok(Some(guard))
    }

    /// What this breaker guards is another server from now on.
    pub(crate) fn moved(&mut self, id: BreakerId, now: Timestamp) {
        self.change(id, |breaker| {
            breaker.begin_elsewhere(now);
            Vec::new()
        });
    }

    /// Only these breakers guard something now, and these stand below others.
    pub(crate) fn show_only(&mut self, guards: &BTreeSet<BreakerId>, below: &[(BreakerId, BreakerId)]) {
        for (place, entry) in self.entries.iter_mut().enumerate() {
            let id = BreakerId(place);
            entry.shown = if guards.contains(&id) { Shown::Yes } else { Shown::Hidden };
            entry.members = below.iter().filter(|(owner, _)| *owner == id).map(|(_, member)| *member).collect();
        }
        self.former.extend(self.entries.iter().map(|entry| Arc::clone(&entry.name)));
    }

    /// The names of breakers that guarded something once, and guard nothing now.
    pub(crate) fn gone(&self) -> Vec<Arc<str>> {
        let former: Vec<Arc<str>> = self.former.iter().map(Arc::clone).collect();
        former.into_iter().filter(|name| self.find(name).is_none()).collect()
    }
}
