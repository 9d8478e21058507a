//! After a restart, calls with which the process died several times are tried one at a time. Whose turn it is decides
//! `policy::suspects`; here time is waited for, ends are seen, and the journal is told meanwhile that the process lives.

use std::{sync::Arc, time::Duration};

use super::{
    core::{Shared, lock},
    journal::Journal,
    orchestrator::OrchestratorMessage,
    run_cell::{RunCell, Told},
};
use crate::{
    policy::suspects::{BEAT, Next, Sentence, Trials},
    workflow::plan::{action::StepKey, open::OpenCall},
};

/// A call of some run that is held back.
pub(crate) struct Held {
    key: StepKey,
    blamed: u32,
    quiet: Duration,
}

/// The same, with its run.
pub(crate) struct Suspect {
    run: Arc<RunCell>,
    held: Held,
}

impl Held {
    pub(crate) fn of(self, run: &Arc<RunCell>) -> Suspect {
        Suspect { run: Arc::clone(run), held: self }
    }
}

/// Those of a run's open calls that are held back.
pub(crate) fn suspects_of(open: &[OpenCall]) -> Vec<Held> {
    let held = |call: &OpenCall| match call.sentence {
        Sentence::Try { blamed, quiet } => Some(Held { key: call.key, blamed, quiet }),
        Sentence::Free | Sentence::PutAside(_) => None,
    };
    open.iter().filter_map(held).collect()
}

/// Tries these calls, one after the other, until all had their turn or the node stops.
pub(crate) fn begin(shared: &Arc<Shared>, journal: &Arc<dyn Journal>, suspects: Vec<Suspect>) {
    if suspects.is_empty() {
        return;
    }
    tracing::warn!(
        calls = suspects.len(),
        "the process died several times with these calls; they are begun one at a time"
    );
    let waiting = suspects.into_iter().map(|Suspect { run, held }| ((run, held.key), held.blamed, held.quiet));
    let trials = Trials::new(waiting.collect(), shared.now());
    let keeper = Keeper { shared: Arc::clone(shared), journal: Arc::clone(journal), trials };
    let stops = shared.aborting_runs.clone();
    shared.tracker.spawn(async move {
        tokio::select! {
            () = stops.cancelled() => {}
            () = keeper.work() => {}
        }
    });
}

struct Keeper {
    shared: Arc<Shared>,
    journal: Arc<dyn Journal>,
    trials: Trials<(Arc<RunCell>, StepKey)>,
}

impl Keeper {
    async fn work(mut self) {
        loop {
            match self.trials.next(self.shared.now()) {
                Next::Begin((run, key)) => {
                    // What came before is no part of the trial.
                    self.note_alive().await;
                    run.tell(Told::Tried(key));
                    self.shared.orchestrator.cast(OrchestratorMessage::Wake(run));
                }
                Next::Watch((run, key), until) => {
                    if is_on_trial(&run, key) {
                        let wait = until.since(self.shared.now()).min(BEAT);
                        news_of(&run, wait).await;
                        self.note_alive().await;
                    } else {
                        self.trials.over(self.shared.now());
                    }
                }
                Next::Quiet(until) => tokio::time::sleep(until.since(self.shared.now())).await,
                Next::Done => return,
            }
        }
    }

    async fn note_alive(&self) {
        let journal = Arc::clone(&self.journal);
        // A note that fails makes the moment of a death uncertain: then nobody is blamed for it.
        let _ = tokio::task::spawn_blocking(move || journal.note_alive()).await;
    }
}

fn is_on_trial(run: &RunCell, key: StepKey) -> bool {
    run.final_record().is_none() && !run.inner.is_poisoned() && lock(&run.inner).plan.is_on_trial(key)
}

/// Returns with the next event of the run, its end, or after `wait`.
async fn news_of(run: &RunCell, wait: Duration) {
    let mut last = run.last_event();
    tokio::select! {
        // An error means that nobody writes events any more: the next look tells.
        _ = last.changed() => {}
        () = run.ended.cancelled() => {}
        () = tokio::time::sleep(wait) => {}
    }
}
