//! Steps that go down their agent's ladder: by themselves, and where their `on` says so.

use std::{collections::HashMap, sync::Arc};

use serde_json::{Map, json};
use watertight::{
    model::{
        event::EventType,
        run::{RunStatus, StepStatus},
    },
    policy::ladder::{Effect, LighterTarget, Rung, RungRule},
    runtime::{
        accept::NewRun,
        deferred::{settings::DeferredSettings, store::DeferredStatus},
        engine::Runtime,
        journal::RunOwner,
        ladders::{LadderSettings, Ladders, Notice},
        ports::TokioClock,
        run_handle::RunHandle,
        supervisor::BreakerAct,
    },
};

use crate::{
    fake_journal::{FakeJournal, Handle},
    fake_queue::FakeQueue,
    kit::{Answer, Scripted, builder, name, pass, provider, settle},
    support::{alone, assert_idle, end, ms, s, start, step, workflow},
};

struct World {
    runtime: Runtime,
    backends: Vec<Arc<Scripted>>,
    queue: Arc<FakeQueue>,
    journal: Arc<FakeJournal>,
}

/// Agents `a` and `b`, of which `a` has this ladder with `c` as its lighter target, and a queue.
async fn world(rungs: &[Rung]) -> World {
    let lighter = vec![LighterTarget { agent: name("c"), context_tokens: None, effect: Effect::None }];
    let ladder = LadderSettings {
        rungs: rungs.iter().copied().map(RungRule::of).collect(),
        lighter,
        default: Some(Arc::new(json!("stated"))),
        notice: Some(Arc::new(Notice { ko: None, en: Some("Back soon".into()) })),
    };
    let ladders = Ladders { agents: [(name("a"), ladder)].into(), features: HashMap::new() };
    let queue = FakeQueue::new();
    let settings = DeferredSettings { jitter: 0.0, ..DeferredSettings::default() };
    let mut builder = builder().clock(Arc::new(TokioClock::since_unix_epoch())).ladders(ladders).deferred(
        queue.clone(),
        settings,
        None,
    );
    let mut backends = Vec::new();
    for of in ["a", "b", "c"] {
        let backend = Scripted::always(Answer::Good);
        builder = builder.provider(provider(&format!("{of}-host"))).agent(alone(of, 2), backend.clone());
        backends.push(backend);
    }
    let journal = FakeJournal::new(ms(1));
    let runtime = builder.journal(Arc::new(Handle(journal.clone()))).start().await.unwrap();
    World { runtime, backends, queue, journal }
}

fn text(on: &str) -> String {
    format!("[[step]]\nid = \"a\"\nagent = \"a\"\n{on}\n[[step]]\nid = \"b\"\nagent = \"b\"\nneeds = [\"a\"]\n")
}

#[tokio::test(start_paused = true)]
async fn a_step_goes_down_its_agents_ladder_before_its_own_word_counts() {
    let world = world(&[Rung::Lighter]).await;
    world.backends[0].now(Answer::status(500));
    let run = start(&world.runtime, &workflow("", &text("")));
    let record = end(&run).await;
    assert_eq!(record.status, RunStatus::CompletedDegraded);
    let a = step(&record, "a");
    assert_eq!((a.status, a.attempts.len(), a.output.is_some()), (StepStatus::Degraded, 2, true));
    assert_eq!(a.degraded.as_ref().unwrap().action, "lighter");
    assert_eq!(a.error.as_ref().unwrap().http_status, 500);
    let degraded: Vec<_> =
        run.events_after(0).into_iter().filter(|event| event.kind == EventType::StepDegraded).collect();
    assert_eq!((degraded.len(), degraded[0].data["action"].as_str()), (1, Some("lighter")));
    assert_idle(&world.runtime, &world.backends);
}

#[tokio::test(start_paused = true)]
async fn a_refused_step_goes_down_at_once_and_waits_only_if_nobody_answers() {
    let world = world(&[Rung::Lighter]).await;
    world.runtime.act("agent:a", BreakerAct::ForceOpen).unwrap();
    settle().await;
    let run = start(&world.runtime, &workflow("", &text("")));
    assert_eq!(end(&run).await.status, RunStatus::CompletedDegraded);
    world.runtime.act("agent:c", BreakerAct::ForceOpen).unwrap();
    settle().await;
    // It looks ahead and parks before anything is asked; when the gate opens the agent itself answers.
    let parked = start(&world.runtime, &workflow("", &text("")));
    pass(s(5)).await;
    assert!(parked.status().is_none() && parked.why().is_some(), "it waits");
    world.runtime.act("agent:a", BreakerAct::Auto).unwrap();
    assert_eq!(end(&parked).await.status, RunStatus::Completed);
}

#[tokio::test(start_paused = true)]
async fn a_step_asks_for_a_rung_by_name() {
    let world = world(&[]).await;
    world.backends[0].now(Answer::status(500));
    let lighter = start(&world.runtime, &workflow("", &text("on = { error = \"lighter\" }")));
    let record = end(&lighter).await;
    assert_eq!((record.status, record.degraded[0].action.as_str()), (RunStatus::CompletedDegraded, "lighter"));
    assert_eq!(world.backends[2].count(), 1);
    world.backends[2].now(Answer::status(500));
    let failing = start(&world.runtime, &workflow("", &text("on = { error = \"lighter\" }")));
    let record = end(&failing).await;
    assert_eq!(record.status, RunStatus::Failed);
    let tries = &record.error.as_ref().unwrap().details["tries"];
    assert_eq!(tries.as_array().unwrap().len(), 2, "{tries}");
    let notice = start(&world.runtime, &workflow("", &text("on = { error = \"notice\" }")));
    let record = end(&notice).await;
    assert_eq!((record.status, record.degraded[0].action.as_str()), (RunStatus::CompletedDegraded, "notice"));
    assert_eq!(step(&record, "a").error.as_ref().unwrap().user_message, "Back soon");
    assert_idle(&world.runtime, &world.backends);
}

#[tokio::test(start_paused = true)]
async fn a_deferred_step_is_made_later_for_whoever_asks_for_it_then() {
    let world = world(&[]).await;
    world.backends[0].now(Answer::status(503));
    let run = start(&world.runtime, &workflow("", &text("on = { error = \"deferred\" }")));
    let record = end(&run).await;
    assert_eq!((record.status, record.degraded[0].action.as_str()), (RunStatus::CompletedDegraded, "deferred"));
    let a = step(&record, "a");
    assert_eq!((a.status, &a.output), (StepStatus::Degraded, &None));
    let id = a.error.as_ref().unwrap().details["deferred"]["id"].as_str().unwrap().to_owned();
    let head = world.queue.calls()[0].head.clone();
    assert_eq!((head.id, head.run_id, head.step), (id, Some(record.run_id.clone()), Some("a".to_owned())));
    assert_eq!(head.idempotency_key, format!("{}/a/-/0", record.run_id));
    world.backends[0].now(Answer::Good);
    pass(s(301)).await;
    assert_eq!(world.queue.entries()[0].status, DeferredStatus::Done);
    assert_idle(&world.runtime, &world.backends);
}

impl World {
    async fn repaired(&self, run: &RunHandle) -> RunHandle {
        let (old, record) = (self.journal.accepted(run.id()), run.finished().await);
        self.runtime.repair(&old, &record, RunOwner::default(), None).await.unwrap().handle.unwrap()
    }

    fn counts(&self) -> Vec<usize> {
        self.backends.iter().map(|backend| backend.count()).collect()
    }
}

/// `repair` does only those steps again that were degraded, with what depends on them: a deferred one is made at once, under the new run's
/// own key, and put off anew where that fails. What was promised for later stays promised.
#[tokio::test(start_paused = true)]
async fn a_repair_makes_a_deferred_step_at_once_and_keeps_what_was_promised() {
    let world = world(&[]).await;
    world.backends[0].now(Answer::status(503));
    let text = text("on = { error = \"deferred\" }") + "[[step]]\nid = \"c\"\nagent = \"c\"\n";
    let (workflow, owner) = (workflow("", &text), RunOwner::default());
    let new = NewRun { workflow, input: Map::new(), deadline: None, owner, idempotency: None };
    let run = world.runtime.accept_run(new).await.unwrap().handle.unwrap();
    assert_eq!(run.finished().await.status, RunStatus::CompletedDegraded);
    assert_eq!(world.counts(), [1, 1, 1]);

    let still_ill = world.repaired(&run).await;
    let record = still_ill.finished().await;
    assert_eq!((record.status, record.degraded.len()), (RunStatus::CompletedDegraded, 1));
    assert_eq!(world.counts(), [2, 2, 1], "b depends on it, c does not");
    let keys: Vec<_> = world.queue.calls().into_iter().map(|call| call.head.idempotency_key).collect();
    assert_eq!(keys, [format!("{}/a/-/0", run.id()), format!("{}/a/-/0", still_ill.id())]);

    world.backends[0].now(Answer::Good);
    let well = world.repaired(&still_ill).await;
    let record = well.finished().await;
    assert_eq!((record.status, record.degraded.len()), (RunStatus::Completed, 0));
    assert_eq!((step(&record, "a").status, world.counts()), (StepStatus::Succeeded, vec![3, 3, 1]));
    // Whoever was given a ticket gets the answer there.
    pass(s(301)).await;
    assert!(world.queue.entries().iter().all(|entry| entry.status == DeferredStatus::Done));
    assert_eq!(world.counts(), [5, 3, 1]);
    // What was made later has mended nothing by itself: the run is as it ended, and can still be repaired.
    assert_eq!(run.finished().await.status, RunStatus::CompletedDegraded);
    assert_idle(&world.runtime, &world.backends);
}
