//! Who is refused under overload. Overload is judged by how long calls stand in the line, class by class: not one of a class got through in
//! `wait_max` for as long as `over`. Then the lowest of those below it is refused at once, one more for each further `over`, and one less
//! for each calm one. A class is only ever refused for a higher one: where nobody else waits, its own line is long enough a refusal. It
//! never counts slots, never holds a line, and never reads a clock.

use std::time::Duration;

use super::{chance::Chance, setting::InvalidSetting};
use crate::model::clock::Timestamp;

/// The most classes.
pub const CLASSES_MAX: usize = 16;
/// A refused caller is told to stay away for at least this long ...
pub const RETRY_AFTER_MIN: Duration = Duration::from_secs(1);
/// ... and, before it is spread, at most this long.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(10);

/// Waits up to this share of `wait_max` are calm. Between that and `wait_max` nothing changes, so that a level does not swing.
const CALM_SHARE: f64 = 0.5;
/// Refused callers come back spread over this share of the wait they are told.
const RETRY_AFTER_SPREAD: f64 = 0.5;

/// When which class is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SheddingSettings {
    /// Waits in the line above this are too long.
    pub wait_max: Duration,
    /// So long every wait of a class must have been too long before one class more below it is refused, and calm before it is one less.
    pub over: Duration,
    /// The slots that each class keeps whatever is refused, the highest class first; 0 = none are promised.
    pub minimums: Vec<u32>,
}

impl SheddingSettings {
    /// 150 ms over 1 s, for `classes` classes without stated minimums.
    pub fn for_classes(classes: usize) -> Self {
        Self { wait_max: Duration::from_millis(150), over: Duration::from_secs(1), minimums: vec![0; classes] }
    }

    /// Every rule that is broken.
    pub fn check(&self) -> Vec<InvalidSetting> {
        let mut broken = Vec::new();
        for (key, value) in [("wait_max", self.wait_max), ("over", self.over)] {
            if value.is_zero() || value > Duration::from_secs(3_600) {
                broken.push(InvalidSetting::new(key, format!("{value:?}"), "must be longer than 0 and at most 1h"));
            }
        }
        if self.minimums.is_empty() || self.minimums.len() > CLASSES_MAX {
            broken.push(InvalidSetting::new("order", self.minimums.len(), "must have 1 to 16 classes"));
        }
        broken
    }
}

/// The waits of one class, as far as they matter.
#[derive(Debug, Clone, Copy, Default)]
struct ClassLine {
    /// Since when every wait is too long; in the future while the first waiter is not late yet. `None`: nobody stands there.
    late_since: Option<Timestamp>,
    /// When it was last seen that it is not calm.
    tense_at: Option<Timestamp>,
}

/// Decides who is refused. One line with several classes, told of every coming and going.
#[derive(Debug, Clone)]
pub struct Shedder {
    wait_max: Duration,
    over: Duration,
    minimums: Vec<u32>,
    lines: Vec<ClassLine>,
    /// So many of the lowest classes are refused.
    level: usize,
    /// When the level last changed.
    changed: Timestamp,
    chance: Chance,
    refused: u64,
}

impl Shedder {
    /// One that refuses nobody yet. `settings` were checked; `chance` spreads those who are refused.
    pub fn new(settings: &SheddingSettings, chance: Chance) -> Self {
        Self {
            wait_max: settings.wait_max,
            // What was not checked must not turn for ever.
            over: settings.over.max(Duration::from_millis(1)),
            minimums: settings.minimums.clone(),
            lines: vec![ClassLine::default(); settings.minimums.len()],
            level: 0,
            changed: Timestamp::ZERO,
            chance,
            refused: 0,
        }
    }

    /// Other settings for the same line, while calls stand in it. Classes that are new have nobody in line yet; the level stays where
    /// it still can be.
    pub fn reset(&mut self, settings: &SheddingSettings, now: Timestamp) {
        self.turn(now);
        self.wait_max = settings.wait_max;
        self.over = settings.over.max(Duration::from_millis(1));
        self.lines.resize(settings.minimums.len(), ClassLine::default());
        self.minimums.clone_from(&settings.minimums);
        self.level = self.level.min(self.level_max());
    }

    /// A call of `class` (0 is the highest) went to stand in the line.
    pub fn entered(&mut self, class: usize, now: Timestamp) {
        self.turn(now);
        let late = now.after(self.wait_max);
        if let Some(line) = self.lines.get_mut(class) {
            line.late_since.get_or_insert(late);
        }
    }

    /// A call of `class` got what it stood for, after `wait`. Not for those who leave by themselves: their patience says nothing of
    /// the line.
    pub fn waited(&mut self, class: usize, wait: Duration, now: Timestamp) {
        self.turn(now);
        let (late, calm) = (wait > self.wait_max, wait <= self.wait_max.mul_f64(CALM_SHARE));
        let next = now.after(self.wait_max);
        let Some(line) = self.lines.get_mut(class) else { return };
        if !calm {
            line.tense_at = Some(now);
        }
        line.late_since = Some(match line.late_since {
            Some(since) if late => since.min(now),
            None if late => now,
            // Whoever is next came now at the latest, and is late from then on.
            _ => next,
        });
    }

    /// The last call of `class` left the line, in whatever way. Told after [`Shedder::waited`].
    pub fn line_empty(&mut self, class: usize, now: Timestamp) {
        self.turn(now);
        if let Some(line) = self.lines.get_mut(class) {
            if line.late_since.is_some_and(|since| since <= now) {
                line.tense_at = Some(now);
            }
            line.late_since = None;
        }
    }

    /// Whether a call of `class`, of which `held` hold slots, is refused now, and when it should come back. Below its stated minimum a
    /// class is never refused here.
    pub fn refuses(&mut self, class: usize, held: u32, now: Timestamp) -> Option<Duration> {
        let first = self.first_refused(now);
        let keeps = self.minimums.get(class).copied().unwrap_or(0);
        if class < first || held < keeps {
            return None;
        }
        self.refused += 1;
        // So many calm times must pass before its turn comes.
        let steps = u32::try_from(class - first + 1).unwrap_or(u32::MAX);
        let wait = self.over.saturating_mul(steps).clamp(RETRY_AFTER_MIN, RETRY_AFTER_MAX);
        Some(wait.mul_f64(1.0 + RETRY_AFTER_SPREAD * self.chance.share(self.refused)))
    }

    /// The highest class that is refused now; as many as there are classes if none is. Those below are refused too.
    pub fn first_refused(&mut self, now: Timestamp) -> usize {
        self.turn(now);
        self.lines.len() - self.level
    }

    /// The highest class is never refused: the bounds of its line are enough.
    fn level_max(&self) -> usize {
        self.lines.len().saturating_sub(1)
    }

    /// Takes every step that was due by `now`. Between two events each class can turn late once at most, so this ends soon.
    fn turn(&mut self, now: Timestamp) {
        loop {
            let (up, down) = (self.next_up(), self.next_down());
            let (at, level) = match (up, down) {
                (Some(up), down) if down.is_none_or(|down| up <= down) => (up, self.level + 1),
                (_, Some(down)) => (down, self.level - 1),
                _ => return,
            };
            if at > now {
                return;
            }
            (self.level, self.changed) = (level, at);
        }
    }

    /// When one class more is refused, if nothing happens before.
    fn next_up(&self) -> Option<Timestamp> {
        if self.level >= self.level_max() {
            return None;
        }
        // For the lowest class that is still admitted, one above it must be late.
        let above = self.lines.iter().take(self.lines.len() - self.level - 1);
        let late_since = above.filter_map(|line| line.late_since).min()?;
        // Soon after a step back the wait is counted from there: what was refused has not had its `over` yet.
        Some(late_since.max(self.changed).after(self.over))
    }

    /// When one class less is refused, if nothing happens before: all admitted classes were calm.
    fn next_down(&self) -> Option<Timestamp> {
        if self.level == 0 {
            return None;
        }
        let scope = || self.lines.iter().take(self.lines.len() - self.level);
        let tense_at = scope().filter_map(|line| line.tense_at).max().unwrap_or(Timestamp::ZERO);
        let at = tense_at.max(self.changed).after(self.over);
        scope().all(|line| line.late_since.is_none_or(|since| since > at)).then_some(at)
    }
}

#[cfg(test)]
mod tests;
