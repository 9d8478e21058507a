//! Pictures and sounds inside texts (`data:image/png;base64,...`) are told by their length and hash: whoever has the file can tell that it
//! was this one, and nobody else gets to see it.

use std::fmt::Write as _;

use base64::{
    Engine as _, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use sha2::{Digest as _, Sha256};

/// What stands between the type and the bytes.
const MARK: &str = ";base64,";
/// The longest type in front of the mark that is looked at.
const TYPE_BYTES_MAX: usize = 128;
/// Either alphabet may come with padding or without.
const LENIENT: GeneralPurposeConfig = GeneralPurposeConfig::new()
    .with_decode_padding_mode(DecodePaddingMode::Indifferent)
    .with_decode_allow_trailing_bits(true);
const ENGINE: GeneralPurpose = GeneralPurpose::new(&alphabet::STANDARD, LENIENT);

/// The text with the bytes of each data URL replaced by `(N bytes, sha256 ...)`. Also right inside JSON text, where a slash may be escaped.
pub(super) fn shorten(text: &str) -> String {
    let mut short = String::with_capacity(text.len().min(64 * 1024));
    let mut rest = text;
    while let Some(at) = rest.find(MARK) {
        let (before, behind) = rest.split_at(at + MARK.len());
        short.push_str(before);
        rest = behind;
        let begin = before.floor_char_boundary(before.len().saturating_sub(TYPE_BYTES_MAX + MARK.len()));
        if !before[begin..].contains("data:") {
            continue;
        }
        let is_payload =
            |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '+' | '/' | '-' | '_' | '=' | '\\');
        let end = rest.find(|letter| !is_payload(letter)).unwrap_or(rest.len());
        // A backslash in front of a quote is the quote's, not the payload's.
        let payload = rest[..end].trim_end_matches('\\');
        describe(payload, &mut short);
        rest = &rest[payload.len()..];
    }
    short.push_str(rest);
    short
}

fn describe(payload: &str, into: &mut String) {
    let plain: String = payload
        .chars()
        .filter(|letter| *letter != '\\')
        .map(|letter| match letter {
            '-' => '+',
            '_' => '/',
            letter => letter,
        })
        .collect();
    // What is no base64 is told by its text.
    let bytes = ENGINE.decode(&plain).unwrap_or_else(|_| payload.as_bytes().to_vec());
    // Writing to a string cannot fail.
    let _ = write!(into, "({} bytes, sha256 ", bytes.len());
    for byte in Sha256::digest(&bytes) {
        let _ = write!(into, "{byte:02x}");
    }
    into.push(')');
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn pictures_are_told_by_length_and_hash() {
        // From `sha256sum`.
        let abc = "(3 bytes, sha256 ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad)";
        let high = "(3 bytes, sha256 a5d28422dd1578e829b3d4b4f39904c1b1f3c25cfb1d68bfb5d657c07c1843c4)";
        for (text, want) in [
            ("nothing here", "nothing here".to_owned()),
            ("data:image/png;base64,YWJj", format!("data:image/png;base64,{abc}")),
            ("![x](data:image/png;base64,YWJj) 그리고", format!("![x](data:image/png;base64,{abc}) 그리고")),
            (r#"{"url":"data:image\/png;base64,YWJj"}"#, format!(r#"{{"url":"data:image\/png;base64,{abc}"}}"#)),
            (r#""{\"url\":\"data:a;base64,YWJj\"}""#, format!(r#""{{\"url\":\"data:a;base64,{abc}\"}}""#)),
            ("data:a;base64,++++ data:b;base64,----", format!("data:a;base64,{high} data:b;base64,{high}")),
            ("header;base64,YWJj", "header;base64,YWJj".to_owned()),
            (
                "data:a;base64,",
                "data:a;base64,(0 bytes, sha256 e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855)"
                    .to_owned(),
            ),
        ] {
            assert_eq!(shorten(text), want, "{text}");
        }
    }

    fn describe_of(bytes: &[u8]) -> String {
        let mut text = format!("({} bytes, sha256 ", bytes.len());
        Sha256::digest(bytes).iter().for_each(|byte| text.push_str(&format!("{byte:02x}")));
        text + ")"
    }

    proptest! {
        #[test]
        fn bytes_are_never_seen_and_all_else_stays(bytes in prop::collection::vec(any::<u8>(), 30..200), around in "[ 가-힣\"]{0,9}") {
            let payload = base64::engine::general_purpose::STANDARD.encode(&bytes);
            let text = format!("{around}data:image/png;base64,{payload}\"{around}");
            let want = format!("{around}data:image/png;base64,{}\"{around}", describe_of(&bytes));
            prop_assert_eq!(shorten(&text), want);
        }

        #[test]
        fn no_text_panics(text in "(data:|;base64,|[a-z=/\\\\]|가){0,12}") {
            let _ = shorten(&text);
        }
    }
}
