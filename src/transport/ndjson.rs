//! Decodes lines of JSON objects, without doing any I/O: bytes go in as they come, objects come out. Where the bytes were cut (inside
//! a character, several lines at once, no line end behind the last) changes nothing. Nothing is ever repaired but what no value of ours
//! can hold, which `model::loose_json` leaves out.

use std::collections::VecDeque;

use serde_json::{Map, Value};

use crate::model::loose_json::LooseFrames;

/// The most bytes of one line. Ollama's last one can hold a whole conversation's tokens as numbers.
pub const NDJSON_LINE_BYTES_MAX: usize = 4 * 1024 * 1024;

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// One line's object.
pub type JsonObject = Map<String, Value>;

/// Why a stream cannot be read on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NdjsonError {
    /// A whole line that holds no JSON object.
    #[error("line {line} of the stream is no JSON object: {why}")]
    NoObject {
        /// Which line, from 1; empty ones count.
        line: usize,
        /// What the parser said, without the text of the line.
        why: String,
    },
    /// The stream ended in the middle of a line.
    #[error("the stream ended inside a line")]
    CutInsideLine,
    /// A line over its limit.
    #[error("a line of the stream is longer than {NDJSON_LINE_BYTES_MAX} bytes")]
    LineTooLong,
}

/// The decoder of one stream.
#[derive(Debug, Default)]
pub struct NdjsonDecoder {
    /// The line that has begun.
    line: Vec<u8>,
    lines: usize,
    frames: LooseFrames,
    ready: VecDeque<JsonObject>,
    error: Option<NdjsonError>,
}

impl NdjsonDecoder {
    /// A decoder at the beginning of a stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next bytes of the stream. Objects that are complete with them wait in [`NdjsonDecoder::pop`].
    pub fn push(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && self.error.is_none() {
            let end = bytes.iter().position(|byte| *byte == b'\n');
            let (piece, behind) = bytes.split_at(end.unwrap_or(bytes.len()));
            if self.line.len() + piece.len() > NDJSON_LINE_BYTES_MAX {
                self.error = Some(NdjsonError::LineTooLong);
                return;
            }
            self.line.extend_from_slice(piece);
            let Some((_, rest)) = behind.split_first() else { return };
            bytes = rest;
            self.end_line(LineEnd::Feed);
        }
    }

    /// The next complete object; `None` until more bytes come. Objects that were complete before an error come first.
    pub fn pop(&mut self) -> Result<Option<JsonObject>, NdjsonError> {
        match (self.ready.pop_front(), &self.error) {
            (Some(object), _) => Ok(Some(object)),
            (None, Some(error)) => Err(error.clone()),
            (None, None) => Ok(None),
        }
    }

    /// The stream has ended. A last line without its line end is still one, if it is whole; it then waits in [`NdjsonDecoder::pop`].
    pub fn finish(&mut self) {
        if self.error.is_none() && !self.line.is_empty() {
            self.end_line(LineEnd::OfStream);
        }
    }

    fn end_line(&mut self, end: LineEnd) {
        self.lines += 1;
        let line = std::mem::take(&mut self.line);
        let mut bytes = line.trim_ascii();
        if self.lines == 1 {
            bytes = bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(bytes);
        }
        if bytes.is_empty() {
            return;
        }
        let no_object = |line, why: &str| Some(NdjsonError::NoObject { line, why: why.to_owned() });
        match self.frames.read(bytes) {
            Ok(Value::Object(object)) => self.ready.push_back(object),
            Ok(_) => self.error = no_object(self.lines, "another kind of value"),
            // Whatever is missing from the last line may still have been on its way.
            Err(error) if end == LineEnd::OfStream && error.is_eof() => self.error = Some(NdjsonError::CutInsideLine),
            Err(error) => {
                self.error = no_object(self.lines, if error.is_eof() { "it ends too soon" } else { "no JSON" });
            }
        }
        // The buffer of a long line is not worth keeping; one of usual length is.
        if line.capacity() <= KEPT_BYTES_MAX {
            self.line = line;
            self.line.clear();
        }
    }
}

/// A line's buffer up to this size is used again.
const KEPT_BYTES_MAX: usize = 64 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LineEnd {
    Feed,
    OfStream,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::transport::{cuts, shared_cases};

    fn decode<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> (Vec<Value>, Option<NdjsonError>) {
        let (objects, error) = cuts::decode::<NdjsonDecoder>(pieces);
        (objects.into_iter().map(Value::Object).collect(), error)
    }

    #[test]
    fn streams() {
        let no_object = |line, why: &str| Some(NdjsonError::NoObject { line, why: why.to_owned() });
        for (bytes, want, error) in [
            ("", vec![], None),
            ("{\"a\":1}\n{\"b\":\"안\"}\n", vec![json!({"a": 1}), json!({"b": "안"})], None),
            ("\u{feff}{\"a\":1}\r\n\r\n  {\"b\":2} \n", vec![json!({"a": 1}), json!({"b": 2})], None),
            ("{\"a\":1}\n{\"b\":2}", vec![json!({"a": 1}), json!({"b": 2})], None),
            (
                "{\"a\":\"\\ud83d\",\"b\":1e999}\n{\"a\":\"\\ude00\"}",
                vec![json!({"a": "", "b": null}), json!({"a": "😀"})],
                None,
            ),
            ("{\"a\":\"x\\ny\"}\n", vec![json!({"a": "x\ny"})], None),
            ("{\"a\":1}\n{\"b\":", vec![json!({"a": 1})], Some(NdjsonError::CutInsideLine)),
            ("{\"a\":1}\n{\"b\":\n{\"c\":3}\n", vec![json!({"a": 1})], no_object(2, "it ends too soon")),
            ("\n[1]\n", vec![], no_object(2, "another kind of value")),
            ("\"x\"\n{\"a\":1}\n", vec![], no_object(1, "another kind of value")),
            ("<html>\n", vec![], no_object(1, "no JSON")),
            ("{\"a\":1}{\"b\":2}\n", vec![], no_object(1, "no JSON")),
        ] {
            let bytes = bytes.as_bytes();
            for (how, got) in [("at once", decode([bytes])), ("byte by byte", decode(bytes.chunks(1)))] {
                assert_eq!(got, (want.clone(), error.clone()), "{how}: {:?}", String::from_utf8_lossy(bytes));
            }
        }
        assert_eq!(decode([&b"{\"a\":\"\xec\x95\"}\n"[..]]).1, no_object(1, "no JSON"));
        assert_eq!(decode([&b"{\"a\":\"\xec\x95"[..]]).1, Some(NdjsonError::CutInsideLine));
    }

    #[test]
    fn a_line_without_an_end_is_not_kept_for_ever() {
        let endless = vec![b'x'; NDJSON_LINE_BYTES_MAX + 1];
        assert_eq!(decode(endless.chunks(60_000)), (vec![], Some(NdjsonError::LineTooLong)));
        let mut decoder = NdjsonDecoder::new();
        decoder.push(b"{\"a\":1}\n");
        decoder.push(&endless);
        assert!(decoder.pop().is_ok_and(|object| object.is_some()));
        assert_eq!(
            (decoder.pop(), decoder.line.capacity() <= NDJSON_LINE_BYTES_MAX),
            (Err(NdjsonError::LineTooLong), true)
        );
        let long = format!("{{\"context\":[{}0]}}\n", "0,".repeat(1_000_000));
        let (objects, error) = decode(long.as_bytes().chunks(4_096));
        assert_eq!((objects.len(), error), (1, None));
    }

    /// TRAPS B33: the text of a case's objects, however its bytes are cut.
    #[test]
    fn b33_where_the_bytes_are_cut_changes_nothing() {
        let text = |objects: &[Value]| -> String {
            objects.iter().filter_map(|object| object.pointer("/message/content").and_then(Value::as_str)).collect()
        };
        for file in ["stream.bin", "no_final_newline.bin"] {
            let (Some(bytes), Some(sizes)) =
                (shared_cases::bytes(&format!("cases/B33/{file}")), shared_cases::text("cases/B33/read_sizes.json"))
            else {
                return;
            };
            let sizes: Vec<usize> = serde_json::from_str(&sizes).unwrap();
            let as_read = cuts::in_sizes(&bytes, &sizes);
            assert!(as_read.len() > 3 && bytes.len() > 4_096);
            for (how, (objects, error)) in [
                ("as read", decode(as_read)),
                ("whole", decode([bytes.as_slice()])),
                ("bytes", decode(bytes.chunks(1))),
            ] {
                assert_eq!((text(&objects).as_str(), objects.len(), error), ("초안 끝", 4, None), "{file} {how}");
            }
        }
    }

    fn stream_like() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            "\\{\"[a-z]{1,3}\":(\"[ a-z가-힣🦀]{0,8}\"|[0-9]{1,3}|\\[1,2\\])\\}".prop_map(String::into_bytes),
            prop_oneof![Just("\n"), Just("\r\n"), Just("\n\n"), Just("{"), Just("}"), Just("\"")]
                .prop_map(|text| text.as_bytes().to_vec()),
            prop::collection::vec(any::<u8>(), 0..4),
            Just(BYTE_ORDER_MARK.to_vec()),
        ];
        prop::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn cuts_change_nothing(bytes in stream_like(), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12)) {
            prop_assert_eq!(decode(cuts::at(&bytes, &cuts)), decode([bytes.as_slice()]));
            prop_assert_eq!(decode(bytes.chunks(1)), decode([bytes.as_slice()]));
        }

        #[test]
        fn what_was_encoded_comes_back(texts in prop::collection::vec(".{0,20}", 0..8), size in 1_usize..9) {
            let objects: Vec<Value> = texts.iter().map(|text| json!({ "content": text })).collect();
            let mut bytes = objects.iter().map(Value::to_string).collect::<Vec<_>>().join("\n").into_bytes();
            if size % 2 == 0 {
                bytes.push(b'\n');
            }
            prop_assert_eq!(decode(bytes.chunks(size)), (objects, None));
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let (objects, _) = decode(bytes.chunks(7));
            let sign = char::REPLACEMENT_CHARACTER.to_string();
            let sent = bytes.windows(3).any(|part| part == sign.as_bytes());
            prop_assert!(sent || !objects.iter().any(|object| object.to_string().contains(&sign)));
        }
    }
}
