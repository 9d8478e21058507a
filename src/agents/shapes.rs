//! The shapes that the bundled agents hand to each other: what `photos` and `style` give and `draft`, `review` and `meta` read.
//! Reading is lenient about what is missing (another backend may promise less than the twins do), never about types.

use jiff::civil::DateTime;
use serde::{Deserialize, Serialize};

use super::input::{language_or_none, null_as_default};
use crate::model::language::Language;

/// Who made an answer: every twin says so in its result.
pub(super) const BY_EMBEDDED: &str = "embedded";

/// A place on the earth, in degrees, rounded to two decimals (about 1 km).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Place {
    /// Degrees north.
    pub(super) lat: f64,
    /// Degrees east.
    pub(super) lon: f64,
}

/// What is known of one photo.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct PhotoFacts {
    /// The file's name.
    pub(super) name: String,
    /// False where the file is no picture or could not be read at all.
    #[serde(default = "yes")]
    pub(super) usable: bool,
    /// Local time of the camera, `2008-10-22T16:28:39`.
    pub(super) taken: Option<String>,
    /// Maker and model.
    pub(super) camera: Option<String>,
    /// Where, if places are allowed and known.
    pub(super) place: Option<Place>,
    /// `upright`, `upside_down`, `turned_left`, `turned_right`, `mirrored`.
    pub(super) orientation: Option<String>,
    /// Width of the stored picture, in pixels.
    pub(super) width: Option<u32>,
    /// Height of the stored picture, in pixels.
    pub(super) height: Option<u32>,
    /// Size of the file.
    pub(super) bytes: Option<u64>,
    /// What could not be learnt, and why.
    pub(super) problem: Option<String>,
}

impl PhotoFacts {
    /// The moment it was taken, where that is known.
    pub(super) fn moment(&self) -> Option<DateTime> {
        self.taken.as_deref().and_then(moment)
    }
}

/// Some photos that were taken around one place, one after the other.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Stop {
    /// 1 for the first.
    pub(super) number: usize,
    /// Time of the first photo.
    pub(super) first: Option<String>,
    /// Time of the last photo.
    pub(super) last: Option<String>,
    /// The middle of its photos, rounded.
    pub(super) place: Option<Place>,
    /// Metres from the stop before, rounded to 100.
    pub(super) metres_from_previous: Option<u64>,
    /// Names of its photos, in the order of time.
    #[serde(deserialize_with = "null_as_default")]
    pub(super) photos: Vec<String>,
}

/// What the agent `photos` gives.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct PhotoList {
    /// All photos: those with a time in its order, then the others as they came.
    #[serde(deserialize_with = "null_as_default")]
    pub(super) photos: Vec<PhotoFacts>,
    /// The stops along the way, in the order of time.
    #[serde(deserialize_with = "null_as_default")]
    pub(super) stops: Vec<Stop>,
    /// Time of the first photo.
    pub(super) first: Option<String>,
    /// Time of the last photo.
    pub(super) last: Option<String>,
    /// Minutes between the two.
    pub(super) span_minutes: Option<i64>,
    /// Metres along the way from stop to stop, rounded to 100.
    pub(super) distance_metres: Option<u64>,
}

impl PhotoList {
    /// The photos that a post can show, in their order.
    pub(super) fn usable(&self) -> impl Iterator<Item = &PhotoFacts> {
        self.photos.iter().filter(|photo| photo.usable)
    }

    /// The days on which photos were taken, each once, in their order.
    pub(super) fn days(&self) -> Vec<jiff::civil::Date> {
        let mut days: Vec<_> = self.usable().filter_map(PhotoFacts::moment).map(DateTime::date).collect();
        days.sort_unstable();
        days.dedup();
        days
    }
}

/// The three ways in which a Korean sentence of a blog ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum KoreanEnding {
    /// 했다: plain, written; the neutral one.
    #[default]
    Da,
    /// 했어요: polite, spoken.
    Yo,
    /// 했습니다: formal.
    Seumnida,
}

/// What the agent `style` gives, as far as others read it.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
pub(super) struct Voice {
    /// The author's language.
    #[serde(deserialize_with = "language_or_none")]
    pub(super) language: Option<Language>,
    /// How Korean sentences end; anything else than the three is the neutral one.
    #[serde(deserialize_with = "ending_or_neutral")]
    pub(super) ending: KoreanEnding,
    /// From how many posts it was measured; 0 = a default.
    #[serde(deserialize_with = "null_as_default")]
    pub(super) basis: u64,
    /// Mean length of a sentence, in characters.
    pub(super) sentence_chars_mean: Option<f64>,
    /// Share of sentences with an emoji.
    #[serde(deserialize_with = "null_as_default")]
    pub(super) emoji_share: f64,
    /// The emoji that the author uses most.
    #[serde(deserialize_with = "null_as_default")]
    pub(super) favourite_emoji: Vec<String>,
    /// A first sentence that several posts share.
    pub(super) habitual_opening: Option<String>,
    /// A last sentence that several posts share.
    pub(super) habitual_closing: Option<String>,
}

/// Reads a local time as `photos` writes it.
pub(super) fn moment(text: &str) -> Option<DateTime> {
    text.parse::<DateTime>().ok()
}

fn yes() -> bool {
    true
}

fn ending_or_neutral<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<KoreanEnding, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?.unwrap_or_default();
    Ok(match text.as_str() {
        "yo" => KoreanEnding::Yo,
        "seumnida" => KoreanEnding::Seumnida,
        _ => KoreanEnding::Da,
    })
}
