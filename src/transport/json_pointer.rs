//! A JSON Pointer (RFC 6901) that was checked when it was made; it finds values and texts alike.

use serde_json::Value;

use crate::model::written_json::{items_of, members_of};

/// Where something stands in a JSON document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JsonPointer(String);

/// A text that is no JSON Pointer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is no JSON Pointer: empty for the whole document, else it begins with '/', and '~' stands only in '~0' and '~1'"
)]
pub struct InvalidPointer {
    text: String,
}

/// Two members of one name, where one was looked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the member {name:?} stands twice")]
pub struct StandsTwice {
    name: String,
}

impl JsonPointer {
    /// Where the contract has the output of an agent.
    pub fn output() -> Self {
        Self("/output".to_owned())
    }

    /// Checks `text` and makes it a pointer.
    pub fn try_new(text: &str) -> Result<Self, InvalidPointer> {
        let begins = text.is_empty() || text.starts_with('/');
        let escapes = text.split('~').skip(1).all(|behind| behind.starts_with(['0', '1']));
        if begins && escapes { Ok(Self(text.to_owned())) } else { Err(InvalidPointer { text: text.to_owned() }) }
    }

    /// What stands there, if anything does.
    pub fn find<'a>(&self, document: &'a Value) -> Option<&'a Value> {
        document.pointer(&self.0)
    }

    /// The text of what stands there in a JSON text. On the way nothing may stand twice: readers differ in which of the two counts.
    pub fn find_written<'a>(&self, document: &'a str) -> Result<Option<&'a str>, StandsTwice> {
        let mut found = document.trim();
        for step in self.0.split('/').skip(1) {
            let step = step.replace("~1", "/").replace("~0", "~");
            let inner = if found.starts_with('[') {
                let is_plain = step == "0" || !step.starts_with(['0', '+']);
                step.parse::<usize>().ok().filter(|_| is_plain).and_then(|index| items_of(found).get(index).copied())
            } else {
                let members = members_of(found).unwrap_or_default();
                let mut named = members.into_iter().filter(|(name, _)| *name == step);
                let first = named.next();
                if named.next().is_some() {
                    return Err(StandsTwice { name: step });
                }
                first.map(|(_, value)| value)
            };
            let Some(inner) = inner else { return Ok(None) };
            found = inner;
        }
        Ok(Some(found))
    }

    /// The text of the pointer.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn pointers() {
        for (text, fits) in [
            ("", true),
            ("/", true),
            ("/a/0/b", true),
            ("/a~1b/~0", true),
            ("a", false),
            ("/a~", false),
            ("/a~2", false),
            ("#/a", false),
        ] {
            assert_eq!(JsonPointer::try_new(text).is_ok(), fits, "{text:?}");
        }
        let document = serde_json::json!({"a/b": [{"c": 7}]});
        assert_eq!(JsonPointer::try_new("/a~1b/0/c").unwrap().find(&document), Some(&Value::from(7)));
    }

    #[test]
    fn what_stands_there_as_it_was_written() {
        let text = r#" {"a": [0, {"b/": 1.50}], "c": {"d": 1, "d": 2}, "": [1e999], "e": 1, "e": 2} "#;
        for (pointer, want) in [
            ("", Ok(Some(text.trim()))),
            ("/a/1/b~1", Ok(Some("1.50"))),
            ("/c", Ok(Some(r#"{"d": 1, "d": 2}"#))),
            ("//0", Ok(Some("1e999"))),
            ("/a/01", Ok(None)),
            ("/a/2", Ok(None)),
            ("/x/0", Ok(None)),
            ("/a/0/0", Ok(None)),
            ("/c/d", Err("d")),
            ("/e", Err("e")),
        ] {
            let found = JsonPointer::try_new(pointer).unwrap().find_written(text);
            let want = want.map_err(|name: &str| StandsTwice { name: name.to_owned() });
            assert_eq!(found, want, "{pointer}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics_and_what_is_a_pointer_finds_what_serde_finds(text in "(/?[a-z0-9~/]{0,3}){0,4}", any in any::<String>()) {
            let document = serde_json::json!({"a": {"0": [1, {"b": 2}]}, "": 3, "~": 4, "/": 5});
            for text in [text, any] {
                if let Ok(pointer) = JsonPointer::try_new(&text) {
                    prop_assert_eq!(pointer.find(&document), document.pointer(&text));
                    let written = document.to_string();
                    let found = pointer.find_written(&written).unwrap().map(|found| serde_json::from_str(found).unwrap());
                    prop_assert_eq!(found.as_ref(), document.pointer(&text));
                }
            }
        }
    }
}
