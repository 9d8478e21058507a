//! One relayed exchange: the caller's request out, the answer back. Until the model's first output the attempt can be repeated or
//! another target be asked; from then on frames go on as they come.

use std::sync::Arc;

use bytes::Bytes;
use reqwest::Method;

use crate::{
    model::{
        facts::Ending,
        reply::{AttemptFailure, Reply},
    },
    runtime::{
        ports::{AttemptRequest, Progress},
        relay::{Relay, RelayForm, RelayPiece},
        tally::AnswerForm,
        tally::Tally,
    },
    transport::{
        client::{Answer, ProviderClient},
        error_body::{AnswerHead, ErrorPointers},
        openai::{request::headers, settings::StreamUpstream},
        outgoing::{Ears, Outgoing},
        stream::{EventStream, StreamClock},
        vendor_budget::VendorWord,
    },
};

use super::{
    frame::{FrameReader, Meaning},
    request,
    way_out::{Frames, Gathering, Way, hand_on, paid, reply},
    whole,
};

/// Where a relayed request goes.
pub(in crate::transport::openai) struct Destination<'a> {
    pub(in crate::transport::openai) client: &'a ProviderClient,
    pub(in crate::transport::openai) path: &'a str,
    pub(in crate::transport::openai) model: &'a str,
    pub(in crate::transport::openai) stream_upstream: StreamUpstream,
    pub(in crate::transport::openai) vendor: &'a VendorWord,
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
    let sent = to.client.send_heard(outgoing, &no_pointers, Ears::of(attempt, progress, wanted).with_vendor(to.vendor));
    let answer = match wanted {
        AnswerForm::Whole => sent.await?,
        AnswerForm::Stream => clock.within(sent).await??,
    };
    match (answer.is_event_stream, relay.form) {
        (true, RelayForm::Stream { usage }) => {
            let head = answer.head;
            let way = Way::new(attempt, relay, progress, usage);
            read(answer, clock, (head, progress.tally()), relay, way).await
        }
        (true, RelayForm::Whole) => {
            let head = answer.head;
            let gathering = Gathering::new(relay, progress, head);
            read(answer, clock, (head, progress.tally()), relay, gathering).await
        }
        (false, RelayForm::Whole) => pass_whole(answer, relay, progress).await,
        (false, RelayForm::Stream { .. }) => refuse_whole(answer, relay, progress).await,
    }
}

async fn pass_whole(answer: Answer, relay: &Relay, progress: &Progress) -> Result<Reply, AttemptFailure> {
    let head = answer.head;
    let body = Bytes::from(answer.into_body().await?);
    let seen = whole::look(relay.kind, head, &body, (progress.tally(), || request::estimate_prompt(relay)))?;
    hand_on(relay, RelayPiece::Whole(body)).await?;
    Ok(reply(head, Some(seen.usage), seen.finish_reason))
}

/// A stream was asked for and a whole answer came: an error inside it is told as such, everything else is not what was asked.
async fn refuse_whole(answer: Answer, relay: &Relay, progress: &Progress) -> Result<Reply, AttemptFailure> {
    let head = answer.head;
    let body = answer.into_body().await?;
    let seen = whole::look(relay.kind, head, &body, (progress.tally(), || request::estimate_prompt(relay)))?;
    let bad = AttemptFailure::new(Ending::BadReply, "a stream was asked for, and the answer came whole");
    Err(AttemptFailure { status: Some(head.status), usage: Some(seen.usage), ..bad })
}

async fn read(
    answer: Answer,
    clock: StreamClock,
    (head, tally): (AnswerHead, &Arc<Tally>),
    relay: &Relay,
    mut frames: impl Frames,
) -> Result<Reply, AttemptFailure> {
    let mut reader = FrameReader::new(tally);
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

#[cfg(test)]
mod tests;
