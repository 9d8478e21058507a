//! What comes together while tables are read: problems, warnings, and every effective value with where it came from.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
};

use super::problem::{Origin, Problem};

/// One effective value and where it came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExplainRow {
    /// The full key.
    pub key: String,
    /// The value as it holds, after all layers.
    pub value: String,
    /// Where it came from.
    pub origin: Origin,
}

/// What is found while reading.
#[derive(Debug, Default)]
pub(super) struct Report {
    pub(super) problems: Vec<Problem>,
    pub(super) warnings: Vec<Problem>,
    /// Files that hold secrets.
    pub(super) secret_files: BTreeSet<PathBuf>,
    values: BTreeMap<String, (String, Origin)>,
}

impl Report {
    /// Notes an effective value; the later note of one key counts.
    pub(super) fn explain(&mut self, key: String, value: String, origin: Origin) {
        self.values.insert(key, (value, origin));
    }

    /// Replaces a noted value by one that was worked out from it.
    pub(super) fn derive(&mut self, key: &str, value: String, how: &str) {
        if let Some((noted, origin)) = self.values.get_mut(key) {
            *origin = Origin::Derived(Arc::from(format!("{noted} at {origin}, {how}")));
            *noted = value;
        }
    }

    /// Where an effective value came from.
    pub(super) fn origin_of(&self, key: &str) -> Origin {
        self.values.get(key).map_or(Origin::Default, |(_, origin)| origin.clone())
    }

    /// Every effective value, by key.
    pub(super) fn rows(self) -> Vec<ExplainRow> {
        self.values.into_iter().map(|(key, (value, origin))| ExplainRow { key, value, origin }).collect()
    }
}
