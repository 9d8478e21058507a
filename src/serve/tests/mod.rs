//! The service as a router: who may what, what is answered to what, and that a full service still answers its operators.

mod access;
mod answers;
mod callers;
mod caps;
mod captures;
mod dead_letters;
mod runs;
pub(super) mod support;
mod usage;
