//! Reads a model's streamed answer to its end: what was said goes to whoever watches and moves the stream's clocks; what comes behind the
//! mark of the end is waited for only a moment. What a piece of a stream means, its reader says; nothing is repeated here.

use super::{
    client::Answer,
    error_body::AnswerHead,
    openai::completion::Completion,
    stream::{DecodedStream, StreamClock, StreamDecoder},
};
use crate::{
    model::reply::{AttemptFailure, Usage},
    runtime::ports::Progress,
};

/// What a piece of a stream means for whoever waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Heard {
    /// Text of the answer.
    Content(String),
    /// The model is at work, but this is no text of the answer: thoughts, parts of a tool call.
    AtWork,
    /// Nothing of meaning: roles, empty frames, usage, marks of the end.
    Nothing,
}

/// How far a stream has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Its end has not been told.
    Begun,
    /// It has told why it stopped: only its usage can follow, and may be missing.
    Complete,
    /// Its last mark has come: nothing follows.
    Ended,
}

/// What makes an answer of the pieces of a stream.
pub trait AnswerReader {
    /// One whole piece of it.
    type Item;

    /// Reads one piece.
    fn read(&mut self, head: AnswerHead, item: Self::Item) -> Result<Heard, AttemptFailure>;
    /// How far the stream has come.
    fn stage(&self) -> Stage;
    /// What an answer that breaks off here has used; `None` while there is nothing to pay for. `prompt_tokens` stand in for what the
    /// server did not tell.
    fn used(&self, prompt_tokens: u64) -> Option<Usage>;
    /// The stream has ended: the whole answer, or the failure of one that was cut or that is none.
    fn finish(self, head: AnswerHead, prompt_tokens: u64) -> Result<Completion, AttemptFailure>;
}

/// Reads `answer` by `clock`, which runs since the request was sent. A failure after the first content says what came until then.
pub(super) async fn read_stream<D, R>(
    answer: Answer,
    clock: StreamClock,
    progress: &Progress,
    prompt_tokens: u64,
    reader: &mut R,
) -> Result<(), AttemptFailure>
where
    D: StreamDecoder,
    R: AnswerReader<Item = D::Item>,
{
    let head = answer.head;
    let mut pieces = DecodedStream::<D>::new(head.status, answer.into_pieces(), clock);
    loop {
        let before = reader.stage();
        if before == Stage::Ended {
            break;
        }
        let told = match pieces.next().await {
            Ok(Some(piece)) => reader.read(head, piece),
            Ok(None) => return Ok(()),
            Err(_) if before == Stage::Complete => return Ok(()),
            Err(failure) => Err(failure),
        };
        let paid = |failure: AttemptFailure| AttemptFailure { usage: reader.used(prompt_tokens), ..failure };
        let heard = told.map_err(paid)?;
        if let Heard::Content(text) = &heard {
            progress.content(text).await;
        }
        if heard != Heard::Nothing {
            pieces.clock.content();
        }
        if reader.stage() == Stage::Complete && (before == Stage::Begun || heard != Heard::Nothing) {
            pieces.clock.finished();
        }
    }
    // A connection that has nothing more to say can be used again.
    pieces.drain().await;
    Ok(())
}
