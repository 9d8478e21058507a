//! Requests a minute: a limiter of `governor` on the runtime's own clock. So many pass at once, and then one each time as a further one is
//! due. What is refused further in gives its request back: the library has no way to do so, but where it keeps its state is ours to say.
//! It refuses; it never waits, and never counts in flight.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use governor::{
    Quota, RateLimiter, clock,
    middleware::NoOpMiddleware,
    nanos::Nanos,
    state::{NotKeyed, StateStore},
};

use super::{
    ports::Clock,
    shielded::shielded,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};
use crate::model::clock::Timestamp;

/// A refused caller is told to stay away for at least this long.
const RETRY_AFTER_MIN: Duration = Duration::from_secs(1);
/// Nobody is told to wait longer: a request is due each minute at least.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);
/// Those who are refused come back spread over this share of the wait, else all would come for the one request that is free.
const RETRY_AFTER_SPREAD: f64 = 0.25;
/// A wait this long is told to operators, once until somebody passes again: such a limit is hardly meant so.
const LONG_WAIT: Duration = Duration::from_secs(30);

/// The latest moment at which somebody asked: the library's clock, so that it goes by the moment that an admission has read already.
#[derive(Clone)]
struct AskedAt(Arc<AtomicU64>);

impl AskedAt {
    fn new(now: Timestamp) -> Self {
        Self(Arc::new(AtomicU64::new(now.nanoseconds())))
    }

    /// Somebody asks at `now`. A clock read before another thread's changes nothing.
    fn ask(&self, now: Timestamp) {
        if self.0.load(Ordering::Acquire) < now.nanoseconds() {
            self.0.fetch_max(now.nanoseconds(), Ordering::AcqRel);
        }
    }
}

impl clock::Clock for AskedAt {
    type Instant = Nanos;

    fn now(&self) -> Nanos {
        Nanos::from(self.0.load(Ordering::Acquire))
    }
}

/// When all requests that passed so far are made up for, in nanoseconds since the limiter's start; 0 = none passed.
#[derive(Clone, Default)]
struct MadeUpAt(Arc<AtomicU64>);

impl StateStore for MadeUpAt {
    type Key = NotKeyed;

    fn measure_and_replace<T, F, E>(&self, _: &NotKeyed, decide: F) -> Result<T, E>
    where
        F: Fn(Option<Nanos>) -> Result<(T, Nanos), E>,
    {
        let mut before = self.0.load(Ordering::Acquire);
        loop {
            let (result, after) = decide(Some(before).filter(|at| *at > 0).map(Nanos::from))?;
            match self.0.compare_exchange_weak(before, after.as_u64(), Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Ok(result),
                Err(other) => before = other,
            }
        }
    }
}

/// No request is free now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TooMany {
    /// Whose requests they are: `caller`, `feature:NAME`, `provider:NAME`.
    pub(crate) of: Arc<str>,
    /// Until the next one is.
    pub(crate) wait: Duration,
    /// The limit.
    pub(crate) per_minute: NonZeroU32,
}

impl TooMany {
    /// What a refused caller is told; `jitter` is at least 0 and below 1.
    pub(crate) fn retry_after(&self, jitter: f64) -> Duration {
        self.wait.clamp(RETRY_AFTER_MIN, RETRY_AFTER_MAX).mul_f64(1.0 + RETRY_AFTER_SPREAD * jitter)
    }
}

/// One limit of requests a minute. It can be told another limit while requests pass.
pub(crate) struct Rate {
    of: Arc<str>,
    bucket: ArcSwap<Bucket>,
    /// Whether a long wait was told since the last request that passed.
    told: AtomicBool,
    clock: Arc<dyn Clock>,
}

/// What a limit is as long as its number stays the same.
struct Bucket {
    per_minute: NonZeroU32,
    limiter: RateLimiter<NotKeyed, MadeUpAt, AskedAt, NoOpMiddleware<Nanos>>,
    asked_at: AskedAt,
    made_up_at: MadeUpAt,
    /// What one request takes to be made up for, in nanoseconds.
    each: u64,
    /// What `made_up_at` counts from.
    started: Timestamp,
}

impl Bucket {
    fn new(per_minute: NonZeroU32, started: Timestamp) -> Self {
        let quota = Quota::per_minute(per_minute);
        let (made_up_at, asked_at) = (MadeUpAt::default(), AskedAt::new(started));
        let each = u64::try_from(quota.replenish_interval().as_nanos()).unwrap_or(u64::MAX);
        let limiter = RateLimiter::new(quota, made_up_at.clone(), asked_at.clone());
        Self { per_minute, limiter, asked_at, made_up_at, each, started }
    }

    /// Another limit of which as many requests are used as of this one, as far as it has as many.
    fn with_limit(&self, per_minute: NonZeroU32, now: Timestamp) -> Self {
        let other = Self::new(per_minute, now);
        let passed = nanoseconds(other.started.since(self.started));
        let left = self.made_up_at.0.load(Ordering::Acquire).saturating_sub(passed);
        // Parts of a request count too: else many changes one after the other would give requests away.
        let used = u128::from(left) * u128::from(other.each) / u128::from(self.each.max(1));
        let all = u64::from(per_minute.get()).saturating_mul(other.each);
        other.made_up_at.0.store(u64::try_from(used).unwrap_or(u64::MAX).min(all), Ordering::Release);
        other
    }
}

impl std::fmt::Debug for Rate {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let per_minute = self.bucket.load().per_minute;
        formatter.debug_struct("Rate").field("of", &self.of).field("per_minute", &per_minute).finish_non_exhaustive()
    }
}

impl Rate {
    /// So many a minute of what is named so, all of them free.
    pub(crate) fn new(of: Arc<str>, per_minute: NonZeroU32, clock: Arc<dyn Clock>) -> Self {
        let bucket = ArcSwap::from_pointee(Bucket::new(per_minute, clock.now()));
        Self { of, bucket, told: AtomicBool::new(false), clock }
    }

    /// Another limit from now on; requests that passed stay counted. Whoever changes a limit is alone in that.
    pub(crate) fn change_limit(&self, per_minute: NonZeroU32) {
        let bucket = self.bucket.load();
        if bucket.per_minute != per_minute {
            self.bucket.store(Arc::new(bucket.with_limit(per_minute, self.clock.now())));
        }
    }

    /// Whether all its requests are free: nothing would be lost with it.
    pub(crate) fn is_unused(&self) -> bool {
        let bucket = self.bucket.load();
        bucket.made_up_at.0.load(Ordering::Acquire) <= nanoseconds(self.clock.now().since(bucket.started))
    }

    /// Lets a request pass that comes at `now`, or says when the next one may.
    pub(crate) fn take(&self, now: Timestamp) -> Result<(), TooMany> {
        let bucket = self.bucket.load();
        bucket.asked_at.ask(now);
        let Err(not_until) = bucket.limiter.check() else {
            // Read first: whoever writes there takes the line from all others.
            if self.told.load(Ordering::Relaxed) {
                self.told.store(false, Ordering::Relaxed);
            }
            return Ok(());
        };
        let wait = not_until.wait_time_from(Nanos::from(now.nanoseconds())).min(RETRY_AFTER_MAX);
        let per_minute = bucket.per_minute;
        if wait >= LONG_WAIT && !self.told.swap(true, Ordering::Relaxed) {
            tracing::warn!(limit = %self.of, per_minute, wait_s = wait.as_secs_f64(), "requests wait long");
        }
        Err(TooMany { of: Arc::clone(&self.of), wait, per_minute })
    }

    /// Takes a request that is about to be sent.
    pub(crate) fn request(self: &Arc<Self>) -> Result<Request, TooMany> {
        let at = self.clock.now();
        self.request_at(at)
    }

    /// The same, at this moment.
    pub(crate) fn request_at(self: &Arc<Self>, at: Timestamp) -> Result<Request, TooMany> {
        self.take(at).map(|()| Request::taken(self, at))
    }

    /// Gives back the request that was let pass a moment ago: it was refused further in, as if it had never been asked for. Only for
    /// what was taken in the same admission: after a minute there is nothing left to give back.
    pub(crate) fn give_back(&self) {
        let bucket = self.bucket.load();
        // What it is less than zero by was made up for before; then all are free anyway.
        let back = |at: u64| Some(at.saturating_sub(bucket.each));
        let _ = bucket.made_up_at.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, back);
    }
}

/// A request that was let pass and is not sent yet. Dropped so, it goes back while it cannot have been made up for: given back later it
/// would be one more than the limit.
pub(crate) struct Request {
    rate: Option<Arc<Rate>>,
    at: Timestamp,
}

impl Request {
    /// What was taken from `rate` at this moment.
    pub(crate) fn taken(rate: &Arc<Rate>, at: Timestamp) -> Self {
        Self { rate: Some(Arc::clone(rate)), at }
    }

    /// It is sent: nobody gives it back.
    pub(crate) fn send(mut self) {
        self.rate = None;
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        let Some(rate) = self.rate.take() else { return };
        let each = rate.bucket.load().each;
        // A clock that panics is somebody else's: then nothing is given back.
        let now = shielded(|| rate.clock.now());
        if now.is_some_and(|now| nanoseconds(now.since(self.at)) < each) {
            rate.give_back();
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {

    use proptest::prelude::*;

    use super::*;
    use crate::runtime::tests::hand_clock::HandClock;

    fn limit(per_minute: u32) -> NonZeroU32 {
        NonZeroU32::new(per_minute).unwrap()
    }

    fn rate(per_minute: u32) -> (Rate, Arc<HandClock>) {
        let clock = Arc::new(HandClock::at(Timestamp::from_millis(1_796_000_000_000)));
        (Rate::new("test".into(), limit(per_minute), Arc::clone(&clock) as Arc<dyn Clock>), clock)
    }

    fn go(clock: &HandClock, time: Duration) {
        clock.set(clock.now().after(time));
    }

    fn passes(rate: &Rate) -> bool {
        rate.take(rate.clock.now()).is_ok()
    }

    #[test]
    fn so_many_at_once_and_then_as_they_are_due() {
        let (rate, clock) = rate(60);
        assert!((0..60).all(|_| passes(&rate)));
        let refused = TooMany { of: "test".into(), wait: Duration::from_secs(1), per_minute: limit(60) };
        assert_eq!(rate.take(clock.now()), Err(refused));
        go(&clock, Duration::from_millis(999));
        assert!(!passes(&rate));
        go(&clock, Duration::from_millis(1));
        assert!(passes(&rate) && !passes(&rate));
        go(&clock, Duration::from_secs(60));
        assert_eq!((0..100).filter(|_| passes(&rate)).count(), 60);
    }

    #[test]
    fn one_a_minute_is_one_a_minute_and_no_wait_is_longer() {
        let (rate, clock) = rate(1);
        for _ in 0..3 {
            assert!(passes(&rate));
            let refused = rate.take(clock.now()).unwrap_err();
            assert_eq!(refused.wait, Duration::from_secs(60));
            for jitter in [0.0, 0.5, 0.999] {
                assert!((60.0..=75.0).contains(&refused.retry_after(jitter).as_secs_f64()));
            }
            go(&clock, Duration::from_secs(60));
        }
        let soon = TooMany { of: "test".into(), wait: Duration::from_millis(3), per_minute: limit(20_000) };
        assert_eq!(soon.retry_after(0.0), Duration::from_secs(1));
    }

    #[test]
    fn what_is_given_back_was_never_asked_for() {
        let (rate, clock) = rate(1);
        for _ in 0..1_000 {
            assert!(passes(&rate), "all those before it were refused further in");
            rate.give_back();
            go(&clock, Duration::from_millis(10));
        }
        rate.give_back();
        assert!(passes(&rate) && !passes(&rate), "nothing given back twice makes two of one");
    }

    #[test]
    fn another_limit_begins_where_this_one_stands() {
        let (rate, clock) = rate(60);
        assert!((0..30).all(|_| passes(&rate)));
        go(&clock, Duration::from_secs(10));
        // 20 are used still; of a smaller limit all are, and it makes up for them at its own pace.
        for (per_minute, free) in [(120, 100), (60, 0), (30, 0), (120, 90)] {
            rate.change_limit(limit(per_minute));
            let passed = (0..200).filter(|_| passes(&rate)).count();
            assert_eq!(passed, free, "{per_minute}");
        }
        assert!(rate.take(clock.now()).unwrap_err().wait <= Duration::from_millis(500));
        rate.change_limit(limit(10));
        assert_eq!(rate.take(clock.now()).unwrap_err().wait, Duration::from_secs(6));
    }

    #[test]
    fn a_thousand_changes_give_no_request_away() {
        let (rate, clock) = rate(60);
        assert!((0..60).all(|_| passes(&rate)));
        for round in 0..1_000_u32 {
            rate.change_limit(limit(60 + round % 2 * 60));
            go(&clock, Duration::from_micros(900));
        }
        // 0.9 s, half of it at 60 a minute and half at 120: 1.35 of 60 are made up for.
        rate.change_limit(limit(60));
        assert_eq!((0..60).filter(|_| passes(&rate)).count(), 1);
    }

    #[test]
    fn a_request_that_was_not_sent_goes_back_as_long_as_it_was_not_made_up_for() {
        for (wait, free) in [(0, 10), (5_999, 10), (6_000, 10), (30_000, 10)] {
            let (rate, clock) = rate(10);
            let rate = Arc::new(rate);
            let unsent = rate.request().unwrap();
            go(&clock, Duration::from_millis(wait));
            drop(unsent);
            assert_eq!((0..20).filter(|_| passes(&rate)).count(), free, "{wait}");
        }
        // It was made up for long ago: given back to the next ten it would make eleven of them.
        let (rate, clock) = rate(10);
        let rate = Arc::new(rate);
        let unsent = rate.request().unwrap();
        for _ in 0..9 {
            rate.request().unwrap().send();
        }
        assert!(!passes(&rate));
        go(&clock, Duration::from_secs(60));
        assert!((0..10).all(|_| passes(&rate)));
        drop(unsent);
        assert!(!passes(&rate));
    }

    proptest! {
        /// However requests come and are given back: between any two of them not more passed than the limit at once and what became due
        /// meanwhile; and whoever was told to wait passes after that.
        #[test]
        fn no_span_holds_more_than_its_share(
            per_minute in 1_u32..50,
            steps in prop::collection::vec((0_u64..4_000, 0_u8..4), 1..200),
        ) {
            let (rate, clock) = rate(per_minute);
            let (mut passed, mut now): (Vec<u64>, u64) = (Vec::new(), 0);
            for (wait, act) in steps {
                now += wait;
                go(&clock, Duration::from_millis(wait));
                match rate.take(clock.now()) {
                    Ok(()) if act == 0 => rate.give_back(),
                    Ok(()) => passed.push(now),
                    Err(refused) => {
                        prop_assert!(refused.wait <= Duration::from_secs(60));
                        prop_assert!(!refused.wait.is_zero());
                    }
                }
            }
            for (first, begins) in passed.iter().enumerate() {
                for (last, ends) in passed.iter().enumerate().skip(first) {
                    let due = f64::from(per_minute) * (1.0 + (ends - begins) as f64 / 60_000.0) + 1e-6;
                    prop_assert!((last - first + 1) as f64 <= due, "{} from {begins} to {ends}", last - first + 1);
                }
            }
        }
    }
}
