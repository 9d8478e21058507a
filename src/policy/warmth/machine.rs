//! Whether a model on a provider is loaded, as far as anybody can know: unknown, cold, warming, warm. Handed the time and what was seen;
//! says who may call, who has to warm the model up first, and how long the others wait. It asks no server and judges no failure.
//!
//! Picture a stove: whoever finds it cold lights it, once; the others are told when to come back; nobody takes a slow first pot for a
//! broken stove. The epoch is the number of the fire: what was seen of an earlier one says nothing about this one.

use std::{collections::VecDeque, time::Duration};

use crate::model::clock::Timestamp;

/// A model that never was loaded before is expected to take so long.
pub const LOAD_EXPECTED: Duration = Duration::from_secs(45);
/// Whoever comes while a load takes longer than expected comes back after this.
pub const OVERDUE_WAIT: Duration = Duration::from_secs(5);
/// Nobody is told to come back earlier than this.
pub const WAIT_MIN: Duration = Duration::from_secs(1);
/// So many earlier loads are remembered; the longest of them is what is expected.
pub const LOADS_MAX: usize = 5;

/// How a model comes to be loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ColdStart {
    /// Nothing has to be loaded, or nobody looks after it.
    #[default]
    Never,
    /// The server loads it by itself and says so while it does ([`crate::model::facts::Ending::Loading`]).
    Told,
    /// The first request that needs it has it loaded, and may abort the load by leaving.
    OnDemand {
        /// Unused for so long it is let go again; `None` = never.
        keeps_for: Option<Duration>,
    },
}

impl ColdStart {
    fn keeps_for(self) -> Option<Duration> {
        match self {
            Self::OnDemand { keeps_for } => keeps_for,
            Self::Never | Self::Told => None,
        }
    }
}

/// What is believed of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Belief {
    /// Nothing was seen of it yet.
    Unknown,
    /// It is not loaded.
    Cold,
    /// The one warm-up is under way.
    Warming,
    /// It is loaded.
    Warm,
}

impl Belief {
    /// Every belief.
    pub const ALL: [Self; 4] = [Self::Unknown, Self::Cold, Self::Warming, Self::Warm];

    /// The word on metrics and in answers.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Cold => "cold",
            Self::Warming => "warming",
            Self::Warm => "warm",
        }
    }
}

/// The number of a fire: grows whenever what was believed before says nothing any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Epoch(u32);

/// What somebody who wants to call has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// Call.
    Go(Epoch),
    /// Warm it up: nobody else does.
    WarmUp(Epoch),
    /// Somebody does already; come back after this.
    Wait(Duration),
}

/// How a warm-up ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WarmUpEnd {
    /// The model was loaded by it.
    Loaded,
    /// It had been loaded before.
    WasLoaded,
    /// It is not loaded, and the next caller has to try again.
    StillCold,
    /// Nobody knows: the place failed in a way that says nothing about its models.
    Failed,
}

/// What finding a model cold means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FoundCold {
    /// It was believed to be loaded still: somebody else must have had it thrown out.
    Surprise,
    /// It was not believed to be loaded.
    Expected,
    /// This was seen before the last warm-up, or while one is under way.
    Stale,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Unknown,
    Cold,
    Warming {
        since: Timestamp,
    },
    Warm {
        /// [`Timestamp::NEVER`] where nothing but evidence ends it.
        until: Timestamp,
    },
}

/// The warmth of one model on one provider. Several agents share it.
#[derive(Debug, Clone)]
pub struct Warmth {
    state: State,
    epoch: Epoch,
    /// When it was last seen to be loaded anew.
    loaded_at: Option<Timestamp>,
    /// When it was last used.
    used_at: Option<Timestamp>,
    loads: VecDeque<Duration>,
}

impl Default for Warmth {
    fn default() -> Self {
        Self { state: State::Unknown, epoch: Epoch(0), loaded_at: None, used_at: None, loads: VecDeque::new() }
    }
}

impl Warmth {
    /// What is believed at `now`.
    pub fn belief(&self, now: Timestamp) -> Belief {
        match self.state {
            State::Unknown => Belief::Unknown,
            State::Cold => Belief::Cold,
            State::Warming { .. } => Belief::Warming,
            State::Warm { until } if until > now => Belief::Warm,
            State::Warm { .. } => Belief::Cold,
        }
    }

    /// The present epoch: what is seen of an attempt counts only in the epoch it began in.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// How long whoever comes now has to wait; `None` while no warm-up is under way.
    pub fn wait(&self, now: Timestamp) -> Option<Duration> {
        let State::Warming { since } = self.state else { return None };
        let left = since.after(self.expected_load()).since(now);
        Some(if left.is_zero() { OVERDUE_WAIT } else { left.max(WAIT_MIN) })
    }

    /// How long a load is expected to take.
    pub fn expected_load(&self) -> Duration {
        self.loads.iter().max().copied().unwrap_or(LOAD_EXPECTED)
    }

    /// Somebody wants to call. Whoever gets [`Ask::WarmUp`] must tell of its end with [`Warmth::warm_up_ended`].
    pub fn ask(&mut self, cold_start: ColdStart, now: Timestamp) -> Ask {
        if let Some(wait) = self.wait(now) {
            return Ask::Wait(wait);
        }
        match (cold_start, self.belief(now)) {
            (ColdStart::Never, _) | (ColdStart::Told, Belief::Unknown) | (_, Belief::Warm) => Ask::Go(self.epoch),
            _ => Ask::WarmUp(self.begin(now)),
        }
    }

    /// Somebody wants the model to be warm, whatever was seen of it so far: `None` if it is, or is being warmed.
    pub fn ask_ahead(&mut self, now: Timestamp) -> Option<Epoch> {
        matches!(self.belief(now), Belief::Unknown | Belief::Cold).then(|| self.begin(now))
    }

    fn begin(&mut self, now: Timestamp) -> Epoch {
        self.state = State::Warming { since: now };
        self.next_epoch()
    }

    fn next_epoch(&mut self) -> Epoch {
        self.epoch = Epoch(self.epoch.0.wrapping_add(1));
        self.epoch
    }

    /// The warm-up of this epoch ended. False, and nothing is changed, if that epoch is over.
    pub fn warm_up_ended(&mut self, epoch: Epoch, end: WarmUpEnd, cold_start: ColdStart, now: Timestamp) -> bool {
        let State::Warming { since } = self.state else { return false };
        if epoch != self.epoch {
            return false;
        }
        self.next_epoch();
        match end {
            WarmUpEnd::Loaded => {
                self.loads.truncate(LOADS_MAX - 1);
                self.loads.push_front(now.since(since));
                self.loaded_at = Some(now);
                self.be_warm(cold_start, now);
            }
            WarmUpEnd::WasLoaded => self.be_warm(cold_start, now),
            WarmUpEnd::StillCold => self.state = State::Cold,
            WarmUpEnd::Failed => self.state = State::Unknown,
        }
        true
    }

    /// An attempt of `epoch` had content: the model is loaded, and its time begins anew.
    pub fn used(&mut self, epoch: Epoch, cold_start: ColdStart, now: Timestamp) {
        let is_warm = matches!(self.state, State::Warm { .. });
        let is_told = matches!(self.state, State::Unknown | State::Cold) && epoch == self.epoch;
        if is_warm || is_told {
            self.be_warm(cold_start, now);
        }
    }

    fn be_warm(&mut self, cold_start: ColdStart, now: Timestamp) {
        self.used_at = Some(now);
        let until = cold_start.keeps_for().map_or(Timestamp::NEVER, |keeps_for| now.after(keeps_for));
        self.state = State::Warm { until };
    }

    /// An attempt of `epoch` was told that the model is not loaded.
    pub fn found_cold(&mut self, epoch: Epoch, now: Timestamp) -> FoundCold {
        if epoch != self.epoch || matches!(self.state, State::Warming { .. }) {
            return FoundCold::Stale;
        }
        let found = if self.belief(now) == Belief::Warm { FoundCold::Surprise } else { FoundCold::Expected };
        self.state = State::Cold;
        found
    }

    /// An attempt of `epoch` had the model loaded on its way, and used it: warm, though it had not been. Whether that is a surprise.
    pub fn loaded_on_the_way(&mut self, epoch: Epoch, cold_start: ColdStart, now: Timestamp) -> FoundCold {
        let found = self.found_cold(epoch, now);
        if found != FoundCold::Stale {
            self.next_epoch();
            self.loaded_at = Some(now);
            self.be_warm(cold_start, now);
        }
        found
    }

    /// An attempt of `epoch` got no content in its time: whether the model is loaded is to be asked again.
    pub fn doubted(&mut self, epoch: Epoch) {
        if epoch == self.epoch && matches!(self.state, State::Warm { .. }) {
            self.state = State::Unknown;
        }
    }

    /// Another model took its place. True if it was believed to be loaded.
    pub fn evicted(&mut self, now: Timestamp) -> bool {
        let was_warm = self.belief(now) == Belief::Warm;
        if matches!(self.state, State::Warm { .. }) {
            self.state = State::Cold;
            self.next_epoch();
        }
        was_warm
    }

    /// Whether it was loaded anew after `moment`.
    pub fn was_loaded_after(&self, moment: Timestamp) -> bool {
        self.loaded_at.is_some_and(|loaded| loaded > moment)
    }

    /// When it was last used.
    pub fn used_at(&self) -> Option<Timestamp> {
        self.used_at
    }
}

#[cfg(test)]
mod tests;
