//! HTTP servers: bundled agents as processes of their own, and the service.
//!
//! Reading order of the service: what everybody holds (`state`), how it answers (`answer`), who asks (`access`), the routes (`runs`,
//! `agents`, `health`, ...), how they are put together (`router`), and how connections come in and end (`listener`).

pub mod access;
pub mod agent_server;
pub mod agents;
pub mod answer;
pub mod answer_room;
pub mod arriving;
pub mod caps;
pub mod cors;
pub mod deferred;
pub mod description;
pub mod files;
pub mod gateway;
pub mod handover;
pub mod health;
pub mod listener;
pub mod metrics;
pub mod operator;
mod reserve;
pub mod router;
pub mod runs;
pub mod script;
pub mod script_file;
pub mod state;
#[cfg(test)]
mod tests;
