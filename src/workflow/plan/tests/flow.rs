//! Order, data, conditions, failures, ends.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};

use super::world::{AGENTS, Answer, World, bad, chain, failed, good, nothing, seed};
use crate::{
    model::{
        clock::Timestamp,
        envelope::ErrorCode,
        event::EventType,
        name::Name,
        run::{RunStatus, StepStatus},
    },
    workflow::{
        builder::{StepBuilder, WorkflowBuilder},
        plan::{
            action::{Action, CallDone, Resend, StepKey},
            run_plan::RunPlan,
            why::Why,
        },
    },
};

const DIAMOND: &str = r#"
[[step]]
id = "a"
agent = "a"
in = { n = "1" }
[[step]]
id = "b"
agent = "b"
in = { n = "2" }
[[step]]
id = "c"
agent = "c"
in = { from = "steps.a.output.n" }
[[step]]
id = "d"
agent = "d"
in = { left = "steps.b.output", right = "steps.c.output.from" }
"#;

#[test]
fn a_step_starts_when_what_it_needs_has_ended() {
    let world = World::with_head("output = \"steps.d.output\"", DIAMOND, nothing())
        .agent("b", [good(100, json!({ "n": 2 }))])
        .run();
    assert_eq!(world.called(), ["0 a", "0 b", "10 c", "100 d"]);
    assert_eq!(world.status(), RunStatus::Completed);
    assert_eq!(world.record().output, Some(json!({ "left": { "n": 2 }, "right": 1 })));
    assert_eq!(world.record().tokens.prompt, 40);
    assert_eq!(world.run_events(), ["0 run.started", "110 run.finished"]);
    let record = world.record();
    assert_eq!((record.created_ms, record.ended_ms, record.duration_ms), (1_000_000, Some(1_000_110), Some(110)));
    assert_eq!(record.steps[1].attempts.len(), 1);
    assert_eq!(record.steps[1].duration_ms, Some(100));
}

#[test]
fn siblings_are_no_collateral() {
    let world = World::new(DIAMOND, nothing())
        .agent("a", [bad(5, ErrorCode::AgentTimeout)])
        .agent("b", [good(100, json!("kept"))])
        .run();
    assert_eq!(world.status(), RunStatus::Failed);
    assert_eq!(world.steps(), ["a failed", "b succeeded", "c cancelled", "d cancelled"]);
    let record = world.record();
    assert_eq!(record.steps[1].output, Some(json!("kept")));
    assert_eq!(record.ended_ms, Some(1_000_100));
    let error = record.error.unwrap();
    assert_eq!((error.error_code, error.details["step"].as_str()), (ErrorCode::AgentTimeout, Some("a")));
    for step in [2, 3] {
        let error = record.steps[step].error.clone().unwrap();
        assert_eq!(error.details["culprit"], "a");
    }
    assert!(world.aborted.is_empty());
}

#[test]
fn what_a_step_does_with_a_failure() {
    let code = ErrorCode::AgentTimeout;
    for (step, want) in [
        ("", ("failed", vec!["a failed", "b cancelled"], vec![])),
        ("optional = true", ("completed_degraded", vec!["a skipped", "b succeeded"], vec!["a error skip"])),
        ("on = { error = \"skip\" }", ("completed_degraded", vec!["a skipped", "b succeeded"], vec!["a error skip"])),
        (
            "on = { error = \"default\" }\ndefault = { x = 1 }",
            ("completed_degraded", vec!["a degraded", "b succeeded"], vec!["a error default"]),
        ),
        ("optional = true\non = { error = \"fail\" }", ("failed", vec!["a failed", "b cancelled"], vec![])),
        ("on = { deadline = \"skip\" }", ("failed", vec!["a failed", "b cancelled"], vec![])),
    ] {
        let text = format!(
            "[[step]]\nid = \"a\"\nagent = \"a\"\n{step}\n[[step]]\nid = \"b\"\nagent = \"b\"\nin = {{ a = \"steps.a.output\", s = \"steps.a.status\" }}\n"
        );
        let world = World::new(&text, nothing()).agent("a", [bad(5, code)]).run();
        assert_eq!(
            (world.status().as_str(), world.steps(), world.degraded()),
            (want.0, strings(&want.1), strings(&want.2)),
            "{step}"
        );
    }
}

fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

#[test]
fn a_default_is_what_others_see() {
    let text = "[[step]]\nid = \"a\"\nagent = \"a\"\non = { error = \"default\" }\ndefault = { x = 7 }\n[[step]]\nid = \"b\"\nagent = \"b\"\nin = { x = \"steps.a.output.x\", s = \"steps.a.status\" }\n";
    let world = World::new(text, nothing()).agent("a", [bad(5, ErrorCode::AgentBadReply)]).run();
    assert_eq!(world.calls[1].2, json!({ "s": "degraded", "x": 7 }));
    let data = world.data(EventType::StepDegraded, Some("a"));
    assert_eq!(data[0]["action"], "default");
    assert_eq!(data[0]["error_code"], "AGENT_BAD_REPLY");
}

#[test]
fn conditions_skip_without_degrading() {
    let text = "[inputs]\nnotes = \"text?\"\n[[step]]\nid = \"a\"\nagent = \"a\"\nwhen = \"input.notes\"\n[[step]]\nid = \"b\"\nagent = \"b\"\nin = { a = \"steps.a.output\", s = \"steps.a.status\" }\n";
    let world = World::new(text, nothing()).run();
    assert_eq!(world.status(), RunStatus::Completed);
    assert_eq!(world.steps(), ["a skipped", "b succeeded"]);
    assert_eq!(world.calls[0].2, json!({ "a": null, "s": "skipped" }));
    assert_eq!(world.data(EventType::StepSkipped, Some("a"))[0]["why"], "when");
    let world = World::new(text, json!({ "notes": "x" })).run();
    assert_eq!(world.steps(), ["a succeeded", "b succeeded"]);
}

#[test]
fn an_expression_that_fails_names_its_line() {
    for (step, place) in [
        ("in = { x = \"input.data.missing\" }", "test.toml:9: step.a.in.x"),
        ("when = \"input.data.missing\"", "test.toml:9: step.a.when"),
        ("map = { over = \"input.data.missing\", as = \"item\" }", "test.toml:9: step.a.map.over"),
    ] {
        let text = format!("[inputs]\ndata = \"json\"\n[[step]]\nid = \"a\"\nagent = \"a\"\n{step}\n");
        let world = World::new(&text, json!({ "data": {} })).run();
        let error = world.record().error.unwrap();
        assert_eq!((world.status(), error.error_code), (RunStatus::Failed, ErrorCode::InvalidRequest), "{step}");
        assert_eq!(error.details["place"], place);
        assert!(error.message.starts_with(place), "{}", error.message);
        assert!(world.calls.is_empty());
    }
    let world = World::with_head("output = { x = \"steps.a.output.missing\" }", &chain(&["a"]), nothing()).run();
    let error = world.record().error.unwrap();
    assert_eq!((world.status(), error.error_code), (RunStatus::Failed, ErrorCode::InvalidRequest));
    assert_eq!(error.details["place"], "test.toml:3: workflow.output.x");
    assert_eq!(world.steps(), ["a succeeded"]);
}

#[test]
fn the_deadline_ends_everything() {
    let text = format!("{}timeout = \"7s\"\n", chain(&["a", "b"]));
    let mut world = World::with_head("output = \"1\"\ndeadline = \"30s\"", &text, nothing())
        .agent("a", [good(29_000, json!(1))])
        .agent("b", [Answer::Hangs])
        .run();
    assert_eq!(world.status(), RunStatus::TimedOut);
    assert_eq!(world.steps(), ["a succeeded", "b cancelled"]);
    assert_eq!(world.record().error.unwrap().error_code, ErrorCode::DeadlineExceeded);
    assert_eq!(world.run_events(), ["0 run.started", "30000 run.finished"]);
    assert_eq!(world.aborted, [StepKey { step: 1, index: None, iteration: 0 }]);
    assert_eq!(cut_attempts(&world, "b"), [(1_029_000, 1_000, Some("DEADLINE_EXCEEDED".to_owned()))]);
    assert_eq!(world.plan().deadline(), Timestamp::from_millis(30_000));
}

#[test]
fn the_smaller_deadline_holds() {
    let agents = AGENTS.iter().map(|name| Name::try_new(name).unwrap()).collect();
    let workflow = WorkflowBuilder::new("w")
        .deadline(Duration::from_secs(60))
        .output("1")
        .step(StepBuilder::new("a", "a").timeout(Duration::from_secs(7)))
        .build(&agents)
        .unwrap();
    let workflow = Arc::new(workflow);
    for (given, want_ms) in [(None, 60_000), (Some(5), 5_000), (Some(100), 60_000)] {
        let seed = seed(given.map(Duration::from_secs));
        let mut plan = RunPlan::new(Arc::clone(&workflow), &serde_json::Map::new(), seed).unwrap();
        assert_eq!(plan.deadline(), Timestamp::from_millis(want_ms));
        plan.start(Timestamp::ZERO, &super::world::TestGates::default());
        let call_until_ms = 1_000_000 + want_ms.min(7_000);
        assert_eq!(plan.why(), Some(Why::Call { agent: "a".to_owned(), deadline_ms: call_until_ms }));
    }
}

/// Begin, length and code of a step's attempts.
fn cut_attempts(world: &World, id: &str) -> Vec<(u64, u64, Option<String>)> {
    let record = world.record();
    let step = record.steps.iter().find(|step| step.id == id).unwrap();
    step.attempts.iter().map(|attempt| (attempt.started_ms, attempt.duration_ms, attempt.error_code.clone())).collect()
}

#[test]
fn cancelling_ends_at_once_and_late_news_changes_nothing() {
    let mut world = World::new(DIAMOND, nothing()).agent("b", [good(100, json!(1))]).cancelled_at(50).run();
    assert_eq!(world.status(), RunStatus::Cancelled);
    assert_eq!(world.steps(), ["a succeeded", "b cancelled", "c succeeded", "d cancelled"]);
    assert_eq!(world.run_events(), ["0 run.started", "50 run.finished"]);
    assert_eq!(cut_attempts(&world, "b"), [(1_000_000, 50, Some("CANCELLED".to_owned()))]);
    assert_eq!(cut_attempts(&world, "d"), []);
    let before = world.record();
    let key = StepKey { step: 1, index: None, iteration: 0 };
    let gates = super::world::TestGates::default();
    let later = Timestamp::from_millis(60);
    let done = CallDone { output: json!(1), usage: None, attempts: Vec::new(), instead: None };
    assert!(world.plan().replied(key, Ok(done), later, &gates).is_empty());
    assert!(world.plan().wake(later, &gates).is_empty());
    assert!(world.plan().cancel(later).is_empty());
    assert!(world.plan().start(later, &gates).is_empty());
    assert!(world.plan().gate_changed(&Name::try_new("a").unwrap(), later, &gates).is_empty());
    assert_eq!(world.record(), before);
}

#[test]
fn news_of_unknown_calls_changes_nothing() {
    let agents = AGENTS.iter().map(|name| Name::try_new(name).unwrap()).collect();
    let workflow = WorkflowBuilder::new("w").output("1").step(StepBuilder::new("a", "a")).build(&agents).unwrap();
    let mut plan = RunPlan::new(Arc::new(workflow), &serde_json::Map::new(), seed(None)).unwrap();
    let gates = super::world::TestGates::default();
    let key = StepKey { step: 0, index: None, iteration: 0 };
    let failure = || failed(ErrorCode::AgentTimeout, None, Resend::Never);
    assert!(plan.replied(key, Err(failure()), Timestamp::ZERO, &gates).is_empty(), "not started");
    assert!(!plan.start(Timestamp::ZERO, &gates).is_empty());
    for strange in [
        StepKey { step: 9, ..key },
        StepKey { iteration: 1, ..key },
        StepKey { index: Some(0), ..key },
        StepKey { index: Some(u32::MAX), ..key },
    ] {
        assert!(plan.replied(strange, Err(failure()), Timestamp::ZERO, &gates).is_empty(), "{strange:?}");
        plan.line_left(strange, Timestamp::ZERO);
    }
    assert_eq!(plan.status(), RunStatus::Running);
    assert_eq!(plan.record().steps[0].status, StepStatus::Running);
}

#[test]
fn an_answer_at_the_last_moment_counts() {
    let world = World::with_head("output = \"steps.a.output\"\ndeadline = \"1s\"", &chain(&["a"]), nothing())
        .agent("a", [good(999, json!(1))])
        .run();
    assert_eq!(world.status(), RunStatus::Completed);
    let world = World::with_head("output = \"steps.b.output\"\ndeadline = \"1s\"", &chain(&["a", "b"]), nothing())
        .agent("a", [good(999, json!(1))])
        .run();
    assert_eq!(world.status(), RunStatus::TimedOut);
    assert_eq!(world.called(), ["0 a", "999 b"]);
}

#[test]
fn an_answer_after_the_deadline_begins_nothing() {
    let agents = AGENTS.iter().map(|name| Name::try_new(name).unwrap()).collect();
    let gates = super::world::TestGates::default();
    for (steps, want) in [(&["a"][..], RunStatus::Completed), (&["a", "b"], RunStatus::TimedOut)] {
        let text = format!("[workflow]\nname = \"w\"\noutput = \"1\"\n{}", chain(steps));
        let workflow = crate::workflow::check::load("w.toml", text.as_bytes(), &agents).unwrap();
        let mut plan = RunPlan::new(Arc::new(workflow), &serde_json::Map::new(), seed(None)).unwrap();
        plan.start(Timestamp::ZERO, &gates);
        let key = StepKey { step: 0, index: None, iteration: 0 };
        let done = CallDone { output: json!(1), usage: None, attempts: Vec::new(), instead: None };
        // The timer of the deadline was due as well, but this news was first in the mailbox.
        let late = plan.deadline().after(Duration::from_millis(1));
        let actions = plan.replied(key, Ok(done), late, &gates);
        assert!(!actions.iter().any(|action| matches!(action, Action::Call(_) | Action::Abort(_))), "{actions:?}");
        assert_eq!((plan.status(), actions.last()), (want, Some(&Action::Finished)));
        assert_eq!(plan.record().steps[0].status, StepStatus::Succeeded, "what was answered is kept");
    }
}

#[test]
fn an_output_beyond_the_limit_is_a_bad_reply() {
    let large = json!("x".repeat(crate::workflow::definition::OUTPUT_BYTES_MAX));
    let world = World::new(&chain(&["a"]), nothing()).agent("a", [good(1, large)]).run();
    assert_eq!(world.record().error.unwrap().error_code, ErrorCode::AgentBadReply);
    assert_eq!(world.record().steps[0].output, None);
}

#[test]
fn an_input_that_does_not_fit_is_told_at_once() {
    let agents = AGENTS.iter().map(|name| Name::try_new(name).unwrap()).collect();
    let workflow = "[workflow]\nname = \"w\"\noutput = \"1\"\n[inputs]\nphotos = \"files\"\nnotes = \"text?\"\n[[step]]\nid = \"a\"\nagent = \"a\"\n";
    let workflow = Arc::new(crate::workflow::check::load("w.toml", workflow.as_bytes(), &agents).unwrap());
    for (input, want) in [
        (json!({ "photos": [] }), None),
        (json!({ "photos": ["a.jpg"], "notes": null }), None),
        (json!({}), Some("w: input \"photos\" (files) is missing")),
        (json!({ "photos": "a.jpg" }), Some("w: input \"photos\" must be a list of files")),
        (
            json!({ "photo": [], "notes": 3 }),
            Some(
                "w: input \"notes\" must be a text; input \"photos\" (files) is missing; the workflow has no input \"photo\"; did you mean \"photos\"?",
            ),
        ),
    ] {
        let Value::Object(input) = input else { unreachable!() };
        let told = RunPlan::new(Arc::clone(&workflow), &input, seed(None)).err().map(|envelope| envelope.message);
        assert_eq!(told.as_deref(), want);
    }
}
