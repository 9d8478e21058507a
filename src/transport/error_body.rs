//! Reads an error answer, whatever wrote it: our own envelope, OpenAI and Anthropic error objects, RFC 9457 problems, Spring Boot,
//! FastAPI, HTML pages, plain text. Reports what was said and never judges it: what counts as failure is the supervisor's table.

use std::time::Duration;

use serde_json::{Map, Value};

use crate::{
    model::{
        facts::{Ending, QuotaReset},
        loose_json,
        reply::AttemptFailure,
    },
    policy::retry_after,
};

use super::{error_code, json_pointer::JsonPointer};

mod inside;

pub use inside::{Beside, failure_inside_success, failure_of_error_event};

/// Messages are cut to this many characters.
pub const MESSAGE_CHARS_MAX: usize = 2_000;
/// Codes of the other side are cut to this many characters.
pub const UPSTREAM_CODE_CHARS_MAX: usize = 100;
/// No more of a page that is no JSON is looked at.
const PAGE_BYTES_MAX: usize = 32 * 1024;
/// Where errors of several makers name their status by number.
const STATUS_KEYS: [&str; 6] = ["http_status", "httpStatus", "status", "status_code", "statusCode", "code"];
/// So many of the complaints of a validation are repeated.
const COMPLAINTS_MAX: usize = 5;

/// What the head of an answer says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnswerHead {
    /// HTTP status.
    pub status: u16,
    /// How long its headers ask us to stay away.
    pub retry_after: Option<Duration>,
    /// `x-should-retry`, if it was sent.
    pub should_retry: Option<bool>,
}

impl AnswerHead {
    /// Reads status and headers at `now_unix_ms`.
    pub fn read(status: u16, headers: &[(&str, &[u8])], now_unix_ms: u64) -> Self {
        let should_retry = headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("x-should-retry"));
        Self {
            status,
            retry_after: retry_after::read(headers.iter().copied(), status, now_unix_ms),
            should_retry: should_retry.and_then(|(_, value)| match *value {
                b"true" => Some(true),
                b"false" => Some(false),
                _ => None,
            }),
        }
    }
}

/// Where a service of somebody else's keeps what our envelope says. Each one that is set and found wins over what is found unmapped.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ErrorPointers {
    /// The code, a string or a number.
    pub error_code: Option<JsonPointer>,
    /// The message.
    pub message: Option<JsonPointer>,
    /// Whether a later call can succeed.
    pub retryable: Option<JsonPointer>,
    /// Seconds until one makes sense.
    pub retry_after: Option<JsonPointer>,
}

/// The failure that an answer with an error status is.
pub fn failure_of_answer(head: AnswerHead, body: &[u8], pointers: &ErrorPointers) -> AttemptFailure {
    let said = match loose_json::read(body) {
        Ok(value) => Said::read(&value, pointers),
        Err(_) => Said { message: page_text(body), ..Said::default() },
    };
    said.into_failure(head, head.status, Some(head.status))
}

/// `"error": null` and its like are how some servers say that there is none.
fn says_something(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::Bool(true) | Value::Number(_) => true,
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
    }
}

/// What an error answer says, in one shape.
#[derive(Debug, Default)]
struct Said {
    code: Option<String>,
    kind: Option<String>,
    inner_code: Option<String>,
    status: Option<u16>,
    message: Option<String>,
    user_message: Option<String>,
    retryable: Option<bool>,
    retry_after: Option<Duration>,
}

impl Said {
    fn read(body: &Value, pointers: &ErrorPointers) -> Self {
        // Google sends a list of one.
        let root = body.as_array().and_then(|items| items.first()).unwrap_or(body);
        let Some(outer) = root.as_object() else {
            return Self { message: root.as_str().and_then(clean), ..Self::default() };
        };
        let places = Places { inner: inner_object(outer), outer };
        let mapped = |pointer: &Option<JsonPointer>| pointer.as_ref().and_then(|pointer| pointer.find(body));
        Self {
            code: mapped(&pointers.error_code).and_then(code_text).or_else(|| places.code()),
            kind: places.kind(),
            inner_code: places.inner.get("innererror").and_then(|inner| inner.get("code")).and_then(code_text),
            status: places.status(),
            message: mapped(&pointers.message).and_then(Value::as_str).and_then(clean).or_else(|| places.message()),
            user_message: places.text(&["user_message", "userMessage"]),
            retryable: mapped(&pointers.retryable)
                .and_then(Value::as_bool)
                .or_else(|| places.find(&["retryable"], Value::as_bool)),
            retry_after: mapped(&pointers.retry_after)
                .and_then(seconds)
                .or_else(|| places.find(&["retry_after", "retryAfter"], seconds)),
        }
    }

    fn words(&self) -> impl Iterator<Item = &str> {
        [&self.code, &self.kind, &self.inner_code].into_iter().filter_map(Option::as_deref)
    }

    fn into_failure(self, head: AnswerHead, status: u16, received: Option<u16>) -> AttemptFailure {
        let message = self.message.clone().unwrap_or_else(|| format!("HTTP {status} that says nothing"));
        let words: Vec<&str> = self.words().collect();
        let meaning = error_code::meaning(status, &words, &message);
        // Both were meant as "not before": the later one keeps both.
        let retry_after = self.retry_after.max(head.retry_after);
        let reset = retry_after.filter(|wait| !wait.is_zero()).map_or(QuotaReset::Unknown, QuotaReset::In);
        let ending = Ending::Status {
            status,
            retryable: self.retryable,
            content_filter: meaning.content_filter,
            context_too_long: meaning.context_too_long,
            quota_spent: meaning.quota_spent.then_some(reset),
        };
        AttemptFailure {
            user_message: self.user_message,
            upstream_code: self.code.or(self.kind),
            status: received,
            retry_after,
            should_retry: head.should_retry,
            ..AttemptFailure::new(ending, message)
        }
    }
}

/// The error object and the object around it (the same where nothing is nested).
struct Places<'a> {
    inner: &'a Map<String, Value>,
    outer: &'a Map<String, Value>,
}

fn inner_object(outer: &Map<String, Value>) -> &Map<String, Value> {
    for key in ["error", "detail", "errors"] {
        let nested = outer.get(key).map(|nested| nested.as_array().and_then(|items| items.first()).unwrap_or(nested));
        // FastAPI's `detail` is a list of complaints; those have a place, and no code.
        if let Some(fields) = nested.and_then(Value::as_object)
            && !fields.contains_key("loc")
        {
            return fields;
        }
    }
    outer
}

impl Places<'_> {
    fn find<T>(&self, keys: &[&str], read: impl Fn(&Value) -> Option<T>) -> Option<T> {
        let places = [self.inner, self.outer];
        places.iter().find_map(|place| keys.iter().find_map(|key| place.get(*key).and_then(&read)))
    }

    fn text(&self, keys: &[&str]) -> Option<String> {
        self.find(keys, |value| value.as_str().and_then(clean))
    }

    fn code(&self) -> Option<String> {
        // Numbers in the range of statuses are statuses; they are no code.
        let named = |value: &Value| code_text(value).filter(|_| status_number(value).is_none());
        let short = |value: &Value| named(value).filter(|text| is_identifier(text));
        self.find(&["error_code", "errorCode", "code"], named)
            .or_else(|| self.outer.get("error").and_then(short).filter(|_| self.has_message_beside_error()))
    }

    fn has_message_beside_error(&self) -> bool {
        ["message", "error_description", "detail"].iter().any(|key| self.outer.get(*key).is_some_and(says_something))
    }

    fn kind(&self) -> Option<String> {
        let kind = |value: &Value| code_text(value).filter(|text| text != "error" && text != "about:blank");
        self.inner.get("type").and_then(kind).or_else(|| self.outer.get("type").and_then(kind)).or_else(|| {
            // Google's canonical names.
            let status = self.inner.get("status").and_then(Value::as_str)?;
            (status_number(&Value::from(status)).is_none()).then(|| cut(status, UPSTREAM_CODE_CHARS_MAX))
        })
    }

    fn status(&self) -> Option<u16> {
        self.find(&STATUS_KEYS, status_number)
    }

    fn message(&self) -> Option<String> {
        self.text(&["message", "msg", "detail", "error_description"])
            .or_else(|| self.outer.get("detail").and_then(complaints))
            .or_else(|| self.text(&["title", "error", "reason"]))
    }
}

/// FastAPI's `detail`: what is wrong, and where.
fn complaints(detail: &Value) -> Option<String> {
    let items = detail.as_array()?;
    let lines: Vec<String> = items
        .iter()
        .take(COMPLAINTS_MAX)
        .filter_map(|item| {
            let message = item.get("msg").and_then(Value::as_str)?;
            let place = item.get("loc").and_then(Value::as_array)?;
            let steps: Vec<String> = place.iter().map(plain_text).collect();
            Some(format!("{}: {message}", steps.join(".")))
        })
        .collect();
    clean(&lines.join("; "))
}

fn plain_text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn code_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => clean(text).map(|text| cut(&text, UPSTREAM_CODE_CHARS_MAX)),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

fn is_identifier(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte))
}

fn status_number(value: &Value) -> Option<u16> {
    let number = match value {
        Value::Number(number) => number.as_u64()?,
        Value::String(text) if text.len() == 3 => text.parse().ok()?,
        _ => return None,
    };
    u16::try_from(number).ok().filter(|status| (400..=599).contains(status))
}

fn seconds(value: &Value) -> Option<Duration> {
    let number = value.as_f64().or_else(|| value.as_str()?.trim().parse().ok())?;
    retry_after::from_seconds(number)
}

/// One line of text without control characters, within the limit; `None` if nothing is left.
fn clean(text: &str) -> Option<String> {
    let bounded = cut(text, MESSAGE_CHARS_MAX);
    let words: Vec<&str> = bounded
        .split(|letter: char| letter.is_whitespace() || letter.is_control())
        .filter(|word| !word.is_empty())
        .collect();
    (!words.is_empty()).then(|| words.join(" "))
}

/// The first `chars_max` characters.
pub fn cut(text: &str, chars_max: usize) -> String {
    text.chars().take(chars_max).collect()
}

/// What a page that is no JSON says: its title, else its text without tags.
fn page_text(body: &[u8]) -> Option<String> {
    let bounded = body.get(..PAGE_BYTES_MAX).unwrap_or(body);
    let text = String::from_utf8_lossy(bounded);
    if !text.trim_start().starts_with('<') {
        return clean(&text);
    }
    let lower = text.to_ascii_lowercase();
    let title = lower.find("<title>").and_then(|start| {
        let from = start + "<title>".len();
        let length = lower.get(from..)?.find("</title>")?;
        text.get(from..from + length)
    });
    title.and_then(clean).or_else(|| {
        let pieces: Vec<&str> =
            text.split('<').map(|piece| piece.split_once('>').map_or("", |(_, kept)| kept)).collect();
        clean(&pieces.join(" "))
    })
}

#[cfg(test)]
mod tests;
