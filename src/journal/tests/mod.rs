//! The journal against real files: what is kept, what is refused, what goes, what survives.

mod crash;
mod deferred;
mod failing;
mod model;
mod rest;
mod runs;
pub(super) mod support;
