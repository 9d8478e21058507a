//! One finished call as one line of a call log: what replay reads. Required are when, who, how long and the status; the rest says more
//! where it is known. A line with a refusal code of our own is demand of unknown outcome.

use serde::{Deserialize, Serialize};

use super::{cost::Cost, reply::Usage};

/// The name under which everything is counted whose own name is not.
pub const OTHER: &str = "other";

/// A name that a call is counted under.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CountedName {
    /// The configuration knows it: there are only so many.
    Known(String),
    /// The caller chose it: whoever keeps such names must bound their number.
    Said(String),
}

impl CountedName {
    /// As the caller says.
    #[must_use]
    pub fn said(name: &str) -> Self {
        Self::Said(name.to_owned())
    }

    /// Together with all others that have no name here.
    #[must_use]
    pub fn other() -> Self {
        Self::Known(OTHER.to_owned())
    }
}

/// What a call is counted under, which is not always what its caller called itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Counted {
    /// The tenant.
    pub tenant: Option<CountedName>,
    /// The feature.
    pub feature: Option<CountedName>,
}

/// One exchange of a logged call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoggedAttempt {
    /// Unix milliseconds.
    pub start_ms: u64,
    /// How long it took.
    pub duration_ms: u64,
    /// HTTP status; null for a network error or timeout.
    pub status: Option<u16>,
}

/// One finished call.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallRecord {
    /// Unix milliseconds of its start.
    pub ts_ms: u64,
    /// The agent.
    pub agent: String,
    /// How long it took, waits between attempts included.
    pub duration_ms: u64,
    /// HTTP status of its end; null for a network error or timeout.
    pub status: Option<u16>,
    /// What went wrong, if anything did.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub error_code: Option<String>,
    /// What the envelope said about trying again.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub retryable: Option<bool>,
    /// Every exchange.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub attempts: Vec<LoggedAttempt>,
    /// To the first content of the last attempt.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub first_token_ms: Option<u64>,
    /// The caller left.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cancelled: Option<bool>,
    /// The provider.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub provider: Option<String>,
    /// The model.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub model: Option<String>,
    /// The name of the provider's key; never the key.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub key_id: Option<String>,
    /// Who called: the name of the key that was shown to the service.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub caller: Option<String>,
    /// For which tenant.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub tenant: Option<String>,
    /// For which feature.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub feature: Option<String>,
    /// Tokens of prompt and answer together.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub tokens: Option<u64>,
    /// The same tokens apart, for whoever adds them up; not part of the line.
    #[serde(skip)]
    pub usage: Option<Usage>,
    /// What whoever adds calls up counts it under; not part of the line. `None` = under what it says itself.
    #[serde(skip)]
    pub counted: Option<Counted>,
    /// What it cost.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cost: Option<Cost>,
    /// The model was being loaded.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub warming: Option<bool>,
    /// The call.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub call_id: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_line_and_a_full_one() {
        let least = r#"{"ts_ms":1,"agent":"draft","duration_ms":20,"status":null}"#;
        let record: CallRecord = serde_json::from_str(least).unwrap();
        assert_eq!(serde_json::to_string(&record).unwrap(), least);
        let full = CallRecord {
            status: Some(503),
            error_code: Some("AGENT_ERROR".into()),
            attempts: vec![LoggedAttempt { start_ms: 1, duration_ms: 2, status: Some(503) }],
            tokens: Some(12),
            ..record
        };
        let text = serde_json::to_string(&full).unwrap();
        assert_eq!(serde_json::from_str::<CallRecord>(&text).unwrap(), full);
        assert!(
            serde_json::from_str::<CallRecord>(r#"{"ts_ms":1,"agent":"a","duration_ms":1,"status":1,"x":1}"#).is_err()
        );
    }
}
