//! Errors that come under a good status, as a body or a frame: some call themselves errors, some only look like one and are told from
//! an answer by what is missing beside them.

use serde_json::{Map, Value};

use super::{
    AnswerHead, ErrorPointers, STATUS_KEYS, Said, code_text, complaints, is_identifier, says_something, status_number,
};
use crate::{
    model::{loose_json, reply::AttemptFailure},
    transport::{error_code, sse::SseEvent},
};

/// How a frame of an event stream is named that is an error.
const ERROR_EVENT: &str = "error";
/// Where they say what went wrong.
const WORD_KEYS: [&str; 4] = ["message", "msg", "title", "reason"];
/// What else stands in such an error: with nothing but all these a body is one, also without a number.
const OTHER_KEYS: [&str; 11] = [
    "detail",
    "errors",
    "instance",
    "object",
    "param",
    "path",
    "request_id",
    "requestId",
    "timestamp",
    "trace_id",
    "type",
];
/// Codes that name no failure.
const GOOD_CODES: [&str; 2] = ["ok", "success"];

/// What stands beside a possible error: a shape alone makes none of what answers the question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beside {
    /// What was promised, or nobody promised anything: only what calls itself an error is one.
    Promised,
    /// A frame of a stream whose other frames may say anything: an error names its status by number.
    Anything,
    /// Not what was promised, and nothing else has a place here.
    Nothing,
    /// The other side calls it an error, whatever it holds.
    Named,
}

impl Beside {
    /// What a body with, or without, what was promised is judged by.
    pub fn promised(is_there: bool) -> Self {
        if is_there { Self::Promised } else { Self::Nothing }
    }
}

/// The failure inside a body or frame that came with a good status, if it holds one.
pub fn failure_inside_success(
    head: AnswerHead,
    value: &Value,
    pointers: &ErrorPointers,
    beside: Beside,
) -> Option<AttemptFailure> {
    if !holds_error(value, pointers) && !is_error_by_shape(value, beside) {
        return None;
    }
    let said = Said::read(value, pointers);
    let mut words: Vec<&str> = said.words().collect();
    if value.get("detail").and_then(complaints).is_some() {
        words.push("validation");
    }
    let message = said.message.as_deref().unwrap_or_default();
    let status = said.status.unwrap_or_else(|| error_code::status_by_words(&words, message));
    let received = said.status.unwrap_or(head.status);
    Some(said.into_failure(head, status, Some(received)))
}

/// The failure that an event named `error` is, also one that holds no JSON; `None` for every other event, for one that says that there
/// is no error, and for one that was cut.
pub fn failure_of_error_event(head: AnswerHead, event: &SseEvent, pointers: &ErrorPointers) -> Option<AttemptFailure> {
    if event.event != ERROR_EVENT {
        return None;
    }
    let value = match loose_json::read(event.data.as_bytes()) {
        Ok(value) => value,
        Err(_) if event.closed => Value::from(event.data.as_str()),
        Err(_) => return None,
    };
    failure_inside_success(head, &value, pointers, Beside::Named)
}

fn holds_error(value: &Value, pointers: &ErrorPointers) -> bool {
    let mapped = pointers.error_code.as_ref().and_then(|pointer| pointer.find(value));
    let flat = ["error_code", "errorCode"].iter().any(|key| value.get(key).is_some_and(Value::is_string));
    let typed = value.get("type").and_then(Value::as_str) == Some("error");
    value.get("error").is_some_and(says_something) || mapped.is_some_and(says_something) || flat || typed
}

fn is_error_by_shape(value: &Value, beside: Beside) -> bool {
    match beside {
        Beside::Promised => false,
        Beside::Named => !matches!(value, Value::Null | Value::Bool(false)),
        Beside::Anything => value.as_object().is_some_and(names_its_status),
        Beside::Nothing => match value {
            Value::Object(fields) => names_its_status(fields) || says_only_what_is_wrong(fields),
            // Google sends a list of one.
            Value::Array(items) => items.first().is_some_and(|first| holds_error(first, &ErrorPointers::default())),
            _ => false,
        },
    }
}

/// vLLM's `"object": "error"`, RFC 9457, and whatever else says a status and words.
fn names_its_status(fields: &Map<String, Value>) -> bool {
    let is_numbered = STATUS_KEYS.iter().any(|key| fields.get(*key).and_then(status_number).is_some());
    fields.get("object").and_then(Value::as_str) == Some("error") || (is_numbered && says_why(fields))
}

/// FastAPI's `detail`, a problem without its status, a message with a code that is a word.
fn says_only_what_is_wrong(fields: &Map<String, Value>) -> bool {
    let is_known = |key: &str| [&STATUS_KEYS[..], &WORD_KEYS, &OTHER_KEYS].iter().any(|keys| keys.contains(&key));
    let is_detailed = fields.get("detail").is_some_and(is_telling);
    let is_coded = fields.get("code").and_then(code_text).is_some_and(|code| names_a_failure(&code));
    (is_detailed || (is_coded && says_why(fields))) && fields.keys().all(|key| is_known(key))
}

fn says_why(fields: &Map<String, Value>) -> bool {
    let has_words = WORD_KEYS
        .iter()
        .any(|key| fields.get(*key).and_then(Value::as_str).is_some_and(|text| !text.trim().is_empty()));
    has_words || fields.get("detail").is_some_and(is_telling)
}

fn is_telling(value: &Value) -> bool {
    says_something(value) && !matches!(value, Value::Bool(_) | Value::Number(_))
}

fn names_a_failure(code: &str) -> bool {
    let is_word = is_identifier(code) && code.bytes().any(|byte| byte.is_ascii_alphabetic());
    is_word && !GOOD_CODES.iter().any(|good| code.eq_ignore_ascii_case(good))
}
