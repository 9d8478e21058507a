//! Decodes server-sent events, without doing any I/O: bytes go in as they come, events come out. Where the bytes were cut (inside a
//! character, between CR and LF, inside a frame) changes nothing. Nothing is ever repaired: bytes that are no UTF-8 are an error.

use std::collections::VecDeque;

/// The most bytes of one event: its data, name and id together.
pub const SSE_EVENT_BYTES_MAX: usize = 1024 * 1024;
/// The most bytes of one line, comments included.
pub const SSE_LINE_BYTES_MAX: usize = SSE_EVENT_BYTES_MAX + 64;

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// One event. Comments are none; a line `error: ...` is one of that name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SseEvent {
    /// The name of its kind; empty for the default kind.
    pub event: String,
    /// Its data; several lines are joined by a line feed.
    pub data: String,
    /// The last id that the stream has named so far; empty if none.
    pub id: String,
    /// False where the stream ended before the blank line that closes an event: its data may be cut.
    pub closed: bool,
}

/// Why a stream cannot be read on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SseError {
    /// Bytes that are no UTF-8.
    #[error("the event stream holds bytes that are no UTF-8")]
    InvalidUtf8,
    /// The stream ended in the middle of a character.
    #[error("the event stream ended inside a character")]
    CutInsideCharacter,
    /// A line over its limit.
    #[error("a line of the event stream is longer than {SSE_LINE_BYTES_MAX} bytes")]
    LineTooLong,
    /// An event over its limit.
    #[error("an event of the stream is larger than {SSE_EVENT_BYTES_MAX} bytes")]
    EventTooLarge,
}

/// The decoder of one stream.
#[derive(Debug, Default)]
pub struct SseDecoder {
    line: Vec<u8>,
    // A CR ended the last line: an LF right behind it belongs to it.
    after_carriage_return: bool,
    past_first_line: bool,
    event: String,
    data: String,
    has_data: bool,
    id: String,
    ready: VecDeque<SseEvent>,
    error: Option<SseError>,
}

impl SseDecoder {
    /// A decoder at the beginning of a stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next bytes of the stream. Events that are complete with them wait in [`SseDecoder::pop`].
    pub fn push(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && self.error.is_none() {
            if std::mem::take(&mut self.after_carriage_return) && bytes.first() == Some(&b'\n') {
                bytes = bytes.get(1..).unwrap_or_default();
                continue;
            }
            let end = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
            let (piece, behind) = bytes.split_at(end.unwrap_or(bytes.len()));
            if self.line.len() + piece.len() > SSE_LINE_BYTES_MAX {
                self.error = Some(SseError::LineTooLong);
                return;
            }
            self.line.extend_from_slice(piece);
            let Some((line_end, rest)) = behind.split_first() else { return };
            self.after_carriage_return = *line_end == b'\r';
            bytes = rest;
            self.end_line();
        }
    }

    /// The next complete event; `None` until more bytes come. Events that were complete before an error come first.
    pub fn pop(&mut self) -> Result<Option<SseEvent>, SseError> {
        match (self.ready.pop_front(), self.error) {
            (Some(event), _) => Ok(Some(event)),
            (None, Some(error)) => Err(error),
            (None, None) => Ok(None),
        }
    }

    /// The stream has ended. An event whose blank line is missing is still one (some servers close right after their last mark),
    /// also with a last line that was not ended; it then waits in [`SseDecoder::pop`].
    pub fn finish(&mut self) {
        if self.error.is_some() {
            return;
        }
        if !self.line.is_empty() {
            let cut_inside_character = std::str::from_utf8(&self.line).is_err_and(|error| error.error_len().is_none());
            if cut_inside_character {
                self.error = Some(SseError::CutInsideCharacter);
                return;
            }
            self.end_line();
        }
        self.dispatch(Closed::ByEnd);
    }

    fn end_line(&mut self) {
        let mut bytes = std::mem::take(&mut self.line);
        if !std::mem::replace(&mut self.past_first_line, true) && bytes.starts_with(BYTE_ORDER_MARK) {
            bytes.drain(..BYTE_ORDER_MARK.len());
        }
        match std::str::from_utf8(&bytes) {
            Ok(line) => self.take_line(line),
            Err(_) => self.error = Some(SseError::InvalidUtf8),
        }
        // The buffer goes back, so that a stream of small lines allocates once.
        bytes.clear();
        self.line = bytes;
    }

    fn take_line(&mut self, line: &str) {
        if line.is_empty() {
            self.dispatch(Closed::ByBlankLine);
            return;
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "data" => {
                if self.has_data {
                    self.data.push('\n');
                }
                self.has_data = true;
                self.data.push_str(value);
            }
            "event" => value.clone_into(&mut self.event),
            // Older llama.cpp servers send `error: {json}` where others send an event of that name with data.
            "error" if !value.is_empty() => {
                if self.has_data {
                    self.dispatch(Closed::ByBlankLine);
                }
                field.clone_into(&mut self.event);
                self.has_data = true;
                value.clone_into(&mut self.data);
            }
            "id" if !value.contains('\0') => value.clone_into(&mut self.id),
            // Comments (an empty field), `retry` (we never reconnect) and unknown fields say nothing.
            _ => {}
        }
        if self.event.len() + self.data.len() + self.id.len() > SSE_EVENT_BYTES_MAX {
            self.error = Some(SseError::EventTooLarge);
        }
    }

    fn dispatch(&mut self, by: Closed) {
        let event = std::mem::take(&mut self.event);
        let data = std::mem::take(&mut self.data);
        if std::mem::take(&mut self.has_data) {
            self.ready.push_back(SseEvent { event, data, id: self.id.clone(), closed: by == Closed::ByBlankLine });
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Closed {
    ByBlankLine,
    ByEnd,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::transport::cuts;

    fn decode<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> (Vec<SseEvent>, Option<SseError>) {
        cuts::decode::<SseDecoder>(pieces)
    }

    fn check(bytes: &[u8], want: &[(&str, &str)], want_error: Option<SseError>) {
        let want: Vec<_> = want.iter().map(|(event, data)| ((*event).to_owned(), (*data).to_owned())).collect();
        for (how, (events, error)) in [("at once", decode([bytes])), ("byte by byte", decode(bytes.chunks(1)))] {
            let got: Vec<_> = events.into_iter().map(|event| (event.event, event.data)).collect();
            assert_eq!((&got, error), (&want, want_error), "{how}: {:?}", String::from_utf8_lossy(bytes));
        }
    }

    #[test]
    fn streams() {
        check(b"", &[], None);
        check(b"data: a\n\ndata: b\n\n", &[("", "a"), ("", "b")], None);
        check(b"data: a\r\n\r\ndata: b\r\r", &[("", "a"), ("", "b")], None);
        check(b"data: a\r\rdata: b\n\r\n", &[("", "a"), ("", "b")], None);
        check(b"\xef\xbb\xbfdata: a\n\n", &[("", "a")], None);
        check(b"data: a\n\n\xef\xbb\xbfdata: b\n\n", &[("", "a")], None);
        check(b": keep-alive\n\n:\n\ndata: a\n\n", &[("", "a")], None);
        check(b"event: error\ndata: {\ndata: }\n\n", &[("error", "{\n}")], None);
        check(b"error: {}\n\n", &[("error", "{}")], None);
        check(b"error:{}\r\nerror: x", &[("error", "{}"), ("error", "x")], None);
        check(b"data: a\nerror: {\ndata: }\n\ndata: b\n\n", &[("", "a"), ("error", "{\n}"), ("", "b")], None);
        check(b"error\nerror:\n\n", &[], None);
        check(b"event: lost\n\ndata: a\n\n", &[("", "a")], None);
        check(b"data:  two spaces\n\n", &[("", " two spaces")], None);
        check(b"data\n\n", &[("", "")], None);
        check(b"data: a: b\nfoo: c\nretry: 5\n\n", &[("", "a: b")], None);
        check("data: 사진 🦀\n\n".as_bytes(), &[("", "사진 🦀")], None);
        check(b"data: [DONE]\n", &[("", "[DONE]")], None);
        check(b"data: [DONE]", &[("", "[DONE]")], None);
        check(b"data: a\n\ndata: \xec\x95", &[("", "a")], Some(SseError::CutInsideCharacter));
        check(b"data: a\n\ndata: \xec\x95\n\n", &[("", "a")], Some(SseError::InvalidUtf8));
        check(b"data: \xff\n\ndata: never\n\n", &[], Some(SseError::InvalidUtf8));
    }

    #[test]
    fn ids_stay_until_the_next() {
        let (events, _) = decode([&b"id: 7\ndata: a\n\ndata: b\n\nid: x\0y\ndata: c\n\nid\ndata: d\n\n"[..]]);
        assert!(events.iter().all(|event| event.closed));
        let ids: Vec<_> = events.iter().map(|event| event.id.as_str()).collect();
        assert_eq!(ids, ["7", "7", "7", ""]);
    }

    #[test]
    fn limits() {
        let long_line = [b"data: ".as_slice(), &vec![b'x'; SSE_LINE_BYTES_MAX]].concat();
        assert_eq!(decode(long_line.chunks(999)), (vec![], Some(SseError::LineTooLong)));
        let line = [b"data: ".as_slice(), &vec![b'x'; 1_000], b"\n"].concat();
        let many_lines = [b"data: first\n\n".to_vec(), line.repeat(1_100)].concat();
        let (events, error) = decode(many_lines.chunks(4_096));
        assert_eq!((events.len(), error), (1, Some(SseError::EventTooLarge)));
    }

    #[test]
    fn an_event_without_its_blank_line_says_so() {
        let (events, _) = decode([&b"data: a\n\ndata: {\"b\": "[..]]);
        let closed: Vec<_> = events.iter().map(|event| (event.data.as_str(), event.closed)).collect();
        assert_eq!(closed, [("a", true), ("{\"b\": ", false)]);
    }

    fn stream_like() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            "(data|event|error|id|retry|x|)(: |:|)[ a-z가-힣🦀{}]{0,8}".prop_map(String::into_bytes),
            prop_oneof![Just("\n"), Just("\r"), Just("\r\n"), Just("\n\n"), Just("\r\n\r\n")]
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
        fn what_was_encoded_comes_back(texts in prop::collection::vec("[ -~가-힣🦀]{0,20}", 0..8), size in 1_usize..9) {
            let bytes = texts.iter().map(|text| format!("data: {text}\r\n\r\n")).collect::<Vec<_>>().concat();
            let (events, error) = decode(bytes.as_bytes().chunks(size));
            let got: Vec<_> = events.into_iter().map(|event| event.data).collect();
            prop_assert_eq!((got, error), (texts, None));
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let (events, _) = decode(bytes.chunks(7));
            let sign = char::REPLACEMENT_CHARACTER;
            let sent = bytes.windows(3).any(|part| part == sign.to_string().as_bytes());
            prop_assert!(sent || !events.iter().any(|event| event.data.contains(sign)));
        }
    }
}
