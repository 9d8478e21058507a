//! Tests over several parts of the runtime that need what stands behind its front.

pub(crate) mod hand_clock;
#[cfg(feature = "model")]
mod model;
mod panics;
