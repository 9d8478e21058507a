//! Reads the lines of a model's answer, without sockets and clocks. An answer is complete when a line says `"done": true`; with no such
//! line it was cut, whatever came before.

use std::{sync::Arc, time::Duration};

use serde_json::Value;

use crate::{
    model::{
        facts::Ending,
        reply::{AttemptFailure, Usage},
    },
    runtime::tally::Tally,
    transport::{
        client::BODY_BYTES_MAX,
        error_body::{AnswerHead, Beside, ErrorPointers, failure_inside_success},
        ndjson::JsonObject,
        openai::completion::{Completion, FINISH_UNKNOWN, is_no_draft, no_draft},
        reading::{AnswerReader, Heard, Stage},
    },
};

use super::{
    failure::corrected,
    line::{Line, usage},
};

/// The reader of one answer.
#[derive(Debug, Default)]
pub struct StreamReader {
    tally: Arc<Tally>,
    text: String,
    pieces: u64,
    prompt_told: Option<u64>,
    output_told: Option<u64>,
    done: Option<String>,
    load_time: Duration,
}

/// Reads a line, or the failure that stands in it under a good status.
pub(super) fn read_line(head: AnswerHead, object: JsonObject) -> Result<Line, AttemptFailure> {
    let value = Value::Object(object);
    let is_line = ["message", "done"].iter().any(|key| value.get(key).is_some_and(|told| !told.is_string()));
    let beside = Beside::promised(is_line);
    if let Some(failure) = failure_inside_success(head, &value, &ErrorPointers::default(), beside) {
        return Err(corrected(failure));
    }
    match value {
        Value::Object(object) => Ok(Line::read(object)),
        _ => Ok(Line::default()),
    }
}

impl StreamReader {
    /// A reader at the beginning of an answer; `tally` hears what the model puts out.
    pub fn new(tally: Arc<Tally>) -> Self {
        Self { tally, ..Self::default() }
    }

    /// How long the model was loaded for this answer, as its last line told.
    pub fn load_time(&self) -> Duration {
        self.load_time
    }

    fn usage(&self, prompt_tokens: u64) -> Usage {
        usage(self.prompt_told, self.output_told, &self.tally, (prompt_tokens, self.pieces))
    }
}

impl AnswerReader for StreamReader {
    type Item = JsonObject;

    fn read(&mut self, head: AnswerHead, object: JsonObject) -> Result<Heard, AttemptFailure> {
        if self.done.is_some() {
            return Ok(Heard::Nothing);
        }
        let line = read_line(head, object)?;
        self.pieces += u64::from(line.says_something());
        line.heard_by(&self.tally);
        self.prompt_told = line.prompt_tokens.or(self.prompt_told);
        self.output_told = line.output_tokens.or(self.output_told);
        self.done = line.done;
        self.load_time = line.load_time;
        self.text.push_str(&line.content);
        if self.text.len() > BODY_BYTES_MAX {
            let bad =
                AttemptFailure::new(Ending::BadReply, format!("the answer is larger than {BODY_BYTES_MAX} bytes"));
            return Err(AttemptFailure { status: Some(head.status), ..bad });
        }
        if !line.content.is_empty() {
            return Ok(Heard::Content(line.content));
        }
        let at_work = !line.thinking.is_empty() || !line.tool_calls.is_empty();
        Ok(if at_work { Heard::AtWork } else { Heard::Nothing })
    }

    fn stage(&self) -> Stage {
        if self.done.is_some() { Stage::Ended } else { Stage::Begun }
    }

    fn used(&self, prompt_tokens: u64) -> Option<Usage> {
        let begun = self.pieces > 0 || self.output_told.is_some();
        begun.then(|| self.usage(prompt_tokens))
    }

    fn finish(self, head: AnswerHead, prompt_tokens: u64) -> Result<Completion, AttemptFailure> {
        let Some(reason) = &self.done else {
            let cut = AttemptFailure::new(Ending::StreamCut, "the stream ended without a line that says it is done");
            return Err(AttemptFailure { status: Some(head.status), usage: self.used(prompt_tokens), ..cut });
        };
        if self.text.is_empty() && is_no_draft(Some(reason)) {
            return Err(no_draft(head.status));
        }
        Ok(Completion {
            usage: Some(self.usage(prompt_tokens)),
            text: self.text,
            pieces: self.pieces,
            pieces_told: self.pieces,
            finish_reason: self.done.unwrap_or_else(|| FINISH_UNKNOWN.to_owned()),
            ..Completion::default()
        })
    }
}

#[cfg(test)]
mod tests;
