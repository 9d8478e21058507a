//! A workflow as its author wrote it: plain data, before any rule was checked. TOML and the Rust builder both end here,
//! so that both have the same hash and pass the same checks.

use std::{collections::BTreeMap, time::Duration};

use serde_json::Value;

use crate::{model::run::Cause, policy::ladder::Rung};

/// The largest workflow file, in bytes.
pub const FILE_BYTES_MAX: usize = 1024 * 1024;
/// The most steps of a workflow.
pub const STEPS_MAX: usize = 200;
/// The most inputs of a workflow.
pub const INPUTS_MAX: usize = 100;
/// The most expressions of one `in` or `output` table.
pub const FIELDS_MAX: usize = 100;
/// The longest id of a step, an input or an item's name, in bytes.
pub const ID_BYTES_MAX: usize = 64;
/// The longest expression, in bytes.
pub const EXPRESSION_BYTES_MAX: usize = 4 * 1024;
/// The largest `default` of a step, in bytes of its JSON.
pub const DEFAULT_BYTES_MAX: usize = 64 * 1024;
/// The most items of a `map`.
pub const MAP_ITEMS_MAX: usize = 10_000;
/// The most items of a `map` at once.
pub const PARALLEL_MAX: u32 = 1_000;
/// The most revisions of a `revise`.
pub const REVISIONS_MAX: u32 = 20;
/// The longest deadline of a run, and the longest of its timeouts.
pub const DEADLINE_MAX: Duration = Duration::from_secs(7 * 24 * 3_600);
/// The largest output of a step, in bytes of its JSON.
pub const OUTPUT_BYTES_MAX: usize = 8 * 1024 * 1024;
/// The deadline of a run that names none.
pub const DEADLINE_DEFAULT: Duration = Duration::from_secs(15 * 60);
/// Where a reviewer's score is found unless `revise.score` says otherwise.
pub const SCORE_DEFAULT: &str = "output.score";

/// A workflow as data.
#[derive(Debug, Clone, PartialEq)]
pub struct Definition {
    /// Its name.
    pub name: String,
    /// How long a run may take, from acceptance to end.
    pub deadline: Duration,
    /// What a run's output is made of.
    pub output: Shape,
    /// What a run is given, by name.
    pub inputs: BTreeMap<String, InputDefinition>,
    /// The steps, in the author's order.
    pub steps: Vec<StepDefinition>,
}

/// One expression, or a table of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shape {
    /// The value of this expression.
    Value(String),
    /// An object: the value of one expression for each key.
    Table(BTreeMap<String, String>),
}

impl Default for Shape {
    /// The empty object.
    fn default() -> Self {
        Self::Table(BTreeMap::new())
    }
}

impl From<&str> for Shape {
    fn from(expression: &str) -> Self {
        Self::Value(expression.to_owned())
    }
}

impl<const N: usize> From<[(&str, &str); N]> for Shape {
    fn from(fields: [(&str, &str); N]) -> Self {
        Self::Table(fields.into_iter().map(|(key, expression)| (key.to_owned(), expression.to_owned())).collect())
    }
}

/// What one input of a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InputDefinition {
    /// Its type.
    pub kind: InputKind,
    /// Whether a run may come without it; it is `none` then.
    pub presence: Presence,
}

/// The type of an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InputKind {
    /// A list of files.
    Files,
    /// A text.
    Text,
    /// Any JSON value.
    Json,
}

impl InputKind {
    /// The name in a workflow.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Files => "files",
            Self::Text => "text",
            Self::Json => "json",
        }
    }
}

/// Whether something may be missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// It must be there.
    Required,
    /// It may be missing.
    Optional,
}

/// One step.
#[derive(Debug, Clone, PartialEq)]
pub struct StepDefinition {
    /// Its name in expressions, events and records.
    pub id: String,
    /// The agent that it calls.
    pub agent: String,
    /// The agent's input.
    pub input: Shape,
    /// Steps that must end first, beside those that its expressions name.
    pub needs: Vec<String>,
    /// It is skipped where this does not hold.
    pub when: Option<String>,
    /// Whether a run may end well without it.
    pub presence: Presence,
    /// How long one call may take.
    pub timeout: Option<Duration>,
    /// What to do when it is refused or fails, by cause.
    pub on: BTreeMap<Cause, OnCause>,
    /// The output that `on = "default"` puts in place.
    pub default: Option<Value>,
    /// Once for each item of a list.
    pub map: Option<MapDefinition>,
    /// Sends an earlier step back until this one's output is good enough.
    pub revise: Option<ReviseDefinition>,
    /// What a repetition would do.
    pub effects: Effects,
}

impl StepDefinition {
    /// A required step without anything else to say.
    pub fn new(id: impl Into<String>, agent: impl Into<String>) -> Self {
        Self {
            id: id.into(),
            agent: agent.into(),
            input: Shape::default(),
            needs: Vec::new(),
            when: None,
            presence: Presence::Required,
            timeout: None,
            on: BTreeMap::new(),
            default: None,
            map: None,
            revise: None,
            effects: Effects::Repeatable,
        }
    }
}

/// What to do when a step is refused or fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnCause {
    /// Stand in line, or park until the gate's time.
    Wait,
    /// Go on without it.
    Skip,
    /// Go on with the step's `default`.
    Default,
    /// Ask a lighter target of the agent.
    Lighter,
    /// Have the call made later, and go on without it.
    Deferred,
    /// Go on without it; its record says so in words for a person.
    Notice,
    /// Fail the run.
    Fail,
}

impl OnCause {
    /// Every word.
    pub const ALL: [Self; 7] =
        [Self::Wait, Self::Skip, Self::Default, Self::Lighter, Self::Deferred, Self::Notice, Self::Fail];

    /// The rung of a ladder that is asked for by name.
    pub const fn rung(self) -> Option<Rung> {
        match self {
            Self::Lighter => Some(Rung::Lighter),
            Self::Deferred => Some(Rung::Deferred),
            Self::Wait | Self::Skip | Self::Default | Self::Notice | Self::Fail => None,
        }
    }

    /// The name in a workflow.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Wait => "wait",
            Self::Skip => "skip",
            Self::Default => "default",
            Self::Lighter => "lighter",
            Self::Deferred => "deferred",
            Self::Notice => "notice",
            Self::Fail => "fail",
        }
    }
}

/// What repeating a step that may already have run would do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effects {
    /// No harm: it may run again with the same idempotency key after a crash.
    Repeatable,
    /// Harm: after a crash in the middle it waits for an operator.
    Once,
}

impl Effects {
    /// The name in a workflow.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Repeatable => "repeatable",
            Self::Once => "once",
        }
    }
}

/// Once for each item of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MapDefinition {
    /// The list.
    pub over: String,
    /// The item's name in expressions; `index` stands beside it.
    pub item: String,
    /// So many items at once; `None` = as many as the agent's share allows.
    pub parallel: Option<u32>,
    /// When it is done.
    pub join: Join,
}

impl MapDefinition {
    /// Over this list, all items, as many at once as the agent's share allows. `item` is an item's name in expressions.
    pub fn new(over: impl Into<String>, item: impl Into<String>) -> Self {
        Self { over: over.into(), item: item.into(), parallel: None, join: Join::All }
    }

    /// The same with so many items at once.
    #[must_use]
    pub fn parallel(self, items: u32) -> Self {
        Self { parallel: Some(items), ..self }
    }

    /// The same with another way to be done.
    #[must_use]
    pub fn join(self, join: Join) -> Self {
        Self { join, ..self }
    }
}

/// When a `map` is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Join {
    /// When all items have ended; one that fails, fails the step.
    All,
    /// When all items have ended, or after this time with those that have.
    BestEffort(Duration),
    /// When so many items have succeeded; the rest is cut.
    Quorum(u32),
    /// When the first item has succeeded; the rest is cut.
    FirstGood,
}

impl Join {
    /// How many items must succeed, where that is what ends the `map`.
    pub const fn goal(self) -> Option<u32> {
        match self {
            Self::All | Self::BestEffort(_) => None,
            Self::Quorum(items) => Some(items),
            Self::FirstGood => Some(1),
        }
    }
}

/// Sends an earlier step back until this one's output is good enough.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReviseDefinition {
    /// The step that is sent back.
    pub step: String,
    /// Over the reviewer's `output`: good enough.
    pub until: String,
    /// So many revisions at most, beside the first version.
    pub revisions_max: u32,
    /// Over the reviewer's `output`: a number, more is better.
    pub score: String,
}
