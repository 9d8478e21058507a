//! The two languages that a screen may ask for.

use serde::{Deserialize, Serialize};

/// Language of texts for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Language {
    /// English.
    #[default]
    En,
    /// Korean.
    Ko,
}
