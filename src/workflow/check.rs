//! The rules of a workflow, all of them, in one go: names, limits, references, cycles, loops. What passes is compiled.

use crate::model::nearest::hint;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::{
    check_loops,
    checked::{About, Condition, Loop, Mapping, Step, Template, Workflow},
    definition::{
        DEADLINE_MAX, DEFAULT_BYTES_MAX, Definition, Effects, ID_BYTES_MAX, INPUTS_MAX, Join, MAP_ITEMS_MAX,
        MapDefinition, OnCause, PARALLEL_MAX, STEPS_MAX, StepDefinition,
    },
    expression::is_function,
    graph::{self, Dependencies},
    hash::hash,
    parse::parse,
    problem::{Findings, InvalidWorkflow, KeyPath, quoted},
    references::{Mentions, Names, RESERVED_NAMES, Scope, StepsInScope},
};
use crate::model::{duration, name::Name, run::Cause};

const IDENTIFIER_RULE: &str = "must be ASCII letters, digits and _, the first no digit, at most 64";
const NAME_RULE: &str = "must be 1 to 64 letters, digits, '-', '_' or '.', the first a letter or digit";

/// Reads and checks a workflow file. `file` is its name in messages, `agents` are the agents that exist.
pub fn load(file: &str, bytes: &[u8], agents: &BTreeSet<Name>) -> Result<Workflow, InvalidWorkflow> {
    load_for(file, bytes, Agents::Known(agents))
}

/// Reads and checks a workflow file that may name these agents. A refusal knows the agents that its steps name.
pub fn load_for(file: &str, bytes: &[u8], agents: Agents<'_>) -> Result<Workflow, InvalidWorkflow> {
    let (definition, findings) = parse(file, bytes)?;
    let named = definition.steps.iter().filter_map(|step| Name::try_new(&step.agent).ok()).collect();
    checked(definition, findings, agents).map_err(|refused| refused.of_agents(named))
}

/// Which agents a workflow may name.
#[derive(Debug, Clone, Copy)]
pub enum Agents<'a> {
    /// These exist; any other is a fault.
    Known(&'a BTreeSet<Name>),
    /// Any: a version that was accepted once stays whole though an agent of it is gone. Its call then fails with `NOT_FOUND`.
    Any,
}

/// Checks a definition that was built in Rust.
pub fn check(definition: Definition, agents: &BTreeSet<Name>) -> Result<Workflow, InvalidWorkflow> {
    check_for(definition, Agents::Known(agents))
}

/// Checks a definition, whoever made it.
pub(super) fn check_for(definition: Definition, agents: Agents<'_>) -> Result<Workflow, InvalidWorkflow> {
    let mut findings = Findings::default();
    for (at, step) in definition.steps.iter().enumerate() {
        findings.step_is_called(at, &step.id);
    }
    checked(definition, findings, agents)
}

/// What is known of a step while it is checked.
struct Draft {
    agent: Option<Name>,
    input: Option<Template>,
    when: Option<Condition>,
    map: Option<Mapping>,
    needs: Vec<usize>,
    /// It names something that is not known, so it may depend on further steps.
    names_unknown: bool,
    revision: BTreeMap<KeyPath, String>,
}

fn checked(definition: Definition, mut findings: Findings, agents: Agents<'_>) -> Result<Workflow, InvalidWorkflow> {
    let name = check_head(&definition, &mut findings);
    check_ids(&definition, &mut findings);
    let names = Names::of(&definition, &findings);
    let scope = Scope { steps: StepsInScope::Named, item: None, further: &[] };
    let output_path = KeyPath::of_workflow("workflow.output");
    let output = names.compile_shape(&mut findings, &output_path, &definition.output, scope, &mut Mentions::default());
    let drafts: Vec<Draft> =
        (0..definition.steps.len()).map(|at| draft(at, &definition.steps[at], &names, agents, &mut findings)).collect();
    let dependencies: Dependencies = drafts.iter().map(|draft| draft.needs.clone()).collect();
    let cycles = graph::cycles(&dependencies);
    for cycle in &cycles {
        add_cycle(&definition, cycle, &mut findings);
    }
    let loops = if cycles.is_empty() {
        let open: Vec<bool> = drafts.iter().map(|draft| draft.names_unknown).collect();
        check_loops::loops(&definition, (&dependencies, &open), &names, &mut findings)
    } else {
        Vec::new()
    };
    let in_loop = members(&loops);
    // A loop that is broken itself was told of; that its members have no `revision` is no news.
    if loops.len() == definition.steps.iter().filter(|step| step.revise.is_some()).count() {
        let outside = drafts.iter().enumerate().filter(|(at, _)| !in_loop.contains_key(at));
        for (path, source) in outside.flat_map(|(_, draft)| &draft.revision) {
            let rule = "names `revision`, which only a step has that some `revise` runs again";
            findings.add(path, &quoted(source), rule);
        }
    }
    drop(names);
    let (Some(name), Some(output), true) = (name, output, findings.is_clean()) else {
        return Err(findings.into_refusal());
    };
    let compiled: Option<Vec<Step>> = drafts
        .into_iter()
        .zip(&definition.steps)
        .enumerate()
        .map(|(at, (draft, step))| finish(draft, step, in_loop.get(&at).copied()))
        .collect();
    let Some(steps) = compiled else { return Err(findings.into_refusal()) };
    let order = graph::order(&dependencies);
    let (hash, lines) = (hash(&definition), findings.into_lines());
    Ok(Workflow { definition, name, hash, output, steps, order, loops, lines })
}

/// For each step that is part of a loop, which.
fn members(loops: &[Loop]) -> HashMap<usize, usize> {
    let members = loops.iter().enumerate();
    members.flat_map(|(place, found)| found.members.iter().map(move |member| (*member, place))).collect()
}

fn finish(draft: Draft, step: &StepDefinition, in_loop: Option<usize>) -> Option<Step> {
    Some(Step {
        id: step.id.as_str().into(),
        agent: draft.agent?,
        input: draft.input?,
        when: draft.when,
        needs: draft.needs,
        presence: step.presence,
        timeout: step.timeout,
        on: Cause::ALL.map(|cause| step.on.get(&cause).copied()),
        default: step.default.clone(),
        map: draft.map,
        effects: step.effects,
        in_loop,
    })
}

fn check_head(definition: &Definition, findings: &mut Findings) -> Option<Name> {
    let path = KeyPath::of_workflow("workflow.name");
    let name = Name::try_new(&definition.name);
    if name.is_err() {
        findings.add(&path, &quoted(&definition.name), NAME_RULE);
    }
    check_duration(&KeyPath::of_workflow("workflow.deadline"), definition.deadline, findings);
    let inputs = KeyPath::of_workflow("inputs");
    if definition.inputs.len() > INPUTS_MAX {
        findings.add(&inputs, &format!("{} inputs", definition.inputs.len()), format!("must be at most {INPUTS_MAX}"));
    }
    for input in definition.inputs.keys().filter(|input| !is_identifier(input)) {
        findings.add(&inputs.child(input), "", format!("the name {IDENTIFIER_RULE}"));
    }
    let steps = KeyPath::of_workflow("step");
    match definition.steps.len() {
        0 => findings.add(&steps, "", "must have at least one step"),
        // The parser stops one step after the limit, so the number itself may not be known.
        count if count > STEPS_MAX => {
            findings.add(&steps, &format!("more than {STEPS_MAX} steps"), format!("must be at most {STEPS_MAX}"));
        }
        _ => {}
    }
    name.ok()
}

fn check_ids(definition: &Definition, findings: &mut Findings) {
    let mut first_with: HashMap<&str, usize> = HashMap::new();
    for (at, step) in definition.steps.iter().enumerate() {
        let path = KeyPath::of_step(at, "id");
        if !is_identifier(&step.id) {
            findings.add(&path, &quoted(&step.id), IDENTIFIER_RULE);
        } else if let Some(first) = first_with.get(step.id.as_str()) {
            let place = findings.place_text(&KeyPath::of_step(*first, "id"));
            findings.add(&path, &quoted(&step.id), format!("another step has this id: {place}"));
        } else {
            first_with.insert(&step.id, at);
        }
    }
}

fn draft(at: usize, step: &StepDefinition, names: &Names<'_>, agents: Agents<'_>, findings: &mut Findings) -> Draft {
    let path = |key: &str| KeyPath::of_step(at, key);
    let agent = agent(step, agents, &path("agent"), findings);
    if let Some(timeout) = step.timeout {
        check_duration(&path("timeout"), timeout, findings);
    }
    check_on(at, step, findings);
    let mut mentions = Mentions::default();
    let plain = Scope { steps: StepsInScope::Named, item: None, further: &["revision"] };
    let map = step.map.as_ref().map(|map| mapping(at, map, names, plain, &mut mentions, findings));
    let scope = Scope { item: step.map.as_ref().map(|map| map.item.as_str()), ..plain };
    let input = names.compile_shape(findings, &path("in"), &step.input, scope, &mut mentions);
    let mut asked = Mentions::default();
    let when = step.when.as_ref().and_then(|when| names.compile(findings, &path("when"), when, scope, &mut asked));
    let when = when.map(|expression| Condition {
        expression,
        steps: asked.steps.iter().copied().collect(),
        about: if asked.item { About::Item } else { About::Step },
    });
    let mut needs: BTreeSet<usize> = mentions.steps.union(&asked.steps).copied().collect();
    for needed in &step.needs {
        if let Some(needed) = names.step(needed) {
            needs.insert(needed);
        } else {
            mentions.unknown = true;
            if let Some(rule) = names.no_step("there is no step", needed) {
                findings.add(&path("needs"), &format!("{:?}", step.needs), rule);
            }
        }
    }
    mentions.revision.append(&mut asked.revision);
    let (needs, names_unknown) = (needs.into_iter().collect(), mentions.unknown || asked.unknown);
    Draft { agent, input, when, map: map.flatten(), needs, names_unknown, revision: mentions.revision }
}

fn agent(step: &StepDefinition, agents: Agents<'_>, path: &KeyPath, findings: &mut Findings) -> Option<Name> {
    let (agent, rule) = match agents {
        Agents::Any => (Name::try_new(&step.agent).ok(), NAME_RULE.to_owned()),
        Agents::Known(known) => {
            let rule = format!("there is no such agent{}", hint(&step.agent, known.iter().map(Name::as_str)));
            (known.get(step.agent.as_str()).cloned(), rule)
        }
    };
    if agent.is_none() {
        findings.add(path, &quoted(&step.agent), rule);
    }
    agent
}

fn mapping(
    at: usize,
    map: &MapDefinition,
    names: &Names<'_>,
    scope: Scope<'_>,
    mentions: &mut Mentions,
    findings: &mut Findings,
) -> Option<Mapping> {
    let path = |key: &str| KeyPath::of_step(at, &format!("map.{key}"));
    if !is_identifier(&map.item) {
        findings.add(&path("as"), &quoted(&map.item), IDENTIFIER_RULE);
    } else if RESERVED_NAMES.contains(&map.item.as_str()) || is_function(&map.item) {
        findings.add(&path("as"), &quoted(&map.item), "is taken: an item needs a name of its own");
    }
    let parallel = map.parallel.unwrap_or(PARALLEL_MAX);
    if !(1..=PARALLEL_MAX).contains(&parallel) {
        findings.add(&path("parallel"), &parallel.to_string(), format!("must be 1 to {PARALLEL_MAX}"));
    }
    match map.join {
        Join::BestEffort(time) => check_duration(&path("join"), time, findings),
        Join::Quorum(items) if items == 0 || items as usize > MAP_ITEMS_MAX => {
            findings.add(&path("join"), &format!("quorum:{items}"), format!("must be 1 to {MAP_ITEMS_MAX} items"));
        }
        Join::All | Join::Quorum(_) | Join::FirstGood => {}
    }
    let over = names.compile(findings, &path("over"), &map.over, scope, mentions)?;
    Some(Mapping { over, item: map.item.clone(), parallel, join: map.join })
}

fn check_on(at: usize, step: &StepDefinition, findings: &mut Findings) {
    for (cause, action) in &step.on {
        let path = KeyPath::of_step(at, &format!("on.{}", cause.as_str()));
        let passes_by_itself = !matches!(cause, Cause::Deadline | Cause::Error);
        if *action == OnCause::Wait && !passes_by_itself {
            let rule = "waiting does not mend this: must be skip, default, lighter, deferred, notice or fail";
            findings.add(&path, &quoted(action.as_str()), rule);
        }
        if let Some(rung) = action.rung() {
            if !rung.can_answer(*cause) {
                let rule =
                    "a lighter target is not asked once time is up: must be skip, default, deferred, notice or fail";
                findings.add(&path, &quoted(action.as_str()), rule);
            } else if step.effects == Effects::Once && !passes_by_itself {
                let rule =
                    "the step has effects = \"once\" and may have acted already: must be skip, default, notice or fail";
                findings.add(&path, &quoted(action.as_str()), rule);
            }
        }
        let has_default = step.default.is_some() || findings.is_broken(&KeyPath::of_step(at, "default"));
        if *action == OnCause::Default && !has_default {
            findings.add(&path, &quoted(action.as_str()), "the step has no `default`");
        }
    }
    let default_bytes = step.default.as_ref().map_or(0, |default| default.to_string().len());
    if default_bytes > DEFAULT_BYTES_MAX {
        let rule = format!("must be at most {DEFAULT_BYTES_MAX} bytes of JSON");
        findings.add(&KeyPath::of_step(at, "default"), &format!("{default_bytes} bytes"), rule);
    }
}

fn check_duration(path: &KeyPath, given: std::time::Duration, findings: &mut Findings) {
    if given.is_zero() || given > DEADLINE_MAX {
        findings.add(path, &quoted(&duration::format(given)), "must be longer than 0 and at most 7 days");
    }
}

fn add_cycle(definition: &Definition, cycle: &[usize], findings: &mut Findings) {
    let ids: Vec<&str> = cycle.iter().map(|step| definition.steps[*step].id.as_str()).collect();
    let Some(first) = cycle.first() else { return };
    let mut rule = format!("the steps wait for each other in a cycle: {}", ids.join(" needs "));
    // Who sends a step back is tempted to have it need what it is told.
    let is_sent_back =
        |step: &StepDefinition| step.revise.as_ref().is_some_and(|back| ids.contains(&back.step.as_str()));
    if definition.steps.iter().any(is_sent_back) {
        rule.push_str("; a step that is sent back by `revise` reads `revision.feedback`");
    }
    findings.add(&KeyPath::of_step(*first, ""), "", rule);
}

fn is_identifier(text: &str) -> bool {
    let starts = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
    let plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    starts && plain && text.len() <= ID_BYTES_MAX
}
