//! The agent `review` without a model: measures a draft against what it is made of and gives points with reasons.
//! Judges no beauty: every rule is a count that a person can check.

use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    draft::dates::{date_forms, time_forms},
    input::{check_length, check_photos, language_or_none, null_as_default, read},
    shapes::{BY_EMBEDDED, PhotoList, Voice, moment},
    text::{is_heading, plain_name, prose, sentences},
    words::{hangul_share, keywords, language_of},
};
use crate::model::{language::Language, reply::AttemptFailure};

/// So many of the notes' weightiest words are looked for.
const NOTE_WORDS_MAX: usize = 40;
/// So many missing things are told a rule.
const MISSING_MAX: usize = 10;
/// Sentences may be so much longer or shorter than the author's.
const SENTENCE_FACTOR_MAX: f64 = 1.8;
/// Without a measured voice sentences may be so long on average.
const SENTENCE_CHARS_MAX_KO: f64 = 60.0;
/// The same for English.
const SENTENCE_CHARS_MAX_EN: f64 = 140.0;
/// Texts that somebody meant to replace.
const PLACEHOLDERS: [&str; 9] = ["todo", "tbd", "lorem ipsum", "{{", "}}", "[insert", "<insert", "xxx", "[여기"];

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rule {
    /// Every photo is named.
    Photos,
    /// In the order of time.
    Order,
    /// The days are told.
    Dates,
    /// Every stop is there.
    Stops,
    /// The notes' words are there.
    Notes,
    /// Neither too short nor too long.
    Length,
    /// Sentences as long as the author's.
    Sentences,
    /// Nothing is left to be filled in.
    Placeholders,
    /// One language, the asked one.
    Language,
}

impl Rule {
    /// Its name and the points it can give; all together 100.
    pub(super) const fn name_and_points(self) -> (&'static str, f64) {
        match self {
            Self::Photos => ("photos", 25.0),
            Self::Order => ("order", 10.0),
            Self::Dates => ("dates", 10.0),
            Self::Stops => ("stops", 10.0),
            Self::Notes => ("notes", 15.0),
            Self::Length => ("length", 10.0),
            Self::Sentences => ("sentences", 5.0),
            Self::Placeholders => ("placeholders", 10.0),
            Self::Language => ("language", 5.0),
        }
    }
}

/// One rule's result.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Finding {
    /// The rule.
    pub(super) rule: Rule,
    /// How far it is kept, 0 to 1.
    pub(super) share: f64,
    /// One sentence in the draft's language.
    pub(super) text: String,
    /// What was looked for in vain.
    pub(super) missing: Vec<String>,
}

/// What a draft is measured against.
pub(super) struct Brief<'a> {
    /// The facts.
    pub(super) photos: &'a PhotoList,
    /// The author's voice.
    pub(super) voice: &'a Voice,
    /// The author's notes.
    pub(super) notes: &'a str,
    /// The asked language.
    pub(super) language: Language,
}

#[derive(Debug, Deserialize)]
struct Input {
    draft: String,
    #[serde(default, deserialize_with = "null_as_default")]
    photos: PhotoList,
    #[serde(default, deserialize_with = "null_as_default")]
    style: Voice,
    #[serde(default, deserialize_with = "null_as_default")]
    notes: String,
    #[serde(default, deserialize_with = "language_or_none")]
    language: Option<Language>,
}

/// Measures the draft of `{"draft": text, "photos", "style", "notes": text | null, "language"}`.
pub(super) fn compute(input: &Value) -> Result<Value, AttemptFailure> {
    let input: Input = read("review", input)?;
    check_length("review", "draft", &input.draft)?;
    check_length("review", "notes", &input.notes)?;
    check_photos("review", input.photos.photos.len())?;
    let measured = input.style.language.filter(|_| input.style.basis > 0);
    let language = input.language.or(measured).or_else(|| language_of(&input.notes)).or(input.style.language);
    let language = language.or_else(|| language_of(&input.draft)).unwrap_or_default();
    let brief = Brief { photos: &input.photos, voice: &input.style, notes: &input.notes, language };
    let findings = measure(&input.draft, &brief);
    let reasons: Vec<Value> = findings
        .iter()
        .map(|finding| {
            let (name, of) = finding.rule.name_and_points();
            json!({ "rule": name, "points": tenths(finding.share * of), "of": of, "text": finding.text })
        })
        .collect();
    let missing: Vec<&String> = findings.iter().flat_map(|finding| finding.missing.iter().take(MISSING_MAX)).collect();
    Ok(json!({
        "score": score(&findings),
        "reasons": reasons,
        "missing": missing,
        "language": language,
        "by": BY_EMBEDDED,
        "model": Value::Null,
    }))
}

/// 0 to 100; rules that do not apply (no notes, no photos) leave their points to the others.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 100 by the clamp")]
pub(super) fn score(findings: &[Finding]) -> u32 {
    let of: f64 = findings.iter().map(|finding| finding.rule.name_and_points().1).sum();
    let points: f64 = findings.iter().map(|finding| finding.share * finding.rule.name_and_points().1).sum();
    if of > 0.0 { (points / of * 100.0).floor().clamp(0.0, 100.0) as u32 } else { 0 }
}

/// Applies every rule that fits.
pub(super) fn measure(draft: &str, brief: &Brief<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let names: Vec<&str> = brief.photos.usable().map(|photo| photo.name.as_str()).collect();
    if !names.is_empty() {
        findings.extend(photos_and_order(draft, &names, brief.language));
    }
    findings.extend(dates(draft, brief));
    findings.extend(stops(draft, brief));
    findings.extend(notes(draft, brief));
    findings.push(length(draft, brief));
    findings.push(sentence_length(draft, brief));
    findings.push(placeholders(draft, brief.language));
    findings.push(language(draft, brief.language));
    findings
}

fn say(language: Language, korean: String, english: String) -> String {
    match language {
        Language::Ko => korean,
        Language::En => english,
    }
}

/// Where a name stands as a whole: `1.jpg` is not in `11.jpg`.
fn position_of(draft: &str, name: &str) -> Option<usize> {
    let mut from = 0;
    while !name.is_empty() {
        let at = from + draft.get(from..)?.find(name)?;
        if !draft[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_') {
            return Some(at);
        }
        from = at + name.len();
    }
    None
}

/// Where a photo is named: by its name, or as that stands in Markdown.
pub(super) fn position_of_photo(draft: &str, name: &str) -> Option<usize> {
    position_of(draft, name).or_else(|| position_of(draft, &plain_name(name)))
}

fn photos_and_order(draft: &str, names: &[&str], language: Language) -> [Finding; 2] {
    let positions: Vec<Option<usize>> = names.iter().map(|name| position_of_photo(draft, name)).collect();
    let found: Vec<usize> = positions.iter().copied().flatten().collect();
    let missing: Vec<String> =
        names.iter().zip(&positions).filter(|(_, at)| at.is_none()).map(|(name, _)| (*name).to_owned()).collect();
    let in_order = found.windows(2).filter(|pair| pair[0] <= pair[1]).count();
    let order_share = if found.is_empty() { 0.0 } else { (in_order + 1) as f64 / found.len() as f64 };
    let (count, all) = (found.len(), names.len());
    let order_text = if order_share >= 1.0 {
        say(
            language,
            "사진은 찍은 순서대로 나온다.".into(),
            "The photos stand in the order in which they were taken.".into(),
        )
    } else {
        say(
            language,
            "사진의 순서가 찍은 순서와 다르다.".into(),
            "The photos do not stand in the order in which they were taken.".into(),
        )
    };
    [
        Finding {
            rule: Rule::Photos,
            share: count as f64 / all as f64,
            text: say(
                language,
                format!("사진 {all}장 가운데 {count}장이 글에 나온다."),
                format!("{count} of {all} photos are named."),
            ),
            missing,
        },
        Finding { rule: Rule::Order, share: order_share, text: order_text, missing: Vec::new() },
    ]
}

fn dates(draft: &str, brief: &Brief<'_>) -> Option<Finding> {
    let days = brief.photos.days();
    // A long trip need not tell every day: its first and last.
    let asked: Vec<_> = days.first().into_iter().chain(days.last().filter(|_| days.len() > 1)).copied().collect();
    let missing: Vec<String> = asked
        .iter()
        .filter(|day| !date_forms(**day).iter().any(|form| draft.contains(form)))
        .map(ToString::to_string)
        .collect();
    if asked.is_empty() {
        return None;
    }
    let text = if missing.is_empty() {
        say(brief.language, "찍은 날짜가 적혀 있다.".into(), "The date is told.".into())
    } else {
        say(
            brief.language,
            format!("찍은 날짜가 없다: {}.", missing.join(", ")),
            format!("The date is missing: {}.", missing.join(", ")),
        )
    };
    let share = (asked.len() - missing.len()) as f64 / asked.len() as f64;
    Some(Finding { rule: Rule::Dates, share, text, missing })
}

fn stops(draft: &str, brief: &Brief<'_>) -> Option<Finding> {
    let stops = &brief.photos.stops;
    if stops.is_empty() {
        return None;
    }
    let is_told = |stop: &super::shapes::Stop| {
        stop.photos.iter().any(|name| position_of_photo(draft, name).is_some())
            || stop
                .first
                .as_deref()
                .and_then(moment)
                .is_some_and(|first| time_forms(first).iter().any(|form| draft.contains(form)))
    };
    let told = stops.iter().filter(|stop| is_told(stop)).count();
    let all = stops.len();
    Some(Finding {
        rule: Rule::Stops,
        share: told as f64 / all as f64,
        text: say(
            brief.language,
            format!("들른 곳 {all}군데 가운데 {told}군데가 글에 나온다."),
            format!("{told} of {all} stops are there."),
        ),
        missing: Vec::new(),
    })
}

fn notes(draft: &str, brief: &Brief<'_>) -> Option<Finding> {
    let language = language_of(brief.notes)?;
    // Notes in another language than the post were translated, and their words cannot be looked for.
    if language != brief.language {
        return None;
    }
    // Headings are what the title is made of.
    let lines: Vec<&str> = brief.notes.lines().filter(|line| !is_heading(line.trim())).collect();
    let words: Vec<String> =
        keywords(&lines.join("\n"), language).into_iter().take(NOTE_WORDS_MAX).map(|keyword| keyword.word).collect();
    if words.is_empty() {
        return None;
    }
    let lower = draft.to_lowercase();
    let missing: Vec<String> = words.iter().filter(|word| !lower.contains(&word.to_lowercase())).cloned().collect();
    let (all, found) = (words.len(), words.len() - missing.len());
    let text = if missing.is_empty() {
        say(language, "메모의 내용이 모두 들어 있다.".into(), "Everything in the notes is covered.".into())
    } else {
        let shown = missing.iter().take(5).cloned().collect::<Vec<_>>().join(", ");
        say(
            language,
            format!("메모의 낱말 {all}개 가운데 {found}개가 들어 있다. 빠진 것: {shown}."),
            format!("{found} of {all} words of the notes are covered; missing: {shown}."),
        )
    };
    Some(Finding { rule: Rule::Notes, share: found as f64 / all as f64, text, missing })
}

fn length(draft: &str, brief: &Brief<'_>) -> Finding {
    let chars: usize = prose(draft).iter().map(|paragraph| paragraph.chars().count()).sum();
    let photos = brief.photos.usable().count();
    let notes = brief.notes.chars().count();
    let least = (60 + 15 * brief.photos.stops.len()).min(600);
    let most = 2_000 + 200 * photos + 3 * notes;
    let share = if chars < least {
        chars as f64 / least as f64
    } else if chars > most {
        most as f64 / chars as f64
    } else {
        1.0
    };
    let text = if chars < least {
        say(
            brief.language,
            format!("글이 짧다: {chars}자, 적어도 {least}자."),
            format!("The text is short: {chars} characters, {least} at least."),
        )
    } else if chars > most {
        say(
            brief.language,
            format!("글이 길다: {chars}자, 많아야 {most}자."),
            format!("The text is long: {chars} characters, {most} at most."),
        )
    } else {
        say(brief.language, format!("길이가 알맞다({chars}자)."), format!("The length fits ({chars} characters)."))
    };
    Finding { rule: Rule::Length, share, text, missing: Vec::new() }
}

fn sentence_length(draft: &str, brief: &Brief<'_>) -> Finding {
    let found: Vec<String> = prose(draft).iter().flat_map(|paragraph| sentences(paragraph)).collect();
    let mean = found.iter().map(|sentence| sentence.chars().count() as f64).sum::<f64>() / found.len().max(1) as f64;
    let limit = match brief.language {
        Language::Ko => SENTENCE_CHARS_MAX_KO,
        Language::En => SENTENCE_CHARS_MAX_EN,
    };
    let own = brief.voice.sentence_chars_mean.filter(|own| *own > 0.0 && brief.voice.basis > 0);
    let most = own.map_or(limit, |own| own * SENTENCE_FACTOR_MAX);
    let share = if found.is_empty() { 0.0 } else { (most / mean.max(1.0)).min(1.0) };
    let text = if share >= 1.0 {
        say(
            brief.language,
            format!("문장 길이가 알맞다(평균 {mean:.0}자)."),
            format!("Sentences are as long as they should be ({mean:.0} characters)."),
        )
    } else {
        say(
            brief.language,
            format!("문장이 길다: 평균 {mean:.0}자, 많아야 {most:.0}자."),
            format!("Sentences are long: {mean:.0} characters on average, {most:.0} at most."),
        )
    };
    Finding { rule: Rule::Sentences, share, text, missing: Vec::new() }
}

/// True if a line holds something that somebody meant to replace.
pub(super) fn has_placeholder(line: &str) -> bool {
    let lower = line.to_lowercase();
    PLACEHOLDERS.iter().any(|mark| position_of(&lower, mark).is_some())
}

fn placeholders(draft: &str, language: Language) -> Finding {
    let found = draft.lines().filter(|line| has_placeholder(line)).count();
    let text = if found == 0 {
        say(language, "채우지 않은 빈칸이 없다.".into(), "No placeholder is left.".into())
    } else {
        say(
            language,
            format!("채우지 않은 빈칸이 있다: {found}줄."),
            format!("Placeholders are left in {found} lines."),
        )
    };
    Finding { rule: Rule::Placeholders, share: if found == 0 { 1.0 } else { 0.0 }, text, missing: Vec::new() }
}

fn language(draft: &str, asked: Language) -> Finding {
    let plain = prose(draft).join(" ");
    let is_asked = language_of(&plain) == Some(asked);
    let hangul = hangul_share(&plain).unwrap_or_default();
    let text = if is_asked {
        say(asked, "글이 한 언어로 되어 있다.".into(), "The text is in the asked language.".into())
    } else {
        say(
            asked,
            format!("글이 한국어가 아니다(한글 {:.0}%).", hangul * 100.0),
            format!("The text is not in English ({:.0} % Hangul).", hangul * 100.0),
        )
    };
    Finding { rule: Rule::Language, share: if is_asked { 1.0 } else { 0.0 }, text, missing: Vec::new() }
}

fn tenths(points: f64) -> f64 {
    (points * 10.0).round() / 10.0
}
