//! Words of a text that say what it is about: its language, its content words, the places it names.
//! Measured by rules and small lists of function words; knows no dictionary and invents no word.

use std::collections::HashMap;

use super::korean::{ends_in_consonant, final_of};
use crate::model::language::Language;

/// From this share of Hangul among the letters on a text is Korean: names, brands and file names in it are Latin.
const KOREAN_FROM_SHARE: f64 = 0.3;
/// Korean content words have at least so many syllables.
const KOREAN_SYLLABLES_MIN: usize = 2;
/// English content words have at least so many letters.
const ENGLISH_LETTERS_MIN: usize = 4;
/// Longer "words" are no words.
const WORD_CHARS_MAX: usize = 24;

/// Particles, the longest first. The second field: 1 = only after a consonant, 2 = only after a vowel, 0 = after both.
const PARTICLES: [(&str, u8); 37] = [
    ("에서부터", 0),
    ("에서는", 0),
    ("에서도", 0),
    ("으로는", 1),
    ("까지는", 0),
    ("까지도", 0),
    ("이라고", 1),
    ("에서", 0),
    ("에게", 0),
    ("에는", 0),
    ("에도", 0),
    ("으로", 1),
    ("까지", 0),
    ("부터", 0),
    ("처럼", 0),
    ("보다", 0),
    ("마다", 0),
    ("이랑", 1),
    ("하고", 0),
    ("이라", 1),
    ("라고", 2),
    ("쯤", 0),
    ("씩", 0),
    ("은", 1),
    ("는", 2),
    ("이", 1),
    ("가", 2),
    ("을", 1),
    ("를", 2),
    ("과", 1),
    ("와", 2),
    ("의", 0),
    ("에", 0),
    ("로", 0),
    ("도", 0),
    ("만", 0),
    ("랑", 2),
];

/// Particles that mark a place or a way.
const LOCATIVES: [&str; 10] = ["에서부터", "에서는", "에서도", "에서", "에는", "에도", "에", "으로", "까지", "부터"];

/// Ends of Korean words that are verbs, adjectives or adverbs.
const KOREAN_VERB_ENDS: [&str; 58] = [
    "다",
    "요",
    "죠",
    "음",
    "함",
    "됨",
    "고",
    "며",
    "면",
    "서",
    "면서",
    "지만",
    "는데",
    "은데",
    "던",
    "려고",
    "러",
    "게",
    "히",
    "니까",
    "네",
    "한",
    "된",
    "할",
    "될",
    "운",
    "있는",
    "없는",
    "하는",
    "되는",
    "지",
    "듯",
    "자",
    "자마자",
    "도록",
    "거나",
    "든지",
    "려",
    "러서",
    "아",
    "어",
    "해",
    "았",
    "었",
    "했",
    "싶",
    "같은",
    "많은",
    "좋은",
    "작은",
    "높은",
    "니",
    "까",
    "던데",
    "구나",
    "거든",
    "테니",
    "여러",
];

/// Words that say nothing of what a text is about.
const KOREAN_STOPWORDS: [&str; 75] = [
    "오늘",
    "어제",
    "내일",
    "하루",
    "아침",
    "점심",
    "저녁",
    "오전",
    "오후",
    "새벽",
    "시간",
    "잠시",
    "조금",
    "정말",
    "너무",
    "아주",
    "그냥",
    "다시",
    "먼저",
    "마지막",
    "처음",
    "다음",
    "이번",
    "지난",
    "그리고",
    "그래서",
    "하지만",
    "그런데",
    "사람",
    "사람들",
    "사진",
    "생각",
    "우리",
    "여기",
    "거기",
    "저기",
    "이곳",
    "그곳",
    "사이",
    "옆",
    "앞",
    "뒤",
    "위",
    "아래",
    "안",
    "밖",
    "때문",
    "정도",
    "동안",
    "한참",
    "한창",
    "덕분",
    "모두",
    "함께",
    "혼자",
    "가장",
    "매우",
    "작년",
    "올해",
    "내년",
    "이후",
    "이전",
    "토요일",
    "일요일",
    "월요일",
    "화요일",
    "수요일",
    "목요일",
    "금요일",
    "가을",
    "여름",
    "겨울",
    "바퀴",
    "무렵",
    "이것",
];

/// The same for English.
const ENGLISH_STOPWORDS: [&str; 98] = [
    "about", "above", "after", "again", "almost", "along", "also", "although", "always", "another", "around", "away",
    "back", "because", "been", "before", "being", "below", "between", "both", "came", "could", "does", "doing", "down",
    "during", "each", "even", "every", "first", "from", "going", "good", "great", "have", "having", "here", "into",
    "it's", "just", "last", "like", "little", "long", "made", "many", "more", "most", "much", "near", "next", "nice",
    "once", "only", "other", "ours", "over", "photo", "photos", "picture", "pictures", "really", "same", "seen",
    "should", "since", "some", "still", "such", "than", "that", "their", "them", "then", "there", "these", "they",
    "thing", "things", "this", "those", "through", "time", "today", "took", "under", "until", "very", "walked", "went",
    "were", "what", "when", "where", "which", "while", "with", "would",
];

/// Words before a place.
const ENGLISH_PLACE_WORDS: [&str; 9] = ["at", "in", "to", "from", "near", "through", "into", "reached", "around"];

/// What a place can be; with a name before it, it is one.
const ENGLISH_PLACE_KINDS: [&str; 26] = [
    "bridge",
    "palace",
    "castle",
    "park",
    "museum",
    "gallery",
    "market",
    "square",
    "church",
    "cathedral",
    "temple",
    "garden",
    "gardens",
    "beach",
    "station",
    "street",
    "pond",
    "lake",
    "tower",
    "hill",
    "village",
    "river",
    "walls",
    "bay",
    "harbour",
    "island",
];

/// Names of days and months name no place.
const ENGLISH_CALENDAR: [&str; 19] = [
    "monday",
    "tuesday",
    "wednesday",
    "thursday",
    "friday",
    "saturday",
    "sunday",
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
];

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
    if token.chars().any(|character| character.is_numeric()) || final_of(token.chars().next()?).is_none() {
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
    const LONG: [&str; 21] = [
        "시장",
        "공원",
        "마을",
        "거리",
        "골목",
        "박물관",
        "미술관",
        "해변",
        "해수욕장",
        "카페",
        "식당",
        "서점",
        "성당",
        "폭포",
        "광장",
        "정원",
        "전망대",
        "수목원",
        "호수",
        "항구",
        "터미널",
    ];
    const FROM_TWO: [char; 4] = ['궁', '릉', '섬', '탑'];
    const FROM_THREE: [char; 7] = ['원', '대', '교', '사', '역', '산', '성'];
    let syllables = word.chars().count();
    let may_be = particle.is_none_or(|particle| LOCATIVES.contains(&particle) || matches!(particle, "과" | "와"));
    // The kind of a place alone (공원) names none.
    LONG.iter().any(|end| word.ends_with(end) && word != *end)
        || (may_be && syllables >= 2 && word.ends_with(FROM_TWO))
        || (may_be && syllables >= 3 && word.ends_with(FROM_THREE))
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
