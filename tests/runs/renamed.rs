//! Runs whose feature is taken away by a reload: those that were accepted go on, new ones are refused.

use watertight::{
    model::{envelope::ErrorCode, run::RunStatus},
    policy::compartment::settings::{CompartmentSettings, FeatureSettings},
    runtime::{
        call::CallContext,
        parts::Parts,
        run_handle::{RunHandle, RunRequest},
    },
};

use crate::{
    kit::{Answer, Scripted, agent, builder, name, pass, provider},
    support::{chain, end, ms, s},
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
    let start = |feature: &str| {
        let context = CallContext { feature: Some(feature.to_owned()), ..CallContext::default() };
        let (workflow, input) = (chain(&["a", "b"]), serde_json::Map::new());
        runtime.start_run(RunRequest { workflow, input, deadline: None, context })
    };
    let refused = |run: Result<RunHandle, _>| {
        let envelope: Box<watertight::model::envelope::Envelope> = run.err().unwrap();
        assert_eq!(envelope.error_code, ErrorCode::InvalidRequest, "{envelope:?}");
        assert_eq!(envelope.details["compartment"], "feature");
    };
    refused(start("talk"));
    let (first, second) = (start("chat").unwrap(), start("chat").unwrap());
    pass(ms(500)).await;
    let parts = Parts::new().provider(host()).agent(agent("a", "host"), backend.clone());
    runtime.reload(parts.agent(agent("b", "host"), backend.clone()).compartments(features("talk"))).await.unwrap();
    refused(start("chat"));
    let third = start("talk").unwrap();
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
