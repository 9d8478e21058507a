//! How the deferred queue goes: plain, checked values. Files and defaults of a configuration are the adapter's business.

use std::time::Duration;

use super::store::QueueBounds;

/// How calls are put off and made again.
#[derive(Debug, Clone, PartialEq)]
pub struct DeferredSettings {
    /// How many may wait.
    pub bounds: QueueBounds,
    /// Bytes of one entry's request.
    pub entry_bytes_max: u64,
    /// How long after it was put off, or failed, a call is made.
    pub delay: Duration,
    /// The delay is lengthened by a random part of it of up to this share.
    pub jitter: f64,
    /// So often a call is sent at most.
    pub attempts_max: u32,
    /// So long after it was put off a call is not made any more.
    pub expires_after: Duration,
    /// Calls that are made at once.
    pub parallel: usize,
    /// The class they are made with, unless a call names its own.
    pub priority: String,
    /// How ends are told, if they are.
    pub push: PushSettings,
}

/// How somebody is told of an end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PushSettings {
    /// So often at most.
    pub attempts_max: u32,
    /// The first wait between two tries; doubles each time.
    pub backoff: Duration,
    /// The longest wait.
    pub backoff_max: Duration,
    /// How long one try may take.
    pub timeout: Duration,
}

impl Default for DeferredSettings {
    fn default() -> Self {
        Self {
            bounds: QueueBounds { entries_max: 10_000, tenant_entries_max: 1_000 },
            entry_bytes_max: 1024 * 1024,
            delay: Duration::from_secs(5 * 60),
            jitter: 0.2,
            attempts_max: 5,
            expires_after: Duration::from_secs(24 * 3_600),
            parallel: 4,
            priority: "background".to_owned(),
            push: PushSettings::default(),
        }
    }
}

impl Default for PushSettings {
    fn default() -> Self {
        Self {
            attempts_max: 8,
            backoff: Duration::from_secs(10),
            backoff_max: Duration::from_secs(15 * 60),
            timeout: Duration::from_secs(10),
        }
    }
}
