//! The reload itself: tried out on the side with everything that a start checks, then done in an order that loses no call. What could
//! go wrong has gone wrong before anything is touched.
//!
//! Breakers, slots and budgets take their new settings where they stand. New cores take the places of the old ones; calls under way keep
//! the core that admitted them, and give back to the counts that both share.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use tokio::sync::oneshot;

use super::{before::Before, gone, report::ReloadReport};
use crate::{
    model::name::Name,
    policy::compartment::settings::{ClassSettings, CompartmentSettings},
    runtime::{
        adaptive,
        assembly::{self, Made},
        builder::{AGENTS_MAX, StartError},
        compartments::State,
        compartments_builder::CompartmentsBuilder,
        core::{AgentCore, AgentTable, BreakerId, ProviderCore, Shared, lock},
        engine::Runtime,
        orchestrator::OrchestratorMessage,
        outside::OutsideBackend,
        parts::Parts,
        root::RootMessage,
        supervisor::{Book, SupervisorMessage},
        sync::atomic::{AtomicBool, Ordering},
        warming::Models,
    },
};

/// The most targets, and the most models, that one runtime has known in all its life.
pub const PLACES_MAX: usize = 50_000;

impl Runtime {
    /// Makes the runtime what `parts` say, without a pause: calls under way end as they began and are counted where they were, an open
    /// breaker stays open for as long as it said, what was counted and learnt stays so, what is gone is not found by new calls and runs
    /// dry. Either everything is done or, with an error, nothing.
    pub async fn reload(&self, mut parts: Parts) -> Result<ReloadReport, StartError> {
        let shared = &self.shared;
        let _one_at_a_time = shared.reloading.lock().await;
        let needs_restart = keep_class_order(&mut parts.compartments, shared.compartments.order());
        let old = shared.table.load_full();
        try_out(shared, &parts)?;
        let table = Arc::new(make(shared, &parts, &old)?);
        self.begin(&table, &old).await;
        // From here on every admission finds the new ones; who has an old one is sent to them.
        let retired = put_in_place(shared, &old, &table);
        spread(shared, &parts, &table);
        shared.models.tell_replaced(shared);
        gone::say(shared, &old, &table);
        let report = ReloadReport { needs_restart, ..compared(&old, &table) };
        // A root that is gone has stopped everything.
        let _ = self.root.cast(RootMessage::Retire(retired));
        // What was changed in the book is news, and timers may run from other moments on.
        shared.supervisor.cast(SupervisorMessage::Tick);
        let touched = report.removed.iter().chain(&report.changed).chain(&report.added);
        let touched: BTreeSet<Name> = touched.cloned().collect();
        shared.orchestrator.cast(OrchestratorMessage::Reloaded(Arc::new(touched)));
        tracing::info!(
            added = report.added.len(),
            removed = report.removed.len(),
            changed = report.changed.len(),
            "reloaded"
        );
        Ok(report)
    }

    /// Starts the actors of targets that are new or come back, before anybody can find them.
    async fn begin(&self, table: &AgentTable, old: &AgentTable) {
        let new = newcomers(table, old);
        if new.is_empty() {
            return;
        }
        let (done, begun) = oneshot::channel();
        let _ = self.root.cast(RootMessage::Begin(new.clone(), done));
        // Where the root is gone the runtime has stopped.
        let _ = begun.await;
        come_back(&new);
    }
}

/// Targets that are new or come back.
pub(crate) fn newcomers(table: &AgentTable, old: &AgentTable) -> Vec<Arc<AgentCore>> {
    let is_new = |core: &&Arc<AgentCore>| {
        is_present(table, core) && old.agents.get(core.index).is_none_or(|known| known.presence.is_gone())
    };
    table.agents.iter().filter(is_new).map(Arc::clone).collect()
}

/// Targets that are here again let callers in.
pub(crate) fn come_back(new: &[Arc<AgentCore>]) {
    for core in new {
        core.presence.come_back();
    }
}

/// From here on every admission finds the new ones; who has an old one is sent to them. The places of targets that are gone.
pub(crate) fn put_in_place(shared: &Shared, old: &AgentTable, table: &Arc<AgentTable>) -> Vec<usize> {
    shared.table.store(Arc::clone(table));
    for core in &old.agents {
        core.superseded.store(true, Ordering::Release);
    }
    let gone = gone::take_away(shared, old, table);
    shared.reloaded.notify_waiters();
    gone
}

/// Whether a core is one of an agent that can be called, at one of its targets.
pub(super) fn is_present(table: &AgentTable, core: &AgentCore) -> bool {
    let first = table.places.get(&core.settings.name).and_then(|place| table.agents.get(*place));
    first.is_some_and(|first| first.index == core.index || first.further.contains(&core.index))
}

/// The order of classes holds for as long as the runtime runs: calls that are under way are counted by it. What each class keeps is put
/// in that order. What needs a restart therefore.
fn keep_class_order(compartments: &mut CompartmentSettings, order: &[&'static str]) -> Vec<&'static str> {
    let classes = &compartments.classes;
    if classes.order == order {
        return Vec::new();
    }
    let kept_of = |class: &&str| {
        let place = classes.order.iter().position(|known| known == class);
        place.and_then(|place| classes.kept.get(place)).copied()
    };
    let kept = order.iter().filter_map(kept_of).collect();
    compartments.classes = ClassSettings { order: order.to_vec(), kept };
    vec!["priorities.order"]
}

/// Makes everything on the side and throws it away: the checks of a start. Nobody sees a metric of it.
fn try_out(shared: &Shared, parts: &Parts) -> Result<(), StartError> {
    if parts.agents.len() > AGENTS_MAX {
        return Err(StartError::TooManyAgents);
    }
    if shared.deferred.is_none() && parts.ladders.any_defers() {
        return Err(StartError::NoQueue);
    }
    if !shared.compartments.has_places_for(&parts.compartments) {
        return Err(StartError::NoPlaceLeft);
    }
    let before = Before::nothing(shared.now());
    let (mut book, mut state) = (Book::default(), State::default());
    metrics::with_local_recorder(&metrics::NoopRecorder, || {
        let mut compartments = CompartmentsBuilder::new(&parts.compartments, &mut state, before.now);
        make_all(parts, &mut book, &mut compartments, shared, (&before, &Models::default())).map(drop)
    })
}

type All = (HashMap<Name, Arc<ProviderCore>>, Made);

fn make_all(
    parts: &Parts,
    book: &mut Book,
    compartments: &mut CompartmentsBuilder<'_>,
    shared: &Shared,
    (before, loaded): (&Before, &Models),
) -> Result<All, StartError> {
    let targets = assembly::lay_out(parts.agents.clone())?;
    let chance = shared.chance;
    let providers = assembly::make_providers(
        &parts.providers,
        &targets,
        (&mut *book, &mut *compartments),
        (chance, &shared.clock),
        before,
    )?;
    let made = assembly::make_agents(targets, &providers, (book, compartments), chance, before, loaded)?;
    Ok((providers, made))
}

/// The new table. What lives on has taken its new settings where it stands.
pub(crate) fn make(shared: &Arc<Shared>, parts: &Parts, old: &Arc<AgentTable>) -> Result<AgentTable, StartError> {
    let before = Before::of(Arc::clone(old), shared.now());
    let targets: usize = parts.agents.iter().map(|agent| 1 + agent.further.len()).sum();
    if old.agents.len().max(old.models.len()) + targets > PLACES_MAX {
        return Err(StartError::NoPlaceLeft);
    }
    // The book first, then the compartments, and never the other way round.
    let mut book = lock(&shared.book);
    let made = shared.compartments.renew(shared, &parts.compartments, |compartments| {
        make_all(parts, &mut book, compartments, shared, (&before, &shared.models))
    });
    drop(book);
    let known = shared.compartments.known_tenants();
    let rates = shared.rate_book.load().renewed(&parts.compartments, &known, &shared.clock);
    shared.rate_book.store(Arc::new(rates));
    let (present, Made { agents: cores, models }) = made?;
    let firsts = cores.iter().filter(|core| core.is_first());
    let places = firsts.map(|core| (core.settings.name.clone(), core.index)).collect();
    let mut providers = old.providers.clone();
    providers.extend(present);
    let mut agents: Vec<Arc<AgentCore>> = old.agents.iter().map(|core| Arc::new(hollow(core))).collect();
    let mut cores = cores;
    cores.sort_by_key(|core| core.index);
    for core in cores {
        match agents.get_mut(core.index) {
            Some(place) => *place = core,
            // New places follow each other.
            None => agents.push(core),
        }
    }
    let table = AgentTable { agents, places, providers, models };
    lock(&shared.book).show_only(&guards_of(&table), &below(&table));
    Ok(table)
}

/// The rest takes its new settings where it stands; it names agents, which are there by now.
fn spread(shared: &Arc<Shared>, parts: &Parts, table: &AgentTable) {
    let compartments = (&parts.compartments, &shared.compartments.known_tenants());
    shared.tokens.configure(parts.spending.clone(), compartments, &parts.providers, shared.now());
    *lock(&shared.run_caps) = parts.run_caps;
    shared.callers.change(parts.callers);
    shared.overload.change(parts.compartments.shedding.clone(), shared.now());
    shared.ladders.store(Arc::new(parts.ladders.clone()));
    if let Some(queue) = &shared.deferred {
        queue.settings.store(Arc::new(parts.deferred.clone()));
        queue.news.notify_one();
    }
    for provider in parts.providers.iter().filter_map(|settings| table.providers.get(&settings.name)) {
        adaptive::reloaded(shared, provider);
    }
}

/// What is left at the place of a target that is gone: what its calls under way still need of it.
fn hollow(core: &AgentCore) -> AgentCore {
    AgentCore {
        index: core.index,
        target: Arc::clone(&core.target),
        rank: core.rank,
        first: core.index,
        further: Vec::new(),
        common: Arc::clone(&core.common),
        settings: core.settings.clone(),
        backend: Arc::new(OutsideBackend),
        provider: Arc::clone(&core.provider),
        member: core.member,
        source: core.source,
        keyed: core.keyed,
        guard: core.guard.clone(),
        ledger: Arc::clone(&core.ledger),
        address: Arc::clone(&core.address),
        metrics: Arc::clone(&core.metrics),
        presence: Arc::clone(&core.presence),
        model: None,
        superseded: AtomicBool::new(false),
        stands_at: core.stands_at.clone(),
    }
}

/// The breakers of what is here.
fn guards_of(table: &AgentTable) -> BTreeSet<BreakerId> {
    let present = table.agents.iter().filter(|core| is_present(table, core));
    present.flat_map(|core| core.guards().map(|guard| guard.id).collect::<Vec<_>>()).collect()
}

/// Which breakers stand below which.
fn below(table: &AgentTable) -> Vec<(BreakerId, BreakerId)> {
    let present = table.agents.iter().filter(|core| is_present(table, core));
    present.filter_map(|core| Some((core.provider.guard.as_ref()?.id, core.guard.id))).collect()
}

/// What is different from before.
fn compared(old: &AgentTable, new: &AgentTable) -> ReloadReport {
    let mut report = ReloadReport::default();
    for (name, place) in &new.places {
        match old.places.get(name) {
            None => report.added.push(name.clone()),
            Some(before) if looks(old, *before) != looks(new, *place) => report.changed.push(name.clone()),
            Some(_) => {}
        }
    }
    report.removed = old.places.keys().filter(|name| !new.places.contains_key(*name)).cloned().collect();
    for list in [&mut report.added, &mut report.changed, &mut report.removed] {
        list.sort();
    }
    report
}

/// What an agent is as a whole, apart from who does its work: its targets with their ranks and settings, and their providers'.
fn looks(table: &AgentTable, place: usize) -> Vec<String> {
    let Some(first) = table.agents.get(place) else { return Vec::new() };
    let further = first.further.iter().filter_map(|index| table.agents.get(*index));
    let look = |core: &Arc<AgentCore>| format!("{:?} {:?} {:?}", core.rank, core.settings, core.provider.settings);
    std::iter::once(first).chain(further).map(look).collect()
}
