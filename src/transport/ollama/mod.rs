//! Agents whose work is done by Ollama, in its own protocol: `POST /api/chat` with lines of JSON.
//!
//! Reading order: what is configured (`settings`), what is sent (`request`, `fit`), what a line means (`line`, `stream_reader`), what
//! an error means (`failure`), the exchange (`backend`), requests of others in OpenAI's shape (`relay`), questions beside it (`server`).

pub mod backend;
pub mod failure;
pub mod fit;
pub mod line;
mod relay;
pub mod request;
pub mod server;
pub mod settings;
pub mod stream_reader;
