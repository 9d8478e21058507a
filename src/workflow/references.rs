//! What an expression may name, depending on where it stands, and what it does name. Dangling references end here.

use crate::model::nearest::hint;
use std::collections::{BTreeMap, BTreeSet};

use super::{
    checked::Template,
    definition::{Definition, FIELDS_MAX, Shape},
    expression::Expression,
    problem::{Findings, KeyPath, quoted},
};

/// Names of a context that no item can take.
pub(super) const RESERVED_NAMES: [&str; 5] = ["input", "steps", "index", "revision", "output"];

/// What can be named everywhere: inputs and steps.
pub(super) struct Names<'d> {
    inputs: BTreeSet<&'d str>,
    steps: BTreeMap<&'d str, usize>,
    /// Some step has no name that could be read: what names none may mean that one.
    may_be_more: bool,
}

/// What can be named at one place beside inputs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scope<'d> {
    /// Whether outputs of steps can be named.
    pub(super) steps: StepsInScope,
    /// The item of a `map`; `index` comes with it.
    pub(super) item: Option<&'d str>,
    /// Further names.
    pub(super) further: &'static [&'static str],
}

/// Whether outputs of steps can be named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StepsInScope {
    /// `steps.<id>.output` and `.status`.
    Named,
    /// Only the reviewer's own output counts here.
    Hidden,
}

/// What an expression names.
#[derive(Debug, Default)]
pub(super) struct Mentions {
    /// Steps.
    pub(super) steps: BTreeSet<usize>,
    /// The item or its index.
    pub(super) item: bool,
    /// Something that is not known: which steps are meant is not known either.
    pub(super) unknown: bool,
    /// Expressions that name `revision`, with their places: only steps of a loop have it, and loops are known later.
    pub(super) revision: BTreeMap<KeyPath, String>,
}

impl<'d> Names<'d> {
    /// Of a definition; of two steps with one id the first counts.
    pub(super) fn of(definition: &'d Definition, findings: &Findings) -> Self {
        let is_nameless = |at: usize| findings.is_broken(&KeyPath::of_step(at, "id"));
        let may_be_more =
            findings.is_broken(&KeyPath::of_workflow("step")) || (0..definition.steps.len()).any(is_nameless);
        let mut steps = BTreeMap::new();
        for (at, step) in definition.steps.iter().enumerate() {
            steps.entry(step.id.as_str()).or_insert(at);
        }
        Self { inputs: definition.inputs.keys().map(String::as_str).collect(), steps, may_be_more }
    }

    /// The step of this id.
    pub(super) fn step(&self, id: &str) -> Option<usize> {
        self.steps.get(id).copied()
    }

    /// What is said of a name that no step has; nothing where it may be that of a step whose own could not be read.
    pub(super) fn no_step(&self, said: &str, id: &str) -> Option<String> {
        let near = hint(id, self.steps.keys().copied());
        (!near.is_empty() || !self.may_be_more).then(|| format!("{said} {id:?}{near}"))
    }

    /// Compiles one expression and checks what it names.
    pub(super) fn compile(
        &self,
        findings: &mut Findings,
        path: &KeyPath,
        source: &str,
        scope: Scope<'_>,
        mentions: &mut Mentions,
    ) -> Option<Expression> {
        let expression = match Expression::compile(source, findings.place_text(path)) {
            Ok(expression) => expression,
            Err(rule) => {
                findings.add(path, &quoted(source), rule);
                mentions.unknown = true;
                return None;
            }
        };
        for reference in expression.references() {
            if let Err(rule) = self.check(path, source, &reference, scope, mentions) {
                findings.add(path, &quoted(source), rule);
                mentions.unknown = true;
            }
        }
        Some(expression)
    }

    /// Compiles a value made of expressions.
    pub(super) fn compile_shape(
        &self,
        findings: &mut Findings,
        path: &KeyPath,
        shape: &Shape,
        scope: Scope<'_>,
        mentions: &mut Mentions,
    ) -> Option<Template> {
        match shape {
            Shape::Value(source) => self.compile(findings, path, source, scope, mentions).map(Template::Value),
            Shape::Table(fields) => {
                if fields.len() > FIELDS_MAX {
                    findings.add(
                        path,
                        &format!("{} keys", fields.len()),
                        format!("must have at most {FIELDS_MAX} keys"),
                    );
                }
                let mut compiled = Vec::with_capacity(fields.len());
                for (key, source) in fields {
                    let expression = self.compile(findings, &path.child(key), source, scope, mentions);
                    compiled.extend(expression.map(|expression| (key.clone(), expression)));
                }
                (compiled.len() == fields.len()).then_some(Template::Table(compiled))
            }
        }
    }

    fn check(
        &self,
        path: &KeyPath,
        source: &str,
        reference: &[String],
        scope: Scope<'_>,
        mentions: &mut Mentions,
    ) -> Result<(), String> {
        let fields: Vec<&str> = reference.iter().map(String::as_str).collect();
        match fields.as_slice() {
            [] | ["input"] => Ok(()),
            ["input", name, ..] if self.inputs.contains(name) => Ok(()),
            ["input", name, ..] => {
                Err(format!("names the unknown input {name:?}{}", hint(name, self.inputs.iter().copied())))
            }
            ["steps", ..] if scope.steps == StepsInScope::Hidden => {
                Err("cannot name other steps here, only `output` and `input`".to_owned())
            }
            ["steps", id, field, ..] => {
                let Some(step) = self.step(id) else {
                    mentions.unknown = true;
                    return self.no_step("names the unknown step", id).map_or(Ok(()), Err);
                };
                if !["output", "status"].contains(field) {
                    return Err(format!("a step has `output` and `status`, not {field:?}"));
                }
                mentions.steps.insert(step);
                Ok(())
            }
            ["steps", ..] => Err("must name a step's output in full: steps.<id>.output".to_owned()),
            [name, ..] if scope.item == Some(name) || (*name == "index" && scope.item.is_some()) => {
                mentions.item = true;
                Ok(())
            }
            [name, ..] if scope.further.contains(name) => {
                if *name == "revision" {
                    mentions.revision.insert(path.clone(), source.to_owned());
                }
                Ok(())
            }
            [name, ..] => Err(format!("names the unknown {name:?}{}", hint(name, visible(scope)))),
        }
    }
}

/// What can be named at a place, for a hint.
fn visible(scope: Scope<'_>) -> Vec<&str> {
    let steps = (scope.steps == StepsInScope::Named).then_some("steps");
    let index = scope.item.map(|_| "index");
    ["input"].into_iter().chain(steps).chain(scope.item).chain(index).chain(scope.further.iter().copied()).collect()
}
