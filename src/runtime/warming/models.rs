//! All models that are looked after: which agents share one, which stand beside each other on a server and throw each other out, and which
//! are begun anew because a reload has put another place behind their name.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{ModelCore, cold_start, tell_over};
use crate::{
    model::{clock::Timestamp, name::Name},
    policy::warmth::{machine::Belief, swaps::Swaps},
    runtime::{
        core::{Shared, lock},
        metric,
        ports::{Backend, ColdStart},
        settings::{AgentSettings, LoadedModels, ProviderSettings},
        sync::{Mutex, atomic::Ordering},
    },
};

/// All models that are looked after.
#[derive(Default)]
pub(crate) struct Models {
    /// By `provider/model`. Written by a reload.
    all: Mutex<BTreeMap<Arc<str>, Known>>,
    /// Those that a reload has put others in the place of, until whoever waits for them was told.
    replaced: Mutex<Vec<Arc<ModelCore>>>,
    swaps: Mutex<BTreeMap<Name, Swaps>>,
}

/// Where a model is, and as what it is loaded there; each agent's backend says its own.
type Place = (Option<Arc<str>>, Option<Arc<str>>);

struct Known {
    core: Arc<ModelCore>,
    places: BTreeSet<Place>,
}

/// A model that agents want.
struct Wanted<'a> {
    provider: &'a ProviderSettings,
    model: Option<String>,
    places: BTreeSet<Place>,
}

impl<'a> Wanted<'a> {
    fn of(agent: &AgentSettings, provider: &'a ProviderSettings) -> Self {
        Self { provider, model: model_of(agent, provider), places: BTreeSet::new() }
    }
}

fn is_looked_after(agent: &AgentSettings, backend: &dyn Backend) -> bool {
    cold_start(agent, backend) != ColdStart::Never
}

/// The model's name on its provider; `None` where the provider has one, whatever it is called.
fn model_of(agent: &AgentSettings, provider: &ProviderSettings) -> Option<String> {
    agent.model.clone().filter(|_| provider.loaded_models != LoadedModels::TheOneItHas)
}

fn name_of(agent: &AgentSettings, provider: &ProviderSettings) -> Arc<str> {
    match model_of(agent, provider) {
        Some(model) => format!("{}/{model}", provider.name).into(),
        None => provider.name.as_str().into(),
    }
}

impl Models {
    /// Looks after the models of all these agents from now on. One that is to be had in a way that is new to it (at another address, by
    /// another API, loaded otherwise) is begun anew: what was seen of the place before says nothing of this one, and whoever still sees
    /// something there tells it to the old one, which nobody asks any more. [`Models::tell_replaced`] is to follow.
    pub(crate) fn begin<'a>(
        &self,
        agents: impl Iterator<Item = (&'a AgentSettings, &'a ProviderSettings, &'a dyn Backend)>,
    ) {
        let mut wanted: BTreeMap<Arc<str>, Wanted<'_>> = BTreeMap::new();
        for (agent, provider, backend) in agents.filter(|(agent, _, backend)| is_looked_after(agent, *backend)) {
            let wanted = wanted.entry(name_of(agent, provider)).or_insert_with(|| Wanted::of(agent, provider));
            wanted.places.insert((backend.stands_at(), backend.loads_as()));
        }
        let mut all = lock(&self.all);
        for (name, Wanted { provider, model, places }) in wanted {
            let known = all.get_mut(&name);
            let is_new_to = |known: &Known| !places.is_subset(&known.places);
            let core = match known {
                Some(known) if !is_new_to(known) => {
                    known.places = places;
                    Arc::clone(&known.core)
                }
                known => {
                    if let Some(before) = known {
                        before.core.is_replaced.store(true, Ordering::Relaxed);
                        lock(&self.replaced).push(Arc::clone(&before.core));
                    }
                    let core = ModelCore::unknown(&name, &provider.name, model);
                    all.insert(name, Known { core: Arc::clone(&core), places });
                    core
                }
            };
            core.is_here.store(true, Ordering::Relaxed);
            core.is_alone.store(provider.loaded_models.at_most() == Some(1), Ordering::Relaxed);
        }
    }

    /// Whoever waits for a model that was replaced asks again: for the one in its place.
    pub(crate) fn tell_replaced(&self, shared: &Shared) {
        for before in std::mem::take(&mut *lock(&self.replaced)) {
            tracing::info!(model = &*before.name, "is somewhere else now: nothing is known of it there");
            before.ended.notify_waiters();
            let now = lock(&self.all).get(&before.name).map(|known| Arc::clone(&known.core));
            if let Some(core) = now {
                tell_over(shared, &core);
            }
        }
    }

    /// The model of an agent, shared with every other agent that uses it there; `None` if nobody looks after it.
    pub(crate) fn of(
        &self,
        agent: &AgentSettings,
        provider: &ProviderSettings,
        backend: &dyn Backend,
    ) -> Option<Arc<ModelCore>> {
        if !is_looked_after(agent, backend) {
            return None;
        }
        lock(&self.all).get(&name_of(agent, provider)).map(|known| Arc::clone(&known.core))
    }

    /// Waits until the model of this name is being warmed up no longer. False, at once, if too many wait for it already.
    pub(crate) async fn until_over(&self, name: &str) -> bool {
        let Some(model) = lock(&self.all).get(name).map(|known| Arc::clone(&known.core)) else { return true };
        let Ok(_place) = model.waiting.try_acquire() else { return false };
        let ended = model.ended.notified();
        tokio::pin!(ended);
        // Listening comes before looking, so that no end falls between the two.
        ended.as_mut().enable();
        if model.is_warming.load(Ordering::Acquire) {
            ended.await;
        }
        true
    }

    fn each(&self) -> Vec<Arc<ModelCore>> {
        lock(&self.all).values().map(|known| Arc::clone(&known.core)).collect()
    }

    /// The other models of this one's provider.
    fn beside(&self, model: &ModelCore) -> Vec<Arc<ModelCore>> {
        // One that was replaced stood beside others than those that are here.
        if model.is_replaced.load(Ordering::Relaxed) {
            return Vec::new();
        }
        self.each().into_iter().filter(|other| other.provider == model.provider && other.name != model.name).collect()
    }

    /// Only the models of these names are used by anybody now; of the others nothing is shown. Those, by provider and model.
    pub(crate) fn show_only(&self, present: &BTreeSet<Arc<str>>) -> Vec<(Name, Option<String>)> {
        let mut gone = Vec::new();
        for model in self.each().into_iter().filter(|model| !present.contains(&model.name)) {
            model.is_here.store(false, Ordering::Relaxed);
            model.show(Belief::Unknown);
            gone.push((model.provider.clone(), model.model.clone()));
        }
        gone
    }

    /// Shows what is believed by now: an unused model grows cold without anybody saying so.
    pub(crate) fn show(&self, now: Timestamp) {
        for model in self.each() {
            model.show(model.belief(now));
        }
    }

    /// `model` was loaded: on a server that keeps one, whoever was there is gone.
    pub(super) fn was_loaded(&self, model: &ModelCore, now: Timestamp) {
        if !model.is_alone.load(Ordering::Relaxed) {
            return;
        }
        for other in self.beside(model) {
            let was_warm = lock(&other.warmth).evicted(now);
            other.show(other.belief(now));
            if was_warm {
                self.count_swap(&other, now);
            }
        }
    }

    /// `model` was found cold though it had been used not long ago, at `used_at`: a swap, if another one was loaded since.
    pub(super) fn was_surprised(&self, model: &ModelCore, used_at: Option<Timestamp>, now: Timestamp) {
        let Some(used_at) = used_at else { return };
        if self.beside(model).iter().any(|other| lock(&other.warmth).was_loaded_after(used_at)) {
            self.count_swap(model, now);
        }
    }

    fn count_swap(&self, thrown_out: &ModelCore, now: Timestamp) {
        metric::count(metric::MODEL_SWAPS, thrown_out.labels(), 1);
        thrown_out.swaps.fetch_add(1, Ordering::Relaxed);
        let alarm = lock(&self.swaps).entry(thrown_out.provider.clone()).or_default().count(now);
        if alarm {
            tracing::warn!(
                provider = thrown_out.provider.as_str(),
                model = &*thrown_out.name,
                "agents evict each other's model: each call pays for a load; let them use one model, or give the server room for all"
            );
        }
    }
}
