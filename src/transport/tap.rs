//! What goes over the wire, as text for a person: the last exchange of the clients that a tap is attached to, with everything secret
//! masked. Listens only, changes nothing; a client without a tap does none of this.

use std::{
    fmt::Write,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use serde_json::Value;

use super::{
    hiding::{Hiding, header_lines, readable, url_text},
    recording::{Head, Recording, Sent},
};

/// Request and answer are each shown up to this many bytes.
pub const TAP_BYTES_MAX: usize = 256 * 1024;

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
        Some(exchange(&recording))
    }

    /// An exchange is about to begin.
    pub(super) fn hear(&self, recording: &Recording) {
        *lock(&self.last) = Some(recording.clone());
    }
}

fn exchange(recording: &Recording) -> Exchange {
    let hiding = recording.sent().hiding();
    let heard = recording.heard();
    let broke = heard.broke.as_ref().map(|why| hiding.hide(why));
    let answer = match (&heard.head, broke) {
        (None, None) => "(no answer)".to_owned(),
        (None, Some(why)) => format!("(no answer: {why})"),
        (Some(head), broke) => {
            let mut text = hiding.hide(&format!("{}\n{}", head_text(head), readable(&heard.body)));
            hiding.hide_begun(&mut text);
            let mut text = bounded(text, heard.is_cut);
            if let Some(why) = broke {
                text = format!("{text}\n(broke off: {why})");
            }
            text
        }
    };
    Exchange { request: request_text(recording.sent(), &hiding), answer }
}

fn head_text(head: &Head) -> String {
    let reason = head.status.canonical_reason().unwrap_or_default();
    let line = format!("{:?} {} {reason}", head.version, head.status.as_u16());
    format!("{}\n{}", line.trim_end(), header_lines(&head.headers))
}

fn request_text(sent: &Sent, hiding: &Hiding) -> String {
    let laid_out = serde_json::from_slice::<Value>(&sent.body).map(|value| format!("{value:#}"));
    let body = laid_out.map_or_else(|_| readable(&sent.body), |text| readable(text.as_bytes()));
    let text = format!("{} {}\n{}\n{body}", sent.method, url_text(&sent.url), header_lines(&sent.headers));
    bounded(hiding.hide(&text), false)
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is behind these locks is written in one step each.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
