//! The guards under a scheduler that tries interleavings: the runtime's own code, with its locks and atomics as the scheduler's and the
//! actors played by the tests. See the record of it: docs/adr/0023-guards-run-under-a-scheduler.md.

mod lines;
mod reloads;
mod stand;
mod tokens;
mod trials;
