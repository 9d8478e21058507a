//! Reading request bodies within their bounds: in bytes, in all, and in the memory of all bodies at once; pauses are the listener's to
//! bound. What is broken is said with its place. Knows nothing of what a body means.

use axum::{
    body::{Body, Bytes, HttpBody as _},
    extract::{FromRequest, Request},
    http::{HeaderMap, StatusCode, header},
};
use futures_util::StreamExt as _;
use serde::de::DeserializeOwned;

use super::{failure::Failure, large};
use crate::{
    model::{envelope::ErrorCode, exact_numbers::first_changed},
    serve::{caps::BodyRoom, state::AppState},
};

/// The most values of a JSON body that is read into them: each takes many times the memory of its text.
pub const VALUES_MAX: usize = 1_000_000;

/// A body that was read as a whole. Its room is taken until it is dropped.
#[derive(Debug)]
pub struct WholeBody {
    /// The bytes.
    pub bytes: Bytes,
    /// What it holds of the memory for bodies.
    pub room: BodyRoom,
}

/// A JSON body.
#[derive(Debug)]
pub struct Json<T>(pub T);

/// A JSON body whose room is held as long as it is worked on.
#[derive(Debug)]
pub struct HeldJson<T>(pub T, pub BodyRoom);

/// The next piece of a body; `None` at its end.
pub async fn next_piece(
    pieces: &mut (impl futures_util::Stream<Item = Result<Bytes, axum::Error>> + Unpin),
) -> Result<Option<Bytes>, Failure> {
    let piece = pieces.next().await.transpose();
    piece.map_err(|error| Failure::invalid(format!("the body broke off: {error}")))
}

/// The body is larger than `max` bytes.
pub fn too_large(max: u64) -> Failure {
    let message = format!("the body is larger than {max} bytes");
    Failure::with_status(ErrorCode::InvalidRequest, StatusCode::PAYLOAD_TOO_LARGE, message)
        .with_detail("bytes_max", max)
}

/// Reads a body of at most `bytes_max` bytes.
pub async fn read_whole(state: &AppState, body: Body, bytes_max: u64) -> Result<WholeBody, Failure> {
    let settings = &state.settings;
    // What says beforehand that it is too large is refused before it is sent.
    if body.size_hint().lower() > bytes_max {
        return Err(too_large(bytes_max));
    }
    let reading = read_pieces(state, body, bytes_max);
    let late = || {
        let message = format!("the body was not there after {} s", settings.body_timeout.as_secs_f64());
        Failure::with_status(ErrorCode::InvalidRequest, StatusCode::REQUEST_TIMEOUT, message)
    };
    tokio::time::timeout(settings.body_timeout, reading).await.map_err(|_| late())?
}

async fn read_pieces(state: &AppState, body: Body, bytes_max: u64) -> Result<WholeBody, Failure> {
    let mut room = state.caps.body();
    let mut pieces = body.into_data_stream();
    let mut bytes: Vec<u8> = Vec::new();
    while let Some(piece) = next_piece(&mut pieces).await? {
        if (bytes.len() + piece.len()) as u64 > bytes_max {
            return Err(too_large(bytes_max));
        }
        room.grow(piece.len())?;
        bytes.extend_from_slice(&piece);
    }
    Ok(WholeBody { bytes: bytes.into(), room })
}

/// Reads `bytes` as a JSON object. `T` says what it must hold; the place of a fault is told by line and column. What `T` keeps as values
/// it reads with `exact_json`.
pub fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Failure> {
    let text = std::str::from_utf8(bytes)
        .map_err(|error| Failure::invalid(format!("the body is not UTF-8 (byte {})", error.valid_up_to())))?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    // A list would be taken for the members in their order.
    match text.trim_ascii_start().chars().next() {
        Some('{') => {}
        Some(other) => {
            return Err(Failure::invalid(format!("the body begins with {other:?}; a JSON object is wanted")));
        }
        None => return Err(Failure::invalid("the body is empty; a JSON object is wanted")),
    }
    check_values("body", [text])?;
    let value = serde_json::from_str(text).map_err(|error| {
        let kind = match error.classify() {
            serde_json::error::Category::Data => "the body does not fit",
            serde_json::error::Category::Eof => "the body ends too early",
            _ => "the body is no JSON",
        };
        // The parser tells its place itself.
        Failure::invalid(format!("{kind}: {error}"))
            .with_detail("line", error.line())
            .with_detail("column", error.column())
    })?;
    match first_changed(text) {
        None => Ok(value),
        Some(changed) => Err(Failure::invalid(changed.to_string()).with_detail("path", changed.path)),
    }
}

/// Refuses JSON texts that hold too many values together: what is laid out takes many times its text.
pub fn check_values<'t>(what: &str, texts: impl IntoIterator<Item = &'t str>) -> Result<(), Failure> {
    let values: usize = texts.into_iter().map(|text| values_within(text.as_bytes())).sum();
    if values > VALUES_MAX {
        return Err(Failure::invalid(format!("the {what} holds more than {VALUES_MAX} values")));
    }
    Ok(())
}

/// How many values a JSON text holds, more or less: one behind each sign that begins or parts some. What is no JSON is not counted well,
/// and not read far.
fn values_within(text: &[u8]) -> usize {
    let (mut values, mut in_text, mut is_escaped) = (1, false, false);
    for byte in text {
        if in_text {
            in_text = is_escaped || *byte != b'"';
            is_escaped = !is_escaped && *byte == b'\\';
        } else {
            in_text = *byte == b'"';
            values += usize::from(matches!(byte, b'[' | b'{' | b','));
        }
    }
    values
}

/// Refuses a body that says it is something else than JSON.
pub fn expect_json(headers: &HeaderMap) -> Result<(), Failure> {
    let kind = headers.get(header::CONTENT_TYPE).map(|value| value.to_str().unwrap_or("?").to_ascii_lowercase());
    let is_json = kind.as_deref().is_some_and(|kind| {
        let kind = kind.split(';').next().unwrap_or_default().trim();
        kind == "application/json" || (kind.starts_with("application/") && kind.ends_with("+json"))
    });
    if !is_json {
        let given = kind.as_deref().unwrap_or("none");
        let message = format!("the content type must be application/json, not {given}");
        return Err(Failure::with_status(ErrorCode::InvalidRequest, StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    }
    if let Some(coding) = headers.get(header::CONTENT_ENCODING)
        && coding != "identity"
    {
        let message = "a compressed body is not understood";
        return Err(Failure::with_status(ErrorCode::InvalidRequest, StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    }
    Ok(())
}

impl<T: DeserializeOwned + Send + 'static> FromRequest<AppState> for Json<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, Failure> {
        HeldJson::from_request(request, state).await.map(|HeldJson(value, _)| Self(value))
    }
}

impl<T: DeserializeOwned + Send + 'static> FromRequest<AppState> for HeldJson<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, Failure> {
        expect_json(request.headers())?;
        let body = read_whole(state, request.into_body(), state.settings.body_bytes_max).await?;
        let WholeBody { bytes, room } = body;
        let value = large::work(state, bytes.len(), move || parse(&bytes)).await?;
        Ok(Self(value, room))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn values_are_counted_before_they_are_made() {
        for (text, want) in
            [("1", 1), ("[1,2,3]", 4), (r#"{"a":[1,2],"b":{}}"#, 6), (r#"["a,b,c","\\",",","\"[[["]"#, 5)]
        {
            assert_eq!(values_within(text.as_bytes()), want, "{text}");
        }
        let many = |count: usize| format!("{{\"a\":[{}1]}}", "1,".repeat(count));
        let error = parse::<Value>(many(VALUES_MAX).as_bytes()).unwrap_err();
        assert!(error.envelope.message.contains("values"), "{}", error.envelope.message);
        assert!(parse::<Value>(many(1_000).as_bytes()).is_ok());
        assert!(
            parse::<Value>(format!("{{\"a\":\"{}\"}}", ",".repeat(VALUES_MAX)).as_bytes()).is_ok(),
            "a text is one value"
        );
    }

    #[test]
    fn broken_json_is_told_with_its_place() {
        let deep = format!("{{\"a\":{}{}}}", "[".repeat(200), "]".repeat(200));
        for (bytes, begins) in [
            (&b""[..], "the body is empty"),
            (b"  \n", "the body is empty"),
            (b"{", "the body ends too early: EOF while parsing an object at line 1 column 1"),
            (b"{\"a\":1,}", "the body is no JSON: trailing comma at line 1 column 8"),
            (b"{'a':1}", "the body is no JSON"),
            (b"{\"a\":1} x", "the body is no JSON: trailing characters"),
            (b"{\"a\":\xff}", "the body is not UTF-8 (byte 5)"),
            (b"{\"a\":\"\\ud800\"}", "the body is no JSON"),
            (b"{\"a\":1e999}", "the body is no JSON: number out of range"),
            (b"{\"a\":NaN}", "the body is no JSON"),
            (b"NaN", "the body begins with 'N'; a JSON object is wanted"),
            (b" [{\"a\":1}]", "the body begins with '['; a JSON object is wanted"),
            (b"\xef\xbb\xbf\"{}\"", "the body begins with '\"'; a JSON object is wanted"),
            (b"\xef\xbb\xbf", "the body is empty; a JSON object is wanted"),
            ("\u{a0}{}".as_bytes(), "the body begins with '\\u{a0}'; a JSON object is wanted"),
            (b"{\"a\":[0,{\"id\":12345678901234567890123}]}", "a[1].id: 12345678901234567890123 would be changed"),
            (b"{\"a\":-0}", "a: -0 would be changed"),
            (deep.as_bytes(), "the body is no JSON: recursion limit exceeded"),
        ] {
            let failure = parse::<Value>(bytes).unwrap_err();
            let message = &failure.envelope.message;
            assert!(message.starts_with(begins), "{:?}: {message}", String::from_utf8_lossy(bytes));
            assert_eq!(failure.envelope.http_status, 400);
        }
        assert_eq!(parse::<Value>("\u{feff}{}".as_bytes()).unwrap(), serde_json::json!({}));
    }
}
