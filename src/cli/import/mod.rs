//! `watertight import`: the configuration of another tool made into ours, and an account of every key that was found.

pub(super) mod command;
mod finding;
mod litellm;
mod resilience4j;
mod scalar;
#[cfg(test)]
mod tests;
mod toml_text;
mod yaml;
