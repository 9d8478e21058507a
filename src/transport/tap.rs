//! What goes over the wire, as text for a person: the last exchange of the clients that a tap is attached to, with everything secret
//! masked. Listens only, changes nothing; a client without a tap does none of this.

use std::{
    cmp::Reverse,
    fmt::{self, Write},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use reqwest::{
    Request, Response,
    header::{AUTHORIZATION, COOKIE, HeaderMap, HeaderName, PROXY_AUTHORIZATION, SET_COOKIE},
};
use serde_json::Value;
use url::Url;

use super::{
    client::shown,
    secret::{SCRUBBED_BYTES_MIN, Secret},
};

/// Request and answer are each shown up to this many bytes.
pub const TAP_BYTES_MAX: usize = 256 * 1024;

/// What stands where something secret stood.
const HIDDEN: &str = "(hidden)";

/// Headers whose values are keys by their very name, whoever sent them.
const HIDDEN_HEADERS: [HeaderName; 6] = [
    AUTHORIZATION,
    PROXY_AUTHORIZATION,
    COOKIE,
    SET_COOKIE,
    HeaderName::from_static("x-api-key"),
    HeaderName::from_static("api-key"),
];

/// One exchange as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exchange {
    /// Method and URL, the headers (without those that the connection adds itself), the body; JSON is laid out.
    pub request: String,
    /// Status line, headers and body or stream as they came. What is no text, or would steer a terminal, stands escaped.
    pub answer: String,
}

/// Hears what the clients it is attached to send and get. All clones are one tap.
#[derive(Debug, Clone, Default)]
pub struct Tap {
    last: Arc<Mutex<Option<Recording>>>,
}

impl Tap {
    /// A tap that has heard nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The exchange that began last, as far as it has come; `None` if none began since the last time.
    pub fn take(&self) -> Option<Exchange> {
        let recording = lock(&self.last).take()?;
        Some(lock(&recording.0).exchange())
    }

    /// A request is about to be sent by a client with these secrets.
    pub(super) fn begin(&self, request: &Request, secrets: &[Secret]) -> Recording {
        let hiding = Hiding::of(request.headers(), secrets);
        let heard = Heard { request: request_text(request, &hiding), hiding, ..Heard::default() };
        let recording = Recording(Arc::new(Mutex::new(heard)));
        *lock(&self.last) = Some(recording.clone());
        recording
    }
}

/// One exchange that is being heard.
#[derive(Clone)]
pub(super) struct Recording(Arc<Mutex<Heard>>);

impl fmt::Debug for Recording {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Recording")
    }
}

impl Recording {
    /// The head of the answer came.
    pub(super) fn head(&self, response: &Response) {
        let status = response.status();
        let reason = status.canonical_reason().unwrap_or_default();
        let line = format!("{:?} {} {reason}", response.version(), status.as_u16());
        lock(&self.0).head = Some(format!("{}\n{}", line.trim_end(), header_lines(response.headers())));
    }

    /// More of its body came.
    pub(super) fn piece(&self, bytes: &[u8]) {
        let mut heard = lock(&self.0);
        let room = TAP_BYTES_MAX - heard.body.len();
        let kept = bytes.get(..room).unwrap_or(bytes);
        heard.body.extend_from_slice(kept);
        heard.is_cut |= kept.len() < bytes.len();
    }

    /// It came no further.
    pub(super) fn broke(&self, why: &str) {
        lock(&self.0).broke = Some(why.to_owned());
    }
}

#[derive(Default)]
struct Heard {
    request: String,
    head: Option<String>,
    body: Vec<u8>,
    is_cut: bool,
    broke: Option<String>,
    hiding: Hiding,
}

impl Heard {
    fn exchange(&self) -> Exchange {
        let broke = self.broke.as_ref().map(|why| self.hiding.hide(why));
        let answer = match (&self.head, broke) {
            (None, None) => "(no answer)".to_owned(),
            (None, Some(why)) => format!("(no answer: {why})"),
            (Some(head), broke) => {
                let mut text = self.hiding.hide(&format!("{head}\n{}", readable(&self.body)));
                self.hiding.hide_begun(&mut text);
                let mut text = bounded(text, self.is_cut);
                if let Some(why) = broke {
                    text = format!("{text}\n(broke off: {why})");
                }
                text
            }
        };
        Exchange { request: self.request.clone(), answer }
    }
}

fn request_text(request: &Request, hiding: &Hiding) -> String {
    let body = request.body().and_then(reqwest::Body::as_bytes).unwrap_or_default();
    let laid_out = serde_json::from_slice::<Value>(body).map(|value| format!("{value:#}"));
    let body = laid_out.map_or_else(|_| readable(body), |text| readable(text.as_bytes()));
    let text = format!("{} {}\n{}\n{body}", request.method(), url_text(request.url()), header_lines(request.headers()));
    bounded(hiding.hide(&text), false)
}

/// A URL with the names of its parameters only: any value may be a key, and so may a parameter without one.
fn url_text(url: &Url) -> String {
    let parameters = url.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
    let masked: Vec<String> = parameters
        .map(|pair| pair.split_once('=').map_or_else(|| HIDDEN.to_owned(), |(name, _)| format!("{name}={HIDDEN}")))
        .collect();
    let mark = if masked.is_empty() { "" } else { "?" };
    format!("{}{mark}{}", shown(url), masked.join("&"))
}

fn header_lines(headers: &HeaderMap) -> String {
    let mut lines = String::new();
    for (name, value) in headers {
        let is_hidden = value.is_sensitive() || HIDDEN_HEADERS.contains(name);
        let text = if is_hidden { HIDDEN.to_owned() } else { readable(value.as_bytes()) };
        // Writing to a string cannot fail.
        let _ = writeln!(lines, "{name}: {text}");
    }
    lines
}

/// Bytes as text that can be printed anywhere: what is no text, or steers a terminal, is escaped and not lost.
fn readable(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for letter in chunk.valid().chars() {
            if letter.is_control() && !matches!(letter, '\n' | '\t') {
                text.extend(letter.escape_default());
            } else {
                text.push(letter);
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

fn bounded(mut text: String, is_cut: bool) -> String {
    let is_too_long = text.len() > TAP_BYTES_MAX;
    if is_too_long {
        text.truncate(text.floor_char_boundary(TAP_BYTES_MAX));
    }
    if is_cut || is_too_long {
        let _ = write!(text, "\n(cut: no more than {TAP_BYTES_MAX} bytes are shown)");
    }
    text
}

/// What must not be seen, in each form that it may have on the wire; the longest first, so that nothing stays of what begins with
/// another.
#[derive(Default)]
struct Hiding(Vec<String>);

impl Hiding {
    /// Hides these secrets, and the values of headers that are sent as secrets.
    fn of(headers: &HeaderMap, secrets: &[Secret]) -> Self {
        let mut plain: Vec<String> = secrets.iter().map(|secret| secret.expose().to_owned()).collect();
        for (name, value) in headers {
            if !value.is_sensitive() && !HIDDEN_HEADERS.contains(name) {
                continue;
            }
            let value = readable(value.as_bytes());
            // `Bearer <key>`: a server repeats the key alone.
            plain.extend(value.split_once(' ').map(|(_, key)| key.trim().to_owned()));
            plain.push(value);
        }
        let mut forms: Vec<String> = plain.into_iter().filter(|text| text.len() >= SCRUBBED_BYTES_MIN).collect();
        // In JSON, and in JSON that a gateway put as text into its own.
        for _ in 0..2 {
            let quoted: Vec<String> = forms.iter().flat_map(|text| in_json(text)).collect();
            forms.extend(quoted);
        }
        forms.sort_by(|left, right| (Reverse(left.len()), left).cmp(&(Reverse(right.len()), right)));
        forms.dedup();
        Self(forms)
    }

    fn hide(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, form| text.replace(form, HIDDEN))
    }

    /// Hides the beginning of a secret at the end of a text that was cut inside it.
    fn hide_begun(&self, text: &mut String) {
        let begun = |form: &String| {
            (SCRUBBED_BYTES_MIN..form.len())
                .rev()
                .find(|length| form.get(..*length).is_some_and(|begin| text.ends_with(begin)))
        };
        if let Some(length) = self.0.iter().filter_map(begun).max() {
            text.truncate(text.len() - length);
            text.push_str(HIDDEN);
        }
    }
}

/// A text as it may stand in a JSON string: some writers escape slashes too.
fn in_json(text: &str) -> [String; 2] {
    let quoted = Value::from(text).to_string();
    let inside = quoted.get(1..quoted.len() - 1).unwrap_or_default().to_owned();
    [inside.replace('/', "\\/"), inside]
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is behind these locks is written in one step each.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
