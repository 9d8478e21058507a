//! Caps of a run: the next call is refused for good, what is under way ends.

use serde_json::json;
use watertight::{
    model::{
        cost::Cost,
        run::{RunStatus, StepStatus},
    },
    policy::run_caps::RunCaps,
};

use crate::{
    kit::{Answer, Scripted, builder, pass, provider},
    support::{alone, chain, end, start, start_with, workflow},
};

#[tokio::test(start_paused = true)]
async fn a_run_makes_no_call_beyond_its_caps() {
    for (caps, made) in [
        (RunCaps::default(), 3),
        (RunCaps { calls_max: Some(3), ..RunCaps::default() }, 3),
        (RunCaps { calls_max: Some(2), ..RunCaps::default() }, 2),
        (RunCaps { calls_max: Some(1), ..RunCaps::default() }, 1),
        // Work that no model does uses nothing.
        (RunCaps { tokens_max: Some(1), cost_max: Some(Cost::from_nanos(1)), ..RunCaps::default() }, 3),
    ] {
        let backends: Vec<_> = (0..3).map(|_| Scripted::always(Answer::Good)).collect();
        let mut builder = builder().run_caps(caps);
        for (of, backend) in ["a", "b", "c"].iter().zip(&backends) {
            let settings = alone(of, 10);
            builder = builder.provider(provider(settings.provider.as_str())).agent(settings, backend.clone());
        }
        let runtime = builder.start().await.unwrap();
        let record = end(&start(&runtime, &chain(&["a", "b", "c"]))).await;
        assert_eq!(backends.iter().map(|backend| backend.count()).sum::<usize>(), made, "{caps:?}");
        if made == 3 {
            assert_eq!(record.status, RunStatus::Completed);
            continue;
        }
        assert_eq!(record.status, RunStatus::Failed);
        let error = record.error.as_ref().unwrap();
        assert_eq!((error.error_code.as_str(), error.http_status, error.retryable), ("QUOTA_SPENT", 402, false));
        assert_eq!(error.details["cap"], "calls_max");
        assert_eq!(record.steps[made].status, StepStatus::Failed);
    }
}

#[tokio::test(start_paused = true)]
async fn calls_under_way_count_and_end() {
    let backend = Scripted::always(Answer::Good.after(std::time::Duration::from_secs(5)));
    let settings = alone("a", 10);
    let builder = builder().run_caps(RunCaps { calls_max: Some(2), ..RunCaps::default() });
    let builder = builder.provider(provider(settings.provider.as_str())).agent(settings, backend.clone());
    let runtime = builder.start().await.unwrap();
    let items = "[inputs]\nitems = \"json\"\n[[step]]\nid = \"a\"\nagent = \"a\"\nin = { x = \"item\" }\n\
                 map = { over = \"input.items\", as = \"item\", parallel = 5, join = \"best_effort:60s\" }";
    let run = start_with(&runtime, &workflow("", items), json!({"items": [1, 2, 3, 4, 5]}), None);
    pass(std::time::Duration::from_secs(1)).await;
    assert_eq!(backend.count(), 2);
    let record = end(&run).await;
    let ended = |status| record.steps.iter().filter(|step| step.index.is_some() && step.status == status).count();
    assert_eq!((ended(StepStatus::Succeeded), ended(StepStatus::Failed), backend.count()), (2, 3, 2));
}
