//! Reads an agent's input into its shape. Decides what an unusable input is told; never guesses what was meant.

use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use serde_json::Value;

use crate::model::{facts::Ending, reply::AttemptFailure};

/// The most photos of one post.
pub(super) const PHOTOS_MAX: usize = 2_000;
/// The longest text of one input field, in bytes.
pub(super) const TEXT_BYTES_MAX: usize = 256 * 1024;

/// The code of a refused input, as a service of the same agent would send it.
const INVALID_INPUT: &str = "INVALID_INPUT";

/// The input in its shape, or a failure that names the agent and the place.
pub(super) fn read<T: DeserializeOwned>(agent: &str, input: &Value) -> Result<T, AttemptFailure> {
    T::deserialize(input).map_err(|error| refused(agent, &error.to_string()))
}

/// An input that cannot be used: like a 422 of a service, so that nobody tries it again.
pub(super) fn refused(agent: &str, why: &str) -> AttemptFailure {
    let ending = Ending::Status {
        status: 422,
        retryable: Some(false),
        content_filter: false,
        context_too_long: false,
        quota_spent: None,
    };
    let mut failure = AttemptFailure::new(ending, format!("input of agent {agent:?}: {why}"));
    failure.status = Some(422);
    failure.upstream_code = Some(INVALID_INPUT.to_owned());
    failure
}

/// Refuses a text that is longer than [`TEXT_BYTES_MAX`].
pub(super) fn check_length(agent: &str, field: &str, text: &str) -> Result<(), AttemptFailure> {
    if text.len() <= TEXT_BYTES_MAX {
        return Ok(());
    }
    Err(refused(agent, &format!("{field} has {} bytes, {TEXT_BYTES_MAX} are allowed", text.len())))
}

/// Refuses more photos than [`PHOTOS_MAX`].
pub(super) fn check_photos(agent: &str, count: usize) -> Result<(), AttemptFailure> {
    if count <= PHOTOS_MAX {
        return Ok(());
    }
    Err(refused(agent, &format!("photos has {count} items, {PHOTOS_MAX} are allowed")))
}

/// `null` means the same as a missing field: inputs that were not given arrive as `null`.
pub(super) fn null_as_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

/// A language that may be unknown: `null` and the empty text (all that a workflow's default can say) both mean so.
pub(super) fn language_or_none<'de, D>(deserializer: D) -> Result<Option<crate::model::language::Language>, D::Error>
where
    D: Deserializer<'de>,
{
    use crate::model::language::Language;
    let text = Option::<String>::deserialize(deserializer)?.unwrap_or_default();
    match text.trim().to_ascii_lowercase().as_str() {
        "" => Ok(None),
        "ko" | "kor" | "korean" | "ko-kr" | "한국어" => Ok(Some(Language::Ko)),
        "en" | "eng" | "english" | "en-us" | "en-gb" => Ok(Some(Language::En)),
        other => Err(serde::de::Error::custom(format!(
            "language {:?} is neither \"ko\" nor \"en\"",
            other.chars().take(32).collect::<String>()
        ))),
    }
}
