//! The outcomes that a breaker's shares are taken over: the last so many, or those of the last so long.
//! An attempt that is already slow but not back yet stands in it as pending: it counts as slow, and as finished only when it ends.

use std::{collections::VecDeque, time::Duration};

use super::settings::WindowKind;
use crate::model::clock::Timestamp;

/// A second has so many.
const NANOSECONDS: u64 = 1_000_000_000;

/// Whose outcome it is: the agent and the model, as small numbers that the owner of the breaker gave out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Source {
    /// The agent.
    pub agent: u16,
    /// The model.
    pub model: u16,
}

/// Counts over a window or a part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Everything, pending included.
    pub entries: u32,
    /// What has ended.
    pub finished: u32,
    /// What ended as a failure.
    pub failed: u32,
    /// What was slow, pending included.
    pub slow: u32,
    /// What ended well and in time.
    pub good: u32,
}

impl Counts {
    fn add(&mut self, entry: Entry) {
        self.entries += 1;
        self.slow += u32::from(entry.slow);
        if entry.state != EntryState::Pending {
            self.finished += 1;
            self.failed += u32::from(entry.state == EntryState::Failed);
            self.good += u32::from(entry.state == EntryState::Passed && !entry.slow);
        }
    }

    fn remove(&mut self, entry: Entry) {
        let mut one = Self::default();
        one.add(entry);
        // Saturating: a count below zero would be a fault of ours, and must not become four billion.
        self.entries = self.entries.saturating_sub(one.entries);
        self.finished = self.finished.saturating_sub(one.finished);
        self.failed = self.failed.saturating_sub(one.failed);
        self.slow = self.slow.saturating_sub(one.slow);
        self.good = self.good.saturating_sub(one.good);
    }

    pub(super) fn plus(&mut self, other: Self) {
        self.entries += other.entries;
        self.finished += other.finished;
        self.failed += other.failed;
        self.slow += other.slow;
        self.good += other.good;
    }

    /// Failed of finished; `None` below `calls_min` finished.
    pub fn failure_share(&self, calls_min: u32) -> Option<f64> {
        (self.finished >= calls_min.max(1)).then(|| f64::from(self.failed) / f64::from(self.finished))
    }

    /// Slow of all; `None` below `calls_min` entries.
    pub fn slow_share(&self, calls_min: u32) -> Option<f64> {
        (self.entries >= calls_min.max(1)).then(|| f64::from(self.slow) / f64::from(self.entries))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EntryState {
    Pending,
    Passed,
    Failed,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    at: Timestamp,
    id: u64,
    source: Source,
    state: EntryState,
    slow: bool,
}

/// How an outcome counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// As good.
    Passed,
    /// As bad.
    Failed,
}

/// The window of one breaker.
#[derive(Debug, Clone)]
pub struct Window {
    kind: WindowKind,
    max_age: Option<Duration>,
    totals: Counts,
    /// Count windows: every entry. Time windows: only the pending ones.
    entries: VecDeque<Entry>,
    /// Time windows: one bucket a second, oldest first.
    buckets: VecDeque<Bucket>,
}

#[derive(Debug, Clone)]
struct Bucket {
    second: u64,
    by_source: Vec<(Source, Counts)>,
}

impl Bucket {
    fn counts(&mut self, source: Source) -> &mut Counts {
        let known = self.by_source.iter().position(|(known, _)| *known == source);
        let index = known.unwrap_or_else(|| {
            self.by_source.push((source, Counts::default()));
            self.by_source.len() - 1
        });
        &mut self.by_source[index].1
    }

    /// Its finished outcomes one by one, all at the beginning of its second. Pending ones stand beside the buckets.
    fn entries(&self) -> Vec<Entry> {
        let at = Timestamp::from_nanoseconds(self.second.saturating_mul(NANOSECONDS));
        let mut entries = Vec::new();
        for (source, counts) in &self.by_source {
            let pending = counts.entries.saturating_sub(counts.finished);
            let passed_slow = counts.finished.saturating_sub(counts.failed).saturating_sub(counts.good);
            let failed_slow = counts.slow.saturating_sub(pending).saturating_sub(passed_slow).min(counts.failed);
            let kinds = [
                (counts.good, EntryState::Passed, false),
                (passed_slow, EntryState::Passed, true),
                (counts.failed - failed_slow, EntryState::Failed, false),
                (failed_slow, EntryState::Failed, true),
            ];
            for (count, state, slow) in kinds {
                // Only pending ones are looked for by their id.
                entries.extend((0..count).map(|_| Entry { at, id: 0, source: *source, state, slow }));
            }
        }
        entries
    }
}

impl Window {
    /// An empty window.
    pub fn new(kind: WindowKind, max_age: Option<Duration>) -> Self {
        let max_age = match kind {
            WindowKind::Calls(_) => max_age,
            WindowKind::Time(_) => None,
        };
        Self { kind, max_age, totals: Counts::default(), entries: VecDeque::new(), buckets: VecDeque::new() }
    }

    /// Another size or kind. What is in it stays, as far as it fits: of a count window the last outcomes, of a time window those that
    /// are young enough. Between the two kinds outcomes are told apart by the second only.
    pub fn resize(&mut self, kind: WindowKind, max_age: Option<Duration>, now: Timestamp) {
        let before = std::mem::replace(self, Self::new(kind, max_age));
        match (before.kind, kind) {
            (WindowKind::Time(_), WindowKind::Time(_)) => {
                self.totals = before.totals;
                self.entries = before.entries;
                self.buckets = before.buckets;
            }
            (WindowKind::Calls(_), _) => before.entries.into_iter().for_each(|entry| self.insert(entry)),
            (WindowKind::Time(_), WindowKind::Calls(_)) => {
                let mut entries: Vec<Entry> = before.buckets.iter().flat_map(Bucket::entries).collect();
                entries.extend(before.entries);
                entries.sort_by_key(|entry| entry.at);
                for entry in entries {
                    self.insert(entry);
                }
            }
        }
        self.prune(now);
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.totals = Counts::default();
        self.entries.clear();
        self.buckets.clear();
    }

    /// The counts now; call [`Window::prune`] first.
    pub fn totals(&self) -> Counts {
        self.totals
    }

    /// Drops what is too old at `now`.
    pub fn prune(&mut self, now: Timestamp) {
        if let Some(max_age) = self.max_age {
            while self.entries.front().is_some_and(|oldest| now.since(oldest.at) > max_age) {
                self.drop_oldest_entry();
            }
        }
        if let WindowKind::Time(window) = self.kind {
            let first = second_of(now).saturating_sub(window.as_secs().saturating_sub(1));
            while self.buckets.front().is_some_and(|oldest| oldest.second < first) {
                let Some(bucket) = self.buckets.pop_front() else { break };
                for (_, counts) in &bucket.by_source {
                    self.totals.entries = self.totals.entries.saturating_sub(counts.entries);
                    self.totals.finished = self.totals.finished.saturating_sub(counts.finished);
                    self.totals.failed = self.totals.failed.saturating_sub(counts.failed);
                    self.totals.slow = self.totals.slow.saturating_sub(counts.slow);
                    self.totals.good = self.totals.good.saturating_sub(counts.good);
                }
            }
            self.entries.retain(|pending| second_of(pending.at) >= first);
        }
    }

    /// Takes in an outcome that ended at `now`. If `id` stands in the window as pending, that entry becomes the outcome: a call
    /// counts once.
    pub fn record(&mut self, id: u64, now: Timestamp, source: Source, mark: Mark, slow: bool) {
        self.prune(now);
        let state = match mark {
            Mark::Passed => EntryState::Passed,
            Mark::Failed => EntryState::Failed,
        };
        if self.rewrite_pending(id, Some(state)) {
            return;
        }
        self.insert(Entry { at: now, id, source, state, slow });
    }

    /// Takes in an attempt that is slow already and still in flight. False where that was known: it says nothing new then.
    pub fn record_pending(&mut self, id: u64, now: Timestamp, source: Source) -> bool {
        self.prune(now);
        let is_new = !self.entries.iter().any(|entry| entry.id == id && entry.state == EntryState::Pending);
        if is_new {
            self.insert(Entry { at: now, id, source, state: EntryState::Pending, slow: true });
        }
        is_new
    }

    /// Takes a pending entry out again: its attempt ended as if it had never been.
    pub fn forget_pending(&mut self, id: u64) {
        self.rewrite_pending(id, None);
    }

    /// The counts by source. Sources are configured names, so the list is short.
    pub fn by_source(&self) -> Vec<(Source, Counts)> {
        let mut sums: Vec<(Source, Counts)> = Vec::new();
        let mut add = |source: Source, counts: Counts| match sums.iter_mut().find(|(known, _)| *known == source) {
            Some((_, sum)) => sum.plus(counts),
            None => sums.push((source, counts)),
        };
        match self.kind {
            WindowKind::Calls(_) => {
                for entry in &self.entries {
                    let mut one = Counts::default();
                    one.add(*entry);
                    add(entry.source, one);
                }
            }
            WindowKind::Time(_) => {
                for (source, counts) in self.buckets.iter().flat_map(|bucket| &bucket.by_source) {
                    add(*source, *counts);
                }
            }
        }
        sums
    }

    fn insert(&mut self, entry: Entry) {
        match self.kind {
            WindowKind::Calls(calls) => {
                while self.entries.len() >= calls as usize {
                    self.drop_oldest_entry();
                }
                self.entries.push_back(entry);
            }
            WindowKind::Time(_) => {
                if entry.state == EntryState::Pending {
                    self.entries.push_back(entry);
                }
                self.bucket(second_of(entry.at)).counts(entry.source).add(entry);
            }
        }
        self.totals.add(entry);
    }

    fn drop_oldest_entry(&mut self) {
        if let Some(oldest) = self.entries.pop_front() {
            self.totals.remove(oldest);
        }
    }

    /// The pending entry `id` becomes `state`, or goes. False if there is none.
    fn rewrite_pending(&mut self, id: u64, state: Option<EntryState>) -> bool {
        let pending = |entry: &Entry| entry.id == id && entry.state == EntryState::Pending;
        let Some(index) = self.entries.iter().position(pending) else { return false };
        let old = self.entries[index];
        let new = state.map(|state| Entry { state, ..old });
        self.totals.remove(old);
        if let Some(new) = new {
            self.totals.add(new);
        }
        match self.kind {
            WindowKind::Calls(_) => match new {
                Some(new) => self.entries[index] = new,
                None => {
                    self.entries.remove(index);
                }
            },
            WindowKind::Time(_) => {
                self.entries.remove(index);
                let counts = self.bucket(second_of(old.at)).counts(old.source);
                counts.remove(old);
                if let Some(new) = new {
                    counts.add(new);
                }
            }
        }
        true
    }

    /// The bucket of a second that is in the window; made if it is not there.
    fn bucket(&mut self, second: u64) -> &mut Bucket {
        let index = self.buckets.partition_point(|bucket| bucket.second < second);
        if self.buckets.get(index).is_none_or(|bucket| bucket.second != second) {
            self.buckets.insert(index, Bucket { second, by_source: Vec::new() });
        }
        &mut self.buckets[index]
    }
}

fn second_of(at: Timestamp) -> u64 {
    at.nanoseconds() / NANOSECONDS
}
