//! What a vendor says of its own rate limits in the headers of an answer: how much is left, and when all of it is back. Only reads and
//! remembers the latest word; what follows from it, the runtime's budgets decide.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use reqwest::header::HeaderMap;
use tokio::time::Instant;

use super::client::ProviderClient;
use crate::policy::{
    retry_after::go_duration,
    tokens::told::{Left, VendorBudget},
};

/// For so long a word holds that names no end.
const RESET_ASSUMED: Duration = Duration::from_secs(5);

/// Headers that tell what is left of tokens, and when they are back. Where a vendor counts prompts and answers apart, the smaller holds.
const TOKENS: [(&str, &str); 4] = [
    ("x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"),
    ("anthropic-ratelimit-tokens-remaining", "anthropic-ratelimit-tokens-reset"),
    ("anthropic-ratelimit-input-tokens-remaining", "anthropic-ratelimit-input-tokens-reset"),
    ("anthropic-ratelimit-output-tokens-remaining", "anthropic-ratelimit-output-tokens-reset"),
];
/// The same of requests.
const REQUESTS: [(&str, &str); 2] = [
    ("x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"),
    ("anthropic-ratelimit-requests-remaining", "anthropic-ratelimit-requests-reset"),
];

/// How the names of all of them begin.
const VENDORS: [&str; 2] = ["x-ratelimit-", "anthropic-ratelimit-"];

/// A number of at least this many seconds is a date since 1970, of at least this many again one in milliseconds.
const DATE_SECONDS_MIN: f64 = 1e9;
const DATE_MILLISECONDS_MIN: f64 = 1e12;

/// The words of one vendor, by the model that each speaks of: as many as agents have models.
pub(super) type VendorWords = Mutex<HashMap<String, Arc<VendorWord>>>;

/// A vendor's latest word of one model.
#[derive(Debug, Default)]
pub(in crate::transport) struct VendorWord {
    /// Asked about before every call, and mostly false.
    is_new: AtomicBool,
    word: Mutex<Option<(VendorBudget, Instant)>>,
}

impl VendorWord {
    /// Remembers what an answer says, if it says anything.
    pub(super) fn hear(&self, headers: &HeaderMap) {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        if let Some(told) = read(headers, unix) {
            *self.word.lock().unwrap_or_else(PoisonError::into_inner) = Some((told, Instant::now()));
            self.is_new.store(true, Ordering::Release);
        }
    }

    /// What was said since it was asked last, with the time that has passed taken off.
    pub(in crate::transport) fn take(&self) -> Option<VendorBudget> {
        if !self.is_new.load(Ordering::Acquire) {
            return None;
        }
        let mut word = self.word.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_new.store(false, Ordering::Release);
        let (told, heard) = word.take()?;
        drop(word);
        let since = |left: Option<Left>| {
            let left = left?;
            let reset_in = left.reset_in.saturating_sub(heard.elapsed());
            (!reset_in.is_zero()).then_some(Left { reset_in, ..left })
        };
        let told = VendorBudget { tokens: since(told.tokens), requests: since(told.requests) };
        (told != VendorBudget::default()).then_some(told)
    }
}

impl ProviderClient {
    /// Where the provider's words of a model are kept: one place for all agents that have it.
    pub(in crate::transport) fn vendor_word(&self, model: &str) -> Arc<VendorWord> {
        let mut words = self.vendor.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(words.entry(model.to_owned()).or_default())
    }
}

fn read(headers: &HeaderMap, now_unix: Duration) -> Option<VendorBudget> {
    // Most answers say nothing of it.
    if !headers.keys().any(|name| VENDORS.iter().any(|vendor| name.as_str().starts_with(vendor))) {
        return None;
    }
    let text = |name: &str| headers.get(name)?.to_str().ok().map(str::trim);
    let told = |(remaining, reset): &(&str, &str)| {
        let remaining = text(remaining)?.parse::<u64>().ok()?;
        let named = text(reset).and_then(|reset| reset_in(reset, now_unix));
        // Where nothing is left and the time is not told, a refusal's own wait is that time.
        let named = named.or_else(|| if remaining == 0 { reset_in(text("retry-after")?, now_unix) } else { None });
        let reset_in = named.unwrap_or(RESET_ASSUMED);
        Some(Left { remaining, reset_in })
    };
    let least = |names: &[(&str, &str)]| names.iter().filter_map(told).min_by_key(|told| told.remaining);
    let said = VendorBudget { tokens: least(&TOKENS), requests: least(&REQUESTS) };
    (said != VendorBudget::default()).then_some(said)
}

/// A time to wait as such, or as a date.
fn reset_in(text: &str, now_unix: Duration) -> Option<Duration> {
    let number = || {
        let number = text.parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0)?;
        if number < DATE_SECONDS_MIN {
            return Some(Duration::from_secs_f64(number));
        }
        let seconds = if number < DATE_MILLISECONDS_MIN { number } else { number / 1_000.0 };
        Some(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX).saturating_sub(now_unix))
    };
    go_duration(text).or_else(number).or_else(|| {
        let then = text.parse::<jiff::Timestamp>().ok()?;
        let then = Duration::try_from(then.as_duration()).ok()?;
        Some(then.saturating_sub(now_unix))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use reqwest::header::{HeaderName, HeaderValue};

    use super::*;

    fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
        let line = |(name, value): &(&'static str, &str)| {
            (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
        };
        lines.iter().map(line).collect()
    }

    #[test]
    fn the_names_begin_as_is_looked_for() {
        for (left, reset) in TOKENS.iter().chain(&REQUESTS) {
            assert!([left, reset].iter().all(|name| VENDORS.iter().any(|vendor| name.starts_with(vendor))), "{left}");
        }
    }

    #[test]
    fn words_of_vendors() {
        // 2026-01-01T00:00:00Z
        let now = Duration::from_secs(1_767_225_600);
        for (lines, want) in [
            (vec![], (None, None)),
            (vec![("x-ratelimit-remaining-tokens", "149984")], (Some((149_984, 5_000)), None)),
            (
                vec![("x-ratelimit-remaining-tokens", "12"), ("x-ratelimit-reset-tokens", "6m0s")],
                (Some((12, 360_000)), None),
            ),
            (
                vec![("x-ratelimit-remaining-tokens", "12"), ("x-ratelimit-reset-tokens", "garbage")],
                (Some((12, 5_000)), None),
            ),
            (
                vec![("x-ratelimit-remaining-tokens", "7"), ("x-ratelimit-reset-tokens", "1.5")],
                (Some((7, 1_500)), None),
            ),
            (
                vec![("x-ratelimit-remaining-tokens", "7"), ("x-ratelimit-reset-tokens", "1767225630")],
                (Some((7, 30_000)), None),
            ),
            (
                vec![("x-ratelimit-remaining-tokens", "7"), ("x-ratelimit-reset-tokens", "1767225630000")],
                (Some((7, 30_000)), None),
            ),
            (
                vec![("x-ratelimit-remaining-tokens", "7"), ("x-ratelimit-reset-tokens", "1767225000")],
                (Some((7, 0)), None),
            ),
            (vec![("x-ratelimit-remaining-tokens", "7"), ("x-ratelimit-reset-tokens", "-3")], (Some((7, 5_000)), None)),
            (
                vec![("x-ratelimit-remaining-tokens", "7"), ("x-ratelimit-reset-tokens", "NaN")],
                (Some((7, 5_000)), None),
            ),
            (vec![("x-ratelimit-remaining-tokens", "0"), ("retry-after", "17")], (Some((0, 17_000)), None)),
            (vec![("x-ratelimit-remaining-tokens", "9"), ("retry-after", "17")], (Some((9, 5_000)), None)),
            (vec![("x-ratelimit-remaining-requests", "0"), ("retry-after", "17")], (None, Some((0, 17_000)))),
            (vec![("retry-after", "17")], (None, None)),
            (vec![("x-ratelimit-remaining-tokens", "-1")], (None, None)),
            (vec![("x-ratelimit-remaining-tokens", "many")], (None, None)),
            (
                vec![
                    ("x-ratelimit-remaining-tokens", "500"),
                    ("x-ratelimit-reset-tokens", "1s"),
                    ("x-ratelimit-remaining-requests", "0"),
                    ("x-ratelimit-reset-requests", "8.64s"),
                ],
                (Some((500, 1_000)), Some((0, 8_640))),
            ),
            (
                vec![("x-ratelimit-remaining-requests", "3"), ("x-ratelimit-reset-requests", "1s")],
                (None, Some((3, 1_000))),
            ),
            (
                vec![
                    ("anthropic-ratelimit-input-tokens-remaining", "40"),
                    ("anthropic-ratelimit-input-tokens-reset", "2026-01-01T00:00:30Z"),
                    ("anthropic-ratelimit-output-tokens-remaining", "8"),
                    ("anthropic-ratelimit-output-tokens-reset", "2026-01-01T00:00:10Z"),
                ],
                (Some((8, 10_000)), None),
            ),
            (
                vec![
                    ("anthropic-ratelimit-tokens-remaining", "7"),
                    ("anthropic-ratelimit-tokens-reset", "2025-12-31T23:59:00Z"),
                ],
                (Some((7, 0)), None),
            ),
        ] {
            let shown = |left: Option<Left>| left.map(|left| (left.remaining, left.reset_in.as_millis()));
            let said = read(&headers(&lines), now).unwrap_or_default();
            let told = (shown(said.tokens), shown(said.requests));
            assert_eq!(told, want, "{lines:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_word_is_taken_once_and_grows_old() {
        let word = VendorWord::default();
        let told = [("x-ratelimit-remaining-tokens", "12"), ("x-ratelimit-reset-tokens", "10s")];
        word.hear(&headers(&told));
        word.hear(&headers(&[("content-type", "text/plain")]));
        tokio::time::advance(Duration::from_secs(4)).await;
        assert_eq!(
            word.take(),
            Some(VendorBudget {
                tokens: Some(Left { remaining: 12, reset_in: Duration::from_secs(6) }),
                requests: None
            })
        );
        assert_eq!(word.take(), None);
        word.hear(&headers(&told));
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!(word.take(), None);
    }

    proptest! {
        #[test]
        fn no_header_panics(name in 0_usize..12, value in "[ -~]{0,40}") {
            let names = TOKENS.iter().chain(&REQUESTS).flat_map(|(left, reset)| [*left, *reset]).collect::<Vec<_>>();
            let lines = [(names[name % names.len()], value.as_str()), ("x-ratelimit-remaining-tokens", "5")];
            let _ = read(&headers(&lines), Duration::from_secs(1));
        }
    }
}
