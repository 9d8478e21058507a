//! Models that have to be loaded: who looks after which, the one warm-up of each, and what attempts tell of them. What is believed is
//! `policy::warmth`'s; here it is asked, told and shown. No breaker is touched: whoever warms up reports its end like any call.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use metrics::Label;
use tokio::sync::{Notify, Semaphore};

use super::{
    core::{AgentCore, Shared, lock},
    metric,
    orchestrator::OrchestratorMessage,
    ports::{Backend, ColdStart, WarmUp},
    rates::Request,
    refusal::Refusal,
    settings::{AgentSettings, WarmUpWhen},
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};
use crate::{
    model::{
        clock::Timestamp,
        facts::{Ending, TimeoutKind},
        name::Name,
        reply::AttemptFailure,
    },
    policy::warmth::machine::{Ask, Belief, Epoch, WarmUpEnd, Warmth},
};

mod models;
mod sight;

pub(crate) use models::Models;
pub(crate) use sight::Sight;

/// A server that says that it is loading is asked again after this.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Callers that may wait for one model where a line is configured; whoever comes then is refused.
const WAITING_MAX: usize = 1_000;

/// One model on one provider.
pub(crate) struct ModelCore {
    provider: Name,
    /// `None` = whatever the provider has.
    model: Option<String>,
    /// `provider/model`.
    pub(crate) name: Arc<str>,
    /// The provider keeps one model at a time, and so each that is loaded throws out the others. Written by a reload.
    is_alone: AtomicBool,
    /// Written by calls and warm-ups.
    warmth: Mutex<Warmth>,
    /// Whether an agent that is here uses it. Written by a reload.
    is_here: AtomicBool,
    /// A reload has put another one of this name in its place: what is still seen of it is shown to nobody. Written by a reload.
    is_replaced: AtomicBool,
    /// Whether a warm-up is under way: what an admission reads.
    is_warming: AtomicBool,
    /// How often another model threw it out while it was still wanted.
    swaps: AtomicU64,
    /// Told whenever a warm-up ends.
    ended: Notify,
    /// Callers that wait for that.
    waiting: Semaphore,
}

/// How an agent's model comes to be loaded: what its backend knows, and what was configured over it.
pub(crate) fn cold_start(agent: &AgentSettings, backend: &dyn Backend) -> ColdStart {
    let configured = agent.warmth.keeps_for;
    match (agent.warmth.when, backend.cold_start()) {
        (WarmUpWhen::Off, _) => ColdStart::Never,
        // What is put away after each answer cannot be warmed for the next one.
        (_, ColdStart::OnDemand { keeps_for: Some(Duration::ZERO) }) => ColdStart::Never,
        (_, ColdStart::OnDemand { keeps_for }) => ColdStart::OnDemand { keeps_for: configured.or(keeps_for) },
        (WarmUpWhen::Always, _) => ColdStart::OnDemand { keeps_for: configured },
        // A server that is known to drop what is unused drops it without a word.
        (WarmUpWhen::Auto, ColdStart::Told) if configured.is_some() => ColdStart::OnDemand { keeps_for: configured },
        (WarmUpWhen::Auto, known) => known,
    }
}

/// Refuses while the agent's model is being warmed up.
pub(crate) fn not_warming(agent: &AgentCore, now: Timestamp) -> Result<(), Refusal> {
    let Some(model) = agent.model.as_ref().filter(|model| model.is_warming.load(Ordering::Acquire)) else {
        return Ok(());
    };
    match lock(&model.warmth).wait(now) {
        Some(wait) => Err(Refusal::Warming { model: Arc::clone(&model.name), wait }),
        None => Ok(()),
    }
}

impl ModelCore {
    /// One of which nothing is known.
    fn unknown(name: &Arc<str>, provider: &Name, model: Option<String>) -> Arc<Self> {
        let core = Self {
            provider: provider.clone(),
            model,
            name: Arc::clone(name),
            is_alone: AtomicBool::new(false),
            is_here: AtomicBool::new(true),
            is_replaced: AtomicBool::new(false),
            warmth: Mutex::new(Warmth::default()),
            is_warming: AtomicBool::new(false),
            swaps: AtomicU64::new(0),
            ended: Notify::new(),
            waiting: Semaphore::new(WAITING_MAX),
        };
        core.show(Belief::Unknown);
        metric::count(metric::MODEL_SWAPS, core.labels(), 0);
        Arc::new(core)
    }

    /// What is believed of it.
    pub(crate) fn belief(&self, now: Timestamp) -> Belief {
        lock(&self.warmth).belief(now)
    }

    /// How long whoever comes now has to wait for the warm-up under way.
    pub(crate) fn wait(&self, now: Timestamp) -> Option<Duration> {
        lock(&self.warmth).wait(now)
    }

    /// How often another model threw it out while it was still wanted.
    pub(crate) fn swaps(&self) -> u64 {
        self.swaps.load(Ordering::Relaxed)
    }

    fn labels(&self) -> Vec<Label> {
        vec![
            Label::new("provider", self.provider.as_str().to_owned()),
            Label::new("model", self.model.clone().unwrap_or_default()),
        ]
    }

    fn show(&self, belief: Belief) {
        if self.is_replaced.load(Ordering::Relaxed) {
            return;
        }
        let is_here = self.is_here.load(Ordering::Relaxed);
        for state in Belief::ALL {
            let mut labels = self.labels();
            labels.push(Label::from_static_parts("state", state.as_str()));
            metric::set(metric::MODEL_WARMTH, labels, f64::from(u8::from(is_here && state == belief)));
        }
    }

    fn count_warm_up(&self, result: &'static str) {
        let mut labels = self.labels();
        labels.push(Label::from_static_parts("result", result));
        metric::count(metric::WARM_UPS, labels, 1);
    }
}

/// What a call that has everything else finds.
pub(crate) enum Found {
    /// Nothing is in its way.
    Ready(Option<Sight>),
    /// The model has to be warmed up first, by this call.
    Cold(WarmingUp),
}

/// Looks at the agent's model before an attempt. Refused if somebody else warms it up.
pub(crate) fn look(shared: &Arc<Shared>, agent: &Arc<AgentCore>) -> Result<Found, Refusal> {
    let Some(model) = &agent.model else { return Ok(Found::Ready(None)) };
    let cold_start = cold_start(&agent.settings, &*agent.backend);
    let asked = {
        let mut warmth = lock(&model.warmth);
        let asked = warmth.ask(cold_start, shared.now());
        // Under the lock, so that word and belief never say different things for longer than a moment.
        model.is_warming.store(!matches!(asked, Ask::Go(_)), Ordering::Release);
        asked
    };
    match asked {
        Ask::Go(epoch) => Ok(Found::Ready(Some(Sight::at(model, cold_start, epoch)))),
        Ask::WarmUp(epoch) => Ok(Found::Cold(WarmingUp::begin(shared, agent, model, epoch))),
        Ask::Wait(wait) => Err(Refusal::Warming { model: Arc::clone(&model.name), wait }),
    }
}

/// Begins the warm-up of an agent's model whatever was seen of it so far; `None` if it is warm or being warmed.
pub(crate) fn look_ahead(shared: &Arc<Shared>, agent: &Arc<AgentCore>) -> Option<WarmingUp> {
    let model = agent.model.as_ref()?;
    let epoch = {
        let mut warmth = lock(&model.warmth);
        let epoch = warmth.ask_ahead(shared.now())?;
        model.is_warming.store(true, Ordering::Release);
        epoch
    };
    Some(WarmingUp::begin(shared, agent, model, epoch))
}

/// The one warm-up of a model. However it ends, dropped unfinished included, the model is not left warming.
pub(crate) struct WarmingUp {
    shared: Arc<Shared>,
    agent: Arc<AgentCore>,
    model: Arc<ModelCore>,
    epoch: Epoch,
    is_over: bool,
}

impl WarmingUp {
    fn begin(shared: &Arc<Shared>, agent: &Arc<AgentCore>, model: &Arc<ModelCore>, epoch: Epoch) -> Self {
        model.show(Belief::Warming);
        tracing::info!(model = &*model.name, agent = agent.settings.name.as_str(), "warming up");
        Self { shared: Arc::clone(shared), agent: Arc::clone(agent), model: Arc::clone(model), epoch, is_over: false }
    }

    /// Warms the model up: its end is one failure of the place, or nothing at all. `first` is the request of the provider's minute that is
    /// there for it.
    pub(crate) async fn run(mut self, first: Option<Request>) -> Result<Sight, AttemptFailure> {
        let timeout = self.agent.settings.warmth.timeout;
        let asked = tokio::time::timeout(timeout, until_loaded(&self.agent, first)).await;
        let ended = asked.unwrap_or_else(|_| {
            let ending = Ending::Timeout { timeout: TimeoutKind::FirstToken };
            Err(AttemptFailure::new(ending, format!("the model was not loaded within {:.1} s", timeout.as_secs_f64())))
        });
        let (end, result) = match &ended {
            Ok(WarmUp::Loaded) => (WarmUpEnd::Loaded, "loaded"),
            Ok(WarmUp::WasLoaded | WarmUp::NotNeeded) => (WarmUpEnd::WasLoaded, "was_loaded"),
            Err(AttemptFailure { ending: Ending::Timeout { .. }, .. }) => (WarmUpEnd::StillCold, "timeout"),
            Err(_) => (WarmUpEnd::Failed, "failed"),
        };
        self.end(end, result);
        ended.map(|_| Sight::of(&self.model, &self.agent))
    }

    fn end(&mut self, end: WarmUpEnd, result: &'static str) {
        self.is_over = true;
        let (shared, model) = (&self.shared, &self.model);
        let now = shared.now();
        let cold_start = cold_start(&self.agent.settings, &*self.agent.backend);
        let counts = {
            let mut warmth = lock(&model.warmth);
            let counts = warmth.warm_up_ended(self.epoch, end, cold_start, now);
            model.is_warming.store(warmth.wait(now).is_some(), Ordering::Release);
            counts
        };
        if !counts {
            return;
        }
        tracing::info!(model = &*model.name, result, "warm-up ended");
        model.count_warm_up(result);
        model.show(model.belief(now));
        if end == WarmUpEnd::Loaded {
            shared.models.was_loaded(model, now);
        }
        tell_over(shared, model);
    }
}

impl Drop for WarmingUp {
    fn drop(&mut self) {
        if !self.is_over {
            self.end(WarmUpEnd::StillCold, "given_up");
        }
    }
}

/// Nobody warms this model up any more: whoever waited for that asks again.
fn tell_over(shared: &Shared, model: &Arc<ModelCore>) {
    model.ended.notify_waiters();
    shared.orchestrator.cast(OrchestratorMessage::Warmed(users_of(shared, model)));
}

/// The agents that use a model.
fn users_of(shared: &Shared, model: &Arc<ModelCore>) -> BTreeSet<Name> {
    let uses = |agent: &&Arc<AgentCore>| agent.model.as_ref().is_some_and(|own| Arc::ptr_eq(own, model));
    shared.agents().agents.iter().filter(uses).map(|agent| agent.settings.name.clone()).collect()
}

/// Sends a request of the provider's minute, as soon as one is free: a warm-up is in no hurry, and its own timeout bounds it.
async fn send_next(agent: &AgentCore, ready: Option<Request>) {
    let Some(rate) = &agent.provider.rate else { return };
    let mut next = ready.map_or_else(|| rate.request(), Ok);
    loop {
        match next {
            Ok(request) => return request.send(),
            Err(too_many) => {
                tokio::time::sleep(too_many.wait.max(ASK_AGAIN_AFTER)).await;
                next = rate.request();
            }
        }
    }
}

/// Asks until the server has loaded its model, or fails in another way than by still loading it.
async fn until_loaded(agent: &AgentCore, mut first: Option<Request>) -> Result<WarmUp, AttemptFailure> {
    let mut was_loading = false;
    loop {
        send_next(agent, first.take()).await;
        match agent.backend.warm_up().await {
            Err(AttemptFailure { ending: Ending::Loading, .. }) => {
                was_loading = true;
                tokio::time::sleep(ASK_AGAIN_AFTER).await;
            }
            Ok(WarmUp::WasLoaded) if was_loading => return Ok(WarmUp::Loaded),
            ended => return ended,
        }
    }
}
