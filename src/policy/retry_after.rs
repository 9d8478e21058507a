//! Reads how long the other side asks us to stay away. Only reads: comparing with a cap, a deadline or the own back-off is the
//! retry plan's business. Whatever cannot be read is as if it had not been sent, so that garbage never shortens or lengthens a wait.

use std::time::{Duration, UNIX_EPOCH};

/// The longest time that is ever read; larger numbers saturate here. Over every cap that can be configured, yet far from overflow.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3_600);

/// No header value longer than this is looked at; the longest HTTP date has 33 bytes.
pub const RETRY_AFTER_BYTES_MAX: usize = 128;

/// How long the headers of an answer with this `status`, read at `now_unix_ms`, ask us to stay away.
///
/// `retry-after-ms` wins over `retry-after`; the reset times of a vendor's rate limits (the later of requests and tokens) are asked
/// only for a 429 that says neither. Zero for "now" and for dates that have passed: the caller's own back-off then holds.
pub fn read<'a>(
    headers: impl IntoIterator<Item = (&'a str, &'a [u8])>,
    status: u16,
    now_unix_ms: u64,
) -> Option<Duration> {
    let mut in_milliseconds = None;
    let mut in_seconds_or_date = None;
    let mut limits_reset: Option<Duration> = None;
    for (name, bytes) in headers {
        let Some(text) = readable(bytes) else { continue };
        if name.eq_ignore_ascii_case("retry-after-ms") {
            in_milliseconds = in_milliseconds.or_else(|| decimal(text, 1_000.0));
        } else if name.eq_ignore_ascii_case("retry-after") {
            in_seconds_or_date = in_seconds_or_date.or_else(|| whole_seconds(text)).or_else(|| date(text, now_unix_ms));
        } else if status == 429
            && (name.eq_ignore_ascii_case("x-ratelimit-reset-requests")
                || name.eq_ignore_ascii_case("x-ratelimit-reset-tokens"))
        {
            limits_reset = limits_reset.max(go_duration(text));
        }
    }
    in_milliseconds.or(in_seconds_or_date).or(limits_reset)
}

/// A number of seconds from a body, bounded as the headers are; `None` for what is no time to wait.
pub fn from_seconds(seconds: f64) -> Option<Duration> {
    let is_time = seconds.is_finite() && seconds >= 0.0;
    is_time.then(|| Duration::from_secs_f64(seconds.min(RETRY_AFTER_MAX.as_secs_f64())))
}

fn readable(bytes: &[u8]) -> Option<&str> {
    if bytes.len() > RETRY_AFTER_BYTES_MAX {
        return None;
    }
    let text = std::str::from_utf8(bytes).ok()?.trim();
    (text.is_ascii() && !text.is_empty()).then_some(text)
}

/// Digits with at most one fraction. Rust's own number parser also takes `inf`, `NaN`, `1e3` and signs, so the shape is checked first.
fn decimal(text: &str, units_per_second: f64) -> Option<Duration> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    if !is_digits(whole) || !is_digits(fraction) {
        return None;
    }
    // A run of digits too long for an f64 reads as infinity, which here means "very long", not "no number".
    let units: f64 = text.parse().ok()?;
    from_seconds((units / units_per_second).min(RETRY_AFTER_MAX.as_secs_f64()))
}

/// The header counts whole seconds; a sender that writes a fraction all the same is never asked again too early.
fn whole_seconds(text: &str) -> Option<Duration> {
    let asked = decimal(text, 1.0)?;
    from_seconds(asked.as_secs_f64().ceil())
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn date(text: &str, now_unix_ms: u64) -> Option<Duration> {
    let moment = httpdate::parse_http_date(text).ok()?.duration_since(UNIX_EPOCH).ok()?;
    Some(moment.saturating_sub(Duration::from_millis(now_unix_ms)).min(RETRY_AFTER_MAX))
}

/// A duration as Go prints it: `6m0s`, `12ms`, `1h2m3.5s`.
pub fn go_duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut rest = text;
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let number_end = rest.find(|letter: char| !letter.is_ascii_digit() && letter != '.')?;
        let (number, behind) = rest.split_at(number_end);
        let unit_end = behind.find(|letter: char| letter.is_ascii_digit() || letter == '.').unwrap_or(behind.len());
        let (unit, next) = behind.split_at(unit_end);
        let units_per_second = match unit {
            "h" => 1.0 / 3_600.0,
            "m" => 1.0 / 60.0,
            "s" => 1.0,
            "ms" => 1e3,
            "us" => 1e6,
            "ns" => 1e9,
            _ => return None,
        };
        seconds += decimal(number, units_per_second)?.as_secs_f64();
        rest = next;
    }
    from_seconds(seconds)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    /// Wed, 21 Oct 2026 07:28:00 GMT.
    const NOW_UNIX_MS: u64 = 1_792_567_680_000;

    fn check(headers: &[(&str, &str)], status: u16, want: Option<Duration>) {
        let given: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
        assert_eq!(read(given, status, NOW_UNIX_MS), want, "{headers:?} with {status}");
    }

    #[test]
    fn values() {
        let seconds = |seconds: f64| Some(Duration::from_secs_f64(seconds));
        for (value, want) in [
            ("120", seconds(120.0)),
            ("0", seconds(0.0)),
            ("00012", seconds(12.0)),
            ("1.5", seconds(2.0)),
            ("0.2", seconds(1.0)),
            ("0.0", seconds(0.0)),
            (" 7\t", seconds(7.0)),
            ("999999999999999999999", Some(RETRY_AFTER_MAX)),
            (&"9".repeat(120), Some(RETRY_AFTER_MAX)),
            (&"9".repeat(500), None),
            ("Wed, 21 Oct 2026 07:29:30 GMT", seconds(90.0)),
            ("Wednesday, 21-Oct-26 07:29:00 GMT", seconds(60.0)),
            ("Wed Oct 21 07:29:00 2026", seconds(60.0)),
            ("Wed, 21 Oct 2026 07:00:00 GMT", seconds(0.0)),
            ("Thu, 01 Jan 1970 00:00:00 GMT", seconds(0.0)),
            ("Fri, 31 Dec 99999 23:59:59 GMT", None),
            ("Wed, 21 Oct 2026 07:29:30 +0100", None),
            ("-5", None),
            ("+5", None),
            ("-0", None),
            ("1e3", None),
            ("0x10", None),
            ("1_000", None),
            (".5", None),
            ("5.", None),
            ("1.2.3", None),
            ("1,5", None),
            ("１２", None),
            ("5s", None),
            ("NaN", None),
            ("inf", None),
            ("infinity", None),
            ("soon", None),
            ("", None),
            ("   ", None),
        ] {
            check(&[("Retry-After", value)], 503, want);
        }
    }

    #[test]
    fn which_header_wins() {
        let ms = |ms| Some(Duration::from_millis(ms));
        for (headers, status, want) in [
            (&[("retry-after-ms", "1500")][..], 503, ms(1_500)),
            (&[("retry-after", "9"), ("retry-after-ms", "1500")], 503, ms(1_500)),
            (&[("retry-after", "9"), ("retry-after-ms", "soon")], 503, ms(9_000)),
            (&[("retry-after", "later"), ("retry-after", "4")], 503, ms(4_000)),
            (&[("x-ratelimit-reset-tokens", "6m0s")], 429, ms(360_000)),
            (&[("x-ratelimit-reset-tokens", "6m0s")], 503, None),
            (&[("x-ratelimit-reset-tokens", "6m0s"), ("retry-after", "2")], 429, ms(2_000)),
            (&[("x-ratelimit-reset-tokens", "6m0s"), ("retry-after", "?")], 429, ms(360_000)),
            (&[("x-ratelimit-reset-requests", "12ms"), ("x-ratelimit-reset-tokens", "1.2s")], 429, ms(1_200)),
            (&[("x-ratelimit-reset-requests", "1h0m0.5s"), ("x-ratelimit-reset-tokens", "x")], 429, ms(3_600_500)),
            (&[("x-ratelimit-reset-requests", "0")], 429, ms(0)),
            (&[("x-ratelimit-reset-requests", "5")], 429, None),
            (&[("x-ratelimit-reset-requests", "-5s")], 429, None),
            (&[("x-ratelimit-reset-requests", "s")], 429, None),
            (&[("content-type", "5")], 429, None),
        ] {
            check(headers, status, want);
        }
    }

    #[test]
    fn seconds_of_a_body() {
        for (seconds, want) in [
            (21.4, Some(Duration::from_secs_f64(21.4))),
            (0.0, Some(Duration::ZERO)),
            (1e300, Some(RETRY_AFTER_MAX)),
            (-1.0, None),
            (f64::NAN, None),
            (f64::INFINITY, None),
        ] {
            assert_eq!(from_seconds(seconds), want, "{seconds}");
        }
    }

    fn shared(path: &str) -> Option<String> {
        let beside = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../shared"));
        let folder = std::env::var_os("WATERTIGHT_SHARED").map_or(beside, PathBuf::from);
        let text = std::fs::read_to_string(folder.join(path)).ok();
        if text.is_none() {
            println!("skipped: no shared folder with {path}");
        }
        text
    }

    /// The case of record: what its words mean for the reading, without the plan that compares with the cap.
    #[test]
    fn the_case_of_retry_after_headers() {
        let Some(lines) = shared("cases/B36/headers.jsonl") else { return };
        let expected: Value = serde_json::from_str(&shared("cases/B36/expected.json").unwrap()).unwrap();
        let cap = Duration::from_secs(300);
        for line in lines.lines() {
            let case: Value = serde_json::from_str(line).unwrap();
            let id = case["id"].as_str().unwrap();
            let want = &expected["assert"].as_array().unwrap().iter().find(|want| want["id"] == id).unwrap()["wait_s"];
            let headers: Vec<(&str, &[u8])> = case["headers"]
                .as_object()
                .unwrap()
                .iter()
                .map(|(name, value)| (name.as_str(), value.as_str().unwrap().as_bytes()))
                .collect();
            let got = read(headers, 429, NOW_UNIX_MS);
            match (id, want.as_f64()) {
                (_, Some(seconds)) => assert_eq!(got, Some(Duration::from_secs_f64(seconds)), "{id}"),
                ("h03" | "h13", None) => assert_eq!(got, Some(Duration::ZERO), "{id}"),
                ("h06", None) => assert_eq!(got, Some(RETRY_AFTER_MAX), "{id}"),
                ("h12", None) => assert!(got == Some(Duration::from_secs(360)) && got > Some(cap), "{id}"),
                ("h18", None) => assert!(got == Some(Duration::from_secs(10_800)) && got > Some(cap), "{id}"),
                ("h19", None) => assert_eq!(got, Some(Duration::from_millis(1_200)), "{id}"),
                (_, None) => {
                    assert_eq!(want, "own backoff", "{id}: a row that this test does not know");
                    assert_eq!(got, None, "{id}");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic_or_exceed_the_bound(value in prop::collection::vec(any::<u8>(), 0..40), now: u64, status: u16) {
            for name in ["retry-after", "retry-after-ms", "x-ratelimit-reset-tokens"] {
                let read = read([(name, value.as_slice())], status, now);
                prop_assert!(read.is_none_or(|wait| wait <= RETRY_AFTER_MAX));
            }
        }

        #[test]
        fn nothing_like_a_date_panics(text in "[A-Z][a-z]{2}(day)?, [0-9]{2}[ -][A-Z][a-z]{2}[ -][0-9]{2,5} [0-9]{2}:[0-9]{2}:[0-9]{2} GMT") {
            let _ = read([("retry-after", text.as_bytes())], 503, NOW_UNIX_MS);
        }

        #[test]
        fn nothing_like_a_go_duration_panics(text in "([0-9.]{1,25}(h|m|s|ms|us|ns|x)){1,4}") {
            let read = read([("x-ratelimit-reset-tokens", text.as_bytes())], 429, NOW_UNIX_MS);
            prop_assert!(read.is_none_or(|wait| wait <= RETRY_AFTER_MAX));
        }
    }
}
