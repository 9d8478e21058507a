//! The properties of the file with what each became for each agent; at the end one line for every one of them, whatever happened.

use std::collections::BTreeMap;

use super::{properties::Property, unsupported};
use crate::cli::import::{
    finding::{Finding, Outcome, shown},
    scalar,
    yaml::{Node, Value},
};

/// A property that belongs to an instance or a shared configuration of one module.
#[derive(Debug, Clone)]
pub(super) struct Given {
    /// Its place among all.
    pub(super) id: usize,
    /// The module's relaxed name.
    pub(super) module: &'static str,
    /// Its own relaxed name.
    pub(super) name: String,
    pub(super) property: Property,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Remark {
    agent: String,
    outcome: Outcome,
    said: String,
}

/// What became of each property.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    remarks: BTreeMap<usize, Vec<Remark>>,
    further: Vec<Finding>,
    /// Values that hold because the file gives none: key, what is said, and for which agents.
    silent: Vec<(String, String, Vec<String>)>,
}

impl Ledger {
    /// Notes what `given` became for `agent`.
    pub(super) fn note(&mut self, given: &Given, agent: &str, outcome: Outcome, said: impl Into<String>) {
        let remark = Remark { agent: agent.to_owned(), outcome, said: said.into() };
        let remarks = self.remarks.entry(given.id).or_default();
        if !remarks.contains(&remark) {
            remarks.push(remark);
        }
    }

    /// Notes something that no property of a module stands for.
    pub(super) fn add(&mut self, finding: Finding) {
        self.further.push(finding);
    }

    /// Notes a value that holds because the file does not give one.
    pub(super) fn silent(&mut self, key: &str, said: impl Into<String>) {
        self.add(Finding {
            line: None,
            key: key.to_owned(),
            value: None,
            outcome: Outcome::Default,
            said: said.into(),
        });
    }

    /// The same of one agent; agents of which the same is said have one line.
    pub(super) fn silent_for(&mut self, agent: &str, key: &str, said: impl Into<String>) {
        let said = said.into();
        match self.silent.iter_mut().find(|(known, text, _)| known == key && *text == said) {
            Some((.., agents)) => agents.push(agent.to_owned()),
            None => self.silent.push((key.to_owned(), said, vec![agent.to_owned()])),
        }
    }

    /// The findings of `givens`, none left out, and those further ones.
    pub(super) fn close(mut self, givens: &[Given]) -> Vec<Finding> {
        for (key, said, agents) in std::mem::take(&mut self.silent) {
            self.silent(&key, format!("{}: {said}", agents.join(", ")));
        }
        let mut findings = std::mem::take(&mut self.further);
        for given in givens {
            let row = |outcome, said| Finding {
                line: Some(given.property.line),
                key: given.property.key(),
                value: shown(&given.name, &given.property.node),
                outcome,
                said,
            };
            if let Some(remarks) = self.remarks.get(&given.id) {
                findings.extend(
                    by_what(remarks)
                        .into_iter()
                        .map(|(agents, outcome, said)| row(outcome, format!("{}: {said}", agents.join(", ")))),
                );
            } else {
                let (outcome, said) = unsupported::why(given.module, &given.name);
                findings.push(row(outcome, said));
            }
        }
        findings
    }
}

/// Remarks that say the same are one, for several agents.
fn by_what(remarks: &[Remark]) -> Vec<(Vec<&str>, Outcome, &str)> {
    let mut grouped: Vec<(Vec<&str>, Outcome, &str)> = Vec::new();
    for Remark { agent, outcome, said } in remarks {
        match grouped.iter_mut().find(|(_, other, text)| other == outcome && text == said) {
            Some((agents, ..)) => agents.push(agent),
            None => grouped.push((vec![agent], *outcome, said)),
        }
    }
    grouped
}

/// The properties of one module that hold for one agent.
pub(super) struct Effective<'a> {
    pub(super) agent: &'a str,
    pub(super) givens: BTreeMap<&'a str, &'a Given>,
    pub(super) ledger: &'a mut Ledger,
}

impl<'a> Effective<'a> {
    /// The property of this relaxed name.
    pub(super) fn given(&self, name: &str) -> Option<&'a Given> {
        self.givens.get(name).copied()
    }

    /// Reads the property of this name; one that cannot be read is noted and not there.
    pub(super) fn read<T>(&mut self, name: &str, read: impl Fn(&Node) -> Result<T, String>) -> Option<(&'a Given, T)> {
        let given = self.given(name)?;
        let filled = filled(&given.property.node);
        match filled.and_then(|node| read(&node)) {
            Ok(value) => Some((given, value)),
            Err(rule) => {
                self.ledger.note(given, self.agent, Outcome::NotTaken, format!("its value {rule}"));
                None
            }
        }
    }

    /// Notes that `given` became `said`: taken, or changed if its value was only the default of a placeholder.
    pub(super) fn taken(&mut self, given: &Given, said: impl Into<String>) {
        let said = said.into();
        match placeholder(&given.property.node) {
            Some((name, _)) => {
                let said = format!("{said}, the default that stands beside {name}");
                self.ledger.note(given, self.agent, Outcome::Changed, said);
            }
            None => self.ledger.note(given, self.agent, Outcome::Taken, said),
        }
    }

    /// Notes that `given` means nearly `said`.
    pub(super) fn changed(&mut self, given: &Given, said: impl Into<String>) {
        self.ledger.note(given, self.agent, Outcome::Changed, said);
    }

    /// Notes that `given` was left.
    pub(super) fn left(&mut self, given: &Given, said: impl Into<String>) {
        self.ledger.note(given, self.agent, Outcome::NotTaken, said);
    }
}

/// The name and default of `${NAME:default}`.
fn placeholder(node: &Node) -> Option<(&str, Option<&str>)> {
    let Value::Text(text) = &node.value else { return None };
    let inner = text.trim().strip_prefix("${")?.strip_suffix('}')?;
    Some(inner.split_once(':').map_or((inner, None), |(name, default)| (name, Some(default))))
}

/// The node with a placeholder's default in its place.
fn filled(node: &Node) -> Result<Node, String> {
    match placeholder(node) {
        None => Ok(node.clone()),
        Some((_, Some(default))) => Ok(Node { value: Value::Text(default.trim().to_owned()), line: node.line }),
        Some((name, None)) => Err(format!("stands in ${{{name}}}, and without a default it is not known here")),
    }
}

/// Reads a word, in upper case, with underscores.
pub(super) fn word(node: &Node) -> Result<String, String> {
    scalar::text(node).map(|text| text.to_ascii_uppercase().replace('-', "_"))
}
