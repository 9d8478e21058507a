//! A stream as it comes over the wire (events, or lines of JSON), with its two clocks: until its first content, and between two pieces.
//! Comments and empty frames move no clock; only the reader of the frames knows what content is, and says so.

use std::{pin::Pin, time::Duration};

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use tokio::time::{Instant, timeout_at};

use crate::{
    model::{
        facts::{Ending, TimeoutKind},
        reply::AttemptFailure,
    },
    runtime::ports::AttemptTimeouts,
};

use super::{
    ndjson::{NdjsonDecoder, NdjsonError},
    sse::{SseDecoder, SseError},
};

/// The most bytes of one stream: frames of one token each weigh about 200 bytes.
pub const STREAM_BYTES_MAX: usize = 64 * 1024 * 1024;
/// After its finish mark a stream may still bring its usage, but nothing waits long for it.
pub const AFTER_FINISH_WAIT_MAX: Duration = Duration::from_secs(2);
/// After the last mark of a stream its connection is worth so much waiting: then it can be used again.
pub const AFTER_LAST_MARK_WAIT_MAX: Duration = Duration::from_millis(20);

/// The clocks of one stream. They start when the request is sent.
#[derive(Debug, Clone, Copy)]
pub struct StreamClock {
    deadline: Option<Instant>,
    waiting_for: TimeoutKind,
    stall: Option<Duration>,
}

impl StreamClock {
    /// The request is sent now.
    pub fn start(timeouts: AttemptTimeouts) -> Self {
        Self {
            deadline: timeouts.first_token.map(|wait| Instant::now() + wait),
            waiting_for: TimeoutKind::FirstToken,
            stall: timeouts.stall,
        }
    }

    /// Content came, and was handed on: a slow listener is no stall of the sender.
    pub fn content(&mut self) {
        self.waiting_for = TimeoutKind::Stall;
        self.deadline = self.stall.map(|wait| Instant::now() + wait);
    }

    /// The finish mark came.
    pub fn finished(&mut self) {
        self.waiting_for = TimeoutKind::Stall;
        self.deadline = Some(Instant::now() + AFTER_FINISH_WAIT_MAX);
    }

    /// Waits for `work`, but no longer than the clock allows.
    pub async fn within<T>(&self, work: impl Future<Output = T>) -> Result<T, AttemptFailure> {
        let Some(deadline) = self.deadline else { return Ok(work.await) };
        timeout_at(deadline, work).await.map_err(|_| {
            let message = match self.waiting_for {
                TimeoutKind::FirstToken => "no content came in time",
                _ => "content stopped coming",
            };
            AttemptFailure::new(Ending::Timeout { timeout: self.waiting_for }, message)
        })
    }
}

/// What cuts a stream's bytes into what they mean.
pub trait StreamDecoder: Default {
    /// One whole piece of it.
    type Item;
    /// Why it cannot be read on.
    type Error: Into<Ending> + std::fmt::Display;

    /// Takes the next bytes.
    fn push(&mut self, bytes: &[u8]);
    /// The next whole piece; `None` until more bytes come.
    fn pop(&mut self) -> Result<Option<Self::Item>, Self::Error>;
    /// The stream has ended.
    fn finish(&mut self);
}

impl StreamDecoder for SseDecoder {
    type Item = super::sse::SseEvent;
    type Error = SseError;

    fn push(&mut self, bytes: &[u8]) {
        Self::push(self, bytes);
    }

    fn pop(&mut self) -> Result<Option<Self::Item>, SseError> {
        Self::pop(self)
    }

    fn finish(&mut self) {
        Self::finish(self);
    }
}

impl StreamDecoder for NdjsonDecoder {
    type Item = super::ndjson::JsonObject;
    type Error = NdjsonError;

    fn push(&mut self, bytes: &[u8]) {
        Self::push(self, bytes);
    }

    fn pop(&mut self) -> Result<Option<Self::Item>, NdjsonError> {
        Self::pop(self)
    }

    fn finish(&mut self) {
        Self::finish(self);
    }
}

impl From<SseError> for Ending {
    fn from(error: SseError) -> Self {
        match error {
            SseError::CutInsideCharacter => Self::StreamCut,
            SseError::InvalidUtf8 | SseError::LineTooLong | SseError::EventTooLarge => Self::BadReply,
        }
    }
}

impl From<NdjsonError> for Ending {
    fn from(error: NdjsonError) -> Self {
        match error {
            NdjsonError::CutInsideLine => Self::StreamCut,
            NdjsonError::NoObject { .. } | NdjsonError::LineTooLong => Self::BadReply,
        }
    }
}

/// A stream of events that is being read.
pub type EventStream = DecodedStream<SseDecoder>;
/// A stream of lines of JSON that is being read.
pub type LineStream = DecodedStream<NdjsonDecoder>;

/// A stream that is being read.
pub struct DecodedStream<D> {
    pieces: Pin<Box<dyn Stream<Item = Result<Bytes, AttemptFailure>> + Send>>,
    decoder: D,
    /// The status that the answer began with: what fails on the way keeps it, unless nothing came in time or the connection broke.
    status: u16,
    bytes: usize,
    at_end: bool,
    /// Its clocks.
    pub clock: StreamClock,
}

impl<D> std::fmt::Debug for DecodedStream<D> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("DecodedStream")
            .field("bytes", &self.bytes)
            .field("clock", &self.clock)
            .finish_non_exhaustive()
    }
}

impl<D: StreamDecoder> DecodedStream<D> {
    /// Reads `pieces` of an answer with `status` by `clock`, which runs since the request was sent.
    pub fn new(
        status: u16,
        pieces: impl Stream<Item = Result<Bytes, AttemptFailure>> + Send + 'static,
        clock: StreamClock,
    ) -> Self {
        Self { pieces: Box::pin(pieces), decoder: D::default(), status, bytes: 0, at_end: false, clock }
    }

    /// The next whole piece, `None` at the end of the stream. A connection that breaks is a cut stream.
    pub async fn next(&mut self) -> Result<Option<D::Item>, AttemptFailure> {
        loop {
            if let Some(event) = self.decoder.pop().map_err(|error| self.undecodable(error))? {
                return Ok(Some(event));
            }
            if self.at_end {
                return Ok(None);
            }
            match self.clock.within(self.pieces.next()).await? {
                Some(Ok(piece)) => self.take(&piece)?,
                Some(Err(broken)) => {
                    let ending = if broken.ending == Ending::BadReply { Ending::BadReply } else { Ending::StreamCut };
                    return Err(AttemptFailure {
                        status: broken.status,
                        ..AttemptFailure::new(ending, broken.message)
                    });
                }
                None => {
                    self.at_end = true;
                    self.decoder.finish();
                }
            }
        }
    }

    /// The last mark came: reads to the end of the body, if that is near.
    pub async fn drain(mut self) {
        if !self.at_end {
            let end = async { while let Some(Ok(_)) = self.pieces.next().await {} };
            let _ = tokio::time::timeout(AFTER_LAST_MARK_WAIT_MAX, end).await;
        }
    }

    fn undecodable(&self, error: D::Error) -> AttemptFailure {
        let message = error.to_string();
        AttemptFailure { status: Some(self.status), ..AttemptFailure::new(error.into(), message) }
    }

    fn take(&mut self, piece: &[u8]) -> Result<(), AttemptFailure> {
        self.bytes += piece.len();
        if self.bytes > STREAM_BYTES_MAX {
            let message = format!("the stream is larger than {STREAM_BYTES_MAX} bytes");
            let status = Some(self.status);
            return Err(AttemptFailure { status, ..AttemptFailure::new(Ending::BadReply, message) });
        }
        self.decoder.push(piece);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;

    const TIMEOUTS: AttemptTimeouts =
        AttemptTimeouts { first_token: Some(Duration::from_secs(60)), stall: Some(Duration::from_secs(20)) };

    /// Pieces that come after so many seconds each; then nothing comes, for ever.
    fn pieces(timed: &'static [(u64, &'static str)]) -> impl Stream<Item = Result<Bytes, AttemptFailure>> + Send {
        let sent = stream::iter(timed).then(|(seconds, text)| async {
            tokio::time::sleep(Duration::from_secs(*seconds)).await;
            Ok(Bytes::from_static(text.as_bytes()))
        });
        sent.chain(stream::pending())
    }

    async fn read(timed: &'static [(u64, &'static str)]) -> (Vec<String>, AttemptFailure, u64) {
        let started = Instant::now();
        let mut events = EventStream::new(200, pieces(timed), StreamClock::start(TIMEOUTS));
        let mut seen = Vec::new();
        loop {
            match events.next().await {
                Ok(Some(event)) => {
                    if !event.data.is_empty() {
                        events.clock.content();
                    }
                    seen.push(event.data);
                }
                Ok(None) => panic!("these streams do not end"),
                Err(failure) => return (seen, failure, started.elapsed().as_secs()),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn comments_and_empty_frames_move_no_clock() {
        let alive: &[(u64, &str)] = &[(15, ": alive\n\n"), (15, ": alive\n\n"), (15, "data:\n\n"), (14, ": alive\n\n")];
        let (_, failure, seconds) = read(alive).await;
        assert_eq!((failure.ending, seconds), (Ending::Timeout { timeout: TimeoutKind::FirstToken }, 60));
        let then_stalls: &[(u64, &str)] =
            &[(59, "data: a\n\n"), (19, "data: b\n\n"), (15, ": alive\n\n"), (4, ":\n\n")];
        let (seen, failure, seconds) = read(then_stalls).await;
        assert_eq!(seen, ["a", "b"]);
        assert_eq!((failure.ending, seconds), (Ending::Timeout { timeout: TimeoutKind::Stall }, 59 + 19 + 20));
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_waits_long_after_the_finish() {
        let mut events = EventStream::new(200, stream::pending(), StreamClock::start(TIMEOUTS));
        events.clock.finished();
        let started = Instant::now();
        assert!(events.next().await.is_err());
        assert_eq!(started.elapsed(), AFTER_FINISH_WAIT_MAX);
    }

    #[tokio::test]
    async fn ends() {
        let broken = || AttemptFailure::new(Ending::Network { connected: true }, "reset");
        let too_large =
            || AttemptFailure { status: Some(200), ..AttemptFailure::new(Ending::BadReply, "larger than it may be") };
        let long_line = Bytes::from(vec![b'x'; crate::transport::sse::SSE_LINE_BYTES_MAX + 1]);
        // An answer that was refused for what it holds has the status that it came with; one that broke has none.
        for (given, want) in [
            (vec![Ok(Bytes::from_static(b"data: a\n"))], Ok(true)),
            (vec![Ok(Bytes::from_static(b": only\n"))], Ok(false)),
            (vec![Err(broken())], Err((Ending::StreamCut, None))),
            (vec![Err(too_large())], Err((Ending::BadReply, Some(200)))),
            (vec![Ok(long_line)], Err((Ending::BadReply, Some(200)))),
            (vec![Ok(Bytes::from_static(b"data: \xec\x95"))], Err((Ending::StreamCut, Some(200)))),
            (vec![Ok(Bytes::from_static(b"data: \xec\x95\n"))], Err((Ending::BadReply, Some(200)))),
        ] {
            let shown = format!("{:.200}", format!("{given:?}"));
            let clock = StreamClock::start(AttemptTimeouts { first_token: None, stall: None });
            let mut events = EventStream::new(200, stream::iter(given), clock);
            let got = events.next().await.map(|event| event.is_some());
            assert_eq!(got.map_err(|failure| (failure.ending, failure.status)), want, "{shown}");
        }
    }

    #[tokio::test]
    async fn an_endless_stream_is_cut_off() {
        let comment = Bytes::from(format!(": {}\n\n", "x".repeat(60_000)));
        let endless = stream::repeat_with(move || Ok(comment.clone()));
        let mut events =
            EventStream::new(200, endless, StreamClock::start(AttemptTimeouts { first_token: None, stall: None }));
        assert_eq!(events.next().await.unwrap_err().ending, Ending::BadReply);
    }
}
