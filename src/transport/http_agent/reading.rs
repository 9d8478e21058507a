//! Reads what an agent answers: a whole reply, or the frames of a stream. Knows the contract and the mapping, and no sockets.

use serde_json::Value;

use crate::{
    model::{
        facts::Ending,
        reply::{AttemptFailure, Reply, Usage},
    },
    transport::{
        error_body::{AnswerHead, failure_inside_success},
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
    let value: Value =
        serde_json::from_slice(body).map_err(|error| bad_reply(head, format!("the answer is no JSON: {error}")))?;
    if let Some(failure) = failure_inside_success(head, &value, &mapping.errors) {
        return Err(failure);
    }
    reply(head, &value, mapping)
}

/// Reads one frame of a stream.
pub(super) fn frame(head: AnswerHead, event: &SseEvent, mapping: &CheckedMapping) -> Result<Frame, AttemptFailure> {
    if event.data.is_empty() || event.data == "[DONE]" {
        return Ok(Frame::Nothing);
    }
    let value: Value = serde_json::from_str(&event.data).map_err(|error| {
        let ending = if event.closed { Ending::BadReply } else { Ending::StreamCut };
        AttemptFailure {
            status: Some(head.status),
            ..AttemptFailure::new(ending, format!("a frame is no JSON: {error}"))
        }
    })?;
    if let Some(failure) = failure_inside_success(head, &value, &mapping.errors) {
        return Err(failure);
    }
    if let Some(delta) = value.get("delta").and_then(Value::as_str) {
        return Ok(Frame::Delta(delta.to_owned()));
    }
    let ends =
        value.get("output").is_some() || mapping.output.as_ref().is_some_and(|place| place.find(&value).is_some());
    if ends { reply(head, &value, mapping).map(Frame::Reply) } else { Ok(Frame::Nothing) }
}

/// A complete answer that is not of the promised shape.
pub(super) fn bad_reply(head: AnswerHead, message: String) -> AttemptFailure {
    AttemptFailure { status: Some(head.status), ..AttemptFailure::new(Ending::BadReply, message) }
}

fn reply(head: AnswerHead, value: &Value, mapping: &CheckedMapping) -> Result<Reply, AttemptFailure> {
    let output = match &mapping.output {
        Some(place) => place.find(value).ok_or_else(|| {
            bad_reply(head, format!("the answer holds nothing at {:?}, where its output is expected", place.as_str()))
        })?,
        None => value.get("output").ok_or_else(|| bad_reply(head, "the answer holds no `output`".to_owned()))?,
    };
    Ok(Reply {
        output: output.clone(),
        usage: mapped_usage(value, mapping).or_else(|| usage::told(value.get("usage")?)),
        finish_reason: value.get("finish_reason").and_then(Value::as_str).map(str::to_owned),
        status: Some(head.status),
    })
}

fn mapped_usage(value: &Value, mapping: &CheckedMapping) -> Option<Usage> {
    if let Some(place) = &mapping.usage {
        return place.find(value).and_then(usage::told);
    }
    let count = |place: &Option<crate::transport::json_pointer::JsonPointer>| {
        place.as_ref().and_then(|place| place.find(value)).and_then(crate::transport::usage::tokens)
    };
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
