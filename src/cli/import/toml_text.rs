//! Writes a configuration as text: tables with commented settings, keys and texts quoted where they have to be. It knows no key.

use std::{fmt::Write as _, time::Duration};

use crate::model::duration;

/// Comments begin here where the setting leaves room.
const COMMENT_COLUMN: usize = 44;

/// One table.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TomlTable {
    path: Vec<String>,
    lines: Vec<Line>,
}

#[derive(Debug, Clone, PartialEq)]
struct Line {
    /// `None` = a comment on a line of its own.
    setting: Option<(String, String)>,
    note: Option<String>,
}

impl TomlTable {
    /// An empty table at `path`.
    pub(super) fn new(path: &[&str]) -> Self {
        Self { path: path.iter().map(|part| (*part).to_owned()).collect(), lines: Vec::new() }
    }

    /// Adds a setting; `value` is TOML already.
    pub(super) fn set(&mut self, key: &str, value: impl Into<String>) {
        self.lines.push(Line { setting: Some((key.to_owned(), value.into())), note: None });
    }

    /// Adds a setting with a comment.
    pub(super) fn set_noted(&mut self, key: &str, value: impl Into<String>, note: impl Into<String>) {
        self.lines.push(Line { setting: Some((key.to_owned(), value.into())), note: Some(note.into()) });
    }

    /// Adds a comment on a line of its own.
    pub(super) fn comment(&mut self, note: impl Into<String>) {
        self.lines.push(Line { setting: None, note: Some(note.into()) });
    }

    /// True if it sets this key.
    pub(super) fn has(&self, key: &str) -> bool {
        self.lines.iter().any(|line| line.setting.as_ref().is_some_and(|(known, _)| known == key))
    }

    /// True if it sets nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Its text.
    pub(super) fn write(&self, text: &mut String) {
        text.push('\n');
        let path: Vec<String> = self.path.iter().map(|part| key_text(part)).collect();
        // proof of each `let _`: writing to a String cannot fail.
        let _ = writeln!(text, "[{}]", path.join("."));
        for line in &self.lines {
            match (&line.setting, &line.note) {
                (Some((key, value)), None) => _ = writeln!(text, "{} = {value}", key_text(key)),
                (Some((key, value)), Some(note)) => {
                    let setting = format!("{} = {value}", key_text(key));
                    let _ = writeln!(text, "{setting:<COMMENT_COLUMN$} # {}", one_line(note));
                }
                (None, note) => push_comment(text, note.as_deref().unwrap_or_default()),
            }
        }
    }
}

/// Adds a comment line.
pub(super) fn push_comment(text: &mut String, note: &str) {
    let _ = writeln!(text, "# {}", one_line(note));
}

/// A comment must not end early: what follows would be read.
fn one_line(note: &str) -> String {
    note.replace(char::is_control, " ")
}

/// A key, quoted where it has to be.
pub(super) fn key_text(key: &str) -> String {
    let bare = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
    if bare { key.to_owned() } else { quoted(key) }
}

/// A text.
pub(super) fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            control if control.is_control() => _ = write!(quoted, "\\u{:04X}", u32::from(control)),
            plain => quoted.push(plain),
        }
    }
    quoted.push('"');
    quoted
}

/// A duration.
pub(super) fn span(value: Duration) -> String {
    quoted(&duration::format(value))
}

/// A number that TOML reads as one.
pub(super) fn float(value: f64) -> String {
    format!("{value:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let odd = "a\"b\\c\nd\u{7f}e 가";
        let mut table = TomlTable::new(&["agents", "v1.draft", odd]);
        table.set("text", quoted(odd));
        table.set_noted("share", float(1e-7), "small\r\n[x]");
        table.set("wait", span(Duration::from_millis(1_500)));
        table.comment("two\nlines = 1");
        let mut text = String::new();
        table.write(&mut text);
        let read: toml::Table = text.parse().unwrap_or_else(|error| panic!("{error}\n{text}"));
        let inner = &read["agents"]["v1.draft"][odd];
        assert_eq!(inner["text"].as_str(), Some(odd));
        assert_eq!(inner["share"].as_float(), Some(1e-7));
        assert_eq!(inner["wait"].as_str(), Some("1.5s"));
        assert_eq!(read.len(), 1);
    }
}
