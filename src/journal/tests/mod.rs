//! The journal against real files: what is kept, what is refused, what goes, what survives.

mod failing;
mod rest;
mod runs;
pub(super) mod support;
