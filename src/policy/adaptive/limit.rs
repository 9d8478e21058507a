//! The limit itself: one more for each round trip in which it was really used, as far as it is there for whoever calls, a share less at most once a round trip for timeouts, for a
//! server that says it is busy, and for answers that come late. A round trip is told by the calls: what began before the last cut says
//! nothing about the limit since. It holds no slot, and what is refused or never sent is nothing to it.

use std::time::Duration;

use super::{
    baseline::{Baselines, Load, Timed},
    settings::AdaptiveSettings,
};
use crate::model::{clock::Timestamp, facts::Ending};

/// A round trip while no good answer has told its length.
const ROUND_TRIP_UNKNOWN: Duration = Duration::from_secs(1);
/// A round trip is never taken for shorter ...
const ROUND_TRIP_MIN: Duration = Duration::from_millis(100);
/// ... or longer than this.
const ROUND_TRIP_MAX: Duration = Duration::from_secs(60);
/// How far one good answer moves the round trip's length.
const ROUND_TRIP_WEIGHT: f64 = 0.1;
/// The limit is really used where at most one in so many of the slots that callers can reach is free.
const FREE_ONE_IN: u32 = 10;
/// Answers of a round are judged from this many on.
const JUDGED_MIN: u32 = 10;
/// A round is late where this share of its answers is: a little more than are over the baseline itself when all is well, so that times
/// which vary by themselves are none.
const LATE_SHARE: f64 = 0.8;
/// A round with at most one in so many of the slots within reach taken shows how long calls take where we press nothing. So does one at the floor, where we
/// cannot press less: else a model that became slower for good would keep it there.
const LIGHT_ONE_IN: u32 = 2;
/// Not a status of the standard, but what a large vendor sends when it is overloaded.
const OVERLOADED: u16 = 529;

/// What the end of an attempt says about pressure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Said {
    /// A good answer, and what it measured.
    Good(Timed),
    /// A timeout of ours.
    TimedOut,
    /// The server said that it has too much to do.
    Busy,
    /// Nothing.
    Nothing,
}

/// An attempt that ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempt {
    /// Whose it was: answers of different agents are not compared.
    pub agent: usize,
    /// When it began.
    pub started: Timestamp,
    /// When it ended.
    pub at: Timestamp,
    /// Calls in flight at its end, itself included.
    pub in_flight: u32,
    /// So many could be in flight with more callers like this one: the limit, less what is kept for others and not used by them. Else what
    /// is kept of somebody who does not call would keep the limit where it is for good.
    pub reach: u32,
    /// What its end says.
    pub said: Said,
}

/// Why a limit changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// It was used in full for a round trip, and all went well.
    FullUse,
    /// A timeout.
    Timeout,
    /// The server said 429, 503 or 529.
    Busy,
    /// Most answers of a round took too many times their baseline.
    Late,
    /// A reload gave it bounds that it was outside of.
    Reload,
}

impl Reason {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::FullUse, Self::Timeout, Self::Busy, Self::Late, Self::Reload];

    /// The word in events and labels.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::FullUse => "full_use",
            Self::Timeout => "timeout",
            Self::Busy => "busy",
            Self::Late => "late",
            Self::Reload => "reload",
        }
    }
}

/// A limit that changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// What it was.
    pub from: u32,
    /// What it is.
    pub to: u32,
    /// Why.
    pub reason: Reason,
    /// When.
    pub at: Timestamp,
}

/// What an ending says about pressure. A quota that is used up comes back at its own time, whatever we send; a dead server is the
/// breaker's.
pub fn said(ending: &Ending, timed: Option<Timed>) -> Said {
    match ending {
        Ending::Success => timed.map_or(Said::Nothing, Said::Good),
        Ending::Timeout { .. } => Said::TimedOut,
        Ending::Status { status: 429 | 503 | OVERLOADED, quota_spent: None, .. } => Said::Busy,
        _ => Said::Nothing,
    }
}

/// The adaptive limit of one provider.
#[derive(Debug, Clone)]
pub struct AdaptiveLimit {
    settings: AdaptiveSettings,
    limit: u32,
    baselines: Baselines,
    /// Mean time of a good answer, in seconds.
    round_trip: Option<f64>,
    last_cut: Option<Timestamp>,
    /// Good answers while the limit was really used; as many as could be in flight are a round trip.
    used: u32,
    /// The most calls in flight that were seen in this round trip and the one before it: of calls that end together the last ones find
    /// the place empty.
    peaks: [u32; 2],
    peaks_since: Timestamp,
    round: Round,
}

/// The answers that are judged together.
#[derive(Debug, Clone, Copy, Default)]
struct Round {
    since: Timestamp,
    judged: u32,
    late: u32,
    is_pressing: bool,
}

impl Round {
    fn is_late(self) -> bool {
        self.judged > 0 && f64::from(self.late) >= LATE_SHARE * f64::from(self.judged)
    }
}

impl AdaptiveLimit {
    /// One at its start. `settings` were checked; `cap` is a static cap.
    pub fn new(settings: AdaptiveSettings, cap: Option<u32>, now: Timestamp) -> Self {
        let settings = settings.under(cap);
        Self {
            settings,
            limit: settings.start,
            baselines: Baselines::default(),
            round_trip: None,
            last_cut: None,
            used: 0,
            peaks: [0, 0],
            peaks_since: now,
            round: Round { since: now, ..Round::default() },
        }
    }

    /// The limit now.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// The baseline of calls of `agent` like this one.
    pub fn baseline(&self, agent: usize, like: Timed) -> Option<Duration> {
        self.baselines.of(agent, like)
    }

    /// Other bounds for what was learnt so far.
    pub fn change_bounds(&mut self, settings: AdaptiveSettings, cap: Option<u32>, at: Timestamp) -> Option<Change> {
        self.settings = settings.under(cap);
        let (from, to) = (self.limit, self.limit.clamp(self.settings.min, self.settings.max));
        self.limit = to;
        self.used = self.used.min(to);
        (from != to).then_some(Change { from, to, reason: Reason::Reload, at })
    }

    /// Learns from an attempt that ended, and says what that changes.
    pub fn ended(&mut self, attempt: &Attempt) -> Option<Change> {
        // What began before the last cut was let in by the limit before it.
        self.note_peak(attempt.in_flight, attempt.at);
        let is_fresh = self.last_cut.is_none_or(|cut| attempt.started > cut);
        match attempt.said {
            Said::Nothing => None,
            Said::TimedOut if is_fresh => self.press(Reason::Timeout, attempt.at),
            Said::Busy if is_fresh => self.press(Reason::Busy, attempt.at),
            Said::TimedOut | Said::Busy => None,
            Said::Good(timed) => self.good(attempt, timed, is_fresh),
        }
    }

    fn note_peak(&mut self, in_flight: u32, at: Timestamp) {
        let trip = self.round_trip();
        if at.since(self.peaks_since) >= trip {
            let is_recent = at.since(self.peaks_since) < trip * 2;
            self.peaks = [0, if is_recent { self.peaks[0] } else { 0 }];
            self.peaks_since = at;
        }
        self.peaks[0] = self.peaks[0].max(in_flight);
    }

    fn good(&mut self, attempt: &Attempt, timed: Timed, is_fresh: bool) -> Option<Change> {
        let took = attempt.at.since(attempt.started).as_secs_f64();
        self.round_trip = Some(self.round_trip.map_or(took, |mean| mean + (took - mean) * ROUND_TRIP_WEIGHT));
        let times = self.baselines.take_in(attempt.agent, timed, attempt.at);
        if !is_fresh {
            return None;
        }
        let reach = attempt.reach.min(self.limit);
        self.round.is_pressing |= attempt.in_flight > reach / LIGHT_ONE_IN;
        if let Some(times) = times {
            self.round.judged += 1;
            self.round.late += u32::from(times > self.settings.tolerance);
        }
        if let Some(change) = self.end_round(attempt.at) {
            return Some(change);
        }
        let needed = reach - reach / FREE_ONE_IN;
        if self.peaks.iter().all(|peak| *peak < needed) {
            return None;
        }
        self.used = (self.used + 1).min(self.limit);
        // While the round looks late its end is waited for.
        if self.used < reach || self.limit >= self.settings.max || self.round.is_late() {
            return None;
        }
        self.used = 0;
        self.move_to(self.limit + 1, Reason::FullUse, attempt.at)
    }

    /// Judges the round, if it is long enough and enough was seen in it.
    fn end_round(&mut self, now: Timestamp) -> Option<Change> {
        let round = self.round;
        if now.since(round.since) < self.round_trip() || round.judged < JUDGED_MIN {
            return None;
        }
        self.round = Round { since: now, ..Round::default() };
        let is_unpressed = !round.is_pressing || self.limit == self.settings.min;
        self.baselines.end_round(if is_unpressed { Load::Light } else { Load::Pressing });
        if round.is_late() { self.press(Reason::Late, now) } else { None }
    }

    /// Cuts, unless it was cut less than a round trip ago.
    fn press(&mut self, reason: Reason, now: Timestamp) -> Option<Change> {
        if self.last_cut.is_some_and(|cut| now.since(cut) < self.round_trip()) {
            return None;
        }
        self.last_cut = Some(now);
        self.used = 0;
        self.round = Round { since: now, ..Round::default() };
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and the limit")]
        let cut = (f64::from(self.limit) * self.settings.decrease) as u32;
        self.move_to(cut.min(self.limit.saturating_sub(1)), reason, now)
    }

    fn move_to(&mut self, limit: u32, reason: Reason, at: Timestamp) -> Option<Change> {
        let (from, to) = (self.limit, limit.clamp(self.settings.min, self.settings.max));
        self.limit = to;
        (from != to).then_some(Change { from, to, reason, at })
    }

    fn round_trip(&self) -> Duration {
        let told = self.round_trip.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        told.unwrap_or(ROUND_TRIP_UNKNOWN).clamp(ROUND_TRIP_MIN, ROUND_TRIP_MAX)
    }
}
