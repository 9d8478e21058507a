//! Breaker, retry and restart tables: read over their defaults, checked by the policy's own rules, each broken rule put back to its line.

use std::time::Duration;

use crate::{
    model::duration,
    policy::{
        backoff::Backoff,
        breaker::settings::{BreakerSettings, HalfOpenBy, HalfOpenEnd, HalfOpenFrom, Mode, Probe, WindowKind},
        retry_settings::RetrySettings,
    },
    runtime::settings::{RestartSettings, Timeouts},
};

use super::reader::Reader;

/// The most restarts that still count as normal.
pub(super) const RESTARTS_MAX: u64 = 1_000;

/// How a half-open breaker can be tried.
const PROBES: [(&str, Probe); 3] = [("off", Probe::Off), ("health", Probe::Health), ("request", Probe::Request)];

/// Reads a breaker's table over `defaults`.
pub(super) fn read_breaker(mut reader: Reader<'_, '_>, defaults: &BreakerSettings) -> BreakerSettings {
    let breaker = BreakerSettings {
        window: read_window(&mut reader, defaults.window),
        calls_min: reader.count("calls_min", defaults.calls_min),
        max_age: reader.duration_or_off("max_age", defaults.max_age),
        failure_share: reader.number("failure_share", defaults.failure_share),
        slow_share: reader.number("slow_share", defaults.slow_share),
        slow_call: reader.duration("slow_call", defaults.slow_call),
        consecutive_failures: reader.count_or_off("consecutive_failures", defaults.consecutive_failures),
        open: reader.duration("open", defaults.open),
        open_growth: reader.number("open_growth", defaults.open_growth),
        open_max: reader.duration("open_max", defaults.open_max),
        open_jitter: reader.number("open_jitter", defaults.open_jitter),
        trials: reader.count("trials", defaults.trials),
        trial_timeout: reader.duration_or_off("trial_timeout", defaults.trial_timeout),
        half_open_max: reader.duration_or_off("half_open_max", defaults.half_open_max),
        half_open_from: reader.choice(
            "half_open_from",
            defaults.half_open_from,
            &[("first_trial", HalfOpenFrom::FirstTrial), ("entry", HalfOpenFrom::Entry)],
            &[],
        ),
        half_open_end: reader.choice(
            "half_open_end",
            defaults.half_open_end,
            &[("open", HalfOpenEnd::Open), ("closed", HalfOpenEnd::Closed)],
            &[],
        ),
        half_open_by: reader.choice(
            "half_open_by",
            defaults.half_open_by,
            &[("timer", HalfOpenBy::Timer), ("first_call", HalfOpenBy::FirstCall)],
            &[],
        ),
        early_verdict: reader.truth("early_verdict", defaults.early_verdict),
        mode: reader.choice(
            "mode",
            defaults.mode,
            &[
                ("auto", Mode::Auto),
                ("forced_open", Mode::ForcedOpen),
                ("disabled", Mode::Disabled),
                ("metrics_only", Mode::MetricsOnly),
            ],
            &[],
        ),
        probe: reader.choice("probe", defaults.probe, &PROBES, &[]),
    };
    reader.refuse_broken(&breaker.check());
    reader.finish(&[]);
    breaker
}

fn read_window(reader: &mut Reader<'_, '_>, default: WindowKind) -> WindowKind {
    if reader.node("window_calls").is_some() && reader.node("window").is_some() {
        reader.refuse("window", "must not be given together with window_calls");
    }
    if reader.node("window").is_some() {
        return WindowKind::Time(reader.duration("window", Duration::from_secs(60)));
    }
    match default {
        WindowKind::Calls(calls) => WindowKind::Calls(reader.count("window_calls", calls)),
        WindowKind::Time(window) if reader.node("window_calls").is_none() => {
            WindowKind::Time(reader.duration("window", window))
        }
        WindowKind::Time(_) => WindowKind::Calls(reader.count("window_calls", 0)),
    }
}

/// Reads a retry table over `defaults`.
pub(super) fn read_retry(mut reader: Reader<'_, '_>) -> RetrySettings {
    let defaults = RetrySettings::default();
    let attempts_max = reader.count("attempts_max", defaults.attempts_max);
    let base = reader.duration("backoff", Duration::from_millis(500));
    let factor = reader.number("factor", 2.0);
    let cap = reader.duration("backoff_max", Duration::from_secs(30));
    let mut retry = RetrySettings {
        attempts_max,
        backoff: defaults.backoff,
        retry_wait_max: reader.duration_from_zero("retry_wait_max", defaults.retry_wait_max),
        retry_below: reader.duration_from_zero("retry_below", defaults.retry_below),
        budget_share: reader.number("budget_share", defaults.budget_share),
        budget_min: reader.count("budget_min", defaults.budget_min),
        budget_window: reader.duration("budget_window", defaults.budget_window),
    };
    if let Ok(backoff) = Backoff::try_new(base, factor, cap) {
        retry.backoff = backoff;
    }
    reader.refuse_broken(&retry.check());
    reader.refuse_broken(&Backoff::check(base, factor, cap));
    reader.finish(&[]);
    retry
}

/// Reads a restart table over its defaults.
pub(super) fn read_restart(mut reader: Reader<'_, '_>) -> RestartSettings {
    let defaults = RestartSettings::default();
    let max = reader.whole("max", 0, RESTARTS_MAX).and_then(|number| u32::try_from(number).ok());
    let max = max.unwrap_or(defaults.max);
    reader.explain("max", max.to_string());
    let restart = RestartSettings { max, within: reader.duration("within", defaults.within) };
    reader.finish(&[]);
    restart
}

/// A trial must not be failed while its own attempt or call may still run: its timeout is raised to theirs where they are longer.
/// `None` (off) stays off.
pub(super) fn raised_trial_timeout<'t>(
    configured: Option<Duration>,
    timeouts: impl IntoIterator<Item = &'t Timeouts>,
) -> Option<Duration> {
    let own = timeouts.into_iter().map(|timeouts| timeouts.attempt.unwrap_or_default().max(timeouts.call));
    configured.map(|configured| own.fold(configured, Duration::max))
}

/// The word for "the longest any attempt can run": its own timeout, or the call's where that is shorter.
pub(super) fn attempt_bound(timeouts: &Timeouts) -> Duration {
    timeouts.attempt.unwrap_or(timeouts.call).min(timeouts.call)
}

/// What is said where an attempt is always over before it could be slow.
pub(super) fn never_slow(slow_call: Duration, bound: Duration) -> String {
    format!(
        "must be shorter than the {} after which an attempt ends: no call could ever be seen to be slow ({})",
        duration::format(bound),
        duration::format(slow_call)
    )
}
