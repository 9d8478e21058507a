//! Tests over several parts of the runtime that need what stands behind its front.

#[cfg(feature = "model")]
mod model;
mod panics;
