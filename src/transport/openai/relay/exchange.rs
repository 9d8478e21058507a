//! One relayed exchange: the caller's request out, the answer back. Frames before the first output of the model are held back, so that
//! until then the attempt can be repeated or another target be asked; from then on they go on as they come.

use bytes::Bytes;
use reqwest::Method;

use crate::{
    model::{
        facts::Ending,
        reply::{AttemptFailure, Reply, Usage},
    },
    runtime::{
        ports::{AttemptRequest, Progress},
        relay::{Relay, RelayBegan, RelayForm, RelayPiece, StreamUsage},
    },
    transport::{
        client::{Answer, BODY_BYTES_MAX, Outgoing, ProviderClient},
        error_body::{AnswerHead, ErrorPointers},
        http_agent::request::Wanted,
        openai::{request::headers, settings::StreamUpstream},
        stream::{EventStream, StreamClock},
    },
};

use super::{
    assemble::Assembly,
    frame::{DONE, FrameReader, Meaning, bytes_of},
    request, whole,
};

/// Frames without any output that are held back, in bytes: no server says so much before it begins.
const HELD_BYTES_MAX: usize = 256 * 1024;

/// Where a relayed request goes.
pub(in crate::transport::openai) struct Destination<'a> {
    pub(in crate::transport::openai) client: &'a ProviderClient,
    pub(in crate::transport::openai) path: &'a str,
    pub(in crate::transport::openai) model: &'a str,
    pub(in crate::transport::openai) stream_upstream: StreamUpstream,
}

/// Does one exchange.
pub(in crate::transport::openai) async fn exchange(
    to: Destination<'_>,
    attempt: &AttemptRequest,
    relay: &Relay,
    progress: &Progress,
) -> Result<Reply, AttemptFailure> {
    let wanted = request::wanted(to.stream_upstream, relay);
    let outgoing = Outgoing {
        method: Method::POST,
        path: to.path.to_owned(),
        headers: headers(attempt, wanted)?,
        body: Some(request::body(relay, to.model, wanted)),
    };
    let clock = StreamClock::start(attempt.timeouts);
    let no_pointers = ErrorPointers::default();
    let sent = to.client.send_heard(outgoing, &no_pointers, attempt.capture.as_ref());
    let answer = match wanted {
        Wanted::Whole => sent.await?,
        Wanted::Stream => clock.within(sent).await??,
    };
    match (answer.is_event_stream, relay.form) {
        (true, RelayForm::Stream { usage }) => {
            let head = answer.head;
            let way = Way { attempt, relay, progress, usage, held: Vec::new(), held_bytes: 0 };
            read(answer, clock, head, relay, way).await
        }
        (true, RelayForm::Whole) => {
            let head = answer.head;
            let whole = Gathering { relay, progress, assembly: Assembly::default(), bytes: 0, head };
            read(answer, clock, head, relay, whole).await
        }
        (false, RelayForm::Whole) => pass_whole(answer, relay, progress).await,
        (false, RelayForm::Stream { .. }) => refuse_whole(answer).await,
    }
}

async fn pass_whole(answer: Answer, relay: &Relay, _: &Progress) -> Result<Reply, AttemptFailure> {
    let head = answer.head;
    let body = Bytes::from(answer.into_body().await?);
    let seen = whole::look(relay.kind, head, &body, || request::estimate_prompt(relay))?;
    hand_on(relay, RelayPiece::Whole(body)).await?;
    Ok(reply(head, Some(seen.usage), seen.finish_reason))
}

/// A stream was asked for and a whole answer came: an error inside it is told as such, everything else is not what was asked.
async fn refuse_whole(answer: Answer) -> Result<Reply, AttemptFailure> {
    let head = answer.head;
    let body = answer.into_body().await?;
    whole::look(crate::runtime::relay::RelayKind::Chat, head, &body, || 0)?;
    let bad = AttemptFailure::new(Ending::BadReply, "a stream was asked for, and the answer came whole");
    Err(AttemptFailure { status: Some(head.status), ..bad })
}

/// What becomes of the frames of a stream.
trait Frames {
    async fn take(&mut self, event: crate::transport::sse::SseEvent, meaning: Meaning) -> Result<(), AttemptFailure>;
    /// The stream has ended well.
    async fn finish(self) -> Result<(), AttemptFailure>;
}

async fn read(
    answer: Answer,
    clock: StreamClock,
    head: AnswerHead,
    relay: &Relay,
    mut frames: impl Frames,
) -> Result<Reply, AttemptFailure> {
    let mut reader = FrameReader::default();
    let mut events = EventStream::new(head.status, answer.into_pieces(), clock);
    let prompt = || request::estimate_prompt(relay);
    loop {
        let event = match events.next().await {
            Ok(Some(event)) => event,
            Ok(None) => break,
            // Once it has told why it stopped, only its usage can be missing, and that is counted.
            Err(_) if reader.is_complete() => break,
            Err(failure) => return Err(paid(failure, reader.usage(prompt))),
        };
        let meaning = reader.read(head, &event).map_err(|failure| paid(failure, reader.usage(prompt)))?;
        if meaning == Meaning::Done {
            break;
        }
        frames.take(event, meaning).await.map_err(|failure| paid(failure, reader.usage(prompt)))?;
        if meaning == Meaning::Output {
            events.clock.content();
        }
        if reader.is_complete() {
            events.clock.finished();
        }
    }
    if let Some(failure) = reader.cut(head) {
        return Err(paid(failure, reader.usage(prompt)));
    }
    let usage = reader.usage(prompt);
    frames.finish().await.map_err(|failure| paid(failure, usage))?;
    // A connection that has nothing more to say can be used again.
    events.drain().await;
    Ok(reply(head, usage, reader.finish_reason()))
}

/// A stream that failed has cost what came until then.
fn paid(failure: AttemptFailure, usage: Option<Usage>) -> AttemptFailure {
    AttemptFailure { usage: usage.or(failure.usage), ..failure }
}

fn reply(head: AnswerHead, usage: Option<Usage>, finish_reason: Option<String>) -> Reply {
    Reply { output: serde_json::Value::Null, usage, finish_reason, status: Some(head.status) }
}

async fn hand_on(relay: &Relay, piece: RelayPiece) -> Result<(), AttemptFailure> {
    let gone = || AttemptFailure::new(Ending::Cancelled { slow_without_content: false }, "the caller left");
    relay.out.send(piece).await.map_err(|_| gone())
}

/// Frames on their way to a caller that wants them as they come.
struct Way<'a> {
    attempt: &'a AttemptRequest,
    relay: &'a Relay,
    progress: &'a Progress,
    usage: StreamUsage,
    held: Vec<Bytes>,
    held_bytes: usize,
}

impl Way<'_> {
    async fn begin(&mut self) -> Result<(), AttemptFailure> {
        let began = RelayBegan {
            call_id: self.attempt.call_id.clone(),
            attempt: self.attempt.attempt,
            fallback: self.relay.fallback.clone(),
            degraded: self.relay.degraded,
            waited: self.progress.elapsed(),
        };
        self.progress.output_came();
        hand_on(self.relay, RelayPiece::Began(began)).await?;
        for frame in std::mem::take(&mut self.held) {
            hand_on(self.relay, RelayPiece::Frame(frame)).await?;
        }
        Ok(())
    }
}

impl Frames for Way<'_> {
    async fn take(&mut self, event: crate::transport::sse::SseEvent, meaning: Meaning) -> Result<(), AttemptFailure> {
        if event.data.is_empty() || (meaning == Meaning::Usage && self.usage == StreamUsage::Unwanted) {
            return Ok(());
        }
        let frame = bytes_of(&event);
        if self.progress.first_content().is_some() {
            if meaning == Meaning::Output {
                self.progress.output_came();
            }
            return hand_on(self.relay, RelayPiece::Frame(frame)).await;
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
        hand_on(self.relay, RelayPiece::Frame(Bytes::from_static(DONE))).await
    }
}

/// Frames that become one answer.
struct Gathering<'a> {
    relay: &'a Relay,
    progress: &'a Progress,
    assembly: Assembly,
    bytes: usize,
    head: AnswerHead,
}

impl Frames for Gathering<'_> {
    async fn take(&mut self, event: crate::transport::sse::SseEvent, meaning: Meaning) -> Result<(), AttemptFailure> {
        if event.data.is_empty() {
            return Ok(());
        }
        let bad = |message: String| AttemptFailure {
            status: Some(self.head.status),
            ..AttemptFailure::new(Ending::BadReply, message)
        };
        let frame: serde_json::Value =
            serde_json::from_str(&event.data).map_err(|error| bad(format!("a frame is no JSON: {error}")))?;
        if meaning == Meaning::Output {
            self.progress.output_came();
            self.bytes += event.data.len();
        }
        // The frames around the pieces weigh more than the answer; this bounds what is kept, not what came.
        if self.bytes > BODY_BYTES_MAX.saturating_mul(4) {
            return Err(bad("the answer is larger than it may be".to_owned()));
        }
        self.assembly.take(frame);
        Ok(())
    }

    async fn finish(self) -> Result<(), AttemptFailure> {
        let answer = self.assembly.finish();
        if answer.get("choices").and_then(serde_json::Value::as_array).is_none_or(Vec::is_empty) {
            let bad = AttemptFailure::new(Ending::BadReply, "the stream held no answer");
            return Err(AttemptFailure { status: Some(self.head.status), ..bad });
        }
        hand_on(self.relay, RelayPiece::Whole(Bytes::from(answer.to_string()))).await
    }
}

#[cfg(test)]
mod tests;
