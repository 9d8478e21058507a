//! How an attempt ended, as facts: no judgement yet. The verdict (policy) is a total function over these.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Which of our clocks ran out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TimeoutKind {
    /// No connection in time: nothing was sent.
    Connect,
    /// No content in time.
    FirstToken,
    /// Content stopped coming.
    Stall,
    /// The attempt as a whole.
    Attempt,
    /// The call as a whole.
    Call,
}

/// How one attempt, or the call it belongs to, ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Ending {
    /// A 2xx of the promised shape, also when the model stopped for length or by a content filter.
    Success,
    /// An answer with an error status: as received, or as named inside a 200.
    Status {
        /// The status.
        status: u16,
        /// The envelope's own word, if it had one.
        retryable: Option<bool>,
        /// A refusal by content review.
        content_filter: bool,
        /// The prompt does not fit the model.
        context_too_long: bool,
        /// A quota is used up; until when, if it was said.
        quota_spent: Option<QuotaReset>,
    },
    /// No answer: DNS, refused, reset, broken body.
    Network {
        /// False if no connection ever came to be.
        connected: bool,
    },
    /// One of our own timeouts.
    Timeout {
        /// Which one.
        timeout: TimeoutKind,
    },
    /// A complete answer that is not of the shape *we* promised.
    BadReply,
    /// The model was loaded or put away, and the server said so instead of answering: complete, well formed, and no answer.
    NoDraft,
    /// A stream that ended without any mark of its end.
    StreamCut,
    /// A complete answer that breaks a schema or length that the *caller* brought.
    CallerShape,
    /// The caller left.
    Cancelled {
        /// True if the attempt had already run past the slow threshold without content.
        slow_without_content: bool,
    },
    /// Cut by a deadline of the caller or run that was shorter than the attempt's own timeout.
    DeadlineCut,
    /// Our own refusal: nothing was sent. An adapter ends an attempt with it while its agent is not up yet.
    OwnRefusal,
    /// The server said that it is still loading its model: it did nothing of what was asked, and that is no illness.
    Loading,
    /// The actor died with the call queued, or the attempt's task panicked.
    Restarted,
    /// A fault of ours.
    Internal,
}

/// No quota that is told comes back later than this: a month.
pub const QUOTA_RESET_MAX: Duration = Duration::from_secs(31 * 24 * 3_600);

/// When a spent quota comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QuotaReset {
    /// Nobody said.
    Unknown,
    /// After this time.
    In(Duration),
}

impl QuotaReset {
    /// What a server said of it. Quotas are counted by the day or month: whatever lies further ahead is a slip of whoever said it (a date in
    /// place of seconds, say), and must not shut a key out for years.
    #[must_use]
    pub fn told(wait: Option<Duration>) -> Self {
        wait.filter(|wait| !wait.is_zero() && *wait <= QUOTA_RESET_MAX).map_or(Self::Unknown, Self::In)
    }
}

impl Ending {
    /// Whether a connection came to be.
    pub const fn connected(&self) -> bool {
        !matches!(self, Self::Network { connected: false } | Self::Timeout { timeout: TimeoutKind::Connect })
    }

    /// An answer with this status and nothing else known of it.
    pub const fn status(status: u16) -> Self {
        Self::Status { status, retryable: None, content_filter: false, context_too_long: false, quota_spent: None }
    }
}
