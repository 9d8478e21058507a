//! What must not be seen of an exchange: keys in headers, URLs and bodies, in every form that they may have on the wire. Bytes become text
//! that can be printed anywhere.

use std::{cmp::Reverse, fmt::Write};

use reqwest::header::{AUTHORIZATION, COOKIE, HeaderMap, HeaderName, PROXY_AUTHORIZATION, SET_COOKIE};
use serde_json::Value;
use url::Url;

use super::{
    client::shown,
    secret::{SCRUBBED_BYTES_MIN, Secret},
};

/// What stands where something secret stood.
pub(super) const HIDDEN: &str = "(hidden)";

/// Headers whose values are keys by their very name, whoever sent them.
const HIDDEN_HEADERS: [HeaderName; 6] = [
    AUTHORIZATION,
    PROXY_AUTHORIZATION,
    COOKIE,
    SET_COOKIE,
    HeaderName::from_static("x-api-key"),
    HeaderName::from_static("api-key"),
];

/// Names of parameters that hold a signature beside those that end with "signature".
const SIGNED_NAMES: [&[u8]; 2] = [b"?sig", b"&sig"];
/// What is shorter is no signature.
const SIGNATURE_BYTES_MIN: usize = 16;

/// What must not be seen, in each form that it may have on the wire; the longest first, so that nothing stays of what begins with
/// another.
#[derive(Default)]
pub(super) struct Hiding(Vec<String>);

impl Hiding {
    /// Hides these secrets, and the values of headers that are sent as secrets.
    pub(super) fn of(headers: &HeaderMap, secrets: &[Secret]) -> Self {
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

    /// Hides these as well.
    pub(super) fn and(mut self, found: Vec<String>) -> Self {
        self.0.extend(found);
        self.0.sort_by(|left, right| (Reverse(left.len()), left).cmp(&(Reverse(right.len()), right)));
        self.0.dedup();
        self
    }

    /// `text` without any of them.
    pub(super) fn hide(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, form| text.replace(form, HIDDEN))
    }

    /// Hides the beginning of a secret at the end of a text that was cut inside it.
    pub(super) fn hide_begun(&self, text: &mut String) {
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

/// The signatures of signed URLs in a body: whoever holds such a URL reads what is there without a key. They are written with signs that
/// no escaping changes.
pub(super) fn signatures_in(body: &[u8]) -> Vec<String> {
    let mut found = Vec::new();
    let is_of_name = |name: &[u8]| {
        let ends_with =
            |known: &[u8]| name.len() >= known.len() && name[name.len() - known.len()..].eq_ignore_ascii_case(known);
        ends_with(b"signature") || SIGNED_NAMES.iter().any(|known| ends_with(known))
    };
    let mut from = 0;
    while let Some(length) = body[from..].iter().position(|byte| *byte == b'=') {
        let (name, value) = (&body[from..from + length], &body[from + length + 1..]);
        from += length + 1;
        if !is_of_name(name) {
            continue;
        }
        let is_of_value = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.~%+/".contains(byte);
        let value: Vec<u8> = value.iter().copied().take_while(is_of_value).collect();
        if value.len() >= SIGNATURE_BYTES_MIN {
            found.extend(String::from_utf8(value));
        }
    }
    found
}

/// A text as it may stand in a JSON string: some writers escape slashes too.
pub(super) fn in_json(text: &str) -> [String; 2] {
    let quoted = Value::from(text).to_string();
    let inside = quoted.get(1..quoted.len() - 1).unwrap_or_default().to_owned();
    [inside.replace('/', "\\/"), inside]
}

/// A URL with the names of its parameters only: any value may be a key, and so may a parameter without one.
pub(super) fn url_text(url: &Url) -> String {
    let parameters = url.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
    let masked: Vec<String> = parameters
        .map(|pair| pair.split_once('=').map_or_else(|| HIDDEN.to_owned(), |(name, _)| format!("{name}={HIDDEN}")))
        .collect();
    let mark = if masked.is_empty() { "" } else { "?" };
    format!("{}{mark}{}", shown(url), masked.join("&"))
}

pub(super) fn header_lines(headers: &HeaderMap) -> String {
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
pub(super) fn readable(bytes: &[u8]) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_of_urls_are_found_and_hidden_wherever_they_are_repeated() {
        for (body, want) in [
            (
                r#"{"url":"http://h/v1/files/file-1?signature=19c8f.AbC-dEf_0123456789"}"#,
                vec!["19c8f.AbC-dEf_0123456789"],
            ),
            (r#"{"text":"https://s/x?a=1&X-Amz-Signature=0123456789abcdef0123&b=2"}"#, vec!["0123456789abcdef0123"]),
            (r#"{"text":"https://s/x?se=1&sig=ab%2Bcd0123456789ef%3D"}"#, vec!["ab%2Bcd0123456789ef%3D"]),
            (r#"{"text":"signature=short, and signature = 0123456789abcdef0123"}"#, vec![]),
            (r#"{"text":"design=0123456789abcdef0123"}"#, vec![]),
            ("signature=", vec![]),
        ] {
            assert_eq!(signatures_in(body.as_bytes()), want, "{body}");
            let hidden = Hiding::default().and(signatures_in(body.as_bytes())).hide(body);
            assert!(want.iter().all(|signature| !hidden.contains(signature)), "{hidden}");
        }
    }
}
