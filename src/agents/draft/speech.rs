//! What the composer says of facts, in either language: chooses the language once, so that nothing else has to ask for it.

use jiff::civil::{Date, DateTime};

use super::{english, korean};
use crate::{
    agents::shapes::{KoreanEnding, Place, Voice},
    model::language::Language,
};

/// Authors whose sentences are shorter than this on average get two short sentences in place of a joined one.
const SHORT_SENTENCE_CHARS_KO: f64 = 24.0;
/// The same for English.
const SHORT_SENTENCE_CHARS_EN: f64 = 55.0;
/// From this share of sentences on the author is one who uses emoji.
const EMOJI_SHARE_MIN: f64 = 0.08;

/// Whether facts are joined into one sentence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rhythm {
    /// One fact, one sentence.
    Short,
    /// Two facts may share one.
    Long,
}

/// How the post speaks.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Speech {
    /// In which language.
    pub(super) language: Language,
    /// How Korean sentences end.
    pub(super) ending: KoreanEnding,
    /// How long sentences are.
    pub(super) rhythm: Rhythm,
    /// The author's emoji, if there is one.
    pub(super) emoji: Option<String>,
}

/// What the first lines of a post are about.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct DayFacts {
    /// The days of the photos.
    pub(super) days: Vec<Date>,
    /// First and last photo.
    pub(super) span: Option<(DateTime, DateTime)>,
    /// How many photos there are to show.
    pub(super) photos: usize,
    /// How many stops.
    pub(super) stops: usize,
    /// Along the way.
    pub(super) metres: Option<u64>,
}

/// What a line about one stop is about.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct StopFacts {
    /// From 0.
    pub(super) index: usize,
    /// True for the last of several.
    pub(super) is_last: bool,
    /// How many photos.
    pub(super) photos: usize,
    /// Of the first and the last.
    pub(super) span: Option<(DateTime, DateTime)>,
    /// From the stop before.
    pub(super) metres: Option<u64>,
    /// True where a new day begins.
    pub(super) is_new_day: bool,
}

impl Speech {
    /// Speaks as the voice does.
    pub(super) fn of(voice: &Voice, language: Language) -> Self {
        let limit = match language {
            Language::Ko => SHORT_SENTENCE_CHARS_KO,
            Language::En => SHORT_SENTENCE_CHARS_EN,
        };
        let is_short = voice.sentence_chars_mean.is_some_and(|mean| mean > 0.0 && mean < limit);
        let fitting = voice.favourite_emoji.iter().find(|emoji| emoji.chars().all(fits_any_subject));
        let emoji = fitting.filter(|_| voice.emoji_share >= EMOJI_SHARE_MIN);
        Self {
            language,
            ending: voice.ending,
            rhythm: if is_short { Rhythm::Short } else { Rhythm::Long },
            emoji: emoji.cloned(),
        }
    }

    /// A sentence of the author's notes in the post's voice.
    pub(super) fn own_words(&self, sentence: &str) -> String {
        match self.language {
            Language::Ko => crate::agents::korean::restyle(sentence, self.ending),
            Language::En => sentence.to_owned(),
        }
    }

    /// The first sentences of a post: when and how much.
    pub(super) fn opening(&self, facts: &DayFacts, has_notes: bool) -> Vec<String> {
        match self.language {
            Language::Ko => korean::opening(self, facts, has_notes),
            Language::En => english::opening(self, facts, has_notes),
        }
    }

    /// The heading of a stop; `label` is what the notes call it.
    pub(super) fn stop_heading(&self, facts: &StopFacts, label: Option<&str>) -> String {
        match self.language {
            Language::Ko => korean::stop_heading(facts, label),
            Language::En => english::stop_heading(facts, label),
        }
    }

    /// The sentences about a stop of which the notes say nothing.
    pub(super) fn stop(&self, facts: &StopFacts) -> Vec<String> {
        match self.language {
            Language::Ko => korean::stop(self, facts),
            Language::En => english::stop(self, facts),
        }
    }

    /// The sentence that joins several photos to what the notes say of their stop; none for one photo.
    pub(super) fn several(&self, facts: &StopFacts) -> Option<String> {
        match self.language {
            Language::Ko => korean::several(self, facts),
            Language::En => english::several(facts),
        }
    }

    /// What stands under a picture.
    pub(super) fn caption(&self, taken: Option<DateTime>, day: Option<Date>, place: Option<Place>) -> Vec<String> {
        match self.language {
            Language::Ko => korean::caption(taken, day, place),
            Language::En => english::caption(taken, day, place),
        }
    }

    /// Heading and sentence above photos without a time.
    pub(super) fn undated(&self, photos: usize) -> (String, String) {
        match self.language {
            Language::Ko => korean::undated(self, photos),
            Language::En => english::undated(photos),
        }
    }

    /// What is said of files that cannot be shown.
    pub(super) fn unusable(&self, names: &[String]) -> String {
        match self.language {
            Language::Ko => korean::unusable(self, names),
            Language::En => english::unusable(names),
        }
    }

    /// How far it was, for the end of a post with notes.
    pub(super) fn distance(&self, facts: &DayFacts) -> Option<String> {
        let metres = facts.metres.filter(|metres| *metres >= 300)?;
        Some(match self.language {
            Language::Ko => korean::distance(self, metres, facts.stops),
            Language::En => english::distance(metres),
        })
    }

    /// The last sentence of a post without notes.
    pub(super) fn closing(&self, tells_places: bool) -> String {
        match self.language {
            Language::Ko => korean::closing(self, tells_places),
            Language::En => english::closing(tells_places),
        }
    }
}

/// Faces, hearts and sparkles; a wave or a book says something that the post may not be about.
fn fits_any_subject(emoji: char) -> bool {
    matches!(u32::from(emoji), 0x1F600..=0x1F64F | 0x1F970 | 0x2728 | 0x2764)
}

/// `800 m`, `1.3 km`.
pub(super) fn far(metres: u64, space: &str) -> String {
    if metres < 1_000 {
        format!("{metres}{space}m")
    } else {
        let kilometres = format!("{:.1}", metres as f64 / 1_000.0);
        format!("{}{space}km", kilometres.strip_suffix(".0").unwrap_or(&kilometres))
    }
}
