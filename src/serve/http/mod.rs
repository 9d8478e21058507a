//! Connections: how they come in, what each may take, how they end.

pub mod activity;
pub mod connection;
pub mod server;
pub mod timed_io;
