//! Which stop a line of the author's notes belongs to. A line goes where its time or a photo's name puts it, its neighbours in the
//! same block go with it; what nothing places comes before the first stop or after the last. No line is dropped or changed.

use std::collections::BTreeSet;

use jiff::civil::DateTime;

use super::times::{Mention, Minutes, mention};
use crate::agents::{
    shapes::{PhotoList, Stop, moment},
    text::{closed, is_heading, plain_line, sentences},
};

/// A mentioned time this far from a stop's photos still means that stop.
const NEAR_MINUTES_MAX: Minutes = 90;
/// Words in names of photos that name nothing.
const NAMELESS: [&str; 12] =
    ["img", "dsc", "dscn", "dscf", "pxl", "photo", "image", "screenshot", "jpeg", "heic", "with", "from"];
/// A last line with one of these looks back or ahead and belongs to no stop.
const CLOSING_WORDS: [&str; 12] = [
    "다음에",
    "다음번",
    "집에",
    "돌아오",
    "돌아왔",
    "오늘 하루",
    "next time",
    "all in all",
    "overall",
    "back home",
    "on the way back",
    "total",
];

/// The notes by place in the post; each item is a sentence.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct PlacedNotes {
    /// The notes' own heading.
    pub(super) title: Option<String>,
    /// Before the first stop.
    pub(super) intro: Vec<String>,
    /// By stop.
    pub(super) stops: Vec<Vec<String>>,
    /// After the last stop.
    pub(super) closing: Vec<String>,
}

impl PlacedNotes {
    /// True if there is nothing to tell; a heading alone is nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.intro.is_empty() && self.closing.is_empty() && self.stops.iter().all(Vec::is_empty)
    }
}

struct Line {
    sentences: Vec<String>,
    block: usize,
    anchor: Option<usize>,
    is_closing: bool,
}

/// Places every line of the notes.
pub(super) fn place(notes: &str, photos: &PhotoList) -> PlacedNotes {
    let (title, lines) = lines_of(notes, photos);
    let mut placed = PlacedNotes { title, stops: vec![Vec::new(); photos.stops.len()], ..PlacedNotes::default() };
    let anchored: Vec<usize> = lines.iter().filter(|line| line.anchor.is_some()).map(|line| line.block).collect();
    let (Some(first_block), Some(last_block)) = (anchored.first().copied(), anchored.last().copied()) else {
        place_without_anchors(&mut placed, lines);
        return placed;
    };
    let last_anchor = lines.iter().rposition(|line| line.anchor.is_some()).unwrap_or(0);
    let mut current: Option<usize> = None;
    let mut block = usize::MAX;
    for (index, line) in lines.iter().enumerate() {
        if line.block != block {
            block = line.block;
            // A new block before its own anchor goes with that anchor; without one it stays with the stop before.
            current = lines[index..]
                .iter()
                .take_while(|later| later.block == block)
                .find_map(|later| later.anchor)
                .or(current)
                .filter(|_| block >= first_block);
        }
        current = line.anchor.or(current);
        let after_all = index > last_anchor && (line.is_closing || line.block > last_block);
        let before_all = line.block == first_block && lines[..=index].iter().all(|earlier| earlier.anchor.is_none());
        let target = match current {
            _ if after_all => &mut placed.closing,
            Some(stop) if !before_all => &mut placed.stops[stop],
            _ => &mut placed.intro,
        };
        target.extend(line.sentences.iter().cloned());
    }
    placed
}

fn place_without_anchors(placed: &mut PlacedNotes, lines: Vec<Line>) {
    let last_block = lines.last().map_or(0, |line| line.block);
    for line in lines {
        let at_end = line.is_closing || (line.block == last_block && last_block > 0);
        if at_end {
            placed.closing.extend(line.sentences);
        } else {
            placed.intro.extend(line.sentences);
        }
    }
}

fn lines_of(notes: &str, photos: &PhotoList) -> (Option<String>, Vec<Line>) {
    let mut title = None;
    let mut lines: Vec<Line> = Vec::new();
    let mut block = 0;
    let mut names = stop_names(photos);
    names.retain(|(word, _)| !word.is_empty());
    for raw in notes.lines() {
        let trimmed = raw.trim();
        if trimmed.is_empty() {
            block += 1;
            continue;
        }
        if is_heading(trimmed) {
            block += 1;
            let heading = trimmed.trim_start_matches('#').trim();
            if title.is_none() && lines.is_empty() && !heading.is_empty() {
                title = Some(heading.to_owned());
                continue;
            }
        }
        let plain = plain_line(trimmed.trim_start_matches('#'));
        let found: Vec<String> = sentences(&plain).iter().map(|sentence| closed(sentence)).collect();
        if found.is_empty() {
            continue;
        }
        let lower = plain.to_lowercase();
        lines.push(Line {
            anchor: anchor_of(&lower, &photos.stops, &names),
            is_closing: CLOSING_WORDS.iter().any(|word| lower.contains(word)),
            sentences: found,
            block,
        });
    }
    (title, lines)
}

fn anchor_of(line: &str, stops: &[Stop], names: &[(String, usize)]) -> Option<usize> {
    let by_time = mention(line).and_then(|mentioned| nearest_stop(mentioned, stops));
    by_time.or_else(|| names.iter().find(|(name, _)| line.contains(name.as_str())).map(|(_, stop)| *stop))
}

/// The stop whose photos lie nearest to the mentioned time.
fn nearest_stop(mentioned: Mention, stops: &[Stop]) -> Option<usize> {
    let spans = stops.iter().enumerate().filter_map(|(index, stop)| Some((index, span_of(stop)?)));
    match mentioned {
        Mention::Clock { minutes, either_half } => {
            let distance = |(from, to): (Minutes, Minutes)| {
                let other = if either_half { minutes + 12 * 60 } else { minutes };
                outside(minutes, from, to).min(outside(other, from, to))
            };
            let (index, span) = spans.min_by_key(|(_, span)| distance(*span))?;
            (distance(span) <= NEAR_MINUTES_MAX).then_some(index)
        }
        Mention::Part { from, to } => {
            spans.filter(|(_, span)| span.0 <= to && span.1 >= from).map(|(index, _)| index).next()
        }
    }
}

fn outside(minutes: Minutes, from: Minutes, to: Minutes) -> Minutes {
    (from - minutes).max(minutes - to).max(0)
}

/// From and to in minutes of the day; a stop over midnight is taken by its first photo.
fn span_of(stop: &Stop) -> Option<(Minutes, Minutes)> {
    let of_day = |moment: DateTime| Minutes::from(moment.hour()) * 60 + Minutes::from(moment.minute());
    let first = moment(stop.first.as_deref()?)?;
    let last = stop.last.as_deref().and_then(moment).filter(|last| last.date() == first.date()).unwrap_or(first);
    Some((of_day(first), of_day(last).max(of_day(first))))
}

/// Words of the photos' names that lead to exactly one stop.
fn stop_names(photos: &PhotoList) -> Vec<(String, usize)> {
    let mut found: Vec<(String, usize)> = Vec::new();
    let mut ambiguous = BTreeSet::new();
    for (index, stop) in photos.stops.iter().enumerate() {
        for name in &stop.photos {
            let stem = name.rsplit_once('.').map_or(name.as_str(), |(stem, _)| stem).to_lowercase();
            let words = stem.split(|character: char| !character.is_alphabetic()).filter(|word| names_something(word));
            for word in words.map(str::to_owned).chain([name.to_lowercase()]) {
                match found.iter().find(|(known, _)| *known == word) {
                    Some((_, other)) if *other != index => {
                        ambiguous.insert(word);
                    }
                    Some(_) => {}
                    None => found.push((word, index)),
                }
            }
        }
    }
    found.retain(|(word, _)| !ambiguous.contains(word));
    found
}

fn names_something(word: &str) -> bool {
    let characters = word.chars().count();
    let long_enough = if word.is_ascii() { characters >= 4 } else { characters >= 2 };
    long_enough && !NAMELESS.contains(&word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn photos() -> PhotoList {
        let stop = |number, first: &str, last: &str, photo: &str| Stop {
            number,
            first: Some(format!("2025-04-12T{first}:00")),
            last: Some(format!("2025-04-12T{last}:00")),
            photos: vec![photo.to_owned()],
            ..Stop::default()
        };
        PhotoList {
            stops: vec![
                stop(1, "09:10", "09:40", "IMG_1.jpg"),
                stop(2, "12:20", "12:30", "old-bridge.jpg"),
                stop(3, "18:02", "18:40", "IMG_9.jpg"),
            ],
            ..PhotoList::default()
        }
    }

    fn check(notes: &str, intro: &[&str], stops: [&[&str]; 3], closing: &[&str]) {
        let placed = place(notes, &photos());
        assert_eq!(placed.intro, intro, "intro of {notes:?}");
        for (index, want) in stops.iter().enumerate() {
            assert_eq!(placed.stops[index], *want, "stop {index} of {notes:?}");
        }
        assert_eq!(placed.closing, closing, "closing of {notes:?}");
    }

    #[test]
    fn lines_go_where_their_times_put_them() {
        check(
            "# T\n첫차를 탔다\n\n9시쯤 걸었다. 조용했다\n앉아 있었다\n\n바람\n\n점심은 국수\n\n6시 노을\n다음에 또",
            &["첫차를 탔다."],
            [&["9시쯤 걸었다.", "조용했다.", "앉아 있었다.", "바람."], &["점심은 국수."], &["6시 노을."]],
            &["다음에 또."],
        );
        check("start\n9 am walk\nthe old bridge", &["start."], [&["9 am walk."], &["the old bridge."], &[]], &[]);
        check("one\n\ntwo", &["one."], [&[], &[], &[]], &["two."]);
        check("one", &["one."], [&[], &[], &[]], &[]);
        check("", &[], [&[], &[], &[]], &[]);
        check("3 am", &["3 am."], [&[], &[], &[]], &[]);
    }

    proptest::proptest! {
        #[test]
        fn no_line_is_lost(notes in proptest::collection::vec("[a-z]{1,8}( 9시| 6시| noon)?", 0..12), gaps in 0_u8..4) {
            let text = notes.join(if gaps == 0 { "\n\n" } else { "\n" });
            let placed = place(&text, &photos());
            let count = placed.intro.len() + placed.closing.len() + placed.stops.iter().map(Vec::len).sum::<usize>();
            proptest::prop_assert_eq!(count, notes.len());
        }
    }
}
