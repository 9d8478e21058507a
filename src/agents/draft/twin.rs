//! The agent `draft` without a model: composes a post, or repairs its last one by what the review said.
//! Deterministic, and says in its result that no model was used.

use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    compose::{compose, labels},
    notes::place,
    revise::{Revision, revise},
    speech::Speech,
};
use crate::{
    agents::{
        input::{check_length, check_photos, language_or_none, null_as_default, read, refused},
        shapes::{BY_EMBEDDED, PhotoList, Voice},
        words::language_of,
    },
    model::{language::Language, reply::AttemptFailure},
};

#[derive(Debug, Deserialize)]
struct Input {
    #[serde(default, deserialize_with = "null_as_default")]
    photos: PhotoList,
    #[serde(default, deserialize_with = "null_as_default")]
    style: Voice,
    #[serde(default)]
    notes: Option<String>,
    #[serde(default, deserialize_with = "language_or_none")]
    language: Option<Language>,
    #[serde(default)]
    revision: Option<Revision>,
}

/// Composes from `{"photos", "style", "notes": text | null, "language", "revision": {"iteration", "candidate", "feedback"} | null}`.
pub(in crate::agents) fn compute(input: &Value) -> Result<Value, AttemptFailure> {
    let input: Input = read("draft", input)?;
    check_photos("draft", input.photos.photos.len())?;
    let notes = input.notes.unwrap_or_default();
    check_length("draft", "notes", &notes)?;
    let voice = input.style;
    // A measured voice tells the author's language; a default one only repeats what was assumed.
    let measured = voice.language.filter(|_| voice.basis > 0);
    let language = input.language.or(measured).or_else(|| language_of(&notes)).or(voice.language).unwrap_or_default();
    let speech = Speech::of(&voice, language);
    let placed = place(&notes, &input.photos);
    if input.photos.photos.is_empty() && placed.is_empty() {
        return Err(refused("draft", "there are neither photos nor notes to write about"));
    }
    let fresh = compose(&input.photos, &placed, &voice, &speech);
    let (text, changes) = match &input.revision {
        Some(revision) => {
            check_length("draft", "revision.candidate", &revision.text())?;
            revise(revision, &fresh.text, &input.photos, &placed, &voice, &notes, &speech)
        }
        None => (fresh.text, Vec::new()),
    };
    let note = match language {
        Language::Ko => "모델 없이 사진 정보와 메모로 엮은 글",
        Language::En => "composed without a model",
    };
    Ok(json!({
        "title": placed.title,
        "text": text,
        "language": language,
        "used_photos": fresh.used_photos,
        "changes": changes,
        "note": note,
        "by": BY_EMBEDDED,
        "model": Value::Null,
    }))
}

/// What the notes call the stops, in their order; stops without a name are left out.
pub(in crate::agents) fn stop_names(notes: &str, photos: &PhotoList, language: Language) -> Vec<String> {
    labels(&place(notes, photos), language, photos.stops.len()).into_iter().flatten().collect()
}
