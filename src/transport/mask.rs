//! Takes secrets out of bytes that go on as they come: each byte of one becomes a star, so that no length changes. Looks for them as they
//! are and as JSON writes them. Holds back no more than what may be a secret's beginning; knows nothing of what the bytes mean.

use std::fmt;

use bytes::Bytes;

use super::{
    hiding::in_json,
    secret::{SCRUBBED_BYTES_MIN, Secret},
};

/// A mask over one body. Secrets shorter than six bytes are not looked for: they would hit innocent words.
pub(super) struct Mask {
    /// The secrets, in each form that is looked for.
    forms: Vec<String>,
    /// May be the beginning of a secret.
    held: Vec<u8>,
    /// So many of them belong to another secret, which began before them.
    covered: usize,
}

impl Mask {
    pub(super) fn new(secrets: &[Secret]) -> Self {
        let plain = secrets.iter().map(Secret::expose).filter(|text| text.len() >= SCRUBBED_BYTES_MIN);
        let mut forms: Vec<String> =
            plain.flat_map(|text| [text.to_owned()].into_iter().chain(in_json(text))).collect();
        forms.sort();
        forms.dedup();
        Self { forms, held: Vec::new(), covered: 0 }
    }

    /// What goes on of what has come so far; it may be nothing.
    pub(super) fn push(&mut self, piece: &[u8]) -> Bytes {
        self.held.extend_from_slice(piece);
        let longest = self.texts().map(<[u8]>::len).max().unwrap_or(0);
        let last = self.held.len().saturating_sub(longest)..self.held.len();
        let begins = |from: &usize| {
            let rest = self.held.get(*from..).unwrap_or_default();
            self.texts().any(|secret| rest.len() < secret.len() && secret.starts_with(rest))
        };
        let end = last.into_iter().find(begins).unwrap_or(self.held.len());
        self.release(end)
    }

    /// What is left at the end: no secret.
    pub(super) fn finish(&mut self) -> Bytes {
        self.release(self.held.len())
    }

    /// The first `end` bytes, masked.
    fn release(&mut self, end: usize) -> Bytes {
        let mut covered = self.covered;
        let mut seen = self.held.clone();
        seen.get_mut(..covered).unwrap_or_default().fill(b'*');
        for secret in self.texts() {
            for from in places(&self.held, secret).filter(|from| *from < end) {
                let to = from + secret.len();
                seen.get_mut(from..to).unwrap_or_default().fill(b'*');
                covered = covered.max(to);
            }
        }
        seen.truncate(end);
        self.covered = covered.saturating_sub(end);
        self.held.drain(..end);
        Bytes::from(seen)
    }

    fn texts(&self) -> impl Iterator<Item = &[u8]> {
        self.forms.iter().map(String::as_bytes)
    }
}

/// Without the secrets.
impl fmt::Debug for Mask {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Mask").field("forms", &self.forms.len()).finish_non_exhaustive()
    }
}

/// Where the secret begins.
fn places(bytes: &[u8], secret: &[u8]) -> impl Iterator<Item = usize> {
    bytes.windows(secret.len()).enumerate().filter(move |(_, window)| *window == secret).map(|(from, _)| from)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn masked(secrets: &[&str], pieces: &[&[u8]]) -> String {
        let secrets: Vec<Secret> = secrets.iter().map(|secret| Secret::new(secret)).collect();
        let mut mask = Mask::new(&secrets);
        let mut out: Vec<u8> = pieces.iter().flat_map(|piece| mask.push(piece)).collect();
        out.extend(mask.finish());
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn secrets_are_stars_wherever_a_piece_ends() {
        for (secrets, text, want) in [
            (&["sk-abcdef"][..], "key sk-abcdef is wrong: sk-abcdef", "key ********* is wrong: *********"),
            (&["sk-abcdef"], "key sk-abcde", "key sk-abcde"),
            (&["abcabcabd"], "abcabcabcabd", "abc*********"),
            // One begins with the other, one lies over the other.
            (&["abcdefgh", "abcdef"], "abcdefgh abcdefg abcdef", "******** ******g ******"),
            (&["abcdef", "efghij"], "abcdefghij", "**********"),
            (&["short"], "short", "short"),
            // As JSON writes it, with slashes escaped or not.
            (&["sk/ab\"cd"], r#"sk/ab\"cd sk\/ab\"cd sk/ab"cd"#, "********* ********** ********"),
            (&[], "anything", "anything"),
        ] {
            for at in 0..=text.len() {
                let (left, right) = text.as_bytes().split_at(at);
                assert_eq!(masked(secrets, &[left, right]), want, "{text} at {at}");
            }
            let each: Vec<&[u8]> = text.as_bytes().chunks(1).collect();
            assert_eq!(masked(secrets, &each), want, "{text} byte by byte");
        }
    }

    #[test]
    fn what_is_no_secret_goes_on_at_once() {
        let mut mask = Mask::new(&[Secret::new("sk-abcdef")]);
        assert_eq!(mask.push(b"data: x\n\n"), "data: x\n\n");
        assert_eq!(mask.push(b"data: sk-a"), "data: ");
        assert_eq!(mask.push(b" y"), "sk-a y");
        assert_eq!(mask.finish(), "");
    }

    proptest! {
        /// However it is cut: as long as before, no secret in it, and the same as in one piece.
        #[test]
        fn pieces_change_nothing(text in "[ab]{0,60}", cuts in proptest::collection::vec(0_usize..60, 0..6)) {
            let secrets = ["aabbab", "abbaba", "bababab"];
            let whole = masked(&secrets, &[text.as_bytes()]);
            prop_assert_eq!(whole.len(), text.len());
            prop_assert!(secrets.iter().all(|secret| !whole.contains(secret)));
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(text.len())).collect();
            cuts.sort_unstable();
            let mut pieces = Vec::new();
            let mut from = 0;
            for cut in cuts {
                pieces.push(&text.as_bytes()[from..cut]);
                from = cut;
            }
            pieces.push(&text.as_bytes()[from..]);
            prop_assert_eq!(masked(&secrets, &pieces), whole);
        }
    }
}
