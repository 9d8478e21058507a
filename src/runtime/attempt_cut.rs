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
