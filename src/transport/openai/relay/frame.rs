//! What a frame of a relayed stream means, read without making values of it: whether the model put something out, whether it
//! stopped, what it used, whether it failed. The frame itself goes on as it came. What the quick look does not understand is read in
//! full by the reader that our own agents use.

use std::{borrow::Cow, sync::Arc};

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::outline::Outline;
use crate::{
    model::{
        facts::Ending,
        loose_json,
        reply::{AttemptFailure, Usage},
    },
    runtime::tally::Tally,
    transport::{
        error_body::{AnswerHead, ErrorPointers, failure_of_error_event},
        openai::{
            completion::{CHOICES, FINISH_ERROR, failure_inside, is_no_draft, no_draft},
            stream_reader::StreamReader,
        },
        reading::{AnswerReader as _, Heard, Stage},
        sse::SseEvent,
        usage::{self, Known},
    },
};

/// The most answers of one request that are told apart; no server gives so many.
const CHOICES_MAX: usize = 1_024;
/// What stands at the end of a stream.
pub(in crate::transport) const DONE: &[u8] = b"data: [DONE]\n\n";

/// What a frame means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::transport) enum Meaning {
    /// Output of the model: text, reasoning, a refusal, parts of a tool call.
    Output,
    /// The usage, and nothing else.
    Usage,
    /// The last mark.
    Done,
    /// Nothing that commits anybody: roles, empty frames, the end of an answer.
    Other,
}

/// The reader of one relayed stream.
#[derive(Debug, Default)]
pub(super) struct FrameReader {
    /// Answers seen so far, and whether each has told why it stopped.
    choices: Vec<(u32, bool)>,
    finish_reason: Option<String>,
    usage: Option<Usage>,
    total_tokens: Option<u64>,
    pieces: u64,
    pieces_told: u64,
    tally: Arc<Tally>,
    is_done: bool,
    /// For frames of other shapes.
    odd: StreamReader,
}

type Frame<'a> = Outline<'a, Vec<Choice<'a>>>;

#[derive(Deserialize)]
struct Choice<'a> {
    index: Option<u32>,
    #[serde(borrow)]
    delta: Option<Delta<'a>>,
    #[serde(borrow)]
    finish_reason: Option<Cow<'a, str>>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

impl Choice<'_> {
    fn is_doubtful(&self) -> bool {
        self.finish_reason.as_deref() == Some(FINISH_ERROR) || self.error.is_some_and(|told| says_something(told.get()))
    }
}

#[derive(Deserialize)]
struct Delta<'a> {
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    #[serde(borrow)]
    refusal: Option<&'a RawValue>,
    #[serde(borrow)]
    reasoning: Option<&'a RawValue>,
    #[serde(borrow)]
    reasoning_content: Option<&'a RawValue>,
    #[serde(borrow)]
    tool_calls: Option<&'a RawValue>,
    #[serde(borrow)]
    function_call: Option<&'a RawValue>,
    #[serde(borrow)]
    audio: Option<&'a RawValue>,
}

impl Delta<'_> {
    fn parts(&self) -> [Option<&RawValue>; 7] {
        [
            self.content,
            self.refusal,
            self.reasoning,
            self.reasoning_content,
            self.tool_calls,
            self.function_call,
            self.audio,
        ]
    }
}

/// What a model wrote of a part that is no plain text; the rest is the server's.
#[derive(Deserialize)]
struct Written<'a> {
    #[serde(borrow)]
    text: Option<Cow<'a, str>>,
    #[serde(borrow)]
    name: Option<Cow<'a, str>>,
    #[serde(borrow)]
    arguments: Option<Cow<'a, str>>,
    function: Option<Box<Self>>,
}

/// Calls of tools and parts of a text. What is neither counts as one token.
fn hear_inside(part: &str, tally: &Tally) {
    let mended = || loose_json::read(part.as_bytes()).map(|value| value.to_string());
    if !hear_written(part, tally) && !mended().is_ok_and(|part| hear_written(&part, tally)) {
        tally.heard_beside(1);
    }
}

/// False if nothing was heard.
fn hear_written(part: &str, tally: &Tally) -> bool {
    let list = serde_json::from_str::<Vec<Written<'_>>>(part);
    let list = list.or_else(|_| serde_json::from_str(part).map(|one| vec![one])).unwrap_or_default();
    let mut is_heard = false;
    for written in list {
        let inside = written.function.map(|function| [function.name, function.arguments]).unwrap_or_default();
        for text in [written.text, written.name, written.arguments].into_iter().chain(inside).flatten() {
            tally.heard(&text);
            is_heard |= !text.is_empty();
        }
    }
    is_heard
}

impl FrameReader {
    /// A reader at the beginning of a stream; `tally` hears what the model puts out.
    pub(super) fn new(tally: &Arc<Tally>) -> Self {
        let odd = StreamReader::new(Arc::clone(tally));
        Self { tally: Arc::clone(tally), odd, ..Self::default() }
    }

    /// Reads one frame.
    pub(super) fn read(&mut self, head: AnswerHead, event: &SseEvent) -> Result<Meaning, AttemptFailure> {
        if self.is_done || event.data.is_empty() {
            return Ok(Meaning::Other);
        }
        if event.data.trim() == "[DONE]" {
            self.is_done = true;
            return Ok(Meaning::Done);
        }
        if let Some(failure) = failure_of_error_event(head, event, &ErrorPointers::default()) {
            return Err(failure);
        }
        match serde_json::from_str::<Frame<'_>>(&event.data) {
            Ok(frame) if is_usual(&frame) => Ok(self.take(&frame)),
            Ok(frame) if frame.choices.is_some() => self.take_suspicious(head, event, &frame),
            _ => self.take_odd(head, event),
        }
    }

    /// True once every answer has told why it stopped, or the last mark came.
    pub(super) fn is_complete(&self) -> bool {
        let all_stopped = !self.choices.is_empty() && self.choices.iter().all(|(_, stopped)| *stopped);
        self.is_done || all_stopped || self.odd.stage() != Stage::Begun
    }

    /// Why the first answer stopped.
    pub(super) fn finish_reason(&self) -> Option<String> {
        self.finish_reason.clone()
    }

    /// The model was brought into memory or out of it, and was asked nothing.
    fn only_loaded(&self) -> bool {
        self.pieces == 0 && is_no_draft(self.finish_reason.as_deref())
    }

    /// Tokens as told, else counted by us and marked so; `None` while there is nothing to pay for.
    pub(super) fn usage(&self, prompt_tokens: impl FnOnce() -> u64) -> Option<Usage> {
        if self.only_loaded() {
            return None;
        }
        let odd = self.odd.so_far();
        let known = Known {
            told: self.usage.or(odd.usage),
            total: self.total_tokens.or(odd.total_tokens),
            pieces: self.pieces + odd.pieces,
            pieces_told: self.pieces_told + odd.pieces_told,
        };
        let is_begun = known.pieces > 0 || known.told.is_some() || self.is_complete();
        is_begun.then(|| known.usage(&self.tally, prompt_tokens))
    }

    /// The failure of a stream that ended here, if it may not.
    pub(super) fn cut(&self, head: AnswerHead) -> Option<AttemptFailure> {
        if !self.is_complete() {
            let cut = AttemptFailure::new(Ending::StreamCut, "the stream ended without any mark of its end");
            return Some(AttemptFailure { status: Some(head.status), ..cut });
        }
        if self.only_loaded() {
            return Some(no_draft(head.status));
        }
        // A last mark alone answers nothing, whoever asked for it in whatever form.
        let is_empty = self.choices.is_empty() && self.pieces == 0 && self.odd.is_empty();
        is_empty.then(|| {
            let bad = AttemptFailure::new(Ending::BadReply, "the stream held no answer");
            AttemptFailure { status: Some(head.status), ..bad }
        })
    }

    fn take(&mut self, frame: &Frame<'_>) -> Meaning {
        let told = frame.usage.and_then(|usage| loose_json::read(usage.get().as_bytes()).ok());
        if let Some(told) = &told {
            usage::update(&mut self.usage, told);
            self.total_tokens = told.get("total_tokens").and_then(usage::tokens).or(self.total_tokens);
        }
        let choices = frame.choices.as_deref().unwrap_or_default();
        let mut meaning = if choices.is_empty() && told.is_some() { Meaning::Usage } else { Meaning::Other };
        for choice in choices {
            if self.take_choice(choice) {
                meaning = Meaning::Output;
            }
        }
        if told.is_some() {
            self.pieces_told = self.pieces;
        }
        meaning
    }

    /// True if the model put something out.
    fn take_choice(&mut self, choice: &Choice<'_>) -> bool {
        let index = choice.index.unwrap_or(0);
        let reason = choice.finish_reason.as_deref().filter(|reason| !reason.is_empty());
        if let Some((_, stopped)) = self.choices.iter_mut().find(|(known, _)| *known == index) {
            *stopped |= reason.is_some();
        } else if self.choices.len() < CHOICES_MAX {
            self.choices.push((index, reason.is_some()));
        }
        if index == 0
            && let Some(reason) = reason
        {
            self.finish_reason = Some(reason.to_owned());
        }
        let Some(delta) = &choice.delta else { return false };
        let mut output = false;
        for part in delta.parts().into_iter().flatten().filter(|part| says_something(part.get())) {
            output = true;
            match loose_json::text_of(part.get()) {
                Some(text) => self.tally.heard(&text),
                None => hear_inside(part.get(), &self.tally),
            }
        }
        self.pieces += u64::from(output);
        output
    }

    /// A frame with answers that may hold an error beside them.
    fn take_suspicious(
        &mut self,
        head: AnswerHead,
        event: &SseEvent,
        frame: &Frame<'_>,
    ) -> Result<Meaning, AttemptFailure> {
        let failure =
            loose_json::read(event.data.as_bytes()).ok().and_then(|value| failure_inside(head, &value, CHOICES));
        failure.map_or_else(|| Ok(self.take(frame)), Err)
    }

    fn take_odd(&mut self, head: AnswerHead, event: &SseEvent) -> Result<Meaning, AttemptFailure> {
        let heard = self.odd.read_event(head, event)?;
        if self.odd.stage() == Stage::Ended {
            self.is_done = true;
            return Ok(Meaning::Done);
        }
        Ok(if heard == Heard::Nothing { Meaning::Other } else { Meaning::Output })
    }
}

/// Answers, and no trace of an error: in a frame without any, what stands beside them can be one.
fn is_usual(frame: &Frame<'_>) -> bool {
    let choices = frame.choices.as_deref().unwrap_or_default();
    let is_doubtful =
        frame.doubtful().any(|part| says_something(part.get())) || choices.iter().any(Choice::is_doubtful);
    !choices.is_empty() && !is_doubtful
}

fn says_something(json: &str) -> bool {
    !matches!(json, "null" | "false" | "\"\"" | "[]" | "{}")
}

/// The frame as it goes on: name, id and data as they came, with line feeds.
pub(in crate::transport) fn bytes_of(event: &SseEvent) -> Bytes {
    let mut text = String::with_capacity(event.data.len() + event.event.len() + 24);
    for (field, value) in [("event: ", &event.event), ("id: ", &event.id)] {
        if !value.is_empty() {
            text.push_str(field);
            text.push_str(value);
            text.push('\n');
        }
    }
    for line in event.data.split('\n') {
        text.push_str("data: ");
        text.push_str(line);
        text.push('\n');
    }
    text.push('\n');
    Bytes::from(text)
}

#[cfg(test)]
mod tests;
