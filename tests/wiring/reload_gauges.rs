//! What gauges show after a reload took away whose they are: nothing, all of them; and what they showed once it is back.

use std::{collections::BTreeMap, sync::Arc};

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use watertight::{
    policy::{
        adaptive::settings::AdaptiveSettings,
        compartment::settings::{CompartmentSettings, FeatureSettings, Rates},
    },
    runtime::{
        call::CallContext,
        engine::Runtime,
        metric::{self, Kind},
        parts::Parts,
        settings::{AgentSettings, ProviderSettings},
    },
};

use crate::{
    kit::{Answer, Scripted, agent, builder, code, model_server::ModelServer, provider, settle},
    support::{call_with, s},
};

fn tokens(limit: u64) -> Rates {
    Rates { tokens_per_minute: Some(limit), ..Rates::default() }
}

/// An agent, a provider and a feature with everything that has a gauge of its own.
fn everything(server: &Arc<ModelServer>) -> Parts {
    let adaptive = AdaptiveSettings { start: 4, min: 2, max: 8, ..AdaptiveSettings::default() };
    let here = ProviderSettings { rates: tokens(10_000), adaptive: Some(adaptive), ..provider("here") };
    let chat =
        FeatureSettings { rates: tokens(5_000), slots: Some(3), ..FeatureSettings::new(crate::kit::name("chat")) };
    let draft = AgentSettings { model: Some("qwen".into()), ..agent("draft", "here") };
    let review = AgentSettings { model: Some("qwen".into()), ..agent("review", "here") };
    Parts::new()
        .provider(here)
        .agent(draft, server.model("qwen"))
        .agent(review, server.model("qwen"))
        .compartments(CompartmentSettings { features: vec![chat], ..CompartmentSettings::default() })
}

/// The series of gauges whose labels name any of `names`, with their values.
fn gauges(page: &PrometheusHandle, names: &[&str]) -> BTreeMap<String, f64> {
    let is_gauge = |name: &str| metric::ALL.iter().any(|metric| metric.name == name && metric.kind == Kind::Gauge);
    let page = page.render();
    let series = page.lines().filter_map(|line| line.rsplit_once(' '));
    let of_gauges = series.filter(|(series, _)| series.split_once('{').is_some_and(|(name, _)| is_gauge(name)));
    let named = of_gauges.filter(|(series, _)| {
        let values = series.split('"').skip(1).step_by(2);
        values.into_iter().any(|value| names.iter().any(|name| value.split([':', '/']).any(|part| part == *name)))
    });
    named.map(|(series, value)| (series.to_owned(), value.parse().unwrap())).collect()
}

/// Whether the runtime says of a series that it tells nothing any more.
fn is_gone(runtime: &Runtime, series: &str) -> bool {
    runtime.gone_gauges().iter().any(|gone| {
        let labels = gone.labels.iter().map(|(key, value)| format!("{key}=\"{value}\""));
        series.starts_with(&format!("{}{{", gone.gauge)) && labels.into_iter().all(|label| series.contains(&label))
    })
}

#[tokio::test(start_paused = true)]
async fn gauges_of_what_is_gone_show_nothing_and_come_back_with_it() {
    const NAMES: [&str; 5] = ["here", "draft", "review", "chat", "qwen"];
    let recorder = PrometheusBuilder::new().build_recorder();
    let page = recorder.handle();
    let _here = metrics::set_default_local_recorder(&recorder);
    let server = ModelServer::start(s(1));
    let backend = Scripted::always(Answer::Good);
    let runtime = builder().parts(everything(&server)).start().await.unwrap();
    let chat = CallContext { feature: Some("chat".to_owned()), ..CallContext::default() };
    let show = async || {
        assert_eq!(code(&call_with(&runtime, "draft", chat.clone()).await), "OK");
        runtime.beat();
        settle().await;
        gauges(&page, &NAMES)
    };
    let shown = show().await;
    for (series, least) in [
        ("watertight_token_budget_limit{compartment=\"provider:here\"}", 10_000.0),
        ("watertight_token_budget_used{compartment=\"feature:chat\"}", 1.0),
        ("watertight_adaptive_limit{provider=\"here\"}", 4.0),
        ("watertight_model_warmth{provider=\"here\",model=\"qwen\",state=\"warm\"}", 1.0),
        ("watertight_feature_slots{feature=\"chat\"}", 3.0),
        ("watertight_slots{agent=\"draft\"}", 10.0),
        ("watertight_breaker_state{breaker=\"provider:here\",state=\"closed\"}", 1.0),
    ] {
        assert!(shown[series] >= least && !is_gone(&runtime, series), "{series}: {shown:?}");
    }
    let other = Parts::new().provider(provider("there")).agent(agent("other", "there"), backend.clone());
    for _ in 0..2 {
        runtime.reload(other.clone()).await.unwrap();
        runtime.beat();
        settle().await;
        let left = gauges(&page, &NAMES);
        assert!(left.len() >= shown.len());
        for (series, value) in left {
            assert!(value == 0.0 && is_gone(&runtime, &series), "{series} {value}");
        }
        assert!(!gauges(&page, &["other"]).keys().any(|series| is_gone(&runtime, series)));
    }
    // Only what is gone is: the same provider without a budget and without a limit of its own.
    let plain = AgentSettings { model: Some("qwen".into()), ..agent("draft", "here") };
    runtime.reload(Parts::new().provider(provider("here")).agent(plain, server.model("qwen"))).await.unwrap();
    for (series, gone) in [
        ("watertight_token_budget_limit{compartment=\"provider:here\"}", true),
        ("watertight_adaptive_limit{provider=\"here\"}", true),
        ("watertight_slots{agent=\"review\"}", true),
        ("watertight_slots{agent=\"draft\"}", false),
        ("watertight_model_warmth{provider=\"here\",model=\"qwen\",state=\"warm\"}", false),
    ] {
        assert_eq!(is_gone(&runtime, series), gone, "{series}");
    }
    runtime.reload(everything(&server)).await.unwrap();
    assert!(
        runtime
            .gone_gauges()
            .iter()
            .all(|gone| gone.labels.iter().any(|(_, value)| value.contains("other") || value.contains("there")))
    );
    let again = show().await;
    assert_eq!(again.keys().collect::<Vec<_>>(), shown.keys().collect::<Vec<_>>());
    assert!(again["watertight_token_budget_used{compartment=\"feature:chat\"}"] >= 1.0);
    assert!(again["watertight_adaptive_limit{provider=\"here\"}"] >= 4.0);
}
