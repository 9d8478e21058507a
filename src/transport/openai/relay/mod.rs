//! Somebody else's request to a model's server, passed on as it came.
//!
//! Reading order: what is sent (`request`), what a frame means (`frame`), a whole answer (`whole`) or one put together from a stream
//! (`assemble`), and the exchange itself.

pub(super) mod exchange;

mod assemble;
mod frame;
mod request;
mod whole;
