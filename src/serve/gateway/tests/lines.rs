//! Calls that pass through in the line: as old, as patient and in the same classes as any other, and gone from it with their client.

use std::{sync::Arc, time::Duration};

use axum::{Router, body::Body, http::Request};
use tower::ServiceExt as _;

use super::support::{WHOLE, agents_as, ask, name, routes, state, text};
use crate::{
    policy::compartment::settings::{CompartmentSettings, FeatureSettings, UnknownFeature},
    runtime::{engine::Runtime, tests::hand_clock::HandClock},
    serve::tests::support::{until, without_runs},
    transport::fake_server::{FakeServer, Step, answer},
};

/// Agent `fast` with one slot, and a line in front of it.
async fn lined(server: &FakeServer) -> (Router, Arc<HandClock>) {
    let chat = FeatureSettings { max_wait: Duration::from_secs(20), ..FeatureSettings::new(name("chat")) };
    let compartments = CompartmentSettings {
        features: vec![chat],
        unknown_feature: UnknownFeature::Is(name("chat")),
        ..CompartmentSettings::default()
    };
    let clock = Arc::new(HandClock::default());
    let builder = Runtime::builder().seed(7).clock(clock.clone()).compartments(compartments);
    let (agents, client) = agents_as(builder, server, |agent| agent.slots = 1);
    let state = state();
    state.door.open(without_runs(agents.start().await.unwrap()));
    (routes(state, client), clock)
}

fn pass(class: &str) -> Request<Body> {
    Request::post("/agents/fast/x").header("x-watertight-priority", class).body(Body::from("{}")).unwrap()
}

/// The status and all of the answer, as its client reads it.
fn asking(service: &Router, request: Request<Body>) -> tokio::task::JoinHandle<(u16, String)> {
    let asked = service.clone().oneshot(request);
    tokio::spawn(async move {
        let answer = asked.await.unwrap();
        (answer.status().as_u16(), text(answer).await)
    })
}

/// So many stand in the line, as the page of metrics has it.
fn standing(page: &metrics_exporter_prometheus::PrometheusHandle) -> u32 {
    let page = page.render();
    page.lines().find_map(|line| line.strip_prefix("watertight_line_length ")?.parse().ok()).unwrap_or(0)
}

#[tokio::test]
async fn calls_that_pass_through_stand_in_the_line_like_all_others() {
    let recorder = Box::leak(Box::new(metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder()));
    let page = recorder.handle();
    let _recording = metrics::set_default_local_recorder(recorder);
    let json = "content-type: application/json\r\n";
    let mut first = vec![Step::Pause(Duration::from_millis(400))];
    first.extend(answer(200, json, WHOLE));
    let server = FakeServer::start(vec![first, answer(200, json, WHOLE)]).await;
    let (service, clock) = lined(&server).await;
    let held = asking(&service, pass("standard"));
    server.has_requests(1).await;
    let mut waiting = Vec::new();
    for (place, request) in [pass("batch"), ask(""), pass("critical")].into_iter().enumerate() {
        // Who came when: the clock goes on between any two.
        clock.set_ms(1_000 * (1 + place as u64));
        waiting.push(asking(&service, request));
        until("it stands in the line", || standing(&page) == 1 + u32::try_from(place).unwrap()).await;
    }
    // Whoever leaves does so at once.
    let leaver = asking(&service, pass("critical"));
    until("it stands in the line", || standing(&page) == 4).await;
    leaver.abort();
    until("it has left the line", || standing(&page) == 3).await;
    for call in [held].into_iter().chain(waiting) {
        assert_eq!(call.await.unwrap(), (200, WHOLE.to_owned()));
    }
    let order: Vec<&str> = server
        .requests()
        .iter()
        .map(|sent| {
            if sent.contains("/v1/chat/completions") {
                "standard"
            } else if sent.contains("x-watertight-priority: critical") {
                "critical"
            } else {
                "others"
            }
        })
        .collect();
    assert_eq!(order, ["others", "critical", "standard", "others"], "the highest class first, whichever way it came");
}

/// Its patience is that of its feature, and what it hears then is what is so then.
#[tokio::test]
async fn who_waits_in_vain_is_refused_after_its_time() {
    let server = FakeServer::start(vec![vec![Step::UntilClosed]]).await;
    let (service, _clock) = lined(&server).await;
    let held = asking(&service, pass("standard"));
    server.has_requests(1).await;
    let request = Request::get("/agents/fast/x").header("x-watertight-deadline-ms", "200").body(Body::empty()).unwrap();
    let refused = asking(&service, request).await.unwrap();
    assert!(refused.0 == 504 && refused.1.contains("DEADLINE_EXCEEDED"), "{refused:?}");
    assert_eq!(server.requests().len(), 1, "it was never sent");
    held.abort();
}
