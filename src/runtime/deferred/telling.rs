//! Telling somebody of an end: one try, what is written down of it, and how long until the next one. Which ends are due, and how many are
//! told at once, the worker decides.

use std::{sync::Arc, time::Duration};

use tokio::sync::OwnedSemaphorePermit;

use super::{
    push::Pushed,
    queue::{DeferredQueue, milliseconds},
    settings::PushSettings,
    store::{DeliveryStatus, PushDue, PushSettled},
    view::DeferredView,
};
use crate::runtime::{
    core::{Shared, lock},
    metric,
};

/// Draws for the waits between tries are independent of every other use of chance.
const CHANCE_OF_PUSHES: u64 = 0x7075_7368_6573;
/// The wait between two tries is lengthened by a random part of it of up to this share.
const PUSH_JITTER: f64 = 0.2;

/// The place of one telling, until its drop.
pub(super) struct Telling {
    queue: Arc<DeferredQueue>,
    id: String,
    permit: Option<OwnedSemaphorePermit>,
}

impl Telling {
    /// Before the next look at the queue, which asks who has how much in hand.
    pub(super) fn begin(queue: &Arc<DeferredQueue>, due: &PushDue, permit: OwnedSemaphorePermit) -> Self {
        let head = &due.entry.head;
        lock(&queue.telling).insert(head.id.clone(), (head.agent.clone(), head.owner.tenant.clone()));
        Self { queue: Arc::clone(queue), id: head.id.clone(), permit: Some(permit) }
    }
}

impl Drop for Telling {
    fn drop(&mut self) {
        lock(&self.queue.telling).remove(&self.id);
        drop(self.permit.take());
        self.queue.news.notify_one();
    }
}

/// Tells somebody of an end, once.
pub(super) async fn tell(shared: Arc<Shared>, queue: Arc<DeferredQueue>, due: PushDue, place: Telling) {
    let Some(push) = queue.push.clone() else { return };
    let settings = queue.settings.load().push.clone();
    let attempt = due.attempts.saturating_add(1);
    let (id, view) = (due.entry.head.id.clone(), DeferredView::from(due.entry));
    let told = tokio::time::timeout(settings.timeout, push.push(&view, attempt));
    let late = || Pushed::Failed {
        http_status: None,
        error: format!("no answer within {} s", settings.timeout.as_secs_f64()),
        may_help: true,
        retry_after: None,
    };
    let pushed = tokio::select! {
        biased;
        told = told => told.unwrap_or_else(|_| late()),
        // Whoever comes after this life tries again.
        () = shared.aborting_runs.cancelled() => return,
    };
    let share = shared.chance.fork(CHANCE_OF_PUSHES).share(shared.next_call());
    let settled = settled_push(&settings, pushed, (attempt, share), shared.clock.unix_ms(shared.now()));
    let word = if settled.status == DeliveryStatus::Waiting { "failed" } else { settled.status.as_str() };
    metric::count(metric::DEFERRED_PUSHES, vec![metrics::Label::from_static_parts("result", word)], 1);
    if let Err(error) = queue.store.settle_push(&id, due.generation, settled).await {
        tracing::warn!(%error, entry = id, "what became of telling somebody cannot be written: it is told again");
    }
    drop(place);
}

/// What is written down of a try. `share` is chance, so that what failed together does not come back together.
fn settled_push(settings: &PushSettings, pushed: Pushed, (attempt, share): (u32, f64), at_ms: u64) -> PushSettled {
    let (status, http_status, error, asked) = match pushed {
        Pushed::Taken { http_status } => (DeliveryStatus::Delivered, Some(http_status), None, None),
        Pushed::Failed { http_status, error, may_help, retry_after } => {
            let again = may_help && attempt < settings.attempts_max;
            let status = if again { DeliveryStatus::Waiting } else { DeliveryStatus::GivenUp };
            (status, http_status, Some(error), retry_after)
        }
    };
    let wait = push_wait(settings, (attempt, share), asked);
    PushSettled { status, due_ms: at_ms.saturating_add(milliseconds(wait)), http_status, error, at_ms }
}

/// How long until the next try: doubling, lengthened by chance, no shorter than the other side asked for, never over the longest wait.
fn push_wait(settings: &PushSettings, (attempt, share): (u32, f64), asked: Option<Duration>) -> Duration {
    let doublings = attempt.saturating_sub(1).min(31);
    let doubled = settings.backoff.saturating_mul(1_u32 << doublings).min(settings.backoff_max);
    let lengthened = doubled.mul_f64(1.0 + PUSH_JITTER * share);
    lengthened.max(asked.unwrap_or_default()).min(settings.backoff_max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_between_tries_grow_spread_and_end() {
        let settings = PushSettings {
            backoff: Duration::from_secs(10),
            backoff_max: Duration::from_secs(100),
            ..PushSettings::default()
        };
        let wait = |attempt, share, asked: Option<u64>| {
            push_wait(&settings, (attempt, share), asked.map(Duration::from_secs)).as_secs_f64()
        };
        for (attempt, share, asked, want) in [
            (1, 0.0, None, 10.0),
            (1, 0.5, None, 11.0),
            (2, 0.5, None, 22.0),
            (3, 0.0, Some(7), 40.0),
            (1, 0.5, Some(60), 60.0),
            (1, 0.0, Some(100_000), 100.0),
            (4, 0.999, None, 95.984),
            (5, 0.5, None, 100.0),
            (4_000_000, 0.999, None, 100.0),
        ] {
            assert!(
                (wait(attempt, share, asked) - want).abs() < 0.001,
                "{attempt} {share} {asked:?}: {}",
                wait(attempt, share, asked)
            );
        }
        assert!((0..40).all(|attempt| wait(attempt, 0.999, None) <= 100.0));
    }
}
