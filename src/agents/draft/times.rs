//! Times of day that a line of notes mentions: `9시 반`, `오후 3시`, `14:30`, `9 am`, `노을`, `lunch`.
//! Finds the first mention; knows nothing of photos.

/// Minutes from midnight.
pub(super) type Minutes = i64;

/// The minutes of half a day.
const HALF_DAY: Minutes = 12 * 60;

/// A mentioned time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mention {
    /// A clock time.
    Clock {
        /// From midnight, as written.
        minutes: Minutes,
        /// True if it may mean the same time of the other half of the day.
        either_half: bool,
    },
    /// A part of the day.
    Part {
        /// From.
        from: Minutes,
        /// To.
        to: Minutes,
    },
}

/// Parts of the day by their words, the most telling first.
const PARTS: [(&str, Minutes, Minutes); 20] = [
    ("해 질", 1_020, 1_200),
    ("해질", 1_020, 1_200),
    ("노을", 1_020, 1_200),
    ("sunset", 1_020, 1_260),
    ("dusk", 1_020, 1_260),
    ("sunrise", 300, 480),
    ("새벽", 180, 420),
    ("아침", 360, 600),
    ("breakfast", 360, 600),
    ("점심", 690, 840),
    ("lunch", 690, 840),
    ("noon", 690, 780),
    ("저녁", 1_050, 1_260),
    ("dinner", 1_050, 1_320),
    ("evening", 1_050, 1_320),
    ("오전", 360, 720),
    ("morning", 360, 720),
    ("오후", 720, 1_080),
    ("afternoon", 720, 1_080),
    ("야경", 1_140, 1_440),
];

/// The first clock time of a line, else the most telling part of the day.
pub(super) fn mention(line: &str) -> Option<Mention> {
    let lower = line.to_lowercase();
    clock(&lower).or_else(|| {
        let (_, from, to) = PARTS.iter().find(|(word, _, _)| has_word(&lower, word))?;
        Some(Mention::Part { from: *from, to: *to })
    })
}

/// Korean words stand anywhere (particles follow them), Latin ones only as whole words.
fn has_word(text: &str, word: &str) -> bool {
    if !word.is_ascii() {
        return text.contains(word);
    }
    text.split(|character: char| !character.is_ascii_alphabetic()).any(|token| token == word)
}

fn clock(text: &str) -> Option<Mention> {
    let mut at = 0;
    while let Some(offset) = text[at..].find(|character: char| character.is_ascii_digit()) {
        let start = at + offset;
        let end =
            text[start..].find(|character: char| !character.is_ascii_digit()).map_or(text.len(), |end| start + end);
        if let Some(found) = clock_at(&text[..start], &text[start..end], &text[end..]) {
            return Some(found);
        }
        at = end;
    }
    None
}

/// Reads a number with what stands before and after it as a clock time.
fn clock_at(before: &str, digits: &str, after: &str) -> Option<Mention> {
    let hour: Minutes = if digits.len() <= 2 { digits.parse().ok()? } else { return None };
    let (minute, rest, is_clock) = minute_after(after)?;
    let half = half_of_day(before, rest);
    if hour > 24 || minute > 59 || !(is_clock || half.is_some()) {
        return None;
    }
    let shift = match half {
        Some(Half::First) if hour == 12 => -HALF_DAY,
        Some(Half::Second) if hour < 12 => HALF_DAY,
        _ => 0,
    };
    // `09:30` and hours past noon say themselves which half they mean.
    let either_half = half.is_none() && (1..12).contains(&hour) && !digits.starts_with('0');
    Some(Mention::Clock { minutes: hour * 60 + minute + shift, either_half })
}

/// The minutes after an hour, what follows them, and whether this alone makes it a clock time.
fn minute_after(after: &str) -> Option<(Minutes, &str, bool)> {
    if let Some(rest) = after.strip_prefix(':') {
        let two = rest.get(..2)?;
        let more = rest[2..].starts_with(|character: char| character.is_ascii_digit());
        return if more { None } else { Some((two.parse().ok()?, &rest[2..], true)) };
    }
    let Some(rest) = after.strip_prefix('시').or_else(|| after.strip_prefix(" 시")) else {
        return Some((0, after, after.trim_start().starts_with("o'clock")));
    };
    // 3시간 is a duration.
    if rest.starts_with('간') {
        return None;
    }
    let words = rest.trim_start();
    if words.starts_with('반') {
        return Some((30, words, true));
    }
    let digits: String = words.chars().take_while(char::is_ascii_digit).take(2).collect();
    let minute = if words[digits.len()..].starts_with('분') { digits.parse().unwrap_or(0) } else { 0 };
    Some((minute, rest, true))
}

enum Half {
    First,
    Second,
}

fn half_of_day(before: &str, after: &str) -> Option<Half> {
    let before = before.trim_end();
    if ["오전", "아침", "새벽"].iter().any(|word| before.ends_with(word)) {
        return Some(Half::First);
    }
    if ["오후", "저녁", "밤"].iter().any(|word| before.ends_with(word)) {
        return Some(Half::Second);
    }
    let after = after.trim_start();
    let is_word = |word: &str| after.strip_prefix(word).is_some_and(|rest| !rest.starts_with(char::is_alphabetic));
    if is_word("am") || is_word("a.m") {
        Some(Half::First)
    } else if is_word("pm") || is_word("p.m") {
        Some(Half::Second)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_day() {
        let clock = |minutes, either_half| Some(Mention::Clock { minutes, either_half });
        for (line, want) in [
            ("9시쯤 대릉원", clock(540, true)),
            ("10시 반에 첨성대", clock(630, true)),
            ("오후 3시 20분", clock(920, false)),
            ("오전 12시", clock(0, false)),
            ("밤 12시", clock(720, false)),
            ("3시간 걸었다", None),
            ("14:30 bridge", clock(870, false)),
            ("at 09:05", clock(545, false)),
            ("Left at 9 am", clock(540, false)),
            ("around 6:30pm.", clock(1_110, false)),
            ("7 o'clock", clock(420, true)),
            ("6 amazing bowls", None),
            ("two at 25:00", None),
            ("점심은 국수", Some(Mention::Part { from: 690, to: 840 })),
            ("Lunch was good", Some(Mention::Part { from: 690, to: 840 })),
            ("lunchbox", None),
            ("2008년 사진 12345:67", None),
            ("", None),
        ] {
            assert_eq!(mention(line), want, "{line}");
        }
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_lines_never_panic(line in "\\PC*", tail in "[0-9:시분 반apm]{0,12}") {
            mention(&format!("{line}{tail}"));
        }
    }
}
