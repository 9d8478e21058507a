//! Classes: what is kept for a high one is free at once, the low one has its stated minimum or is refused at once (B53); and what one who
//! waited in vain is told.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde_json::Value;
use tokio::{task::JoinSet, time::Instant};
use watertight::{
    policy::{
        bulkhead::KeptFrom,
        compartment::settings::{CompartmentSettings, FeatureSettings, KeptShare, UnknownFeature},
    },
    runtime::{
        call::{CallContext, CallRequest},
        engine::Runtime,
        handle::AgentHandle,
        settings::{AgentSettings, ProviderSettings},
    },
};

use crate::{
    kit::{Answer, Scripted, agent, builder, code, name, pass, provider},
    support::{ms, s},
};

/// How long the low class's calls take, and the high class's.
const LOW_CALL: Duration = s(60);
const HIGH_CALL: Duration = s(5);

/// One agent on a provider of ten slots: interactive keeps three of them from lower classes, batch one from everybody. Both classes may
/// wait in line for as long as `max_wait` says.
async fn ten_slots(max_wait: Duration) -> (Runtime, Arc<Scripted>) {
    let mut compartments = CompartmentSettings::default();
    compartments.classes.kept[1] = KeptShare { share: 0.3, kept_from: KeptFrom::Lower };
    compartments.classes.kept[3] = KeptShare { share: 0.1, kept_from: KeptFrom::All };
    compartments.features = vec![FeatureSettings { max_wait, line_max: 1_000, ..FeatureSettings::new(name("any")) }];
    compartments.unknown_feature = UnknownFeature::Is(name("any"));
    let backend = Scripted::new(|request, _| {
        Answer::Good.after(if request.priority.as_deref() == Some("batch") { LOW_CALL } else { HIGH_CALL })
    });
    let runtime = builder()
        .provider(ProviderSettings { slots: Some(10), ..provider("local") })
        .agent(AgentSettings { slots: 1_000, ..agent("draft", "local") }, backend.clone())
        .compartments(compartments)
        .start()
        .await
        .unwrap();
    (runtime, backend)
}

/// Ends by code, and how long each waited before its work began, the longest.
#[derive(Default)]
struct Ends {
    codes: BTreeMap<String, u32>,
    waited_max: Duration,
    refused_after_max: Duration,
}

async fn call_as(agent: AgentHandle, class: &'static str) -> (&'static str, String, Duration) {
    let context = CallContext { priority: Some(class.to_owned()), ..CallContext::default() };
    let began = Instant::now();
    let result = agent.call(CallRequest { context, ..CallRequest::of(Value::Null) }).await;
    (class, code(&result), began.elapsed())
}

async fn ends(calls: JoinSet<(&'static str, String, Duration)>) -> BTreeMap<&'static str, Ends> {
    let mut all: BTreeMap<&'static str, Ends> = BTreeMap::new();
    for (class, code, took) in calls.join_all().await {
        let ends = all.entry(class).or_default();
        let work = if class == "batch" { LOW_CALL } else { HIGH_CALL };
        if code == "OK" {
            ends.waited_max = ends.waited_max.max(took.saturating_sub(work));
        } else {
            ends.refused_after_max = ends.refused_after_max.max(took);
        }
        *ends.codes.entry(code).or_default() += 1;
    }
    all
}

#[tokio::test(start_paused = true)]
async fn b53_a_high_call_starts_at_once_though_low_calls_fill_every_hole() {
    let (runtime, _) = ten_slots(Duration::ZERO).await;
    let draft = runtime.agent("draft").unwrap();
    let mut calls = JoinSet::new();
    // Low calls come ten a second, for ten minutes: each hole is filled at once.
    let mut high = 0;
    for tenth in 0..6_000 {
        calls.spawn(call_as(draft.clone(), "batch"));
        // A high one every two seconds: two and a half of them at work on average, three at most.
        if tenth % 20 == 10 {
            calls.spawn(call_as(draft.clone(), "interactive"));
            high += 1;
        }
        pass(ms(100)).await;
        assert!(draft.in_flight() <= 10);
    }
    let ends = ends(calls).await;
    assert_eq!(ends["interactive"].codes, [("OK".to_owned(), high)].into());
    assert!(ends["interactive"].waited_max < s(1), "{:?}", ends["interactive"].waited_max);
    // The low class has what is left: seven slots of a minute each, all the time.
    assert!(ends["batch"].codes["OK"] >= 7 * 9, "{:?}", ends["batch"].codes);
    assert_eq!(ends["batch"].refused_after_max, Duration::ZERO, "no silence");
}

#[tokio::test(start_paused = true)]
async fn b53_a_saturating_high_class_leaves_the_low_one_its_minimum() {
    // Also where everybody waits in a line, in which the high class always stands before the low one.
    for (max_wait, high_min) in [(Duration::ZERO, 8 * 600 / 5 - 20), (s(30), 9 * 600 / 5 - 60)] {
        let (runtime, backend) = ten_slots(max_wait).await;
        let draft = runtime.agent("draft").unwrap();
        let mut calls = JoinSet::new();
        let began = Instant::now();
        // Four a second of five seconds each want twenty slots, for ten minutes; a low one comes every second.
        for quarter in 0..2_400 {
            calls.spawn(call_as(draft.clone(), "interactive"));
            if quarter % 4 == 0 {
                calls.spawn(call_as(draft.clone(), "batch"));
            }
            pass(ms(250)).await;
        }
        assert_eq!(began.elapsed(), s(600));
        let ends = ends(calls).await;
        let (low, high) = (&ends["batch"], &ends["interactive"]);
        // Its minimum is one slot: a call of a minute after the other, ten in ten minutes.
        assert!(low.codes["OK"] >= 9, "{max_wait:?}: {:?}", low.codes);
        assert!(low.refused_after_max <= max_wait, "{max_wait:?}: refused at once, or when its wait is over");
        // Nine slots of five seconds each are the high class's. Without a line a hole is whose turn it is to ask, so a low call has one more
        // now and then, for a minute; with one, holes are the high class's.
        assert!(high.codes["OK"] >= high_min, "{max_wait:?}: {:?}", high.codes);
        assert_eq!(backend.peak.load(std::sync::atomic::Ordering::SeqCst), 10);
        let all: u32 = ends.values().flat_map(|ends| ends.codes.values()).sum();
        assert_eq!(all, 3_000, "each had an answer");
        pass(s(1)).await;
        assert_eq!(draft.in_flight(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn who_waited_in_vain_is_told_how_things_are_then() {
    let (runtime, _) = ten_slots(s(54)).await;
    let draft = runtime.agent("draft").unwrap();
    // It is known that calls take a minute.
    assert_eq!(call_as(draft.clone(), "batch").await.1, "OK");
    pass(ms(10)).await;
    let mut low = JoinSet::new();
    for _ in 0..7 {
        low.spawn(call_as(draft.clone(), "batch"));
    }
    pass(ms(10)).await;
    // All seven end after a minute; this one gives up after 54 s. When it came, the longest wait there is would have been said.
    let context = CallContext { priority: Some("batch".to_owned()), ..CallContext::default() };
    let refused = draft.call(CallRequest { context, ..CallRequest::of(Value::Null) }).await;
    assert_eq!(code(&refused), "AGENT_BULKHEAD_FULL");
    let retry_after = refused.unwrap_err().envelope.retry_after.unwrap();
    assert!((5.9..7.6).contains(&retry_after), "{retry_after}");
    drop(low);
}
