//! Agents whose work is done by an OpenAI-compatible server.

pub mod backend;
pub mod completion;
pub(in crate::transport) mod images;
pub mod output;
pub mod probe;
pub(in crate::transport) mod relay;
pub mod request;
pub mod settings;
pub mod stream_reader;
