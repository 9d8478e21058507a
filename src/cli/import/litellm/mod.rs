//! LiteLLM's proxy configuration, made into providers and agents.

mod account;
mod address;
mod agents;
mod deployment;
mod general;
mod importer;
mod names;
mod ollama;
mod targets;
mod vendor;

pub(super) use importer::import;
