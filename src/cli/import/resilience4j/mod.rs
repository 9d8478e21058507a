//! Spring Boot's `resilience4j.*` properties, made into agents with breakers, slots, retries and timeouts.

mod agent;
mod breaker;
mod importer;
mod ledger;
mod modules;
mod properties;
mod retry;
mod silent;
mod unsupported;

pub(super) use importer::{Options, import};
