//! A workflow made in Rust: the same definition, checks and hash as from TOML.

use std::{collections::BTreeSet, time::Duration};

use serde_json::Value;

use super::{
    check::check,
    checked::Workflow,
    definition::{
        DEADLINE_DEFAULT, Definition, Effects, InputDefinition, InputKind, MapDefinition, OnCause, Presence,
        ReviseDefinition, SCORE_DEFAULT, Shape, StepDefinition,
    },
    problem::InvalidWorkflow,
};
use crate::model::{name::Name, run::Cause};

/// Builds a workflow. Nothing is judged before [`WorkflowBuilder::build`].
#[derive(Debug, Clone)]
pub struct WorkflowBuilder {
    definition: Definition,
}

impl WorkflowBuilder {
    /// An empty workflow of this name.
    pub fn new(name: impl Into<String>) -> Self {
        let definition = Definition {
            name: name.into(),
            deadline: DEADLINE_DEFAULT,
            output: Shape::default(),
            inputs: std::collections::BTreeMap::new(),
            steps: Vec::new(),
        };
        Self { definition }
    }

    /// How long a run may take.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.definition.deadline = deadline;
        self
    }

    /// An input that a run must have.
    #[must_use]
    pub fn input(self, name: impl Into<String>, kind: InputKind) -> Self {
        self.any_input(name.into(), kind, Presence::Required)
    }

    /// An input that a run may have.
    #[must_use]
    pub fn optional_input(self, name: impl Into<String>, kind: InputKind) -> Self {
        self.any_input(name.into(), kind, Presence::Optional)
    }

    /// One more step.
    #[must_use]
    pub fn step(mut self, step: StepBuilder) -> Self {
        self.definition.steps.push(step.definition);
        self
    }

    /// What a run's output is made of: one expression, or pairs of key and expression.
    #[must_use]
    pub fn output(mut self, output: impl Into<Shape>) -> Self {
        self.definition.output = output.into();
        self
    }

    /// Checks it against the agents that exist.
    pub fn build(self, agents: &BTreeSet<Name>) -> Result<Workflow, InvalidWorkflow> {
        check(self.definition, agents)
    }

    fn any_input(mut self, name: String, kind: InputKind, presence: Presence) -> Self {
        self.definition.inputs.insert(name, InputDefinition { kind, presence });
        self
    }
}

/// Builds one step.
#[derive(Debug, Clone)]
pub struct StepBuilder {
    definition: StepDefinition,
}

impl StepBuilder {
    /// A required step of this id that calls this agent.
    pub fn new(id: impl Into<String>, agent: impl Into<String>) -> Self {
        Self { definition: StepDefinition::new(id, agent) }
    }

    /// The agent's input: one expression, or pairs of key and expression.
    #[must_use]
    pub fn input(mut self, input: impl Into<Shape>) -> Self {
        self.definition.input = input.into();
        self
    }

    /// A step that must end first, beside those that expressions name.
    #[must_use]
    pub fn needs(mut self, step: impl Into<String>) -> Self {
        self.definition.needs.push(step.into());
        self
    }

    /// It is skipped where this does not hold.
    #[must_use]
    pub fn when(mut self, condition: impl Into<String>) -> Self {
        self.definition.when = Some(condition.into());
        self
    }

    /// A run may end well without it.
    #[must_use]
    pub fn optional(mut self) -> Self {
        self.definition.presence = Presence::Optional;
        self
    }

    /// How long one call may take.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.definition.timeout = Some(timeout);
        self
    }

    /// What to do when it is refused or fails with this cause.
    #[must_use]
    pub fn on(mut self, cause: Cause, action: OnCause) -> Self {
        self.definition.on.insert(cause, action);
        self
    }

    /// The output that [`OnCause::Default`] puts in place.
    #[must_use]
    pub fn default_output(mut self, output: Value) -> Self {
        self.definition.default = Some(output);
        self
    }

    /// Once for each item of a list.
    #[must_use]
    pub fn map(mut self, map: MapDefinition) -> Self {
        self.definition.map = Some(map);
        self
    }

    /// Sends `step` back until `until` holds over this step's `output`, at most `revisions_max` times.
    /// The best version has the highest `output.score`.
    #[must_use]
    pub fn revise(self, step: impl Into<String>, until: impl Into<String>, revisions_max: u32) -> Self {
        self.revise_by_score(step, until, revisions_max, SCORE_DEFAULT)
    }

    /// The same with an expression of its own for the score.
    #[must_use]
    pub fn revise_by_score(
        mut self,
        step: impl Into<String>,
        until: impl Into<String>,
        revisions_max: u32,
        score: impl Into<String>,
    ) -> Self {
        let revise = ReviseDefinition { step: step.into(), until: until.into(), revisions_max, score: score.into() };
        self.definition.revise = Some(revise);
        self
    }

    /// It must not run twice, not even with the same idempotency key.
    #[must_use]
    pub fn once(mut self) -> Self {
        self.definition.effects = Effects::Once;
        self
    }
}
