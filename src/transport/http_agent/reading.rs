//! Reads what an agent answers: a whole reply, or the frames of a stream. Knows the contract and the mapping, and no sockets.

use std::borrow::Cow;

use serde_json::Value;

use crate::{
    model::{
        exact_json,
        facts::Ending,
        loose_json::{self, LooseFrames},
        reply::{AttemptFailure, Reply, Usage},
    },
    transport::{
        error_body::{AnswerHead, Beside, MESSAGE_CHARS_MAX, cut, failure_inside_success, failure_of_error_event},
        json_pointer::JsonPointer,
        sse::SseEvent,
        usage,
    },
};

use super::mapping::CheckedMapping;

/// What a frame of a stream says.
#[derive(Debug, PartialEq)]
pub(super) enum Frame {
    /// More content.
    Delta(String),
    /// The end: the whole output.
    Reply(Reply),
    /// Nothing of meaning.
    Nothing,
}

/// Reads the body of a good answer.
pub(super) fn whole(head: AnswerHead, body: &[u8], mapping: &CheckedMapping) -> Result<Reply, AttemptFailure> {
    let text = str::from_utf8(body).map_err(|error| {
        bad_reply(head, &format_args!("the answer is no JSON: not UTF-8 (byte {})", error.valid_up_to()))
    })?;
    let (value, kept) = if let Ok(value) = exact_json::read(text) {
        (value, Kept::AsWritten)
    } else {
        // What is wrong may stand beside the output, where nobody asks for it.
        let value = loose_json::read(body);
        (value.map_err(|error| bad_reply(head, &format_args!("the answer is no JSON: {error}")))?, Kept::Loosely)
    };
    let beside = Beside::promised(output_place(mapping).find(&value).is_some());
    if let Some(failure) = failure_inside_success(head, &value, &mapping.errors, beside) {
        return Err(failure);
    }
    reply(head, (text, &value, kept), mapping)
}

/// Reads one frame of a stream; `frames` has read those before.
pub(super) fn frame(
    head: AnswerHead,
    event: &SseEvent,
    (frames, mapping): (&mut LooseFrames, &CheckedMapping),
) -> Result<Frame, AttemptFailure> {
    if event.data.is_empty() || event.data == "[DONE]" {
        return Ok(Frame::Nothing);
    }
    if let Some(failure) = failure_of_error_event(head, event, &mapping.errors) {
        return Err(failure);
    }
    let value = frames.read(event.data.as_bytes()).map_err(|error| {
        let ending = if event.closed { Ending::BadReply } else { Ending::StreamCut };
        AttemptFailure {
            status: Some(head.status),
            ..AttemptFailure::new(ending, format!("a frame is no JSON: {error}"))
        }
    })?;
    let delta = value.get("delta").and_then(Value::as_str);
    let ends =
        value.get("output").is_some() || mapping.output.as_ref().is_some_and(|place| place.find(&value).is_some());
    let beside = if delta.is_some() || ends { Beside::Promised } else { Beside::Anything };
    if let Some(failure) = failure_inside_success(head, &value, &mapping.errors, beside) {
        return Err(failure);
    }
    if let Some(delta) = delta {
        return Ok(Frame::Delta(delta.to_owned()));
    }
    if !ends {
        return Ok(Frame::Nothing);
    }
    reply(head, (&event.data, &value, Kept::Loosely), mapping).map(Frame::Reply)
}

/// A complete answer that is not of the promised shape.
fn bad_reply(head: AnswerHead, message: &dyn std::fmt::Display) -> AttemptFailure {
    let message = cut(&message.to_string(), MESSAGE_CHARS_MAX);
    AttemptFailure { status: Some(head.status), ..AttemptFailure::new(Ending::BadReply, message) }
}

/// Where the output is expected.
fn output_place(mapping: &CheckedMapping) -> Cow<'_, JsonPointer> {
    mapping.output.as_ref().map_or_else(|| Cow::Owned(JsonPointer::output()), Cow::Borrowed)
}

/// How an answer was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kept {
    /// All of it as it was written.
    AsWritten,
    /// For looking at only.
    Loosely,
}

/// The reply in an answer. Its output is kept as it was written, or refused.
fn reply(
    head: AnswerHead,
    (text, value, kept): (&str, &Value, Kept),
    mapping: &CheckedMapping,
) -> Result<Reply, AttemptFailure> {
    let place = output_place(mapping);
    let output = match kept {
        Kept::AsWritten => place.find(value).cloned(),
        Kept::Loosely => {
            let wrong = |why: &dyn std::fmt::Display| bad_reply(head, &format_args!("the answer's output: {why}"));
            let written = place.find_written(text).map_err(|error| wrong(&error))?;
            written.map(exact_json::read).transpose().map_err(|error| wrong(&error))?
        }
    };
    let output = output.ok_or_else(|| match &mapping.output {
        Some(place) => {
            let place = place.as_str();
            bad_reply(head, &format_args!("the answer holds nothing at {place:?}, where its output is expected"))
        }
        None => bad_reply(head, &"the answer holds no `output`"),
    })?;
    Ok(Reply {
        output,
        usage: mapped_usage(value, mapping).or_else(|| usage::told(value.get("usage")?)),
        finish_reason: value.get("finish_reason").and_then(Value::as_str).map(str::to_owned),
        status: Some(head.status),
    })
}

fn mapped_usage(value: &Value, mapping: &CheckedMapping) -> Option<Usage> {
    if let Some(place) = &mapping.usage {
        return place.find(value).and_then(usage::told);
    }
    let count =
        |place: &Option<JsonPointer>| place.as_ref().and_then(|place| place.find(value)).and_then(usage::tokens);
    let (prompt, output) = (count(&mapping.usage_prompt), count(&mapping.usage_output));
    if prompt.is_none() && output.is_none() {
        return None;
    }
    Some(Usage {
        prompt_tokens: prompt.unwrap_or(0),
        output_tokens: output.unwrap_or(0),
        estimated: false,
        ..Usage::default()
    })
}
