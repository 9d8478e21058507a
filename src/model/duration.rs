//! Durations as text: a number and a unit, `"500ms"`, `"1.5s"`, `"1m30s"`. Exact to the nanosecond; no float is involved.
//! It never guesses a unit: a bare number, a sign or an exponent is refused.

use std::{fmt::Write as _, time::Duration};

/// The longest text of a duration, in bytes.
pub const DURATION_BYTES_MAX: usize = 64;

/// Digits after the point that still mean something in the largest unit and stay within 128 bits.
const FRACTION_DIGITS_MAX: usize = 12;

/// Units from large to small, in nanoseconds.
const UNITS: [(&str, u128); 4] =
    [("h", 3_600_000_000_000), ("m", 60_000_000_000), ("s", 1_000_000_000), ("ms", 1_000_000)];

/// Why a text is no duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{rule}")]
pub struct InvalidDuration {
    rule: &'static str,
}

impl InvalidDuration {
    /// The rule that the text breaks, as a sentence's end: "must be ...".
    pub fn rule(&self) -> &'static str {
        self.rule
    }
}

const NO_UNIT: InvalidDuration = InvalidDuration { rule: "must have a unit: ms, s, m or h, as in \"30s\"" };
const NO_NUMBER: InvalidDuration =
    InvalidDuration { rule: "must be a number and a unit, as in \"500ms\", \"30s\", \"1m30s\"" };
const NEGATIVE: InvalidDuration = InvalidDuration { rule: "must not be negative" };
const UNKNOWN_UNIT: InvalidDuration = InvalidDuration { rule: "must have the unit ms, s, m or h" };
const UNIT_ORDER: InvalidDuration = InvalidDuration { rule: "must name each unit once, from large to small" };
const TOO_FINE: InvalidDuration = InvalidDuration { rule: "must not be finer than a nanosecond" };
const TOO_LONG: InvalidDuration = InvalidDuration { rule: "must not be longer than can be counted" };

/// Reads a duration: one or more of number and unit (`h`, `m`, `s`, `ms`), from large to small, the number whole or decimal.
///
/// Spaces around are allowed, spaces inside, signs and exponents are not.
pub fn parse(text: &str) -> Result<Duration, InvalidDuration> {
    let mut rest = text.trim();
    if rest.len() > DURATION_BYTES_MAX {
        return Err(TOO_LONG);
    }
    if rest.starts_with('-') {
        return Err(NEGATIVE);
    }
    if rest.is_empty() {
        return Err(NO_NUMBER);
    }
    let mut nanoseconds: u128 = 0;
    let mut units = UNITS.iter();
    while !rest.is_empty() {
        let number_end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or(NO_UNIT)?;
        let (number, after) = rest.split_at(number_end);
        let unit_end = after.find(|c: char| !c.is_alphabetic()).unwrap_or(after.len());
        let (unit, after) = after.split_at(unit_end);
        if number.is_empty() {
            return Err(NO_NUMBER);
        }
        if !UNITS.iter().any(|(name, _)| *name == unit) {
            return Err(UNKNOWN_UNIT);
        }
        let (_, size) = units.find(|(name, _)| *name == unit).ok_or(UNIT_ORDER)?;
        nanoseconds = nanoseconds.checked_add(scaled(number, *size)?).ok_or(TOO_LONG)?;
        rest = after;
    }
    let seconds = u64::try_from(nanoseconds / 1_000_000_000).map_err(|_| TOO_LONG)?;
    let below = u32::try_from(nanoseconds % 1_000_000_000).map_err(|_| TOO_LONG)?;
    Ok(Duration::new(seconds, below))
}

/// `number` (digits, at most one point with digits on both sides) times `size`, exactly.
fn scaled(number: &str, size: u128) -> Result<u128, InvalidDuration> {
    let (whole, fraction) = match number.split_once('.') {
        Some((whole, fraction)) if !fraction.is_empty() && !fraction.contains('.') => (whole, fraction),
        Some(_) => return Err(NO_NUMBER),
        None => (number, ""),
    };
    if whole.is_empty() {
        return Err(NO_NUMBER);
    }
    let whole: u128 = whole.parse().map_err(|_| TOO_LONG)?;
    let fraction = fraction.trim_end_matches('0');
    if fraction.len() > FRACTION_DIGITS_MAX {
        return Err(TOO_FINE);
    }
    let mut part: u128 = 0;
    let mut divisor: u128 = 1;
    for digit in fraction.bytes() {
        part = part * 10 + u128::from(digit - b'0');
        divisor *= 10;
    }
    if !(part * size).is_multiple_of(divisor) {
        return Err(TOO_FINE);
    }
    whole.checked_mul(size).and_then(|large| large.checked_add(part * size / divisor)).ok_or(TOO_LONG)
}

/// Writes a duration as a person would: `"30s"`, `"1m30s"`, `"500ms"`, `"1.5s"`; [`parse`] reads it back exactly.
pub fn format(duration: Duration) -> String {
    let mut rest = duration.as_nanos();
    if rest == 0 {
        return "0s".to_owned();
    }
    let mut text = String::new();
    for (unit, size) in &UNITS[..2] {
        if rest >= *size {
            // proof of `let _`: writing to a String cannot fail.
            let _ = write!(text, "{}{unit}", rest / size);
            rest %= size;
        }
    }
    if rest > 0 {
        let (unit, size) = if rest >= UNITS[2].1 { UNITS[2] } else { UNITS[3] };
        text.push_str(&(rest / size).to_string());
        if !rest.is_multiple_of(size) {
            let digits = size.ilog10() as usize;
            let fraction = format!(".{:0digits$}", rest % size);
            text.push_str(fraction.trim_end_matches('0'));
        }
        text.push_str(unit);
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn accepted() {
        for (text, milliseconds) in [
            ("500ms", 500),
            ("30s", 30_000),
            ("2m", 120_000),
            ("1h", 3_600_000),
            ("1.5s", 1_500),
            ("0.25h", 900_000),
            ("1m30s", 90_000),
            ("1h0m1s", 3_601_000),
            ("0s", 0),
            (" 30s ", 30_000),
            ("007s", 7_000),
            ("1.500000000000000000000s", 1_500),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(milliseconds)), "{text:?}");
        }
    }

    #[test]
    fn refused() {
        for (text, error) in [
            ("", NO_NUMBER),
            ("   ", NO_NUMBER),
            ("30", NO_UNIT),
            ("1.5", NO_UNIT),
            ("s", NO_NUMBER),
            (".5s", NO_NUMBER),
            ("5.s", NO_NUMBER),
            ("1.2.3s", NO_NUMBER),
            ("-1s", NEGATIVE),
            ("-0s", NEGATIVE),
            ("+1s", NO_NUMBER),
            ("1e30s", UNKNOWN_UNIT),
            ("1e3", UNKNOWN_UNIT),
            ("1 s", UNKNOWN_UNIT),
            ("1S", UNKNOWN_UNIT),
            ("1d", UNKNOWN_UNIT),
            ("1초", UNKNOWN_UNIT),
            ("１s", NO_NUMBER),
            ("nan", NO_NUMBER),
            ("inf", NO_NUMBER),
            ("off", NO_NUMBER),
            ("30s1m", UNIT_ORDER),
            ("1s1s", UNIT_ORDER),
            ("1ms1s", UNIT_ORDER),
            ("0.0000000001s", TOO_FINE),
            ("0.0000000000001h", TOO_FINE),
            ("18446744073709551616s", TOO_LONG),
            ("99999999999999999999999999999999999999h", TOO_LONG),
            ("340282366920938463463374607431768211456s", TOO_LONG),
            (&format!("{}s", "1".repeat(70)), TOO_LONG),
        ] {
            assert_eq!(parse(text), Err(error), "{text:?}");
        }
    }

    #[test]
    fn written_as_a_person_would() {
        for (nanoseconds, text) in [
            (0, "0s"),
            (1, "0.000001ms"),
            (1_500_000, "1.5ms"),
            (500_000_000, "500ms"),
            (1_500_000_000, "1.5s"),
            (30_000_000_000, "30s"),
            (60_000_000_000, "1m"),
            (90_000_000_000, "1m30s"),
            (60_250_000_000, "1m250ms"),
            (5_400_000_000_000, "1h30m"),
            (3_601_000_000_000, "1h1s"),
        ] {
            assert_eq!(format(Duration::from_nanos(nanoseconds)), text);
        }
        assert_eq!(parse(&format(Duration::MAX)), Ok(Duration::MAX));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(seconds: u64, below in 0_u32..1_000_000_000) {
            let duration = Duration::new(seconds, below);
            prop_assert_eq!(parse(&format(duration)), Ok(duration));
        }

        #[test]
        fn no_text_panics(text in ".*") {
            let _ = parse(&text);
        }

        #[test]
        fn no_text_of_the_right_letters_panics(text in "[0-9.hms-]{0,70}") {
            if let Ok(duration) = parse(&text) {
                prop_assert_eq!(parse(&format(duration)), Ok(duration));
            }
        }
    }
}
