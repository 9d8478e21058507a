//! Others' code inside our own steps: recorders of metrics, and what a backend says of itself. It may panic; the step goes on without what it
//! would have said. In a drop while a panic unwinds, a second one would abort the process, and under a lock it would lose what was about to be
//! handed over. It shields nothing of ours.

use std::panic::{AssertUnwindSafe, catch_unwind};

use metrics::{Counter, Gauge, Histogram};

/// What `work` gives; `None` if it panicked, of which the panic hook has told.
pub(crate) fn shielded<T>(work: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(work)).ok()
}

/// A metric's handle. Where its recorder panics it counts and shows nothing.
#[derive(Clone)]
pub(crate) struct Shielded<Handle>(Handle);

impl<Handle> From<Handle> for Shielded<Handle> {
    fn from(handle: Handle) -> Self {
        Self(handle)
    }
}

impl Shielded<Counter> {
    pub(crate) fn increment(&self, by: u64) {
        shielded(|| self.0.increment(by));
    }

    pub(crate) fn absolute(&self, value: u64) {
        shielded(|| self.0.absolute(value));
    }
}

impl Shielded<Gauge> {
    pub(crate) fn set(&self, value: f64) {
        shielded(|| self.0.set(value));
    }

    pub(crate) fn increment(&self, by: f64) {
        shielded(|| self.0.increment(by));
    }

    pub(crate) fn decrement(&self, by: f64) {
        shielded(|| self.0.decrement(by));
    }
}

impl Shielded<Histogram> {
    pub(crate) fn record(&self, value: f64) {
        shielded(|| self.0.record(value));
    }
}
