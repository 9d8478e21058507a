//! Names from configuration: agents, providers, models' labels, workflows, tenants, features.
//! One rule for all, so that a name is safe as a metric label, a path segment and a log field.

use std::{borrow::Borrow, collections::HashMap, fmt, sync::Arc};

use serde::{Deserialize, Serialize};

/// The longest name, in bytes.
pub const NAME_BYTES_MAX: usize = 64;

/// How names are hashed on the way of a call. Seeded anew in each process, so that nobody can choose names that meet in one place.
pub type NameHasher = foldhash::fast::RandomState;

/// A table by configured names.
pub type NameMap<T> = HashMap<Name, T, NameHasher>;

/// A table by names that callers may have made up, checked for their length before.
pub type TextMap<T> = HashMap<Arc<str>, T, NameHasher>;

/// A configured name: 1 to 64 bytes of ASCII letters, digits, `-`, `_` and `.`, the first a letter or digit.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Name(Arc<str>);

/// A text that is no name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no name: 1 to {NAME_BYTES_MAX} letters, digits, '-', '_' or '.', the first a letter or digit")]
pub struct InvalidName {
    text: String,
}

impl Name {
    /// Checks `text` and makes it a name.
    pub fn try_new(text: &str) -> Result<Self, InvalidName> {
        let fits = (1..=NAME_BYTES_MAX).contains(&text.len());
        let starts = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
        let plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
        if fits && starts && plain {
            Ok(Self(Arc::from(text)))
        } else {
            Err(InvalidName { text: text.chars().take(NAME_BYTES_MAX).collect() })
        }
    }

    /// The text of the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(&self.0)
    }
}

impl Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::try_new(&text).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for (text, fits) in [
            ("draft", true),
            ("a", true),
            ("photo-facts_2.1", true),
            ("", false),
            ("-draft", false),
            ("한글", false),
            ("a b", false),
            ("a/b", false),
            (&"x".repeat(64), true),
            (&"x".repeat(65), false),
        ] {
            assert_eq!(Name::try_new(text).is_ok(), fits, "{text:?}");
        }
    }
}
