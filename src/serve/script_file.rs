//! Reads a script of illnesses from TOML. Every refusal names the file, the line, the key, its value and the rule.

use std::time::Duration;

use serde::Deserialize;
use serde_spanned::Spanned;

use crate::policy::chance::Chance;

use super::script::{Illness, Phase, PhaseLength, Script, ScriptEnding};

/// The most phases of a script.
pub const PHASES_MAX: usize = 1_000;
/// The most bytes of a script.
pub const SCRIPT_BYTES_MAX: usize = 1024 * 1024;
/// No time in a script is longer.
pub const SCRIPT_TIME_MAX: Duration = Duration::from_secs(24 * 3_600);

const ERROR_STATUS: u16 = 503;
const CLIENT_ERROR_STATUS: u16 = 404;
const RETRY_AFTER_SECONDS: u64 = 1;

/// A script that cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {key} = {value}: {rule}")]
pub struct InvalidScript {
    file: String,
    line: usize,
    key: String,
    value: String,
    rule: String,
}

impl InvalidScript {
    /// The line in the file, from 1.
    pub fn line(&self) -> usize {
        self.line
    }

    /// The key, as in the file.
    pub fn key(&self) -> &str {
        &self.key
    }
}

/// Reads the script `text` of the file named `file`.
pub fn read_script(file: &str, text: &str) -> Result<Script, InvalidScript> {
    let source = Source { file, text };
    if text.len() > SCRIPT_BYTES_MAX {
        return Err(source.refuse(0, "(file)", format!("{} bytes", text.len()), "is too large"));
    }
    let raw: RawScript = toml::from_str(text).map_err(|error| source.refuse_toml(&error))?;
    let ending = if raw.repeat { ScriptEnding::Repeat } else { ScriptEnding::Stay };
    let count = raw.phase.len();
    if count == 0 || count > PHASES_MAX {
        return Err(source.refuse(0, "phase", count, "a script has 1 to 1000 phases"));
    }
    let mut phases = Vec::with_capacity(count);
    for (index, phase) in raw.phase.iter().enumerate() {
        let may_be_endless = index + 1 == count && ending == ScriptEnding::Stay;
        phases.push(source.phase(phase, if may_be_endless { Place::Last } else { Place::Followed })?);
    }
    Ok(Script { chance: Chance::from_seed(raw.seed), phases, ending })
}

/// Whether another phase comes after one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Last,
    Followed,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawScript {
    #[serde(default)]
    seed: u64,
    #[serde(default)]
    repeat: bool,
    #[serde(default)]
    phase: Vec<Spanned<RawPhase>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPhase {
    calls: Option<Spanned<u64>>,
    #[serde(rename = "for")]
    time: Option<Spanned<String>>,
    latency: Option<Spanned<toml::Value>>,
    error_share: Option<Spanned<f64>>,
    error_status: Option<Spanned<u16>>,
    client_error_share: Option<Spanned<f64>>,
    client_error_status: Option<Spanned<u16>>,
    rate_limit_share: Option<Spanned<f64>>,
    retry_after: Option<Spanned<u64>>,
    hang_share: Option<Spanned<f64>>,
    cut_share: Option<Spanned<f64>>,
    garbage_share: Option<Spanned<f64>>,
}

struct Source<'a> {
    file: &'a str,
    text: &'a str,
}

impl Source<'_> {
    fn refuse(&self, at: usize, key: &str, value: impl std::fmt::Display, rule: impl Into<String>) -> InvalidScript {
        let line = self.text.get(..at).unwrap_or_default().matches('\n').count() + 1;
        InvalidScript {
            file: self.file.to_owned(),
            line,
            key: key.to_owned(),
            value: value.to_string(),
            rule: rule.into(),
        }
    }

    /// What TOML or serde refuse names a place; key and value are read from the line there.
    fn refuse_toml(&self, error: &toml::de::Error) -> InvalidScript {
        let at = error.span().map_or(0, |span| span.start);
        let line_start = self.text.get(..at).and_then(|before| before.rfind('\n')).map_or(0, |end| end + 1);
        let line = self.text.get(line_start..).and_then(|rest| rest.lines().next()).unwrap_or_default();
        let (key, value) = line.split_once('=').unwrap_or((line, "(nothing)"));
        self.refuse(at, key.trim(), value.trim(), error.message())
    }

    fn phase(&self, spanned: &Spanned<RawPhase>, place: Place) -> Result<Phase, InvalidScript> {
        let raw = spanned.get_ref();
        let (latency_min, latency_max) = self.latency(raw.latency.as_ref())?;
        let error = Illness::Error { status: self.status("error_status", raw.error_status.as_ref(), ERROR_STATUS)? };
        let client_error = Illness::ClientError {
            status: self.status("client_error_status", raw.client_error_status.as_ref(), CLIENT_ERROR_STATUS)?,
        };
        let rate_limit = Illness::RateLimit { retry_after: self.retry_after(raw.retry_after.as_ref())? };
        let mut shares = Vec::new();
        let mut sum = 0.0;
        for (key, share, illness) in [
            ("error_share", &raw.error_share, error),
            ("client_error_share", &raw.client_error_share, client_error),
            ("rate_limit_share", &raw.rate_limit_share, rate_limit),
            ("hang_share", &raw.hang_share, Illness::Hang),
            ("cut_share", &raw.cut_share, Illness::Cut),
            ("garbage_share", &raw.garbage_share, Illness::Garbage),
        ] {
            let Some(spanned_share) = share else { continue };
            let share = *spanned_share.get_ref();
            sum += share;
            if !(0.0..=1.0).contains(&share) {
                return Err(self.refuse(spanned_share.span().start, key, share, "must be a share from 0 to 1"));
            }
            // Shares like 0.7 and 0.3 do not add up to 1 exactly.
            if sum > 1.0 + 1e-9 {
                return Err(self.refuse(spanned_share.span().start, key, share, "all shares of a phase are at most 1"));
            }
            shares.push((share, illness));
        }
        let length = self.length(spanned, place)?;
        Ok(Phase { length, latency_min, latency_max, shares })
    }

    fn length(&self, spanned: &Spanned<RawPhase>, place: Place) -> Result<PhaseLength, InvalidScript> {
        let raw = spanned.get_ref();
        match (&raw.calls, &raw.time) {
            (Some(calls), None) if *calls.get_ref() > 0 => Ok(PhaseLength::Calls(*calls.get_ref())),
            (Some(calls), None) => Err(self.refuse(calls.span().start, "calls", calls.get_ref(), "must be at least 1")),
            (None, Some(text)) => {
                let time = self.time("for", text.span().start, text.get_ref())?;
                if time < Duration::from_millis(10) {
                    return Err(self.refuse(text.span().start, "for", text.get_ref(), "must be at least 10ms"));
                }
                Ok(PhaseLength::Time(time))
            }
            (Some(_), Some(text)) => {
                Err(self.refuse(text.span().start, "for", text.get_ref(), "a phase has `calls` or `for`, not both"))
            }
            (None, None) if place == Place::Last => Ok(PhaseLength::Endless),
            (None, None) => {
                let rule = "a phase that another one follows needs `calls` or `for`";
                Err(self.refuse(spanned.span().start, "phase", "(no length)", rule))
            }
        }
    }

    fn latency(&self, latency: Option<&Spanned<toml::Value>>) -> Result<(Duration, Duration), InvalidScript> {
        let Some(spanned) = latency else { return Ok((Duration::ZERO, Duration::ZERO)) };
        let at = spanned.span().start;
        let refused = || {
            let rule = "must be a time (\"20ms\") or two of them, the shorter first ([\"20ms\", \"80ms\"])";
            self.refuse(at, "latency", spanned.get_ref(), rule)
        };
        match spanned.get_ref() {
            toml::Value::String(text) => self.time("latency", at, text).map(|time| (time, time)),
            toml::Value::Array(texts) => {
                let [toml::Value::String(min), toml::Value::String(max)] = texts.as_slice() else {
                    return Err(refused());
                };
                let (min, max) = (self.time("latency", at, min)?, self.time("latency", at, max)?);
                if min > max { Err(refused()) } else { Ok((min, max)) }
            }
            _ => Err(refused()),
        }
    }

    fn status(&self, key: &str, status: Option<&Spanned<u16>>, default: u16) -> Result<u16, InvalidScript> {
        let Some(spanned) = status else { return Ok(default) };
        let hundred = default / 100 * 100;
        let value = *spanned.get_ref();
        if (hundred..hundred + 100).contains(&value) {
            return Ok(value);
        }
        Err(self.refuse(spanned.span().start, key, value, format!("must be from {hundred} to {}", hundred + 99)))
    }

    fn retry_after(&self, seconds: Option<&Spanned<u64>>) -> Result<Duration, InvalidScript> {
        let Some(spanned) = seconds else { return Ok(Duration::from_secs(RETRY_AFTER_SECONDS)) };
        let time = Duration::from_secs(*spanned.get_ref());
        if time <= SCRIPT_TIME_MAX {
            return Ok(time);
        }
        Err(self.refuse(spanned.span().start, "retry_after", spanned.get_ref(), "must be at most 86400 seconds"))
    }

    fn time(&self, key: &str, at: usize, text: &str) -> Result<Duration, InvalidScript> {
        time_of(text).filter(|time| *time <= SCRIPT_TIME_MAX).ok_or_else(|| {
            self.refuse(at, key, format!("{text:?}"), "must be a time with its unit (ms, s, m, h), at most 24h")
        })
    }
}

/// `20ms`, `1.5s`, `2m`, `1h`.
fn time_of(text: &str) -> Option<Duration> {
    let unit_start = text.find(|letter: char| letter.is_ascii_alphabetic())?;
    let (number, unit) = text.split_at(unit_start);
    let seconds_per_unit = match unit {
        "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3_600.0,
        _ => return None,
    };
    let is_plain = number.starts_with(|letter: char| letter.is_ascii_digit())
        && number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let amount: f64 = is_plain.then(|| number.parse().ok())??;
    Duration::try_from_secs_f64(amount * seconds_per_unit).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WHOLE: &str = r#"
seed = 7
repeat = false
[[phase]]
calls = 20
latency = "20ms"
[[phase]]
for = "10s"
latency = ["20ms", "80ms"]
error_share = 0.5
error_status = 502
client_error_share = 0.1
client_error_status = 422
rate_limit_share = 0.1
retry_after = 3
hang_share = 0.1
cut_share = 0.1
garbage_share = 0.1
[[phase]]
error_share = 1
"#;

    #[test]
    fn a_whole_script() {
        let script = read_script("ill.toml", WHOLE).unwrap();
        assert_eq!((script.chance.seed(), script.ending, script.phases.len()), (7, ScriptEnding::Stay, 3));
        let ms = Duration::from_millis;
        let first =
            Phase { length: PhaseLength::Calls(20), latency_min: ms(20), latency_max: ms(20), shares: Vec::new() };
        let second = Phase {
            length: PhaseLength::Time(ms(10_000)),
            latency_min: ms(20),
            latency_max: ms(80),
            shares: vec![
                (0.5, Illness::Error { status: 502 }),
                (0.1, Illness::ClientError { status: 422 }),
                (0.1, Illness::RateLimit { retry_after: ms(3_000) }),
                (0.1, Illness::Hang),
                (0.1, Illness::Cut),
                (0.1, Illness::Garbage),
            ],
        };
        let third = Phase { shares: vec![(1.0, Illness::Error { status: 503 })], ..Phase::default() };
        assert_eq!(script.phases, [first, second, third]);
    }

    #[test]
    fn refused() {
        for (text, line, key) in [
            ("", 1, "phase"),
            ("sed = 7\n", 1, "sed"),
            ("seed = -1\n", 1, "seed"),
            ("seed = 7\n[[phase]]\nerror_shares = 1\n", 3, "error_shares"),
            ("[[phase]]\nerror_share = 1.5\n", 2, "error_share"),
            ("[[phase]]\nerror_share = nan\n", 2, "error_share"),
            ("[[phase]]\nerror_share = \"half\"\n", 2, "error_share"),
            ("[[phase]]\nerror_share = 0.6\nhang_share = 0.6\n", 3, "hang_share"),
            ("[[phase]]\nerror_status = 404\n", 2, "error_status"),
            ("[[phase]]\nclient_error_status = 503\n", 2, "client_error_status"),
            ("[[phase]]\ncalls = 0\n", 2, "calls"),
            ("[[phase]]\ncalls = 1\nfor = \"1s\"\n", 3, "for"),
            ("[[phase]]\nfor = \"10\"\n", 2, "for"),
            ("[[phase]]\nfor = \"1ms\"\n", 2, "for"),
            ("[[phase]]\nfor = \"25h\"\n", 2, "for"),
            ("[[phase]]\nlatency = 20\n", 2, "latency"),
            ("[[phase]]\nlatency = [\"80ms\", \"20ms\"]\n", 2, "latency"),
            ("[[phase]]\nlatency = [\"80ms\"]\n", 2, "latency"),
            ("[[phase]]\nretry_after = 90000\n", 2, "retry_after"),
            ("seed = 7\n[[phase]]\n[[phase]]\ncalls = 1\n", 2, "phase"),
            ("repeat = true\n[[phase]]\nhang_share = 1\n", 2, "phase"),
            ("[[phase]\n", 1, "[[phase]"),
        ] {
            let refused = read_script("ill.toml", text).unwrap_err();
            assert_eq!((refused.line(), refused.key()), (line, key), "{text:?}: {refused}");
            assert!(refused.to_string().starts_with(&format!("ill.toml:{line}: {key} = ")), "{refused}");
        }
    }

    #[test]
    fn times() {
        let ms = |ms| Some(Duration::from_millis(ms));
        for (text, want) in [
            ("20ms", ms(20)),
            ("1.5s", ms(1_500)),
            ("2m", ms(120_000)),
            ("1h", ms(3_600_000)),
            ("0s", ms(0)),
            ("10", None),
            ("s", None),
            ("-1s", None),
            ("1 s", None),
            ("1e3s", None),
            ("infs", None),
            (".5s", None),
            ("1d", None),
            ("", None),
        ] {
            assert_eq!(time_of(text), want, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_text_never_panics(text in "[\\[\\]a-z_=0-9.\"\n 가-]{0,80}") {
            let _ = read_script("x", &text);
        }

        #[test]
        fn changed_scripts_never_panic(at in any::<prop::sample::Index>(), with in "[\\[\\]=0-9.\"\n가-]{0,3}") {
            let mut text: Vec<char> = WHOLE.chars().collect();
            let place = at.index(text.len());
            text.splice(place..place, with.chars());
            let _ = read_script("x", &text.into_iter().collect::<String>());
        }
    }

    #[test]
    fn the_example_is_read_and_its_page_names_every_key() {
        read_script("ill-draft.toml", include_str!("../../examples/momently/ill-draft.toml")).unwrap();
        let page = include_str!("../../docs/scripts.md");
        for key in [
            "seed",
            "repeat",
            "calls",
            "for",
            "latency",
            "error_share",
            "error_status",
            "client_error_share",
            "client_error_status",
            "rate_limit_share",
            "retry_after",
            "hang_share",
            "cut_share",
            "garbage_share",
        ] {
            assert!(page.contains(&format!("`{key}`")), "{key}");
        }
    }
}
