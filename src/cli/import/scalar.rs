//! Single values of other tools' files: numbers that are texts, percents, durations in their many spellings. An error is the end of a
//! sentence about the value; nothing is guessed.

use std::time::Duration;

use super::yaml::{Node, Value};

/// No duration of the configuration is longer than this.
pub(super) const DURATION_MAX: Duration = Duration::from_secs(7 * 24 * 3_600);

/// What a bare number of a duration means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BareUnit {
    Milliseconds,
    Seconds,
}

/// A text, or a scalar written as one.
pub(super) fn text(node: &Node) -> Result<String, String> {
    match &node.value {
        Value::Text(text) => Ok(text.trim().to_owned()),
        Value::Whole(number) => Ok(number.to_string()),
        Value::Number(number) => Ok(number.to_string()),
        Value::Boolean(truth) => Ok(truth.to_string()),
        Value::Null => Err("has no value".to_owned()),
        Value::List(_) | Value::Table(_) => Err("must be a single value".to_owned()),
    }
}

/// True or false, also as text.
pub(super) fn truth(node: &Node) -> Result<bool, String> {
    match text(node)?.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" => Ok(true),
        "false" | "no" | "off" => Ok(false),
        _ => Err("is neither true nor false".to_owned()),
    }
}

/// A number, also as text, never infinite.
pub(super) fn number(node: &Node) -> Result<f64, String> {
    let text = text(node)?.replace('_', "");
    text.parse().ok().filter(|number: &f64| number.is_finite()).ok_or_else(|| "is no number".to_owned())
}

/// A whole number of at least 0, also as text or as `20.0`.
pub(super) fn whole(node: &Node) -> Result<u64, String> {
    let text = text(node)?.replace('_', "");
    let text = text.strip_suffix(".0").unwrap_or(&text);
    text.parse().map_err(|_| "is no whole number of at least 0".to_owned())
}

/// A percentage (`50`, `"50.0"`, `"50%"`) as a share.
pub(super) fn share_of_percent(node: &Node) -> Result<f64, String> {
    let text = text(node)?;
    let percent: f64 = text.trim_end_matches('%').trim().parse().map_err(|_| "is no percentage".to_owned())?;
    if percent > 0.0 && percent <= 100.0 {
        // Hundredths of a percent, so that 33.3 becomes 0.333 and not 0.33299999999999996.
        let share = (percent * 10_000.0).round() / 1_000_000.0;
        return Ok(share.max(0.000_001));
    }
    Err("must be over 0 and up to 100 percent".to_owned())
}

/// A duration: a bare number in `bare` units, a number with a unit, or ISO 8601 (`PT1M30S`).
pub(super) fn duration(node: &Node, bare: BareUnit) -> Result<Duration, String> {
    let text = text(node)?;
    let lower = text.to_ascii_lowercase();
    let seconds = if let Some(iso) = lower.strip_prefix('p') {
        iso_seconds(iso)
    } else {
        let unit_begins = lower.find(|c: char| c.is_ascii_alphabetic() && c != 'e').unwrap_or(lower.len());
        let (amount, unit) = lower.split_at(unit_begins);
        amount.trim().parse::<f64>().ok().zip(unit_seconds(unit.trim(), bare)).map(|(amount, unit)| amount * unit)
    };
    let seconds = seconds.filter(|seconds| seconds.is_finite()).ok_or_else(|| "is no duration".to_owned())?;
    if seconds < 0.0 {
        return Err("must not be negative".to_owned());
    }
    if seconds > DURATION_MAX.as_secs_f64() {
        return Err("is longer than the 7 days that are allowed here".to_owned());
    }
    // Microseconds: finer than any of these tools measure, and free of the noise of decimal fractions.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 7 days, checked above")]
    Ok(Duration::from_micros((seconds * 1e6).round() as u64))
}

fn unit_seconds(unit: &str, bare: BareUnit) -> Option<f64> {
    Some(match (unit, bare) {
        ("", BareUnit::Milliseconds) | ("ms", _) => 0.001,
        ("", BareUnit::Seconds) | ("s", _) => 1.0,
        ("ns", _) => 1e-9,
        ("us", _) => 1e-6,
        ("m", _) => 60.0,
        ("h", _) => 3_600.0,
        ("d", _) => 86_400.0,
        _ => return None,
    })
}

/// The seconds of what follows an ISO 8601 duration's `P`, in lower case. Months and years have no fixed length and are refused.
fn iso_seconds(text: &str) -> Option<f64> {
    let (days, time) = text.split_once('t').map_or((text, None), |(days, time)| (days, Some(time)));
    let mut seconds = 0.0;
    let mut parts = 0;
    for (part, units) in [(days, [("d", 86_400.0)].as_slice()), (time.unwrap_or_default(), &ISO_TIME_UNITS)] {
        let mut rest = part;
        while !rest.is_empty() {
            let end = rest.find(|c: char| c.is_ascii_alphabetic())?;
            let (amount, after) = rest.split_at(end);
            let (_, size) = units.iter().find(|(unit, _)| after.starts_with(unit))?;
            seconds += amount.parse::<f64>().ok()? * size;
            rest = &after[1..];
            parts += 1;
        }
    }
    (parts > 0).then_some(seconds)
}

const ISO_TIME_UNITS: [(&str, f64); 3] = [("h", 3_600.0), ("m", 60.0), ("s", 1.0)];

/// What is called slow where an attempt ends before it could be: so little less than its whole time that only those are slow which run out
/// of it, and those fail anyway.
pub(super) fn nearly_all(of: Duration) -> Duration {
    of.mul_f64(0.99)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(text: &str) -> Node {
        Node { value: Value::Text(text.to_owned()), line: 1 }
    }

    #[test]
    fn durations() {
        for (text, milliseconds) in [
            ("500", Some(500)),
            ("500ms", Some(500)),
            ("10s", Some(10_000)),
            ("10 s", Some(10_000)),
            ("1.5s", Some(1_500)),
            ("2m", Some(120_000)),
            ("1h", Some(3_600_000)),
            ("1d", Some(86_400_000)),
            ("PT30S", Some(30_000)),
            ("pt1m30s", Some(90_000)),
            ("P1DT1H", Some(90_000_000)),
            ("PT0.5S", Some(500)),
            ("P", None),
            ("PT", None),
            ("P1M", None),
            ("10x", None),
            ("s", None),
            ("", None),
            ("-1s", None),
            ("8d", None),
            ("1e999", None),
            ("nan", None),
            ("P\u{e9}", None),
            ("10\u{e9}", None),
        ] {
            let read = duration(&node(text), BareUnit::Milliseconds).ok();
            assert_eq!(read, milliseconds.map(Duration::from_millis), "{text}");
        }
        assert_eq!(duration(&node("1.5"), BareUnit::Seconds), Ok(Duration::from_millis(1_500)));
    }

    #[test]
    fn percents_and_numbers() {
        for (text, share) in [
            ("50", Some(0.5)),
            ("50.0", Some(0.5)),
            ("50%", Some(0.5)),
            ("33.3", Some(0.333)),
            ("100", Some(1.0)),
            ("0.0000001", Some(0.000_001)),
            ("0", None),
            ("101", None),
            ("half", None),
            ("nan", None),
        ] {
            assert_eq!(share_of_percent(&node(text)).ok(), share, "{text}");
        }
        for (text, read) in [("20", Some(20)), ("1_000", Some(1_000)), ("20.0", Some(20)), ("-1", None), ("2.5", None)]
        {
            assert_eq!(whole(&node(text)).ok(), read, "{text}");
        }
        assert_eq!((truth(&node("True")), truth(&node("0")).is_err()), (Ok(true), true));
        assert_eq!(number(&node("inf")).ok(), None);
    }
}
