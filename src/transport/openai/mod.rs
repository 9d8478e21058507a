//! Agents whose work is done by an OpenAI-compatible server.

pub mod backend;
pub mod completion;
pub(crate) mod estimate;
mod failure;
pub(crate) mod images;
pub mod output;
pub mod probe;
pub(crate) mod relay;
pub mod request;
pub mod settings;
pub mod stream_reader;
mod warm_up;
