//! Runs whose feature or agent is taken away by a reload: those that were accepted go on, or wait until it is back; new ones are refused.

use watertight::{
    model::{envelope::ErrorCode, run::RunStatus},
    policy::compartment::settings::{CompartmentSettings, FeatureSettings},
    runtime::{
        call::CallContext,
        parts::Parts,
        run_handle::{RunHandle, RunRequest},
    },
    workflow::plan::why::{AGENT_GONE, Why},
};

use crate::{
    kit::{Answer, Scripted, agent, builder, name, pass, provider},
    support::{chain, end, ms, s, start, step, whole, workflow},
};

fn features(of: &str) -> CompartmentSettings {
    let feature = FeatureSettings { slots: Some(1), ..FeatureSettings::new(name(of)) };
    CompartmentSettings { features: vec![feature], ..CompartmentSettings::default() }
}

#[tokio::test(start_paused = true)]
async fn a_run_goes_on_when_its_feature_is_renamed_and_new_ones_need_the_new_name() {
    let backend = Scripted::always(Answer::Good.after(s(1)));
    let host = || provider("host");
    let runtime = builder()
        .provider(host())
        .agent(agent("a", "host"), backend.clone())
        .agent(agent("b", "host"), backend.clone())
        .compartments(features("chat"))
        .start()
        .await
        .unwrap();
    let begin = |feature: &str| {
        let context = CallContext { feature: Some(feature.to_owned()), ..CallContext::default() };
        let (workflow, input) = (chain(&["a", "b"]), serde_json::Map::new());
        runtime.start_run(RunRequest { workflow, input, deadline: None, context })
    };
    let refused = |run: Result<RunHandle, _>| {
        let envelope: Box<watertight::model::envelope::Envelope> = run.err().unwrap();
        assert_eq!(envelope.error_code, ErrorCode::InvalidRequest, "{envelope:?}");
        assert_eq!(envelope.details["compartment"], "feature");
    };
    refused(begin("talk"));
    let (first, second) = (begin("chat").unwrap(), begin("chat").unwrap());
    pass(ms(500)).await;
    let parts = Parts::new().provider(host()).agent(agent("a", "host"), backend.clone());
    runtime.reload(parts.agent(agent("b", "host"), backend.clone()).compartments(features("talk"))).await.unwrap();
    refused(begin("chat"));
    let third = begin("talk").unwrap();
    for run in [&first, &second, &third] {
        assert_eq!(end(run).await.status, RunStatus::Completed, "{:?}", run.events_after(0));
    }
    assert_eq!(
        backend.peak.load(std::sync::atomic::Ordering::SeqCst),
        2,
        "one slot of each feature, the gone one's too"
    );
    assert_eq!(backend.count(), 6);
}

/// A run that needs an agent which is not there waits for it and says so; one that can do without goes on; its deadline holds all the same.
#[tokio::test(start_paused = true)]
async fn a_run_waits_for_an_agent_that_a_reload_took_away() {
    let backend = Scripted::always(Answer::Good.after(s(1)));
    let with = |agents: &[&str]| {
        agents
            .iter()
            .fold(Parts::new().provider(provider("host")), |parts, of| parts.agent(agent(of, "host"), backend.clone()))
    };
    let runtime = builder().parts(with(&["a", "b"])).start().await.unwrap();
    let optional =
        "[[step]]\nid = \"a\"\nagent = \"a\"\n[[step]]\nid = \"b\"\nagent = \"b\"\nneeds = [\"a\"]\noptional = true\n";
    let needs = start(&runtime, &chain(&["a", "b"]));
    let does_without = start(&runtime, &workflow("", optional));
    let (until, input) = (Some(s(20)), serde_json::Map::new());
    let context = CallContext::default();
    let late = RunRequest { workflow: chain(&["a", "b"]), input, deadline: until, context };
    let late = runtime.start_run(late).unwrap();
    pass(ms(500)).await;
    runtime.reload(with(&["a"])).await.unwrap();
    pass(s(2)).await;
    let why = needs.why();
    assert!(matches!(&why, Some(Why::Parked { reason, wake_ms: None, .. }) if reason == AGENT_GONE), "{why:?}");
    assert_eq!(
        (needs.record().status, end(&does_without).await.status),
        (RunStatus::Parked, RunStatus::CompletedDegraded)
    );
    assert_eq!(end(&late).await.status, RunStatus::TimedOut);
    runtime.reload(with(&["a", "c"])).await.unwrap();
    pass(s(60)).await;
    assert_eq!(needs.record().status, RunStatus::Parked);
    runtime.reload(with(&["a", "b"])).await.unwrap();
    let record = end(&needs).await;
    assert_eq!(record.status, RunStatus::Completed);
    whole(&needs, &record);
    assert_eq!(step(&record, "b").refusals[0].error_code, "NOT_FOUND");
}
