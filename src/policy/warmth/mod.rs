//! Cold start as a state of a model on a provider, and what models of one server do to each other.

pub mod machine;
pub mod swaps;
