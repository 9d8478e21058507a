//! What an attempt takes before it is made. It sends nothing.

use std::sync::Arc;

use super::{Call, Watchers};
use crate::{
    model::{clock::Timestamp, facts::Ending, reply::AttemptFailure},
    runtime::{ports::Progress, refusal::Refusal},
};

impl Call {
    /// An attempt begins with its request of the provider's minute and its tokens, or is not made.
    pub(super) fn begin_attempt(&mut self, now: Timestamp) -> Result<(), Refusal> {
        let request = self.permit.next_request()?;
        if let Some(spending) = &mut self.spending {
            spending.begin_attempt(self.caller.spent_for(), now)?;
        }
        if let Some(request) = request {
            request.send();
        }
        Ok(())
    }

    /// A refusal of our own as the end of a call that was admitted: what its caller is told is the refusal.
    pub(super) fn refused(&mut self, refusal: Refusal) -> AttemptFailure {
        let failure = AttemptFailure::new(Ending::OwnRefusal, refusal.to_string());
        self.refusal = Some(refusal);
        failure
    }

    /// The progress of an attempt that begins now.
    pub(super) fn progress(&self, watchers: &Watchers) -> Progress {
        let progress = Progress::start(Arc::clone(&self.shared.clock), watchers.deltas.clone());
        match &self.spending {
            Some(spending) => progress.counting(spending.tally()),
            None => progress,
        }
    }
}
