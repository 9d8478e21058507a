//! Rungs of an agent's ladder that a step's `on` asks for by name, and those that answered by themselves.

use serde_json::{Value, json};

use super::world::{Answer, World, bad, good, nothing, refused};
use crate::{
    model::{
        envelope::ErrorCode,
        event::EventType,
        run::{RunStatus, StepStatus},
    },
    workflow::definition::OnCause,
};

fn step(on: &str) -> String {
    format!(
        "[[step]]\nid = \"a\"\nagent = \"a\"\non = {{ {on} }}\n[[step]]\nid = \"b\"\nagent = \"b\"\nin = {{ x = \"steps.a.output\" }}\n"
    )
}

fn run(on: &str, first: Answer, rung: Option<(&str, Answer)>) -> World {
    let mut world = World::new(&step(on), nothing()).agent("a", [first]);
    if let Some((agent, answer)) = rung {
        world = world.agent(agent, [answer]);
    }
    world.run()
}

#[test]
fn a_lighter_target_is_asked_once_and_its_answer_is_marked() {
    for (on, first, cause) in [
        ("error = \"lighter\"", bad(40, ErrorCode::AgentError), "error"),
        ("circuit_open = \"lighter\"", refused(ErrorCode::AgentCircuitOpen, 30.0), "circuit_open"),
        ("bulkhead_full = \"lighter\"", refused(ErrorCode::AgentBulkheadFull, 1.0), "bulkhead_full"),
        ("budget = \"lighter\"", refused(ErrorCode::TokenBudgetExhausted, 9.0), "budget"),
        ("cold = \"lighter\"", refused(ErrorCode::AgentWarming, 9.0), "cold"),
    ] {
        let world = run(on, first, Some(("lighter:a", good(5, json!("small")))));
        assert_eq!(world.status(), RunStatus::CompletedDegraded, "{on}");
        assert_eq!(world.degraded(), [format!("a {cause} lighter")]);
        let record = world.record();
        let a = &record.steps[0];
        assert_eq!((a.status, &a.output), (StepStatus::Degraded, &Some(json!("small"))), "{on}");
        assert!(a.error.is_some(), "the first error is kept");
        assert_eq!(world.calls.len(), 3);
        assert_eq!(world.calls[2].2, json!({ "x": "small" }));
        let data = &world.data(EventType::StepDegraded, Some("a"))[0];
        assert_eq!((data["cause"].as_str(), data["action"].as_str()), (Some(cause), Some("lighter")));
    }
}

#[test]
fn what_the_rung_stood_in_for_is_the_error_if_it_fails_too() {
    for answer in [bad(5, ErrorCode::AgentTimeout), refused(ErrorCode::AgentBulkheadFull, 1.0)] {
        let world = run("error = \"lighter\"", bad(40, ErrorCode::AgentError), Some(("lighter:a", answer)));
        assert_eq!(world.status(), RunStatus::Failed);
        let error = world.record().error.unwrap();
        assert_eq!(error.error_code, ErrorCode::AgentError, "a later error never hides the first");
        assert!(error.details["tries"][0]["error_code"].is_string());
        assert_eq!(world.calls.len(), 2, "the rung is asked once");
    }
    let text = step("error = \"lighter\"").replacen("agent = \"a\"", "agent = \"a\"\noptional = true", 1);
    let world = World::new(&text, nothing())
        .agent("a", [bad(1, ErrorCode::AgentError)])
        .agent("lighter:a", [bad(1, ErrorCode::AgentError)])
        .run();
    assert_eq!(world.degraded(), ["a error skip"], "an optional step is left out");
}

#[test]
fn a_deferred_step_ends_without_output_and_the_run_goes_on() {
    let first = refused(ErrorCode::TokenBudgetExhausted, 30.0);
    let world = run("budget = \"deferred\"", first, Some(("deferred:a", good(1, Value::Null))));
    assert_eq!((world.status(), world.degraded()), (RunStatus::CompletedDegraded, vec!["a budget deferred".into()]));
    let record = world.record();
    assert_eq!((record.steps[0].status, &record.steps[0].output), (StepStatus::Degraded, &None));
    assert_eq!(world.calls[2].2, json!({ "x": null }));
    let full = Some(("deferred:a", bad(1, ErrorCode::AgentBulkheadFull)));
    let world = run("error = \"deferred\"", bad(1, ErrorCode::AgentError), full);
    assert_eq!(world.record().error.unwrap().error_code, ErrorCode::AgentError, "the queue was full");
}

#[test]
fn a_notice_goes_on_without_output() {
    let world = run("error = \"notice\"", bad(1, ErrorCode::AgentError), None);
    assert_eq!((world.status(), world.degraded()), (RunStatus::CompletedDegraded, vec!["a error notice".into()]));
    let step = &world.record().steps[0];
    assert_eq!((step.status, &step.output), (StepStatus::Degraded, &None));
    assert!(!step.error.as_ref().unwrap().user_message.is_empty());
}

#[test]
fn items_of_a_map_have_their_own_rungs() {
    let text = "[[step]]\nid = \"a\"\nagent = \"a\"\nin = { x = \"item\" }\non = { error = \"lighter\" }\n\
        map = { over = \"input.list\", as = \"item\" }\n";
    let world = World::new(&format!("[inputs]\nlist = \"json\"\n{text}"), json!({ "list": [1, 2, 3] }))
        .agent("a", [good(1, json!("one")), bad(2, ErrorCode::AgentError), good(1, json!("three"))])
        .agent("lighter:a", [good(1, json!("small"))])
        .run();
    assert_eq!((world.status(), world.degraded()), (RunStatus::CompletedDegraded, vec!["a error lighter".into()]));
    let record = world.record();
    let outputs: Vec<_> = record.steps.iter().map(|step| step.output.clone().unwrap()).collect();
    assert_eq!(outputs, [json!("one"), json!("small"), json!("three")]);
}

#[test]
fn every_word_is_known_by_its_name() {
    let words: std::collections::HashSet<&str> = OnCause::ALL.iter().map(|word| word.as_str()).collect();
    assert_eq!(words.len(), OnCause::ALL.len());
}
