//! Somebody else's request to a model's server, passed on as it came.
//!
//! Reading order: what is sent (`request`), what a frame means (`frame`), a whole answer (`whole`) or one put together from a stream
//! (`assemble`, of what `grown` joins), what both hold at their top (`outline`), what becomes of frames (`way_out`), and the exchange itself.

pub(super) mod exchange;

mod assemble;
pub(crate) mod frame;
mod grown;
mod outline;
pub(crate) mod request;
pub(crate) mod way_out;
mod whole;
