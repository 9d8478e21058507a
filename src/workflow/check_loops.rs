//! Revision loops: which steps run again, and the rules that keep loops apart from each other.

use super::{
    checked::Loop,
    definition::{Definition, REVISIONS_MAX, ReviseDefinition},
    graph::{self, Dependencies},
    problem::{Findings, KeyPath, quoted},
    references::{Mentions, Names, Scope, StepsInScope},
};

/// `dependencies` are the steps that each depends on, and whether it may depend on more.
/// All loops of a workflow without cycles, in the order of their reviewers. Broken ones are noted and left out.
pub(super) fn loops(
    definition: &Definition,
    dependencies: (&Dependencies, &[bool]),
    names: &Names<'_>,
    findings: &mut Findings,
) -> Vec<Loop> {
    let mut loops: Vec<Loop> = Vec::new();
    for (reviewer, step) in definition.steps.iter().enumerate() {
        let Some(revise) = &step.revise else { continue };
        if step.map.is_some() {
            let rule = "a step with `map` has no one output to judge: review its list in a step of its own";
            findings.add(&KeyPath::of_step(reviewer, "revise"), "", rule);
        }
        let Some(found) = one_loop(reviewer, revise, dependencies, names, findings) else { continue };
        let shared = loops.iter().flat_map(|other| &other.members).find(|member| found.members.contains(member));
        if let Some(shared) = shared {
            let id = &definition.steps[*shared].id;
            let rule = format!("step {id:?} would be run again by two loops");
            findings.add(&KeyPath::of_step(reviewer, "revise.step"), &quoted(&revise.step), rule);
        }
        loops.push(found);
    }
    loops
}

fn one_loop(
    reviewer: usize,
    revise: &ReviseDefinition,
    (dependencies, open): (&Dependencies, &[bool]),
    names: &Names<'_>,
    findings: &mut Findings,
) -> Option<Loop> {
    let path = |key: &str| KeyPath::of_step(reviewer, &format!("revise.{key}"));
    let scope = Scope { steps: StepsInScope::Hidden, item: None, further: &["output"] };
    let mut mentions = Mentions::default();
    let until = names.compile(findings, &path("until"), &revise.until, scope, &mut mentions);
    let scored_by = names.compile(findings, &path("score"), &revise.score, scope, &mut mentions);
    if !(1..=REVISIONS_MAX).contains(&revise.revisions_max) {
        findings.add(&path("max"), &revise.revisions_max.to_string(), format!("must be 1 to {REVISIONS_MAX}"));
    }
    let Some(target) = names.step(&revise.step) else {
        if let Some(rule) = names.no_step("there is no step", &revise.step) {
            findings.add(&path("step"), &quoted(&revise.step), rule);
        }
        return None;
    };
    let before_reviewer = graph::ancestors(dependencies, reviewer);
    if !before_reviewer[target] {
        // Where a step between them names what is not known, that is told, and this may only follow.
        let may_depend = |step: usize| (step == reviewer || before_reviewer[step]) && open[step];
        if !(0..dependencies.len()).any(may_depend) {
            findings.add(&path("step"), &quoted(&revise.step), "must be a step that this one depends on");
        }
        return None;
    }
    let members = (0..dependencies.len())
        .filter(|step| {
            let between = before_reviewer[*step] && graph::ancestors(dependencies, *step)[target];
            *step == target || *step == reviewer || between
        })
        .collect();
    Some(Loop { target, reviewer, members, until: until?, score: scored_by?, revisions_max: revise.revisions_max })
}
