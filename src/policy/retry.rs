//! Whether a failed attempt is repeated inside its call, and after how long. Reads what the envelope says, never the verdict.

use std::{collections::VecDeque, time::Duration};

use super::{backoff::BACKOFF_FLOOR, chance::Chance, retry_settings::RetrySettings};
use crate::model::{
    clock::Timestamp,
    facts::{Ending, TimeoutKind},
};

/// Whether a later try can succeed, as the envelope says or, where it is silent, as its status implies.
pub fn is_retryable(ending: &Ending) -> bool {
    match ending {
        Ending::Status { quota_spent: Some(_), .. }
        | Ending::Status { content_filter: true, .. }
        | Ending::Status { context_too_long: true, .. }
        | Ending::Success
        | Ending::CallerShape
        | Ending::Cancelled { .. }
        | Ending::DeadlineCut
        | Ending::Internal => false,
        Ending::Status { status, retryable, .. } => retryable.unwrap_or(matches!(status, 408 | 425 | 429 | 500..=599)),
        Ending::Network { .. }
        | Ending::Timeout { .. }
        | Ending::BadReply
        | Ending::NoDraft
        | Ending::StreamCut
        | Ending::Restarted
        | Ending::Loading
        | Ending::OwnRefusal => true,
    }
}

/// A failed attempt as the plan sees it.
#[derive(Debug, Clone, Copy)]
pub struct Failed<'a> {
    /// How it ended.
    pub ending: &'a Ending,
    /// Which attempt it was, from 1.
    pub attempt: u32,
    /// How long it took.
    pub elapsed: Duration,
    /// How long the other side asked us to stay away.
    pub retry_after: Option<Duration>,
    /// Its word on trying again inside this call (`x-should-retry`). A no is obeyed; a yes lifts nothing.
    pub should_retry: Option<bool>,
    /// Attempts of this call that ended in a bad reply or in no draft, this one included.
    pub bad_replies: u32,
    /// Whether any content of it was passed on already.
    pub committed: bool,
    /// Whether the call is a trial of a half-open gate.
    pub trial: bool,
    /// What the call has left.
    pub time_left: Duration,
}

/// What to do after a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Try again after this wait. The budget must still allow it.
    Again {
        /// The wait.
        after: Duration,
    },
    /// The call ends with this attempt's error.
    Stop(Stop),
}

/// Why a call makes no further attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// The envelope says that no later try can succeed.
    NotRetryable,
    /// The other side has tried itself and said that its callers should not: layers must not multiply.
    ToldNotTo,
    /// All attempts are used up.
    AttemptsUsed,
    /// A trial makes one attempt.
    Trial,
    /// It timed out or ran too long to be worth repeating in the slot.
    TooLong,
    /// One more after a bad reply was made already.
    BadReplyAgain,
    /// The other side asked for a pause that is not slept while holding a slot.
    WaitTooLong,
    /// The pause, or the next attempt, does not fit into what the call has left.
    NoTimeLeft,
    /// Something was passed on already.
    Committed,
}

impl Stop {
    /// Whether outer layers must not try again at once: the call's tries were used up, here, where they are counted.
    pub const fn is_final(self) -> bool {
        !matches!(self, Self::WaitTooLong | Self::NoTimeLeft | Self::NotRetryable)
    }
}

/// Decides on the next attempt.
pub fn next(settings: &RetrySettings, failed: Failed<'_>, chance: Chance) -> Next {
    if failed.committed {
        return Next::Stop(Stop::Committed);
    }
    if !is_retryable(failed.ending) {
        return Next::Stop(Stop::NotRetryable);
    }
    if failed.should_retry == Some(false) {
        return Next::Stop(Stop::ToldNotTo);
    }
    if failed.trial {
        return Next::Stop(Stop::Trial);
    }
    if failed.attempt >= settings.attempts_max {
        return Next::Stop(Stop::AttemptsUsed);
    }
    let timed_out = matches!(failed.ending, Ending::Timeout { .. });
    if timed_out || failed.elapsed > settings.retry_below {
        return Next::Stop(Stop::TooLong);
    }
    if matches!(failed.ending, Ending::BadReply | Ending::NoDraft) && failed.bad_replies > 1 {
        return Next::Stop(Stop::BadReplyAgain);
    }
    let own = settings.backoff.wait(failed.attempt - 1, chance);
    let after = match failed.retry_after {
        Some(asked) if asked > settings.retry_wait_max => return Next::Stop(Stop::WaitTooLong),
        Some(asked) if !asked.is_zero() => asked.max(BACKOFF_FLOOR),
        _ => own,
    };
    if after >= failed.time_left {
        return Next::Stop(Stop::NoTimeLeft);
    }
    Next::Again { after }
}

/// An attempt that was cut: by its own timeout, or by a deadline of the caller or run that came first.
pub fn cut(own: Option<Duration>, call_left: Duration, run_left: Option<Duration>) -> (Duration, Ending) {
    let (own_or_call, kind) = match own {
        Some(own) if own <= call_left => (own, TimeoutKind::Attempt),
        _ => (call_left, TimeoutKind::Call),
    };
    match run_left {
        Some(run_left) if run_left < own_or_call => (run_left, Ending::DeadlineCut),
        _ => (own_or_call, Ending::Timeout { timeout: kind }),
    }
}

/// How many retries an agent or provider may still make: a share of its calls over a rolling window, and always a few.
#[derive(Debug, Clone)]
pub struct RetryBudget {
    share: f64,
    min: u32,
    window: Duration,
    seconds: VecDeque<Second>,
    calls: u64,
    retries: u64,
}

#[derive(Debug, Clone, Copy)]
struct Second {
    number: u64,
    calls: u64,
    retries: u64,
}

impl RetryBudget {
    /// An unused budget.
    pub fn new(settings: &RetrySettings) -> Self {
        Self {
            share: settings.budget_share,
            min: settings.budget_min,
            window: settings.budget_window,
            seconds: VecDeque::new(),
            calls: 0,
            retries: 0,
        }
    }

    /// Other settings; what was counted stays, as far as the window reaches.
    pub fn reconfigure(&mut self, settings: &RetrySettings) {
        (self.share, self.min, self.window) = (settings.budget_share, settings.budget_min, settings.budget_window);
    }

    /// A call began.
    pub fn count_call(&mut self, now: Timestamp) {
        self.prune(now);
        self.calls += 1;
        self.second(now).calls += 1;
    }

    /// Whether one more retry is allowed.
    pub fn allows(&mut self, now: Timestamp) -> bool {
        self.prune(now);
        (self.retries as f64) < (self.calls as f64 * self.share).max(f64::from(self.min))
    }

    /// A retry is made.
    pub fn count_retry(&mut self, now: Timestamp) {
        self.retries += 1;
        self.second(now).retries += 1;
    }

    fn prune(&mut self, now: Timestamp) {
        let first = (now.nanoseconds() / 1_000_000_000).saturating_sub(self.window.as_secs().saturating_sub(1));
        while let Some(oldest) = self.seconds.front().copied().filter(|oldest| oldest.number < first) {
            self.calls -= oldest.calls;
            self.retries -= oldest.retries;
            self.seconds.pop_front();
        }
    }

    fn second(&mut self, now: Timestamp) -> &mut Second {
        let second = now.nanoseconds() / 1_000_000_000;
        let index = self.seconds.partition_point(|known| known.number < second);
        if self.seconds.get(index).is_none_or(|known| known.number != second) {
            self.seconds.insert(index, Second { number: second, calls: 0, retries: 0 });
        }
        &mut self.seconds[index]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CHANCE: Chance = Chance::from_seed(3);

    fn check(ending: &Ending, change: impl FnOnce(&mut Failed<'_>), want: Option<Stop>) {
        let mut failed = Failed {
            ending,
            attempt: 1,
            elapsed: Duration::from_secs(1),
            retry_after: None,
            should_retry: None,
            bad_replies: u32::from(matches!(ending, Ending::BadReply | Ending::NoDraft)),
            committed: false,
            trial: false,
            time_left: Duration::from_secs(100),
        };
        change(&mut failed);
        let got = match next(&RetrySettings::default(), failed, CHANCE) {
            Next::Again { after } => {
                assert!(after >= BACKOFF_FLOOR && after <= Duration::from_secs(30));
                None
            }
            Next::Stop(stop) => Some(stop),
        };
        assert_eq!(got, want, "{ending:?}");
    }

    #[test]
    fn what_is_repeated() {
        let again = Ending::status(503);
        let timeout = Ending::Timeout { timeout: TimeoutKind::FirstToken };
        let seconds = Duration::from_secs;
        check(&again, |_| (), None);
        check(&Ending::status(429), |f| f.retry_after = Some(seconds(3)), None);
        check(&Ending::status(408), |_| (), None);
        check(&Ending::Network { connected: false }, |_| (), None);
        check(&Ending::BadReply, |_| (), None);
        check(&Ending::BadReply, |f| f.bad_replies = 2, Some(Stop::BadReplyAgain));
        check(&Ending::NoDraft, |_| (), None);
        check(&Ending::NoDraft, |f| f.bad_replies = 2, Some(Stop::BadReplyAgain));
        check(&Ending::status(404), |_| (), Some(Stop::NotRetryable));
        check(&Ending::status(501), |_| (), None);
        check(&again, |f| f.attempt = 3, Some(Stop::AttemptsUsed));
        check(&again, |f| f.elapsed = seconds(5), None);
        check(&again, |f| f.elapsed = Duration::from_millis(5_001), Some(Stop::TooLong));
        check(&timeout, |_| (), Some(Stop::TooLong));
        check(&again, |f| f.trial = true, Some(Stop::Trial));
        check(&again, |f| f.committed = true, Some(Stop::Committed));
        check(&again, |f| f.retry_after = Some(seconds(10)), None);
        check(&again, |f| f.retry_after = Some(seconds(11)), Some(Stop::WaitTooLong));
        check(&again, |f| f.retry_after = Some(Duration::MAX), Some(Stop::WaitTooLong));
        check(&again, |f| f.retry_after = Some(Duration::ZERO), None);
        check(&again, |f| f.time_left = Duration::from_millis(10), Some(Stop::NoTimeLeft));
        check(&Ending::DeadlineCut, |_| (), Some(Stop::NotRetryable));
        check(&again, |f| f.should_retry = Some(false), Some(Stop::ToldNotTo));
        check(&Ending::status(429), |f| f.should_retry = Some(false), Some(Stop::ToldNotTo));
        check(&Ending::BadReply, |f| f.should_retry = Some(false), Some(Stop::ToldNotTo));
        check(&again, |f| f.should_retry = Some(true), None);
        check(&Ending::status(404), |f| f.should_retry = Some(true), Some(Stop::NotRetryable));
        check(&Ending::status(404), |f| f.should_retry = Some(false), Some(Stop::NotRetryable));
        check(&Ending::CallerShape, |f| f.should_retry = Some(true), Some(Stop::NotRetryable));
        check(&timeout, |f| f.should_retry = Some(true), Some(Stop::TooLong));
        check(&Ending::OwnRefusal, |f| f.retry_after = Some(seconds(1)), None);
    }

    #[test]
    fn an_asked_wait_is_kept_exactly() {
        let ending = Ending::status(429);
        let failed = |asked| Failed {
            ending: &ending,
            attempt: 1,
            elapsed: Duration::ZERO,
            retry_after: Some(asked),
            should_retry: None,
            bad_replies: 0,
            committed: false,
            trial: false,
            time_left: Duration::from_secs(100),
        };
        for (asked_ms, after_ms) in [(3_000, 3_000), (1_500, 1_500), (12, 50)] {
            let next = next(&RetrySettings::default(), failed(Duration::from_millis(asked_ms)), CHANCE);
            assert_eq!(next, Next::Again { after: Duration::from_millis(after_ms) });
        }
    }

    #[test]
    fn who_cuts_an_attempt() {
        let seconds = Duration::from_secs;
        let timeout = |timeout| Ending::Timeout { timeout };
        for (own, call, run, want) in [
            (Some(60), 180, None, (60, timeout(TimeoutKind::Attempt))),
            (Some(60), 20, None, (20, timeout(TimeoutKind::Call))),
            (None, 180, Some(500), (180, timeout(TimeoutKind::Call))),
            (Some(60), 180, Some(60), (60, timeout(TimeoutKind::Attempt))),
            (Some(60), 180, Some(59), (59, Ending::DeadlineCut)),
        ] {
            assert_eq!(cut(own.map(seconds), seconds(call), run.map(seconds)), (seconds(want.0), want.1));
        }
    }

    #[test]
    fn a_few_retries_are_always_allowed_and_a_share_beyond() {
        let mut budget = RetryBudget::new(&RetrySettings::default());
        let now = Timestamp::from_millis(1_000);
        for _ in 0..3 {
            assert!(budget.allows(now));
            budget.count_retry(now);
        }
        assert!(!budget.allows(now));
        for _ in 0..20 {
            budget.count_call(now);
        }
        assert!(budget.allows(now), "20 % of 20 calls are 4");
        budget.count_retry(now);
        assert!(!budget.allows(now));
        assert!(!budget.allows(Timestamp::from_millis(60_999)));
        assert!(budget.allows(Timestamp::from_millis(61_000)), "the first second has left the window");
    }

    proptest! {
        #[test]
        fn retries_never_pass_the_budget(steps in prop::collection::vec((any::<bool>(), 0_u64..3_000), 1..300)) {
            let settings = RetrySettings::default();
            let mut budget = RetryBudget::new(&settings);
            let (mut at, mut calls, mut retries) = (0, Vec::new(), Vec::new());
            for (call, wait) in steps {
                at += wait;
                let now = Timestamp::from_millis(at);
                let first = (at / 1_000).saturating_sub(59);
                calls.retain(|second| *second >= first);
                retries.retain(|second| *second >= first);
                if call {
                    budget.count_call(now);
                    calls.push(at / 1_000);
                } else {
                    let want = (retries.len() as f64) < (calls.len() as f64 * 0.2).max(3.0);
                    prop_assert_eq!(budget.allows(now), want);
                    if want {
                        budget.count_retry(now);
                        retries.push(at / 1_000);
                    }
                }
            }
        }
    }
}
