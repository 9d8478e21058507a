//! Tests of parsing and checking together: what a file says, and what its author is told.

use std::{collections::BTreeSet, time::Duration};

use proptest::prelude::*;
use serde_json::json;

use super::{
    builder::{StepBuilder, WorkflowBuilder},
    check::load,
    checked::Workflow,
    definition::{InputKind, Join, MapDefinition, OnCause, STEPS_MAX},
    problem::InvalidWorkflow,
};
use crate::model::{name::Name, run::Cause};

fn agents() -> BTreeSet<Name> {
    ["photos", "style", "draft", "review", "meta"].iter().map(|name| Name::try_new(name).unwrap()).collect()
}

fn read(text: &str) -> Result<Workflow, InvalidWorkflow> {
    load("w.toml", text.as_bytes(), &agents())
}

const BLOG: &str = r#"
[workflow]
name = "blog"
deadline = "15m"
output = { markdown = "steps.draft.output.text", facts = "steps.photos.output" }

[inputs]
photos = "files"
notes = "text?"

[[step]]
id = "photos"
agent = "photos"
in = { file = "photo", at = "index" }
map = { over = "input.photos", as = "photo", parallel = 3, join = "best_effort:20s" }

[[step]]
id = "draft"
agent = "draft"
in = { facts = "steps.photos.output", notes = "input.notes", feedback = "revision.feedback if revision else none" }
timeout = "60s"
on = { cold = "wait", error = "default" }
default = { text = "" }

[[step]]
id = "review"
agent = "review"
in = { draft = "steps.draft.output.text" }
optional = true
when = "input.notes"
revise = { step = "draft", until = "output.score >= 80", max = 3 }
"#;

fn blog_in_rust() -> WorkflowBuilder {
    WorkflowBuilder::new("blog")
        .input("photos", InputKind::Files)
        .optional_input("notes", InputKind::Text)
        .step(StepBuilder::new("photos", "photos").input([("at", "index"), ("file", "photo")]).map(
            MapDefinition::new("input.photos", "photo").parallel(3).join(Join::BestEffort(Duration::from_secs(20))),
        ))
        .step(
            StepBuilder::new("draft", "draft")
                .input([
                    ("facts", "steps.photos.output"),
                    ("notes", "input.notes"),
                    ("feedback", "revision.feedback if revision else none"),
                ])
                .timeout(Duration::from_secs(60))
                .on(Cause::Cold, OnCause::Wait)
                .on(Cause::Error, OnCause::Default)
                .default_output(json!({ "text": "" })),
        )
        .step(
            StepBuilder::new("review", "review")
                .input([("draft", "steps.draft.output.text")])
                .optional()
                .when("input.notes")
                .revise("draft", "output.score >= 80", 3),
        )
        .output([("markdown", "steps.draft.output.text"), ("facts", "steps.photos.output")])
}

#[test]
fn a_whole_workflow_is_read() {
    let workflow = read(BLOG).unwrap();
    assert_eq!(workflow.name().as_str(), "blog");
    let needs: Vec<&[usize]> = workflow.steps().iter().map(super::checked::Step::needs).collect();
    assert_eq!(needs, [&[][..], &[0], &[1]]);
    assert_eq!(workflow.steps()[1].on(Cause::Error), OnCause::Default);
    assert_eq!(workflow.steps()[1].on(Cause::Budget), OnCause::Wait);
    assert_eq!(workflow.steps()[2].on(Cause::Budget), OnCause::Skip);
    assert_eq!(workflow.loops[0].members, [1, 2]);
}

#[test]
fn rust_and_toml_have_one_hash() {
    let from_toml = read(BLOG).unwrap();
    let from_rust = blog_in_rust().build(&agents()).unwrap();
    assert_eq!(from_toml.definition(), from_rust.definition());
    assert_eq!(from_toml.hash(), from_rust.hash());
    // Pinned: a run keeps its version by this hash, so a change of form must be meant and named in `hash::FORM`.
    assert_eq!(from_toml.hash(), "bdde1faf19fafcba7bef637276bd8200fd7c577d69cdf42e368c0ceac17e9f3c");
}

#[test]
fn layout_and_written_defaults_do_not_change_the_hash_but_meaning_does() {
    let hash = |text: &str| read(text).unwrap().hash().to_owned();
    let plain = hash(BLOG);
    for same in [
        BLOG.replace("deadline = \"15m\"\n", ""),
        BLOG.replace("\"15m\"", "\"900s\""),
        BLOG.replace("id = \"draft\"", "# a comment\nid   =   'draft'"),
        BLOG.replace("timeout = \"60s\"", "timeout = \"1m\"\noptional = false\neffects = \"repeatable\"\nneeds = []"),
        BLOG.replace("max = 3", "max = 3, score = \"output.score\""),
        BLOG.replace("{ draft = \"steps.draft.output.text\" }", "{ \"draft\" = \"steps.draft.output.text\" }"),
    ] {
        assert_eq!(hash(&same), plain, "{same}");
    }
    let mut hashes = BTreeSet::from([plain]);
    for other in [
        BLOG.replace("\"15m\"", "\"16m\""),
        BLOG.replace("max = 3", "max = 2"),
        BLOG.replace("parallel = 3", "parallel = 2"),
        BLOG.replace("best_effort:20s", "best_effort:21s"),
        BLOG.replace("\"best_effort:20s\"", "\"all\""),
        BLOG.replace("\"best_effort:20s\"", "\"quorum:1\""),
        BLOG.replace("\"best_effort:20s\"", "\"quorum:2\""),
        BLOG.replace("\"best_effort:20s\"", "\"first_good\""),
        BLOG.replace("text = \"\" }", "text = \" \" }"),
        BLOG.replace("optional = true", ""),
        BLOG.replace("text?", "text"),
        BLOG.replace("text?", "json?"),
        BLOG.replace("cold = \"wait\"", "cold = \"fail\""),
        BLOG.replace("optional = true", "optional = true\neffects = \"once\""),
        BLOG.replace("optional = true", "optional = true\nneeds = [\"photos\"]"),
    ] {
        assert!(hashes.insert(hash(&other)), "{other}");
    }
}

/// One change of the workflow above, and how the one thing that its author is told begins.
fn check_told(from: &str, to: &str, want: &str) -> Result<(), String> {
    let text = BLOG.replacen(from, to, 1);
    assert_ne!(text, BLOG, "{from}");
    let told = read(&text).err().map(|error| error.to_string()).unwrap_or_default();
    let fits = told.starts_with(want) && told.lines().count() == 1;
    if fits { Ok(()) } else { Err(format!("{from} -> {to}\n  told {told}\n  want {want}")) }
}

#[test]
fn each_fault_is_told_with_its_place() {
    let mut wrong = Vec::new();
    for (from, to, want) in [
        ("name = \"blog\"", "name = \"my blog\"", "w.toml:3: workflow.name = \"my blog\": must be 1 to 64 letters"),
        ("\"15m\"", "\"8h20\"", "w.toml:4: workflow.deadline = \"8h20\": must have a unit"),
        ("\"15m\"", "\"200h\"", "w.toml:4: workflow.deadline = \"200h\": must be longer than 0 and at most 7 days"),
        (
            "steps.photos.output\" }",
            "steps.photo.output\" }",
            "w.toml:5: workflow.output.facts = \"steps.photo.output\": names the unknown step \"photo\"; did you mean \"photos\"?",
        ),
        (
            "notes = \"text?\"",
            "notes = \"words\"",
            "w.toml:9: inputs.notes = \"words\": must be \"files\", \"text\" or \"json\"",
        ),
        (
            "notes = \"text?\"",
            "notes = \"text?\"\nmy-notes = \"text?\"",
            "w.toml:10: inputs.my-notes: the name must be ASCII letters",
        ),
        ("id = \"review\"", "id = \"1\"", "w.toml:26: step.1.id = \"1\": must be ASCII letters"),
        (
            "file = \"photo\"",
            "file = \"photos\"",
            "w.toml:14: step.photos.in.file = \"photos\": names the unknown \"photos\"; did you mean \"photo\"?",
        ),
        ("file = \"photo\"", "file = 3", "w.toml:14: step.photos.in.file = 3: must be a text in quotes"),
        (
            "over = \"input.photos\"",
            "over = \"input.photo\"",
            "w.toml:15: step.photos.map.over = \"input.photo\": names the unknown input \"photo\"; did you mean \"photos\"?",
        ),
        (
            "over = \"input.photos\"",
            "over = \"[photo]\"",
            "w.toml:15: step.photos.map.over = \"[photo]\": names the unknown \"photo\"",
        ),
        ("over = \"input.photos\", ", "", "w.toml:15: step.photos.map.over: is missing"),
        (
            "\"photo\", at = \"index\" }\nmap = { over = \"input.photos\", as = \"photo\"",
            "\"index\", at = \"index\" }\nmap = { over = \"input.photos\", as = \"steps\"",
            "w.toml:15: step.photos.map.as = \"steps\": is taken",
        ),
        ("parallel = 3", "parallel = 0", "w.toml:15: step.photos.map.parallel = 0: must be 1 to 1000"),
        ("parallel = 3", "parallel = -1", "w.toml:15: step.photos.map.parallel = -1: must be a whole number"),
        ("best_effort:20s", "quorum:0", "w.toml:15: step.photos.map.join = quorum:0: must be 1 to 10000 items"),
        ("best_effort:20s", "quorum:10001", "w.toml:15: step.photos.map.join = quorum:10001: must be 1 to 10000 items"),
        (
            "best_effort:20s",
            "quorum:most",
            "w.toml:15: step.photos.map.join = \"quorum:most\": must name a whole number of items",
        ),
        (
            "best_effort:20s",
            "best_effort:20",
            "w.toml:15: step.photos.map.join = \"best_effort:20\": \"20\" must have a unit",
        ),
        ("best_effort:20s", "best_effort:0s", "w.toml:15: step.photos.map.join = \"0s\": must be longer than 0"),
        ("best_effort:20s", "most", "w.toml:15: step.photos.map.join = \"most\": must be \"all\", \"first_good\""),
        (
            "agent = \"draft\"",
            "agent = \"draf\"",
            "w.toml:19: step.draft.agent = \"draf\": there is no such agent; did you mean \"draft\"?",
        ),
        (
            "input.notes\",",
            "input.nots\",",
            "w.toml:20: step.draft.in.notes = \"input.nots\": names the unknown input \"nots\"; did you mean \"notes\"?",
        ),
        ("input.notes\",", "input.notes +\",", "w.toml:20: step.draft.in.notes = \"input.notes +\": syntax error"),
        (
            "input.notes\",",
            "input.notes | shout\",",
            "w.toml:20: step.draft.in.notes = \"input.notes | shout\": there is no filter \"shout\"",
        ),
        (
            "facts = \"steps.photos.output\", n",
            "facts = \"steps.photos\", n",
            "w.toml:20: step.draft.in.facts = \"steps.photos\": must name a step's output in full: steps.<id>.output",
        ),
        (
            "facts = \"steps.photos.output\", n",
            "facts = \"steps[input.notes]\", n",
            "w.toml:20: step.draft.in.facts = \"steps[input.notes]\": must name a step's output in full",
        ),
        (
            "facts = \"steps.photos.output\", n",
            "facts = \"steps.photos.outputs\", n",
            "w.toml:20: step.draft.in.facts = \"steps.photos.outputs\": a step has `output` and `status`, not \"outputs\"",
        ),
        ("timeout =", "tiemout =", "w.toml:21: step.draft.tiemout = \"60s\": unknown key"),
        (
            "timeout = \"60s\"",
            "timeout = 60",
            "w.toml:21: step.draft.timeout = 60: must be a duration in quotes, as in \"30s\"",
        ),
        ("timeout = \"60s\"", "timeout = \"0s\"", "w.toml:21: step.draft.timeout = \"0s\": must be longer than 0"),
        (
            "timeout = \"60s\"",
            "workflow = \"sub\"",
            "w.toml:21: step.draft.workflow = \"sub\": sub-workflows are not built yet",
        ),
        (
            "timeout = \"60s\"",
            "needs = [\"photo\"]",
            "w.toml:21: step.draft.needs = [\"photo\"]: there is no step \"photo\"; did you mean \"photos\"?",
        ),
        (
            "timeout = \"60s\"",
            "needs = \"photos\"",
            "w.toml:21: step.draft.needs = \"photos\": must be a list of texts",
        ),
        (
            "timeout = \"60s\"",
            "needs = [\"draft\"]",
            "w.toml:17: step.draft: the steps wait for each other in a cycle: draft needs draft;",
        ),
        (
            "timeout = \"60s\"",
            "needs = [\"review\"]",
            "w.toml:17: step.draft: the steps wait for each other in a cycle: draft needs review needs draft;",
        ),
        (
            "timeout = \"60s\"",
            "effects = \"twice\"",
            "w.toml:21: step.draft.effects = \"twice\": must be \"repeatable\" or \"once\"",
        ),
        ("cold =", "colt =", "w.toml:22: step.draft.on.colt = \"wait\": unknown key; did you mean \"cold\"?"),
        (
            "cold = \"wait\"",
            "deadline = \"lighter\"",
            "w.toml:22: step.draft.on.deadline = \"lighter\": a lighter target is not asked once time is up",
        ),
        (
            "cold = \"wait\"",
            "cold = \"waits\"",
            "w.toml:22: step.draft.on.cold = \"waits\": must be one of wait, skip, default, lighter, deferred, notice, fail; did you mean \"wait\"?",
        ),
        (
            "error = \"default\"",
            "error = \"wait\"",
            "w.toml:22: step.draft.on.error = \"wait\": waiting does not mend this",
        ),
        (
            "error = \"default\"",
            "deadline = \"wait\"",
            "w.toml:22: step.draft.on.deadline = \"wait\": waiting does not mend this",
        ),
        ("default = { text = \"\" }", "", "w.toml:22: step.draft.on.error = \"default\": the step has no `default`"),
        (
            "default = { text = \"\" }",
            "default = nan",
            "w.toml:23: step.draft.default = nan: must be a value that JSON can hold",
        ),
        (
            "id = \"review\"",
            "id = \"draft\"",
            "w.toml:26: step.draft.id = \"draft\": another step has this id: w.toml:18: step.draft.id",
        ),
        (
            "when = \"input.notes\"",
            "when = \"index\"",
            "w.toml:30: step.review.when = \"index\": names the unknown \"index\"",
        ),
        ("optional = true", "optional = \"yes\"", "w.toml:29: step.review.optional = \"yes\": must be true or false"),
        (
            "step = \"draft\", until",
            "step = \"drft\", until",
            "w.toml:31: step.review.revise.step = \"drft\": there is no step \"drft\"; did you mean \"draft\"?",
        ),
        (
            "step = \"draft\", until",
            "step = \"review\", until",
            "w.toml:31: step.review.revise.step = \"review\": must be a step that this one depends on",
        ),
        (
            "until = \"output.score >= 80\"",
            "until = \"steps.draft.output.ok\"",
            "w.toml:31: step.review.revise.until = \"steps.draft.output.ok\": cannot name other steps here",
        ),
        ("max = 3", "max = 21", "w.toml:31: step.review.revise.max = 21: must be 1 to 20"),
        ("max = 3", "max = 0", "w.toml:31: step.review.revise.max = 0: must be 1 to 20"),
        (", max = 3", "", "w.toml:31: step.review.revise.max: is missing"),
        (
            "\"steps.draft.output.text\" }\noptional",
            "\"draft\" }\nmap = { over = \"[1]\", as = \"draft\" }\nneeds = [\"draft\"]\noptional",
            "w.toml:33: step.review.revise: a step with `map` has no one output to judge",
        ),
        (
            "file = \"photo\"",
            "file = \"revision.candidate or revision\"",
            "w.toml:14: step.photos.in.file = \"revision.candidate or revision\": names `revision`",
        ),
    ] {
        wrong.extend(check_told(from, to, want).err());
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn loops_are_kept_apart() {
    let text = format!(
        "{BLOG}\n[[step]]\nid = \"second\"\nagent = \"review\"\nin = {{ a = \"steps.review.output\" }}\nrevise = {{ step = \"draft\", until = \"output.ok\", max = 1 }}\n"
    );
    let told = read(&text).unwrap_err().to_string();
    assert_eq!(told, "w.toml:37: step.second.revise.step = \"draft\": step \"draft\" would be run again by two loops");
}

#[test]
fn what_is_no_workflow_at_all() {
    for (text, want) in [
        ("", "workflow: is missing"),
        ("[workflow", "w.toml:1: TOML: "),
        ("workflow = 3\nstep = 4", "w.toml:1: workflow = 3: must be a table"),
        ("[workflow]\nname = \"a\"\nname = \"b\"", "w.toml:3: TOML: duplicate key"),
        ("[workflow]\nname = \"a\"\noutput = \"1\"\n[[step]]\n", "w.toml:4: step.(no. 1).id: is missing"),
        ("[workflow]\nname = \"a\"\noutput = \"1\"\nstep = []\n", "w.toml:4: workflow.step = []: unknown key"),
    ] {
        let told = read(text).unwrap_err().to_string();
        assert!(told.contains(want), "{text:?}: {told}");
    }
    let large = "#".repeat(super::definition::FILE_BYTES_MAX + 1);
    assert_eq!(read(&large).unwrap_err().to_string(), "w.toml:1: file = 1048577 bytes: must be at most 1048576 bytes");
    let no_text = load("w.toml", b"a = 1\nb = \"\xff\"", &agents()).unwrap_err();
    assert_eq!(no_text.to_string(), "w.toml:2: file: must be UTF-8");
}

#[test]
fn there_is_a_limit_to_steps() {
    let mut builder = WorkflowBuilder::new("many").output("1");
    for at in 0..STEPS_MAX {
        builder = builder.step(StepBuilder::new(format!("s{at}"), "draft"));
    }
    assert!(builder.clone().build(&agents()).is_ok());
    let told = builder.step(StepBuilder::new("last", "draft")).build(&agents()).unwrap_err().to_string();
    assert_eq!(told, "step = more than 200 steps: must be at most 200");
}

#[test]
fn a_builder_is_told_without_lines() {
    let told = blog_in_rust().step(StepBuilder::new("more", "nobody").when("input.x")).build(&agents()).unwrap_err();
    let told: Vec<String> = told.problems().iter().map(ToString::to_string).collect();
    assert_eq!(
        told,
        [
            "step.more.agent = \"nobody\": there is no such agent",
            "step.more.when = \"input.x\": names the unknown input \"x\"",
        ]
    );
}

#[test]
fn everything_is_told_in_one_go() {
    let text = BLOG.replace("\"15m\"", "15").replace("\"files\"", "\"file\"").replace("max = 3", "max = 99");
    let lines: Vec<usize> =
        read(&text).unwrap_err().problems().iter().map(|problem| problem.place.as_ref().unwrap().line).collect();
    assert_eq!(lines, [4, 8, 31]);
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(load("w.toml", &bytes, &agents()).is_err());
    }

    /// Any line of a good workflow may be cut out, doubled or cut in the middle: told or read, never a panic.
    #[test]
    fn no_mangled_workflow_panics(at in 0_usize..31, cut in 0_usize..80, kind in 0..4) {
        let mut lines: Vec<String> = BLOG.lines().map(str::to_owned).collect();
        let at = at.min(lines.len() - 1);
        match kind {
            0 => _ = lines.remove(at),
            1 => lines.insert(at, lines[at].clone()),
            2 => lines[at] = lines[at].chars().take(cut).collect(),
            _ => lines[at] = lines[at].chars().skip(cut).collect(),
        }
        if let Err(error) = read(&lines.join("\n")) {
            prop_assert!(!error.problems().is_empty());
            for problem in error.problems() {
                prop_assert!(problem.place.is_some() || problem.value.is_empty(), "{}", problem);
            }
        }
    }

    #[test]
    fn no_value_panics(value in "[\\[\\]{}=\",a-z0-9. '-]{0,40}", key in 0_usize..12) {
        let key = ["id", "agent", "in", "needs", "when", "timeout", "on", "default", "map", "revise", "effects", "optional"][key];
        let _ = read(&format!("{BLOG}\n[[step]]\n{key} = {value}\n"));
    }
}

#[test]
fn nothing_later_is_said_of_what_is_broken_already() {
    let told = read("[workflow]\nname = 3\n[[step]]\nid = \"a\"\nagent = true\n").unwrap_err();
    let told: Vec<String> = told.problems().iter().map(ToString::to_string).collect();
    assert_eq!(
        told,
        [
            "w.toml:1: workflow.output: is missing",
            "w.toml:2: workflow.name = 3: must be a text in quotes",
            "w.toml:5: step.a.agent = true: must be a text in quotes",
        ]
    );
}

/// One slip is told once: what only follows from it is not.
#[test]
fn what_only_follows_from_a_slip_is_not_told() {
    let good = "[workflow]\nname = \"a\"\noutput = \"steps.review.output\"\n[[step]]\nid = \"draft\"\nagent = \"draft\"\nin = {}\n\
        [[step]]\nid = \"review\"\nagent = \"review\"\nin = { text = \"steps.draft.output\" }\n\
        revise = { step = \"draft\", until = \"output.score >= 80\", max = 3 }\n";
    let agents = ["draft", "review"].map(|agent| Name::try_new(agent).unwrap()).into();
    assert!(load("w.toml", good.as_bytes(), &agents).is_ok());
    for (from, to, line) in [
        ("steps.draft.output", "steps.drft.output", "w.toml:11: step.review.in.text"),
        ("steps.draft.output", "stps.draft.output", "w.toml:11: step.review.in.text"),
        ("steps.draft.output", "steps.draft.", "w.toml:11: step.review.in.text"),
        ("agent = \"draft\"", "agnet = \"draft\"", "w.toml:6: step.draft.agnet"),
        ("output = \"steps.review", "ouput = \"steps.review", "w.toml:3: workflow.ouput"),
        ("until = ", "utnil = ", "w.toml:12: step.review.revise.utnil"),
        ("id = \"draft\"", "id = 7", "w.toml:5: step.(no. 1).id"),
        ("[[step]]\nid = \"draft\"", "[[setp]]\nid = \"draft\"", "w.toml:4: setp"),
    ] {
        let refused = load("w.toml", good.replacen(from, to, 1).as_bytes(), &agents).unwrap_err().to_string();
        let lines: Vec<&str> = refused.lines().collect();
        assert!(lines.len() == 1 && lines[0].starts_with(line), "{to}: {lines:#?}");
    }
}
