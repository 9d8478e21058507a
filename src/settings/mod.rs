//! `watertight.toml`, agents' manifests, environment and flags, made into checked settings.

pub mod agent;
pub mod agent_backend;
mod breaker;
pub mod capture;
mod compartment_rules;
mod compartments;
pub mod deferred;
pub mod difference;
pub mod endpoint;
pub mod files;
pub mod folder;
pub mod general;
mod guards;
pub mod journal;
mod keep;
pub mod keys;
pub mod ladder;
pub mod layers;
mod lighter;
pub mod load;
pub(crate) mod node;
pub mod ollama;
mod priorities;
pub mod problem;
pub mod provider;
pub mod reader;
pub mod report;
pub mod secret;
pub mod serve;
pub mod spending;
pub mod targets;
pub mod template;
#[cfg(test)]
mod tests;
pub mod tree;
mod warmth;
mod whole;
