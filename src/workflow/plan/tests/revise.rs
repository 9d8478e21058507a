//! Revision loops: best so far, and why they stop.

use serde_json::{Value, json};

use super::world::{Answer, World, bad, good, refused};
use crate::model::{envelope::ErrorCode, event::EventType, run::RunStatus};

fn text(max: u32, draft: &str, review: &str) -> String {
    format!(
        r#"
[[step]]
id = "draft"
agent = "draft"
in = {{ before = "revision.candidate if revision else none", feedback = "revision.feedback.say if revision else none", n = "revision.iteration if revision else 0" }}
{draft}
[[step]]
id = "polish"
agent = "a"
in = "steps.draft.output"
[[step]]
id = "review"
agent = "review"
in = "steps.polish.output"
{review}
revise = {{ step = "draft", until = "output.score >= 80", max = {max} }}
[[step]]
id = "meta"
agent = "b"
in = {{ text = "steps.draft.output", score = "steps.review.output.score if steps.review.output else none" }}
"#
    )
}

fn world(max: u32, draft: &str, review: &str) -> World {
    let head = "output = { text = \"steps.draft.output\", polished = \"steps.polish.output\", meta = \"steps.meta.output.score\" }";
    World::with_head(head, &text(max, draft, review), json!({}))
        .agent("draft", (0..9).map(|version| good(10, json!(format!("v{version}")))))
}

fn score(points: u32) -> Answer {
    good(10, json!({ "score": points, "say": format!("only {points}") }))
}

/// Scores of the reviewer, and: drafts made, text that counts, its score, why it stopped.
fn check(max: u32, scores: &[u32], want: (usize, &str, u32, &str)) {
    let world = world(max, "", "").agent("review", scores.iter().copied().map(score)).run();
    let output = world.record().output.unwrap();
    let drafts = world.calls.iter().filter(|(_, agent, _)| agent == "draft").count();
    let stop = world.data(EventType::StepFinished, Some("review")).last().unwrap()["revise"].clone();
    assert_eq!(
        (drafts, output["text"].as_str().unwrap(), output["meta"].as_u64().unwrap(), stop["stop"].as_str().unwrap()),
        (want.0, want.1, u64::from(want.2), want.3),
        "{scores:?}"
    );
    assert_eq!(output["text"], output["polished"], "all outputs are of one version");
    assert_eq!(world.status(), RunStatus::Completed);
}

#[test]
fn the_best_version_counts() {
    check(3, &[80], (1, "v0", 80, "passed"));
    check(3, &[50, 90], (2, "v1", 90, "passed"));
    check(3, &[50, 60, 70, 79], (4, "v3", 79, "cap"));
    check(3, &[50, 70, 60, 65], (4, "v1", 70, "cap"));
    check(1, &[70, 60], (2, "v0", 70, "cap"));
    check(9, &[50, 60, 55, 58], (4, "v1", 60, "no_improvement"));
    check(9, &[50, 50, 50], (3, "v0", 50, "no_improvement"));
    check(9, &[50, 40, 60, 50, 85], (5, "v4", 85, "passed"));
}

#[test]
fn a_revision_is_told_of_the_version_before() {
    let world = world(3, "", "").agent("review", [score(50), score(90)]).run();
    let inputs: Vec<&Value> = world.calls.iter().filter(|call| call.1 == "draft").map(|call| &call.2).collect();
    assert_eq!(inputs[0], &json!({ "before": null, "feedback": null, "n": 0 }));
    assert_eq!(inputs[1], &json!({ "before": "v0", "feedback": "only 50", "n": 1 }));
    assert_eq!(
        world.steps(),
        [
            "draft succeeded",
            "draft.1 succeeded",
            "polish succeeded",
            "polish.1 succeeded",
            "review succeeded",
            "review.1 succeeded",
            "meta succeeded",
        ]
    );
    assert_eq!(world.called().last().unwrap(), "60 b", "others wait until the loop is over");
}

#[test]
fn a_reviewer_that_goes_down_later_costs_no_version() {
    let world = world(3, "", "").agent("review", [score(50), bad(5, ErrorCode::AgentTimeout)]).run();
    assert_eq!(world.status(), RunStatus::CompletedDegraded);
    assert_eq!(world.degraded(), ["review error best_so_far"]);
    assert_eq!(world.record().output.unwrap()["text"], "v0");
    let stop = world.data(EventType::StepFinished, Some("review")).last().unwrap()["revise"].clone();
    assert_eq!((stop["stop"].as_str(), stop["best_iteration"].as_u64()), (Some("reviewer_down"), Some(0)));
    assert_eq!(world.record().steps[5].status.as_str(), "degraded");
}

#[test]
fn a_default_or_skip_is_no_better_than_the_best_so_far() {
    for review in ["optional = true", "on = { error = \"default\" }\ndefault = { score = 0 }"] {
        let world = world(3, "", review).agent("review", [score(50), bad(5, ErrorCode::AgentTimeout)]).run();
        assert_eq!(world.degraded(), ["review error best_so_far"], "{review}");
        assert_eq!(world.record().output.unwrap()["meta"], 50);
    }
}

#[test]
fn a_reviewer_that_is_down_at_once_does_what_its_step_says() {
    for (review, status, degraded) in [
        ("", RunStatus::Failed, vec![]),
        ("optional = true", RunStatus::CompletedDegraded, vec!["review error skip"]),
        (
            "on = { error = \"default\" }\ndefault = { score = 0 }",
            RunStatus::CompletedDegraded,
            vec!["review error default"],
        ),
    ] {
        let world = world(3, "", review).agent("review", [bad(5, ErrorCode::AgentTimeout)]).run();
        let degraded: Vec<String> = degraded.iter().map(ToString::to_string).collect();
        assert_eq!((world.status(), world.degraded()), (status, degraded), "{review}");
        assert_eq!(world.calls.iter().filter(|call| call.1 == "draft").count(), 1, "nothing is revised blindly");
    }
}

#[test]
fn a_revision_that_fails_costs_no_version() {
    let script = [good(10, json!("v0")), bad(5, ErrorCode::AgentError)];
    let world = world(3, "", "").agent("draft", script).agent("review", [score(50)]).run();
    assert_eq!(world.degraded(), ["draft error best_so_far"]);
    assert_eq!(world.record().output.unwrap()["text"], "v0");
    let middle = world_with_failing_polish();
    assert_eq!(middle.degraded(), ["polish error best_so_far"]);
    assert_eq!(middle.record().output.unwrap()["polished"], "p0");
}

fn world_with_failing_polish() -> World {
    world(3, "", "")
        .agent("a", [good(1, json!("p0")), bad(5, ErrorCode::AgentError)])
        .agent("review", [score(50)])
        .run()
}

#[test]
fn a_budget_that_ends_is_named() {
    for draft in ["on = { budget = \"fail\" }", ""] {
        let refusal = refused(ErrorCode::TokenBudgetExhausted, 100_000.0);
        let world =
            world(3, draft, "").agent("draft", [good(10, json!("v0")), refusal]).agent("review", [score(50)]).run();
        assert_eq!(world.degraded(), ["draft budget best_so_far"]);
        let stop = world.data(EventType::StepFinished, Some("draft")).last().unwrap()["revise"]["stop"].clone();
        assert_eq!(stop, "budget");
    }
}

#[test]
fn a_revision_waits_like_any_call() {
    let world = world(3, "", "")
        .agent("draft", [good(10, json!("v0")), refused(ErrorCode::AgentCircuitOpen, 30.0), good(10, json!("v1"))])
        .agent("review", [score(50), score(90)])
        .run();
    assert_eq!((world.status(), world.record().output.unwrap()["text"].as_str()), (RunStatus::Completed, Some("v1")));
}

#[test]
fn a_review_that_cannot_be_read_is_a_bad_reply() {
    let world = world(3, "", "").agent("review", [good(10, json!({ "points": 3 }))]).run();
    let error = world.record().error.unwrap();
    assert_eq!((error.error_code, error.agent.as_deref()), (ErrorCode::AgentBadReply, Some("review")));
    assert!(error.message.contains("step.review.revise.until"), "{}", error.message);
    let text = text(3, "", "").replace("output.score >= 80", "output.good");
    let unscored = World::with_head("output = \"steps.draft.output\"", &text, json!({}))
        .agent("draft", (0..4).map(|version| good(10, json!(version))))
        .agent("review", (0..4).map(|_| good(10, json!({ "good": false, "say": "no", "score": "many" }))))
        .run();
    assert_eq!(unscored.record().output, Some(json!(3)), "without scores the latest counts");
}

#[test]
fn a_draft_without_output_of_its_own_is_not_revised() {
    let draft = "on = { error = \"default\" }\ndefault = \"stock text\"";
    let world = world(3, draft, "").agent("draft", [bad(5, ErrorCode::AgentError)]).agent("review", [score(10)]).run();
    assert_eq!(world.degraded(), ["draft error default"]);
    assert_eq!(world.calls.iter().filter(|call| call.1 == "draft").count(), 1);
}

#[test]
fn a_loop_of_maps_keeps_one_version() {
    let text = r#"
[[step]]
id = "draft"
agent = "draft"
in = { part = "part", n = "revision.iteration if revision else 0" }
map = { over = "[1, 2]", as = "part" }
[[step]]
id = "review"
agent = "review"
in = "steps.draft.output"
revise = { step = "draft", until = "output.score >= 80", max = 2 }
"#;
    let world = World::with_head("output = \"steps.draft.output\"", text, json!({}))
        .agent("review", [score(70), score(60), score(50)])
        .run();
    assert_eq!(world.record().output, Some(json!([{ "n": 0, "part": 1 }, { "n": 0, "part": 2 }])));
    assert_eq!(world.steps().len(), 9);
    let failing = World::with_head("output = \"steps.draft.output\"", text, json!({}))
        .agent("draft", [good(1, json!(1)), good(1, json!(2)), good(1, json!(3)), bad(1, ErrorCode::AgentError)])
        .agent("review", [score(70)])
        .run();
    assert_eq!(failing.record().output, Some(json!([1, 2])));
    assert_eq!(failing.degraded(), ["draft error best_so_far"]);
}

#[test]
fn a_failing_run_revises_no_more() {
    let text = format!("{}\n[[step]]\nid = \"other\"\nagent = \"c\"\n", text(3, "", ""));
    let world =
        World::new(&text, json!({})).agent("c", [bad(25, ErrorCode::AgentError)]).agent("review", [score(10)]).run();
    assert_eq!(world.status(), RunStatus::Failed);
    assert_eq!(world.calls.iter().filter(|call| call.1 == "draft").count(), 1);
}
