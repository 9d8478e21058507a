//! HTTP servers.

pub mod agent_server;
pub mod script;
pub mod script_file;
