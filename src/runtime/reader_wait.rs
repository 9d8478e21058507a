//! How long an attempt's output has waited for whoever reads it. That time is the reader's: no timeout and no slowness of the agent has a
//! part in it. Waits for nobody longer than they take.

use std::{
    future::{Future, poll_fn},
    sync::atomic::{AtomicU64, Ordering},
    task::Poll,
    time::Duration,
};

use tokio::time::Instant;

/// The time of one attempt's reader.
#[derive(Debug)]
pub(crate) struct ReaderWait {
    began: Instant,
    waited_us: AtomicU64,
    /// Since when the reader is waited for, in microseconds after `began` and one more; zero while it is not.
    since_us: AtomicU64,
}

impl ReaderWait {
    pub(crate) fn new() -> Self {
        Self { began: Instant::now(), waited_us: AtomicU64::new(0), since_us: AtomicU64::new(0) }
    }

    /// Hands something on to the reader, in the reader's time.
    pub(crate) async fn during<T>(&self, hand_on: impl Future<Output = T>) -> T {
        tokio::pin!(hand_on);
        // Nearly always it is taken at once, and then no clock is asked.
        if let Poll::Ready(taken) = poll_fn(|context| Poll::Ready(hand_on.as_mut().poll(context))).await {
            return taken;
        }
        let since = self.now_us();
        self.since_us.store(since + 1, Ordering::Relaxed);
        let taken = hand_on.await;
        self.since_us.store(0, Ordering::Relaxed);
        self.waited_us.fetch_add(self.now_us().saturating_sub(since), Ordering::Relaxed);
        taken
    }

    /// All of it so far, a wait under way included.
    pub(crate) fn so_far(&self) -> Duration {
        let under_way = match self.since_us.load(Ordering::Relaxed) {
            0 => 0,
            since => self.now_us().saturating_sub(since - 1),
        };
        Duration::from_micros(self.waited_us.load(Ordering::Relaxed).saturating_add(under_way))
    }

    fn now_us(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_time_that_is_waited_counts() {
        let wait = ReaderWait::new();
        wait.during(std::future::ready(())).await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(wait.so_far(), Duration::ZERO);
        wait.during(tokio::time::sleep(Duration::from_secs(7))).await;
        assert_eq!(wait.so_far(), Duration::from_secs(7));
        // One that never comes counts while it is waited for.
        let _ = tokio::time::timeout(Duration::from_secs(2), wait.during(std::future::pending::<()>())).await;
        assert_eq!(wait.so_far(), Duration::from_secs(9));
    }
}
