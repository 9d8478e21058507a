//! The bundled agents: their folders inside the program, and the twins that compute an answer without a model.

#![allow(clippy::result_large_err, reason = "the port's own failure, built once a failed call")]

pub mod bundled;
pub mod embedded;

mod draft;
mod input;
mod korean;
mod meta;
mod photos;
mod review;
mod shapes;
mod style;
mod text;
mod word_lists;
mod words;

#[cfg(test)]
mod tests;
