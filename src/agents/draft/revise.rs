//! Repairs a draft by what the review said of it and by our own measure of it. Keeps the draft's own words wherever they can stay;
//! composes anew only where repairing would leave less.

use serde::Deserialize;
use serde_json::Value;

use super::{compose::day_facts, notes::PlacedNotes, pictures::picture, speech::Speech};
use crate::{
    agents::{
        input::null_as_default,
        korean::past,
        review::{Brief, Rule, has_placeholder, measure, position_of_photo, score},
        shapes::{PhotoList, Stop, Voice},
        text::{plain_name, sentences},
        words::keywords,
    },
    model::language::Language,
};

/// A repaired draft that measures this many points less than a fresh one is given up for it.
const FRESH_LEAD_MIN: u32 = 10;
/// Sentences longer than this, in characters, are cut where the review found sentences long.
const LONG_SENTENCE_CHARS: usize = 45;
/// The most feedback that is looked into, in characters.
const FEEDBACK_CHARS_MAX: usize = 20_000;

/// The last candidate and what was said of it.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Revision {
    /// 1 for the first revision.
    #[serde(default, deserialize_with = "null_as_default")]
    #[allow(dead_code, reason = "part of the shape; the repair does not depend on it")]
    iteration: u64,
    /// The last output: an object with `text`, or the text itself.
    #[serde(default)]
    candidate: Value,
    /// The review's output.
    #[serde(default)]
    feedback: Value,
}

impl Revision {
    /// The text of the last candidate; empty where it had none.
    pub(super) fn text(&self) -> String {
        let text = self.candidate.as_str().or_else(|| self.candidate.get("text").and_then(Value::as_str));
        text.unwrap_or_default().trim().to_owned()
    }

    /// What the reviewer asks for in words: a reviewer that is a model names no rules.
    fn asks(&self) -> Vec<Ask> {
        let text: String = self.feedback.to_string().to_lowercase().chars().take(FEEDBACK_CHARS_MAX).collect();
        let mentions = |words: &[&str]| words.iter().any(|word| text.contains(word));
        let lost = |rule: Rule| {
            let (name, of) = rule.name_and_points();
            self.feedback.get("reasons").and_then(Value::as_array).is_some_and(|reasons| {
                reasons.iter().any(|reason| {
                    let points = reason.get("points").and_then(Value::as_f64);
                    reason.get("rule").and_then(Value::as_str) == Some(name) && points.is_some_and(|points| points < of)
                })
            })
        };
        let mut asks = Vec::new();
        if lost(Rule::Sentences) || mentions(&["long sentence", "sentences are long", "문장이 길", "긴 문장"]) {
            asks.push(Ask::ShorterSentences);
        }
        if lost(Rule::Dates)
            || mentions(&["intro", "opening", "no date", "date is missing", "도입", "첫머리", "날짜가 없"])
        {
            asks.push(Ask::Opening);
        }
        asks
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ask {
    ShorterSentences,
    Opening,
}

/// The repaired text and what was changed, each change in the post's language.
pub(super) fn revise(
    revision: &Revision,
    fresh: &str,
    photos: &PhotoList,
    placed: &PlacedNotes,
    voice: &Voice,
    notes: &str,
    speech: &Speech,
) -> (String, Vec<String>) {
    let brief = Brief { photos, voice, notes, language: speech.language };
    let fresh_score = score(&measure(fresh, &brief));
    let candidate = revision.text();
    let mut repair = Repair { text: candidate.clone(), changes: Vec::new(), speech };
    let asks = revision.asks();
    repair.drop_placeholders();
    repair.add_opening(photos, &brief, asks.contains(&Ask::Opening));
    repair.add_photos(photos);
    repair.add_notes(placed, photos, &brief);
    repair.cut_sentences(&brief, asks.contains(&Ask::ShorterSentences));
    let repaired_score = score(&measure(&repair.text, &brief));
    let is_hopeless = candidate.is_empty() || fresh_score >= repaired_score.saturating_add(FRESH_LEAD_MIN);
    if is_hopeless {
        let change = say(speech, "사진 정보와 메모로 처음부터 다시 엮음", "composed anew from the facts and notes");
        return (fresh.to_owned(), vec![change]);
    }
    (repair.text, repair.changes)
}

struct Repair<'a> {
    text: String,
    changes: Vec<String>,
    speech: &'a Speech,
}

impl Repair<'_> {
    fn changed(&mut self, korean: &str, english: &str) {
        self.changes.push(say(self.speech, korean, english));
    }

    fn drop_placeholders(&mut self) {
        if !has_placeholder(&self.text) {
            return;
        }
        let kept: Vec<&str> = self.text.lines().filter(|line| !has_placeholder(line)).collect();
        self.text = kept.join("\n");
        self.changed("채우지 않은 빈칸을 지움", "removed placeholders");
    }

    /// The first lines with the day, where the day is missing or a beginning was asked for.
    fn add_opening(&mut self, photos: &PhotoList, brief: &Brief<'_>, is_asked: bool) {
        let lacks_date = measure(&self.text, brief).iter().any(|one| one.rule == Rule::Dates && one.share < 1.0);
        let opening = self.speech.opening(&day_facts(photos), !brief.notes.trim().is_empty()).join(" ");
        if opening.is_empty() || !(lacks_date || is_asked) || self.text.contains(&opening) {
            return;
        }
        self.text = format!("{opening}\n\n{}", self.text);
        self.changed("날짜를 밝히는 첫머리를 더함", "added an opening with the date");
    }

    /// Each missing photo beside its neighbour at the same stop, else behind the one before it in time.
    fn add_photos(&mut self, photos: &PhotoList) {
        let names: Vec<&str> = photos.usable().map(|photo| photo.name.as_str()).collect();
        let mut added = Vec::new();
        for (index, photo) in photos.usable().enumerate() {
            if position_of_photo(&self.text, &photo.name).is_some() {
                continue;
            }
            let block = picture(&photo.name, &self.speech.caption(photo.moment(), None, None));
            let before = index.checked_sub(1).map(|previous| names[previous]);
            let after = names.get(index + 1).copied();
            let shares_stop = |other: Option<&str>| other.is_some_and(|other| same_stop(photos, &photo.name, other));
            match after.filter(|_| shares_stop(after) && !shares_stop(before)) {
                Some(after) if position_of_photo(&self.text, after).is_some() => self.insert_before(after, &block),
                _ => self.insert_after(before, &block),
            }
            added.push(photo.name.as_str());
        }
        if !added.is_empty() {
            let names = added.join(", ");
            self.changed(&format!("빠진 사진을 넣음: {names}"), &format!("added missing photos: {names}"));
        }
    }

    /// A block behind the paragraph with the last mention of a name, or behind the first paragraph.
    fn insert_after(&mut self, name: Option<&str>, block: &str) {
        let mention = name
            .and_then(|name| {
                let shown = plain_name(name);
                self.text.rfind(&shown).map(|at| at + shown.len())
            })
            .unwrap_or(0);
        let at = self.text[mention..].find("\n\n").map_or(self.text.len(), |end| mention + end);
        self.text.insert_str(at, &format!("\n\n{block}"));
    }

    /// A block before the paragraph with the first mention of a name.
    fn insert_before(&mut self, name: &str, block: &str) {
        let mention = position_of_photo(&self.text, name).unwrap_or(0);
        let at = self.text[..mention].rfind("\n\n").map_or(0, |end| end + 2);
        self.text.insert_str(at, &format!("{block}\n\n"));
    }

    /// Sentences of the notes that the text does not tell, at their stop or at the end.
    fn add_notes(&mut self, placed: &PlacedNotes, photos: &PhotoList, brief: &Brief<'_>) {
        let lacks = measure(&self.text, brief).iter().any(|one| one.rule == Rule::Notes && one.share < 1.0);
        if !lacks {
            return;
        }
        let untold = |lines: &mut dyn Iterator<Item = &String>, text: &str| -> Vec<String> {
            let told = text.to_lowercase();
            lines.filter(|line| !is_told(line, &told, self.speech)).map(|line| self.speech.own_words(line)).collect()
        };
        let mut count = 0;
        let rest = untold(&mut placed.intro.iter().chain(&placed.closing), &self.text);
        for (stop, own) in photos.stops.iter().zip(&placed.stops) {
            let lines = untold(&mut own.iter(), &self.text);
            if !lines.is_empty() {
                count += lines.len();
                self.insert_after(stop.photos.last().map(String::as_str), &lines.join(" "));
            }
        }
        if !rest.is_empty() {
            count += rest.len();
            self.text = format!("{}\n\n{}", self.text, rest.join(" "));
        }
        if count > 0 {
            self.changed(
                &format!("메모에서 빠진 문장 {count}개를 넣음"),
                &format!("added {count} sentences of the notes"),
            );
        }
    }

    /// Long sentences become two where a conjunction shows the seam.
    fn cut_sentences(&mut self, brief: &Brief<'_>, is_asked: bool) {
        let is_long = measure(&self.text, brief).iter().any(|one| one.rule == Rule::Sentences && one.share < 1.0);
        if !(is_long || is_asked) {
            return;
        }
        let lines: Vec<String> = self.text.lines().map(|line| self.cut_line(line)).collect();
        let cut = lines.join("\n");
        if cut != self.text {
            self.text = cut;
            self.changed("긴 문장을 나눔", "cut long sentences in two");
        }
    }

    fn cut_line(&self, line: &str) -> String {
        let is_prose = !line.trim_start().starts_with(['#', '!', '*', '>', '-', '|', '`']);
        if !is_prose || line.chars().count() <= LONG_SENTENCE_CHARS {
            return line.to_owned();
        }
        let cut: Vec<String> = sentences(line).iter().map(|sentence| cut_sentence(sentence, self.speech)).collect();
        cut.join(" ")
    }
}

fn same_stop(photos: &PhotoList, one: &str, other: &str) -> bool {
    let holds = |stop: &Stop, name: &str| stop.photos.iter().any(|photo| photo == name);
    photos.stops.iter().any(|stop| holds(stop, one) && holds(stop, other))
}

/// True if more than half of a sentence's content words stand in the text (lower case), or the whole sentence does.
fn is_told(sentence: &str, text: &str, speech: &Speech) -> bool {
    let words = keywords(sentence, speech.language);
    let found = words.iter().filter(|word| text.contains(&word.word.to_lowercase())).count();
    let is_verbatim = text.contains(&speech.own_words(sentence).to_lowercase());
    is_verbatim || words.is_empty() || found * 2 > words.len()
}

/// One sentence, or two joined by a space.
fn cut_sentence(sentence: &str, speech: &Speech) -> String {
    if sentence.chars().count() <= LONG_SENTENCE_CHARS {
        return sentence.to_owned();
    }
    let seams: &[&str] = match speech.language {
        Language::Ko => &["었고, ", "았고, ", "했고, ", "였고, "],
        Language::En => &[", and ", ", but ", "; "],
    };
    let middle = sentence.len() / 2;
    let seam = seams.iter().flat_map(|seam| sentence.match_indices(seam)).min_by_key(|(at, _)| at.abs_diff(middle));
    let Some((at, seam)) = seam else { return sentence.to_owned() };
    let (head, tail) = (&sentence[..at], &sentence[at + seam.len()..]);
    match speech.language {
        Language::Ko => {
            let stem = format!("{head}{}", seam.trim_end_matches("고, "));
            format!("{}. {tail}", past(&stem, speech.ending))
        }
        Language::En => {
            let mut characters = tail.chars();
            let first = characters.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
            format!("{head}. {first}{}", characters.as_str())
        }
    }
}

fn say(speech: &Speech, korean: &str, english: &str) -> String {
    match speech.language {
        Language::Ko => korean.to_owned(),
        Language::En => english.to_owned(),
    }
}
