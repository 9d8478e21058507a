//! An actor's address that stays valid over its restarts. Channels stay behind it: no sender crosses a module's edge.

use arc_swap::ArcSwapOption;
use ractor::ActorRef;

/// Where messages of type `M` go: to whoever is the actor now.
pub(crate) struct Address<M> {
    actor: ArcSwapOption<ActorRef<M>>,
    /// In the model no actor runs: what is sent waits here until the test takes it.
    #[cfg(all(test, feature = "model"))]
    pub(crate) unheard: super::sync::Unheard<M>,
}

impl<M: ractor::Message> Address<M> {
    /// An address that nobody lives at yet.
    pub(crate) fn vacant() -> Self {
        Self {
            actor: ArcSwapOption::empty(),
            #[cfg(all(test, feature = "model"))]
            unheard: super::sync::Unheard::new(),
        }
    }

    /// `actor` lives here from now on.
    pub(crate) fn set(&self, actor: ActorRef<M>) {
        self.actor.store(Some(std::sync::Arc::new(actor)));
    }

    /// Whoever lives here ends, and nobody lives here any more.
    pub(crate) fn vacate_and_stop(&self) {
        if let Some(actor) = self.actor.swap(None) {
            actor.stop(None);
        }
    }

    /// Sends without waiting. False, and the message is dropped, if nobody lives here now.
    pub(crate) fn cast(&self, message: M) -> bool {
        #[cfg(all(test, feature = "model"))]
        let Some(message) = self.unheard.keep(message) else { return true };
        self.actor.load().as_ref().is_some_and(|actor| actor.cast(message).is_ok())
    }
}
