//! Findings as they are made while walking through the file.

use crate::cli::import::{
    finding::{Finding, Outcome, shown},
    yaml::{Entry, Node},
};

/// The findings so far.
#[derive(Debug, Default)]
pub(super) struct Account {
    pub(super) findings: Vec<Finding>,
}

impl Account {
    /// Notes what became of the key `path.entry`.
    pub(super) fn note(&mut self, path: &str, entry: &Entry, outcome: Outcome, said: impl Into<String>) {
        self.push(Some(entry.line), &join(path, &entry.key), shown(&entry.key, &entry.node), outcome, said.into());
    }

    /// The same, without the value: it may be a secret whatever its key is called.
    pub(super) fn note_hidden(&mut self, path: &str, entry: &Entry, outcome: Outcome, said: impl Into<String>) {
        self.push(Some(entry.line), &join(path, &entry.key), Some("(hidden)".to_owned()), outcome, said.into());
    }

    /// Notes what became of a value without a key of its own.
    pub(super) fn item(&mut self, path: &str, node: &Node, outcome: Outcome, said: impl Into<String>) {
        self.push(Some(node.line), path, shown(path, node), outcome, said.into());
    }

    /// Notes a value of ours that the file does not give.
    pub(super) fn silent(&mut self, key: &str, said: impl Into<String>) {
        self.push(None, key, None, Outcome::Default, said.into());
    }

    /// Reads an entry's value; one that cannot be read is noted.
    pub(super) fn read<T>(
        &mut self,
        path: &str,
        entry: &Entry,
        read: impl Fn(&Node) -> Result<T, String>,
    ) -> Option<T> {
        match read(&entry.node) {
            Ok(value) => Some(value),
            Err(rule) => {
                self.note(path, entry, Outcome::NotTaken, format!("its value {rule}"));
                None
            }
        }
    }

    /// Where the next finding will stand.
    pub(super) fn mark(&self) -> usize {
        self.findings.len()
    }

    /// Takes back what the findings of `range` say was taken, except of keys that end with one of `but`.
    pub(super) fn take_back(&mut self, range: std::ops::Range<usize>, but: &[&str], said: &str) {
        for finding in self.findings.get_mut(range).unwrap_or_default() {
            let stays = but.iter().any(|key| finding.key.ends_with(key));
            if !stays && matches!(finding.outcome, Outcome::Taken | Outcome::Changed) {
                finding.outcome = Outcome::NotTaken;
                said.clone_into(&mut finding.said);
            }
        }
    }

    fn push(&mut self, line: Option<u64>, key: &str, value: Option<String>, outcome: Outcome, said: String) {
        self.findings.push(Finding { line, key: key.to_owned(), value, outcome, said });
    }
}

/// A path and a further part.
pub(super) fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}
