//! Which known word a misspelt one most likely meant. It only suggests; it never corrects.

/// Longer words are not compared: nobody misspells a key at this length.
const WORD_CHARS_MAX: usize = 64;

/// The known word nearest to `word`, if one is near enough: two edits, one in a word of up to four letters, none in
/// one of up to two.
pub fn nearest<'k>(word: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    let edits_max = match word.chars().count() {
        0..=2 => 0,
        3..=4 => 1,
        _ => 2,
    };
    known
        .into_iter()
        .filter(|candidate| *candidate != word)
        .map(|candidate| (edits(word, candidate), candidate))
        .filter(|(count, _)| *count <= edits_max)
        .min()
        .map(|(_, candidate)| candidate)
}

/// `; did you mean "..."?` or nothing: the end of a rule.
pub fn hint<'k>(word: &str, known: impl IntoIterator<Item = &'k str>) -> String {
    nearest(word, known).map(|candidate| format!("; did you mean {candidate:?}?")).unwrap_or_default()
}

/// Insertions, deletions, replacements and swaps of neighbours that lead from one word to the other.
fn edits(from: &str, to: &str) -> usize {
    let from: Vec<char> = from.chars().take(WORD_CHARS_MAX + 1).collect();
    let to: Vec<char> = to.chars().take(WORD_CHARS_MAX + 1).collect();
    if from.len() > WORD_CHARS_MAX || to.len() > WORD_CHARS_MAX {
        return usize::MAX;
    }
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=to.len()).collect();
    for row in 1..=from.len() {
        let mut current = vec![row; to.len() + 1];
        for column in 1..=to.len() {
            let replace = last[column - 1] + usize::from(from[row - 1] != to[column - 1]);
            current[column] = replace.min(last[column] + 1).min(current[column - 1] + 1);
            let swapped = row > 1 && column > 1 && from[row - 1] == to[column - 2] && from[row - 2] == to[column - 1];
            if swapped {
                current[column] = current[column].min(before_last[column - 2] + 1);
            }
        }
        before_last = last;
        last = current;
    }
    last[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggestions() {
        let known = ["window_calls", "window", "calls_min", "slots", "stall", "open", "open_max", "abc"];
        for (word, suggestion) in [
            ("windwo_calls", Some("window_calls")),
            ("windw", Some("window")),
            ("slot", Some("slots")),
            ("Slots", Some("slots")),
            ("opne", Some("open")),
            ("openmax", Some("open_max")),
            ("", None),
            ("x", None),
            ("ab", None),
            ("failure", None),
            ("슬롯", None),
        ] {
            assert_eq!(nearest(word, known), suggestion, "{word:?}");
        }
        assert_eq!(nearest(&"x".repeat(100_000), known), None);
    }

    #[test]
    fn edits_are_counted() {
        for (from, to, count) in
            [("", "", 0), ("a", "", 1), ("ab", "ba", 1), ("kitten", "sitting", 3), ("abc", "abc", 0), ("ca", "abc", 3)]
        {
            assert_eq!(edits(from, to), count, "{from} {to}");
            assert_eq!(edits(to, from), count, "{to} {from}");
        }
    }
}
