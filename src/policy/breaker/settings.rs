//! What a breaker is told to do, checked once. The defaults and their sources are in `docs/adr/0003`.

use std::time::Duration;

use crate::policy::setting::InvalidSetting;

/// The largest count window, the most trials, the longest run of failures that can be asked for.
pub const WINDOW_CALLS_MAX: u32 = 10_000;
/// The longest time window.
pub const WINDOW_MAX: Duration = Duration::from_secs(3_600);
/// No duration of a breaker is longer than this.
pub const DURATION_MAX: Duration = Duration::from_secs(7 * 24 * 3_600);

/// Over which outcomes the shares are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WindowKind {
    /// The last so many outcomes.
    Calls(u32),
    /// The outcomes of the last so long, in steps of a second.
    Time(Duration),
}

/// When the age limit of a half-open state begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HalfOpenFrom {
    /// With the first trial that is taken.
    FirstTrial,
    /// On entry.
    Entry,
}

/// Where a half-open state that grew too old ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HalfOpenEnd {
    /// Open again.
    Open,
    /// Closed.
    Closed,
}

/// What leads from open to half-open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HalfOpenBy {
    /// The end of the open time, or the first caller after it if that one is earlier.
    Timer,
    /// Only the first caller.
    FirstCall,
}

/// What an operator or the configuration forces a breaker to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Judges by itself.
    Auto,
    /// Refuses everything.
    ForcedOpen,
    /// Admits everything and measures nothing.
    Disabled,
    /// Admits everything, measures, and says what it would have done.
    MetricsOnly,
}

/// Whether a half-open state is tried by the supervisor itself, where no caller comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Probe {
    /// No: it stays half-open, silently, until somebody calls.
    #[default]
    Off,
    /// By asking the server whether it is well.
    Health,
    /// By as small a request as there is.
    Request,
}

/// Whose outcomes a breaker records, and so by which rules it opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// One agent's target: one source.
    Target,
    /// A provider that several agents share: opens only by what cannot be one agent's own illness.
    Provider,
    /// One key of a provider: no consecutive rule.
    Key,
}

/// The settings of one breaker. Build one by changing [`BreakerSettings::default`], then [`BreakerSettings::check`] it.
#[derive(Debug, Clone, PartialEq)]
pub struct BreakerSettings {
    /// Over which outcomes.
    pub window: WindowKind,
    /// Judged from so many outcomes on.
    pub calls_min: u32,
    /// Outcomes older than this do not count; `None` = no limit. Count windows only.
    pub max_age: Option<Duration>,
    /// Opens at this share of failed outcomes, over 0 up to 1.
    pub failure_share: f64,
    /// Opens at this share of slow outcomes, over 0 up to 1.
    pub slow_share: f64,
    /// An attempt that ran longer than this is slow; exactly this long is not.
    pub slow_call: Duration,
    /// Opens at so many failures of the hard kind in a row; `None` = never for this.
    pub consecutive_failures: Option<u32>,
    /// How long it stays open.
    pub open: Duration,
    /// Each repeated opening is so many times longer, at least 1.
    pub open_growth: f64,
    /// Growth ends here.
    pub open_max: Duration,
    /// Lengthens an open time by up to this share of it, 0 to 1.
    pub open_jitter: f64,
    /// Trials of a half-open state.
    pub trials: u32,
    /// A trial that is not back by then has failed; `None` = no limit.
    pub trial_timeout: Option<Duration>,
    /// A half-open state that is undecided by then ends; `None` = no limit.
    pub half_open_max: Option<Duration>,
    /// When that limit begins.
    pub half_open_from: HalfOpenFrom,
    /// Where it leads.
    pub half_open_end: HalfOpenEnd,
    /// What leads from open to half-open.
    pub half_open_by: HalfOpenBy,
    /// Decide a half-open state as soon as the remaining trials cannot change the verdict.
    pub early_verdict: bool,
    /// How it starts.
    pub mode: Mode,
    /// Whether somebody tries it while it is half-open and nobody calls.
    pub probe: Probe,
}

impl Default for BreakerSettings {
    /// A target's.
    fn default() -> Self {
        Self {
            window: WindowKind::Calls(20),
            calls_min: 10,
            max_age: Some(Duration::from_secs(600)),
            failure_share: 0.5,
            slow_share: 0.7,
            slow_call: Duration::from_secs(30),
            consecutive_failures: Some(5),
            open: Duration::from_secs(30),
            open_growth: 1.0,
            open_max: Duration::from_secs(300),
            open_jitter: 0.1,
            trials: 5,
            trial_timeout: Some(Duration::from_secs(60)),
            half_open_max: Some(Duration::from_secs(300)),
            half_open_from: HalfOpenFrom::FirstTrial,
            half_open_end: HalfOpenEnd::Open,
            half_open_by: HalfOpenBy::Timer,
            early_verdict: true,
            mode: Mode::Auto,
            probe: Probe::Off,
        }
    }
}

impl BreakerSettings {
    /// A shared provider's: as a target's, but three failures in a row suffice.
    #[must_use]
    pub fn provider_default() -> Self {
        Self { consecutive_failures: Some(3), ..Self::default() }
    }

    /// Every rule that is broken, those of good sense included: what a configuration is held to. Empty when the settings can be trusted.
    pub fn check(&self) -> Vec<InvalidSetting> {
        let mut broken = self.check_workable();
        if let WindowKind::Calls(calls) = self.window
            && self.trials > calls
        {
            let rule = "must not be larger than window_calls";
            broken.push(InvalidSetting::new("trials", self.trials, rule).against(&["window_calls"]));
        }
        broken
    }

    /// Every rule that is broken and without which a breaker cannot work.
    pub fn check_workable(&self) -> Vec<InvalidSetting> {
        let mut broken = Vec::new();
        let mut rule = |holds: bool, key: &'static str, value: String, rule: &str| {
            if !holds {
                broken.push(InvalidSetting::new(key, value, rule));
            }
        };
        match self.window {
            WindowKind::Calls(calls) => {
                rule((1..=WINDOW_CALLS_MAX).contains(&calls), "window_calls", calls.to_string(), "must be 1 to 10000");
            }
            WindowKind::Time(window) => {
                let seconds = window >= Duration::from_secs(1) && window <= WINDOW_MAX && window.subsec_nanos() == 0;
                rule(seconds, "window", format!("{window:?}"), "must be whole seconds from 1s to 1h");
            }
        }
        rule(self.calls_min >= 1, "calls_min", self.calls_min.to_string(), "must be at least 1");
        for (key, share) in [("failure_share", self.failure_share), ("slow_share", self.slow_share)] {
            rule(
                share > 0.0 && share <= 1.0,
                key,
                share.to_string(),
                "must be a share over 0 and up to 1 (0.5 means half)",
            );
        }
        rule(
            (0.0..=1.0).contains(&self.open_jitter),
            "open_jitter",
            self.open_jitter.to_string(),
            "must be a share from 0 to 1",
        );
        rule(
            self.open_growth.is_finite() && self.open_growth >= 1.0,
            "open_growth",
            self.open_growth.to_string(),
            "must be a finite number of at least 1",
        );
        rule(
            (1..=WINDOW_CALLS_MAX).contains(&self.trials),
            "trials",
            self.trials.to_string(),
            "must be 1 to 10000: without a trial it could never close",
        );
        if let Some(count) = self.consecutive_failures {
            rule(
                (1..=WINDOW_CALLS_MAX).contains(&count),
                "consecutive_failures",
                count.to_string(),
                "must be 1 to 10000, or \"off\"",
            );
        }
        let durations = [
            ("slow_call", Some(self.slow_call)),
            ("open", Some(self.open)),
            ("open_max", Some(self.open_max)),
            ("max_age", self.max_age),
            ("trial_timeout", self.trial_timeout),
            ("half_open_max", self.half_open_max),
        ];
        for (key, duration) in durations {
            let Some(duration) = duration else { continue };
            rule(
                !duration.is_zero() && duration <= DURATION_MAX,
                key,
                format!("{duration:?}"),
                "must be longer than 0 and at most 7 days",
            );
        }
        broken.extend(self.check_pairs());
        broken
    }

    /// Rules between two settings.
    fn check_pairs(&self) -> Vec<InvalidSetting> {
        let mut broken = Vec::new();
        if let WindowKind::Calls(calls) = self.window
            && self.calls_min > calls
        {
            let rule = "must not be larger than window_calls: it would never judge";
            broken.push(InvalidSetting::new("calls_min", self.calls_min, rule).against(&["window_calls"]));
        }
        if self.open_max < self.open {
            let value = format!("{:?}", self.open_max);
            let rule = "must be at least as long as `open`";
            broken.push(InvalidSetting::new("open_max", value, rule).against(&["open"]));
        }
        broken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(change: impl FnOnce(&mut BreakerSettings), broken: &[&str]) {
        let mut settings = BreakerSettings::default();
        change(&mut settings);
        let keys: Vec<&str> = settings.check().iter().map(InvalidSetting::key).collect();
        assert_eq!(keys, broken);
    }

    #[test]
    fn absurd_settings_are_named() {
        check(|_| (), &[]);
        check(|s| s.window = WindowKind::Calls(0), &["window_calls", "calls_min", "trials"]);
        check(|s| s.calls_min = 21, &["calls_min"]);
        check(|s| s.calls_min = 0, &["calls_min"]);
        check(|s| s.failure_share = 0.0, &["failure_share"]);
        check(|s| s.failure_share = 1.01, &["failure_share"]);
        check(|s| s.failure_share = f64::NAN, &["failure_share"]);
        check(|s| s.failure_share = 50.0, &["failure_share"]);
        check(|s| s.open = Duration::ZERO, &["open"]);
        check(|s| s.open = Duration::MAX, &["open", "open_max"]);
        check(|s| s.trials = 0, &["trials"]);
        check(|s| s.trials = 25, &["trials"]);
        check(|s| s.consecutive_failures = Some(0), &["consecutive_failures"]);
        check(|s| s.consecutive_failures = Some(10_001), &["consecutive_failures"]);
        check(|s| s.open_growth = 0.5, &["open_growth"]);
        check(|s| s.open_jitter = -0.1, &["open_jitter"]);
        check(|s| s.window = WindowKind::Time(Duration::from_millis(1_500)), &["window"]);
    }
}
