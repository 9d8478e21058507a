//! Reads JSON of which only a part is wanted, so that what nobody asked for can spoil nothing: half a character becomes U+FFFD, a number
//! that no value of ours can hold and what lies too many levels down become `null`. What is no JSON is none here either. A value that was
//! read so is for looking at: where its text can be handed on, that is.

use std::borrow::Cow;

use serde_json::{Error, Value, value::RawValue};

use super::json_walk::{Path, end_of_nested, end_of_number, end_of_text, is_name};

/// How deep a value is read; `serde_json` goes to 127.
const LEVELS_MAX: usize = 120;
/// So many texts of a stream can wait for their other half at once. A frame of an answer brings one or two.
const OPEN_MAX: usize = 16;
/// What stands for half a character, as an escape.
const REPLACEMENT: &str = "\\ufffd";

/// Reads one JSON text.
pub fn read(text: &[u8]) -> Result<Value, Error> {
    serde_json::from_slice(text).or_else(|_| read_mended(text, None))
}

/// What a JSON string says; `None` for every other value.
pub fn text_of(json: &str) -> Option<Cow<'_, str>> {
    let inside = json.strip_prefix('"')?.strip_suffix('"')?;
    if !inside.contains('\\') {
        return Some(Cow::Borrowed(inside));
    }
    match read(json.as_bytes()) {
        Ok(Value::String(text)) => Some(Cow::Owned(text)),
        _ => None,
    }
}

/// Reads the frames of one stream. A character whose halves came in two frames, in texts of the same place, is put together in the
/// second one.
#[derive(Debug, Default)]
pub struct LooseFrames {
    /// The first halves that wait, as escapes, and where their texts stand.
    open: Vec<(String, String)>,
}

impl LooseFrames {
    /// Reads the next frame.
    pub fn read(&mut self, text: &[u8]) -> Result<Value, Error> {
        if self.open.is_empty()
            && let Ok(value) = serde_json::from_slice(text)
        {
            return Ok(value);
        }
        read_mended(text, Some(self))
    }

    /// Whether a text whose place ends so still waits for its other half. At the end of the stream nothing comes any more.
    pub fn is_open(&self, place_end: &str) -> bool {
        self.open.iter().any(|(place, _)| place.ends_with(place_end))
    }

    /// The half that waits for the text of this place, unless the text says nothing yet.
    fn close(&mut self, place: &str, inside: &str) -> Option<String> {
        let known = self.open.iter().position(|(open, _)| open == place).filter(|_| !inside.is_empty());
        known.map(|known| self.open.swap_remove(known).1)
    }
}

fn read_mended(text: &[u8], frames: Option<&mut LooseFrames>) -> Result<Value, Error> {
    // Looks at the signs only: what fails here is no JSON.
    let raw: &RawValue = serde_json::from_slice(text)?;
    serde_json::from_str(&mended(raw.get(), frames))
}

/// A valid JSON text without what no value can hold.
fn mended(text: &str, mut frames: Option<&mut LooseFrames>) -> String {
    let bytes = text.as_bytes();
    let mut out = String::with_capacity(text.len() + 16);
    let (mut path, mut place) = (Path::default(), 0);
    while place < bytes.len() {
        match bytes[place] {
            b'"' => {
                let end = end_of_text(bytes, place);
                let inside = text.get(place + 1..end - 1).unwrap_or_default();
                out.push('"');
                if is_name(bytes, end) {
                    path.name(inside);
                    push_text(&mut out, inside, None);
                } else {
                    let joined = frames.as_deref_mut().map(|frames| (frames, path.to_string()));
                    push_text(&mut out, inside, joined);
                }
                out.push('"');
                place = end;
            }
            b'-' | b'0'..=b'9' => {
                let end = end_of_number(bytes, place);
                let number = &text[place..end];
                let can_be_held = number.parse::<f64>().is_ok_and(f64::is_finite);
                out.push_str(if can_be_held { number } else { "null" });
                place = end;
            }
            b'{' | b'[' if path.levels() >= LEVELS_MAX => {
                out.push_str("null");
                place = end_of_nested(bytes, place);
            }
            sign => {
                path.pass(sign);
                out.push(char::from(sign));
                place += 1;
            }
        }
    }
    out
}

/// Copies the inside of a text, halves of characters mended; those at its two ends can belong to other frames of `joined`.
fn push_text(out: &mut String, inside: &str, mut joined: Option<(&mut LooseFrames, String)>) {
    let mut rest = inside;
    if let Some(first) = joined.as_mut().and_then(|(frames, place)| frames.close(place, inside)) {
        match escaped_unit(rest) {
            Some(unit) if is_second(unit) => {
                out.push_str(&first);
                out.push_str(&rest[..ESCAPE_BYTES]);
                rest = &rest[ESCAPE_BYTES..];
            }
            _ => out.push_str(REPLACEMENT),
        }
    }
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let second = rest.get(ESCAPE_BYTES..).and_then(escaped_unit).filter(|unit| is_second(*unit));
        let taken = match escaped_unit(rest) {
            Some(unit) if is_first(unit) && second.is_some() => 2 * ESCAPE_BYTES,
            Some(unit) if is_first(unit) || is_second(unit) => {
                let waits = match &mut joined {
                    Some((frames, place))
                        if is_first(unit) && rest.len() == ESCAPE_BYTES && frames.open.len() < OPEN_MAX =>
                    {
                        frames.open.push((std::mem::take(place), rest.to_owned()));
                        true
                    }
                    _ => false,
                };
                out.push_str(if waits { "" } else { REPLACEMENT });
                rest = &rest[ESCAPE_BYTES..];
                continue;
            }
            Some(_) => ESCAPE_BYTES,
            None => 2.min(rest.len()),
        };
        out.push_str(&rest[..taken]);
        rest = &rest[taken..];
    }
    out.push_str(rest);
}

/// The bytes of `\u` with its four digits.
const ESCAPE_BYTES: usize = 6;

/// The UTF-16 unit that the escape at the beginning of a text names.
fn escaped_unit(text: &str) -> Option<u16> {
    u16::from_str_radix(text.strip_prefix("\\u")?.get(..4)?, 16).ok()
}

fn is_first(unit: u16) -> bool {
    (0xd800..0xdc00).contains(&unit)
}

fn is_second(unit: u16) -> bool {
    (0xdc00..0xe000).contains(&unit)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn what_cannot_be_held_is_left_out_and_the_rest_is_read() {
        let deep = format!(r#"{{"a":{}1{},"b":2}}"#, "[".repeat(5_000), "]".repeat(5_000));
        for (text, want) in [
            (r#"{"a":"x\ud83d","b":2}"#, json!({"a": "x\u{fffd}", "b": 2})),
            (r#"{"a":"\ude00\ud83dx"}"#, json!({"a": "\u{fffd}\u{fffd}x"})),
            (r#"{"a":"\ud83d\ud83d\ude00\\ud83d\n"}"#, json!({"a": "\u{fffd}😀\\ud83d\n"})),
            (r#"{"\ud83d":1}"#, json!({"\u{fffd}": 1})),
            (r#" {"a":[1e999,-1e999,1.5,7],"b":-0.5e1} "#, json!({"a": [null, null, 1.5, 7], "b": -5.0})),
            (r#"{"a":"\ud83d","a":2}"#, json!({"a": 2})),
        ] {
            assert!(serde_json::from_str::<Value>(text).is_err() || text.contains(r#""a":2"#), "{text}");
            assert_eq!(read(text.as_bytes()).unwrap(), want, "{text}");
        }
        let value = read(deep.as_bytes()).unwrap();
        assert_eq!((value["a"].is_array(), &value["b"]), (true, &json!(2)));
        for (text, want) in [(r#""a\ud83d""#, Some("a\u{fffd}")), (r#""\u00e9""#, Some("é")), ("1", None), ("\"", None)]
        {
            assert_eq!(text_of(text).as_deref(), want, "{text}");
        }
    }

    #[test]
    fn what_is_no_json_is_none() {
        for text in [
            "",
            "<html>",
            r#"{"a":"\ud83d""#,
            r#"{"a":"\ud83"}"#,
            r#"{"a":"\ud83d"} x"#,
            r#"{"a":1e999,}"#,
            r#"{"a":NaN}"#,
            r#"{"a":-}"#,
            "[1e999",
            "[[[[1e999]]]",
        ] {
            assert!(read(text.as_bytes()).is_err(), "{text}");
        }
        assert!(read(b"{\"a\":\"\xff\"}").is_err() && read(b"{\"a\":1e999,\"b\":\"\xff\"}").is_err());
        assert!(read(br#"{"a":"\ud83d""#).unwrap_err().is_eof());
    }

    #[test]
    fn halves_in_two_frames_are_one_character() {
        let joined = |frames: &[&str]| {
            let mut reader = LooseFrames::default();
            let text: String = frames
                .iter()
                .map(|frame| reader.read(frame.as_bytes()).unwrap()["d"]["c"].as_str().unwrap_or_default().to_owned())
                .collect();
            (text, reader.is_open("d.c"))
        };
        for (frames, want) in [
            (&[r#"{"d":{"c":"a\ud83d"}}"#, r#"{"d":{"c":"\ude00b"}}"#][..], ("a😀b", false)),
            // Frames that say nothing of that text change nothing.
            (
                &[r#"{"d":{"c":"\ud83d"}}"#, r#"{"d":{"r":"x"}}"#, r#"{"d":{"c":""}}"#, r#"{"d":{"c":"\ude00"}}"#],
                ("😀", false),
            ),
            (&[r#"{"d":{"c":"\ud83d"}}"#, r#"{"d":{"c":"b"}}"#], ("\u{fffd}b", false)),
            (&[r#"{"d":{"c":"\ud83d"}}"#, r#"{"d":{"c":"\ud83d"}}"#, r#"{"d":{"c":"\ude00"}}"#], ("\u{fffd}😀", false)),
            (&[r#"{"d":{"c":"\ude00"}}"#, r#"{"d":{"c":"b"}}"#], ("\u{fffd}b", false)),
            (&[r#"{"d":{"c":"a\ud83d"}}"#], ("a", true)),
            // Two texts that wait are not taken for one.
            (
                &[r#"{"d":{"c":"\ud83d","r":"\ud83d"}}"#, r#"{"d":{"r":"\ude01"}}"#, r#"{"d":{"c":"\ude00"}}"#],
                ("😀", false),
            ),
        ] {
            let (text, is_open) = joined(frames);
            assert_eq!((text.as_str(), is_open), want, "{frames:?}");
        }
    }

    #[test]
    fn no_more_texts_wait_than_a_stream_has() {
        let mut reader = LooseFrames::default();
        let many: Vec<&str> = vec![r#""\ud83d""#; 100];
        let value = reader.read(format!("[{}]", many.join(",")).as_bytes()).unwrap();
        assert_eq!((reader.open.len(), &value[OPEN_MAX]), (OPEN_MAX, &json!("\u{fffd}")));
    }

    proptest! {
        #[test]
        fn a_text_in_pieces_is_the_text(units in prop::collection::vec(prop_oneof![any::<u16>(), 0xd7f0_u16..0xe010], 0..40), size in 1_usize..5) {
            let mut reader = LooseFrames::default();
            let mut text = String::new();
            for piece in units.chunks(size) {
                let inside: Vec<String> = piece.iter().map(|unit| format!("\\u{unit:04x}")).collect();
                let inside = inside.concat();
                let value = reader.read(format!("{{\"d\":\"{inside}\"}}").as_bytes()).unwrap();
                text.push_str(value["d"].as_str().unwrap());
            }
            text.push_str(if reader.is_open("d") { "\u{fffd}" } else { "" });
            prop_assert_eq!(text, String::from_utf16_lossy(&units));
        }

        #[test]
        fn what_can_be_held_is_not_mended(text in r#"(\{"a":|\[|\[1,)*("[a-z\\\\ué가🦀]{0,8}"|-?[0-9]{1,22}(\.[0-9]{1,3})?(e-?[0-9]{1,2})?|null)[\]}]{0,6}"#) {
            if let Ok(value) = serde_json::from_str::<Value>(&text) {
                let again: Value = serde_json::from_str(&mended(&text, None)).unwrap();
                prop_assert_eq!(again, value);
            }
        }

        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), text in r#"[\[\]{}",:0-9e\\ud83]{0,60}"#) {
            let _ = read(&bytes);
            let _ = read(text.as_bytes());
            let _ = mended(&text, Some(&mut LooseFrames::default()));
        }
    }
}
