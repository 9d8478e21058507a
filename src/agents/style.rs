//! The agent `style` without a model: the author's voice, measured from earlier posts. Without posts it states a neutral default
//! and says so; it never judges a voice.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    input::{check_length, language_or_none, null_as_default, read},
    korean::ending_of,
    shapes::{BY_EMBEDDED, KoreanEnding},
    text::{is_emoji, prose, sentences, shortened},
    words::{keywords, language_of},
};
use crate::model::{language::Language, reply::AttemptFailure};

/// The most posts that are measured; an author's voice does not change with the hundred and first.
const POSTS_MAX: usize = 100;
/// How many favourite words and emoji are told.
const FAVOURITES_MAX: usize = 8;
/// A habit is a sentence that at least so many posts share.
const HABIT_POSTS_MIN: usize = 2;
/// Samples of openings and closings are cut to so many characters.
const SAMPLE_CHARS_MAX: usize = 120;
/// From this share of the Korean sentences on an ending is the author's.
const ENDING_SHARE_MIN: f64 = 0.4;

#[derive(Debug, Deserialize)]
struct Input {
    #[serde(default, deserialize_with = "null_as_default")]
    earlier: Vec<Post>,
    #[serde(default)]
    notes: Option<String>,
    #[serde(default, deserialize_with = "language_or_none")]
    language: Option<Language>,
}

#[derive(Debug, Deserialize)]
struct Post {
    #[serde(default)]
    name: String,
    #[serde(default)]
    text: Option<String>,
}

#[derive(Debug, Default)]
struct Measured {
    sentences: Vec<String>,
    paragraphs: usize,
    openings: Vec<String>,
    closings: Vec<String>,
    posts: usize,
}

/// Measures the voice of `{"earlier": [{"name", "text"}] | null, "notes": text | null, "language": "ko" | "en" | null}`.
pub(super) fn compute(input: &Value) -> Result<Value, AttemptFailure> {
    let input: Input = read("style", input)?;
    for post in &input.earlier {
        check_length("style", &format!("earlier {:?}", post.name), post.text.as_deref().unwrap_or_default())?;
    }
    let notes = input.notes.unwrap_or_default();
    check_length("style", "notes", &notes)?;
    let texts: Vec<&str> = input.earlier.iter().filter_map(|post| post.text.as_deref()).take(POSTS_MAX).collect();
    let whole = texts.join("\n\n");
    let language = input.language.or_else(|| language_of(&whole)).or_else(|| language_of(&notes)).unwrap_or_default();
    let measured = measure(&texts);
    Ok(if measured.sentences.is_empty() { neutral(language) } else { told(&measured, &whole, language) })
}

fn measure(texts: &[&str]) -> Measured {
    let mut measured = Measured::default();
    for text in texts {
        let paragraphs = prose(text);
        let found: Vec<String> = paragraphs.iter().flat_map(|paragraph| sentences(paragraph)).collect();
        let (Some(first), Some(last)) = (found.first(), found.last()) else { continue };
        measured.posts += 1;
        measured.paragraphs += paragraphs.len();
        measured.openings.push(first.clone());
        measured.closings.push(last.clone());
        measured.sentences.extend(found);
    }
    measured
}

/// What is assumed of an author of whom nothing is known.
fn neutral(language: Language) -> Value {
    let (ending, description) = match language {
        Language::Ko => ("da", "이전 글이 없어서 꾸밈없는 기본 문체(-다)를 쓴다."),
        Language::En => ("none", "There are no earlier posts, so a plain neutral voice is used."),
    };
    json!({
        "language": language,
        "description": description,
        "ending": ending,
        "basis": 0,
        "by": BY_EMBEDDED,
        "model": Value::Null,
    })
}

fn told(measured: &Measured, whole: &str, language: Language) -> Value {
    let count = measured.sentences.len() as f64;
    let share = |holds: &dyn Fn(&str) -> bool| {
        rounded(measured.sentences.iter().filter(|sentence| holds(sentence)).count() as f64 / count)
    };
    let mean = |size: &dyn Fn(&str) -> usize| {
        rounded(measured.sentences.iter().map(|sentence| size(sentence) as f64).sum::<f64>() / count)
    };
    let endings = Endings::of(&measured.sentences);
    let chars_mean = mean(&|sentence| sentence.chars().count());
    let exclamation = share(&|sentence| sentence.contains('!'));
    let emoji = share(&|sentence| sentence.chars().any(is_emoji));
    let ending = match language {
        Language::Ko => endings.main(),
        Language::En => "none",
    };
    let favourite_words: Vec<String> =
        keywords(whole, language).into_iter().take(FAVOURITES_MAX).map(|keyword| keyword.word).collect();
    let sample = |texts: &[String]| -> Vec<String> {
        texts.iter().take(5).map(|text| shortened(text, SAMPLE_CHARS_MAX)).collect()
    };
    json!({
        "language": language,
        "description": described(language, measured.posts, ending, chars_mean, exclamation, emoji),
        "ending": ending,
        "ending_shares": { "da": endings.share(0), "yo": endings.share(1), "seumnida": endings.share(2) },
        "sentence_chars_mean": chars_mean,
        "sentence_words_mean": mean(&|sentence| sentence.split_whitespace().count()),
        "paragraph_sentences_mean": rounded(count / measured.paragraphs.max(1) as f64),
        "exclamation_share": exclamation,
        "emoji_share": emoji,
        "ellipsis_share": share(&|sentence| sentence.contains('…') || sentence.contains("...")),
        "favourite_words": favourite_words,
        "favourite_emoji": favourite_emoji(whole),
        "openings": sample(&measured.openings),
        "closings": sample(&measured.closings),
        "habitual_opening": habit(&measured.openings),
        "habitual_closing": habit(&measured.closings),
        "person": person(whole, language),
        "basis": measured.posts,
        "by": BY_EMBEDDED,
        "model": Value::Null,
    })
}

/// How many Korean sentences end in each of the three ways.
struct Endings {
    counts: [usize; 3],
    sentences: usize,
}

impl Endings {
    const NAMES: [&'static str; 3] = ["da", "yo", "seumnida"];

    fn of(sentences: &[String]) -> Self {
        let mut counts = [0; 3];
        for sentence in sentences {
            match ending_of(sentence) {
                Some(KoreanEnding::Da) => counts[0] += 1,
                Some(KoreanEnding::Yo) => counts[1] += 1,
                Some(KoreanEnding::Seumnida) => counts[2] += 1,
                None => {}
            }
        }
        Self { counts, sentences: sentences.len() }
    }

    fn share(&self, index: usize) -> f64 {
        rounded(self.counts[index] as f64 / self.sentences.max(1) as f64)
    }

    /// The ending that carries the posts; the neutral one where none does.
    fn main(&self) -> &'static str {
        let most = (0..3).max_by_key(|index| (self.counts[*index], 2 - index)).unwrap_or(0);
        if self.share(most) >= ENDING_SHARE_MIN { Self::NAMES[most] } else { "da" }
    }
}

fn described(language: Language, posts: usize, ending: &str, chars_mean: f64, exclamation: f64, emoji: f64) -> String {
    match language {
        Language::Ko => {
            let form = match ending {
                "yo" => "부드러운 해요체",
                "seumnida" => "정중한 합니다체",
                _ => "담백한 한다체",
            };
            let marks = match (exclamation >= 0.1, emoji >= 0.05) {
                (true, true) => "느낌표와 그림 문자를 섞어 쓴다",
                (true, false) => "느낌표를 자주 쓴다",
                (false, true) => "그림 문자를 곁들인다",
                (false, false) => "느낌표와 그림 문자는 거의 쓰지 않는다",
            };
            format!("글 {posts}편에서 잰 문체: {form}, 한 문장은 평균 {chars_mean:.0}자, {marks}.")
        }
        Language::En => {
            let length = if chars_mean < 60.0 {
                "short"
            } else if chars_mean < 110.0 {
                "middling"
            } else {
                "long"
            };
            let marks = match (exclamation >= 0.1, emoji >= 0.05) {
                (true, true) => "exclamation marks and emoji",
                (true, false) => "exclamation marks",
                (false, true) => "emoji",
                (false, false) => "neither exclamation marks nor emoji",
            };
            let noun = if posts == 1 { "post" } else { "posts" };
            format!(
                "Measured from {posts} {noun}: {length} sentences of {chars_mean:.0} characters on average, {marks}."
            )
        }
    }
}

fn favourite_emoji(text: &str) -> Vec<String> {
    let mut counts: Vec<(char, usize)> = Vec::new();
    let mut at: HashMap<char, usize> = HashMap::new();
    for character in text.chars().filter(|character| is_emoji(*character)) {
        let index = *at.entry(character).or_insert_with(|| {
            counts.push((character, 0));
            counts.len() - 1
        });
        counts[index].1 += 1;
    }
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    counts.into_iter().take(FAVOURITES_MAX).map(|(character, _)| character.to_string()).collect()
}

/// The sentence that most posts share, if at least [`HABIT_POSTS_MIN`] do.
fn habit(texts: &[String]) -> Option<&String> {
    let shared = |text: &String| texts.iter().filter(|other| *other == text).count();
    let most = texts.iter().rev().max_by_key(|text| shared(text))?;
    (shared(most) >= HABIT_POSTS_MIN && most.chars().count() <= SAMPLE_CHARS_MAX).then_some(most)
}

fn person(text: &str, language: Language) -> &'static str {
    let (singular, plural): (&[&str], &[&str]) = match language {
        Language::Ko => {
            (&["저는", "제가", "저도", "나는", "내가", "나도"], &["우리는", "우리가", "우리도", "저희는", "저희가"])
        }
        Language::En => (&["I", "I'm", "I've", "me", "my"], &["we", "We", "we're", "us", "our"]),
    };
    let count = |words: &[&str]| {
        text.split(|character: char| !(character.is_alphanumeric() || character == '\''))
            .filter(|word| words.contains(word))
            .count()
    };
    match (count(singular), count(plural)) {
        (0, 0) => "none",
        (one, many) if one >= many => "first_singular",
        _ => "first_plural",
    }
}

fn rounded(number: f64) -> f64 {
    (number * 100.0).round() / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_voice_is_measured() {
        let posts = json!({ "earlier": [
            { "name": "a.md", "text": "# 제목\n\n안녕하세요! 바다에 갔어요. 바람이 좋았어요.\n\n저는 바다가 좋아요. 또 올게요 🌊" },
            { "name": "b.md", "text": "안녕하세요! 산에 올랐어요. 힘들었습니다." },
            { "name": "c.bin", "text": null },
        ]});
        let voice = compute(&posts).unwrap();
        assert_eq!(voice["language"], "ko");
        assert_eq!(voice["ending"], "yo");
        assert_eq!(voice["basis"], 2);
        assert_eq!(voice["habitual_opening"], "안녕하세요!");
        assert_eq!(voice["habitual_closing"], Value::Null);
        assert_eq!(voice["person"], "first_singular");
        assert_eq!(voice["favourite_emoji"], json!(["🌊"]));
        assert_eq!(voice["exclamation_share"], 0.25);
    }

    #[test]
    fn without_posts_the_default_is_stated() {
        for (input, language, ending) in [
            (json!({}), "en", "none"),
            (json!({ "earlier": null, "language": "ko" }), "ko", "da"),
            (json!({ "earlier": [], "notes": "바다에 갔다" }), "ko", "da"),
            (json!({ "earlier": [{ "name": "x", "text": "..." }] }), "en", "none"),
        ] {
            let voice = compute(&input).unwrap();
            assert_eq!((&voice["language"], &voice["ending"]), (&json!(language), &json!(ending)), "{input}");
            assert_eq!(voice["basis"], 0);
        }
    }

    #[test]
    fn a_wrong_input_is_refused_like_a_422() {
        for input in [json!(3), json!({ "earlier": "text" }), json!({ "language": "fr" })] {
            let failure = compute(&input).unwrap_err();
            assert_eq!(failure.status, Some(422), "{input}");
        }
    }
}
