//! Workflows as data and the pure plan of a run: what to do next, never doing it.

pub mod builder;
pub mod check;
mod check_loops;
#[cfg(test)]
mod check_tests;
pub mod checked;
pub mod definition;
pub mod expression;
pub mod graph;
pub mod hash;
mod parse;

pub mod plan;
pub mod problem;
mod references;
pub mod stored;
pub mod template_names;
pub mod template_rules;
pub(crate) mod toml_error;
mod toml_reader;
