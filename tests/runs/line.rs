//! The line in front of agents: bounded, the oldest run first, nothing counted as refused.

use std::sync::atomic::Ordering;

use serde_json::json;
use tokio::time::Instant;
use watertight::{
    model::run::RunStatus,
    policy::compartment::settings::{CompartmentSettings, FeatureSettings, UnknownFeature},
    runtime::{
        call::CallContext,
        parts::Parts,
        settings::{AgentSettings, ProviderSettings},
    },
    workflow::plan::why::Why,
};

use crate::{
    kit::{Answer, Scripted, agent, builder, call_later, code, name, provider, settle},
    support::{
        alone, assert_called_once, assert_idle, callers, chain, end, kinds, ms, runtime, s, start, start_with, step,
        workflow,
    },
};

#[tokio::test(start_paused = true)]
async fn more_runs_than_slots_wait_their_turn_by_age() {
    let backend = Scripted::always(Answer::Good.after(s(1)));
    let runtime = runtime(vec![(alone("a", 2), backend.clone())]).await;
    let began = Instant::now();
    let runs: Vec<_> = (0..10).map(|_| start(&runtime, &chain(&["a"]))).collect();
    settle().await;
    for run in &runs[2..] {
        assert!(matches!(run.why(), Some(Why::Line { agent, .. }) if agent == "a"), "{:?}", run.why());
    }
    for run in &runs {
        let record = end(run).await;
        assert_eq!(record.status, RunStatus::Completed);
        assert!(record.steps[0].refusals.is_empty(), "standing in the line is no refusal");
        assert!(!kinds(run).iter().any(|kind| kind.contains("refused") || kind.contains("parked")));
    }
    assert_eq!(began.elapsed(), s(5), "two at a time, without a gap");
    assert_eq!(backend.peak.load(Ordering::SeqCst), 2);
    assert_eq!(callers(&backend), runs.iter().map(|run| run.id().to_owned()).collect::<Vec<_>>());
    settle().await;
    assert_idle(&runtime, &[backend]);
}

#[tokio::test(start_paused = true)]
async fn the_older_run_goes_first_though_the_younger_lined_up_before() {
    let (slow, scarce) = (Scripted::always(Answer::Good.after(s(5))), Scripted::always(Answer::Good));
    let runtime = runtime(vec![(alone("a", 2), slow), (alone("b", 1), scarce.clone())]).await;
    scarce.now(Answer::Good.after(s(10)));
    let other = call_later(&runtime, "b");
    settle().await;
    let older = start(&runtime, &chain(&["a", "b"]));
    let younger = start(&runtime, &chain(&["b"]));
    tokio::time::sleep(s(6)).await;
    assert!(matches!(older.why(), Some(Why::Line { .. })), "{:?}", older.why());
    assert!(matches!(younger.why(), Some(Why::Line { .. })), "{:?}", younger.why());
    assert_eq!(code(&other.await.unwrap()), "OK");
    end(&older).await;
    end(&younger).await;
    assert_eq!(callers(&scarce), [older.id(), younger.id()]);
}

#[tokio::test(start_paused = true)]
async fn a_higher_class_goes_before_an_older_run() {
    let scarce = Scripted::always(Answer::Good.after(s(1)));
    let runtime = runtime(vec![(alone("a", 1), scarce.clone())]).await;
    let run = |class| start_with(&runtime, &chain(&["a"]), json!({}), Some(class));
    let [first, batch, standard, unknown, critical] =
        ["standard", "batch", "standard", "whatever", "critical"].map(run);
    for run in [&first, &batch, &standard, &unknown, &critical] {
        end(run).await;
    }
    let order = [&first, &critical, &standard, &unknown, &batch].map(|run| run.id().to_owned());
    assert_eq!(callers(&scarce), order);
}

#[tokio::test(start_paused = true)]
async fn whoever_lacks_another_agent_is_passed_by() {
    let (scarce, free) = (Scripted::always(Answer::Hang), Scripted::always(Answer::Good.after(s(1))));
    let runtime = runtime(vec![(alone("a", 1), scarce.clone()), (alone("b", 1), free.clone())]).await;
    let stuck: Vec<_> = (0..3).map(|_| start(&runtime, &chain(&["a"]))).collect();
    let passing: Vec<_> = (0..3).map(|_| start(&runtime, &chain(&["b"]))).collect();
    for run in &passing {
        assert_eq!(end(run).await.status, RunStatus::Completed);
    }
    assert!(stuck.iter().all(|run| run.status().is_none()));
    // Who leaves the line costs nothing, and the next in it moves up.
    stuck[1].cancel();
    end(&stuck[1]).await;
    scarce.now(Answer::Good);
    stuck[0].cancel();
    assert_eq!(end(&stuck[2]).await.status, RunStatus::Completed);
    assert_eq!(callers(&scarce), [stuck[0].id(), stuck[2].id()]);
}

#[tokio::test(start_paused = true)]
async fn slots_of_the_provider_are_lined_up_for_as_well() {
    let backends = [Scripted::always(Answer::Good.after(s(1))), Scripted::always(Answer::Good.after(s(1)))];
    let host = ProviderSettings { slots: Some(2), ..provider("host") };
    let of = |name| AgentSettings { slots: 5, ..agent(name, "host") };
    let builder = builder().provider(host);
    let builder = builder.agent(of("a"), backends[0].clone()).agent(of("b"), backends[1].clone());
    let runtime = builder.start().await.unwrap();
    let began = Instant::now();
    let runs: Vec<_> = ["a", "a", "b", "b"].iter().map(|agent| start(&runtime, &chain(&[agent]))).collect();
    for run in &runs {
        assert_eq!(end(run).await.status, RunStatus::Completed);
    }
    // Each agent is guaranteed one of the two slots, so each works off its two runs one after the other.
    assert_eq!(began.elapsed(), s(2));
    assert_eq!(backends.iter().map(|backend| backend.peak.load(Ordering::SeqCst)).max(), Some(1));
}

#[tokio::test(start_paused = true)]
async fn a_run_uses_at_most_half_of_the_slots() {
    let spread = workflow(
        "",
        "[inputs]\nlist = \"json\"\n[[step]]\nid = \"m\"\nagent = \"a\"\nin = \"item\"\nmap = { over = \"input.list\", as = \"item\", parallel = 50 }\n",
    );
    for (slots, share) in [(1, 1), (2, 1), (4, 2), (5, 2), (10, 5)] {
        let backend = Scripted::always(Answer::Good.after(s(1)));
        let runtime = runtime(vec![(alone("a", slots), backend.clone())]).await;
        let list: Vec<u32> = (0..20).collect();
        let large = start_with(&runtime, &spread, json!({ "list": list }), None);
        settle().await;
        assert_eq!(backend.running.load(Ordering::SeqCst), share, "{slots} slots");
        if slots > 1 {
            // What it leaves is there at once for a younger run.
            let small = start_with(&runtime, &spread, json!({ "list": [1] }), None);
            let began = Instant::now();
            assert_eq!(end(&small).await.status, RunStatus::Completed);
            assert_eq!(began.elapsed(), s(1));
        }
        assert_eq!(end(&large).await.status, RunStatus::Completed);
        assert!(backend.peak.load(Ordering::SeqCst) <= share + 1, "{slots} slots");
        assert_called_once(&[backend]);
    }
}

#[tokio::test(start_paused = true)]
async fn the_line_has_an_end() {
    let backend = Scripted::new(|_, number| match number {
        0 => Answer::Good.after(s(50)),
        _ => Answer::Good.after(ms(1)),
    });
    let runtime = runtime(vec![(alone("a", 1), backend.clone())]).await;
    let runs: Vec<_> = (0..2_000).map(|_| start(&runtime, &chain(&["a"]))).collect();
    let mut ends = [0, 0];
    for (at, run) in runs.iter().enumerate() {
        let record = end(run).await;
        if at <= 1_000 {
            assert_eq!(record.status, RunStatus::Completed, "{at}");
            ends[0] += 1;
            continue;
        }
        let error = step(&record, "a").error.clone().unwrap();
        assert_eq!((record.status, error.error_code.as_str()), (RunStatus::Failed, "AGENT_BULKHEAD_FULL"), "{at}");
        assert_eq!((error.details["compartment"].as_str(), error.agent.as_deref()), (Some("line"), Some("a")));
        assert!(error.retryable && error.retry_after.is_some_and(|wait| (1.0..=10.0).contains(&wait)));
        ends[1] += 1;
    }
    assert_eq!((ends, backend.count()), ([1_001, 999], 1_001));
    assert_eq!(backend.peak.load(Ordering::SeqCst), 1);
    settle().await;
    assert_idle(&runtime, &[backend]);
}

/// A slot that a step was given at a target that is gone when it hears of it is no slot of the one in its place.
#[tokio::test(start_paused = true)]
async fn what_was_given_at_a_target_that_is_gone_is_not_used_at_another() {
    let (moved, busy) = (Scripted::always(Answer::Good.after(s(1))), Scripted::always(Answer::Good.after(s(10))));
    let parts = |at: &str| {
        let narrow = |of| ProviderSettings { slots: Some(1), ..provider(of) };
        let chat = FeatureSettings { max_wait: s(60), ..FeatureSettings::new(name("chat")) };
        let compartments = CompartmentSettings {
            features: vec![chat],
            unknown_feature: UnknownFeature::Is(name("chat")),
            ..CompartmentSettings::default()
        };
        let parts = Parts::new().provider(narrow("old")).provider(narrow("new")).compartments(compartments);
        let of_a = AgentSettings { slots: 5, ..agent("a", at) };
        parts.agent(of_a, moved.clone()).agent(agent("b", "new"), busy.clone())
    };
    let runtime = builder().parts(parts("old")).start().await.unwrap();
    let handle = runtime.agent("a").unwrap();
    let held = handle.enter(&CallContext::default()).unwrap();
    let working = call_later(&runtime, "b");
    settle().await;
    let context = CallContext { priority: Some("critical".to_owned()), ..CallContext::default() };
    let mut ahead = Box::pin(handle.enter_in_line(&context));
    assert!(futures_util::FutureExt::now_or_never(&mut ahead).is_none(), "it stands in the line");
    let run = start(&runtime, &chain(&["a"]));
    settle().await;
    assert!(matches!(run.why(), Some(Why::Line { .. })), "{:?}", run.why());
    // The one ahead is given the slot, and leaves without having heard of it: the step is next. By then a reload has moved its agent.
    drop(held);
    settle().await;
    let began = Instant::now();
    runtime.reload(parts("new")).await.unwrap();
    drop(ahead);
    settle().await;
    assert_eq!(moved.count(), 0, "the one slot of the new place is taken");
    assert!(matches!(run.why(), Some(Why::Line { .. })), "{:?}", run.why());
    assert_eq!(end(&run).await.status, RunStatus::Completed);
    assert_eq!((began.elapsed(), code(&working.await.unwrap()).as_str()), (s(11), "OK"), "one after the other");
    settle().await;
    assert_idle(&runtime, &[moved, busy]);
}
