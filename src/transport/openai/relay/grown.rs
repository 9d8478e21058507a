//! JSON that grows piece by piece and stays as it was written: nothing becomes a value, so numbers keep their digits, and a character
//! whose halves came in two pieces is one again. Knows nothing of answers.

use std::collections::HashMap;

use serde_json::Value;

use crate::model::written_json::{Members as Pairs, items_of, members_of};

/// How deep pieces are joined; of what lies further down the last piece counts. Servers nest four levels.
const LEVELS_MAX: usize = 32;

/// The outermost level of a written value.
#[derive(Debug)]
pub(super) enum Part<'a> {
    Null,
    /// What stands between the quotes.
    Text(&'a str),
    List(Vec<&'a str>),
    Object(Pairs<'a>),
    /// A number, `true`, `false`.
    Other,
}

impl<'a> Part<'a> {
    /// Looks at a value that is known to be JSON.
    pub(super) fn of(written: &'a str) -> Self {
        match written.as_bytes().first() {
            Some(b'n') => Self::Null,
            Some(b'"') => Self::Text(written.get(1..written.len() - 1).unwrap_or_default()),
            Some(b'[') => Self::List(items_of(written)),
            Some(b'{') => Self::Object(members_of(written).unwrap_or_default()),
            _ => Self::Other,
        }
    }
}

/// A value that grows.
#[derive(Debug)]
pub(super) enum Grown {
    /// Nothing was joined to it yet.
    Written(String),
    /// The inside of a text.
    Text(String),
    List(Vec<Grown>),
    Object(Members),
}

impl Grown {
    pub(super) fn written(value: &str) -> Self {
        Self::Written(value.to_owned())
    }

    /// The same, its outermost level laid open so that it can grow.
    pub(super) fn open(&mut self) -> &mut Self {
        let opened = match self {
            Self::Written(written) => match Part::of(written) {
                Part::Text(inside) => Some(Self::Text(inside.to_owned())),
                Part::List(items) => Some(Self::List(items.into_iter().map(Self::written).collect())),
                Part::Object(pairs) => {
                    let mut members = Members::default();
                    for (key, value) in pairs {
                        members.put(key, Self::written(value));
                    }
                    Some(Self::Object(members))
                }
                Part::Null | Part::Other => None,
            },
            _ => None,
        };
        if let Some(opened) = opened {
            *self = opened;
        }
        self
    }

    /// Its number among its likes, where it names one.
    fn index(&mut self) -> Option<u64> {
        match self.open() {
            Self::Object(members) => match members.get_mut("index")? {
                Self::Written(number) => number.parse().ok(),
                _ => None,
            },
            _ => None,
        }
    }

    fn lay_over(&mut self, more: &str, is_fixed: bool, levels: usize) {
        match (self.open(), Part::of(more)) {
            (Self::Text(text), Part::Text(piece)) if !is_fixed => text.push_str(piece),
            (Self::Text(_), Part::Text("")) => {}
            (Self::List(parts), Part::List(pieces)) if levels > 0 => grow_list(parts, pieces, levels - 1),
            (Self::Object(inner), Part::Object(pieces)) if levels > 0 => inner.grow_within(pieces, levels - 1),
            (known, _) => *known = Self::written(more),
        }
    }

    pub(super) fn write(&self, out: &mut String) {
        match self {
            Self::Written(written) => out.push_str(written),
            Self::Text(inside) => out.extend(["\"", inside, "\""]),
            Self::List(items) => {
                out.push('[');
                for (place, item) in items.iter().enumerate() {
                    out.push_str(if place > 0 { "," } else { "" });
                    item.write(out);
                }
                out.push(']');
            }
            Self::Object(members) => {
                out.push('{');
                members.write(out, |_| true);
                out.push('}');
            }
        }
    }
}

/// The members of an object that grows, in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Members {
    members: Vec<(String, Grown)>,
    places: HashMap<String, usize>,
}

impl Members {
    pub(super) fn get_mut(&mut self, key: &str) -> Option<&mut Grown> {
        let place = *self.places.get(key)?;
        self.members.get_mut(place).map(|(_, value)| value)
    }

    pub(super) fn put_if_missing(&mut self, key: &str, usual: &str) {
        if !self.places.contains_key(key) {
            self.put(key.to_owned(), Grown::written(usual));
        }
    }

    /// Sets a member, whatever it was.
    pub(super) fn put(&mut self, key: String, value: Grown) {
        if let Some(known) = self.get_mut(&key) {
            *known = value;
        } else {
            self.places.insert(key.clone(), self.members.len());
            self.members.push((key, value));
        }
    }

    /// Lays a piece over what is there: texts are joined, lists of numbered parts merged, objects grown, the rest replaced.
    pub(super) fn grow(&mut self, piece: Pairs<'_>) {
        self.grow_within(piece, LEVELS_MAX);
    }

    fn grow_within(&mut self, piece: Pairs<'_>, levels: usize) {
        for (key, more) in piece {
            let is_fixed = matches!(key.as_str(), "role" | "id" | "type" | "index" | "name");
            match (self.get_mut(&key), Part::of(more)) {
                (_, Part::Null) => {}
                (Some(known), _) => known.lay_over(more, is_fixed, levels),
                (None, Part::List(pieces)) => {
                    let mut parts = Vec::new();
                    grow_list(&mut parts, pieces, levels);
                    self.put(key, Grown::List(parts));
                }
                (None, _) => self.put(key, Grown::written(more)),
            }
        }
    }

    /// Appends the items of lists to those of the same name; the rest is replaced.
    pub(super) fn extend_lists(&mut self, more: Pairs<'_>) {
        for (key, value) in more {
            match (self.get_mut(&key).map(Grown::open), Part::of(value)) {
                (_, Part::Null) => {}
                (Some(Grown::List(items)), Part::List(new)) => items.extend(new.into_iter().map(Grown::written)),
                _ => self.put(key, Grown::written(value)),
            }
        }
    }

    /// Writes those that are wanted, without the braces around them. `out` ends behind the brace, or behind another member.
    pub(super) fn write(&self, out: &mut String, is_wanted: impl Fn(&str) -> bool) {
        for (key, value) in self.members.iter().filter(|(key, _)| is_wanted(key)) {
            if !out.ends_with('{') {
                out.push(',');
            }
            out.push_str(&Value::from(key.as_str()).to_string());
            out.push(':');
            value.write(out);
        }
    }
}

/// Parts that are numbered grow at their place; others are new ones.
fn grow_list(parts: &mut Vec<Grown>, pieces: Vec<&str>, levels: usize) {
    for piece in pieces {
        let mut new = Grown::written(piece);
        let known = new
            .index()
            .and_then(|index| parts.iter_mut().find_map(|part| (part.index() == Some(index)).then_some(part)));
        match known {
            Some(known) => known.lay_over(piece, false, levels),
            None => parts.push(new),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grown(pieces: &[&str]) -> String {
        let mut members = Members::default();
        for piece in pieces {
            members.grow(members_of(piece).unwrap());
        }
        let mut out = String::new();
        Grown::Object(members).write(&mut out);
        out
    }

    #[test]
    fn pieces_stay_as_they_were_written() {
        for (pieces, want) in [
            (&[r#"{"c":"a\ud83d"}"#, r#"{"c":"\ude00b"}"#][..], r#"{"c":"a\ud83d\ude00b"}"#),
            (&[r#"{"c":"\ud83d"}"#], r#"{"c":"\ud83d"}"#),
            (
                &[r#"{"n":12345678901234567890123,"f":1.10}"#, r#"{"f":1e999,"o":{ "x":-0 }}"#, r#"{"o":{"y":1}}"#],
                r#"{"n":12345678901234567890123,"f":1e999,"o":{"x":-0,"y":1}}"#,
            ),
            (&[r#"{"role":"a","c":null}"#, r#"{"role":""}"#, r#"{"role":"b"}"#], r#"{"role":"b"}"#),
            (
                &[r#"{"l":[{"index":0,"a":"x"},{"index":0,"a":"y"},5]}"#, r#"{"l":[{"index":0,"a":"z"},6]}"#],
                r#"{"l":[{"index":0,"a":"xyz"},5,6]}"#,
            ),
            (&[r#"{"c":"a"}"#, r#"{"c":[1]}"#, r#"{"\u0063":true}"#], r#"{"c":true}"#),
            (&["[1]", "{}"], "{}"),
            // A name that stands twice is two pieces.
            (&[r#"{"c":"a","c":"b"}"#], r#"{"c":"ab"}"#),
        ] {
            assert_eq!(grown(pieces), want, "{pieces:?}");
        }
    }

    #[test]
    fn however_deep_a_piece_is_it_is_joined_without_much_ado() {
        let deep = |inside: &str| format!("{}{inside}{}", r#"{"a":"#.repeat(50_000), "}".repeat(50_000));
        let out = grown(&[&deep("1"), &deep("2")]);
        assert_eq!(out, deep("2"));
    }
}
