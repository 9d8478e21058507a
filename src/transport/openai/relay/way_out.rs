//! What becomes of the frames of a relayed stream, whoever wrote them: on to a caller that wants them as they come, or put together
//! to one answer. Frames before the first output of the model are held back, so that until then another target can be asked.

use bytes::Bytes;
use serde_json::Value;

use crate::{
    model::{
        facts::Ending,
        reply::{AttemptFailure, Reply, Usage},
    },
    runtime::{
        ports::{AttemptRequest, Progress},
        relay::{Relay, RelayBegan, RelayPiece, StreamUsage},
    },
    transport::{client::BODY_BYTES_MAX, error_body::AnswerHead, sse::SseEvent},
};

use super::{
    assemble::Assembly,
    frame::{DONE, Meaning, bytes_of},
};

/// Frames without any output that are held back, in bytes: no server says so much before it begins.
const HELD_BYTES_MAX: usize = 256 * 1024;

/// What becomes of the frames of a stream.
pub(in crate::transport) trait Frames {
    async fn take(&mut self, event: SseEvent, meaning: Meaning) -> Result<(), AttemptFailure>;
    /// The stream has ended well.
    async fn finish(self) -> Result<(), AttemptFailure>;
}

/// A stream that failed has cost what came until then.
pub(in crate::transport) fn paid(failure: AttemptFailure, usage: Option<Usage>) -> AttemptFailure {
    AttemptFailure { usage: failure.usage.or(usage), ..failure }
}

pub(in crate::transport) fn reply(head: AnswerHead, usage: Option<Usage>, finish_reason: Option<String>) -> Reply {
    Reply { output: Value::Null, usage, finish_reason, status: Some(head.status) }
}

pub(in crate::transport) async fn hand_on(relay: &Relay, piece: RelayPiece) -> Result<(), AttemptFailure> {
    let gone = || AttemptFailure::new(Ending::Cancelled { slow_without_content: false }, "the caller left");
    relay.out.send(piece).await.map_err(|_| gone())
}

/// Frames on their way to a caller that wants them as they come.
pub(in crate::transport) struct Way<'a> {
    attempt: &'a AttemptRequest,
    relay: &'a Relay,
    progress: &'a Progress,
    usage: StreamUsage,
    held: Vec<Bytes>,
    held_bytes: usize,
}

impl<'a> Way<'a> {
    pub(in crate::transport) fn new(
        attempt: &'a AttemptRequest,
        relay: &'a Relay,
        progress: &'a Progress,
        usage: StreamUsage,
    ) -> Self {
        Self { attempt, relay, progress, usage, held: Vec::new(), held_bytes: 0 }
    }

    async fn begin(&mut self) -> Result<(), AttemptFailure> {
        let began = RelayBegan {
            call_id: self.attempt.call_id.clone(),
            attempt: self.relay.earlier.saturating_add(self.attempt.attempt),
            fallback: self.relay.fallback.clone(),
            degraded: self.relay.degraded,
            waited: self.progress.elapsed(),
        };
        self.progress.output_came();
        self.progress.by_reader(hand_on(self.relay, RelayPiece::Began(began))).await?;
        for frame in std::mem::take(&mut self.held) {
            self.progress.by_reader(hand_on(self.relay, RelayPiece::Frame(frame))).await?;
        }
        Ok(())
    }
}

impl Frames for Way<'_> {
    async fn take(&mut self, event: SseEvent, meaning: Meaning) -> Result<(), AttemptFailure> {
        if event.data.is_empty() || (meaning == Meaning::Usage && self.usage == StreamUsage::Unwanted) {
            return Ok(());
        }
        let frame = bytes_of(&event);
        if self.progress.first_content().is_some() {
            if meaning == Meaning::Output {
                self.progress.output_came();
            }
            return self.progress.by_reader(hand_on(self.relay, RelayPiece::Frame(frame))).await;
        }
        self.held_bytes += frame.len();
        self.held.push(frame);
        if self.held_bytes > HELD_BYTES_MAX {
            let message = format!("more than {HELD_BYTES_MAX} bytes came without any output of the model");
            return Err(AttemptFailure::new(Ending::BadReply, message));
        }
        if meaning == Meaning::Output { self.begin().await } else { Ok(()) }
    }

    async fn finish(mut self) -> Result<(), AttemptFailure> {
        // A model may well say nothing at all.
        if self.progress.first_content().is_none() {
            self.begin().await?;
        }
        self.progress.by_reader(hand_on(self.relay, RelayPiece::Frame(Bytes::from_static(DONE)))).await
    }
}

/// Frames that become one answer.
pub(in crate::transport) struct Gathering<'a> {
    relay: &'a Relay,
    progress: &'a Progress,
    assembly: Assembly,
    bytes: usize,
    head: AnswerHead,
}

impl<'a> Gathering<'a> {
    pub(in crate::transport) fn new(relay: &'a Relay, progress: &'a Progress, head: AnswerHead) -> Self {
        Self { relay, progress, assembly: Assembly::default(), bytes: 0, head }
    }
}

impl Frames for Gathering<'_> {
    async fn take(&mut self, event: SseEvent, meaning: Meaning) -> Result<(), AttemptFailure> {
        if event.data.is_empty() {
            return Ok(());
        }
        let bad = |message: String| AttemptFailure {
            status: Some(self.head.status),
            ..AttemptFailure::new(Ending::BadReply, message)
        };
        if meaning == Meaning::Output {
            self.progress.output_came();
            self.bytes += event.data.len();
        }
        // The frames around the pieces weigh more than the answer; this bounds what is kept, not what came.
        if self.bytes > BODY_BYTES_MAX.saturating_mul(4) {
            return Err(bad("the answer is larger than it may be".to_owned()));
        }
        self.assembly.take(&event.data).map_err(|error| bad(format!("a frame is no JSON: {error}")))
    }

    async fn finish(self) -> Result<(), AttemptFailure> {
        let Some(answer) = self.assembly.finish() else {
            let bad = AttemptFailure::new(Ending::BadReply, "the stream held no answer");
            return Err(AttemptFailure { status: Some(self.head.status), ..bad });
        };
        hand_on(self.relay, RelayPiece::Whole(Bytes::from(answer))).await
    }
}
