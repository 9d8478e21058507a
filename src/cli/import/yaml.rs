//! Other tools' YAML as a tree in which every key and value knows its line. It knows no key, and it follows no alias further than its
//! limits; a key that stands twice in one table is refused, because one of the two would be lost.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{
    Spanned,
    options::{DuplicateKeyPolicy, NonFiniteFloatPolicy},
};

/// The largest file, in bytes.
pub(super) const FILE_BYTES_MAX: usize = 1024 * 1024;
/// Deeper nesting means nothing to any of the tools.
const DEPTH_MAX: usize = 32;
/// The most documents in one file.
const DOCUMENTS_MAX: usize = 64;
/// The most values in one file, those repeated by aliases included.
const NODES_MAX: usize = 50_000;
/// The most aliases in one file.
const ALIASES_MAX: usize = 1_000;
/// A parser's message is cut after this.
const MESSAGE_CHARS_MAX: usize = 300;

/// A value and its line, from 1.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Node {
    pub(super) value: Value,
    pub(super) line: u64,
}

/// A value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Null,
    Boolean(bool),
    Whole(i128),
    Number(f64),
    Text(String),
    List(Vec<Node>),
    Table(Vec<Entry>),
}

/// One key of a table, in the file's order.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) line: u64,
    pub(super) node: Node,
}

impl Node {
    /// The entries, if it is a table.
    pub(super) fn entries(&self) -> &[Entry] {
        match &self.value {
            Value::Table(entries) => entries,
            _ => &[],
        }
    }

    /// The value of `key`, if it is a table that has it.
    pub(super) fn get(&self, key: &str) -> Option<&Node> {
        self.entries().iter().find(|entry| entry.key == key).map(|entry| &entry.node)
    }

    /// How many values are in it, itself not counted.
    pub(super) fn count(&self) -> usize {
        match &self.value {
            Value::Table(entries) => entries.iter().map(|entry| 1 + entry.node.count()).sum(),
            Value::List(list) => list.iter().map(|node| 1 + node.count()).sum(),
            _ => 0,
        }
    }
}

/// Reads the documents of a file; empty ones are left out. The error names file and line.
pub(super) fn parse(path: &str, bytes: &[u8]) -> Result<Vec<Node>, String> {
    if bytes.len() > FILE_BYTES_MAX {
        return Err(format!("{path}: has {} bytes, at most {FILE_BYTES_MAX} are allowed", bytes.len()));
    }
    let text = std::str::from_utf8(bytes)
        .map_err(|error| format!("{path}:{}: is not UTF-8", line_of(bytes, error.valid_up_to())))?;
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: DEPTH_MAX,
            max_documents: DOCUMENTS_MAX,
            max_nodes: NODES_MAX,
            max_aliases: ALIASES_MAX,
            max_anchors: ALIASES_MAX,
        },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: NODES_MAX },
        // Told by ourselves, with both lines.
        duplicate_keys: DuplicateKeyPolicy::PassThrough,
        non_finite_float_policy: NonFiniteFloatPolicy::PassThrough,
        with_snippet: false,
    };
    let documents: Vec<Spanned<Value>> =
        serde_saphyr::from_multiple_with_options(text, options).map_err(|error| told(path, &error))?;
    let documents: Vec<Node> = documents.into_iter().map(Node::from).collect();
    documents.iter().try_for_each(|document| refuse_twins(path, document))?;
    Ok(documents)
}

fn line_of(bytes: &[u8], at: usize) -> usize {
    bytes[..at].split(|byte| *byte == b'\n').count()
}

/// The parser's message behind the place it speaks of.
fn told(path: &str, error: &serde_saphyr::Error) -> String {
    let message: String = error.to_string().chars().take(MESSAGE_CHARS_MAX).collect();
    // The place stands in front already.
    let message = message.split(" at line ").next().unwrap_or_default().trim();
    match error.location().map(|location| location.line()).filter(|line| *line > 0) {
        Some(line) => format!("{path}:{line}: is no YAML that can be read: {message}"),
        None => format!("{path}: is no YAML that can be read: {message}"),
    }
}

fn refuse_twins(path: &str, node: &Node) -> Result<(), String> {
    match &node.value {
        Value::List(list) => list.iter().try_for_each(|inner| refuse_twins(path, inner)),
        Value::Table(entries) => {
            let mut seen = std::collections::BTreeMap::new();
            for Entry { key, line, node } in entries {
                if let Some(first) = seen.insert(key.as_str(), *line) {
                    let key: String = key.chars().take(80).collect();
                    return Err(format!("{path}:{line}: `{key}` stands twice in one table, first on line {first}"));
                }
                refuse_twins(path, node)?;
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

impl From<Spanned<Value>> for Node {
    fn from(spanned: Spanned<Value>) -> Self {
        // Where an alias is used, not where its anchor stands: that is the place the reader looks for.
        Self { line: spanned.referenced.line(), value: spanned.value }
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyValue)
    }
}

struct AnyValue;

impl<'de> Visitor<'de> for AnyValue {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, truth: bool) -> Result<Value, E> {
        Ok(Value::Boolean(truth))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(Value::Whole(i128::from(number)))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(Value::Whole(i128::from(number)))
    }

    fn visit_i128<E>(self, number: i128) -> Result<Value, E> {
        Ok(Value::Whole(number))
    }

    fn visit_u128<E>(self, number: u128) -> Result<Value, E> {
        Ok(i128::try_from(number).map_or_else(|_| Value::Text(number.to_string()), Value::Whole))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        Ok(Value::Number(number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = sequence.next_element::<Spanned<Value>>()? {
            list.push(Node::from(item));
        }
        Ok(Value::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut entries = Vec::new();
        while let Some((key, value)) = map.next_entry::<Spanned<String>, Spanned<Value>>()? {
            entries.push(Entry { line: key.referenced.line(), key: key.value, node: Node::from(value) });
        }
        Ok(Value::Table(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<Node>, String> {
        parse("a.yml", text.as_bytes())
    }

    #[test]
    fn every_value_knows_its_line() {
        let documents = read("# head\na:\n  b: 1\n  c: [x, 2.5]\n---\nd: yes\n8080: ~\n").unwrap();
        assert_eq!(documents.len(), 2);
        let table = documents[0].get("a").unwrap();
        assert_eq!((table.entries()[0].line, table.entries()[1].line), (3, 4));
        assert_eq!(table.get("b"), Some(&Node { value: Value::Whole(1), line: 3 }));
        assert_eq!(documents[1].get("8080"), Some(&Node { value: Value::Null, line: 7 }));
        assert_eq!(table.count(), 4);
    }

    #[test]
    fn aliases_and_merges_are_followed() {
        let documents = read("a: &x {q: 1}\nb: *x\nc:\n  <<: *x\n  r: 2\n").unwrap();
        for key in ["a", "b", "c"] {
            assert_eq!(documents[0].get(key).unwrap().get("q").unwrap().value, Value::Whole(1), "{key}");
        }
        assert_eq!(documents[0].get("b").unwrap().line, 2);
    }

    #[test]
    fn what_is_refused_names_file_and_line() {
        let level = |level: u32| format!("a{level}: &a{level} [*a{0}, *a{0}]\n", level - 1);
        let bomb = (1..30).map(level).fold("a0: &a0 [x, x]\n".to_owned(), |text, line| text + &line);
        for (text, said) in [
            ("a: 1\nb:\n  c: 1\n  d: 2\n  c: 3\n", "a.yml:5: `c` stands twice in one table, first on line 3"),
            ("a: [1,\n b: }", "a.yml:1: is no YAML that can be read: "),
            ("a: 1\nb: @project@\n", "a.yml:2: is no YAML that can be read: "),
            ("a: *nobody\n", "a.yml:1: is no YAML that can be read: "),
            (&"[".repeat(100), "a.yml"),
            (&bomb, "a.yml"),
            (&"---\na: 1\n".repeat(100), "a.yml"),
            (&format!("a: {}", "x".repeat(FILE_BYTES_MAX)), "a.yml: has 1048579 bytes"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.starts_with(said), "{error}");
            assert!(error.len() < 600 && !error.contains('\n'), "{error}");
        }
        assert_eq!(parse("a.yml", b"a: 1\nb: \xff").unwrap_err(), "a.yml:2: is not UTF-8");
    }

    #[test]
    fn nothing_is_no_mistake() {
        for text in ["", "# only a comment\n", "---\n---\n"] {
            assert_eq!(read(text).unwrap(), Vec::new(), "{text:?}");
        }
    }
}
