//! A value that must not be seen: keys, and headers that hold them. It prints as `***`, whatever it is printed with.

use std::fmt;

use reqwest::header::{HeaderMap, HeaderValue};

use crate::model::reply::AttemptFailure;

/// Shorter values are not looked for in texts: they would hit innocent words.
pub(super) const SCRUBBED_BYTES_MIN: usize = 6;

/// What stands where a secret stood.
const MASK: &str = "***";

/// A secret text.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Takes the text; whitespace around it (the line end of a file) is no part of it.
    pub fn new(text: &str) -> Self {
        Self(text.trim().to_owned())
    }

    /// The text itself, for the one place that sends it.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// `text` without this secret.
    pub fn scrub(&self, text: &str) -> String {
        if self.0.len() < SCRUBBED_BYTES_MIN { text.to_owned() } else { text.replace(&self.0, MASK) }
    }
}

/// The same failure without any of these secrets: some servers repeat the key they were sent.
pub fn scrub_failure(failure: AttemptFailure, secrets: &[Secret]) -> AttemptFailure {
    let scrub = |text: String| secrets.iter().fold(text, |text, secret| secret.scrub(&text));
    AttemptFailure {
        message: scrub(failure.message),
        user_message: failure.user_message.map(scrub),
        upstream_code: failure.upstream_code.map(scrub),
        ..failure
    }
}

/// Takes these secrets out of headers of an answer that goes on to somebody else: a redirect repeats the query that it was asked with, and
/// with it a key that stands there.
pub(super) fn scrub_headers(headers: &mut HeaderMap, secrets: &[Secret]) {
    for value in headers.values_mut() {
        let Ok(text) = std::str::from_utf8(value.as_bytes()) else { continue };
        let scrubbed = secrets.iter().fold(text.to_owned(), |text, secret| secret.scrub(&text));
        if scrubbed != text {
            // What the mask stands in is a header's value as it was before.
            *value = HeaderValue::from_str(&scrubbed).unwrap_or_else(|_| HeaderValue::from_static(MASK));
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(MASK)
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(MASK)
    }
}

#[cfg(test)]
mod tests {
    use reqwest::header::LOCATION;

    use super::*;

    #[test]
    fn a_redirect_hands_no_key_on() {
        let secrets = [Secret::new("sk-abcdef"), Secret::new("sk%2Fabcdef")];
        for (said, want) in [
            ("https://there.example/x/?key=sk-abcdef&a=b", "https://there.example/x/?key=***&a=b"),
            ("/x/?a=b&key=sk%2Fabcdef", "/x/?a=b&key=***"),
            ("/x/?a=b", "/x/?a=b"),
        ] {
            let mut headers = HeaderMap::from_iter([(LOCATION, HeaderValue::from_str(said).unwrap())]);
            scrub_headers(&mut headers, &secrets);
            assert_eq!(headers[LOCATION], want);
        }
    }

    #[test]
    fn never_seen() {
        let secret = Secret::new("sk-abcdef\n");
        assert_eq!(format!("{secret} {secret:?} {:#?}", Some(&secret)), "*** *** Some(\n    ***,\n)");
        assert_eq!(secret.scrub("key sk-abcdef is wrong: sk-abcdef"), "key *** is wrong: ***");
        assert_eq!(secret.expose(), "sk-abcdef");
        assert_eq!(Secret::new("1").scrub("1 of 1"), "1 of 1");
        assert_eq!(Secret::new("").scrub("text"), "text");
    }
}
