//! What comes together while tables are read: problems, warnings, and every effective value with where it came from. It also knows which
//! keys are in doubt, so that nothing is said that only follows from something said already.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
};

use super::{
    problem::{Origin, Problem},
    secret::SecretSource,
};

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

/// An effective value as it is noted.
#[derive(Debug)]
struct Noted {
    value: String,
    origin: Origin,
    /// The place alone, also where the value was worked out from another one.
    stands: Origin,
}

/// Keys whose values are not what was meant: they were refused, or are perhaps only misspelt elsewhere.
#[derive(Debug, Default, Clone)]
pub(super) struct Doubts(BTreeSet<String>);

impl Doubts {
    /// Whether neither `key` nor a table that it stands in is in doubt.
    pub(super) fn is_sound(&self, key: &str) -> bool {
        !self.0.contains(key) && above(key).chain([""]).all(|table| !self.0.contains(table))
    }

    /// Whether that holds, and nothing below `key` is in doubt either.
    pub(super) fn is_whole(&self, key: &str) -> bool {
        self.is_sound(key) && self.is_untouched(key)
    }

    /// Whether neither `key` nor anything below it is in doubt, whatever it stands in.
    fn is_untouched(&self, key: &str) -> bool {
        !is_at_or_below(key, |from| self.0.range(from..).next())
    }
}

/// Whether `key`, or anything below it, is among sorted keys of which `first` finds the first from a text on.
fn is_at_or_below<'k>(key: &str, first: impl Fn(String) -> Option<&'k String>) -> bool {
    let begins_with = |start: String| first(start.clone()).is_some_and(|found| found.starts_with(&start));
    first(key.to_owned()).is_some_and(|found| found == key)
        || begins_with(format!("{key}."))
        || begins_with(format!("{key}["))
}

/// What is found while reading.
#[derive(Debug, Default)]
pub(super) struct Report {
    problems: Vec<Problem>,
    doubts: Doubts,
    pub(super) warnings: Vec<Problem>,
    /// Secrets that are named, wherever they are.
    pub(super) secrets: Vec<SecretSource>,
    /// Files that hold secrets.
    pub(super) secret_files: BTreeSet<PathBuf>,
    values: BTreeMap<String, Noted>,
    /// Where tables begin.
    places: BTreeMap<String, Origin>,
    /// Every key that was asked for.
    #[cfg(test)]
    pub(super) asked: BTreeSet<String>,
}

impl Report {
    /// Takes a problem. Its key is in doubt from now on.
    pub(super) fn tell(&mut self, problem: Problem) {
        if !problem.key.is_empty() {
            self.doubt(problem.key.clone());
        }
        self.problems.push(problem);
    }

    /// Takes several problems.
    pub(super) fn tell_all(&mut self, problems: impl IntoIterator<Item = Problem>) {
        problems.into_iter().for_each(|problem| self.tell(problem));
    }

    /// The value of `key` is not what was meant; why is told elsewhere.
    pub(super) fn doubt(&mut self, key: String) {
        self.doubts.0.insert(key);
    }

    /// Whether `key`, and each table that it stands in, was read as it was meant.
    pub(super) fn is_sound(&self, key: &str) -> bool {
        self.doubts.is_sound(key)
    }

    /// Whether all below `key` was read as it was meant as well.
    pub(super) fn is_whole(&self, key: &str) -> bool {
        self.doubts.is_whole(key)
    }

    /// Whether neither `key` nor anything below it is in doubt, whatever it stands in.
    pub(super) fn is_untouched(&self, key: &str) -> bool {
        self.doubts.is_untouched(key)
    }

    /// What was told so far, with the keys that are in doubt; nothing of it is left here.
    pub(super) fn take_problems(&mut self) -> (Vec<Problem>, Doubts) {
        (std::mem::take(&mut self.problems), self.doubts.clone())
    }

    /// Notes where the table at `path` begins; the first place counts.
    pub(super) fn begins(&mut self, path: &str, place: &Origin) {
        if !self.places.contains_key(path) {
            self.places.insert(path.to_owned(), place.clone());
        }
    }

    /// Notes an effective value; the later note of one key counts.
    pub(super) fn explain(&mut self, key: String, value: String, origin: Origin) {
        let stands = origin.clone();
        self.values.insert(key, Noted { value, origin, stands });
    }

    /// Whether a value of `key` is noted, or of anything below it.
    pub(super) fn is_explained(&self, key: &str) -> bool {
        is_at_or_below(key, |from| self.values.range(from..).next().map(|(found, _)| found))
    }

    /// Replaces a noted value by one that was worked out from it.
    pub(super) fn derive(&mut self, key: &str, value: String, how: &str) {
        if let Some(noted) = self.values.get_mut(key) {
            noted.origin = Origin::Derived(Arc::from(format!("{} at {}, {how}", noted.value, noted.origin)));
            noted.value = value;
        }
    }

    /// Where an effective value stands: a default stands where the table begins that could have held another one.
    pub(super) fn origin_of(&self, key: &str) -> Origin {
        let own = self.values.get(key).map(|noted| &noted.stands).filter(|origin| **origin != Origin::Default);
        let place = || above(key).filter_map(|table| self.places.get(table)).find(|place| **place != Origin::Default);
        own.or_else(|| self.places.get(key).filter(|place| **place != Origin::Default))
            .or_else(place)
            .or_else(|| self.places.get(""))
            .cloned()
            .unwrap_or(Origin::Default)
    }

    /// Every effective value, by key.
    pub(super) fn rows(self) -> Vec<ExplainRow> {
        let row = |(key, noted): (String, Noted)| ExplainRow { key, value: noted.value, origin: noted.origin };
        self.values.into_iter().map(row).collect()
    }
}

/// The keys of the tables and lists that `key` stands in, the innermost first.
fn above(key: &str) -> impl Iterator<Item = &str> {
    key.char_indices().rev().filter(|(_, mark)| matches!(mark, '.' | '[')).filter_map(|(end, _)| key.get(..end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubts_reach_down_and_are_asked_for_from_above() {
        let mut report = Report::default();
        report.doubt("features.chat".to_owned());
        report.doubt("prices.\"o/m.1\".input".to_owned());
        report.doubt("agents.a.targets[1]".to_owned());
        for (key, is_sound, is_whole) in [
            ("features", true, false),
            ("features.chat", false, false),
            ("features.chat.slots", false, false),
            ("features.chat-2", true, true),
            ("features.ch", true, true),
            ("prices.\"o/m.1\"", true, false),
            ("prices.\"o/m\"", true, true),
            ("agents.a.targets", true, false),
            ("agents.a.targets[1].model", false, false),
            ("agents.a.targets[10]", true, true),
        ] {
            assert_eq!((report.is_sound(key), report.is_whole(key)), (is_sound, is_whole), "{key}");
        }
    }
}
