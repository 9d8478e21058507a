//! One model server with one slot, and the four agents of the reference pipeline, over an hour of virtual time: what a home server with one
//! graphics card sees.

use std::{
    collections::BTreeSet,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use watertight::{
    model::run::{RunRecord, RunStatus},
    policy::breaker::state::StateName,
    runtime::{
        book::BreakerEvent,
        engine::Runtime,
        run_handle::RunHandle,
        settings::{AgentSettings, LoadedModels, Prewarm, ProviderSettings, WarmthSettings},
    },
};

use crate::{
    kit::{Answer, Scripted, agent, builder, call, code, model_server::ModelServer, provider, settle},
    support::{chain_text, s, start, whole},
};

const FOUR: [&str; 4] = ["a", "b", "c", "d"];
const HOUR: Duration = Duration::from_secs(3_600);
/// What a loaded model takes for a step.
const WORK: Duration = Duration::from_secs(18);

struct Node {
    runtime: Runtime,
    server: Arc<ModelServer>,
    events: tokio::sync::broadcast::Receiver<BreakerEvent>,
}

impl Node {
    /// Agents with the timeouts of agents on `ollama`: first token, stall and call bound them.
    async fn start(models: [&'static str; 4], prewarm: Prewarm) -> Self {
        let server = ModelServer::start(WORK);
        let slots = Some(1);
        let local = ProviderSettings { slots, loaded_models: LoadedModels::AtMost(1), ..provider("local") };
        let mut builder = builder().provider(local);
        for (of, model) in FOUR.into_iter().zip(models) {
            let mut settings = AgentSettings { model: Some(model.to_owned()), ..agent(of, "local") };
            settings.timeouts.attempt = None;
            settings.timeouts.first_token = Some(s(60));
            settings.warmth = WarmthSettings { prewarm, ..WarmthSettings::default() };
            builder = builder.agent(settings, server.model(model));
        }
        let runtime = builder.start().await.unwrap();
        let events = runtime.breaker_events();
        Self { runtime, server, events }
    }

    /// So many runs in an hour, in pairs, as people come.
    async fn hour_of(&self, runs: u32) -> Vec<RunHandle> {
        let pipeline = crate::support::workflow("deadline = \"1h\"", &chain_text(&FOUR));
        let pairs = runs.div_ceil(2);
        let mut handles = Vec::new();
        for pair in 0..pairs {
            let left = (runs - pair * 2).min(2);
            handles.extend((0..left).map(|_| start(&self.runtime, &pipeline)));
            tokio::time::sleep(HOUR / pairs).await;
        }
        handles
    }

    /// The runs in the order in which the server worked for `agent`.
    fn served(&self, of: &str) -> Vec<String> {
        let attempts = self.server.attempts.lock().unwrap();
        attempts.iter().filter(|(agent, _)| agent == of).filter_map(|(_, run)| run.clone()).collect()
    }

    fn assert_no_breaker_moved(&mut self) {
        assert!(self.events.try_recv().is_err(), "a breaker moved");
        for breaker in ["provider:local", "agent:a", "agent:b", "agent:c", "agent:d"] {
            let snapshot = self.runtime.breaker(breaker).unwrap();
            let counts = snapshot.counts;
            assert_eq!((snapshot.state, counts.failed, counts.slow), (StateName::Closed, 0, 0), "{breaker}");
        }
    }
}

/// The codes of our own refusals in a run.
fn refusals(record: &RunRecord) -> BTreeSet<&str> {
    let all = record.steps.iter().flat_map(|step| &step.refusals);
    all.map(|refusal| refusal.error_code.as_str()).collect()
}

#[tokio::test(start_paused = true)]
async fn an_hour_of_three_twelve_and_forty_runs() {
    // At three an hour the model is let go between the runs, and each time it is paid for once.
    for (runs, loads) in [(3, 2), (12, 6), (40, 1)] {
        let mut node = Node::start(["qwen"; 4], Prewarm::No).await;
        let handles = node.hour_of(runs).await;
        assert_eq!(u32::try_from(handles.len()), Ok(runs));
        let mut ended = Vec::new();
        for run in &handles {
            let record = run.finished().await;
            whole(run, &record);
            assert_eq!(record.status, RunStatus::Completed, "{runs} an hour: {:?}", record.error);
            let refused = refusals(&record);
            assert!(refused.is_empty() || refused == BTreeSet::from(["AGENT_WARMING"]), "{refused:?}");
            ended.push(record.ended_ms);
        }
        assert!(ended.is_sorted(), "the oldest run first, {runs} an hour: {ended:?}");
        let order: Vec<String> = handles.iter().map(|run| run.id().to_owned()).collect();
        for of in FOUR {
            assert_eq!(node.served(of), order, "{of} served the oldest run first");
        }
        assert_eq!(node.server.counts(), (loads, 0, loads), "{runs} an hour: each cold start is paid once");
        assert_eq!(node.server.peak.load(Ordering::SeqCst), 1, "nothing ever waits inside the server");
        node.assert_no_breaker_moved();
        settle().await;
        for view in node.runtime.agents() {
            assert_eq!((view.in_flight, view.mailbox_depth), (0, 0), "{}", view.name);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_goes_down_is_noticed_after_three_calls_and_the_runs_wait_for_it() {
    let mut node = Node::start(["qwen"; 4], Prewarm::No).await;
    assert_eq!(code(&call(&node.runtime, "a").await), "OK");
    let before = node.server.warm_ups.load(Ordering::SeqCst);
    node.server.is_down.store(true, Ordering::SeqCst);
    for of in ["b", "d", "b"] {
        assert_eq!(code(&call(&node.runtime, of).await), "AGENT_NETWORK_ERROR");
    }
    settle().await;
    let event = node.events.try_recv().unwrap();
    assert_eq!((&*event.breaker, event.transition.to), ("provider:local", StateName::Open));
    // A run that comes now spends nothing: it waits until the server is there again.
    let asked = || (node.server.attempts.lock().unwrap().len(), node.server.warm_ups.load(Ordering::SeqCst));
    let spent = asked();
    let pipeline = crate::support::workflow("deadline = \"1h\"", &chain_text(&FOUR));
    let run = start(&node.runtime, &pipeline);
    tokio::time::sleep(s(10)).await;
    assert_eq!((asked(), run.status()), (spent, None));
    node.server.is_down.store(false, Ordering::SeqCst);
    let record = run.finished().await;
    assert_eq!(record.status, RunStatus::Completed, "{:?}", record.error);
    assert!(node.server.warm_ups.load(Ordering::SeqCst) > before);
    while let Ok(event) = node.events.try_recv() {
        assert_eq!(&*event.breaker, "provider:local", "one event of the place, none of its agents");
    }
}

#[tokio::test(start_paused = true)]
async fn models_that_are_used_in_turn_are_loaded_in_turn() {
    let mut node = Node::start(["large", "small", "large", "small"], Prewarm::No).await;
    let pipeline = crate::support::workflow("deadline = \"1h\"", &chain_text(&FOUR));
    let record = start(&node.runtime, &pipeline).finished().await;
    assert_eq!(record.status, RunStatus::Completed, "{:?}", record.error);
    assert_eq!(node.server.counts(), (4, 0, 4), "each step pays for a load, and none is aborted");
    let views = node.runtime.agents();
    let swaps: Vec<u64> = views.iter().filter_map(|view| view.warmth.as_ref()).map(|warmth| warmth.swaps).collect();
    assert_eq!(swaps, [2, 1, 2, 1], "agents evict each other's model");
    node.assert_no_breaker_moved();
}

/// A run begins with a minute of work that needs no model: the model is loaded meanwhile, or not.
#[tokio::test(start_paused = true)]
async fn a_run_that_was_accepted_has_its_first_model_warmed_and_no_other() {
    for (prewarm, took) in [(Prewarm::No, 60 + 45 + 18 + 45 + 18), (Prewarm::AtRuns, 60 + 18 + 45 + 18)] {
        let server = ModelServer::start(WORK);
        let local = ProviderSettings { slots: Some(1), loaded_models: LoadedModels::AtMost(1), ..provider("local") };
        let mut builder = builder().provider(local).provider(provider("photos"));
        builder = builder.agent(agent("a", "photos"), Scripted::always(Answer::Good.after(s(60))));
        for (of, model) in [("b", "large"), ("c", "small")] {
            let warmth = WarmthSettings { prewarm, ..WarmthSettings::default() };
            let settings = AgentSettings { model: Some(model.to_owned()), warmth, ..agent(of, "local") };
            builder = builder.agent(settings, server.model(model));
        }
        let runtime = builder.start().await.unwrap();
        let pipeline = crate::support::workflow("deadline = \"1h\"", &chain_text(&["a", "b", "c"]));
        let began = tokio::time::Instant::now();
        let run = start(&runtime, &pipeline);
        tokio::time::sleep(s(50)).await;
        let early = u32::from(prewarm == Prewarm::AtRuns);
        assert_eq!(server.counts(), (early, 0, early), "the first model, and no second one to throw it out");
        let record = run.finished().await;
        assert_eq!((record.status, began.elapsed()), (RunStatus::Completed, s(took)), "{prewarm:?}");
        assert_eq!(server.counts(), (2, 0, 2));
        for breaker in ["provider:local", "agent:b", "agent:c"] {
            assert_eq!(runtime.breaker(breaker).unwrap().counts.failed, 0);
        }
    }
}
