//! How long things are kept: durations of days and years, which other durations of the configuration never have.

use std::time::Duration;

use super::reader::Reader;
use crate::model::duration;

const DAY: Duration = Duration::from_secs(24 * 3_600);
/// Nothing is kept longer, but for ever.
const KEEP_DAYS_MAX: u32 = 3_660;

/// How long something is kept; `"off"` = for ever.
pub(super) fn keep_or_for_ever(
    reader: &mut Reader<'_, '_>,
    key: &'static str,
    default: Option<Duration>,
) -> Option<Duration> {
    let value = match reader.text(key) {
        None => default,
        Some("off") => None,
        Some(text) => match parse(text) {
            Ok(keep) => Some(keep),
            Err(rule) => {
                reader.refuse(key, rule);
                default
            }
        },
    };
    reader.explain(key, value.map_or("off".to_owned(), format));
    value
}

/// How long something is kept.
pub(super) fn keep(reader: &mut Reader<'_, '_>, key: &'static str, default: Duration) -> Duration {
    let value = reader.text(key).and_then(|text| parse(text).map_err(|rule| reader.refuse(key, rule)).ok());
    let value = value.unwrap_or(default);
    reader.explain(key, format(value));
    value
}

fn parse(text: &str) -> Result<Duration, String> {
    let days = text.trim().strip_suffix('d').map(str::parse::<u32>);
    let keep = match days {
        Some(Ok(days)) => DAY.saturating_mul(days),
        Some(Err(_)) => return Err("must be a whole number of days, as in \"30d\", or as in \"36h\"".to_owned()),
        None => duration::parse(text).map_err(|error| format!("{}; or days, as in \"30d\"", error.rule()))?,
    };
    if keep.is_zero() {
        return Err("must be longer than 0".to_owned());
    }
    if keep > DAY * KEEP_DAYS_MAX {
        return Err(format!("must be at most {KEEP_DAYS_MAX} days"));
    }
    Ok(keep)
}

/// A few days are told in hours, as people say them.
fn format(keep: Duration) -> String {
    let (days, rest) = (keep.as_secs() / DAY.as_secs(), keep.as_secs() % DAY.as_secs());
    if rest == 0 && keep.subsec_nanos() == 0 && days > 3 { format!("{days}d") } else { duration::format(keep) }
}
