//! A workflow that passed every check: compiled, with its graph and its hash. What is read here can be trusted.

use std::{collections::HashMap, sync::Arc, time::Duration};

use minijinja::value::Value;
use serde_json::{Map, Value as Json};

use super::{
    definition::{Definition, Effects, InputDefinition, Join, OnCause, Presence},
    expression::{Expression, ExpressionError},
    problem::KeyPath,
};
use crate::model::{name::Name, run::Cause};

/// A checked workflow.
#[derive(Debug)]
pub struct Workflow {
    pub(super) definition: Definition,
    pub(super) name: Name,
    pub(super) hash: String,
    pub(super) output: Template,
    pub(super) steps: Vec<Step>,
    pub(super) order: Vec<usize>,
    pub(super) loops: Vec<Loop>,
    /// Where keys stood in its file; none where it came from elsewhere.
    pub(super) lines: HashMap<KeyPath, usize>,
}

impl Workflow {
    /// Its name.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// The version: the hash of its content.
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// The data it was made from.
    pub fn definition(&self) -> &Definition {
        &self.definition
    }

    /// How long a run may take, from acceptance to end.
    pub fn deadline(&self) -> Duration {
        self.definition.deadline
    }

    /// What a run is given, by name.
    pub fn inputs(&self) -> impl Iterator<Item = (&str, InputDefinition)> {
        self.definition.inputs.iter().map(|(name, input)| (name.as_str(), *input))
    }

    /// The line on which a key of a step (as in `on.error`), or of the workflow itself, stood if it came from a file.
    pub fn line_of(&self, step: Option<usize>, key: &str) -> Option<usize> {
        let path = step.map_or_else(|| KeyPath::of_workflow(key), |step| KeyPath::of_step(step, key));
        self.lines.get(&path).copied()
    }

    /// The steps, in the author's order.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }
}

/// A checked step.
#[derive(Debug)]
pub struct Step {
    pub(super) id: Arc<str>,
    pub(super) agent: Name,
    pub(super) input: Template,
    pub(super) when: Option<Condition>,
    pub(super) needs: Vec<usize>,
    pub(super) presence: Presence,
    pub(super) timeout: Option<Duration>,
    pub(super) on: [Option<OnCause>; Cause::ALL.len()],
    pub(super) default: Option<Json>,
    pub(super) map: Option<Mapping>,
    pub(super) effects: Effects,
    /// The loop that this step is a part of.
    pub(super) in_loop: Option<usize>,
}

impl Step {
    /// Its name.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The agent that it calls.
    pub fn agent(&self) -> &Name {
        &self.agent
    }

    /// What repeating it would do.
    #[must_use]
    pub const fn effects(&self) -> Effects {
        self.effects
    }

    /// The steps that must end before it, as places in [`Workflow::steps`].
    pub fn needs(&self) -> &[usize] {
        &self.needs
    }

    /// Whether a run may end well without it.
    pub fn is_optional(&self) -> bool {
        self.presence == Presence::Optional
    }

    /// What it does when it is refused or fails with this cause: what its author said; else an optional step is skipped,
    /// a required one waits for what passes by itself and fails with the rest.
    pub fn on(&self, cause: Cause) -> OnCause {
        let place = Cause::ALL.iter().position(|known| *known == cause);
        match place.and_then(|place| self.on[place]) {
            Some(action) => action,
            None if self.is_optional() => OnCause::Skip,
            None => match cause {
                Cause::CircuitOpen | Cause::BulkheadFull | Cause::Cold | Cause::Budget => OnCause::Wait,
                Cause::Deadline | Cause::Error => OnCause::Fail,
            },
        }
    }

    /// What it does instead where waiting is no way out.
    pub fn instead_of_waiting(&self) -> OnCause {
        if self.is_optional() { OnCause::Skip } else { OnCause::Fail }
    }
}

/// A `when`, and when it can be decided.
#[derive(Debug)]
pub(super) struct Condition {
    pub(super) expression: Expression,
    /// The steps it asks about. With none it is decided by the run's input alone.
    pub(super) steps: Vec<usize>,
    /// Whether it asks about the item of a `map`, and so is asked once for each.
    pub(super) about: About,
}

/// What a condition is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum About {
    /// The step as a whole.
    Step,
    /// Each item.
    Item,
}

/// A compiled `map`.
#[derive(Debug)]
pub(super) struct Mapping {
    pub(super) over: Expression,
    pub(super) item: String,
    pub(super) parallel: u32,
    pub(super) join: Join,
}

/// A compiled `revise` with the steps that run again.
#[derive(Debug)]
pub(super) struct Loop {
    /// The step that is sent back.
    pub(super) target: usize,
    /// The step that judges.
    pub(super) reviewer: usize,
    /// All that run again: target, reviewer, and every step on a way between them.
    pub(super) members: Vec<usize>,
    pub(super) until: Expression,
    pub(super) score: Expression,
    pub(super) revisions_max: u32,
}

/// A value that is made of expressions.
#[derive(Debug)]
pub(super) enum Template {
    /// The value of one.
    Value(Expression),
    /// An object.
    Table(Vec<(String, Expression)>),
}

impl Template {
    /// Its value.
    pub(super) fn evaluate(&self, context: &Value) -> Result<Json, ExpressionError> {
        match self {
            Self::Value(expression) => expression.evaluate(context),
            Self::Table(fields) => {
                let mut object = Map::with_capacity(fields.len());
                for (key, expression) in fields {
                    object.insert(key.clone(), expression.evaluate(context)?);
                }
                Ok(Json::Object(object))
            }
        }
    }
}
