//! The adaptive limit and shedding at work: slots follow what attempts say, and low classes give way to high ones that wait.

use std::time::Duration;

use watertight::{
    model::name::Name,
    policy::{
        adaptive::{limit::Reason, settings::AdaptiveSettings},
        breaker::settings::Mode,
        bulkhead::KeptFrom,
        compartment::settings::{CompartmentSettings, FeatureSettings, KeptShare},
    },
    runtime::{
        adaptive::LimitEvent,
        call::{CallContext, CallError, CallReply, CallRequest},
        engine::Runtime,
        settings::ProviderSettings,
    },
};

use crate::{
    kit::{Answer, Scripted, agent, builder, call, call_later, code, name, pass, provider, settle},
    support::{agents_on, detail, hold, ms, s},
};

fn said(events: &mut tokio::sync::broadcast::Receiver<LimitEvent>) -> Vec<(u32, u32, Reason)> {
    let mut all = Vec::new();
    while let Ok(LimitEvent { change, .. }) = events.try_recv() {
        all.push((change.from, change.to, change.reason));
    }
    all
}

fn adaptive(start: u32, slots: Option<u32>) -> ProviderSettings {
    let settings = AdaptiveSettings { start, min: 1, max: 8, ..AdaptiveSettings::default() };
    ProviderSettings { adaptive: Some(settings), slots, ..provider("local") }
}

#[tokio::test(start_paused = true)]
async fn slots_follow_what_attempts_say() {
    let (runtime, backends) = agents_on(adaptive(4, None), vec![agent("draft", "local")]).await;
    let mut events = runtime.limit_events();
    let backend = &backends[0];
    let (got, held) = hold(&runtime, "draft", backend, 6).await;
    assert_eq!(got, 4);
    assert_eq!(detail(&call(&runtime, "draft").await, "compartment"), "provider:local");
    drop(held);
    settle().await;
    // A server that is busy: one cut for all that were under way.
    backend.now(Answer::status(429).after(s(1)));
    let busy: Vec<_> = (0..4).map(|_| call_later(&runtime, "draft")).collect();
    pass(s(2)).await;
    for busy in busy {
        assert_eq!(code(&busy.await.unwrap()), "AGENT_ERROR");
    }
    settle().await;
    assert_eq!(said(&mut events), [(4, 3, Reason::Busy)]);
    let (got, held) = hold(&runtime, "draft", backend, 6).await;
    assert_eq!(got, 3);
    drop(held);
    settle().await;
    // In full use and well: one more a round trip.
    backend.now(Answer::Good.after(s(1)));
    for round in 0..12 {
        let wanted = 3 + round;
        let calls: Vec<_> = (0..wanted).map(|_| call_later(&runtime, "draft")).collect();
        pass(ms(1_100)).await;
        for call in calls {
            let _ = call.await.unwrap();
        }
        settle().await;
    }
    let grown = said(&mut events);
    assert_eq!(grown, [3, 4, 5, 6, 7].map(|from| (from, from + 1, Reason::FullUse)), "up to its most");
    let (got, _held) = hold(&runtime, "draft", backend, 20).await;
    assert_eq!(got, 8);
}

#[tokio::test(start_paused = true)]
async fn a_static_cap_is_the_most_and_waiters_get_what_is_added() {
    let chat = FeatureSettings { max_wait: s(30), ..FeatureSettings::new(name("chat")) };
    let backend = Scripted::always(Answer::Good.after(s(1)));
    let runtime = builder()
        .compartments(CompartmentSettings { features: vec![chat], ..CompartmentSettings::default() })
        .provider(adaptive(1, Some(3)))
        .agent(agent("draft", "local"), backend.clone())
        .start()
        .await
        .unwrap();
    let mut events = runtime.limit_events();
    let calls: Vec<_> = (0..20).map(|_| later(&runtime, "chat", "standard")).collect();
    pass(s(25)).await;
    for call in calls {
        assert_eq!(code(&call.await.unwrap()), "OK");
    }
    assert_eq!(said(&mut events), [(1, 2, Reason::FullUse), (2, 3, Reason::FullUse)]);
    assert_eq!(backend.peak.load(std::sync::atomic::Ordering::SeqCst), 3);
}

/// What the limit of a provider does while `callers` of one agent, feature and class call, and whoever else keeps something does not.
async fn alone(guaranteed: Vec<(Name, u32)>, settings: CompartmentSettings, callers: u32) -> Vec<(u32, u32, Reason)> {
    let backend = Scripted::always(Answer::Good.after(s(1)));
    let runtime = builder()
        .compartments(settings)
        .provider(ProviderSettings { guaranteed, ..adaptive(4, None) })
        .agent(agent("draft", "local"), backend.clone())
        .agent(agent("review", "local"), backend.clone())
        .start()
        .await
        .unwrap();
    let mut events = runtime.limit_events();
    for _ in 0..24 {
        let calls: Vec<_> = (0..callers).map(|_| later(&runtime, "chat", "batch")).collect();
        pass(ms(1_100)).await;
        for call in calls {
            let _ = call.await.unwrap();
        }
        settle().await;
    }
    said(&mut events)
}

/// What is kept for somebody who does not call is no reason to stay where the limit fell to.
#[tokio::test(start_paused = true)]
async fn a_limit_rises_where_others_keep_a_share_that_they_do_not_use() {
    let none = || vec![(name("draft"), 0), (name("review"), 0)];
    let feature = |of: &str, guaranteed: u32| FeatureSettings {
        guaranteed: if guaranteed > 0 { vec![(name("local"), guaranteed)] } else { Vec::new() },
        ..FeatureSettings::new(name(of))
    };
    let features =
        |kept| CompartmentSettings { features: vec![feature("chat", 0), feature("bulk", kept)], ..Default::default() };
    let mut reserved = features(0);
    reserved.classes.kept[1] = KeptShare { share: 0.5, kept_from: KeptFrom::Lower };
    let up = [4, 5, 6, 7].map(|from| (from, from + 1, Reason::FullUse));
    for (what, guaranteed, settings) in [
        ("nothing is kept", none(), features(0)),
        ("agents, equal parts", Vec::new(), features(0)),
        ("an agent", vec![(name("draft"), 0), (name("review"), 2)], features(0)),
        ("a feature", none(), features(2)),
        ("a class", none(), reserved),
    ] {
        assert_eq!(alone(guaranteed.clone(), settings.clone(), 12).await, up, "{what}");
        assert_eq!(alone(guaranteed, settings, 1).await, [], "{what}: one at a time uses it nowhere");
    }
}

type Ending = tokio::task::JoinHandle<Result<CallReply, CallError>>;

fn later(runtime: &Runtime, feature: &str, class: &str) -> Ending {
    let handle = runtime.agent("draft").unwrap();
    let context =
        CallContext { feature: Some(feature.to_owned()), priority: Some(class.to_owned()), ..CallContext::default() };
    let request = CallRequest { context, ..CallRequest::of(serde_json::Value::Null) };
    tokio::spawn(async move { handle.call(request).await })
}

async fn lined(slots: u32, kept: &[(usize, f64, KeptFrom)], took: Duration) -> Runtime {
    let feature = |of: &str| FeatureSettings { max_wait: s(10), line_max: 1_000, ..FeatureSettings::new(name(of)) };
    let mut settings =
        CompartmentSettings { features: vec![feature("chat"), feature("bulk")], ..CompartmentSettings::default() };
    for (class, share, kept_from) in kept {
        settings.classes.kept[*class] = KeptShare { share: *share, kept_from: *kept_from };
    }
    let mut draft = agent("draft", "local");
    draft.slots = 1_000;
    // Long calls are what this is about, not an illness.
    draft.breaker.mode = Mode::Disabled;
    draft.timeouts.attempt = Some(s(120));
    let local = ProviderSettings { slots: Some(slots), ..provider("local") };
    let backend = Scripted::always(Answer::Good.after(took));
    builder().compartments(settings).provider(local).agent(draft, backend).start().await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn the_lowest_gives_way_at_once_while_a_higher_one_waits_too_long() {
    let runtime = lined(1, &[], s(5)).await;
    let first = later(&runtime, "bulk", "batch");
    settle().await;
    let chat = later(&runtime, "chat", "interactive");
    pass(ms(500)).await;
    // Not yet: it has waited half a second.
    let patient = later(&runtime, "bulk", "batch");
    pass(ms(700)).await;
    // After 1.15 s background is refused, after 2.15 s batch too.
    let before = tokio::time::Instant::now();
    let refused = later(&runtime, "bulk", "background").await.unwrap();
    assert_eq!(
        (code(&refused), detail(&refused, "compartment")),
        ("LOAD_SHED".to_owned(), "provider:local".to_owned())
    );
    assert_eq!((before.elapsed(), refused.as_ref().unwrap_err().envelope.http_status), (Duration::ZERO, 503));
    let wait = refused.unwrap_err().envelope.retry_after.unwrap();
    assert!((1.0..=1.5).contains(&wait), "{wait}");
    pass(s(1)).await;
    assert_eq!(code(&later(&runtime, "bulk", "batch").await.unwrap()), "LOAD_SHED");
    // Standard follows; those of the class that waits never do.
    pass(s(1)).await;
    assert_eq!(code(&later(&runtime, "chat", "standard").await.unwrap()), "LOAD_SHED");
    let same = later(&runtime, "chat", "interactive");
    pass(ms(1)).await;
    assert!(!same.is_finished(), "it stands in the line");
    assert_eq!(code(&first.await.unwrap()), "OK");
    assert_eq!(code(&chat.await.unwrap()), "OK");
    assert_eq!(code(&same.await.unwrap()), "OK");
    assert_eq!(code(&patient.await.unwrap()), "AGENT_BULKHEAD_FULL", "who waited already has its own patience");
    // All is calm again.
    pass(s(5)).await;
    let bulk = later(&runtime, "bulk", "background");
    pass(s(6)).await;
    assert_eq!(code(&bulk.await.unwrap()), "OK");
}

#[tokio::test(start_paused = true)]
async fn a_line_of_one_class_refuses_nobody_for_its_own_sake() {
    let runtime = lined(1, &[], s(1)).await;
    let calls: Vec<_> = (0..8).map(|_| later(&runtime, "bulk", "batch")).collect();
    pass(s(9)).await;
    for call in calls {
        assert_eq!(code(&call.await.unwrap()), "OK", "each waited for its turn");
    }
}

/// A low class that fills everything with long calls; then a high one that fills everything for ten minutes.
#[tokio::test(start_paused = true)]
async fn a_high_class_starts_soon_and_a_low_one_is_never_left_in_silence() {
    const INTERACTIVE: usize = 1;
    const BACKGROUND: usize = 4;
    let kept = [(INTERACTIVE, 0.3, KeptFrom::Lower), (BACKGROUND, 0.1, KeptFrom::All)];
    let runtime = lined(10, &kept, s(60)).await;
    let low: Vec<_> = (0..30).map(|_| later(&runtime, "bulk", "background")).collect();
    settle().await;
    assert_eq!(runtime.agent("draft").unwrap().in_flight(), 7, "three are kept for the high class");
    for _ in 0..3 {
        let started = tokio::time::Instant::now();
        let high = later(&runtime, "chat", "interactive");
        pass(ms(100)).await;
        assert!(started.elapsed() < s(1) && !high.is_finished());
        drop(high);
    }
    assert_eq!(runtime.agent("draft").unwrap().in_flight(), 10, "each of them started at once");
    for low in low {
        let _ = low.await;
    }
    pass(s(120)).await;
    // Now the high class has more to do than there is room for, for ten minutes.
    let (mut high, mut low, mut answered, mut soon) = (Vec::new(), Vec::new(), 0, 0);
    for _ in 0..600 {
        high.extend((0..2).map(|_| later(&runtime, "chat", "interactive")));
        low.push((tokio::time::Instant::now(), later(&runtime, "bulk", "background")));
        pass(s(1)).await;
        let mut waiting = Vec::new();
        for (since, call) in low.drain(..) {
            if !call.is_finished() {
                // In the line for ten seconds at most, then in its slot for a minute: never longer.
                assert!(since.elapsed() <= s(71), "left in silence");
                waiting.push((since, call));
                continue;
            }
            match code(&call.await.unwrap()).as_str() {
                "OK" => answered += 1,
                "LOAD_SHED" => soon += u32::from(since.elapsed() <= s(1)),
                other => assert_eq!(other, "AGENT_BULKHEAD_FULL"),
            }
        }
        low = waiting;
    }
    assert!(answered >= 8, "its one slot was its own all the time: {answered}");
    assert!(soon >= 400, "and the rest was told at once: {soon}");
    drop(high);
}
