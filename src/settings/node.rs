//! A configuration as a tree in which every value knows where it stands. It reads TOML; it knows no key.

use std::{collections::BTreeMap, fmt::Write as _, sync::Arc};

use toml::de::{DeTable, DeValue};

use super::{
    difference::digits_of,
    problem::{Origin, Problem},
};
use crate::workflow::toml_error::{REST_UNSEEN, said_of};

/// The largest configuration file or manifest, in bytes: room for a hundred thousand tenants by name.
pub(super) const FILE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Deeper tables mean nothing to us.
pub(super) const DEPTH_MAX: usize = 16;
/// A longer value is shown by its beginning.
const VALUE_CHARS_SHOWN_MAX: usize = 80;

/// From which kind of place a value comes, where that changes how it is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layer {
    /// `[defaults]`: means many agents, so what does not fit one of them is left out.
    Defaults,
    /// An agent's own manifest: knows nothing of the provider that it meets, so what does not fit is left out.
    Manifest,
    /// `watertight.toml`, environment, flags: meant exactly so, what does not fit is refused.
    Config,
}

/// A table of the tree.
pub(super) type Table = BTreeMap<String, Node>;

/// A value and where it stands.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Node {
    pub(super) value: Value,
    pub(super) origin: Origin,
    pub(super) layer: Layer,
}

/// A value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Text(String),
    Integer(i64),
    Number(f64),
    Boolean(bool),
    /// What no key of ours takes: dates, and whole numbers beyond 64 bits. Kept to be shown.
    Other(String),
    List(Vec<Node>),
    Table(Table),
}

impl Node {
    /// The table, if it is one.
    pub(super) fn as_table(&self) -> Option<&Table> {
        match &self.value {
            Value::Table(table) => Some(table),
            _ => None,
        }
    }

    /// The text, if it is one.
    pub(super) fn as_text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The same value, marked as coming from `layer`, all the way down.
    pub(super) fn mark(&mut self, layer: Layer) {
        self.layer = layer;
        match &mut self.value {
            Value::Table(table) => table.values_mut().for_each(|node| node.mark(layer)),
            Value::List(list) => list.iter_mut().for_each(|node| node.mark(layer)),
            _ => {}
        }
    }

    /// The value of `key` as in TOML, cut where it is long, hidden where it may be a secret.
    pub(super) fn shown(&self, key: &str) -> String {
        let mut text = String::new();
        write_value(key, &self.value, &mut text);
        if text.chars().count() > VALUE_CHARS_SHOWN_MAX {
            text = text.chars().take(VALUE_CHARS_SHOWN_MAX).collect();
            text.push_str("...");
        }
        text
    }
}

impl Node {
    /// The value as it is shown, and where it is cut a hash that tells it from others that begin alike.
    pub(super) fn shown_whole(&self, key: &str) -> String {
        let shown = self.shown(key);
        if !shown.ends_with("...") {
            return shown;
        }
        format!("{shown} ({})", digits_of(&format!("{:?}", self.value)))
    }
}

/// Appends `value` as in TOML; stops soon after what can be shown.
fn write_value(key: &str, value: &Value, text: &mut String) {
    // Each character has at most 4 bytes: past this many nothing is shown any more.
    if text.len() > 4 * VALUE_CHARS_SHOWN_MAX {
        return;
    }
    match value {
        Value::Text(content) => {
            let beginning: String = content.chars().take(VALUE_CHARS_SHOWN_MAX + 1).collect();
            let plain = !looks_secret(key) && !holds_secret(content);
            let shown = if plain { format!("{beginning:?}") } else { HIDDEN.to_owned() };
            text.push_str(&shown);
        }
        Value::Integer(number) => text.push_str(&number.to_string()),
        Value::Number(number) if number.is_nan() => text.push_str("nan"),
        Value::Number(number) => {
            // Writing to a String cannot fail.
            let _ = write!(text, "{number:?}");
        }
        Value::Boolean(truth) => text.push_str(&truth.to_string()),
        Value::Other(raw) => text.extend(raw.chars().take(VALUE_CHARS_SHOWN_MAX + 1)),
        Value::List(list) => {
            text.push('[');
            for (index, node) in list.iter().enumerate().take(VALUE_CHARS_SHOWN_MAX) {
                text.push_str(if index > 0 { ", " } else { "" });
                write_value(key, &node.value, text);
            }
            text.push(']');
        }
        Value::Table(table) if table.is_empty() => text.push_str("{}"),
        Value::Table(table) => {
            text.push_str("{ ");
            for (index, (inner_key, node)) in table.iter().enumerate().take(VALUE_CHARS_SHOWN_MAX) {
                text.push_str(if index > 0 { ", " } else { "" });
                text.push_str(&key_segment(inner_key));
                text.push_str(" = ");
                write_value(inner_key, &node.value, text);
            }
            text.push_str(" }");
        }
    }
}

/// Stands for a value that may be a secret.
const HIDDEN: &str = "\"(hidden)\"";

/// Whether a key (or header, or query parameter) by this name usually holds a secret.
pub(crate) fn looks_secret(key: &str) -> bool {
    let key = key.to_ascii_lowercase().replace('-', "_");
    let parts =
        ["api_key", "apikey", "secret", "password", "passwd", "authorization", "cookie", "credential", "signature"];
    let ends = ["token", "_key", "auth"];
    // One of our own keys sounds like a secret and is a duration.
    if key == "first_token" {
        return false;
    }
    key == "key" || parts.iter().any(|part| key.contains(part)) || ends.iter().any(|end| key.ends_with(end))
}

/// Whether a text looks like a secret wherever it stands: a bearer header, a vendor's key, an address with a password.
pub(crate) fn holds_secret(text: &str) -> bool {
    let authority = text.split_once("://").map(|(_, rest)| rest.split(['/', '?', '#']).next().unwrap_or_default());
    text.starts_with("sk-") || text.starts_with("Bearer ") || authority.is_some_and(|authority| authority.contains('@'))
}

/// One part of a key as in TOML: quoted where it has to be, cut where it is long.
pub(super) fn key_segment(key: &str) -> String {
    let bare = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
    let beginning: String = key.chars().take(VALUE_CHARS_SHOWN_MAX).collect();
    if bare { beginning } else { format!("{beginning:?}") }
}

/// Joins a path and a further part of the key.
pub(super) fn key_path(path: &str, key: &str) -> String {
    if path.is_empty() { key_segment(key) } else { format!("{path}.{}", key_segment(key)) }
}

/// Which line a byte stands on.
struct Lines {
    path: Arc<str>,
    starts: Vec<usize>,
    layer: Layer,
}

impl Lines {
    fn of(path: &Arc<str>, text: &str, layer: Layer) -> Self {
        let breaks = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(index, _)| index + 1);
        Self { path: path.clone(), starts: std::iter::once(0).chain(breaks).collect(), layer }
    }

    fn origin(&self, byte: usize) -> Origin {
        let line = self.starts.partition_point(|start| *start <= byte);
        Origin::File { path: self.path.clone(), line: u32::try_from(line).unwrap_or(u32::MAX) }
    }
}

/// Reads a file's bytes as TOML. A file with mistakes gives all of them and no tree: a half-read file would only add false ones.
pub(super) fn parse_file(path: &Arc<str>, bytes: &[u8], layer: Layer) -> Result<Table, Vec<Problem>> {
    let whole = |rule: String| {
        vec![Problem { origin: Origin::File { path: path.clone(), line: 0 }, key: String::new(), value: None, rule }]
    };
    if bytes.len() > FILE_BYTES_MAX {
        return Err(whole(format!("has {} bytes, at most {FILE_BYTES_MAX} are allowed", bytes.len())));
    }
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text.strip_prefix('\u{feff}').unwrap_or(text),
        Err(error) => return Err(whole(format!("is not UTF-8 (at byte {})", error.valid_up_to()))),
    };
    let lines = Lines::of(path, text, layer);
    let (table, errors) = DeTable::parse_recoverable(text);
    let mut problems: Vec<Problem> = errors
        .iter()
        .enumerate()
        .map(|(at, error)| Problem {
            origin: lines.origin(error.span().map_or(0, |span| span.start)),
            key: String::new(),
            value: None,
            rule: {
                let rest = if at + 1 == errors.len() { REST_UNSEEN } else { "" };
                format!("is no TOML: {}{rest}", said_of(error, text))
            },
        })
        .collect();
    let tree = convert_table(table.get_ref(), &lines, 0, &mut problems);
    if problems.is_empty() { Ok(tree) } else { Err(problems) }
}

/// Reads one value as TOML; `None` if it is none.
pub(super) fn parse_value(text: &str, origin: &Origin) -> Option<Node> {
    if text.len() > FILE_BYTES_MAX {
        return None;
    }
    let parsed = DeValue::parse(text).ok()?;
    let lines = Lines { path: Arc::from(""), starts: vec![0], layer: Layer::Config };
    let mut problems = Vec::new();
    let value = convert_value(parsed.get_ref(), &lines, 0, &mut problems);
    let mut node = Node { value, origin: origin.clone(), layer: Layer::Config };
    set_origin(&mut node, origin);
    problems.is_empty().then_some(node)
}

/// The parts of a dotted TOML key; `None` if it is none.
pub(super) fn parse_key(text: &str) -> Option<Vec<String>> {
    if text.len() > FILE_BYTES_MAX || text.contains(['\n', '=', '[']) {
        return None;
    }
    let document = format!("{text} = 0");
    let parsed = DeTable::parse(&document).ok()?;
    let mut parts = Vec::new();
    let mut table = parsed.get_ref();
    while let Some((key, value)) = table.iter().next() {
        parts.push(key.get_ref().to_string());
        match value.get_ref() {
            DeValue::Table(inner) => table = inner,
            _ => return Some(parts),
        }
    }
    None
}

fn set_origin(node: &mut Node, origin: &Origin) {
    node.origin = origin.clone();
    match &mut node.value {
        Value::Table(table) => table.values_mut().for_each(|inner| set_origin(inner, origin)),
        Value::List(list) => list.iter_mut().for_each(|inner| set_origin(inner, origin)),
        _ => {}
    }
}

fn convert_table(table: &DeTable<'_>, lines: &Lines, depth: usize, problems: &mut Vec<Problem>) -> Table {
    let mut converted = Table::new();
    for (key, value) in table {
        let origin = lines.origin(key.span().start);
        if depth >= DEPTH_MAX {
            let rule = format!("is nested deeper than {DEPTH_MAX} tables");
            problems.push(Problem { origin, key: key_segment(key.get_ref()), value: None, rule });
            return converted;
        }
        let value = convert_value(value.get_ref(), lines, depth + 1, problems);
        converted.insert(key.get_ref().to_string(), Node { value, origin, layer: lines.layer });
    }
    converted
}

fn convert_value(value: &DeValue<'_>, lines: &Lines, depth: usize, problems: &mut Vec<Problem>) -> Value {
    match value {
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Integer(integer) => match i64::from_str_radix(integer.as_str(), integer.radix()) {
            Ok(number) => Value::Integer(number),
            Err(_) => Value::Other(integer.to_string()),
        },
        DeValue::Float(float) => match float.as_str().parse() {
            Ok(number) => Value::Number(number),
            Err(_) => Value::Other(float.to_string()),
        },
        DeValue::Boolean(truth) => Value::Boolean(*truth),
        DeValue::Datetime(date) => Value::Other(date.to_string()),
        DeValue::Array(array) => {
            if depth >= DEPTH_MAX {
                return Value::Other("[...]".to_owned());
            }
            let node = |item: &toml::Spanned<DeValue<'_>>, problems: &mut Vec<Problem>| Node {
                value: convert_value(item.get_ref(), lines, depth + 1, problems),
                origin: lines.origin(item.span().start),
                layer: lines.layer,
            };
            Value::List(array.iter().map(|item| node(item, problems)).collect())
        }
        DeValue::Table(table) => Value::Table(convert_table(table, lines, depth, problems)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Table, Vec<Problem>> {
        parse_file(&Arc::from("w.toml"), text.as_bytes(), Layer::Config)
    }

    #[test]
    fn every_value_knows_its_line() {
        let tree = parsed("# head\n\n[a.b]\nc = 1\nd = [\n  2,\n]\n").unwrap();
        let table = tree["a"].as_table().unwrap()["b"].as_table().unwrap();
        assert_eq!(table["c"].origin.to_string(), "w.toml:4");
        assert_eq!(table["d"].origin.to_string(), "w.toml:5");
        assert_eq!(tree["a"].as_table().unwrap()["b"].origin.to_string(), "w.toml:3");
        let Value::List(list) = &table["d"].value else { panic!("no list") };
        assert_eq!(list[0].origin.to_string(), "w.toml:6");
    }

    #[test]
    fn every_mistake_is_named_with_its_line() {
        let problems = parsed("a = \nb = 1\nb = 2\nc == 3\n").unwrap_err();
        let lines: Vec<String> = problems.iter().map(|problem| problem.origin.to_string()).collect();
        for line in ["w.toml:1", "w.toml:3", "w.toml:4"] {
            assert!(lines.iter().any(|named| named == line), "{line} of {lines:?}");
        }
    }

    #[test]
    fn values_are_shown_as_written() {
        for (text, shown) in [
            ("'a\"b'", "\"a\\\"b\""),
            ("-1", "-1"),
            ("nan", "nan"),
            ("1.01", "1.01"),
            ("0.0", "0.0"),
            ("true", "true"),
            ("99999999999999999999", "99999999999999999999"),
            ("1979-05-27", "1979-05-27"),
            ("[1, 'a']", "[1, \"a\"]"),
            ("{ a = 1, 'b c' = {} }", "{ a = 1, \"b c\" = {} }"),
        ] {
            let node = parse_value(text, &Origin::Default).unwrap();
            assert_eq!(node.shown("value"), shown, "{text}");
        }
        let long = parse_value(&format!("'{}'", "가".repeat(100_000)), &Origin::Default).unwrap().shown("value");
        assert!(long.chars().count() <= VALUE_CHARS_SHOWN_MAX + 3, "{long}");
    }

    #[test]
    fn secrets_are_not_shown() {
        for (key, text, hidden) in [
            ("api_key", "'abc'", true),
            ("API-Key", "'abc'", true),
            ("api_key_env", "'abc'", true),
            ("x-auth-token", "'abc'", true),
            ("authorization", "'abc'", true),
            ("headers", "{ authorization = 'abc' }", true),
            ("windwo", "'sk-abc'", true),
            ("windwo", "['Bearer abc']", true),
            ("base_url", "'http://user:abc@host/v1'", true),
            ("base_url", "'http://host/abc@1'", false),
            ("model", "'abc'", false),
            ("tokens_per_minute", "'abc'", false),
        ] {
            let shown = parse_value(text, &Origin::Default).unwrap().shown(key);
            assert_eq!(!shown.contains("abc"), hidden, "{key} = {shown}");
        }
    }

    #[test]
    fn keys_of_flags() {
        for (text, parts) in [
            ("a.b", Some(vec!["a", "b"])),
            ("agents.\"a.b\".slots", Some(vec!["agents", "a.b", "slots"])),
            ("a..b", None),
            ("", None),
            ("a b", None),
            ("a = 1\nb", None),
            ("[a", None),
        ] {
            let parts = parts.map(|parts| parts.into_iter().map(str::to_owned).collect::<Vec<_>>());
            assert_eq!(parse_key(text), parts, "{text:?}");
        }
    }
}
