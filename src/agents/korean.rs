//! Korean as far as composing needs it: particles that fit the word before them, sentence endings and their change, numbers
//! and times in words. Changes only endings whose rule has no exception; every other sentence stays as its author wrote it.

use super::shapes::KoreanEnding;

const SYLLABLE_FIRST: u32 = 0xAC00;
const SYLLABLE_LAST: u32 = 0xD7A3;
/// Final consonants a vowel can have, with "none".
const FINALS: u32 = 28;

const FINAL_NONE: u32 = 0;
const FINAL_NIEUN: u32 = 4;
const FINAL_BIEUP: u32 = 17;
const FINAL_BIEUP_SIOT: u32 = 18;
const FINAL_SSANG_SIOT: u32 = 20;

/// Stems that end in a consonant, are no verbs, and take 다, 습니다 and 어요 or 아요 without any change.
const REGULAR_STEMS: [(char, &str); 9] = [
    ('싶', "어요"),
    ('같', "아요"),
    ('많', "아요"),
    ('좋', "아요"),
    ('높', "아요"),
    ('깊', "어요"),
    ('작', "아요"),
    ('짧', "아요"),
    ('넓', "어요"),
];

/// Nouns that look like a note's "-임" ending.
const NOUNS_IN_IM: [&str; 14] = [
    "모임",
    "책임",
    "게임",
    "움직임",
    "프레임",
    "타임",
    "주임",
    "담임",
    "선임",
    "신임",
    "부임",
    "재임",
    "해임",
    "쓰임",
];

/// The final consonant of a Hangul syllable as its number, 0 for none; `None` for any other character.
pub(super) fn final_of(syllable: char) -> Option<u32> {
    let code = u32::from(syllable);
    (SYLLABLE_FIRST..=SYLLABLE_LAST).contains(&code).then(|| (code - SYLLABLE_FIRST) % FINALS)
}

/// The same syllable with another final consonant.
fn with_final(syllable: char, consonant: u32) -> char {
    match final_of(syllable) {
        Some(old) => char::from_u32(u32::from(syllable) - old + consonant).unwrap_or(syllable),
        None => syllable,
    }
}

/// True if the word is read with a consonant at its end. Digits and Latin letters are read by their Korean names.
pub(super) fn ends_in_consonant(word: &str) -> bool {
    let Some(last) = word.chars().rev().find(|character| character.is_alphanumeric()) else { return false };
    match final_of(last) {
        Some(consonant) => consonant != FINAL_NONE,
        None => matches!(last.to_ascii_lowercase(), '0' | '1' | '3' | '6' | '7' | '8' | 'l' | 'm' | 'n' | 'r'),
    }
}

/// The word with 과 or 와, as it is read.
pub(super) fn with_and(word: &str) -> String {
    format!("{word}{}", if ends_in_consonant(word) { "과" } else { "와" })
}

/// A past stem (`찍었`, `했`) with its ending; the rule has no exception after ㅆ.
pub(super) fn past(stem: &str, ending: KoreanEnding) -> String {
    let tail = match ending {
        KoreanEnding::Da => "다",
        KoreanEnding::Yo => "어요",
        KoreanEnding::Seumnida => "습니다",
    };
    format!("{stem}{tail}")
}

/// How a sentence ends, if it ends in one of the three ways.
pub(super) fn ending_of(sentence: &str) -> Option<KoreanEnding> {
    let (body, _) = split_tail(sentence);
    if body.ends_with("니다") {
        Some(KoreanEnding::Seumnida)
    } else if body.ends_with('요') || body.ends_with('죠') {
        Some(KoreanEnding::Yo)
    } else if body.ends_with('다') {
        Some(KoreanEnding::Da)
    } else {
        None
    }
}

/// The sentence with the other ending where that is certain, else as it is.
pub(super) fn restyle(sentence: &str, ending: KoreanEnding) -> String {
    let (body, tail) = split_tail(sentence);
    if ending_of(body) == Some(ending) {
        return sentence.to_owned();
    }
    match restyled_body(body, ending) {
        Some(changed) => format!("{changed}{tail}"),
        None => sentence.to_owned(),
    }
}

fn restyled_body(body: &str, ending: KoreanEnding) -> Option<String> {
    if let Some(stem) = past_or_existence_stem(body) {
        return Some(past(stem, ending));
    }
    if let Some((stem, polite)) = regular_stem(body) {
        let tail = match ending {
            KoreanEnding::Da => "다",
            KoreanEnding::Yo => polite,
            KoreanEnding::Seumnida => "습니다",
        };
        return Some(format!("{stem}{tail}"));
    }
    if let Some(noun) = copula_noun(body) {
        let tail = match (ending, ends_in_consonant(noun)) {
            (KoreanEnding::Da, true) => "이다",
            (KoreanEnding::Da, false) => "다",
            (KoreanEnding::Yo, true) => "이에요",
            (KoreanEnding::Yo, false) => "예요",
            (KoreanEnding::Seumnida, _) => "입니다",
        };
        return Some(format!("{noun}{tail}"));
    }
    present(body, ending)
}

/// `조용했음`, `조용했다`, `조용했어요`, `조용했습니다` → `조용했`; the same for 있- and 없-.
fn past_or_existence_stem(body: &str) -> Option<&str> {
    let stem = ["습니다", "어요", "다", "음"].iter().find_map(|tail| body.strip_suffix(tail))?;
    let last = stem.chars().next_back()?;
    matches!(final_of(last)?, FINAL_SSANG_SIOT | FINAL_BIEUP_SIOT).then_some(stem)
}

fn regular_stem(body: &str) -> Option<(&str, &'static str)> {
    let stem = ["습니다", "어요", "아요", "다", "음"].iter().find_map(|tail| body.strip_suffix(tail))?;
    let last = stem.chars().next_back()?;
    REGULAR_STEMS.iter().find(|(syllable, _)| *syllable == last).map(|(_, polite)| (stem, *polite))
}

/// `처음임`, `처음이다`, `처음이에요`, `처음입니다` → `처음`. A vowel before 이다 could as well be a verb's stem: left alone.
fn copula_noun(body: &str) -> Option<&str> {
    if let Some(noun) = body.strip_suffix("입니다").or_else(|| body.strip_suffix("이에요")) {
        return Some(noun).filter(|noun| ends_in_hangul(noun));
    }
    if let Some(noun) = body.strip_suffix("이다") {
        return Some(noun).filter(|noun| ends_in_hangul(noun) && ends_in_consonant(noun));
    }
    let noun = body.strip_suffix('임')?;
    let is_noun_itself = NOUNS_IN_IM.iter().any(|word| body.ends_with(word));
    let closed = ends_in_hangul(noun) && ends_in_consonant(noun);
    (closed && !is_noun_itself).then_some(noun)
}

/// The few present forms whose three endings are certain, and the formal form of any `-ㄴ다`.
fn present(body: &str, ending: KoreanEnding) -> Option<String> {
    const FORMS: [[&str; 3]; 6] = [
        ["된다", "돼요", "됩니다"],
        ["간다", "가요", "갑니다"],
        ["온다", "와요", "옵니다"],
        ["본다", "봐요", "봅니다"],
        ["아니다", "아니에요", "아닙니다"],
        ["한다", "해요", "합니다"],
    ];
    let wanted = match ending {
        KoreanEnding::Da => 0,
        KoreanEnding::Yo => 1,
        KoreanEnding::Seumnida => 2,
    };
    // Adjectives with 하 say 하다, verbs 한다: towards the plain form these cannot be told apart.
    let certain = if ending == KoreanEnding::Da { &FORMS[..5] } else { &FORMS[..] };
    for forms in certain {
        if let Some(stem) = forms.iter().find_map(|form| body.strip_suffix(form)) {
            return Some(format!("{stem}{}", forms[wanted]));
        }
    }
    match ending {
        KoreanEnding::Da => body.strip_suffix('됨').map(|stem| format!("{stem}된다")),
        KoreanEnding::Yo => memo_present(body, ["돼요", "해요"]),
        KoreanEnding::Seumnida => formal_present(body).or_else(|| memo_present(body, ["됩니다", "합니다"])),
    }
}

/// `먹는다` → `먹습니다`, `분다` → `붑니다`.
fn formal_present(body: &str) -> Option<String> {
    if let Some(stem) = body.strip_suffix("는다") {
        return Some(format!("{stem}습니다"));
    }
    let stem = body.strip_suffix('다')?;
    let last = stem.chars().next_back()?;
    let head = stem.strip_suffix(last)?;
    (final_of(last)? == FINAL_NIEUN).then(|| format!("{head}{}니다", with_final(last, FINAL_BIEUP)))
}

fn memo_present(body: &str, forms: [&str; 2]) -> Option<String> {
    if let Some(stem) = body.strip_suffix('됨') {
        return Some(format!("{stem}{}", forms[0]));
    }
    let stem = body.strip_suffix('함')?;
    ends_in_hangul(stem).then(|| format!("{stem}{}", forms[1]))
}

fn ends_in_hangul(text: &str) -> bool {
    text.chars().next_back().and_then(final_of).is_some()
}

/// Cuts off what follows the last letter or digit: marks, quotes, emoji.
fn split_tail(sentence: &str) -> (&str, &str) {
    let end = sentence
        .char_indices()
        .rev()
        .find(|(_, character)| character.is_alphanumeric())
        .map_or(0, |(at, character)| at + character.len_utf8());
    sentence.split_at(end)
}

/// `한 장`, `열두 장` are said in words up to ten, then in digits.
pub(super) fn photos_counted(count: usize) -> String {
    const WORDS: [&str; 10] = ["한", "두", "세", "네", "다섯", "여섯", "일곱", "여덟", "아홉", "열"];
    match count.checked_sub(1).and_then(|index| WORDS.get(index)) {
        Some(word) => format!("{word} 장"),
        None => format!("{count}장"),
    }
}

/// `한 곳`, `세 곳`.
pub(super) fn places_counted(count: usize) -> String {
    photos_counted(count).replace('장', "곳")
}

/// `첫 번째`, `세 번째`.
pub(super) fn ordinal(number: usize) -> String {
    const WORDS: [&str; 10] = ["첫", "두", "세", "네", "다섯", "여섯", "일곱", "여덟", "아홉", "열"];
    match number.checked_sub(1).and_then(|index| WORDS.get(index)) {
        Some(word) => format!("{word} 번째"),
        None => format!("{number}번째"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn particles_fit_their_word() {
        for (word, want) in [
            ("대릉원", "대릉원과"),
            ("첨성대", "첨성대와"),
            ("사진 3", "사진 3과"),
            ("사진 4", "사진 4와"),
            ("DSCN0042.jpg", "DSCN0042.jpg와"),
            ("", "와"),
        ] {
            assert_eq!(with_and(word), want);
        }
    }

    #[test]
    fn endings_change_only_where_it_is_certain() {
        for (given, ending, want) in [
            ("흙길이 조용했음", KoreanEnding::Yo, "흙길이 조용했어요"),
            ("흙길이 조용했음.", KoreanEnding::Da, "흙길이 조용했다."),
            ("대릉원부터 걸었다.", KoreanEnding::Yo, "대릉원부터 걸었어요."),
            ("대릉원부터 걸었다.", KoreanEnding::Seumnida, "대릉원부터 걸었습니다."),
            ("대릉원부터 걸었어요!", KoreanEnding::Da, "대릉원부터 걸었다!"),
            ("사람이 없다", KoreanEnding::Yo, "사람이 없어요"),
            ("처음임", KoreanEnding::Yo, "처음이에요"),
            ("처음이다", KoreanEnding::Seumnida, "처음입니다"),
            ("즐거운 모임", KoreanEnding::Yo, "즐거운 모임"),
            ("가 보고 싶다.", KoreanEnding::Yo, "가 보고 싶어요."),
            ("한참 보게 됨", KoreanEnding::Yo, "한참 보게 돼요"),
            ("한적함", KoreanEnding::Seumnida, "한적합니다"),
            ("한적함", KoreanEnding::Da, "한적함"),
            ("바람이 분다", KoreanEnding::Seumnida, "바람이 붑니다"),
            ("바람이 분다", KoreanEnding::Yo, "바람이 분다"),
            ("밥을 먹는다", KoreanEnding::Seumnida, "밥을 먹습니다"),
            ("10시에 첨성대.", KoreanEnding::Yo, "10시에 첨성대."),
            ("저 멀리 바다", KoreanEnding::Yo, "저 멀리 바다"),
            ("마음", KoreanEnding::Yo, "마음"),
            ("", KoreanEnding::Yo, ""),
        ] {
            assert_eq!(restyle(given, ending), want, "{given} {ending:?}");
        }
    }
}
