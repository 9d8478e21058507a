//! Steps over a list: pace, order, joins.

use serde_json::{Value, json};

use super::world::{Answer, World, bad, good, refused};
use crate::model::{envelope::ErrorCode, event::EventType, run::RunStatus};

fn world(map: &str, step: &str, items: usize) -> World {
    let text = format!(
        "[inputs]\nlist = \"json?\"\n[[step]]\nid = \"m\"\nagent = \"a\"\nin = {{ item = \"item\", index = \"index\" }}\nmap = {{ over = \"input.list\", as = \"item\"{map} }}\n{step}\n"
    );
    let list: Vec<Value> = (0..items).map(|item| json!(format!("i{item}"))).collect();
    World::with_head("output = \"steps.m.output\"", &text, json!({ "list": list }))
}

fn answers(milliseconds: &[u64]) -> Vec<Answer> {
    milliseconds.iter().map(|after| good(*after, json!(after))).collect()
}

#[test]
fn items_overlap_and_the_list_keeps_their_order() {
    let world = world("", "", 3).agent("a", answers(&[30, 10, 20])).run();
    assert_eq!(world.called(), ["0 a", "0 a", "0 a"]);
    assert_eq!(world.in_flight_max, 3);
    assert_eq!(world.record().output, Some(json!([30, 10, 20])));
    assert_eq!(world.steps(), ["m[0] succeeded", "m[1] succeeded", "m[2] succeeded"]);
    assert_eq!(world.calls[2].2, json!({ "index": 2, "item": "i2" }));
}

#[test]
fn parallel_and_share_set_the_pace() {
    let paced = world(", parallel = 2", "", 5).agent("a", answers(&[10, 30, 10, 10, 10])).run();
    assert_eq!((paced.called().join(", "), paced.in_flight_max), ("0 a, 0 a, 10 a, 20 a, 30 a".to_owned(), 2));
    let shared = world("", "", 5).share("a", 2).run();
    assert_eq!((shared.in_flight_max, shared.status()), (2, RunStatus::Completed));
    let none = world("", "", 5).share("a", 0).run();
    assert_eq!((none.in_flight_max, none.status()), (1, RunStatus::Completed));
}

#[test]
fn many_items_are_quick() {
    let world = world(", parallel = 100", "", 10_000).run();
    assert_eq!((world.calls.len(), world.in_flight_max, world.status()), (10_000, 100, RunStatus::Completed));
}

#[test]
fn no_items_are_an_empty_list() {
    let world = world("", "", 0).run();
    assert_eq!((world.status(), world.record().output), (RunStatus::Completed, Some(json!([]))));
    assert_eq!(world.steps(), ["m succeeded"]);
    let text = "[inputs]\nlist = \"files?\"\n[[step]]\nid = \"m\"\nagent = \"a\"\nmap = { over = \"input.list\", as = \"item\" }\n";
    let world = World::with_head("output = \"steps.m.output\"", text, json!({})).run();
    assert_eq!(world.record().output, Some(json!([])));
}

#[test]
fn what_is_no_list_or_too_long_is_refused() {
    for list in [json!("text"), json!({}), json!(3), Value::Array(vec![Value::Null; 10_001])] {
        let text = "[inputs]\nlist = \"json\"\n[[step]]\nid = \"m\"\nagent = \"a\"\nmap = { over = \"input.list\", as = \"item\" }\n";
        let world = World::new(text, json!({ "list": list })).run();
        assert_eq!(world.record().error.unwrap().error_code, ErrorCode::InvalidRequest);
        assert_eq!(world.steps(), ["m failed"]);
    }
}

#[test]
fn join_all_fails_only_after_all_have_ended() {
    let script = [bad(5, ErrorCode::AgentError), good(50, json!(1)), good(10, json!(2))];
    let world = world(", parallel = 2", "", 3).agent("a", script).run();
    assert_eq!(world.steps(), ["m[0] failed", "m[1] succeeded", "m[2] succeeded"]);
    assert_eq!(world.run_events(), ["0 run.started", "50 run.finished"]);
    let error = world.record().error.unwrap();
    assert_eq!((error.error_code, error.details["failed_items"].as_u64()), (ErrorCode::AgentError, Some(1)));
}

#[test]
fn items_have_their_steps_own_handling() {
    let script = || [bad(5, ErrorCode::AgentError), good(50, json!(1))];
    let skipping = world("", "optional = true", 2).agent("a", script()).run();
    assert_eq!(skipping.record().output, Some(json!([null, 1])));
    assert_eq!(
        (skipping.steps().join(", "), skipping.degraded()),
        ("m[0] skipped, m[1] succeeded".to_owned(), vec!["m error partial".to_owned()])
    );
    let replacing = world("", "on = { error = \"default\" }\ndefault = \"none\"", 2).agent("a", script()).run();
    assert_eq!(replacing.record().output, Some(json!(["none", 1])));
    assert_eq!(replacing.degraded(), ["m error default"]);
    let waiting = world("", "", 2).agent("a", [refused(ErrorCode::AgentCircuitOpen, 5.0)]).run();
    assert_eq!(waiting.status(), RunStatus::Completed);
    assert_eq!(waiting.called(), ["0 a", "0 a", "5000 a"]);
    let conditional = world("", "when = \"index != 1\"", 3).run();
    assert_eq!(conditional.status(), RunStatus::Completed);
    assert_eq!(conditional.steps(), ["m[0] succeeded", "m[1] skipped", "m[2] succeeded"]);
    assert_eq!(conditional.record().output.unwrap()[1], json!(null));
}

#[test]
fn best_effort_takes_what_is_there() {
    let script = [good(5, json!(1)), Answer::Hangs, bad(6, ErrorCode::AgentError), good(30_000, json!(4))];
    let world = world(", parallel = 4, join = \"best_effort:20s\"", "", 6).agent("a", script).run();
    assert_eq!(world.status(), RunStatus::CompletedDegraded);
    let output = world.record().output.unwrap();
    assert_eq!((&output[0], &output[1], &output[2], &output[3]), (&json!(1), &json!(null), &json!(null), &json!(null)));
    assert_eq!(output[4]["item"], "i4");
    assert_eq!(world.degraded().len(), 1);
    assert!(world.degraded()[0].ends_with("partial"), "{:?}", world.degraded());
    assert_eq!(world.run_events(), ["0 run.started", "20000 run.finished"]);
    assert_eq!(world.aborted.len(), 2);
    assert_eq!(
        world.steps(),
        ["m[0] succeeded", "m[1] cancelled", "m[2] failed", "m[3] cancelled", "m[4] succeeded", "m[5] succeeded"]
    );
}

#[test]
fn best_effort_that_makes_it_is_no_degradation() {
    let world = world(", join = \"best_effort:20s\"", "", 2).run();
    assert_eq!(
        (world.status(), world.run_events().join(", ")),
        (RunStatus::Completed, "0 run.started, 10 run.finished".to_owned())
    );
}

#[test]
fn a_failing_run_lets_items_under_way_finish_and_starts_no_more() {
    let text = "[[step]]\nid = \"m\"\nagent = \"a\"\nin = \"item\"\nmap = { over = \"range(4)\", as = \"item\", parallel = 2 }\n[[step]]\nid = \"b\"\nagent = \"b\"\n";
    let world =
        World::new(text, json!({})).agent("a", answers(&[5, 100])).agent("b", [bad(3, ErrorCode::AgentError)]).run();
    assert_eq!(world.steps(), ["m[0] succeeded", "m[1] succeeded", "m[2] cancelled", "m[3] cancelled", "b failed"]);
    let cancelled = &world.record().steps[3];
    assert_eq!(cancelled.error.clone().unwrap().details["culprit"], "b");
}

#[test]
fn items_have_events_of_their_own() {
    let world = world("", "", 2).run();
    let started = world.data(EventType::StepStarted, Some("m"));
    assert_eq!(
        started,
        [
            json!({ "index": null, "iteration": 0, "items": 2 }),
            json!({ "index": 0, "iteration": 0 }),
            json!({ "index": 1, "iteration": 0 })
        ]
    );
    let finished = world.data(EventType::StepFinished, Some("m"));
    let indexes: Vec<&Value> = finished.iter().map(|data| &data["index"]).collect();
    assert_eq!(indexes, [&json!(0), &json!(1), &json!(null)]);
}

#[test]
fn a_quorum_takes_the_first_that_succeed_and_cuts_the_rest() {
    let script = [bad(5, ErrorCode::AgentError), good(50, json!("late")), good(10, json!(2)), good(20, json!(3))];
    let world = world(", join = \"quorum:2\"", "", 5).agent("a", script).share("a", 4).run();
    assert_eq!(world.steps(), ["m[0] failed", "m[1] cancelled", "m[2] succeeded", "m[3] cancelled", "m[4] succeeded"]);
    assert_eq!((world.status(), world.record().duration_ms), (RunStatus::Completed, Some(15)));
    assert_eq!(world.record().output, Some(json!([null, null, 2, null, { "item": "i4", "index": 4 }])));
    assert_eq!((world.aborted.len(), world.calls.len()), (2, 5));
    assert!(world.degraded().is_empty(), "what was asked for is there");
}

#[test]
fn first_good_is_a_race() {
    let script = [good(30, json!("slow")), bad(1, ErrorCode::AgentError), good(10, json!("quick"))];
    let world = world(", join = \"first_good\"", "", 3).agent("a", script).run();
    assert_eq!(world.steps(), ["m[0] cancelled", "m[1] failed", "m[2] succeeded"]);
    assert_eq!((world.status(), world.record().output), (RunStatus::Completed, Some(json!([null, null, "quick"]))));
}

#[test]
fn a_quorum_fails_as_soon_as_it_is_out_of_reach() {
    let script = [bad(5, ErrorCode::AgentError), bad(10, ErrorCode::AgentError), good(900, json!(2))];
    let world = world(", join = \"quorum:2\"", "", 3).agent("a", script).run();
    assert_eq!(world.steps(), ["m[0] failed", "m[1] failed", "m[2] cancelled"]);
    assert_eq!((world.status(), world.record().duration_ms), (RunStatus::Failed, Some(10)));
    let error = world.record().error.unwrap();
    assert_eq!(error.error_code, ErrorCode::AgentError);
    let counts = ["succeeded_items", "needed_items", "failed_items"].map(|count| error.details[count].as_u64());
    assert_eq!(counts, [Some(0), Some(2), Some(2)]);
    assert!(error.message.starts_with("0 of 3 items succeeded, 2 must"), "{}", error.message);
    let told: Vec<_> = error.details["item_errors"].as_array().unwrap().iter().map(|told| &told["index"]).collect();
    assert_eq!(told, [&json!(0), &json!(1)], "the one that was cut did not fail");
}

#[test]
fn a_quorum_tells_of_no_more_items_than_can_be_read() {
    let script: Vec<_> = (0..30).map(|_| bad(5, ErrorCode::AgentError)).collect();
    let world = world(", join = \"first_good\"", "", 30).agent("a", script).run();
    let error = world.record().error.unwrap();
    assert_eq!(error.details["failed_items"], json!(30));
    assert_eq!(error.details["item_errors"].as_array().map(Vec::len), Some(10));
}

#[test]
fn too_short_a_list_has_no_quorum() {
    for items in [0, 1] {
        let world = world(", join = \"quorum:2\"", "", items).run();
        assert_eq!(world.record().error.unwrap().error_code, ErrorCode::InvalidRequest, "{items} items");
        assert!(world.calls.is_empty(), "nothing is spent on what cannot succeed");
    }
}

#[test]
fn an_optional_step_without_its_quorum_is_left_out() {
    let script = [bad(5, ErrorCode::AgentError), bad(10, ErrorCode::AgentError)];
    let world = world(", join = \"first_good\"", "optional = true", 2).agent("a", script).run();
    assert_eq!((world.status(), world.degraded()), (RunStatus::CompletedDegraded, vec!["m error skip".to_owned()]));
}

#[test]
fn a_quorum_that_another_step_takes_down_is_collateral() {
    let text = "[[step]]\nid = \"ill\"\nagent = \"b\"\n";
    let script = [good(5, json!(0)), good(50, json!(1))];
    let world = world(", parallel = 2, join = \"quorum:3\"", text, 4).agent("a", script);
    let world = world.agent("b", [bad(8, ErrorCode::AgentError)]).run();
    assert_eq!(
        world.steps(),
        ["m[0] succeeded", "m[1] succeeded", "m[2] succeeded", "m[3] cancelled", "ill failed"],
        "what was in a call is kept"
    );
    assert_eq!(world.record().error.unwrap().details["step"], "ill");
}
