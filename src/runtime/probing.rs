//! What the supervisor does by itself while nobody calls: warms models for runs that were accepted, and tries half-open breakers that
//! ask for it. Each such trial passes the guards like any call and its end is judged like any call's; it never waits for a slot.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures_util::FutureExt;
use metrics::Label;

use super::{
    book::Entry,
    call::{CallContext, LadderUse},
    core::{AgentCore, BreakerId, Shared, lock},
    handle::AgentHandle,
    metric,
    permit::Permit,
    ports::WarmUp,
    settings::Prewarm,
    supervisor::{Facts, SupervisorMessage},
    warming::{self, Found, WarmingUp},
};
use crate::{
    model::{
        facts::{Ending, TimeoutKind},
        reply::AttemptFailure,
    },
    policy::breaker::{settings::Probe, state::StateName},
    workflow::plan::run_plan::RunPlan,
};

/// A run was accepted: its agents' models are wanted soon.
pub(crate) fn prewarm(shared: &Shared, plan: &RunPlan) {
    let mut wanted: Vec<usize> = Vec::new();
    for step in plan.workflow().steps() {
        let Some(agent) = shared.agent(step.agent().as_str()) else { continue };
        if agent.model.is_some() && agent.settings.warmth.prewarm == Prewarm::AtRuns && !wanted.contains(&agent.index) {
            wanted.push(agent.index);
        }
    }
    if !wanted.is_empty() {
        shared.supervisor.cast(SupervisorMessage::Prewarm(wanted));
    }
}

/// Warms the models of these agents, one after the other. A provider that keeps one model is warmed for the first of its agents only:
/// the next one would throw that out again.
pub(crate) fn warm_ahead(shared: &Arc<Shared>, agents: &[usize]) {
    let mut places = Vec::new();
    let mut wanted = Vec::new();
    for agent in agents.iter().filter_map(|index| shared.at(*index)) {
        let keeps_one = agent.provider.settings.loaded_models.at_most() == Some(1);
        let is_taken = keeps_one && places.contains(&agent.settings.provider);
        if !is_taken {
            places.push(agent.settings.provider.clone());
            wanted.push(agent);
        }
    }
    let shared = Arc::clone(shared);
    let tracker = shared.tracker.clone();
    tracker.spawn(async move {
        for agent in wanted {
            warm_one(&shared, &agent).await;
        }
    });
}

/// A place that refuses is not warmed: it is ill, or at work, or being warmed already. While a gate is half-open this is one of its trials.
async fn warm_one(shared: &Arc<Shared>, agent: &Arc<AgentCore>) {
    let Some(mut permit) = enter(shared, agent) else { return };
    let Some(warming_up) = warm_up_of(&mut permit) else { return };
    let work = warming_up.run(permit.request.take());
    let work = async { work.await.map(drop) };
    let is_trial = permit.passes.any_trial();
    let ended = until_stopped(shared, work).await;
    match ended {
        // A good warm-up says that the place is there, which is what a trial asks. Beyond that no call was made, and none is counted.
        Ok(()) if is_trial => settle(permit, Ending::Success),
        Ok(()) => drop(permit),
        Err(failure) => settle(permit, failure.ending),
    }
}

/// A breaker may have turned half-open: if it asks for it, it is tried, once now, and then every open time until it is decided.
pub(crate) fn follow(shared: &Arc<Shared>, breaker: BreakerId) {
    let probing = lock(&shared.book).entry(breaker).and_then(|entry| Probing::of(breaker, entry));
    let Some(probing) = probing else { return };
    let shared = Arc::clone(shared);
    let tracker = shared.tracker.clone();
    tracker.spawn(async move { probing.repeat(&shared).await });
}

/// One half-open state that is tried. It ends with its generation.
struct Probing {
    breaker: BreakerId,
    name: Arc<str>,
    generation: u32,
    probe: Probe,
    every: Duration,
}

impl Probing {
    /// What is to be tried, if this breaker is half-open and asks for it.
    fn of(breaker: BreakerId, entry: &Entry) -> Option<Self> {
        let settings = entry.breaker.settings();
        let is_asked = entry.breaker.state() == StateName::HalfOpen && settings.probe != Probe::Off;
        is_asked.then(|| Self {
            breaker,
            name: Arc::clone(&entry.name),
            generation: entry.breaker.generation(),
            probe: settings.probe,
            every: settings.open,
        })
    }

    async fn repeat(&self, shared: &Arc<Shared>) {
        let mut turn = 0;
        while !shared.stopping.is_cancelled() && self.is_undecided(shared) {
            let Some(agent) = self.agent(shared, turn) else { return };
            self.take(shared, &agent).await;
            turn += 1;
            tokio::select! {
                () = tokio::time::sleep(self.every) => {}
                () = shared.stopping.cancelled() => return,
            }
        }
    }

    /// The agents behind the breaker take turns.
    fn agent(&self, shared: &Shared, turn: usize) -> Option<Arc<AgentCore>> {
        let table = shared.agents();
        let behind: Vec<_> = table.agents.iter().filter(|agent| agent.guard_of(self.breaker).is_some()).collect();
        behind.get(turn % behind.len().max(1)).map(|agent| Arc::clone(agent))
    }

    fn is_undecided(&self, shared: &Shared) -> bool {
        let snapshot = lock(&shared.book).snapshot(self.breaker);
        snapshot.is_some_and(|now| now.state == StateName::HalfOpen && now.generation == self.generation)
    }

    async fn take(&self, shared: &Arc<Shared>, agent: &Arc<AgentCore>) {
        // Trials that others hold, or that are kept for runs, are theirs.
        let Some(mut permit) = enter(shared, agent) else { return };
        let ending = match until_stopped(shared, ask(&mut permit, self.probe)).await {
            Ok(()) => Ending::Success,
            Err(failure) => failure.ending,
        };
        let result = match ending {
            Ending::Success => "good",
            Ending::OwnRefusal | Ending::Loading | Ending::Cancelled { .. } => "none",
            _ => "bad",
        };
        let labels = vec![Label::new("breaker", self.name.to_string()), Label::from_static_parts("result", result)];
        metric::count(metric::PROBES, labels, 1);
        settle(permit, ending);
    }
}

/// Everything that a call takes, for a request of our own.
fn enter(shared: &Arc<Shared>, agent: &Arc<AgentCore>) -> Option<Permit> {
    let handle = AgentHandle { shared: Arc::clone(shared), agent: Arc::clone(agent) };
    // A request of our own: no feature's, no tenant's, and no caller's to be counted.
    handle.admit(&CallContext { ladder: LadderUse::StandsIn, ..CallContext::own() }).ok()
}

/// The warm-up that is to be made with this permit, if any is: the one that its call found necessary, or one ahead of every call.
fn warm_up_of(permit: &mut Permit) -> Option<WarmingUp> {
    match permit.found.take() {
        Some(Found::Cold(warming_up)) => Some(warming_up),
        _ => warming::look_ahead(&permit.shared, &permit.agent),
    }
}

async fn ask(permit: &mut Permit, probe: Probe) -> Result<(), AttemptFailure> {
    let agent = Arc::clone(&permit.agent);
    let nobody = || AttemptFailure::new(Ending::OwnRefusal, "there is nothing to ask");
    match probe {
        Probe::Off => Err(nobody()),
        Probe::Health => match agent.backend.health() {
            Some(asking) => {
                // The request that the trial was admitted with is sent now.
                if let Some(request) = permit.request.take() {
                    request.send();
                }
                within(&agent, asking).await
            }
            None => Err(nobody()),
        },
        // Where the model has to be loaded, its warm-up is the smallest request there is.
        Probe::Request => {
            if let Some(warming_up) = warm_up_of(permit) {
                return warming_up.run(permit.request.take()).await.map(drop);
            }
            let request = permit.request.take();
            let asked = within(&agent, agent.backend.warm_up()).await;
            // Dropped unsent where there was nothing to send.
            if let Some(request) = request.filter(|_| asked != Ok(WarmUp::NotNeeded)) {
                request.send();
            }
            match asked? {
                WarmUp::NotNeeded => Err(nobody()),
                WarmUp::Loaded | WarmUp::WasLoaded => Ok(()),
            }
        }
    }
}

async fn within<T>(
    agent: &AgentCore,
    asking: impl Future<Output = Result<T, AttemptFailure>>,
) -> Result<T, AttemptFailure> {
    let timeouts = agent.settings.timeouts;
    let limit = timeouts.first_token.or(timeouts.attempt).unwrap_or(timeouts.call);
    tokio::time::timeout(limit, asking).await.unwrap_or_else(|_| {
        Err(AttemptFailure::new(Ending::Timeout { timeout: TimeoutKind::Attempt }, "no answer to a trial in time"))
    })
}

/// Nobody waits for it, so a stop does not either; and a panic in it is its own.
async fn until_stopped(
    shared: &Shared,
    work: impl Future<Output = Result<(), AttemptFailure>>,
) -> Result<(), AttemptFailure> {
    tokio::select! {
        biased;
        ended = AssertUnwindSafe(work).catch_unwind() => ended.unwrap_or_else(|_| {
            Err(AttemptFailure::new(Ending::Restarted, "a request of the supervisor's panicked"))
        }),
        () = shared.stopping.cancelled() => {
            Err(AttemptFailure::new(Ending::Cancelled { slow_without_content: false }, "this node is stopping"))
        }
    }
}

fn settle(permit: Permit, ending: Ending) {
    let (shared, agent) = (Arc::clone(&permit.shared), permit.agent.index);
    let facts = Facts { agent, ending, slow: false, told: Vec::new(), at: shared.now(), permit: permit.hand_over() };
    shared.supervisor.cast(SupervisorMessage::Outcome(Box::new(facts)));
}
