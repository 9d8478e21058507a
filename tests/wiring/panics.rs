//! Others' code that panics inside our own steps: a recorder of metrics that fails at everything costs its metrics and nothing else. It
//! fails in drops too, also in those of calls whose agent has just panicked: a second panic there would end the process.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};
use watertight::{
    policy::{
        breaker::state::StateName,
        compartment::settings::{CompartmentSettings, FeatureSettings, Rates},
        tokens::draw::AccountId,
    },
    runtime::{
        call::{CallContext, CallRequest},
        settings::ProviderSettings,
    },
};

use crate::{
    kit::{Answer, Scripted, agent, builder, code, name, pass, provider, settle},
    support::s,
};

/// Panics at every use while it is broken, and counts how often.
#[derive(Clone, Default)]
struct Fragile {
    is_broken: Arc<AtomicBool>,
    panics: Arc<AtomicU64>,
}

impl Fragile {
    fn used(&self) {
        if self.is_broken.load(Ordering::SeqCst) {
            self.panics.fetch_add(1, Ordering::SeqCst);
            // Without the panic hook, which would tell of each.
            std::panic::resume_unwind(Box::new("a recorder's fault"));
        }
    }
}

impl CounterFn for Fragile {
    fn increment(&self, _: u64) {
        self.used();
    }

    fn absolute(&self, _: u64) {
        self.used();
    }
}

impl GaugeFn for Fragile {
    fn increment(&self, _: f64) {
        self.used();
    }

    fn decrement(&self, _: f64) {
        self.used();
    }

    fn set(&self, _: f64) {
        self.used();
    }
}

impl HistogramFn for Fragile {
    fn record(&self, _: f64) {
        self.used();
    }
}

impl Recorder for Fragile {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(Arc::new(self.clone()))
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(Arc::new(self.clone()))
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(Arc::new(self.clone()))
    }
}

#[tokio::test(start_paused = true)]
async fn a_recorder_that_panics_costs_its_metrics_only() {
    let recorder = Fragile::default();
    let _recorder = metrics::set_default_local_recorder(&recorder);
    let rates = Rates { tokens_per_minute: Some(1_000_000), ..Rates::default() };
    let chat = FeatureSettings { slots: Some(1), max_wait: s(600), rates, ..FeatureSettings::new(name("chat")) };
    let backend = Scripted::new(|_, attempt| match attempt % 4 {
        0 => Answer::Good.after(s(1)),
        1 => Answer::Panic,
        2 => Answer::status(400).after(s(1)),
        _ => Answer::Hang,
    });
    let mut settings = agent("draft", "local");
    settings.restart.max = 1_000;
    let runtime = builder()
        .provider(ProviderSettings { rates, slots: Some(2), ..provider("local") })
        .compartments(CompartmentSettings { features: vec![chat], ..CompartmentSettings::default() })
        .agent(settings, backend.clone())
        .start()
        .await
        .unwrap();
    recorder.is_broken.store(true, Ordering::SeqCst);
    let call = || {
        let context = CallContext { feature: Some("chat".into()), timeout: Some(s(90)), ..CallContext::default() };
        let request = CallRequest { context, ..CallRequest::of(serde_json::json!({ "text": "a few words" })) };
        let handle = runtime.agent("draft").unwrap();
        tokio::spawn(async move { handle.call(request).await })
    };
    // One slot, so all but one stand in the line; some leave it, some leave their call.
    let calls: Vec<_> = (0..12).map(|_| call()).collect();
    for (place, call) in calls.iter().enumerate() {
        settle().await;
        if place % 5 == 4 {
            call.abort();
        }
    }
    let mut ends = Vec::new();
    for call in calls {
        ends.push(call.await.map_or_else(|_| "left".to_owned(), |end| code(&end)));
    }
    pass(s(1)).await;
    let how_many = |end: &str| ends.iter().filter(|is| *is == end).count();
    assert_eq!(how_many("left"), 2, "{ends:?}");
    assert!(how_many("OK") >= 2 && how_many("AGENT_RESTARTED") >= 2 && how_many("AGENT_ERROR") >= 2, "{ends:?}");
    assert_eq!(runtime.agent("draft").unwrap().in_flight(), 0);
    for account in [AccountId::Provider(name("local")), AccountId::Feature(name("chat"))] {
        assert_eq!(runtime.token_budget(&account).unwrap().reserved, 0, "{account}");
    }
    assert_eq!(runtime.breaker("agent:draft").unwrap().state, StateName::Closed);
    let panics = recorder.panics.load(Ordering::SeqCst);
    assert!(panics > 50, "the test is about a broken recorder, and it was used {panics} times");
    assert!(runtime.act("agent:draft", watertight::runtime::supervisor::BreakerAct::ForceOpen).is_ok());
    settle().await;
    assert_eq!(runtime.breaker("agent:draft").unwrap().state, StateName::ForcedOpen, "the supervisor goes on");
}
