//! Plays one scenario: hands each step to the breaker at its time, tells what happened in the vectors' words, and compares.
//! What Resilience4j counts or says around its machine, and ours leaves to the owner, lives here: refused calls and the names of events.

use std::{collections::HashMap, fmt, time::Duration};

use watertight::{
    model::clock::Timestamp,
    policy::{
        breaker::{
            machine::Breaker,
            settings::{
                BreakerSettings, DURATION_MAX, HalfOpenBy, HalfOpenEnd, HalfOpenFrom, Mode, Probe, Scope, WindowKind,
            },
            state::{Effect, Outcome, Pass, Reason, Snapshot, StateName, Transition},
            window::Source,
        },
        chance::Chance,
        setting::InvalidSetting,
        slow::{SlowBy, Timing},
        verdict::Verdict,
    },
};

use crate::vector::{Config, Expectation, OpenWait, Operation, Scenario, State, Step, TimeoutState, WindowType};

/// Shares are compared to this many percent.
const RATE_TOLERANCE: f64 = 0.001;

/// One value that is not as the scenario wants it.
#[derive(Debug)]
pub(crate) struct Mismatch {
    step: String,
    key: &'static str,
    want: String,
    got: String,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}: want {}, got {}", self.step, self.key, self.want, self.got)
    }
}

/// What a step did, beside what the breaker shows after it.
#[derive(Debug, Default)]
struct Answer {
    admitted: Option<bool>,
    error: Option<&'static str>,
}

struct Player {
    breaker: Breaker,
    slow_call: Duration,
    now: Timestamp,
    /// What each call was answered: its pass, or none if it was refused.
    passes: HashMap<String, Option<Pass>>,
    calls: u64,
    /// Calls refused since the last change of state.
    not_permitted: u32,
    /// Thresholds told in this `METRICS_ONLY` state: Resilience4j tells each once a stay, ours again after it had fallen below.
    told: Vec<Reason>,
    /// Of the present step.
    events: Vec<String>,
}

/// Plays a scenario to its end. An error means that its settings cannot be.
pub(crate) fn play(scenario: &Scenario) -> Result<Vec<Mismatch>, InvalidSetting> {
    let mut player = Player::try_new(&scenario.config)?;
    let mut mismatches = Vec::new();
    for (index, step) in scenario.steps.iter().enumerate() {
        player.events.clear();
        player.now = Timestamp::from_millis(step.at_ms);
        let fired = player.breaker.tick(player.now);
        player.changed(&fired);
        let answer = player.perform(step);
        let call = step.call.as_deref().map(|call| format!(" {call}")).unwrap_or_default();
        let place = format!("step {} (at {} ms, {:?}{call})", index + 1, step.at_ms, step.op);
        mismatches.extend(player.compare(&place, &step.expect, &answer));
    }
    Ok(mismatches)
}

impl Player {
    fn try_new(config: &Config) -> Result<Self, InvalidSetting> {
        let settings = settings_of(config);
        let slow_call = settings.slow_call;
        let breaker = Breaker::try_new(settings, Scope::Target, Chance::from_seed(0))?;
        let mut player = Self {
            breaker,
            slow_call,
            now: Timestamp::ZERO,
            passes: HashMap::new(),
            calls: 0,
            not_permitted: 0,
            told: Vec::new(),
            events: Vec::new(),
        };
        if matches!(config.initial_state, State::Open | State::HalfOpen) {
            player.breaker.open(Reason::Forced, None, Timestamp::ZERO);
        }
        if config.initial_state == State::HalfOpen {
            // An open breaker can always half-open, so there is no error to report.
            let _ = player.breaker.half_open(Reason::Forced, Timestamp::ZERO);
        }
        Ok(player)
    }

    fn perform(&mut self, step: &Step) -> Answer {
        let now = self.now;
        let mut answer = Answer::default();
        let change = match step.op {
            Operation::Acquire => {
                answer.admitted = Some(self.acquire(step.call.as_deref().unwrap_or_default()));
                None
            }
            Operation::Success => self.finish(step, Verdict::Success, "SUCCESS"),
            Operation::Failure => self.finish(step, Verdict::Failure { hard: true }, "ERROR"),
            Operation::Ignore => self.finish(step, Verdict::Ignored, "IGNORED_ERROR"),
            Operation::Cancel => {
                if let Some(pass) = self.pass_of(step) {
                    let effect = self.breaker.release(pass, now);
                    self.changed(&effect.transitions);
                }
                None
            }
            Operation::Tick => None,
            Operation::ToOpen => {
                let until = step.wait_ms.map(|wait| now.after(Duration::from_millis(wait)));
                self.breaker.open(Reason::Forced, until, now)
            }
            Operation::ToHalfOpen => self.breaker.half_open(Reason::Forced, now).unwrap_or_else(|_| {
                answer.error = Some("illegal_transition");
                None
            }),
            // Resilience4j begins a closed state anew, which is our reset.
            Operation::ToClosed if self.breaker.state() == StateName::Closed => self.breaker.reset(now),
            Operation::ToClosed => self.breaker.close(now),
            Operation::ToDisabled => self.breaker.disable(now),
            Operation::ToForcedOpen => self.breaker.force_open(Reason::Forced, None, now),
            Operation::ToMetricsOnly => self.breaker.metrics_only(now),
            Operation::Reset => {
                self.not_permitted = 0;
                self.breaker.reset(now)
            }
        };
        self.changed(change.as_slice());
        if step.op == Operation::Reset {
            self.events.push("RESET".to_owned());
        }
        answer
    }

    fn acquire(&mut self, call: &str) -> bool {
        self.calls += 1;
        let (answer, transitions) = self.breaker.acquire(self.calls, self.now);
        self.changed(&transitions);
        if answer.is_err() {
            self.not_permitted += 1;
            self.say("NOT_PERMITTED");
        }
        let admitted = answer.is_ok();
        self.passes.insert(call.to_owned(), answer.ok());
        admitted
    }

    fn finish(&mut self, step: &Step, verdict: Verdict, event: &str) -> Option<Transition> {
        let pass = self.pass_of(step)?;
        let timing = Timing { elapsed: Duration::from_millis(step.duration_ms), ..Timing::default() };
        let outcome = Outcome {
            verdict,
            slow: SlowBy::Total.is_slow(self.slow_call, timing),
            source: Source::default(),
            connected: true,
        };
        let speaks = self.speaks();
        let Effect { stale, exceeded, transitions, .. } = self.breaker.record(pass, outcome, self.now);
        if speaks && !stale {
            self.events.push(event.to_owned());
        }
        for (reason, _) in exceeded {
            if !self.told.contains(&reason) {
                self.told.push(reason);
                self.events.push(format!(
                    "{}_EXCEEDED",
                    if reason == Reason::SlowShare { "SLOW_CALL_RATE" } else { "FAILURE_RATE" }
                ));
            }
        }
        self.changed(&transitions);
        None
    }

    fn pass_of(&self, step: &Step) -> Option<Pass> {
        self.passes.get(step.call.as_deref()?).copied().flatten()
    }

    /// Whether Resilience4j tells of calls in this state.
    fn speaks(&self) -> bool {
        !matches!(self.breaker.state(), StateName::Disabled | StateName::ForcedOpen)
    }

    fn say(&mut self, event: &str) {
        if self.speaks() {
            self.events.push(event.to_owned());
        }
    }

    fn changed(&mut self, transitions: &[Transition]) {
        for transition in transitions {
            self.not_permitted = 0;
            self.told.clear();
            let (from, to) = (name_of(transition.from), name_of(transition.to));
            self.events.push(format!("STATE_TRANSITION:{from}->{to}"));
        }
    }

    fn compare(&self, step: &str, expect: &Expectation, answer: &Answer) -> Vec<Mismatch> {
        let Snapshot { state, counts, failure_share, slow_share, .. } = self.breaker.snapshot();
        let mut mismatches = Vec::new();
        let mut compare = |key, want: Option<String>, got: String| {
            if let Some(want) = want.filter(|want| *want != got) {
                mismatches.push(Mismatch { step: step.to_owned(), key, want, got });
            }
        };
        compare("admitted", expect.admitted.map(|want| want.to_string()), text_or_none(answer.admitted));
        compare("state", expect.state.map(|want| name_of(want.into())), name_of(state));
        compare("buffered", expect.buffered.map(|want| want.to_string()), counts.entries.to_string());
        compare("failed", expect.failed.map(|want| want.to_string()), counts.failed.to_string());
        compare("slow", expect.slow.map(|want| want.to_string()), counts.slow.to_string());
        compare("not_permitted", expect.not_permitted.map(|want| want.to_string()), self.not_permitted.to_string());
        // An error that nobody expects is a mismatch too.
        compare("error", Some(text_or_none(expect.error.as_deref())), text_or_none(answer.error));
        compare("events", expect.events.as_ref().map(|want| format!("{want:?}")), format!("{:?}", self.events));
        for (key, want, share) in
            [("failure_rate", expect.failure_rate, failure_share), ("slow_rate", expect.slow_rate, slow_share)]
        {
            let got = share.map_or(-1.0, |share| share * 100.0);
            if let Some(want) = want.filter(|want| (want - got).abs() > RATE_TOLERANCE) {
                compare(key, Some(want.to_string()), got.to_string());
            }
        }
        mismatches
    }
}

fn text_or_none(value: Option<impl fmt::Display>) -> String {
    value.map_or_else(|| "none".to_owned(), |value| value.to_string())
}

fn name_of(state: StateName) -> String {
    state.as_str().to_uppercase()
}

impl From<State> for StateName {
    fn from(state: State) -> Self {
        match state {
            State::Closed => Self::Closed,
            State::Open => Self::Open,
            State::HalfOpen => Self::HalfOpen,
            State::ForcedOpen => Self::ForcedOpen,
            State::Disabled => Self::Disabled,
            State::MetricsOnly => Self::MetricsOnly,
        }
    }
}

/// Our settings for a scenario: what Resilience4j does not have is off.
fn settings_of(config: &Config) -> BreakerSettings {
    let milliseconds = Duration::from_millis;
    let (open, open_growth, open_max) = match config.open_wait {
        OpenWait::Fixed { ms } => (milliseconds(ms), 1.0, milliseconds(ms)),
        OpenWait::Exponential { initial_ms, multiplier, max_ms } => {
            (milliseconds(initial_ms), multiplier, max_ms.map_or(DURATION_MAX, milliseconds))
        }
    };
    let (window, calls_min) = match config.window_type {
        WindowType::Count => (WindowKind::Calls(config.window_size), config.minimum_calls.min(config.window_size)),
        WindowType::Time => (WindowKind::Time(Duration::from_secs(config.window_size.into())), config.minimum_calls),
    };
    let half_open_max = Some(milliseconds(config.half_open_max_wait_ms)).filter(|max| !max.is_zero());
    BreakerSettings {
        window,
        calls_min,
        max_age: None,
        failure_share: config.failure_rate_threshold / 100.0,
        slow_share: config.slow_call_rate_threshold / 100.0,
        slow_call: milliseconds(config.slow_call_duration_ms),
        consecutive_failures: None,
        open,
        open_growth,
        open_max,
        open_jitter: 0.0,
        trials: config.half_open_permits,
        trial_timeout: None,
        half_open_max,
        half_open_from: HalfOpenFrom::Entry,
        half_open_end: match config.half_open_timeout_state {
            TimeoutState::Open => HalfOpenEnd::Open,
            TimeoutState::Closed => HalfOpenEnd::Closed,
        },
        half_open_by: if config.auto_half_open { HalfOpenBy::Timer } else { HalfOpenBy::FirstCall },
        early_verdict: false,
        // Vectors make every trial themselves.
        probe: Probe::Off,
        mode: match config.initial_state {
            State::Closed | State::Open | State::HalfOpen => Mode::Auto,
            State::ForcedOpen => Mode::ForcedOpen,
            State::Disabled => Mode::Disabled,
            State::MetricsOnly => Mode::MetricsOnly,
        },
    }
}
