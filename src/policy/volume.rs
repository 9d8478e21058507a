//! The runaway guard of one caller: how many of its calls were admitted in a rolling hour, and whether that shut it. It is a switch of its
//! own: good answers do not lift it, refusals prolong nothing, and no breaker hears of it. It never reads a clock, and never knows whose it
//! is. One entry a second is kept at most, so an hour of it is bounded; an entry leaves a moment late rather than early.

use std::{collections::VecDeque, time::Duration};

use super::setting::InvalidSetting;
use crate::model::clock::Timestamp;

/// The window.
pub const HOUR: Duration = Duration::from_secs(3_600);
/// How long a guard stays shut at least, unless configured.
pub const SHUT_FOR_DEFAULT: Duration = Duration::from_secs(1_800);
/// A guard can be configured to stay shut for this long at most.
pub const SHUT_FOR_MAX: Duration = Duration::from_secs(24 * 3_600);
/// The most calls an hour that can be configured.
pub const CALLS_PER_HOUR_MAX: u32 = 100_000_000;
/// A moment within a second is counted in the next one after this.
const ALMOST_A_SECOND: Duration = Duration::from_millis(999);
/// A refused caller is told to stay away for at least this long.
const RETRY_AFTER_MIN: Duration = Duration::from_secs(1);

/// When a guard shuts, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VolumeSettings {
    /// Calls that are admitted in any hour; 0 refuses all.
    pub calls_per_hour: u32,
    /// It stays shut for at least so long.
    pub shut_for: Duration,
}

impl VolumeSettings {
    /// So many calls an hour, shut for half an hour.
    pub fn of_calls(calls_per_hour: u32) -> Self {
        Self { calls_per_hour, shut_for: SHUT_FOR_DEFAULT }
    }

    /// Every rule that is broken.
    pub fn check(&self) -> Vec<InvalidSetting> {
        let mut broken = Vec::new();
        if !(1..=CALLS_PER_HOUR_MAX).contains(&self.calls_per_hour) {
            let rule = format!("must be 1 to {CALLS_PER_HOUR_MAX}; without the table there is no guard");
            broken.push(InvalidSetting::new("calls_per_hour", self.calls_per_hour, rule));
        }
        if self.shut_for.is_zero() || self.shut_for > SHUT_FOR_MAX {
            let value = format!("{:?}", self.shut_for);
            broken.push(InvalidSetting::new("shut_for", value, "must be longer than 0 and at most 24h"));
        }
        broken
    }
}

/// A shut guard, as the caller hears of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too many calls in an hour")]
pub struct Shut {
    /// When it opens by itself, if nothing else is admitted and nobody lifts it.
    pub retry_after: Duration,
    /// This refusal shut it: one alert a shutting.
    pub is_first: bool,
}

/// What a guard shows of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VolumeView {
    /// Calls admitted in the last hour.
    pub admitted: u32,
    /// Since when it is shut, and how long it still is.
    pub shut: Option<(Timestamp, Duration)>,
}

/// What a shut guard remembers: enough to go on with after a restart, in moments of its clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShutMemory {
    /// Since when it is shut.
    pub since: Timestamp,
    /// The calls of its hour, by the second in which they were admitted, the oldest first.
    pub seconds: Vec<(Timestamp, u32)>,
}

/// The guard of one caller.
#[derive(Debug, Clone, Default)]
pub struct VolumeGuard {
    /// Calls by the second in which they were admitted, the oldest first; the second as seconds of the clock.
    seconds: VecDeque<(u32, u32)>,
    /// Their sum.
    admitted: u32,
    shut_since: Option<Timestamp>,
    last_asked: Timestamp,
}

impl VolumeGuard {
    /// Counts a call, or refuses it. A call that is refused further in is taken out again with [`VolumeGuard::undo`].
    pub fn admit(&mut self, settings: &VolumeSettings, now: Timestamp) -> Result<(), Shut> {
        self.last_asked = self.last_asked.max(now);
        let shut = self.turn(settings, now);
        if shut.is_some() || self.admitted >= settings.calls_per_hour {
            self.shut_since.get_or_insert(now);
            let retry_after = self.opens_at(settings, now).since(now).max(RETRY_AFTER_MIN);
            return Err(Shut { retry_after, is_first: shut.is_none() });
        }
        let second = second_of(now);
        match self.seconds.back_mut() {
            // A clock read before another thread's: it belongs to the last second that there is.
            Some((last, calls)) if *last >= second => *calls += 1,
            _ => self.seconds.push_back((second, 1)),
        }
        self.admitted += 1;
        Ok(())
    }

    /// Whether a call would be refused now; counts nothing and shuts nothing. For a call that is about to line up.
    pub fn look(&mut self, settings: &VolumeSettings, now: Timestamp) -> Result<(), Shut> {
        let full = self.turn(settings, now).is_some() || self.admitted >= settings.calls_per_hour;
        if full {
            let retry_after = self.opens_at(settings, now).since(now).max(RETRY_AFTER_MIN);
            return Err(Shut { retry_after, is_first: false });
        }
        Ok(())
    }

    /// Takes out a call that was counted at `taken` and then refused further in. If it was what others were refused for, they were
    /// refused wrongly, and the guard is open again.
    pub fn undo(&mut self, settings: &VolumeSettings, taken: Timestamp) {
        let second = second_of(taken);
        let place = self.seconds.iter().rposition(|(at, calls)| *at <= second && *calls > 0);
        let place = place.or_else(|| self.seconds.iter().position(|(_, calls)| *calls > 0));
        let Some((_, calls)) = place.and_then(|place| self.seconds.get_mut(place)) else { return };
        *calls -= 1;
        self.admitted -= 1;
        if self.seconds.back().is_some_and(|(_, calls)| *calls == 0) {
            self.seconds.pop_back();
        }
        if self.shut_since.is_some_and(|since| since >= taken) && self.admitted < settings.calls_per_hour {
            self.shut_since = None;
        }
    }

    /// Opens it, and counts the hour anew: else the next call would shut it again. Says whether it was shut.
    pub fn lift(&mut self) -> bool {
        let last_asked = self.last_asked;
        let was_shut = self.shut_since.is_some();
        *self = Self { last_asked, ..Self::default() };
        was_shut
    }

    /// What it remembers, if it is shut.
    pub fn memory(&self) -> Option<ShutMemory> {
        let begin = |second: u32| Timestamp::from_millis(u64::from(second) * 1_000);
        let seconds = self.seconds.iter().map(|(second, calls)| (begin(*second), *calls)).collect();
        Some(ShutMemory { since: self.shut_since?, seconds })
    }

    /// One that goes on from there. Moments of another clock may lie within a second: calls leave a moment later then, not earlier.
    pub fn remembering(memory: &ShutMemory) -> Self {
        let mut guard = Self { shut_since: Some(memory.since), last_asked: memory.since, ..Self::default() };
        for (at, calls) in &memory.seconds {
            let second = second_of(at.after(ALMOST_A_SECOND));
            let calls = (*calls).min(u32::MAX - guard.admitted);
            guard.admitted += calls;
            match guard.seconds.back_mut() {
                Some((last, sum)) if *last >= second => *sum += calls,
                _ if calls > 0 => guard.seconds.push_back((second, calls)),
                _ => {}
            }
        }
        guard
    }

    /// What it shows now.
    pub fn view(&mut self, settings: &VolumeSettings, now: Timestamp) -> VolumeView {
        let shut = self.turn(settings, now).map(|since| (since, self.opens_at(settings, now).since(now)));
        VolumeView { admitted: self.admitted, shut }
    }

    /// Whether it remembers nothing: open, and without a call in the last hour.
    pub fn is_idle(&mut self, settings: &VolumeSettings, now: Timestamp) -> bool {
        self.turn(settings, now).is_none() && self.admitted == 0
    }

    /// Whether it is shut, as far as it was last seen.
    pub fn is_shut(&self) -> bool {
        self.shut_since.is_some()
    }

    /// When it was last asked to admit a call.
    pub fn last_asked(&self) -> Timestamp {
        self.last_asked
    }

    /// Lets seconds leave that are out of the window, opens it if its time has come, and says since when it is shut.
    fn turn(&mut self, settings: &VolumeSettings, now: Timestamp) -> Option<Timestamp> {
        while let Some((_, calls)) = self.seconds.front().copied().filter(|(second, _)| leaves_at(*second) <= now) {
            self.seconds.pop_front();
            self.admitted -= calls;
        }
        if self.shut_since.is_some() && self.opens_at(settings, now) <= now {
            self.shut_since = None;
        }
        self.shut_since
    }

    /// The later of the end of `shut_for` and the moment at which the hour is under its limit again.
    fn opens_at(&self, settings: &VolumeSettings, now: Timestamp) -> Timestamp {
        let rested = self.shut_since.unwrap_or(now).after(settings.shut_for);
        if settings.calls_per_hour == 0 {
            // Never; callers are still told to come back at some time, as it may be configured otherwise by then.
            return rested.max(now.after(settings.shut_for));
        }
        let mut left = self.admitted;
        for (second, calls) in &self.seconds {
            if left < settings.calls_per_hour {
                break;
            }
            left -= calls;
            if left < settings.calls_per_hour {
                return rested.max(leaves_at(*second));
            }
        }
        rested
    }
}

/// Seconds of the clock; Unix time fits until 2106.
fn second_of(at: Timestamp) -> u32 {
    u32::try_from(at.millis() / 1_000).unwrap_or(u32::MAX)
}

/// When all calls of a second are out of the window.
fn leaves_at(second: u32) -> Timestamp {
    Timestamp::from_millis(u64::from(second).saturating_add(1).saturating_mul(1_000)).after(HOUR)
}

#[cfg(test)]
mod tests;
