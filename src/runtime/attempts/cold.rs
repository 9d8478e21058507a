//! A call and its model: waits for a warm-up that this call has to make, lets the caller go while that goes on, and takes the time that a
//! model needs to be loaded for neither slowness nor failure.

use tokio_util::sync::CancellationToken;

use super::{Call, CallEnd, cancelled};
use crate::{
    model::{
        facts::{Ending, TimeoutKind},
        reply::{AttemptFailure, Reply},
    },
    policy::retry::Stop,
    runtime::{
        ports::{AttemptRequest, Progress},
        warming::{self, Found, Sight, WarmingUp},
    },
};

/// A call that finds the model cold again after so many warm-ups gives up: somebody else throws it out faster than it is used.
const ROUNDS_MAX: u32 = 2;

/// What a call went through with its model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Met {
    /// Attempts that found it cold, and were made again.
    pub(super) rounds: u32,
    /// It waited for a warm-up.
    pub(super) has_waited: bool,
    /// Its last attempt fell into a time in which the model was not there.
    pub(super) is_excused: bool,
}

impl Call {
    /// Makes sure that the model is loaded, by warming it up if that falls to this call. Whoever comes while another call does so is
    /// sent away at once.
    pub(super) async fn get_warm(
        &mut self,
        request: &AttemptRequest,
        cancel: &CancellationToken,
    ) -> Result<(), CallEnd> {
        // What follows is not excused by what was.
        self.warmth.is_excused = false;
        let found = match self.permit.found.take() {
            Some(found) => Ok(found),
            None => warming::look(&self.shared, &self.agent),
        };
        match found {
            Ok(Found::Ready(sight)) => {
                self.sight = sight;
                Ok(())
            }
            Err(refusal) => Err((Err(self.refused(refusal)), Some(Stop::NotRetryable))),
            Ok(Found::Cold(warming_up)) => {
                self.is_worth_it(request, cancel).await?;
                self.warmth.has_waited = true;
                self.sight = Some(self.warm_up(warming_up, cancel).await?);
                // The call's own patience is with an agent that is there.
                self.end = self.shared.now().after(self.agent.settings.timeouts.call);
                Ok(())
            }
        }
    }

    /// No model is loaded for a request that would not be sent.
    async fn is_worth_it(&self, request: &AttemptRequest, cancel: &CancellationToken) -> Result<(), CallEnd> {
        let refused = tokio::select! {
            biased;
            () = cancel.cancelled() => Some(cancelled(false)),
            refused = self.agent.backend.refuses(request) => refused,
        };
        refused.map_or(Ok(()), |failure| Err((Err(failure), Some(Stop::NotRetryable))))
    }

    /// The warm-up ends in its own time: a caller that leaves, or runs out of time, is let go, and the slots stay taken for it.
    async fn warm_up(&mut self, warming_up: WarmingUp, cancel: &CancellationToken) -> Result<Sight, CallEnd> {
        let left = || (Err(cancelled(false)), Some(Stop::NotRetryable));
        let work = warming_up.run(self.permit.request.take());
        tokio::pin!(work);
        let patience = self.deadline.map(|deadline| deadline.since(self.shared.now()));
        let out_of_time = tokio::time::sleep(patience.unwrap_or_default());
        tokio::pin!(out_of_time);
        let (aborting, stopping) = (self.shared.aborting.clone(), self.shared.stopping.token());
        loop {
            let is_here = self.reply.is_some();
            tokio::select! {
                biased;
                ended = &mut work => {
                    return match ended {
                        Err(failure) => Err((Err(failure), Some(Stop::AttemptsUsed))),
                        Ok(sight) if is_here => Ok(sight),
                        Ok(_) => Err(left()),
                    };
                }
                () = aborting.cancelled() => return Err(left()),
                // Nobody needs it any more.
                () = stopping.cancelled(), if !is_here => return Err(left()),
                () = cancel.cancelled(), if is_here => self.let_go(cancelled(false)),
                () = &mut out_of_time, if is_here && patience.is_some() => {
                    let message = "the deadline passed while the model was being loaded";
                    self.let_go(AttemptFailure::new(Ending::DeadlineCut, message));
                }
            }
        }
    }

    /// Answers the caller before the call's end.
    fn let_go(&mut self, failure: AttemptFailure) {
        let answer = self.answer(Err(failure), Some(Stop::NotRetryable));
        if let Some(reply) = self.reply.take() {
            // One that has left does not mind.
            let _ = reply.send(answer);
        }
    }

    /// Whether this attempt's model was not there all along.
    pub(super) fn is_excused(&self, progress: &Progress) -> bool {
        self.sight.as_ref().is_some_and(|sight| sight.is_excused(progress))
    }

    /// Takes in what an attempt saw of its model. Where nobody looks after that, a server's word that it is loading is an error like any.
    pub(super) fn see_model(
        &mut self,
        result: Result<Reply, AttemptFailure>,
        progress: &Progress,
    ) -> Result<Reply, AttemptFailure> {
        let Some(sight) = &self.sight else {
            return result.map_err(|failure| match failure.ending {
                Ending::Loading => {
                    let status = failure.status.unwrap_or(503);
                    AttemptFailure { ending: Ending::status(status), ..failure }
                }
                _ => failure,
            });
        };
        self.warmth.is_excused = sight.is_excused(progress);
        sight.tell(&self.shared, &result, progress);
        if self.warmth.is_excused {
            self.slow = false;
            self.permit.forget_age();
        }
        result
    }

    /// Whether an attempt that ended so is to be made again once the model is warm.
    pub(super) fn meets_cold(&mut self, failure: &AttemptFailure) -> bool {
        let again = failure.ending == Ending::Loading && self.warmth.rounds < ROUNDS_MAX;
        self.warmth.rounds += u32::from(again);
        again
    }

    /// What the supervisor is told: a timeout of ours while the model was not there is no illness.
    pub(super) fn judged(&self, ending: Ending) -> Ending {
        let is_late = matches!(ending, Ending::Timeout { timeout } if timeout != TimeoutKind::Connect);
        if is_late && self.warmth.is_excused { Ending::Loading } else { ending }
    }
}
