//! Reads a table key by key: the type of each value, its default, where it came from. What was not asked for is an unknown key.
//! Mistakes are collected, never returned: reading goes on with the default, so that all of them are found in one go.

use std::time::Duration;

use crate::model::{duration, nearest::hint};

use super::{
    node::{Layer, Node, Table, Value, key_path},
    problem::{Origin, Problem},
    report::Report,
};

/// No duration of the configuration is longer than this.
pub const DURATION_MAX: Duration = Duration::from_secs(7 * 24 * 3_600);
/// The longest text value, in bytes.
pub const TEXT_BYTES_MAX: usize = 64 * 1024;
/// What is said of a key that a later version will know.
pub(super) const NOT_BUILT: &str = "is not built yet";

mod ending;

static EMPTY: Table = Table::new();

/// Reads one table.
pub(super) struct Reader<'t, 'r> {
    table: &'t Table,
    /// Where the table begins: blamed for a key that is missing.
    pub(super) place: Origin,
    /// The table's full key.
    pub(super) path: String,
    /// The table in `[defaults]` that values may have come from.
    defaults_path: String,
    known: Vec<&'static str>,
    /// What is missing, told at the end unless a misspelt key stands there in its place.
    missing: Vec<Missing>,
    /// Whether it is known which keys fit this table.
    fit: Fit,
    pub(super) report: &'r mut Report,
}

/// Whether keys can be told to be for another kind of table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fit {
    /// They can.
    Known,
    /// Of what kind the table is, is not known: what is wrong with that is told elsewhere.
    Unknown,
}

/// Keys of which one ought to be there.
struct Missing {
    keys: &'static [&'static str],
    problem: Problem,
}

impl<'t, 'r> Reader<'t, 'r> {
    /// Reads `table`, which stands at `path`; values of it may have come from the table at `defaults_path`.
    pub(super) fn new(
        table: &'t Table,
        place: Origin,
        path: &str,
        defaults_path: &str,
        report: &'r mut Report,
    ) -> Self {
        report.begins(path, &place);
        let (path, defaults_path) = (path.to_owned(), defaults_path.to_owned());
        Self { table, place, path, defaults_path, known: Vec::new(), missing: Vec::new(), fit: Fit::Known, report }
    }

    /// Whether it is known which keys fit.
    pub(super) fn fit(&self) -> Fit {
        self.fit
    }

    /// The same reader, which knows this of the keys that fit.
    pub(super) fn fitting(self, fit: Fit) -> Self {
        Self { fit, ..self }
    }

    /// The value of `key`, if it was given; the key is known from now on.
    pub(super) fn node(&mut self, key: &'static str) -> Option<&'t Node> {
        self.known.push(key);
        self.table.get(key)
    }

    /// Whether `key` was given in a place that means exactly this table.
    pub(super) fn is_own(&self, key: &str) -> bool {
        self.table.get(key).is_some_and(|node| node.layer == Layer::Config)
    }

    /// Whether `key` was given at all.
    pub(super) fn is_given(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    /// Where the value of `key` came from.
    pub(super) fn origin(&self, key: &str) -> Origin {
        self.table.get(key).map_or(Origin::Default, |node| node.origin.clone())
    }

    /// The full key, where the value really stands.
    pub(super) fn full_key(&self, key: &str) -> String {
        let from_defaults = self.table.get(key).is_some_and(|node| node.layer == Layer::Defaults);
        key_path(if from_defaults { &self.defaults_path } else { &self.path }, key)
    }

    /// The problem that `key` breaks `rule`; a missing key is blamed on its table.
    pub(super) fn problem(&self, key: &str, rule: impl Into<String>) -> Problem {
        let node = self.table.get(key);
        let origin = node.map_or(&self.place, |node| &node.origin).clone();
        Problem { origin, key: self.full_key(key), value: node.map(|node| node.shown(key)), rule: rule.into() }
    }

    /// Notes that `key` breaks `rule`.
    pub(super) fn refuse(&mut self, key: &str, rule: impl Into<String>) {
        let problem = self.problem(key, rule);
        // Where it comes from the defaults it is no less in doubt here.
        self.report.doubt(key_path(&self.path, key));
        self.report.tell(problem);
    }

    /// Notes that an entry of the list at `key` breaks `rule`.
    pub(super) fn refuse_entry(&mut self, key: &str, at: usize, entry: &Node, rule: impl Into<String>) {
        let key = format!("{}[{at}]", self.full_key(key));
        let value = Some(entry.shown(&key));
        self.report.tell(Problem { origin: entry.origin.clone(), key, value, rule: rule.into() });
    }

    /// Notes at `blamed` that one of `keys` ought to be given, unless a misspelt key is found to stand there in its place.
    pub(super) fn refuse_without(&mut self, keys: &'static [&'static str], blamed: &str, rule: impl Into<String>) {
        let problem = self.problem(blamed, rule);
        self.missing.push(Missing { keys, problem });
    }

    /// Whether the value of `key` was read as it was meant, so far.
    pub(super) fn is_sound(&self, key: &str) -> bool {
        self.report.is_untouched(&key_path(&self.path, key))
    }

    /// Notes that `key` is odd.
    pub(super) fn warn(&mut self, key: &str, rule: impl Into<String>) {
        let problem = self.problem(key, rule);
        self.report.warnings.push(problem);
    }

    /// Notes the effective value of `key`.
    pub(super) fn explain(&mut self, key: &str, value: impl Into<String>) {
        let origin = self.origin(key);
        self.report.explain(key_path(&self.path, key), value.into(), origin);
    }

    /// Refuses `keys` where they were meant for exactly this table, and leaves them out where they came with something general.
    pub(super) fn unfit(&mut self, keys: &[&'static str], rule: &str) {
        for key in keys {
            self.known.push(key);
            if self.is_own(key) && self.fit == Fit::Known {
                self.refuse(key, rule);
            }
        }
    }

    /// Marks `keys` as known without looking at them.
    pub(super) fn know(&mut self, keys: &[&'static str]) {
        self.known.extend(keys);
    }

    /// The whole numbers of a table whose keys are the user's own; what is none is refused.
    pub(super) fn open_entries(&mut self, min: u64, max: u64) -> Vec<(String, u64)> {
        let mut entries = Vec::new();
        for (key, node) in self.table {
            let number = match &node.value {
                Value::Integer(number) => u64::try_from(*number).ok(),
                _ => None,
            };
            match number.filter(|number| (min..=max).contains(number)) {
                Some(number) => {
                    self.explain(key, number.to_string());
                    entries.push((key.clone(), number));
                }
                None => self.refuse(key, format!("must be a whole number from {min} to {max}")),
            }
        }
        entries
    }

    /// A text.
    pub(super) fn text(&mut self, key: &'static str) -> Option<&'t str> {
        match &self.node(key)?.value {
            Value::Text(text) if text.len() > TEXT_BYTES_MAX => {
                self.refuse(key, format!("has {} bytes, at most {TEXT_BYTES_MAX} are allowed", text.len()));
                None
            }
            Value::Text(text) => Some(text),
            _ => {
                self.refuse(key, "must be a text in quotes");
                None
            }
        }
    }

    /// True or false.
    pub(super) fn truth(&mut self, key: &'static str, default: bool) -> bool {
        let value = match self.node(key).map(|node| &node.value) {
            None => default,
            Some(Value::Boolean(truth)) => *truth,
            Some(_) => {
                self.refuse(key, "must be true or false");
                default
            }
        };
        self.explain(key, value.to_string());
        value
    }

    /// A whole number from `min` to `max`.
    pub(super) fn whole(&mut self, key: &'static str, min: u64, max: u64) -> Option<u64> {
        let number = match &self.node(key)?.value {
            Value::Integer(number) => u64::try_from(*number).ok(),
            _ => None,
        };
        let number = number.filter(|number| (min..=max).contains(number));
        if number.is_none() {
            self.refuse(key, format!("must be a whole number from {min} to {max}"));
        }
        number
    }

    /// A count that other rules bound further.
    pub(super) fn count(&mut self, key: &'static str, default: u32) -> u32 {
        let value = self.whole(key, 0, u64::from(u32::MAX)).and_then(|number| u32::try_from(number).ok());
        let value = value.unwrap_or(default);
        self.explain(key, value.to_string());
        value
    }

    /// A number that other rules bound.
    pub(super) fn number(&mut self, key: &'static str, default: f64) -> f64 {
        let value = match self.node(key).map(|node| &node.value) {
            None => default,
            Some(Value::Number(number)) => *number,
            Some(Value::Integer(number)) => *number as f64,
            Some(_) => {
                self.refuse(key, "must be a number");
                default
            }
        };
        self.explain(key, value.to_string());
        value
    }

    /// A duration over 0.
    pub(super) fn duration(&mut self, key: &'static str, default: Duration) -> Duration {
        let value = self.given_duration(key).filter(|value| {
            let zero = value.is_zero();
            if zero {
                self.refuse(key, "must be longer than 0");
            }
            !zero
        });
        let value = value.unwrap_or(default);
        self.explain(key, duration::format(value));
        value
    }

    /// A duration that may be 0.
    pub(super) fn duration_from_zero(&mut self, key: &'static str, default: Duration) -> Duration {
        let value = self.given_duration(key).unwrap_or(default);
        self.explain(key, duration::format(value));
        value
    }

    /// A duration over 0, or `"off"`.
    pub(super) fn duration_or_off(&mut self, key: &'static str, default: Option<Duration>) -> Option<Duration> {
        if self.is_off(key) {
            self.node(key);
            self.explain(key, "off");
            return None;
        }
        match default {
            Some(default) => Some(self.duration(key, default)),
            None if self.table.contains_key(key) => Some(self.duration(key, DURATION_MAX)),
            None => {
                self.node(key);
                self.explain(key, "off");
                None
            }
        }
    }

    /// A count of at least 1, or `"off"`.
    pub(super) fn count_or_off(&mut self, key: &'static str, default: Option<u32>) -> Option<u32> {
        if self.is_off(key) {
            self.node(key);
            self.explain(key, "off");
            return None;
        }
        let given = self.whole(key, 0, u64::from(u32::MAX)).and_then(|number| u32::try_from(number).ok());
        let value = given.or(default);
        self.explain(key, value.map_or("off".to_owned(), |count| count.to_string()));
        value
    }

    fn is_off(&self, key: &str) -> bool {
        self.is_word(key, "off")
    }

    /// Whether `key` holds just this text.
    pub(super) fn is_word(&self, key: &str, word: &str) -> bool {
        matches!(self.table.get(key), Some(Node { value: Value::Text(text), .. }) if text == word)
    }

    fn given_duration(&mut self, key: &'static str) -> Option<Duration> {
        let node = self.node(key)?;
        let parsed = match &node.value {
            Value::Text(text) => duration::parse(text).map_err(|error| error.rule().to_owned()),
            _ => Err("must be a text of number and unit, as in \"30s\"".to_owned()),
        };
        match parsed {
            Ok(value) if value > DURATION_MAX => {
                self.refuse(key, "must be at most 7 days");
                None
            }
            Ok(value) => Some(value),
            Err(rule) => {
                self.refuse(key, rule);
                None
            }
        }
    }

    /// One of a few words; those of `later` are known but not built.
    pub(super) fn choice<T: Copy + PartialEq>(
        &mut self,
        key: &'static str,
        default: T,
        choices: &[(&'static str, T)],
        later: &[&str],
    ) -> T {
        let value = self.choice_of(key, choices, later).unwrap_or(default);
        let word = choices.iter().find(|(_, choice)| *choice == value).map_or("", |(word, _)| word);
        self.explain(key, word);
        value
    }

    /// One of a few words, `None` if it is missing or none of them.
    pub(super) fn choice_of<T: Copy>(
        &mut self,
        key: &'static str,
        choices: &[(&'static str, T)],
        later: &[&str],
    ) -> Option<T> {
        let word = self.text(key)?;
        let found = choices.iter().find(|(choice, _)| *choice == word).map(|(_, value)| *value);
        if found.is_none() {
            let words: Vec<&str> = choices.iter().map(|(choice, _)| *choice).collect();
            let rule = if later.contains(&word) {
                format!("{NOT_BUILT}; built: {}", words.join(", "))
            } else {
                format!("must be one of {}{}", words.join(", "), hint(word, words.iter().copied()))
            };
            self.refuse(key, rule);
        }
        found
    }

    /// The table at `key`, an empty one if there is none.
    pub(super) fn table(&mut self, key: &'static str) -> Reader<'t, '_> {
        let node = self.node(key);
        let table = node.and_then(Node::as_table);
        if node.is_some() && table.is_none() {
            self.refuse(key, "must be a table");
        }
        let place = node.map_or(&self.place, |node| &node.origin).clone();
        let (path, defaults_path) = (key_path(&self.path, key), key_path(&self.defaults_path, key));
        Reader::new(table.unwrap_or(&EMPTY), place, &path, &defaults_path, self.report)
    }

    /// The entries of the table at `key`, whose keys are the user's own.
    pub(super) fn entries(&mut self, key: &'static str) -> &'t Table {
        let node = self.node(key);
        match node.map(Node::as_table) {
            Some(None) => {
                self.refuse(key, "must be a table");
                &EMPTY
            }
            Some(Some(table)) => table,
            None => &EMPTY,
        }
    }

    /// The same reader, lent out.
    pub(super) fn reborrow(&mut self) -> Reader<'t, '_> {
        Reader::new(self.table, self.place.clone(), &self.path, &self.defaults_path, self.report)
    }
}
