//! Composes a post: an opening with the day, a section a stop with its notes and pictures, an end. Shows every photo, in order;
//! says nothing that is neither in the notes nor in the facts.

use jiff::civil::{Date, DateTime};

use super::{
    notes::PlacedNotes,
    pictures::picture,
    speech::{DayFacts, Speech, StopFacts},
};
use crate::{
    agents::{
        shapes::{PhotoFacts, PhotoList, Stop, Voice, moment},
        words::keywords,
    },
    model::language::Language,
};

/// A label of a section is at most so long; longer words are no names.
const LABEL_CHARS_MAX: usize = 16;

/// A composed post.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Composed {
    /// Markdown, without a title.
    pub(super) text: String,
    /// Names of the photos it shows.
    pub(super) used_photos: Vec<String>,
}

/// The photos cut into what a post shows one after the other.
pub(super) struct Sections<'a> {
    stops: Vec<(&'a Stop, Vec<&'a PhotoFacts>)>,
    undated: Vec<&'a PhotoFacts>,
    unusable: Vec<String>,
}

impl<'a> Sections<'a> {
    /// Every photo lands in exactly one part, also where a backend named stops that leave some out.
    pub(super) fn of(photos: &'a PhotoList) -> Self {
        let mut taken_by_stop = std::collections::HashSet::new();
        let by_name: std::collections::HashMap<&str, &PhotoFacts> =
            photos.usable().map(|photo| (photo.name.as_str(), photo)).collect();
        let mut stops = Vec::with_capacity(photos.stops.len());
        for stop in &photos.stops {
            let shown: Vec<&PhotoFacts> = stop
                .photos
                .iter()
                .filter(|name| taken_by_stop.insert(name.as_str()))
                .filter_map(|name| by_name.get(name.as_str()).copied())
                .collect();
            stops.push((stop, shown));
        }
        let undated = photos.usable().filter(|photo| !taken_by_stop.contains(photo.name.as_str())).collect();
        let unusable = photos.photos.iter().filter(|photo| !photo.usable).map(|photo| photo.name.clone()).collect();
        Self { stops, undated, unusable }
    }

    /// All photos that are shown, in order.
    fn names(&self) -> Vec<String> {
        let dated = self.stops.iter().flat_map(|(_, shown)| shown.iter());
        dated.chain(&self.undated).map(|photo| photo.name.clone()).collect()
    }
}

/// The facts of the first lines.
pub(super) fn day_facts(photos: &PhotoList) -> DayFacts {
    let mut moments: Vec<_> = photos.usable().filter_map(PhotoFacts::moment).collect();
    moments.sort_unstable();
    DayFacts {
        days: photos.days(),
        span: moments.first().copied().zip(moments.last().copied()),
        photos: photos.usable().count(),
        stops: photos.stops.len(),
        metres: photos.distance_metres,
    }
}

/// Composes the post.
pub(super) fn compose(photos: &PhotoList, notes: &PlacedNotes, voice: &Voice, speech: &Speech) -> Composed {
    let sections = Sections::of(photos);
    let facts = day_facts(photos);
    let has_notes = !notes.is_empty();
    let mut blocks = opening(notes, voice, speech, &facts, has_notes);
    let labels = labels(notes, speech.language, sections.stops.len());
    let mut day: Option<Date> = facts.days.first().copied();
    for (index, (stop, shown)) in sections.stops.iter().enumerate() {
        let own = notes.stops.get(index).map(Vec::as_slice).unwrap_or_default();
        if shown.is_empty() && own.is_empty() {
            continue;
        }
        let stop_facts = stop_facts(stop, index, sections.stops.len(), shown.len(), day);
        blocks.extend(section(stop, shown, own, speech, &stop_facts, labels[index].as_deref(), index == 0));
        day = stop_facts.span.map(|(first, _)| first.date()).or(day);
    }
    blocks.extend(apart(&sections, speech));
    blocks.extend(ending(notes, voice, speech, &facts, &sections, has_notes));
    Composed { text: blocks.join("\n\n"), used_photos: sections.names() }
}

fn own_words(sentences: &[String], speech: &Speech) -> String {
    sentences.iter().map(|sentence| speech.own_words(sentence)).collect::<Vec<_>>().join(" ")
}

fn opening(notes: &PlacedNotes, voice: &Voice, speech: &Speech, facts: &DayFacts, has_notes: bool) -> Vec<String> {
    let mut first = Vec::new();
    first.extend(voice.habitual_opening.clone().filter(|_| voice.language == Some(speech.language)));
    first.extend(speech.opening(facts, has_notes));
    let mut blocks = Vec::new();
    if !first.is_empty() {
        blocks.push(first.join(" "));
    }
    if !notes.intro.is_empty() {
        blocks.push(own_words(&notes.intro, speech));
    }
    blocks
}

fn stop_facts(stop: &Stop, index: usize, stops: usize, photos: usize, day: Option<Date>) -> StopFacts {
    let first = stop.first.as_deref().and_then(moment);
    let last = stop.last.as_deref().and_then(moment).or(first);
    StopFacts {
        index,
        is_last: index > 0 && index + 1 == stops,
        photos,
        span: first.zip(last),
        metres: stop.metres_from_previous,
        is_new_day: first.is_some_and(|first| day.is_some_and(|day| day != first.date())),
    }
}

fn section(
    stop: &Stop,
    shown: &[&PhotoFacts],
    own: &[String],
    speech: &Speech,
    facts: &StopFacts,
    label: Option<&str>,
    says_day: bool,
) -> Vec<String> {
    let mut blocks = vec![speech.stop_heading(facts, label)];
    let mut sentences = Vec::new();
    if own.is_empty() {
        sentences.extend(speech.stop(facts));
    } else {
        sentences.push(own_words(own, speech));
        sentences.extend(speech.several(facts));
    }
    blocks.push(sentences.join(" "));
    for (index, photo) in shown.iter().enumerate() {
        let taken = photo.moment();
        let tells_day = index == 0 && (says_day || facts.is_new_day);
        let place = stop.place.filter(|_| index == 0);
        let details = speech.caption(taken, taken.map(DateTime::date).filter(|_| tells_day), place);
        blocks.push(picture(&photo.name, &details));
    }
    blocks
}

/// Photos without a time, and files that cannot be shown.
fn apart(sections: &Sections<'_>, speech: &Speech) -> Vec<String> {
    let mut blocks = Vec::new();
    if !sections.undated.is_empty() {
        if !sections.stops.is_empty() {
            let (heading, sentence) = speech.undated(sections.undated.len());
            blocks.extend([heading, sentence]);
        }
        for photo in &sections.undated {
            blocks.push(picture(&photo.name, &speech.caption(photo.moment(), None, None)));
        }
    }
    if !sections.unusable.is_empty() {
        blocks.push(format!("*{}*", speech.unusable(&sections.unusable)));
    }
    blocks
}

fn ending(
    notes: &PlacedNotes,
    voice: &Voice,
    speech: &Speech,
    facts: &DayFacts,
    sections: &Sections<'_>,
    has_notes: bool,
) -> Vec<String> {
    let mut sentences: Vec<String> = Vec::new();
    if has_notes {
        sentences.extend(speech.distance(facts).filter(|_| facts.stops > 1));
        if !notes.closing.is_empty() {
            sentences.push(own_words(&notes.closing, speech));
        }
    } else {
        let tells_places = sections.stops.iter().any(|(stop, _)| stop.place.is_some());
        sentences.push(speech.closing(tells_places));
    }
    let habit = voice.habitual_closing.clone().filter(|_| voice.language == Some(speech.language));
    if let (Some(emoji), Some(last)) = (&speech.emoji, sentences.last_mut()) {
        last.push(' ');
        last.push_str(emoji);
    }
    let mut blocks = Vec::new();
    if !sentences.is_empty() {
        // The last section is about its stop; a rule sets the end of the whole post apart from it.
        blocks.extend((facts.stops > 0).then(|| "---".to_owned()));
        blocks.push(sentences.join(" "));
    }
    blocks.extend(habit);
    blocks
}

/// What the notes call each stop: the weightiest word that stands where a place stands, each once.
pub(super) fn labels(notes: &PlacedNotes, language: Language, stops: usize) -> Vec<Option<String>> {
    let mut used: Vec<String> = Vec::new();
    let mut labels = vec![None; stops];
    for (label, own) in labels.iter_mut().zip(&notes.stops) {
        let found = keywords(&own.join(" "), language).into_iter().find(|keyword| {
            keyword.is_place && keyword.word.chars().count() <= LABEL_CHARS_MAX && !used.contains(&keyword.word)
        });
        if let Some(keyword) = found {
            used.push(keyword.word.clone());
            *label = Some(keyword.word);
        }
    }
    labels
}
