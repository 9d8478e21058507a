//! Guards around work that is not the runtime's own, and the call log.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::json;
use tower::{Layer, Service, ServiceExt, service_fn};
use watertight::{
    model::{
        call_log::CallRecord,
        facts::{Ending, TimeoutKind},
        name::Name,
        reply::AttemptFailure,
    },
    policy::{
        breaker::state::StateName,
        compartment::settings::{CompartmentSettings, FeatureSettings, UnknownFeature},
    },
    runtime::{
        call::{CallContext, CallError, CallRequest},
        guard_layer::{GuardError, GuardLayer},
        outside::Part,
        ports::CallLog,
        settings::{AgentSettings, ProviderSettings, Timeouts},
    },
};

use crate::kit::{Answer, Scripted, agent, builder, call, name, pass, provider, settle};

fn classify(result: &Result<u16, &'static str>) -> Ending {
    match result {
        Ok(200) => Ending::Success,
        Ok(status) => Ending::status(*status),
        Err(_) => Ending::Network { connected: false },
    }
}

#[tokio::test(start_paused = true)]
async fn a_layer_guards_a_client_of_the_callers_own() {
    let chat =
        CompartmentSettings { features: vec![FeatureSettings::new(name("chat"))], ..CompartmentSettings::default() };
    let builder = builder().provider(provider("local")).compartments(chat);
    let runtime = builder.guarded(agent("mail", "local")).start().await.unwrap();
    let asked = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&asked);
    let client = service_fn(move |status: u16| {
        *counted.lock().unwrap() += 1;
        async move { if status == 0 { Err("refused") } else { Ok(status) } }
    });
    let layer = GuardLayer::new(runtime.agent("mail").unwrap(), classify);
    let somebodys = CallContext { feature: Some("export".into()), ..CallContext::default() };
    let of_a_stranger = layer.clone().on_behalf_of(somebodys).layer(client.clone()).oneshot(200).await;
    assert!(matches!(of_a_stranger, Err(GuardError::Refused(_))), "{of_a_stranger:?}");
    let mut guarded = layer.layer(client);
    assert_eq!(guarded.ready().await.unwrap().call(200).await, Ok(200));
    for _ in 0..40 {
        assert_eq!(guarded.ready().await.unwrap().call(404).await, Ok(404), "a flood of 404 opens nothing");
        settle().await;
    }
    for _ in 0..5 {
        assert_eq!(guarded.ready().await.unwrap().call(0).await, Err(GuardError::Inner("refused")));
        settle().await;
    }
    let before = *asked.lock().unwrap();
    let Err(GuardError::Refused(refused)) = guarded.ready().await.unwrap().call(200).await else {
        panic!("an open gate lets nothing through")
    };
    assert_eq!(refused.envelope.details["breaker"], "agent:mail");
    assert_eq!(*asked.lock().unwrap(), before, "the client was not asked");
    pass(Duration::from_secs(30)).await;
    for _ in 0..5 {
        assert_eq!(guarded.ready().await.unwrap().call(200).await, Ok(200));
        settle().await;
    }
    assert_eq!(runtime.breaker("agent:mail").unwrap().state, StateName::Closed);
}

#[tokio::test(start_paused = true)]
async fn work_that_is_dropped_gives_back_what_it_took_and_counts_only_if_it_hung() {
    let runtime = builder().provider(provider("local")).guarded(agent("mail", "local")).start().await.unwrap();
    let handle = runtime.agent("mail").unwrap();
    let admissions: Vec<_> = (0..10).map(|_| handle.enter(&CallContext::default()).unwrap()).collect();
    assert_eq!(handle.enter(&CallContext::default()).unwrap_err().envelope.error_code.as_str(), "AGENT_BULKHEAD_FULL");
    drop(admissions);
    settle().await;
    assert_eq!((handle.in_flight(), runtime.breaker("agent:mail").unwrap().counts.entries), (0, 0));
    let hung = handle.enter(&CallContext::default()).unwrap();
    pass(Duration::from_secs(31)).await;
    drop(hung);
    settle().await;
    let counts = runtime.breaker("agent:mail").unwrap().counts;
    assert_eq!((counts.failed, counts.slow), (1, 1));
}

/// Work that is done outside stands in the line with all others: by class and age, with their patience, and gone as soon as it is dropped.
#[tokio::test(start_paused = true)]
async fn work_outside_waits_in_the_line_like_any_call() {
    let chat = FeatureSettings { max_wait: Duration::from_secs(5), ..FeatureSettings::new(name("chat")) };
    let compartments = CompartmentSettings {
        features: vec![chat],
        unknown_feature: UnknownFeature::Is(name("chat")),
        ..CompartmentSettings::default()
    };
    let mut mail = agent("mail", "local");
    mail.slots = 1;
    let runtime = builder().provider(provider("local")).compartments(compartments).guarded(mail).start().await.unwrap();
    let handle = runtime.agent("mail").unwrap();
    let of = |class: &str| CallContext { priority: Some(class.to_owned()), ..CallContext::default() };
    let held = handle.enter_in_line(&of("batch")).await.unwrap();
    // At once, where nobody waits in front of the guards.
    assert_eq!(handle.enter(&of("critical")).unwrap_err().envelope.error_code.as_str(), "AGENT_BULKHEAD_FULL");
    let served = Arc::new(Mutex::new(Vec::new()));
    let mut waiting = Vec::new();
    for class in ["batch", "standard", "critical", "standard"] {
        let (handle, context, served) = (handle.clone(), of(class), Arc::clone(&served));
        let number = waiting.len();
        waiting.push(tokio::spawn(async move {
            let admission = handle.enter_in_line(&context).await?;
            served.lock().unwrap().push(number);
            tokio::time::sleep(Duration::from_secs(1)).await;
            drop(admission);
            Ok::<_, CallError>(())
        }));
        pass(Duration::from_millis(100)).await;
    }
    waiting[3].abort();
    pass(Duration::from_millis(100)).await;
    drop(held);
    for (number, call) in waiting.into_iter().enumerate() {
        assert_eq!(call.await.is_ok(), number != 3, "{number}");
    }
    assert_eq!(*served.lock().unwrap(), [2, 1, 0], "the highest class first, and nobody who had left");
    settle().await;
    assert_eq!(handle.in_flight(), 0);
    let _held = handle.enter(&CallContext::default()).unwrap();
    let began = tokio::time::Instant::now();
    let refused = handle.enter_in_line(&CallContext::default()).await.unwrap_err();
    assert_eq!((refused.envelope.error_code.as_str(), began.elapsed().as_secs()), ("AGENT_BULKHEAD_FULL", 5));
    let late = CallContext { deadline: Some(runtime.clock().now().after(Duration::from_secs(2))), ..of("critical") };
    let refused = handle.enter_in_line(&late).await.unwrap_err();
    assert_eq!((refused.envelope.error_code.as_str(), began.elapsed().as_secs()), ("DEADLINE_EXCEEDED", 7));
}

#[derive(Default)]
struct Kept(Mutex<Vec<CallRecord>>);

impl CallLog for Kept {
    fn finished(&self, record: CallRecord) {
        self.0.lock().unwrap().push(record);
    }
}

#[tokio::test(start_paused = true)]
async fn every_call_and_every_refusal_is_one_line_of_the_log() {
    let log = Arc::new(Kept::default());
    let backend = Scripted::always(Answer::Good.after(Duration::from_millis(20)));
    let runtime = builder()
        .call_log(log.clone())
        .provider(provider("local"))
        .agent(agent("draft", "local"), backend.clone())
        .start()
        .await
        .unwrap();
    call(&runtime, "draft").await.unwrap();
    backend.now(Answer::status(503));
    for _ in 0..6 {
        call(&runtime, "draft").await.unwrap_err();
    }
    let records = log.0.lock().unwrap();
    let seen: Vec<_> = records.iter().map(|record| (record.status, record.error_code.as_deref())).collect();
    let failed = (Some(503), Some("AGENT_ERROR"));
    assert_eq!(
        seen,
        [(Some(200), None), failed, failed, failed, failed, failed, (Some(503), Some("AGENT_CIRCUIT_OPEN"))]
    );
    assert_eq!((records[0].duration_ms, records[0].attempts.len(), records[6].attempts.len()), (20, 1, 0));
    assert_eq!((records[0].agent.as_str(), records[0].provider.as_deref()), ("draft", Some("local")));
}

/// `key_id` is the key that the provider was shown, `caller` the name of the one that we were shown.
#[tokio::test(start_paused = true)]
async fn the_log_tells_the_callers_key_from_the_providers() {
    let log = Arc::new(Kept::default());
    let keyed = ProviderSettings { key: Some(Name::try_new("paid").unwrap()), ..provider("local") };
    let narrow = AgentSettings { slots: 1, ..agent("draft", "local") };
    let backend = Scripted::always(Answer::Good.after(Duration::from_millis(20)));
    let runtime = builder().call_log(log.clone()).provider(keyed).agent(narrow, backend).start().await.unwrap();
    let draft = runtime.agent("draft").unwrap();
    let request = |key: Option<&str>| {
        let mut request = CallRequest::of(json!({"x": 1}));
        request.context.key_id = key.map(str::to_owned);
        request
    };
    let (first, second) = tokio::join!(draft.call(request(Some("app"))), draft.call(request(None)));
    assert!(first.is_ok() && second.is_err(), "one slot takes one call");
    settle().await;
    let mut seen: Vec<_> =
        log.0.lock().unwrap().iter().map(|line| (line.caller.clone(), line.key_id.clone())).collect();
    seen.sort();
    let paid = Some("paid".to_owned());
    assert_eq!(seen, [(None, paid.clone()), (Some("app".to_owned()), paid)]);
}

/// Whatever the caller does (a deadline of its own, leaving an answer under way, taking it slowly) says nothing of the agent.
#[tokio::test(start_paused = true)]
async fn what_the_caller_does_counts_for_no_work_outside() {
    let runtime = builder().provider(provider("local")).guarded(agent("mail", "local")).start().await.unwrap();
    let handle = runtime.agent("mail").unwrap();
    let never = std::future::pending::<Result<(), AttemptFailure>>;
    for _ in 0..6 {
        let hurried = CallContext { timeout: Some(Duration::from_millis(5)), ..CallContext::default() };
        let mut admission = handle.enter(&hurried).unwrap();
        let failure = admission.wait_for(Part::Head, never()).await.unwrap_err();
        assert_eq!(failure.ending, Ending::DeadlineCut);
        admission.fail(&failure);
        settle().await;
    }
    for leaves in [true, false] {
        for first in [Part::Head, Part::Piece] {
            let mut admission = handle.enter(&CallContext::default()).unwrap();
            let ready = std::future::ready(Ok(()));
            admission.wait_for(first, ready.clone()).await.unwrap();
            admission.content();
            for _ in 0..4 {
                // The client takes nothing for so long.
                pass(Duration::from_secs(40)).await;
                admission.wait_for(Part::Piece, ready.clone()).await.unwrap();
            }
            if leaves {
                drop(admission);
            } else {
                admission.finish(Ending::Success);
            }
            settle().await;
        }
    }
    // The head came at once, and then nobody took anything: nobody was silent but the client.
    let mut admission = handle.enter(&CallContext::default()).unwrap();
    admission.wait_for(Part::Head, std::future::ready(Ok(()))).await.unwrap();
    pass(Duration::from_secs(100)).await;
    drop(admission);
    settle().await;
    let counts = runtime.breaker("agent:mail").unwrap().counts;
    assert_eq!((counts.entries, counts.failed, counts.slow), (2, 0, 0), "{counts:?}");
}

/// An answer that goes on and on has no end by the clock, as long as it goes on; only its beginning can be slow, and only a pause too long.
#[tokio::test(start_paused = true)]
async fn work_outside_that_flows_may_take_any_time() {
    let with_attempt = AgentSettings {
        timeouts: Timeouts {
            attempt: Some(Duration::from_secs(60)),
            stall: Some(Duration::from_secs(20)),
            ..Timeouts::default()
        },
        ..agent("mail", "local")
    };
    let runtime = builder().provider(provider("local")).guarded(with_attempt).start().await.unwrap();
    let handle = runtime.agent("mail").unwrap();
    let after = |seconds| async move {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        Ok::<_, AttemptFailure>(())
    };
    for (first_s, slow) in [(1, 0), (31, 1)] {
        let mut admission = handle.enter(&CallContext::default()).unwrap();
        admission.wait_for(Part::Head, after(first_s)).await.unwrap();
        admission.content();
        for _ in 0..60 {
            admission.wait_for(Part::Piece, after(19)).await.unwrap();
        }
        admission.finish(Ending::Success);
        settle().await;
        let counts = runtime.breaker("agent:mail").unwrap().counts;
        assert_eq!((counts.failed, counts.slow), (0, slow), "{first_s} s to its first piece");
    }
}

#[tokio::test(start_paused = true)]
async fn work_outside_that_stands_still_is_given_up() {
    let seconds = Duration::from_secs;
    for (attempt, stall, part, given_up_s, kind) in [
        (Some(60), Some(20), Part::Piece, 20, TimeoutKind::Stall),
        (Some(10), Some(20), Part::Piece, 10, TimeoutKind::Stall),
        (Some(60), None, Part::Piece, 60, TimeoutKind::Stall),
        (None, None, Part::Piece, 180, TimeoutKind::Stall),
        (Some(60), Some(20), Part::Head, 60, TimeoutKind::Attempt),
        (None, Some(20), Part::Head, 180, TimeoutKind::Call),
    ] {
        let timeouts = Timeouts {
            attempt: attempt.map(seconds),
            stall: stall.map(seconds),
            call: seconds(180),
            ..Timeouts::default()
        };
        let mail = AgentSettings { timeouts, ..agent("mail", "local") };
        let runtime = builder().provider(provider("local")).guarded(mail).start().await.unwrap();
        let handle = runtime.agent("mail").unwrap();
        let mut admission = handle.enter(&CallContext::default()).unwrap();
        let began = tokio::time::Instant::now();
        let failure = admission.wait_for(part, std::future::pending::<Result<(), _>>()).await.unwrap_err();
        assert_eq!(failure.ending, Ending::Timeout { timeout: kind }, "{attempt:?} {stall:?} {part:?}");
        assert_eq!(began.elapsed().as_secs(), given_up_s, "{attempt:?} {stall:?} {part:?}");
        admission.fail(&failure);
        settle().await;
        assert_eq!((handle.in_flight(), runtime.breaker("agent:mail").unwrap().counts.failed), (0, 1));
    }
}

/// A 429 that asks for a longer pause than anybody would sleep is a spent quota here as everywhere: its key is cooled until then.
#[tokio::test(start_paused = true)]
async fn a_far_reset_told_to_work_outside_is_a_spent_quota() {
    for (retry_after_s, refused) in [(5, false), (900, true)] {
        let keyed = ProviderSettings { key: Some(Name::try_new("paid").unwrap()), ..provider("local") };
        let runtime = builder().provider(keyed).guarded(agent("mail", "local")).start().await.unwrap();
        let handle = runtime.agent("mail").unwrap();
        let retry_after = Some(Duration::from_secs(retry_after_s));
        let failure = AttemptFailure { retry_after, ..AttemptFailure::new(Ending::status(429), "later") };
        handle.enter(&CallContext::default()).unwrap().fail(&failure);
        settle().await;
        let next = handle.enter(&CallContext::default());
        assert_eq!(next.is_err(), refused, "{retry_after_s} s");
        if let Err(error) = next {
            assert_eq!(error.envelope.details["breaker"], "key:local/paid", "{}", error.envelope.message);
        }
    }
}

/// What a client does not take in time is in nobody's figures.
#[tokio::test(start_paused = true)]
async fn work_outside_is_logged_with_its_own_time_and_status() {
    let log = Arc::new(Kept::default());
    let runtime = builder()
        .call_log(log.clone())
        .provider(provider("local"))
        .guarded(agent("mail", "local"))
        .start()
        .await
        .unwrap();
    let handle = runtime.agent("mail").unwrap();
    let mut admission = handle.enter(&CallContext::default()).unwrap();
    let soon = async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        Ok::<_, AttemptFailure>(())
    };
    admission.wait_for(Part::Head, soon).await.unwrap();
    admission.answered(201);
    pass(Duration::from_secs(100)).await;
    admission.finish(Ending::Success);
    let records = log.0.lock().unwrap();
    assert_eq!((records[0].status, records[0].duration_ms), (Some(201), 20));
}

/// After an outage everybody comes back for a stream that has no end. Trials that flow have shown what they are to show: the gate opens for
/// all, and is not shut again because a trial does not end.
#[tokio::test(start_paused = true)]
async fn trials_that_flow_without_end_close_the_gate() {
    for flows in [true, false] {
        let runtime = builder().provider(provider("local")).guarded(agent("mail", "local")).start().await.unwrap();
        let handle = runtime.agent("mail").unwrap();
        for _ in 0..5 {
            handle.enter(&CallContext::default()).unwrap().finish(Ending::status(503));
            settle().await;
        }
        assert_eq!(runtime.breaker("agent:mail").unwrap().state, StateName::Open);
        pass(Duration::from_secs(34)).await;
        let mut streams: Vec<_> = (0..5).map(|_| handle.enter(&CallContext::default()).unwrap()).collect();
        assert!(handle.enter(&CallContext::default()).is_err(), "so many trials and no more");
        for _ in 0..40 {
            for stream in &mut streams {
                if flows {
                    stream.wait_for(Part::Piece, std::future::ready(Ok(()))).await.unwrap();
                    stream.content();
                }
            }
            pass(Duration::from_secs(10)).await;
        }
        let breaker = runtime.breaker("agent:mail").unwrap();
        if flows {
            assert_eq!(breaker.state, StateName::Closed);
            // How they end in the end is nothing to the state that they opened, and gives back what they hold.
            drop(streams.pop());
            for stream in streams {
                stream.finish(Ending::StreamCut);
            }
            settle().await;
            assert_eq!(handle.in_flight(), 0);
            assert_eq!(runtime.breaker("agent:mail").unwrap().counts.entries, 0);
        } else {
            assert_ne!(breaker.state, StateName::Closed, "silence shows nothing");
        }
    }
}
