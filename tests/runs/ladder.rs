//! Steps that go down their agent's ladder: by themselves, and where their `on` says so.

use std::{collections::HashMap, sync::Arc};

use serde_json::json;
use watertight::{
    model::{
        event::EventType,
        run::{RunStatus, StepStatus},
    },
    policy::ladder::{Effect, LighterTarget, Rung, RungRule},
    runtime::{
        deferred::{settings::DeferredSettings, store::DeferredStatus},
        engine::Runtime,
        ladders::{LadderSettings, Ladders, Notice},
        ports::TokioClock,
        supervisor::BreakerAct,
    },
};

use crate::{
    fake_queue::FakeQueue,
    kit::{Answer, Scripted, builder, name, pass, provider, settle},
    support::{alone, assert_idle, end, s, start, step, workflow},
};

struct World {
    runtime: Runtime,
    backends: Vec<Arc<Scripted>>,
    queue: Arc<FakeQueue>,
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
    World { runtime: builder.start().await.unwrap(), backends, queue }
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
    assert_eq!(parked.status(), Some(RunStatus::Parked));
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
