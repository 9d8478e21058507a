//! Says once, to everybody, that the runtime stops. Every call asks first whether it was said, so that costs one read of a flag; those who
//! wait for it wait on a token. It says when to stop, never how.

use tokio_util::sync::CancellationToken;

use super::sync::atomic::{AtomicBool, Ordering};

/// The signal.
#[derive(Debug, Default)]
pub(crate) struct StopSignal {
    /// Set before the token, whose own question takes a lock that all callers would share.
    is_said: AtomicBool,
    token: CancellationToken,
}

impl StopSignal {
    /// Says it. Saying it again changes nothing.
    pub(crate) fn cancel(&self) {
        self.is_said.store(true, Ordering::Release);
        self.token.cancel();
    }

    /// Whether it was said.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.is_said.load(Ordering::Acquire)
    }

    /// Ends when it is said.
    pub(crate) async fn cancelled(&self) {
        self.token.cancelled().await;
    }

    /// For those who wait for it on their own.
    pub(crate) fn token(&self) -> CancellationToken {
        self.token.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_asks_and_who_waits_hear_the_same() {
        let signal = StopSignal::default();
        let token = signal.token();
        assert!(!signal.is_cancelled() && !token.is_cancelled());
        signal.cancel();
        signal.cancel();
        signal.cancelled().await;
        assert!(signal.is_cancelled() && token.is_cancelled());
    }
}
