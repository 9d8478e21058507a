//! Locks and atomics of the runtime, and the one timer that guards wait on: the standard library's and tokio's. In our own unit tests under
//! the feature `model` they are those of a scheduler that tries interleavings, so that the code itself is tried and no copy of it. It
//! decides nothing, and adds nothing to any other build.

#[cfg(all(test, feature = "model"))]
mod modelled;

#[cfg(all(test, feature = "model"))]
pub(crate) use modelled::{Mutex, MutexGuard, Unheard, atomic, sleep};
#[cfg(not(all(test, feature = "model")))]
pub(crate) use std::sync::{Mutex, MutexGuard, atomic};
#[cfg(not(all(test, feature = "model")))]
pub(crate) use tokio::time::sleep;
