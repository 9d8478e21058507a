//! The bundled agents: their folders inside the program, and the twins that compute an answer without a model.

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
mod words;

#[cfg(test)]
mod tests;
