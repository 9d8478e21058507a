//! Agents over HTTP: what they are doing, calling one directly, and what operators do to them.

pub mod acts;
pub mod call;
pub mod list;
