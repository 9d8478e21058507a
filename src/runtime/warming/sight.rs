//! What an attempt sees of its model: evidence for what is believed of it, and an excuse where the model was not there all along.

use std::sync::Arc;

use super::{ModelCore, cold_start};
use crate::{
    model::{
        facts::Ending,
        reply::{AttemptFailure, Reply},
    },
    policy::warmth::machine::{ColdStart, Epoch, FoundCold},
    runtime::{
        core::{AgentCore, Shared, lock},
        ports::Progress,
    },
};

/// What an attempt needs to tell of its model: which, and in which epoch it began.
pub(crate) struct Sight {
    model: Arc<ModelCore>,
    cold_start: ColdStart,
    epoch: Epoch,
}

impl Sight {
    /// What an attempt sees that begins in this epoch.
    pub(super) fn at(model: &Arc<ModelCore>, cold_start: ColdStart, epoch: Epoch) -> Self {
        Self { model: Arc::clone(model), cold_start, epoch }
    }

    /// The same that begins now.
    pub(super) fn of(model: &Arc<ModelCore>, agent: &AgentCore) -> Self {
        let epoch = lock(&model.warmth).epoch();
        Self { model: Arc::clone(model), cold_start: cold_start(&agent.settings, &*agent.backend), epoch }
    }

    /// Whether the model was not there all along: being slow or late then says nothing about anybody's health.
    pub(crate) fn is_excused(&self, progress: &Progress) -> bool {
        progress.had_model_loaded() || lock(&self.model.warmth).epoch() != self.epoch
    }

    /// Tells what an attempt saw of its model.
    pub(crate) fn tell(&self, shared: &Shared, result: &Result<Reply, AttemptFailure>, progress: &Progress) {
        let now = shared.now();
        let has_content = result.is_ok() || progress.first_content().is_some();
        let on_the_way = has_content && progress.had_model_loaded();
        let mut warmth = lock(&self.model.warmth);
        let (before, used_at) = (warmth.belief(now), warmth.used_at());
        let found = match result {
            _ if on_the_way => warmth.loaded_on_the_way(self.epoch, self.cold_start, now),
            _ if has_content => {
                warmth.used(self.epoch, self.cold_start, now);
                FoundCold::Stale
            }
            Err(AttemptFailure { ending: Ending::Loading, .. }) => warmth.found_cold(self.epoch, now),
            Err(AttemptFailure { ending: Ending::Timeout { .. } | Ending::Network { .. }, .. }) => {
                warmth.doubted(self.epoch);
                FoundCold::Stale
            }
            _ => FoundCold::Stale,
        };
        let after = warmth.belief(now);
        drop(warmth);
        if after != before {
            self.model.show(after);
        }
        if found == FoundCold::Surprise {
            shared.models.was_surprised(&self.model, used_at, now);
        }
        if on_the_way && found != FoundCold::Stale {
            shared.models.was_loaded(&self.model, now);
        }
    }
}
