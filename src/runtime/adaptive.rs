//! Adaptive limits at work: the supervisor tells each provider's limit how its attempts ended, and what it says becomes the provider's
//! slots at once. Every change is an event, a metric and a line of the log, with its reason. It judges nothing itself.

use std::{sync::Arc, time::Duration};

use metrics::{Counter, Gauge, Label};

use tokio::sync::broadcast;

use super::{
    core::{ProviderCore, Shared, lock},
    engine::Runtime,
    metric,
    permit::Lease,
    ports::Progress,
    settings::ProviderSettings,
    shielded::Shielded,
    sync::Mutex,
};
use crate::{
    model::{clock::Timestamp, facts::Ending, name::Name, reply::Usage},
    policy::{
        adaptive::{
            baseline::Timed,
            limit::{AdaptiveLimit, Attempt, Change, Reason, Said, said},
            settings::AdaptiveSettings,
        },
        bulkhead::{Bulkhead, ClassShare, Guarantees},
        compartment::settings::ClassSettings,
    },
};

/// Changes that a slow watcher may lag behind before it loses the oldest.
pub(crate) const LIMIT_EVENTS_MAX: usize = 1_024;
/// Content that first comes in the last part of an attempt came all at once: no time to a first token.
const STREAMED_BEFORE: f64 = 0.9;

/// A provider's limit changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitEvent {
    /// The provider.
    pub provider: Name,
    /// From what to what, why and when.
    pub change: Change,
}

/// What an attempt's end says, until the supervisor hears of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Told {
    started: Timestamp,
    at: Timestamp,
    said: Said,
}

/// A provider's limit.
pub(crate) struct ProviderLimit {
    /// Written by the supervisor and by a reload, after which it is the same one.
    limit: Arc<Mutex<AdaptiveLimit>>,
    shares: ProviderShares,
    /// What the reload that made this changed: told once this is what everybody finds.
    by_reload: Option<Change>,
    gauge: Shielded<Gauge>,
    changes: Vec<(Reason, Shielded<Counter>)>,
}

/// What is kept of a provider's slots, whatever their number.
#[derive(Debug, Clone, Default)]
pub(crate) struct ProviderShares {
    /// By member: as configured; the others have equal parts.
    pub(crate) agents: Vec<Option<u32>>,
    /// By feature.
    pub(crate) features: Vec<u32>,
    /// So many are never kept for anybody: a limit that has fallen to what is kept would never be used up by those who have a share, and so
    /// never rise for the others.
    pub(crate) common: u32,
}

impl ProviderShares {
    /// What is kept of `cap` slots. Agents without a share of their own have an equal part of all, or of what the others leave where that is
    /// less. Where what is configured does not fit, each has its part of what classes leave.
    pub(crate) fn at(&self, cap: u32, classes: Vec<ClassShare>) -> Guarantees {
        let of_classes = classes.iter().fold(0, |sum: u32, share| sum.saturating_add(share.slots));
        let left = cap.saturating_sub(of_classes).saturating_sub(self.common);
        let configured = self.agents.iter().flatten().chain(&self.features);
        let sum = configured.fold(0, |sum: u32, share| sum.saturating_add(*share));
        let unnamed = self.agents.iter().filter(|share| share.is_none()).count();
        // Who is gone has a share of none, and makes nobody else's smaller.
        let here = self.agents.iter().filter(|share| **share != Some(0)).count();
        let equal = Bulkhead::equal_shares(cap, here).first().copied().unwrap_or(0);
        let rest = Bulkhead::equal_shares(left.saturating_sub(sum), unnamed).first().copied().unwrap_or(0);
        // From whom should the only one keep a share? It would only stand in the way of its own classes and features.
        let usual = if here > 1 { equal.min(rest) } else { 0 };
        let share = |share: &Option<u32>| share.map_or(usual, |share| part(share, sum, left));
        Guarantees {
            agents: self.agents.iter().map(share).collect(),
            features: self.features.iter().map(|share| part(*share, sum, left)).collect(),
            classes,
        }
    }
}

/// `share` itself where all shares together fit into `cap`, else its part of it.
fn part(share: u32, sum: u32, cap: u32) -> u32 {
    if sum <= cap {
        return share;
    }
    // proof of no loss: a part of `cap`, as `share` is at most `sum`.
    u32::try_from(u64::from(share) * u64::from(cap) / u64::from(sum.max(1))).unwrap_or(0)
}

impl ProviderLimit {
    pub(crate) fn new(
        settings: &ProviderSettings,
        adaptive: AdaptiveSettings,
        shares: ProviderShares,
        now: Timestamp,
    ) -> Self {
        let limit = AdaptiveLimit::new(adaptive, settings.slots, now);
        Self::with(&settings.name, Arc::new(Mutex::new(limit)), shares, None)
    }

    /// The same limit with other bounds and shares: it stays where it is as far as they allow, and has learnt what it had.
    pub(crate) fn renewed(
        &self,
        settings: &ProviderSettings,
        adaptive: AdaptiveSettings,
        shares: ProviderShares,
        now: Timestamp,
    ) -> Self {
        let change = lock(&self.limit).change_bounds(adaptive, settings.slots, now);
        Self::with(&settings.name, Arc::clone(&self.limit), shares, change)
    }

    fn with(
        provider: &Name,
        limit: Arc<Mutex<AdaptiveLimit>>,
        shares: ProviderShares,
        by_reload: Option<Change>,
    ) -> Self {
        let label = || Label::new("provider", provider.as_str().to_owned());
        let counter = |reason: Reason| {
            let labels = vec![label(), Label::from_static_parts("reason", reason.as_str())];
            (reason, metrics::counter!(metric::LIMIT_CHANGES.name, labels).into())
        };
        let gauge = Shielded::from(metrics::gauge!(metric::ADAPTIVE_LIMIT.name, vec![label()]));
        gauge.set(f64::from(lock(&limit).limit()));
        Self { limit, shares, by_reload, gauge, changes: Reason::ALL.map(counter).into() }
    }

    /// The slots that there are now, and what is kept of them.
    pub(crate) fn kept(&self, classes: &ClassSettings) -> (u32, Guarantees) {
        let cap = self.limit();
        (cap, self.shares.at(cap, classes.shares_of(cap)))
    }

    /// The limit now.
    pub(crate) fn limit(&self) -> u32 {
        lock(&self.limit).limit()
    }
}

impl Told {
    /// What an attempt that ran as `progress` shows says with this ending.
    pub(crate) fn of(ending: &Ending, progress: &Progress, usage: Option<Usage>, at: Timestamp) -> Self {
        let started = progress.started();
        let took = at.since(started);
        let first = progress.first_content().map(|first| first.since(started));
        let timed = match first.filter(|first| *first < took.mul_f64(STREAMED_BEFORE)) {
            Some(wait) => Timed::FirstToken { wait, prompt_tokens: usage.map(|usage| usage.prompt_tokens) },
            None => Timed::Whole { took, output_tokens: usage.map(|usage| usage.output_tokens) },
        };
        // What took no time at all measures nothing.
        let timed = Some(timed).filter(|_| took > Duration::ZERO);
        Self { started, at, said: said(ending, timed) }
    }

    /// The same of work that was done outside.
    pub(crate) fn of_work(ending: &Ending, started: Timestamp, at: Timestamp) -> Self {
        let took = at.since(started);
        let timed = Some(Timed::Whole { took, output_tokens: None }).filter(|_| took > Duration::ZERO);
        Self { started, at, said: said(ending, timed) }
    }
}

/// The supervisor heard how attempts of a call ended, whose slots are in `lease`: their provider's limit learns from it.
pub(crate) fn learn(shared: &Arc<Shared>, agent: usize, told: &[Told], lease: &Lease) {
    if told.is_empty() {
        return;
    }
    let Some(core) = shared.at(agent) else { return };
    let (Some(adaptive), Some(count)) = (&core.provider.adaptive, core.provider.count) else { return };
    // The permit of this call is not given back yet: it counts itself. One that has no slot here was moved by a reload, and says nothing.
    let Some(member) = lease.member_of(count) else { return };
    let (in_flight, reach) = shared.compartments.reach(count, member);
    for told in told {
        let attempt = Attempt { agent, started: told.started, at: told.at, in_flight, reach, said: told.said };
        let change = lock(&adaptive.limit).ended(&attempt);
        if let Some(change) = change {
            publish(shared, &core.provider.settings.name, (adaptive, count), change);
        }
    }
}

impl Runtime {
    /// Every change of every adaptive limit from now on. A reader that lags loses the oldest and is told how many.
    pub fn limit_events(&self) -> broadcast::Receiver<LimitEvent> {
        self.shared.limits.subscribe()
    }
}

/// A reload is done: slots are what the limit says by now, kept for whom they are kept for now, and who watches hears of it.
pub(crate) fn reloaded(shared: &Arc<Shared>, provider: &ProviderCore) {
    let (Some(adaptive), Some(count)) = (&provider.adaptive, provider.count) else { return };
    if let Some(change) = adaptive.by_reload {
        tell(shared, &provider.settings.name, adaptive, change);
    }
    // What was learnt while the reload was under way came with the shares from before it.
    let cap = adaptive.limit();
    shared.compartments.resize(shared, count, cap, |classes| adaptive.shares.at(cap, classes));
}

fn publish(
    shared: &Arc<Shared>,
    provider: &Name,
    (adaptive, count): (&ProviderLimit, crate::policy::compartment::needs::CountId),
    change: Change,
) {
    shared.compartments.resize(shared, count, change.to, |classes| adaptive.shares.at(change.to, classes));
    tell(shared, provider, adaptive, change);
}

/// Every change is an event, a metric and a line of the log.
fn tell(shared: &Shared, provider: &Name, adaptive: &ProviderLimit, change: Change) {
    adaptive.gauge.set(f64::from(change.to));
    if let Some((_, counter)) = adaptive.changes.iter().find(|(reason, _)| *reason == change.reason) {
        counter.increment(1);
    }
    let (from, to, reason) = (change.from, change.to, change.reason.as_str());
    if to < from {
        tracing::warn!(provider = provider.as_str(), from, to, reason, "the adaptive limit is lower");
    } else {
        tracing::debug!(provider = provider.as_str(), from, to, reason, "the adaptive limit is higher");
    }
    // Nobody may be watching.
    let _ = shared.limits.send(LimitEvent { provider: provider.clone(), change });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_fit_whatever_the_limit_is() {
        let shares = ProviderShares { agents: vec![Some(4), None, None], features: vec![6, 2], common: 0 };
        for (cap, agents, features) in [
            (40, vec![4, 13, 13], vec![6, 2]),
            (20, vec![4, 4, 4], vec![6, 2]),
            (12, vec![4, 0, 0], vec![6, 2]),
            (10, vec![3, 0, 0], vec![5, 1]),
            (4, vec![1, 0, 0], vec![2, 0]),
            (0, vec![0, 0, 0], vec![0, 0]),
        ] {
            let kept = shares.at(cap, Vec::new());
            assert!(kept.sum() <= u64::from(cap), "{cap}");
            assert_eq!((kept.agents, kept.features), (agents, features), "{cap}");
        }
        let interactive = vec![ClassShare { slots: 3, kept_from: crate::policy::bulkhead::KeptFrom::Lower }];
        let alone = ProviderShares { agents: vec![None], features: vec![4], common: 0 };
        let adaptive = ProviderShares { agents: vec![Some(2), Some(3)], features: Vec::new(), common: 1 };
        assert_eq!(
            adaptive.at(5, Vec::new()).agents,
            [1, 2],
            "one is anybody's, or nobody else would ever make it rise"
        );
        assert_eq!(alone.at(10, interactive.clone()).agents, [0], "a lone agent has nobody to keep a share from");
        let two = ProviderShares { agents: vec![None, None], features: vec![1], common: 0 };
        assert_eq!(two.at(10, interactive).agents, [3, 3], "equal parts of what features and classes leave");
    }
}
