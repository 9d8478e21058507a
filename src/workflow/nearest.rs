//! The known word that was probably meant. Only for messages; it decides nothing.

/// The candidate nearest to `word`, if one is near enough to be a slip of the pen.
pub(super) fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let slips_max = (word.chars().count() / 3).max(1);
    candidates
        .into_iter()
        .map(|candidate| (distance(word, candidate), candidate))
        .filter(|(slips, _)| *slips <= slips_max)
        .min()
        .map(|(_, candidate)| candidate)
}

/// `; did you mean "..."?` or nothing: the end of a rule.
pub(super) fn hint<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    nearest(word, candidates).map(|candidate| format!("; did you mean {candidate:?}?")).unwrap_or_default()
}

/// Letters to insert, remove or change to make `left` into `right`.
fn distance(left: &str, right: &str) -> usize {
    // A long word is no slip of a short one; this also bounds the work.
    const LETTERS_MAX: usize = 64;
    let right: Vec<char> = right.chars().take(LETTERS_MAX).collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (above, letter) in left.chars().take(LETTERS_MAX).enumerate() {
        let mut diagonal = row[0];
        row[0] = above + 1;
        for (at, other) in right.iter().enumerate() {
            let changed = diagonal + usize::from(letter != *other);
            diagonal = row[at + 1];
            row[at + 1] = changed.min(row[at] + 1).min(diagonal + 1);
        }
    }
    row[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_of_the_pen() {
        let keys = ["agent", "needs", "when", "timeout", "optional"];
        for (word, meant) in [
            ("agnet", None), // two changes in five letters are too many to guess by
            ("agents", Some("agent")),
            ("wen", Some("when")),
            ("tiemout", Some("timeout")),
            ("optoinal", Some("optional")),
            ("retries", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, keys), meant, "{word}");
        }
    }

    #[test]
    fn distances() {
        for (left, right, slips) in
            [("", "", 0), ("a", "", 1), ("", "abc", 3), ("kitten", "sitting", 3), ("가나", "가다", 1)]
        {
            assert_eq!(distance(left, right), slips, "{left} {right}");
        }
    }
}
