//! The journal against real files: what is kept, what is refused, what goes, what survives.

mod runs;
mod support;
