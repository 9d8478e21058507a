//! How the service ends, told to stop or for a successor: nobody who was taken in is sent away without an answer, the journal is let go of
//! as soon as no step and no request is under way that needs it, and what is not over goes on with whoever opens it next. Starts nothing.

use std::time::Duration;

use super::{exit::Stop, say::say, serve_command::keep_up, told_to_stop::told_to_stop};
use crate::serve::{handover::offer::Handover, listener::server::Listening, state::AppState};

/// Connections that were taken in just now have so long to say what they want, and are served like all before them.
const SETTLING: Duration = Duration::from_millis(100);

/// So long before grace is over those who still wait are told that there is no answer; a quarter of a shorter grace.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// For whom.
pub(super) enum Leaving<'a> {
    /// Told to stop.
    ForGood,
    /// A successor has the socket already.
    To(Option<&'a Handover>),
}

/// Ends. Health and metrics are answered to the end; told a second time to stop, it ends at once.
pub(super) async fn end(state: &AppState, listening: Listening, leaving: Leaving<'_>) -> Ended {
    say("watertight: stopping");
    tokio::select! {
        () = leave(state, listening, leaving) => Ended::Done,
        () = told_to_stop() => {
            say("watertight: told twice, ending at once");
            Ended::Told
        }
        () = keep_up(state) => Ended::Done,
    }
}

/// Why this process does not come to serve.
pub(super) enum Instead {
    /// It was told to stop.
    Stopped,
    /// Its predecessor has taken the service back.
    Predecessor,
    /// Its successor woke and had the journal already.
    Successor,
}

impl Instead {
    /// Ends accordingly.
    pub(super) async fn end(self, state: &AppState, listening: Listening) -> Result<(), Stop> {
        match self {
            Self::Stopped => {
                end(state, listening, Leaving::ForGood).await;
                Ok(())
            }
            Self::Successor => {
                end_at_once(state, listening).await;
                say("watertight: the successor serves after all: this process ends");
                Ok(())
            }
            Self::Predecessor => {
                end_at_once(state, listening).await;
                Err(Stop::usage(
                    "the predecessor heard nothing of this process for too long and has taken the service back: this process ends; start it again (serve.handover_silence_max, serve.handover_start_max)",
                ))
            }
        }
    }
}

/// Ends at once, because another process serves: whoever waits here is told to come again, and finds that one.
async fn end_at_once(state: &AppState, mut listening: Listening) {
    state.ending.leaving.cancel();
    drop(listening.stop_accepting().await);
    listening.let_go();
    state.ending.draining.cancel();
    state.ending.closing_streams.cancel();
    state.door.give_up();
    state.ending.last_words.cancel();
    listening.close(LAST_WORDS).await;
}

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// All was done that was to be done.
    Done,
    /// Told to end at once.
    Told,
}

async fn leave(state: &AppState, mut listening: Listening, leaving: Leaving<'_>) {
    let grace = state.settings.grace;
    let last_words = grace.saturating_sub(LAST_WORDS.min(grace / 4));
    state.ending.leaving.cancel();
    drop(listening.stop_accepting().await);
    tokio::time::sleep(SETTLING).await;
    // Connections without a request first: their clients find the successor, not a refusal.
    listening.let_go();
    state.ending.draining.cancel();
    state.ending.closing_streams.cancel();
    let runs = async {
        if let Some(running) = state.door.now() {
            let patience = match &leaving {
                Leaving::ForGood => last_words,
                // Whoever waits at the successor's waits no longer than that.
                Leaving::To(_) => last_words.min(state.settings.handover_wait / 2),
            };
            let of_steps = state.settings.handover_steps_wait;
            // Whoever still sends its request gets its answer here: nobody else has what it has sent by now.
            running.runtime.leave_runs(patience, wanted(&leaving, of_steps), state.ending.arrived()).await;
            running.journal.close().await;
        }
        if let Leaving::To(Some(handover)) = &leaving {
            handover.release().await;
        }
    };
    // Calls that need no journal go on beside that, as long as grace lasts.
    let ended = async { tokio::join!(runs, listening.close(grace)) };
    tokio::select! {
        _ = ended => {}
        () = say_last_words(state, last_words) => {}
    }
}

/// Waits until steps that can be made again are to be left to a successor: so long after somebody began to wait for the journal there.
/// It makes them again, with the same idempotency key, and nobody who asks it is to stand still for long for somebody else's step. Those
/// with `effects = "once"` have all of grace: nobody may make them again.
async fn wanted(leaving: &Leaving<'_>, of_steps: Duration) {
    let Leaving::To(Some(handover)) = leaving else { return std::future::pending().await };
    handover.wanted().await;
    tokio::time::sleep(of_steps).await;
}

/// Lets nobody go without an answer who waits for one when grace ends. Never returns.
async fn say_last_words(state: &AppState, after: Duration) {
    tokio::time::sleep(after).await;
    if let Some(running) = state.door.now() {
        running.runtime.abort_calls();
    }
    state.door.give_up();
    state.ending.last_words.cancel();
    std::future::pending::<()>().await;
}
