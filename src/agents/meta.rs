//! The agent `meta` without a model: title, tags and summary of a post, taken from its words, its notes and its photos' facts.
//! Invents nothing: every word of them stands in the post, the notes or the facts.

use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    draft::{english, korean},
    input::{check_length, check_photos, language_or_none, null_as_default, read},
    shapes::{BY_EMBEDDED, PhotoList},
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
const WORD_TAGS_MAX: usize = 5;
/// The longest tag, in characters.
const TAG_CHARS_MAX: usize = 40;
/// The longest summary, in characters.
const SUMMARY_CHARS_MAX: usize = 200;
/// Fuller summaries are not sought: two sentences say enough.
const SUMMARY_SENTENCES_MAX: usize = 2;
/// Sentences past these are not looked at for the summary.
const SENTENCES_MAX: usize = 500;

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
    let source = if input.notes.trim().is_empty() { String::new() } else { input.notes.clone() };
    let words = keywords(&source, language);
    Ok(json!({
        "title": title(&input, &words, language),
        "tags": tags(&input.photos, &words, language),
        "summary": summary(&text, &words, language, &input.photos),
        "language": language,
        "by": BY_EMBEDDED,
        "model": Value::Null,
    }))
}

fn title(input: &Input, words: &[Keyword], language: Language) -> String {
    if let Some(own) = own_title(&input.notes) {
        return shortened(&own, TITLE_CHARS_MAX);
    }
    let day = input.photos.days().first().copied();
    let date = day.map(|day| match language {
        Language::Ko => korean::date(day),
        Language::En => english::date(day),
    });
    let names = title_names(&input.notes, words);
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

/// The weightiest places of the notes in the order in which they come, else the weightiest word.
fn title_names(notes: &str, words: &[Keyword]) -> Vec<String> {
    let mut places: Vec<&Keyword> = words.iter().filter(|word| word.is_place).take(TITLE_NAMES_MAX).collect();
    if places.is_empty() {
        return words.first().map(|word| word.word.clone()).into_iter().collect();
    }
    places.sort_by_key(|place| notes.find(&place.word));
    places.into_iter().map(|place| place.word.clone()).collect()
}

/// Words of the notes, then what the facts say: year, camera, kind of post.
fn tags(photos: &PhotoList, words: &[Keyword], language: Language) -> Vec<String> {
    let mut tags: Vec<String> = words.iter().take(WORD_TAGS_MAX).map(|word| word.word.clone()).collect();
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
    let has_words = !words.is_empty();
    let camera = photos.usable().find_map(|photo| photo.camera.as_deref()).filter(|_| !has_words);
    tags.extend(camera.map(tag_of));
    for word in general {
        if tags.len() >= TAGS_MIN && has_words {
            break;
        }
        tags.push(word.to_owned());
    }
    tags.retain(|tag| !tag.is_empty());
    let mut seen = std::collections::HashSet::new();
    tags.retain(|tag| seen.insert(tag.to_lowercase()));
    tags.truncate(TAGS_MAX);
    tags
}

/// A text as one tag: `NIKON COOLPIX P6000` → `nikon-coolpix-p6000`.
fn tag_of(text: &str) -> String {
    let joined: Vec<String> = text.split_whitespace().map(str::to_lowercase).collect();
    joined.join("-").chars().take(TAG_CHARS_MAX).collect()
}

/// The two sentences with the most weight for their length, in the order of the text; the first ones where no word tells.
fn summary(paragraphs: &[String], words: &[Keyword], language: Language, photos: &PhotoList) -> String {
    let all: Vec<String> =
        paragraphs.iter().flat_map(|paragraph| sentences(paragraph)).take(SENTENCES_MAX).collect();
    let weight = |sentence: &String| -> f64 {
        let lower = sentence.to_lowercase();
        words.iter().take(20).filter(|word| lower.contains(&word.word.to_lowercase())).map(|word| word.weight).sum()
    };
    let mut ranked: Vec<(usize, f64)> = all.iter().enumerate().map(|(index, one)| (index, weight(one))).collect();
    ranked.sort_by(|left, right| right.1.total_cmp(&left.1).then(left.0.cmp(&right.0)));
    let mut chosen: Vec<usize> = Vec::new();
    let mut chars = 0;
    for (index, _) in ranked {
        let length = all[index].chars().count() + 1;
        if chosen.len() < SUMMARY_SENTENCES_MAX && chars + length <= SUMMARY_CHARS_MAX {
            chosen.push(index);
            chars += length;
        }
    }
    chosen.sort_unstable();
    let text = chosen.iter().map(|index| all[*index].as_str()).collect::<Vec<_>>().join(" ");
    if !text.is_empty() {
        return text;
    }
    match all.first() {
        Some(first) => shortened(first, SUMMARY_CHARS_MAX),
        None => match language {
            Language::Ko => format!("사진 {}의 기록.", super::korean::photos_counted(photos.usable().count())),
            Language::En => format!("A record of {}.", english::pictures(photos.usable().count())),
        },
    }
}

fn capital(text: &str) -> String {
    let mut characters = text.chars();
    characters.next().map_or_else(String::new, |first| first.to_uppercase().chain(characters).collect())
}
