//! Reads values out of a TOML tree, noting the line of every key and every value that is not of its type.
//! It knows types, not workflows, and goes on after a fault: the caller gets `None` and the fault is noted.

use crate::model::nearest::{hint, nearest};
use std::{collections::BTreeMap, time::Duration};

use serde_json::Value;
use serde_spanned::Spanned;
use toml::de::{DeInteger, DeTable, DeValue};

use super::problem::{Findings, KeyPath};
use crate::model::duration;

/// A table whose keys were noted, and where it stands.
pub(super) struct Fields<'t, 'i> {
    table: &'t DeTable<'i>,
    path: KeyPath,
    /// The keys that are known; none = any.
    known: Vec<&'static str>,
}

impl Fields<'_, '_> {
    /// Where one of its keys stands.
    pub(super) fn path(&self, key: &str) -> KeyPath {
        self.path.child(key)
    }

    /// True if it has this key, whatever the value.
    pub(super) fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    /// True if it has a key that most likely means this one.
    pub(super) fn is_misspelt(&self, key: &str) -> bool {
        let is_unknown = |word: &str| !self.known.contains(&word);
        let means = |word: &str| nearest(word, self.known.iter().copied()) == Some(key);
        self.table.keys().any(|word| is_unknown(word.get_ref()) && means(word.get_ref()))
    }

    /// Its keys.
    pub(super) fn keys(&self) -> Vec<String> {
        self.table.keys().map(|key| key.get_ref().to_string()).collect()
    }
}

/// The text of a file and what was found in it so far.
pub(super) struct Reader<'s> {
    text: &'s str,
    line_starts: Vec<usize>,
    pub(super) findings: Findings,
}

impl<'s> Reader<'s> {
    /// Of a file's text.
    pub(super) fn new(file: &str, text: &'s str) -> Self {
        let line_starts = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        Self { text, line_starts, findings: Findings::of_file(file) }
    }

    /// The line of a byte, from 1.
    pub(super) fn line(&self, offset: usize) -> usize {
        self.line_starts.partition_point(|start| *start <= offset).max(1)
    }

    /// A value as it was written.
    pub(super) fn written(&self, value: &Spanned<DeValue<'_>>) -> String {
        self.text.get(value.span()).unwrap_or_default().trim().to_owned()
    }

    /// Takes up a table: notes the lines of its keys and refuses keys that are not known. An empty `known` allows all.
    pub(super) fn fields<'t, 'i>(
        &mut self,
        table: &'t DeTable<'i>,
        path: KeyPath,
        known: &[&'static str],
    ) -> Fields<'t, 'i> {
        for (key, value) in table {
            let child = path.child(key.get_ref());
            let line = self.line(key.span().start);
            self.findings.stands(child.clone(), line);
            if !known.is_empty() && !known.contains(&key.get_ref().as_ref()) {
                let rule = format!("unknown key{}", hint(key.get_ref(), known.iter().copied()));
                let written = self.written(value);
                self.findings.add(&child, &written, rule);
            }
        }
        Fields { table, path, known: known.to_vec() }
    }

    /// Says that a key is missing, unless it is there under a name that is nearly its own: that is told already.
    pub(super) fn missing(&mut self, fields: &Fields<'_, '_>, key: &str) {
        if fields.is_misspelt(key) {
            self.findings.doubt(fields.path(key));
        } else {
            self.findings.add(&fields.path(key), "", "is missing");
        }
    }

    /// A table inside a table.
    pub(super) fn table<'t, 'i>(
        &mut self,
        fields: &Fields<'t, 'i>,
        key: &str,
        known: &[&'static str],
    ) -> Option<Fields<'t, 'i>> {
        let value = fields.table.get(key)?;
        if let DeValue::Table(table) = value.get_ref() {
            return Some(self.fields(table, fields.path(key), known));
        }
        self.wrong_type(fields, key, "must be a table");
        None
    }

    /// A text.
    pub(super) fn text(&mut self, fields: &Fields<'_, '_>, key: &str) -> Option<String> {
        let value = fields.table.get(key)?;
        if let DeValue::String(text) = value.get_ref() {
            return Some(text.to_string());
        }
        self.wrong_type(fields, key, "must be a text in quotes");
        None
    }

    /// A text that must be there.
    pub(super) fn required_text(&mut self, fields: &Fields<'_, '_>, key: &str) -> Option<String> {
        if !fields.has(key) {
            self.missing(fields, key);
        }
        self.text(fields, key)
    }

    /// True or false.
    pub(super) fn boolean(&mut self, fields: &Fields<'_, '_>, key: &str) -> Option<bool> {
        let value = fields.table.get(key)?;
        if let DeValue::Boolean(holds) = value.get_ref() {
            return Some(*holds);
        }
        self.wrong_type(fields, key, "must be true or false");
        None
    }

    /// A whole number that fits.
    pub(super) fn whole_number(&mut self, fields: &Fields<'_, '_>, key: &str) -> Option<u32> {
        let value = fields.table.get(key)?;
        let number = match value.get_ref() {
            DeValue::Integer(number) => u32::from_str_radix(number.as_str(), number.radix()).ok(),
            _ => None,
        };
        if number.is_none() {
            self.wrong_type(fields, key, "must be a whole number that is not negative");
        }
        number
    }

    /// A duration with its unit.
    pub(super) fn duration(&mut self, fields: &Fields<'_, '_>, key: &str) -> Option<Duration> {
        let value = fields.table.get(key)?;
        let DeValue::String(text) = value.get_ref() else {
            self.wrong_type(fields, key, "must be a duration in quotes, as in \"30s\"");
            return None;
        };
        match duration::parse(text) {
            Ok(duration) => Some(duration),
            Err(error) => {
                self.wrong_type(fields, key, error.rule());
                None
            }
        }
    }

    /// A list of texts.
    pub(super) fn texts(&mut self, fields: &Fields<'_, '_>, key: &str) -> Option<Vec<String>> {
        let value = fields.table.get(key)?;
        let texts = match value.get_ref() {
            DeValue::Array(items) => items
                .iter()
                .map(|item| match item.get_ref() {
                    DeValue::String(text) => Some(text.to_string()),
                    _ => None,
                })
                .collect::<Option<Vec<_>>>(),
            _ => None,
        };
        if texts.is_none() {
            self.wrong_type(fields, key, "must be a list of texts in quotes");
        }
        texts
    }

    /// The texts of a table.
    pub(super) fn text_table(&mut self, fields: &Fields<'_, '_>) -> BTreeMap<String, String> {
        let keys = fields.keys();
        keys.into_iter().filter_map(|key| self.text(fields, &key).map(|text| (key, text))).collect()
    }

    /// Any value, as JSON.
    pub(super) fn json(&mut self, fields: &Fields<'_, '_>, key: &str) -> Option<Value> {
        let value = fields.table.get(key)?;
        let json = to_json(value.get_ref());
        if json.is_none() {
            self.wrong_type(
                fields,
                key,
                "must be a value that JSON can hold: no infinity, no `nan`, whole numbers of 64 bits",
            );
        }
        json
    }

    /// The tables of `[[key]]`, each with its place.
    pub(super) fn table_list<'t, 'i>(&mut self, fields: &Fields<'t, 'i>, key: &str) -> Vec<(usize, &'t DeTable<'i>)> {
        let Some(value) = fields.table.get(key) else { return Vec::new() };
        let DeValue::Array(items) = value.get_ref() else {
            self.wrong_type(fields, key, &format!("must be a list of tables: [[{key}]]"));
            return Vec::new();
        };
        let mut tables = Vec::with_capacity(items.len());
        for item in items {
            match item.get_ref() {
                DeValue::Table(table) => tables.push((self.line(item.span().start), table)),
                _ => self.wrong_type(fields, key, &format!("must be a list of tables: [[{key}]]")),
            }
        }
        tables
    }

    /// True if the value of this key is a table.
    pub(super) fn is_table(fields: &Fields<'_, '_>, key: &str) -> bool {
        fields.table.get(key).is_some_and(|value| matches!(value.get_ref(), DeValue::Table(_)))
    }

    /// Notes a rule that the value of this key breaks.
    pub(super) fn wrong_type(&mut self, fields: &Fields<'_, '_>, key: &str, rule: &str) {
        let written = fields.table.get(key).map(|value| self.written(value)).unwrap_or_default();
        self.findings.add(&fields.path(key), &written, rule);
    }
}

fn to_json(value: &DeValue<'_>) -> Option<Value> {
    match value {
        DeValue::String(text) => Some(Value::String(text.to_string())),
        DeValue::Integer(number) => whole(number).map(Value::Number),
        DeValue::Float(number) => {
            number.as_str().parse().ok().and_then(serde_json::Number::from_f64).map(Value::Number)
        }
        DeValue::Boolean(holds) => Some(Value::Bool(*holds)),
        DeValue::Datetime(moment) => Some(Value::String(moment.to_string())),
        DeValue::Array(items) => {
            items.iter().map(|item| to_json(item.get_ref())).collect::<Option<Vec<_>>>().map(Value::Array)
        }
        DeValue::Table(fields) => fields
            .iter()
            .map(|(key, field)| Some((key.get_ref().to_string(), to_json(field.get_ref())?)))
            .collect::<Option<serde_json::Map<_, _>>>()
            .map(Value::Object),
    }
}

fn whole(number: &DeInteger<'_>) -> Option<serde_json::Number> {
    i64::from_str_radix(number.as_str(), number.radix()).ok().map(serde_json::Number::from)
}
