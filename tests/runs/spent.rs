//! Caps of a run: the next call is refused for good, what is under way ends.

use std::sync::Arc;

use serde_json::json;
use watertight::{
    model::{
        cost::Cost,
        reply::{AttemptFailure, Reply, Usage},
        run::{RunStatus, StepStatus},
    },
    policy::{price::Price, run_caps::RunCaps},
    runtime::{
        ports::{AttemptRequest, Backend, BoxFuture, Progress},
        spending::SpendingSettings,
    },
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

/// A model whose every answer takes 100 + 50 tokens; those of `b` are counted by itself.
struct Paid(Arc<Scripted>);

impl Backend for Paid {
    fn attempt<'a>(
        &'a self,
        request: &'a AttemptRequest,
        progress: &'a Progress,
    ) -> BoxFuture<'a, Result<Reply, AttemptFailure>> {
        Box::pin(async move {
            let reply = self.0.attempt(request, progress).await?;
            let estimated = request.agent.as_str() == "b";
            let usage = Usage { prompt_tokens: 100, output_tokens: 50, estimated, ..Usage::default() };
            Ok(Reply { usage: Some(usage), ..reply })
        })
    }
}

/// What a run used stands in its record, step by step and all together, and its caps act on just that.
#[tokio::test(start_paused = true)]
async fn what_a_run_used_and_cost_stands_in_its_record_and_caps_act_on_it() {
    let units = |units| Cost::from_units(units).unwrap();
    let price = Price { input: units(10.0), output: units(20.0), ..Price::default() };
    for (caps, made, cap) in [
        (RunCaps::default(), 3, ""),
        (RunCaps { tokens_max: Some(301), cost_max: Cost::from_units(0.004_001), ..RunCaps::default() }, 3, ""),
        (RunCaps { tokens_max: Some(300), ..RunCaps::default() }, 2, "tokens_max"),
        (RunCaps { cost_max: Cost::from_units(0.004), ..RunCaps::default() }, 2, "cost_max"),
        (RunCaps { cost_max: Cost::from_units(0.000_001), ..RunCaps::default() }, 1, "cost_max"),
    ] {
        let backend = Scripted::always(Answer::Good);
        let (mut builder, mut prices) = (builder().run_caps(caps), std::collections::HashMap::new());
        for of in ["a", "b", "c"] {
            let mut settings = alone(of, 10);
            settings.model = Some("m".to_owned());
            prices.insert(format!("{}/m", settings.provider), price);
            builder = builder.provider(provider(settings.provider.as_str()));
            builder = builder.agent(settings, Arc::new(Paid(Arc::clone(&backend))));
        }
        let spending = SpendingSettings { prices, currency: Some("KRW".into()), ..SpendingSettings::default() };
        let runtime = builder.spending(spending).start().await.unwrap();
        let record = end(&start(&runtime, &chain(&["a", "b", "c"]))).await;
        assert_eq!(backend.count(), made, "{caps:?}");
        let calls = made as u64;
        assert_eq!((record.tokens.prompt, record.tokens.output), (100 * calls, 50 * calls), "{caps:?}");
        assert_eq!(record.tokens.estimated, made > 1, "{caps:?}");
        assert_eq!(record.cost, Cost::from_units(0.002 * made as f64), "{caps:?}");
        assert_eq!(record.currency.as_deref(), Some("KRW"));
        let of_steps = |place: usize| {
            let step = &record.steps[place];
            (step.tokens.map(|tokens| (tokens.prompt, tokens.output, tokens.estimated)), step.cost)
        };
        for place in 0..3 {
            let want = (place < made).then_some((100, 50, place == 1));
            assert_eq!(of_steps(place), (want, want.and(Cost::from_units(0.002))), "{caps:?}: {place}");
        }
        let told = serde_json::to_value(&record).unwrap();
        assert_eq!((told["cost"].as_f64(), &told["currency"]), (record.cost.map(Cost::units), &json!("KRW")));
        match &record.error {
            None => assert_eq!((record.status, cap), (RunStatus::Completed, "")),
            Some(error) => assert_eq!((error.error_code.as_str(), &error.details["cap"]), ("QUOTA_SPENT", &json!(cap))),
        }
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
