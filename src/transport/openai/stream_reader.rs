//! Reads the frames of a model's stream, without sockets and clocks. A stream is complete when it told why it stopped or sent its
//! last mark; with neither it was cut, whatever came before. Anthropic's frames are understood beside OpenAI's.

use std::sync::Arc;

use serde_json::Value;

use crate::{
    model::{
        facts::Ending,
        loose_json::LooseFrames,
        reply::{AttemptFailure, Usage},
    },
    runtime::tally::Tally,
    transport::{
        client::BODY_BYTES_MAX,
        error_body::{AnswerHead, ErrorPointers, failure_of_error_event},
        reading::{AnswerReader, Heard, Stage},
        sse::SseEvent,
        usage,
    },
};

use super::completion::{CHOICES, Completion, FINISH_UNKNOWN, failure_inside, finish_reason, hear_beside};

/// Where a frame tells the tokens so far.
const USAGE_PLACES: [&str; 2] = ["/usage", "/message/usage"];

/// Where a frame brings text of the answer.
const CONTENT_PLACES: [&str; 2] = ["].delta.content", "delta.text"];

/// The reader of one stream.
#[derive(Debug, Default)]
pub struct StreamReader {
    frames: LooseFrames,
    read: Completion,
    tally: Arc<Tally>,
    finish_reason: Option<String>,
    is_done: bool,
}

impl StreamReader {
    /// A reader at the beginning of a stream; `tally` hears what the model puts out.
    pub fn new(tally: Arc<Tally>) -> Self {
        Self { tally, ..Self::default() }
    }

    /// Reads one frame.
    pub fn read_event(&mut self, head: AnswerHead, event: &SseEvent) -> Result<Heard, AttemptFailure> {
        if self.is_done || event.data.is_empty() {
            return Ok(Heard::Nothing);
        }
        if event.data.trim() == "[DONE]" {
            self.is_done = true;
            return Ok(Heard::Nothing);
        }
        if let Some(failure) = failure_of_error_event(head, event, &ErrorPointers::default()) {
            return Err(failure);
        }
        let failed = |ending, message: String| AttemptFailure {
            status: Some(head.status),
            ..AttemptFailure::new(ending, message)
        };
        let frame = self.frames.read(event.data.as_bytes()).map_err(|error| {
            let ending = if event.closed { Ending::BadReply } else { Ending::StreamCut };
            failed(ending, format!("a frame is no JSON: {error}"))
        })?;
        if let Some(failure) = failure_inside(head, &frame, CHOICES) {
            return Err(failure);
        }
        let meaning = self.take(&frame);
        if matches!(meaning, Heard::Content(_) | Heard::AtWork) {
            self.read.pieces += 1;
        }
        if USAGE_PLACES.iter().any(|place| frame.pointer(place).is_some_and(Value::is_object)) {
            self.read.pieces_told = self.read.pieces;
        }
        if self.read.text.len() > BODY_BYTES_MAX {
            return Err(failed(Ending::BadReply, format!("the answer is larger than {BODY_BYTES_MAX} bytes")));
        }
        Ok(meaning)
    }

    /// Whether no frame said anything of an answer, not even why there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.finish_reason.is_none() && self.read.pieces == 0 && self.read.text.is_empty()
    }

    /// What was heard so far.
    pub fn so_far(&self) -> &Completion {
        &self.read
    }

    fn take(&mut self, frame: &Value) -> Heard {
        for place in USAGE_PLACES {
            if let Some(told) = frame.pointer(place) {
                usage::update(&mut self.read.usage, told);
                self.read.total_tokens = told.get("total_tokens").and_then(usage::tokens).or(self.read.total_tokens);
            }
        }
        let choice = frame.get(CHOICES).and_then(Value::as_array).and_then(|choices| first_choice(choices));
        match choice {
            Some(choice) => self.take_choice(choice),
            None => self.take_typed(frame),
        }
    }

    fn take_choice(&mut self, choice: &Value) -> Heard {
        let reason = finish_reason(choice);
        let finished = reason.is_some();
        self.finish_reason = reason.or_else(|| self.finish_reason.take());
        let delta = choice.get("delta");
        let text =
            |key: &str| delta.and_then(|delta| delta.get(key)).and_then(Value::as_str).filter(|text| !text.is_empty());
        if let Some(refusal) = text("refusal") {
            self.read.refusal.get_or_insert_default().push_str(refusal);
        }
        let beside = delta.is_some_and(|delta| hear_beside(delta, &self.tally));
        if let Some(content) = text("content") {
            return self.content(content);
        }
        let calls = delta.and_then(|delta| delta.get("tool_calls")).is_some_and(|calls| !calls.is_null());
        if finished {
            self.read.pieces += u64::from(beside);
            Heard::Nothing
        } else if calls || beside {
            Heard::AtWork
        } else {
            Heard::Nothing
        }
    }

    /// Frames that say their type and have no choices.
    fn take_typed(&mut self, frame: &Value) -> Heard {
        let text = |place: &str| frame.pointer(place).and_then(Value::as_str).filter(|text| !text.is_empty());
        match frame.get("type").and_then(Value::as_str) {
            Some("content_block_delta") => {
                if let Some(content) = text("/delta/text") {
                    return self.content(content);
                }
                let parts = ["/delta/thinking", "/delta/partial_json"];
                parts.iter().filter_map(|place| text(place)).for_each(|part| self.tally.heard(part));
                Heard::AtWork
            }
            Some("message_delta") => {
                let Some(reason) = text("/delta/stop_reason") else { return Heard::Nothing };
                self.finish_reason = Some(reason.to_owned());
                Heard::Nothing
            }
            Some("message_stop") => {
                self.is_done = true;
                Heard::Nothing
            }
            _ => Heard::Nothing,
        }
    }

    fn content(&mut self, text: &str) -> Heard {
        self.read.text.push_str(text);
        self.tally.heard(text);
        Heard::Content(text.to_owned())
    }
}

impl AnswerReader for StreamReader {
    type Item = SseEvent;

    fn read(&mut self, head: AnswerHead, event: SseEvent) -> Result<Heard, AttemptFailure> {
        self.read_event(head, &event)
    }

    fn stage(&self) -> Stage {
        match (self.is_done, &self.finish_reason) {
            (true, _) => Stage::Ended,
            (false, Some(_)) => Stage::Complete,
            (false, None) => Stage::Begun,
        }
    }

    fn used(&self, prompt_tokens: u64) -> Option<Usage> {
        let used = self.read.pieces > 0 || self.read.usage.is_some();
        used.then(|| self.read.usage_or_estimate(&self.tally, prompt_tokens))
    }

    fn finish(mut self, head: AnswerHead, prompt_tokens: u64) -> Result<Completion, AttemptFailure> {
        if self.stage() == Stage::Begun {
            let cut = AttemptFailure::new(Ending::StreamCut, "the stream ended without any mark of its end");
            return Err(AttemptFailure { status: Some(head.status), usage: self.used(prompt_tokens), ..cut });
        }
        if CONTENT_PLACES.iter().any(|place| self.frames.is_open(place)) {
            self.read.text.push(char::REPLACEMENT_CHARACTER);
        }
        let finish_reason = self.finish_reason.unwrap_or_else(|| FINISH_UNKNOWN.to_owned());
        Ok(Completion { finish_reason, ..self.read })
    }
}

/// The first answer, where several are given.
fn first_choice(choices: &[Value]) -> Option<&Value> {
    choices.iter().find(|choice| choice.get("index").and_then(Value::as_u64).unwrap_or(0) == 0)
}

#[cfg(test)]
mod tests;
