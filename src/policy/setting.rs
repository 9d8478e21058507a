//! A setting that cannot be: refused once, at construction, and trusted afterwards.

/// A setting that was refused: its key as in the configuration, its value, and the rule it breaks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key} = {value}: {rule}")]
pub struct InvalidSetting {
    key: &'static str,
    value: String,
    rule: String,
    against: &'static [&'static str],
}

impl InvalidSetting {
    /// Names the key, the value as it was given and the rule.
    pub fn new(key: &'static str, value: impl std::fmt::Display, rule: impl Into<String>) -> Self {
        Self { key, value: value.to_string(), rule: rule.into(), against: &[] }
    }

    /// The same, by a rule between it and other settings. Where one of these is wrong by itself, this may only follow from that.
    #[must_use]
    pub fn against(self, others: &'static [&'static str]) -> Self {
        Self { against: others, ..self }
    }

    /// The keys of the settings that it does not go together with; none where it is wrong by itself.
    pub fn others(&self) -> &'static [&'static str] {
        self.against
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
