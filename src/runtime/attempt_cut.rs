//! An attempt that was ended from outside, by its caller or by a clock, as a failure.

use std::time::Duration;

use crate::model::{facts::Ending, reply::AttemptFailure};

/// The caller left.
pub(super) fn cancelled(slow_without_content: bool) -> AttemptFailure {
    AttemptFailure::new(Ending::Cancelled { slow_without_content }, "the caller left")
}

/// `limit` ran out: the attempt's own, the call's, or a deadline's, as `ending` says.
pub(super) fn cut_failure(ending: Ending, limit: Duration) -> AttemptFailure {
    let message = match ending {
        Ending::DeadlineCut => format!("the deadline passed after {:.1} s of this attempt", limit.as_secs_f64()),
        _ => format!("no complete answer within {:.1} s", limit.as_secs_f64()),
    };
    AttemptFailure::new(ending, message)
}

/// The same of an answer that was under way: `limit` is how long its next piece was waited for.
pub(super) fn cut_between(ending: Ending, limit: Duration) -> AttemptFailure {
    let message = match ending {
        Ending::DeadlineCut => "the deadline passed while the answer was under way".to_owned(),
        _ => format!("the answer stalled: nothing came for {:.1} s", limit.as_secs_f64()),
    };
    AttemptFailure::new(ending, message)
}

/// How long an attempt may still take, where its reader takes time of its own.
pub(super) struct Patience {
    limit: Duration,
    ending: Ending,
    given_back: Duration,
}

impl Patience {
    pub(super) fn new(limit: Duration, ending: Ending) -> Self {
        Self { limit, ending, given_back: Duration::ZERO }
    }

    /// The limit has run out, and the reader has taken so much of it: how long to wait on, if at all. What a reader takes is no time of the
    /// agent's; a deadline, of which so much is `left`, is one whoever is slow.
    pub(super) fn for_reader(&mut self, waited: Duration, left: Option<Duration>) -> Option<Duration> {
        let more = waited.saturating_sub(self.given_back);
        if more.is_zero() || self.ending == Ending::DeadlineCut {
            return None;
        }
        self.given_back += more;
        let within = left.filter(|left| *left < more);
        if within.is_some() {
            self.ending = Ending::DeadlineCut;
        }
        let more = within.unwrap_or(more);
        self.limit += more;
        Some(more)
    }

    /// The failure of an attempt that has none left.
    pub(super) fn over(self) -> AttemptFailure {
        cut_failure(self.ending, self.limit)
    }
}
