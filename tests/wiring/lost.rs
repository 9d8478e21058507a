//! Outcomes that no supervisor could judge: none of them is lost without being counted.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use watertight::runtime::{
    engine::Part,
    metric::{BREAKER_OUTCOMES, BREAKER_STALE, OUTCOMES_LOST},
};

use crate::kit::{Answer, Scripted, agent, call_later, code, one_agent, pass, settle};
use crate::support::{ms, s};

/// Counters by name, whatever their labels.
#[derive(Default)]
struct Counters(Mutex<BTreeMap<String, Arc<AtomicU64>>>);

impl Counters {
    fn total(&self, name: &str) -> u64 {
        self.0.lock().unwrap().get(name).map_or(0, |count| count.load(Ordering::SeqCst))
    }
}

impl Recorder for Counters {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(Arc::clone(self.0.lock().unwrap().entry(key.name().to_owned()).or_default()))
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

#[tokio::test(start_paused = true)]
async fn every_outcome_is_judged_or_counted_as_lost() {
    let counters = Counters::default();
    let _recorder = metrics::set_default_local_recorder(&counters);
    let backend = Scripted::always(Answer::Good.after(ms(10)));
    let runtime = Arc::new(one_agent(agent("draft", "local"), backend).await);
    let mut ended = 0;
    for _ in 0..40 {
        let calls: Vec<_> = (0..5).map(|_| call_later(&runtime, "draft")).collect();
        let crashing = Arc::clone(&runtime);
        // At the very moment at which the calls end: their outcomes stand in the mailbox of a supervisor that dies.
        let crash = tokio::spawn(async move {
            tokio::time::sleep(ms(10)).await;
            crashing.crash(Part::Supervisor).unwrap();
        });
        for call in calls {
            assert_eq!(code(&call.await.unwrap()), "OK");
            ended += 1;
        }
        crash.await.unwrap();
        pass(s(10)).await;
    }
    settle().await;
    let (lost, stale) = (counters.total(OUTCOMES_LOST.name), counters.total(BREAKER_STALE.name));
    assert_eq!(counters.total(BREAKER_OUTCOMES.name) + lost + stale, ended);
    assert!(lost > 0, "the test is about lost outcomes, and there were none");
    assert_eq!(runtime.agent("draft").unwrap().in_flight(), 0, "their slots came back");
}
