//! Guards around work that is not the runtime's own, and the call log.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::json;
use tower::{Layer, Service, ServiceExt, service_fn};
use watertight::{
    model::{call_log::CallRecord, facts::Ending, name::Name},
    policy::breaker::state::StateName,
    runtime::{
        call::{CallContext, CallRequest},
        guard_layer::{GuardError, GuardLayer},
        ports::CallLog,
        settings::{AgentSettings, ProviderSettings},
    },
};

use crate::kit::{Answer, Scripted, agent, builder, call, pass, provider, settle};

fn classify(result: &Result<u16, &'static str>) -> Ending {
    match result {
        Ok(200) => Ending::Success,
        Ok(status) => Ending::status(*status),
        Err(_) => Ending::Network { connected: false },
    }
}

#[tokio::test(start_paused = true)]
async fn a_layer_guards_a_client_of_the_callers_own() {
    let runtime = builder().provider(provider("local")).guarded(agent("mail", "local")).start().await.unwrap();
    let asked = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&asked);
    let client = service_fn(move |status: u16| {
        *counted.lock().unwrap() += 1;
        async move { if status == 0 { Err("refused") } else { Ok(status) } }
    });
    let mut guarded = GuardLayer::new(runtime.agent("mail").unwrap(), classify).layer(client);
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
