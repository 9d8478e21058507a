//! HTTP servers.

pub mod agent_server;
pub mod attempt_envelope;
pub mod script;
pub mod script_file;
