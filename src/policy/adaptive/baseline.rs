//! How long calls usually take where nothing presses them: by agent, by what is measured, and by size, so that a long draft is not late
//! because titles are short. Learnt from good answers only. A baseline is the time that a quarter of the calls stay under. Cold starts are
//! forgotten soon; upwards it follows only while we press nothing: answers that are slow because of our own load must not become the
//! measure.

use std::{collections::HashMap, time::Duration};

use crate::model::clock::Timestamp;

/// The most classes of calls that are told apart; the one that was seen least lately gives way to a new one.
pub const CLASSES_MAX: usize = 128;
/// So many calls of a class are looked at together.
const LOT_MIN: usize = 8;
/// Of more than this the latest are looked at.
const LOT_MAX: usize = 64;
/// The share of calls that stay under the baseline.
const QUANTILE: f64 = 0.25;
/// How far one lot moves it towards itself while nothing is pressed, as a share of the distance ...
const WEIGHT: f64 = 0.2;
/// ... but upwards not further than this share of itself.
const RISE_MAX: f64 = 0.03;
/// Under pressure it falls only to what so many lots in a row stayed under: the lowest of many would be chance.
const LOTS_IN_A_ROW: usize = 4;
/// Two lots in a row below this share of it: it was learnt while something was wrong, and is forgotten.
const FAR_BELOW: f64 = 0.67;

/// What a good call measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Timed {
    /// A stream: the time to its first content.
    FirstToken {
        /// That time.
        wait: Duration,
        /// How long the prompt was, if it is known.
        prompt_tokens: Option<u64>,
    },
    /// A plain answer: the time in all, judged by output token where they were counted.
    Whole {
        /// That time.
        took: Duration,
        /// How long the answer was, if it is known.
        output_tokens: Option<u64>,
    },
}

/// Whether our own load may be what makes answers slow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// Few calls are in flight, or as few as can be.
    Light,
    /// It may be.
    Pressing,
}

/// Which calls are compared with each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Class {
    agent: usize,
    is_stream: bool,
    /// Twice as many tokens are the next size; `None` where they are not known.
    size: Option<u32>,
}

impl Timed {
    fn class(self, agent: usize) -> Class {
        let (is_stream, tokens) = match self {
            Self::FirstToken { prompt_tokens, .. } => (true, prompt_tokens),
            Self::Whole { output_tokens, .. } => (false, output_tokens),
        };
        Class { agent, is_stream, size: tokens.map(|tokens| tokens.max(1).ilog2()) }
    }

    /// What is compared, in seconds.
    fn seconds(self) -> f64 {
        match self {
            Self::FirstToken { wait, .. } => wait.as_secs_f64(),
            Self::Whole { took, output_tokens: Some(tokens) } => took.as_secs_f64() / tokens.max(1) as f64,
            Self::Whole { took, output_tokens: None } => took.as_secs_f64(),
        }
    }
}

/// The baselines of one provider.
#[derive(Debug, Clone, Default)]
pub struct Baselines {
    classes: HashMap<Class, Baseline>,
}

#[derive(Debug, Clone, Default)]
struct Baseline {
    seconds: Option<f64>,
    lot: Vec<f64>,
    seen: usize,
    /// What the last lots stayed under, the latest first.
    lows: Vec<f64>,
    last: Timestamp,
}

impl Baselines {
    /// Takes in what a good call of `agent` measured, and says how many times its baseline it took; `None` while there is none yet.
    pub fn take_in(&mut self, agent: usize, timed: Timed, now: Timestamp) -> Option<f64> {
        let class = timed.class(agent);
        if !self.classes.contains_key(&class) && self.classes.len() >= CLASSES_MAX {
            let oldest = self.classes.iter().min_by_key(|(_, baseline)| baseline.last).map(|(class, _)| *class);
            oldest.and_then(|oldest| self.classes.remove(&oldest));
        }
        let baseline = self.classes.entry(class).or_default();
        baseline.last = now;
        let seconds = timed.seconds();
        let times = baseline.seconds.map(|usual| seconds / usual.max(f64::MIN_POSITIVE));
        baseline.add(seconds);
        times
    }

    /// A round is over: baselines move towards what was seen in it.
    pub fn end_round(&mut self, load: Load) {
        for baseline in self.classes.values_mut() {
            baseline.learn(load);
        }
    }

    /// The baseline of calls like this one.
    pub fn of(&self, agent: usize, like: Timed) -> Option<Duration> {
        let seconds = self.classes.get(&like.class(agent))?.seconds?;
        Duration::try_from_secs_f64(seconds).ok()
    }

    /// How many classes are told apart now.
    pub fn len(&self) -> usize {
        self.classes.len()
    }

    /// Whether nothing was measured yet.
    pub fn is_empty(&self) -> bool {
        self.classes.is_empty()
    }
}

impl Baseline {
    fn add(&mut self, seconds: f64) {
        if self.lot.len() < LOT_MAX {
            self.lot.push(seconds);
        } else if let Some(place) = self.lot.get_mut(self.seen % LOT_MAX) {
            *place = seconds;
        }
        self.seen += 1;
        if self.seconds.is_none() {
            self.learn(Load::Light);
        }
    }

    fn learn(&mut self, load: Load) {
        if self.lot.len() < LOT_MIN {
            return;
        }
        // proof: a part of the lot's length, which is bounded.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and the lot's length")]
        let rank = (self.lot.len() as f64 * QUANTILE) as usize;
        let (_, low, _) = self.lot.select_nth_unstable_by(rank, f64::total_cmp);
        let low = *low;
        self.lot.clear();
        self.seen = 0;
        self.lows.truncate(LOTS_IN_A_ROW - 1);
        self.lows.insert(0, low);
        let Some(usual) = self.seconds else {
            self.seconds = Some(low);
            return;
        };
        let under = |lots: usize| {
            let seen = self.lows.get(..lots).unwrap_or_default();
            seen.iter().copied().reduce(f64::max).unwrap_or(usual)
        };
        self.seconds = Some(match load {
            _ if under(2) < usual * FAR_BELOW => under(2),
            Load::Light => (usual + (low - usual) * WEIGHT).min(usual * (1.0 + RISE_MAX)),
            Load::Pressing => usual.min(under(LOTS_IN_A_ROW)),
        });
    }
}
