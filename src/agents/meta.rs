//! The agent `meta` without a model: title, tags and summary of a post, taken from its words, its notes and its photos' facts.
//! Invents nothing: every word of them stands in the post, the notes or the facts.

use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    draft::{english, korean, stop_names},
    input::{check_length, check_photos, language_or_none, null_as_default, read},
    shapes::{BY_EMBEDDED, PhotoFacts, PhotoList},
    text::{is_heading, prose, sentences, shortened},
    words::{Keyword, keywords, language_of},
};
use crate::model::{language::Language, reply::AttemptFailure};

/// The longest title, in characters.
const TITLE_CHARS_MAX: usize = 80;
/// So many names at most stand in a title.
const TITLE_NAMES_MAX: usize = 3;
/// The fewest and most tags.
const TAGS_MIN: usize = 3;
const TAGS_MAX: usize = 8;
/// So many of the tags are words of the text.
const WORD_TAGS_MAX: usize = 6;
/// What a word gains that stands in the notes' heading: more than a place's name has.
const HEADING_WEIGHT: f64 = 5.0;
/// So many places at most stand in a summary.
const SUMMARY_NAMES_MAX: usize = 6;
/// The longest tag, in characters.
const TAG_CHARS_MAX: usize = 40;
/// The longest summary, in characters.
const SUMMARY_CHARS_MAX: usize = 200;
/// Two sentences say enough.
const SUMMARY_SENTENCES_MAX: usize = 2;

#[derive(Debug, Deserialize)]
struct Input {
    draft: String,
    #[serde(default, deserialize_with = "null_as_default")]
    photos: PhotoList,
    #[serde(default, deserialize_with = "null_as_default")]
    notes: String,
    #[serde(default, deserialize_with = "language_or_none")]
    language: Option<Language>,
}

/// Names the post of `{"draft": text, "photos", "notes": text | null, "language"}`.
pub(super) fn compute(input: &Value) -> Result<Value, AttemptFailure> {
    let input: Input = read("meta", input)?;
    check_length("meta", "draft", &input.draft)?;
    check_length("meta", "notes", &input.notes)?;
    check_photos("meta", input.photos.photos.len())?;
    let text = prose(&input.draft);
    let language = input.language.or_else(|| language_of(&text.join(" "))).unwrap_or_default();
    // The author's own words say best what a post is about; a post without notes is about its pictures.
    let words = note_words(&input.notes, language);
    Ok(json!({
        "title": title(&input, &words, language),
        "tags": tags(&input.photos, &words, language),
        "summary": summary(&input, &text, language),
        "language": language,
        "by": BY_EMBEDDED,
        "model": Value::Null,
    }))
}

/// The notes' content words; those of their heading weigh most.
fn note_words(notes: &str, language: Language) -> Vec<Keyword> {
    let heading = own_title(notes).unwrap_or_default().to_lowercase();
    let mut words = keywords(notes, language);
    for word in &mut words {
        if heading.contains(&word.word.to_lowercase()) {
            word.weight += HEADING_WEIGHT;
        }
    }
    words.sort_by(|left, right| right.weight.total_cmp(&left.weight));
    words
}

fn title(input: &Input, words: &[Keyword], language: Language) -> String {
    if let Some(own) = own_title(&input.notes) {
        return shortened(&own, TITLE_CHARS_MAX);
    }
    let days = input.photos.days();
    let date = days.first().zip(days.last()).map(|(first, last)| match language {
        Language::Ko => korean::days(*first, *last),
        Language::En => english::days(*first, *last, "to"),
    });
    let mut names = stop_names(&input.notes, &input.photos, language);
    names.truncate(TITLE_NAMES_MAX);
    if names.is_empty() {
        names.extend(words.first().map(|word| word.word.clone()));
    }
    let photos = input.photos.usable().count();
    let text = match (language, date, names.is_empty()) {
        (Language::Ko, Some(date), true) => format!("{date}, 사진 {}", super::korean::photos_counted(photos)),
        (Language::Ko, Some(date), false) => format!("{}, {date}", korean::listed(&names)),
        (Language::Ko, None, true) if photos > 0 => format!("사진 {}", super::korean::photos_counted(photos)),
        (Language::Ko, None, true) => "메모에서".to_owned(),
        (Language::Ko, None, false) => korean::listed(&names),
        (Language::En, Some(date), true) => format!("{} from {date}", capital(&english::pictures(photos))),
        (Language::En, Some(date), false) => format!("{}, {date}", capital(&english::listed(&names))),
        (Language::En, None, true) if photos > 0 => capital(&english::pictures(photos)),
        (Language::En, None, true) => "From my notes".to_owned(),
        (Language::En, None, false) => capital(&english::listed(&names)),
    };
    shortened(&text, TITLE_CHARS_MAX)
}

/// The notes' own heading, if they begin with one.
fn own_title(notes: &str) -> Option<String> {
    let first = notes.lines().map(str::trim).find(|line| !line.is_empty())?;
    let heading = first.trim_start_matches('#').trim();
    (is_heading(first) && !heading.is_empty()).then(|| heading.to_owned())
}

/// Words of the notes, then what the facts say: year, camera, kind of post.
fn tags(photos: &PhotoList, words: &[Keyword], language: Language) -> Vec<String> {
    let mut tags: Vec<String> = words.iter().take(WORD_TAGS_MAX).map(|word| tag_of(&word.word)).collect();
    let general: [&str; 3] = match language {
        Language::Ko => ["사진", "일상", "기록"],
        Language::En => ["photos", "diary", "day-out"],
    };
    if let Some(day) = photos.days().first() {
        tags.push(match language {
            Language::Ko => format!("{}년{}월", day.year(), day.month()),
            Language::En => format!("{}-{}", english::month(*day).to_lowercase(), day.year()),
        });
    }
    let camera = photos.usable().find_map(|photo| photo.camera.as_deref()).filter(|_| words.is_empty());
    tags.extend(camera.map(tag_of));
    tags.extend(general.map(str::to_owned));
    tags.retain(|tag| !tag.is_empty());
    let mut seen = std::collections::HashSet::new();
    tags.retain(|tag| seen.insert(tag.to_lowercase()));
    let specific = tags.iter().filter(|tag| !general.contains(&tag.as_str())).count();
    tags.truncate(specific.clamp(TAGS_MIN, TAGS_MAX));
    tags
}

/// A text as one tag: `NIKON COOLPIX P6000` → `nikon-coolpix-p6000`.
fn tag_of(text: &str) -> String {
    let joined: Vec<String> = text.split_whitespace().map(str::to_lowercase).collect();
    joined.join("-").chars().take(TAG_CHARS_MAX).collect()
}

/// What the post holds, as a line under its title: places and number of pictures. Without pictures its first sentences.
fn summary(input: &Input, paragraphs: &[String], language: Language) -> String {
    let photos = input.photos.usable().count();
    if photos > 0 {
        return shortened(&line_of_facts(input, photos, language), SUMMARY_CHARS_MAX);
    }
    let mut text = String::new();
    for sentence in paragraphs.iter().flat_map(|paragraph| sentences(paragraph)).take(SUMMARY_SENTENCES_MAX) {
        let longer = if text.is_empty() { sentence } else { format!("{text} {sentence}") };
        if longer.chars().count() > SUMMARY_CHARS_MAX {
            return if text.is_empty() { shortened(&longer, SUMMARY_CHARS_MAX) } else { text };
        }
        text = longer;
    }
    match (text.is_empty(), language) {
        (false, _) => text,
        (true, Language::Ko) => "메모로 남긴 기록.".to_owned(),
        (true, Language::En) => "A few notes.".to_owned(),
    }
}

fn line_of_facts(input: &Input, photos: usize, language: Language) -> String {
    let mut names = stop_names(&input.notes, &input.photos, language);
    names.truncate(SUMMARY_NAMES_MAX);
    let moments: Vec<_> = input.photos.usable().filter_map(PhotoFacts::moment).collect();
    let span = moments.iter().min().copied().zip(moments.iter().max().copied());
    let is_one_day = span.is_some_and(|(from, to)| from.date() == to.date() && from != to);
    let stops = input.photos.stops.len();
    match language {
        Language::Ko => {
            let shown = format!("사진 {}", super::korean::photos_counted(photos));
            let spots = super::korean::places_counted(stops.max(1));
            match (names.is_empty(), span.filter(|_| is_one_day)) {
                (false, _) if names.len() < stops => {
                    format!("{} 등 {spots}에서 찍은 {shown}과 그때의 메모.", korean::listed(&names))
                }
                (false, _) => format!("{}에서 찍은 {shown}과 그때의 메모.", korean::listed(&names)),
                (true, Some((from, to))) => format!("{} {spots}에서 찍은 {shown}.", korean::between(from, to)),
                (true, None) => format!("{spots}에서 찍은 {shown}."),
            }
        }
        Language::En => {
            let shown = capital(&english::pictures(photos));
            let spots = format!("{} {}", english::number(stops.max(1)), if stops > 1 { "spots" } else { "spot" });
            match (names.is_empty(), span.filter(|_| is_one_day)) {
                (false, _) if names.len() < stops => {
                    format!("{shown} and notes from {spots}, among them {}.", english::listed(&names))
                }
                (false, _) => format!("{shown} and notes: {}.", english::listed(&names)),
                (true, Some((from, to))) => {
                    format!("{shown} from {spots}, between {} and {}.", english::time(from), english::time(to))
                }
                (true, None) => format!("{shown} from {spots}."),
            }
        }
    }
}

fn capital(text: &str) -> String {
    let mut characters = text.chars();
    characters.next().map_or_else(String::new, |first| first.to_uppercase().chain(characters).collect())
}
