//! What bytes are, by themselves: the first ones name a type, or all of them are text. The sender's word counts for nothing but the
//! difference between text and Markdown, which bytes cannot tell. And a name that is fit to be shown.

/// So many first bytes are looked at for a type.
const HEAD_BYTES: usize = 8 * 1024;
/// The longest name, in bytes.
const NAME_BYTES_MAX: usize = 200;
/// What is neither known nor text.
const UNKNOWN: &str = "application/octet-stream";

/// Looks at bytes as they come.
#[derive(Debug, Default)]
pub(super) struct Sniffer {
    head: Vec<u8>,
    /// The beginning of a character that the next bytes complete.
    open: Vec<u8>,
    is_no_text: bool,
}

impl Sniffer {
    /// The next bytes.
    pub(super) fn see(&mut self, bytes: &[u8]) {
        let room = HEAD_BYTES.saturating_sub(self.head.len());
        self.head.extend_from_slice(&bytes[..bytes.len().min(room)]);
        if !self.is_no_text {
            self.is_no_text = bytes.contains(&0) || !self.goes_on_as_text(bytes);
        }
    }

    fn goes_on_as_text(&mut self, bytes: &[u8]) -> bool {
        let mut rest = bytes;
        while !self.open.is_empty() {
            let Some((byte, after)) = rest.split_first() else { return true };
            self.open.push(*byte);
            rest = after;
            match std::str::from_utf8(&self.open) {
                Ok(_) => self.open.clear(),
                Err(error) if error.error_len().is_some() => return false,
                Err(_) => {}
            }
        }
        match std::str::from_utf8(rest) {
            Ok(_) => true,
            Err(error) if error.error_len().is_some() => false,
            Err(error) => {
                self.open.extend_from_slice(&rest[error.valid_up_to()..]);
                true
            }
        }
    }

    /// The type of all bytes seen; `name` tells Markdown from other text.
    pub(super) fn media_type(&self, name: &str) -> &'static str {
        if let Some(kind) = infer::get(&self.head) {
            return kind.mime_type();
        }
        if self.is_no_text || !self.open.is_empty() {
            return UNKNOWN;
        }
        let ending = name.rsplit_once('.').map(|(_, ending)| ending.to_ascii_lowercase());
        match ending.as_deref() {
            Some("md" | "markdown") => "text/markdown",
            _ => "text/plain",
        }
    }
}

/// A name as it may be shown: its last part, without what could deceive a reader or end a header.
pub(super) fn shown_name(sent: &str) -> String {
    let last = sent.rsplit(['/', '\\']).next().unwrap_or_default();
    let is_fit = |letter: &char| {
        let turns_direction =
            matches!(letter, '\u{200E}' | '\u{200F}' | '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}');
        !letter.is_control() && !turns_direction && !matches!(letter, '\u{2028}' | '\u{2029}' | '"' | '\u{FEFF}')
    };
    let mut name = String::new();
    for letter in last.chars().filter(is_fit) {
        if name.len() + letter.len_utf8() > NAME_BYTES_MAX {
            break;
        }
        name.push(letter);
    }
    let name = name.trim().trim_start_matches('.').trim();
    if name.is_empty() { "file".to_owned() } else { name.to_owned() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sniffed(bytes: &[u8], name: &str, piece: usize) -> &'static str {
        let mut sniffer = Sniffer::default();
        bytes.chunks(piece.max(1)).for_each(|piece| sniffer.see(piece));
        sniffer.media_type(name)
    }

    #[test]
    fn bytes_tell_their_type() {
        for (bytes, name, wanted) in [
            (&b"\xFF\xD8\xFF\xE0\0\x10JFIF"[..], "notes.txt", "image/jpeg"),
            (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "a.jpg", "image/png"),
            (b"%PDF-1.7", "a.md", "application/pdf"),
            ("# 산책\n\n오늘".as_bytes(), "post.MD", "text/markdown"),
            ("오늘".as_bytes(), "post", "text/plain"),
            (b"", "empty", "text/plain"),
            (b"plain\0zero", "a.txt", UNKNOWN),
            (b"\xC3\x28", "a.txt", UNKNOWN),
            (b"cut \xEC\x98", "a.txt", UNKNOWN),
        ] {
            for piece in [1, 2, 3, 100] {
                assert_eq!(sniffed(bytes, name, piece), wanted, "{name} in pieces of {piece}");
            }
        }
    }

    #[test]
    fn names_are_fit_to_be_shown() {
        for (sent, shown) in [
            ("photo.jpg", "photo.jpg"),
            ("../../etc/passwd", "passwd"),
            ("C:\\Users\\me\\사진 1.jpg", "사진 1.jpg"),
            ("a\r\nSet-Cookie: x\".txt", "aSet-Cookie: x.txt"),
            ("gpj.\u{202E}exe", "gpj.exe"),
            ("..", "file"),
            ("", "file"),
            (".bashrc", "bashrc"),
        ] {
            assert_eq!(shown_name(sent), shown);
        }
    }

    proptest! {
        #[test]
        fn text_is_text_in_any_pieces(text in "[^\0]{0,50}", piece in 1_usize..8) {
            prop_assume!(infer::get(text.as_bytes()).is_none());
            prop_assert_eq!(sniffed(text.as_bytes(), "", piece), "text/plain");
        }

        #[test]
        fn no_name_is_long_or_odd(sent in any::<String>()) {
            let shown = shown_name(&sent);
            prop_assert!(!shown.is_empty() && shown.len() <= NAME_BYTES_MAX);
            prop_assert!(!shown.chars().any(|letter| letter.is_control() || letter == '/' || letter == '\\'));
        }
    }
}
