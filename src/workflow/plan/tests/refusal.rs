//! Refusals: parking, lines, looking ahead, and what is never asked for again.

use serde_json::json;

use super::world::{Answer, World, bad, chain, forced, good, nothing, refused, shut};
use crate::{
    model::{envelope::ErrorCode, event::EventType, run::RunStatus},
    workflow::plan::action::GateLook,
};

#[test]
fn a_refused_step_parks_and_is_asked_for_again() {
    for code in
        [ErrorCode::AgentCircuitOpen, ErrorCode::AgentWarming, ErrorCode::TokenBudgetExhausted, ErrorCode::RateLimited]
    {
        let world = World::new(&chain(&["a"]), nothing()).agent("a", [refused(code, 30.0)]).run();
        assert_eq!(world.status(), RunStatus::Completed, "{code}");
        assert_eq!(world.called(), ["0 a", "30000 a"], "{code}");
        assert_eq!(world.run_events(), ["0 run.started", "0 run.parked", "30000 run.resumed", "30010 run.finished"]);
        let data = &world.data(EventType::RunParked, Some("a"))[0];
        assert_eq!((data["wake_ms"].as_u64(), data["agent"].as_str()), (Some(1_030_000), Some("a")));
        let record = world.record();
        assert_eq!(record.steps[0].refusals.len(), 1);
        assert_eq!(record.steps[0].refusals[0].error_code, code.as_str());
        assert_eq!(record.steps[0].started_ms, Some(1_000_000));
    }
}

#[test]
fn a_run_parks_only_when_nothing_else_runs() {
    let text = "[[step]]\nid = \"a\"\nagent = \"a\"\n[[step]]\nid = \"b\"\nagent = \"b\"\n";
    let world = World::new(text, nothing())
        .agent("a", [refused(ErrorCode::AgentCircuitOpen, 30.0)])
        .agent("b", [good(5_000, json!(1))])
        .run();
    assert_eq!(world.run_events(), ["0 run.started", "5000 run.parked", "30000 run.resumed", "30010 run.finished"]);
}

#[test]
fn a_wake_later_than_the_deadline_is_not_waited_for() {
    let world = World::with_head("output = \"1\"\ndeadline = \"20s\"", &chain(&["a", "b"]), nothing())
        .agent("a", [refused(ErrorCode::AgentCircuitOpen, 20.0)])
        .run();
    assert_eq!(world.status(), RunStatus::Failed);
    assert_eq!(world.record().error.unwrap().error_code, ErrorCode::AgentCircuitOpen);
    assert_eq!(world.run_events(), ["0 run.started", "0 run.finished"]);
    let optional = chain(&["a", "b"]).replacen("needs", "optional = true\non = { circuit_open = \"wait\" }\nneeds", 1);
    let world = World::with_head("output = \"1\"\ndeadline = \"20s\"", &optional, nothing())
        .agent("a", [refused(ErrorCode::AgentCircuitOpen, 20.0)])
        .run();
    assert_eq!(
        (world.status(), world.degraded()),
        (RunStatus::CompletedDegraded, vec!["a circuit_open skip".to_owned()])
    );
}

#[test]
fn an_exhausted_call_is_never_asked_for_again() {
    for code in
        [ErrorCode::AgentCircuitOpen, ErrorCode::AgentBulkheadFull, ErrorCode::RateLimited, ErrorCode::AgentWarming]
    {
        let world = World::new(&chain(&["a"]), nothing()).agent("a", [bad(10, code)]).run();
        assert_eq!((world.status(), world.called().len()), (RunStatus::Failed, 1), "{code}");
    }
}

#[test]
fn what_cannot_pass_by_itself_is_not_waited_for() {
    let world = World::new(&chain(&["a"]), nothing()).agent("a", [Answer::Refused(ErrorCode::QuotaSpent, None)]).run();
    assert_eq!((world.status(), world.called().len()), (RunStatus::Failed, 1));
}

#[test]
fn causes_have_their_own_actions() {
    let on = "on = { circuit_open = \"skip\", budget = \"default\", cold = \"fail\", bulkhead_full = \"skip\" }\ndefault = 1";
    let text = chain(&["a"]).replace("needs", &format!("{on}\nneeds"));
    for (code, status, degraded) in [
        (ErrorCode::AgentCircuitOpen, RunStatus::CompletedDegraded, vec!["a circuit_open skip"]),
        (ErrorCode::TokenBudgetExhausted, RunStatus::CompletedDegraded, vec!["a budget default"]),
        (ErrorCode::AgentWarming, RunStatus::Failed, vec![]),
        (ErrorCode::AgentBulkheadFull, RunStatus::CompletedDegraded, vec!["a bulkhead_full skip"]),
        (ErrorCode::AgentRestarted, RunStatus::Failed, vec![]),
        (ErrorCode::DeadlineExceeded, RunStatus::Failed, vec![]),
    ] {
        let world = World::new(&text, nothing()).agent("a", [refused(code, 2.0)]).run();
        assert_eq!(
            (world.status(), world.degraded()),
            (status, degraded.iter().map(ToString::to_string).collect()),
            "{code}"
        );
    }
}

#[test]
fn a_full_bulkhead_is_waited_for_in_line() {
    let world = World::new(&chain(&["a"]), nothing()).agent("a", [refused(ErrorCode::AgentBulkheadFull, 2.0)]).run();
    assert_eq!(world.called(), ["0 a", "100 a"]);
    assert_eq!(world.run_events(), ["0 run.started", "110 run.finished"]);
    assert!(world.record().steps[0].refusals.is_empty(), "standing in the line is no refusal");
    assert!(world.data(EventType::StepRefused, Some("a")).is_empty());
    let world = World::new(&chain(&["a"]), nothing())
        .agent("a", [refused(ErrorCode::AgentBulkheadFull, 2.0)])
        .full_line()
        .run();
    assert_eq!(world.record().error.unwrap().error_code, ErrorCode::AgentBulkheadFull);
    let world = World::new(&chain(&["a"]), nothing())
        .agent("a", [refused(ErrorCode::AgentBulkheadFull, 2.0)])
        .cancelled_at(50)
        .run();
    assert_eq!((world.status(), world.aborted.len()), (RunStatus::Cancelled, 1));
    // A gate that shuts while the step stands in line.
    let world = World::new(&chain(&["a"]), nothing())
        .agent("a", [refused(ErrorCode::AgentBulkheadFull, 2.0), refused(ErrorCode::AgentCircuitOpen, 30.0)])
        .run();
    assert_eq!(world.called(), ["0 a", "100 a", "30100 a"]);
}

#[test]
fn a_run_does_not_spend_a_draft_that_a_shut_gate_makes_useless() {
    let world = World::new(&chain(&["draft", "review"]), nothing())
        .gate("review", 0, shut(30_000))
        .agent("draft", [good(40_000, json!(1))])
        .run();
    assert_eq!(world.called(), ["30000 draft", "70000 review"]);
    assert_eq!(world.run_events(), ["0 run.started", "0 run.parked", "30000 run.resumed", "70010 run.finished"]);
    let data = &world.data(EventType::RunParked, Some("review"))[0];
    assert_eq!((data["wake_ms"].as_u64(), data["reason"].as_str()), (Some(1_030_000), Some("failure_share")));
}

#[test]
fn what_does_not_hold_a_run_up() {
    let plain = chain(&["draft", "review"]);
    let optional = format!("{plain}optional = true\n");
    let stated = format!("{plain}on = {{ circuit_open = \"skip\" }}\n");
    let skipped = format!("[inputs]\nx = \"text?\"\n{plain}when = \"input.x\"\n");
    let undecided = format!("{plain}when = \"steps.draft.output\"\n");
    for (text, look) in [
        (&plain, GateLook::HalfOpen),
        (&optional, shut(30_000)),
        (&stated, shut(30_000)),
        (&skipped, shut(30_000)),
        (&undecided, shut(30_000)),
    ] {
        let world = World::new(text, nothing()).gate("review", 0, look).run();
        assert_eq!(world.called()[0], "0 draft", "{text}");
    }
}

#[test]
fn a_gate_that_opens_early_or_by_hand_ends_the_parking() {
    for look in [shut(30_000), forced()] {
        let world = World::new(&chain(&["draft", "review"]), nothing())
            .gate("review", 0, look)
            .gate("review", 7_000, GateLook::Admits)
            .run();
        assert_eq!(world.called(), ["7000 draft", "7010 review"]);
    }
    let world = World::new(&chain(&["a"]), nothing())
        .agent("a", [refused(ErrorCode::AgentCircuitOpen, 30.0)])
        .gate("a", 7_000, GateLook::HalfOpen)
        .run();
    assert_eq!(world.called(), ["0 a", "7000 a"]);
}

#[test]
fn a_gate_forced_open_for_ever_times_the_run_out() {
    let world = World::with_head("output = \"1\"\ndeadline = \"20s\"", &chain(&["draft", "review"]), nothing())
        .gate("review", 0, forced())
        .run();
    assert_eq!(world.status(), RunStatus::TimedOut);
    assert_eq!(world.steps(), ["draft cancelled", "review cancelled"]);
    assert_eq!(world.data(EventType::RunParked, Some("review"))[0]["wake_ms"], json!(null));
}

#[test]
fn a_gate_that_shuts_until_after_the_deadline_fails_the_run_at_once() {
    let world = World::with_head("output = \"1\"\ndeadline = \"20s\"", &chain(&["draft", "review"]), nothing())
        .gate("review", 0, shut(30_000))
        .run();
    assert_eq!((world.status(), world.called().len()), (RunStatus::Failed, 0));
    let error = world.record().error.unwrap();
    assert_eq!((error.error_code, error.retry_after), (ErrorCode::AgentCircuitOpen, Some(30.0)));
    assert_eq!(world.steps(), ["draft cancelled", "review failed"]);
    assert_eq!(world.run_events(), ["0 run.started", "0 run.finished"]);
    // The same while it is parked already.
    let world = World::with_head("output = \"1\"\ndeadline = \"20s\"", &chain(&["a"]), nothing())
        .agent("a", [refused(ErrorCode::AgentCircuitOpen, 10.0)])
        .gate("a", 5_000, shut(30_000))
        .run();
    assert_eq!(world.run_events(), ["0 run.started", "0 run.parked", "5000 run.finished"]);
    assert_eq!(world.status(), RunStatus::Failed);
}

#[test]
fn failing_starts_nothing_new_and_ends_what_waits() {
    let text = "[[step]]\nid = \"a\"\nagent = \"a\"\n[[step]]\nid = \"b\"\nagent = \"b\"\n[[step]]\nid = \"c\"\nagent = \"c\"\n[[step]]\nid = \"d\"\nagent = \"d\"\n";
    let world = World::new(text, nothing())
        .agent("a", [bad(50, ErrorCode::AgentError)])
        .agent("b", [refused(ErrorCode::AgentCircuitOpen, 30.0)])
        .agent("c", [refused(ErrorCode::AgentBulkheadFull, 1.0)])
        .agent("d", [good(60, json!("kept"))])
        .run();
    assert_eq!(world.steps(), ["a failed", "b cancelled", "c cancelled", "d succeeded"]);
    assert_eq!(world.run_events(), ["0 run.started", "60 run.finished"]);
    assert_eq!(world.aborted.len(), 1, "the one in line");
}

#[test]
fn a_long_row_of_refusals_is_kept_short() {
    let refusals = (0..500).map(|_| refused(ErrorCode::AgentCircuitOpen, 1.0));
    let world = World::new(&chain(&["a"]), nothing()).agent("a", refusals).run();
    let record = world.record();
    assert_eq!(record.status, RunStatus::Completed);
    assert_eq!(record.steps[0].refusals.len(), 100);
    assert_eq!(record.steps[0].refusals[99].at_ms, 1_499_000);
}
