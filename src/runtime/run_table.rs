//! All runs of a runtime, and the line of steps that lack only a slot. Both outlive the orchestrator.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use super::{
    core::{AgentCore, lock},
    kept_runs::KeptRuns,
    metric,
    run_cell::RunCell,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
};
use crate::{policy::compartment::line::Ticket, workflow::plan::action::StepKey};

/// Runs that may be live at once.
pub(crate) const RUNS_LIVE_MAX: usize = 100_000;
/// Finished runs that stay readable once another one is started. Who starts it frees those beyond, not the orchestrator.
pub(crate) const RUNS_KEPT_MAX: usize = 1_000;
/// Finished runs that stay readable while none is started.
pub(crate) const RUNS_KEPT_IDLE_MAX: usize = 2_000;
/// Finished runs that stay in memory where a journal has them too.
pub(crate) const RUNS_KEPT_DURABLE_MAX: usize = 100;
/// What these may take together, in bytes: large outputs are read from the journal soon after their run has ended.
pub(crate) const RUNS_KEPT_DURABLE_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Steps that may stand in the line.
pub(crate) const LINE_MAX: u32 = 1_000;

/// The runs.
#[derive(Default)]
pub(crate) struct RunTable {
    runs: Mutex<Runs>,
    numbers: AtomicU64,
    /// Moved by the orchestrator only.
    pub(crate) line: Mutex<Line>,
}

#[derive(Default)]
struct Runs {
    live: HashMap<String, Arc<RunCell>>,
    kept: KeptRuns<Arc<RunCell>>,
}

/// Steps that wait for a slot, by the number of their run. The order in which they are served is the pool's.
#[derive(Default)]
pub(crate) struct Line {
    waiting: BTreeMap<u64, Vec<Waiting>>,
}

/// Tells one time that a step stands in the line from every other: what it was given when it stood there for other targets is not for it
/// now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Turn(pub(crate) u64);

/// One of them.
#[derive(Clone)]
pub(crate) struct Waiting {
    pub(crate) run: Arc<RunCell>,
    pub(crate) key: StepKey,
    pub(crate) turn: Turn,
    /// Its place; `None` if it was served as it came.
    pub(crate) ticket: Option<Ticket>,
    /// The targets that it waits for.
    pub(crate) targets: Vec<Arc<AgentCore>>,
}

impl Line {
    pub(crate) fn join(&mut self, waiting: Waiting) {
        self.waiting.entry(waiting.run.number).or_default().push(waiting);
    }

    pub(crate) fn leave(&mut self, run: &RunCell, key: StepKey) -> Option<Waiting> {
        let of_run = self.waiting.get_mut(&run.number)?;
        let place = of_run.iter().position(|waiting| waiting.key == key)?;
        let waiting = of_run.swap_remove(place);
        if of_run.is_empty() {
            self.waiting.remove(&run.number);
        }
        Some(waiting)
    }

    /// Whether this step stands there, and still for this time.
    pub(crate) fn stands(&self, run: &RunCell, key: StepKey, turn: Turn) -> bool {
        let of_run = self.waiting.get(&run.number);
        of_run.is_some_and(|of_run| of_run.iter().any(|waiting| (waiting.key, waiting.turn) == (key, turn)))
    }

    pub(crate) fn leave_all(&mut self, run: &RunCell) -> Vec<Waiting> {
        self.waiting.remove(&run.number).unwrap_or_default()
    }

    /// All, the oldest run first.
    pub(crate) fn all(&self) -> Vec<Waiting> {
        self.waiting.values().flatten().cloned().collect()
    }
}

impl RunTable {
    pub(crate) fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// The next number, at least this one: numbers of durable runs grow with the time, over restarts too.
    pub(crate) fn next_number_from(&self, least: u64) -> u64 {
        let next = |last: u64| Some(last.max(least).saturating_add(1));
        self.numbers.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).unwrap_or_default().max(least)
    }

    /// A run of this number is there; later ones have larger ones.
    pub(crate) fn number_is_taken(&self, number: u64) {
        self.numbers.fetch_max(number.saturating_add(1), Ordering::Relaxed);
    }

    /// False if too many are live.
    pub(crate) fn add(&self, run: &Arc<RunCell>) -> bool {
        let mut runs = lock(&self.runs);
        if runs.live.len() >= RUNS_LIVE_MAX {
            return false;
        }
        runs.live.insert(run.id.clone(), Arc::clone(run));
        runs.show_live();
        let old = runs.kept.forget_beyond(RUNS_KEPT_MAX);
        drop(runs);
        // Freed where nobody waits for the lock.
        drop(old);
        true
    }

    /// Adds a run that is written down: it lives, however many there are.
    pub(crate) fn add_accepted(&self, run: &Arc<RunCell>) {
        let mut runs = lock(&self.runs);
        runs.live.insert(run.id.clone(), Arc::clone(run));
        runs.show_live();
    }

    pub(crate) fn find(&self, id: &str) -> Option<Arc<RunCell>> {
        let runs = lock(&self.runs);
        runs.live.get(id).or_else(|| runs.kept.find(id)).map(Arc::clone)
    }

    pub(crate) fn live(&self) -> Vec<Arc<RunCell>> {
        lock(&self.runs).live.values().map(Arc::clone).collect()
    }

    pub(crate) fn live_count(&self) -> usize {
        lock(&self.runs).live.len()
    }

    /// A run that another owner has, or that nobody can read.
    pub(crate) fn forget(&self, id: &str) {
        let mut runs = lock(&self.runs);
        let forgotten = runs.live.remove(id);
        runs.show_live();
        drop(runs);
        drop(forgotten);
    }

    /// A run that is over and was deleted.
    pub(crate) fn forget_ended(&self, id: &str) {
        let mut runs = lock(&self.runs);
        let forgotten = runs.kept.remove(id);
        drop(runs);
        drop(forgotten);
    }

    /// A run ended: it stays readable for a while, and in memory for a shorter one where a journal has it too. `durable_bytes` are what
    /// it takes then.
    pub(crate) fn retire(&self, id: &str, durable_bytes: Option<usize>) {
        let mut runs = lock(&self.runs);
        let Some(run) = runs.live.remove(id) else { return };
        runs.show_live();
        let max = if durable_bytes.is_some() { RUNS_KEPT_DURABLE_MAX } else { RUNS_KEPT_IDLE_MAX };
        runs.kept.add(id.to_owned(), run, durable_bytes);
        let old = (runs.kept.forget_beyond(max), runs.kept.forget_beyond_bytes(RUNS_KEPT_DURABLE_BYTES_MAX));
        drop(runs);
        drop(old);
    }
}

impl Runs {
    /// Shows how many are not over.
    fn show_live(&self) {
        metric::set(metric::RUNS_LIVE, Vec::new(), self.live.len() as f64);
    }
}
