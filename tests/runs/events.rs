//! The event log: order, content, gathered pieces.

use serde_json::json;
use watertight::model::{
    event::{Event, EventType},
    run::RunStatus,
};

use crate::{
    kit::{Answer, Scripted, settle},
    support::{alone, answering, chain, end, kinds, ms, runtime, s, start},
};

#[tokio::test(start_paused = true)]
async fn a_plain_run_from_beginning_to_end() {
    let (runtime, _) = answering(&["a", "b"], Answer::Say(json!("12345")).after(s(2))).await;
    let run = start(&runtime, &chain(&["a", "b"]));
    let record = end(&run).await;
    let want =
        ["run.started", "step.started a", "step.finished a", "step.started b", "step.finished b", "run.finished"];
    assert_eq!(kinds(&run), want);
    let events = run.events_after(0);
    assert_eq!(
        events.iter().map(|event| event.ts_ms - record.created_ms).collect::<Vec<_>>(),
        [0, 0, 2_000, 2_000, 4_000, 4_000]
    );
    assert!(events.iter().all(|event| event.run_id == run.id()));
    assert_eq!(events[0].data, json!({ "workflow": "test", "workflow_hash": record.workflow_hash }));
    assert_eq!(events[2].data["status"], "succeeded");
    assert_eq!((events[2].data["output_bytes"].as_u64(), events[2].data["iteration"].as_u64()), (Some(7), Some(0)));
    assert_eq!(run.events_after(4), events[4..]);
    assert!(run.events_after(6).is_empty() && run.events_after(u64::MAX).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_follower_misses_nothing_and_is_let_go_at_the_end() {
    let (runtime, _) = answering(&["a", "b"], Answer::Good.after(s(1))).await;
    let run = start(&runtime, &chain(&["a", "b"]));
    let mut seen: Vec<Event> = Vec::new();
    loop {
        let events = run.next_events(seen.last().map_or(0, |event| event.id)).await;
        if events.is_empty() {
            break;
        }
        seen.extend(events);
    }
    end(&run).await;
    assert_eq!(seen, run.events_after(0));
}

#[tokio::test(start_paused = true)]
async fn retries_are_told_while_they_happen() {
    let backend = Scripted::new(|_, number| match number {
        0 => Answer::status_after(503, s(2)).after(ms(100)),
        _ => Answer::Good,
    });
    let mut settings = alone("a", 1);
    settings.retry.attempts_max = 3;
    let runtime = runtime(vec![(settings, backend)]).await;
    let run = start(&runtime, &chain(&["a"]));
    tokio::time::sleep(s(1)).await;
    assert_eq!(kinds(&run), ["run.started", "step.started a", "step.retried a"], "before the wait is over");
    let record = end(&run).await;
    assert_eq!((record.status, record.steps[0].attempts.len()), (RunStatus::Completed, 2));
    let events = run.events_after(0);
    let data = &events[2].data;
    assert_eq!((data["error_code"].as_str(), data["status"].as_u64()), (Some("AGENT_ERROR"), Some(503)));
    assert_eq!((data["retry_after"].as_f64(), data["duration_ms"].as_u64()), (Some(2.0), Some(100)));
    assert_eq!(kinds(&run).len(), 5);
}

#[tokio::test(start_paused = true)]
async fn pieces_of_a_stream_are_gathered() {
    // 100 pieces, 10 ms apart: a second of stream.
    let mut answer = Answer::Good;
    for _ in 0..100 {
        answer = Answer::Content(Box::new(answer)).after(ms(10));
    }
    let mut settings = alone("a", 1);
    settings.timeouts.first_token = Some(s(60));
    let runtime = runtime(vec![(settings, Scripted::always(answer))]).await;
    let run = start(&runtime, &chain(&["a"]));
    end(&run).await;
    let deltas: Vec<Event> =
        run.events_after(0).into_iter().filter(|event| event.kind == EventType::StepDelta).collect();
    let text: String = deltas.iter().map(|event| event.data["text"].as_str().unwrap()).collect();
    assert_eq!(text, "piece".repeat(100), "nothing is lost, nothing out of order");
    assert!((4..=7).contains(&deltas.len()), "{} events", deltas.len());
    assert_eq!(deltas[0].step.as_deref(), Some("a"));
    assert_eq!(deltas[0].data["iteration"], 0);
    settle().await;
}
