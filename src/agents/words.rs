//! Words of a text that say what it is about: its language, its content words, the places it names.
//! Measured by rules and small lists of function words; knows no dictionary and invents no word.

use std::collections::HashMap;

use super::{
    korean::{ends_in_consonant, final_of},
    word_lists::{
        ENGLISH_CALENDAR, ENGLISH_PLACE_KINDS, ENGLISH_PLACE_WORDS, ENGLISH_STOPWORDS, KOREAN_PLACE_ENDS_FROM_THREE,
        KOREAN_PLACE_ENDS_FROM_TWO, KOREAN_PLACE_KINDS, KOREAN_STOPWORDS, KOREAN_VERB_ENDS, LOCATIVES, PARTICLES,
    },
};
use crate::model::language::Language;

/// From this share of Hangul among the letters on a text is Korean: names, brands and file names in it are Latin.
const KOREAN_FROM_SHARE: f64 = 0.3;
/// Korean content words have at least so many syllables.
const KOREAN_SYLLABLES_MIN: usize = 2;
/// English content words have at least so many letters.
const ENGLISH_LETTERS_MIN: usize = 4;
/// Longer "words" are no words.
const WORD_CHARS_MAX: usize = 24;

/// A content word with its weight: how often it came, more for places and names.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Keyword {
    /// The word as written, without particles.
    pub(super) word: String,
    /// Its weight.
    pub(super) weight: f64,
    /// True if it stood where a place stands.
    pub(super) is_place: bool,
}

/// The language of a text by its letters; `None` where it has none.
pub(super) fn language_of(text: &str) -> Option<Language> {
    let share = hangul_share(text)?;
    Some(if share >= KOREAN_FROM_SHARE { Language::Ko } else { Language::En })
}

/// The share of Hangul among the letters.
pub(super) fn hangul_share(text: &str) -> Option<f64> {
    let (mut hangul, mut all) = (0_u32, 0_u32);
    for character in text.chars().filter(|character| character.is_alphabetic()) {
        all = all.saturating_add(1);
        hangul = hangul.saturating_add(u32::from(final_of(character).is_some()));
    }
    (all > 0).then(|| f64::from(hangul) / f64::from(all))
}

/// The content words of a text, the weightiest first, among equals the earliest.
pub(super) fn keywords(text: &str, language: Language) -> Vec<Keyword> {
    let mut found: Vec<Keyword> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    let seen = match language {
        Language::Ko => korean_words(text),
        Language::En => english_words(text),
    };
    for (word, weight, is_place) in seen {
        let key = word.to_lowercase();
        if let Some(&at) = places.get(&key) {
            found[at].weight += weight;
            found[at].is_place |= is_place;
            continue;
        }
        places.insert(key, found.len());
        found.push(Keyword { word, weight, is_place });
    }
    found.sort_by(|left, right| right.weight.total_cmp(&left.weight));
    found
}

/// The words of a text: runs of letters and digits, with inner apostrophes and hyphens.
fn tokens(text: &str) -> impl Iterator<Item = &str> {
    text.split(|character: char| !(character.is_alphanumeric() || matches!(character, '\'' | '’' | '-')))
        .map(|token| token.trim_matches(['\'', '’', '-']))
        .filter(|token| !token.is_empty() && token.chars().count() <= WORD_CHARS_MAX)
}

fn korean_words(text: &str) -> Vec<(String, f64, bool)> {
    tokens(text).filter_map(korean_word).collect()
}

/// A noun with its weight and whether a place particle followed it; `None` for everything that does not look like a noun.
fn korean_word(token: &str) -> Option<(String, f64, bool)> {
    if token.chars().any(char::is_numeric) || final_of(token.chars().next()?).is_none() {
        return None;
    }
    let (stem, particle) = without_particle(token);
    let syllables = stem.chars().count();
    let is_bare = particle.is_none();
    if syllables < KOREAN_SYLLABLES_MIN || KOREAN_STOPWORDS.contains(&stem) || KOREAN_STOPWORDS.contains(&token) {
        return None;
    }
    let is_named = looks_like_a_place(stem, particle);
    // A note's "처음임"; two syllables (모임) are a noun of their own.
    if is_bare && syllables > KOREAN_SYLLABLES_MIN && stem.ends_with('임') {
        return None;
    }
    if is_bare && !is_named && (KOREAN_VERB_ENDS.iter().any(|end| stem.ends_with(end)) || has_hidden_particle(stem)) {
        return None;
    }
    if stem.ends_with(['있', '없', '했', '었', '았', '였'])
        || KOREAN_VERB_ENDS[..2].iter().any(|end| stem.ends_with(end))
    {
        return None;
    }
    let is_place = is_named || particle.is_some_and(|particle| LOCATIVES.contains(&particle));
    let bonus = [(!is_bare, 0.5), (is_place, 1.0), (is_named, 1.5)];
    let weight = 1.0 + bonus.iter().filter(|(holds, _)| *holds).map(|(_, more)| more).sum::<f64>();
    Some((stem.to_owned(), weight, is_place))
}

/// A word of one syllable with its particle: 비가, 줄이. The particle must fit (작가 and 아이 are words of their own).
fn has_hidden_particle(word: &str) -> bool {
    let Some((last, _)) = word.char_indices().next_back() else { return false };
    let (head, particle) = word.split_at(last);
    match particle {
        "은" | "는" | "을" => true,
        "이" => head.chars().count() == 1 && ends_in_consonant(head),
        "가" | "를" => head.chars().count() == 1 && !ends_in_consonant(head),
        _ => false,
    }
}

fn without_particle(token: &str) -> (&str, Option<&'static str>) {
    for (particle, after) in PARTICLES {
        let Some(stem) = token.strip_suffix(particle) else { continue };
        let fits = match after {
            1 => ends_in_consonant(stem),
            2 => !ends_in_consonant(stem),
            _ => true,
        };
        if fits && stem.chars().count() >= KOREAN_SYLLABLES_MIN {
            return (stem, Some(particle));
        }
    }
    (token, None)
}

/// Korean names of places often say what the place is. One syllable says it only where no particle speaks against a place:
/// 첨성대 and 월정교에서, not 삼각대를.
fn looks_like_a_place(word: &str, particle: Option<&str>) -> bool {
    let syllables = word.chars().count();
    let may_be = particle.is_none_or(|particle| LOCATIVES.contains(&particle) || matches!(particle, "과" | "와"));
    // The kind of a place alone (공원) names none.
    KOREAN_PLACE_KINDS.iter().any(|end| word.ends_with(end) && word != *end)
        || (may_be && syllables >= 2 && word.ends_with(KOREAN_PLACE_ENDS_FROM_TWO))
        || (may_be && syllables >= 3 && word.ends_with(KOREAN_PLACE_ENDS_FROM_THREE))
}

fn english_words(text: &str) -> Vec<(String, f64, bool)> {
    let lines = text.lines().map(super::text::plain_line);
    let all: Vec<String> = lines.flat_map(|line| super::text::sentences(&line)).collect();
    all.iter().flat_map(|sentence| english_sentence(sentence)).collect()
}

fn english_sentence(sentence: &str) -> Vec<(String, f64, bool)> {
    let words: Vec<&str> = tokens(sentence).collect();
    let mut found = Vec::new();
    let mut after_place_word = false;
    for (index, word) in words.iter().enumerate() {
        let lower = word.to_lowercase();
        let is_name = index > 0 && word.starts_with(char::is_uppercase);
        let kind = words.get(index + 1).map(|next| next.to_lowercase()).filter(|_| is_name);
        let kind = kind.filter(|next| ENGLISH_PLACE_KINDS.contains(&next.as_str()));
        let is_word = word.chars().count() >= ENGLISH_LETTERS_MIN
            && word.chars().all(|character| character.is_alphabetic() || matches!(character, '-' | '’'))
            && !ENGLISH_STOPWORDS.contains(&lower.as_str())
            && !ENGLISH_CALENDAR.contains(&lower.as_str());
        let is_place = is_name && (after_place_word || kind.is_some());
        // "to the Gyochon walls": an article does not end what the preposition began.
        after_place_word = ENGLISH_PLACE_WORDS.contains(&lower.as_str()) || (after_place_word && lower == "the");
        if is_word {
            let weight = 1.0 + if is_name { 1.5 } else { 0.0 } + if is_place { 1.0 } else { 0.0 };
            let name = kind.map_or_else(|| (*word).to_owned(), |kind| format!("{word} {kind}"));
            found.push((if is_name { name } else { lower }, weight, is_place));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn languages_by_letters() {
        for (text, want) in [
            ("오늘은 IMG_0412.jpg를 찍었다", Some(Language::Ko)),
            ("We walked to 경주", Some(Language::En)),
            ("123 !?", None),
            ("", None),
        ] {
            assert_eq!(language_of(text), want, "{text}");
        }
    }

    #[test]
    fn korean_nouns_lose_their_particles() {
        let words: Vec<_> =
            keywords("9시쯤 대릉원부터 걸었다. 흙길이 조용했다. 교촌마을에서 콩국수를 먹었다.", Language::Ko)
                .into_iter()
                .map(|keyword| (keyword.word, keyword.is_place))
                .collect();
        assert_eq!(
            words,
            [("대릉원".into(), true), ("교촌마을".into(), true), ("흙길".into(), false), ("콩국수".into(), false)]
                as [(String, bool); 4]
        );
    }

    #[test]
    fn english_names_weigh_more() {
        let words = keywords("We took the train to Arezzo. The bridge was old, the bridge was closed.", Language::En);
        assert_eq!(words[0].word, "Arezzo");
        assert!(words[0].is_place);
        assert_eq!(words[1].word, "bridge");
    }
}
