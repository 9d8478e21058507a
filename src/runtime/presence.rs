//! Whether a target can still be called, and how many admitted calls it has. A call that got in is counted before it looks whether the
//! target is gone, and who takes the target away looks at the count after it said so: one of the two sees the other.

use super::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// One target's. It outlives a reload.
#[derive(Debug, Default)]
pub(crate) struct Presence {
    gone: AtomicBool,
    admitted: AtomicU32,
}

/// An admitted call has entered; or it was too late.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entry {
    /// It counts, and must leave again.
    Entered,
    /// The target is gone.
    Gone,
}

impl Presence {
    /// Lets a call in, unless the target is gone. Whoever entered leaves once.
    pub(crate) fn enter(&self) -> Entry {
        self.admitted.fetch_add(1, Ordering::SeqCst);
        if self.is_gone() {
            self.leave();
            return Entry::Gone;
        }
        Entry::Entered
    }

    /// A call that entered is over.
    pub(crate) fn leave(&self) {
        self.admitted.fetch_sub(1, Ordering::SeqCst);
    }

    /// Nobody is let in from now on.
    pub(crate) fn go(&self) {
        self.gone.store(true, Ordering::SeqCst);
    }

    /// It is here again.
    pub(crate) fn come_back(&self) {
        self.gone.store(false, Ordering::SeqCst);
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::SeqCst)
    }

    /// Nobody is in.
    pub(crate) fn is_idle(&self) -> bool {
        self.admitted.load(Ordering::SeqCst) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_in_when_it_goes_is_seen() {
        let presence = Presence::default();
        assert_eq!(presence.enter(), Entry::Entered);
        assert!(!presence.is_idle());
        presence.go();
        assert_eq!(presence.enter(), Entry::Gone);
        assert!(!presence.is_idle());
        presence.leave();
        assert!(presence.is_idle());
        presence.come_back();
        assert_eq!(presence.enter(), Entry::Entered);
        presence.leave();
        assert!(presence.is_idle());
    }
}
