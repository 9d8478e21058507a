//! What the supervisor's book shows and says of its breakers: metrics and one line a change. It decides nothing.

use std::sync::Arc;

use metrics::{Counter, Gauge, Label};

use super::{
    book::{Entry, Shown},
    metric,
    shielded::Shielded,
};
use crate::policy::breaker::state::{Reason, StateName, Transition};

/// A breaker's metrics, looked up once.
pub(super) struct EntryMetrics {
    pub(super) success: Shielded<Counter>,
    pub(super) failure: Shielded<Counter>,
    pub(super) ignored: Shielded<Counter>,
    pub(super) stale: Shielded<Counter>,
    pub(super) failure_share: Shielded<Gauge>,
    pub(super) slow_share: Shielded<Gauge>,
}

impl EntryMetrics {
    pub(super) fn of(name: &Arc<str>) -> Self {
        let outcome = |verdict: &'static str| {
            let labels = vec![Label::new("breaker", name.to_string()), Label::from_static_parts("verdict", verdict)];
            Shielded::from(metrics::counter!(metric::BREAKER_OUTCOMES.name, labels))
        };
        let labels = || vec![Label::new("breaker", name.to_string())];
        let share = |metric: metric::Metric| Shielded::from(metrics::gauge!(metric.name, labels()));
        Self {
            failure_share: share(metric::BREAKER_FAILURE_SHARE),
            slow_share: share(metric::BREAKER_SLOW_SHARE),
            success: outcome("success"),
            failure: outcome("failure"),
            ignored: outcome("ignored"),
            stale: metrics::counter!(metric::BREAKER_STALE.name, labels()).into(),
        }
    }
}

/// One line a transition; never one a call.
pub(super) fn tell(breaker: &Arc<str>, transition: Transition) {
    tracing::warn!(
        breaker = &**breaker,
        from = transition.from.as_str(),
        to = transition.to.as_str(),
        reason = transition.reason.as_str(),
        value = transition.value,
        generation = transition.generation,
        "breaker changed"
    );
    let labels = vec![
        Label::new("breaker", breaker.to_string()),
        Label::from_static_parts("from", transition.from.as_str()),
        Label::from_static_parts("to", transition.to.as_str()),
        Label::from_static_parts("reason", transition.reason.as_str()),
    ];
    metric::count(metric::BREAKER_TRANSITIONS, labels, 1);
}

/// One-hot, so that the sum over states is always 1.
pub(super) fn show_state(entry: &Entry) {
    if entry.shown == Shown::Hidden {
        return;
    }
    let snapshot = entry.breaker.snapshot();
    for state in StateName::ALL {
        let labels =
            vec![Label::new("breaker", entry.name.to_string()), Label::from_static_parts("state", state.as_str())];
        metric::set(metric::BREAKER_STATE, labels, if state == snapshot.state { 1.0 } else { 0.0 });
    }
    show_shares(entry);
}

pub(super) fn show_shares(entry: &Entry) {
    if entry.shown == Shown::Hidden {
        return;
    }
    let snapshot = entry.breaker.snapshot();
    entry.metrics.failure_share.set(snapshot.failure_share.unwrap_or(0.0));
    entry.metrics.slow_share.set(snapshot.slow_share.unwrap_or(0.0));
}

/// What a breaker that only measures would have done.
pub(super) fn tell_exceeded(entry: &Entry, exceeded: &[(Reason, f64)]) {
    if entry.breaker.state() != StateName::MetricsOnly {
        return;
    }
    for (reason, value) in exceeded {
        tracing::warn!(breaker = &*entry.name, reason = reason.as_str(), value, "breaker would have opened");
        let labels =
            vec![Label::new("breaker", entry.name.to_string()), Label::from_static_parts("reason", reason.as_str())];
        metric::count(metric::BREAKER_WOULD_OPEN, labels, 1);
    }
}
