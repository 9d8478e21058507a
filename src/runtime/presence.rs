//! Whether a target can still be called, and how many admitted calls it has. A call that got in is counted before it looks whether the
//! target is gone, and who takes the target away looks at the count after it said so: one of the two sees the other.

use std::sync::Arc;

use super::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// One target's. It outlives a reload.
#[derive(Debug, Default)]
pub(crate) struct Presence {
    gone: AtomicBool,
    admitted: AtomicU32,
}

/// An admitted call, until its drop.
#[derive(Debug)]
pub(crate) struct Entered(Arc<Presence>);

impl Drop for Entered {
    fn drop(&mut self) {
        self.0.admitted.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Presence {
    /// Lets a call in; `None` if the target is gone.
    pub(crate) fn enter(self: &Arc<Self>) -> Option<Entered> {
        self.admitted.fetch_add(1, Ordering::SeqCst);
        let entered = Entered(Arc::clone(self));
        (!self.is_gone()).then_some(entered)
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
        let presence = Arc::new(Presence::default());
        let inside = presence.enter();
        assert!(inside.is_some() && !presence.is_idle());
        presence.go();
        assert!(presence.enter().is_none() && !presence.is_idle());
        drop(inside);
        assert!(presence.is_idle());
        presence.come_back();
        assert!(presence.enter().is_some() && presence.is_idle());
    }
}
