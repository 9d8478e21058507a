//! A setting that cannot be: refused once, at construction, and trusted afterwards.

/// A setting that was refused: its key as in the configuration, its value, and the rule it breaks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key} = {value}: {rule}")]
pub struct InvalidSetting {
    key: &'static str,
    value: String,
    rule: String,
}

impl InvalidSetting {
    /// Names the key, the value as it was given and the rule.
    pub fn new(key: &'static str, value: impl std::fmt::Display, rule: impl Into<String>) -> Self {
        Self { key, value: value.to_string(), rule: rule.into() }
    }

    /// The key as in the configuration.
    pub fn key(&self) -> &'static str {
        self.key
    }

    /// The value as it was given.
    pub fn value(&self) -> &str {
        &self.value
    }

    /// The rule it breaks, as a sentence's end.
    pub fn rule(&self) -> &str {
        &self.rule
    }
}
