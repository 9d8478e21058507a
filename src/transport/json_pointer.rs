//! A JSON Pointer (RFC 6901) that was checked when it was made.

use serde_json::Value;

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

impl JsonPointer {
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

    proptest! {
        #[test]
        fn no_text_panics_and_what_is_a_pointer_finds_what_serde_finds(text in "(/?[a-z0-9~/]{0,3}){0,4}", any in any::<String>()) {
            let document = serde_json::json!({"a": {"0": [1, {"b": 2}]}, "": 3, "~": 4, "/": 5});
            for text in [text, any] {
                if let Ok(pointer) = JsonPointer::try_new(&text) {
                    prop_assert_eq!(pointer.find(&document), document.pointer(&text));
                }
            }
        }
    }
}
