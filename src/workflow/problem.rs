//! What is wrong with a workflow, with its place: all of it in one go, so that nobody mends a file one error at a time.

use std::collections::{HashMap, HashSet};

use crate::model::name::Name;

/// The longest value that a message repeats, in characters.
const SHOWN_VALUE_CHARACTERS_MAX: usize = 80;
/// The most problems that are kept; a file of garbage needs no more to be understood.
pub const PROBLEMS_MAX: usize = 100;

/// One broken rule: `file:line: key = value: rule`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where, if the workflow came from a file.
    pub place: Option<Place>,
    /// The key, as in `step.review.when`.
    pub key: String,
    /// The value that breaks the rule, as it was written; empty where something is missing.
    pub value: String,
    /// The rule, as a sentence's end.
    pub rule: String,
}

/// A line of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The file as it was named to us.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(place) = &self.place {
            write!(formatter, "{}:{}: ", place.file, place.line)?;
        }
        formatter.write_str(&self.key)?;
        if !self.value.is_empty() {
            write!(formatter, " = {}", self.value)?;
        }
        write!(formatter, ": {}", self.rule)
    }
}

/// A workflow that was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
pub struct InvalidWorkflow {
    problems: Vec<Problem>,
    agents: Vec<Name>,
}

impl InvalidWorkflow {
    /// All problems, in the order of the file. Never empty.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// The agents that its steps name, as far as it could be read: what is wrong with them can be told in the same go.
    pub fn agents(&self) -> &[Name] {
        &self.agents
    }

    /// The same of a workflow whose steps name these agents.
    pub(super) fn of_agents(self, agents: Vec<Name>) -> Self {
        Self { agents, ..self }
    }
}

/// Where in a definition: a key of a step, or of the workflow itself.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct KeyPath {
    step: Option<usize>,
    key: String,
}

impl KeyPath {
    /// A key of the workflow, as in `workflow.deadline` or `inputs.notes`.
    pub(super) fn of_workflow(key: &str) -> Self {
        Self { step: None, key: key.to_owned() }
    }

    /// A key of a step, as in `when` or `in.draft`; the step itself for an empty key.
    pub(super) fn of_step(step: usize, key: &str) -> Self {
        Self { step: Some(step), key: key.to_owned() }
    }

    /// The key `name` inside this one.
    pub(super) fn child(&self, name: &str) -> Self {
        let key = if self.key.is_empty() { name.to_owned() } else { format!("{}.{name}", self.key) };
        Self { step: self.step, key }
    }

    /// The key that this one stands in.
    fn parent(&self) -> Option<Self> {
        let (parent, _) = self.key.rsplit_once('.').unwrap_or(("", ""));
        (!self.key.is_empty()).then(|| Self { step: self.step, key: parent.to_owned() })
    }
}

/// Where each key of a definition stood, and what is wrong with it so far.
#[derive(Debug, Default)]
pub(super) struct Findings {
    file: Option<String>,
    lines: HashMap<KeyPath, usize>,
    step_names: HashMap<usize, String>,
    problems: Vec<(usize, Problem)>,
    known: HashSet<KeyPath>,
    closed: HashSet<KeyPath>,
}

impl Findings {
    /// For a workflow that comes from this file.
    pub(super) fn of_file(file: &str) -> Self {
        Self { file: Some(file.to_owned()), ..Self::default() }
    }

    /// Notes where a key stands.
    pub(super) fn stands(&mut self, path: KeyPath, line: usize) {
        self.lines.entry(path).or_insert(line);
    }

    /// Notes what a step is called.
    pub(super) fn step_is_called(&mut self, step: usize, id: &str) {
        self.step_names.insert(step, id.to_owned());
    }

    /// Adds a problem, unless the key was found broken by an earlier stage: what follows from a fault is no news.
    pub(super) fn add(&mut self, path: &KeyPath, value: &str, rule: impl Into<String>) {
        if self.is_broken(path) || self.problems.len() >= PROBLEMS_MAX {
            return;
        }
        let line = self.line_of(path);
        self.add_at(line, self.key_text(path), value, rule);
        self.known.insert(path.clone());
    }

    /// The value of a key is not what was meant; why is told elsewhere.
    pub(super) fn doubt(&mut self, path: KeyPath) {
        self.known.insert(path);
    }

    /// Adds a problem of a line.
    pub(super) fn add_at(&mut self, line: Option<usize>, key: String, value: &str, rule: impl Into<String>) {
        // What is missing from the file as a whole is missing from its beginning on.
        let place = self.file.clone().map(|file| Place { file, line: line.unwrap_or(1) });
        let problem = Problem { place, key, value: shortened(value), rule: rule.into() };
        self.problems.push((line.unwrap_or_default(), problem));
    }

    /// A stage is over: keys that it found broken are not judged again.
    pub(super) fn close_stage(&mut self) {
        self.closed.extend(self.known.drain());
    }

    /// True if an earlier stage found this key broken, or one that it stands in.
    pub(super) fn is_broken(&self, path: &KeyPath) -> bool {
        std::iter::successors(Some(path.clone()), KeyPath::parent).any(|key| self.closed.contains(&key))
    }

    /// True if nothing was found.
    pub(super) fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }

    /// `file:line: key`, or the key alone: what an error of a running workflow says of its place.
    pub(super) fn place_text(&self, path: &KeyPath) -> String {
        match (&self.file, self.line_of(path)) {
            (Some(file), Some(line)) => format!("{file}:{line}: {}", self.key_text(path)),
            _ => self.key_text(path),
        }
    }

    /// Everything found, in the order of the file.
    pub(super) fn into_refusal(mut self) -> InvalidWorkflow {
        self.problems.sort_by_key(|(line, _)| *line);
        let problems = self.problems.into_iter().map(|(_, problem)| problem).collect();
        InvalidWorkflow { problems, agents: Vec::new() }
    }

    /// Where each key of the definition stood.
    pub(super) fn into_lines(self) -> HashMap<KeyPath, usize> {
        self.lines
    }

    fn line_of(&self, path: &KeyPath) -> Option<usize> {
        std::iter::successors(Some(path.clone()), KeyPath::parent).find_map(|key| self.lines.get(&key).copied())
    }

    fn key_text(&self, path: &KeyPath) -> String {
        let Some(step) = path.step else { return path.key.clone() };
        let name = self.step_names.get(&step).cloned().unwrap_or_else(|| nameless(step));
        let dot = if path.key.is_empty() { "" } else { "." };
        format!("step.{name}{dot}{}", path.key)
    }
}

/// What a step is called that has no id: its place among `[[step]]`, as people count. No reference can name it.
pub(super) fn nameless(step: usize) -> String {
    format!("(no. {})", step + 1)
}

/// A text as it stands in a file, in quotes.
pub(super) fn quoted(text: &str) -> String {
    format!("{text:?}")
}

fn shortened(value: &str) -> String {
    if value.chars().count() <= SHOWN_VALUE_CHARACTERS_MAX {
        return value.to_owned();
    }
    let start: String = value.chars().take(SHOWN_VALUE_CHARACTERS_MAX).collect();
    format!("{start}...")
}
