//! What is said about a configuration: where a value came from, and which rule it breaks. One line a problem, all of them at once.
//! It never prints a secret: values of keys that look like one are hidden before they come here.

use std::{fmt, sync::Arc};

/// So many problems are listed; the rest is counted.
pub const PROBLEMS_SHOWN_MAX: usize = 200;

/// Where an effective value came from.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// A line of a file: `watertight.toml`, an `agent.toml`, a prompt.
    File {
        /// The file, as the user named it.
        path: Arc<str>,
        /// Its line, from 1; 0 = the file as a whole.
        line: u32,
    },
    /// An environment variable.
    Environment(Arc<str>),
    /// A `--set` flag, by the key it sets.
    Flag(Arc<str>),
    /// Built in.
    Default,
    /// Worked out from other values, as said.
    Derived(Arc<str>),
}

impl fmt::Display for Origin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, line: 0 } => formatter.write_str(path),
            Self::File { path, line } => write!(formatter, "{path}:{line}"),
            Self::Environment(name) => formatter.write_str(name),
            Self::Flag(key) => write!(formatter, "--set {key}"),
            Self::Default => formatter.write_str("default"),
            Self::Derived(how) => formatter.write_str(how),
        }
    }
}

/// One thing that is wrong (or, among the warnings, odd): where, which key, which value, which rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// Where it stands.
    pub origin: Origin,
    /// The full key, empty where there is none (a file that is no TOML).
    pub key: String,
    /// The value as written, if there is one.
    pub value: Option<String>,
    /// The rule that it breaks, as a sentence's end.
    pub rule: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: ", self.origin)?;
        match &self.value {
            _ if self.key.is_empty() => {}
            Some(value) => write!(formatter, "{} = {value}: ", self.key)?,
            None => write!(formatter, "{}: ", self.key)?,
        }
        formatter.write_str(&self.rule)
    }
}

/// A configuration that was refused, with every problem found, in the order of files and lines.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct SettingsError {
    problems: Vec<Problem>,
}

impl SettingsError {
    /// Sorts the problems and drops those that would be said twice.
    pub(super) fn new(mut problems: Vec<Problem>) -> Self {
        problems.sort();
        problems.dedup();
        Self { problems }
    }

    /// Every problem.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

impl From<Problem> for SettingsError {
    fn from(problem: Problem) -> Self {
        Self::new(vec![problem])
    }
}

impl fmt::Display for SettingsError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().take(PROBLEMS_SHOWN_MAX).enumerate() {
            if index > 0 {
                formatter.write_str("\n")?;
            }
            write!(formatter, "{problem}")?;
        }
        let rest = self.problems.len().saturating_sub(PROBLEMS_SHOWN_MAX);
        if rest > 0 {
            write!(formatter, "\nand {rest} more problems")?;
        }
        Ok(())
    }
}
