//! What a request says of itself beside its content: trace context and the language of its screen.

use std::convert::Infallible;

use axum::{
    extract::FromRequestParts,
    http::{HeaderMap, header, request::Parts},
};

use crate::{
    model::{contract, envelope::Envelope, language::Language},
    serve::state::AppState,
};

/// Facts of one request; in its extensions from the outermost layer on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestFacts {
    /// For finding it in traces and logs: 32 hexadecimal digits.
    pub trace_id: String,
    /// W3C trace context: the caller's, else one of our own.
    pub traceparent: String,
    /// The language of its screen.
    pub language: Language,
}

impl RequestFacts {
    /// Reads the headers. A trace context that breaks the standard is replaced; where no language that we know is asked for, it is
    /// the usual one.
    pub fn of(headers: &HeaderMap, usual: Language) -> Self {
        let given =
            headers.get(contract::TRACEPARENT).and_then(|value| value.to_str().ok()).filter(|text| is_trace(text));
        let traceparent = given.map_or_else(fresh_trace, str::to_owned);
        let trace_id = contract::trace_id_of(Some(&traceparent)).unwrap_or_default();
        let language = headers.get(header::ACCEPT_LANGUAGE).and_then(|value| value.to_str().ok());
        Self { trace_id, traceparent, language: language.and_then(language_of).unwrap_or(usual) }
    }

    /// An envelope as this request is to see it: in its language, and with its trace.
    #[must_use]
    pub fn dressed(&self, envelope: Envelope) -> Envelope {
        let mut envelope = envelope.in_language(self.language);
        envelope.trace_id.get_or_insert_with(|| self.trace_id.clone());
        envelope
    }
}

/// The language of a request's screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Screen(pub Language);

impl FromRequestParts<AppState> for Screen {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, Infallible> {
        let known = parts.extensions.get::<RequestFacts>().map(|facts| facts.language);
        Ok(Self(known.unwrap_or_else(|| RequestFacts::of(&parts.headers, state.language).language)))
    }
}

/// `00-<32 hex>-<16 hex>-<2 hex>`, neither id all zeros.
fn is_trace(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let hex = |part: &str, length: usize| {
        part.len() == length && part.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
    };
    let live = |part: &str| part.bytes().any(|byte| byte != b'0');
    matches!(parts[..], ["00", trace, span, flags] if hex(trace, 32) && hex(span, 16) && hex(flags, 2) && live(trace) && live(span))
}

fn fresh_trace() -> String {
    let trace = u128::from(fastrand::u64(..)) << 64 | u128::from(fastrand::u64(1..));
    format!("00-{trace:032x}-{:016x}-00", fastrand::u64(1..))
}

/// The better liked of the two languages that we know.
fn language_of(accepted: &str) -> Option<Language> {
    let mut best = (0.0_f32, None);
    for entry in accepted.split(',').take(32) {
        let mut parts = entry.split(';');
        let tag = parts.next().unwrap_or_default().trim().to_ascii_lowercase();
        let weight = parts.find_map(|part| part.trim().strip_prefix("q=")?.parse::<f32>().ok()).unwrap_or(1.0);
        let language = match tag.split('-').next() {
            Some("ko") => Language::Ko,
            Some("en") => Language::En,
            _ => continue,
        };
        if weight > best.0 {
            best = (weight, Some(language));
        }
    }
    best.1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn languages() {
        for (accepted, language) in [
            ("ko", Some(Language::Ko)),
            ("ko-KR,ko;q=0.9,en;q=0.8", Some(Language::Ko)),
            ("en-US,en;q=0.9,ko;q=0.8", Some(Language::En)),
            ("fr,ko;q=0.2", Some(Language::Ko)),
            ("fr", None),
            ("ko;q=0", None),
            ("", None),
        ] {
            assert_eq!(language_of(accepted), language, "{accepted}");
        }
    }

    #[test]
    fn traces() {
        let good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let of = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("traceparent", text.parse().unwrap());
            RequestFacts::of(&headers, Language::Ko)
        };
        assert_eq!(of(good).traceparent, good);
        assert_eq!(of(good).language, Language::Ko, "the usual one");
        assert_eq!(of(good).trace_id, "0af7651916cd43dd8448eb211c80319c");
        for bad in ["", "00-0-0-0", "garbage", &good.replace("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32))] {
            let facts = of(bad);
            assert!(facts.traceparent != bad && is_trace(&facts.traceparent), "{bad}");
        }
    }
}
