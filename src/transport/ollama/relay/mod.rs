//! Somebody else's request in OpenAI's shape, asked of Ollama in its own protocol, and the answer back in OpenAI's shape.
//!
//! Reading order: what is asked (`request`, `messages`), what the lines become (`chunks`), the exchange itself, embeddings.

pub(super) mod embeddings;
pub(super) mod exchange;

mod chunks;
mod messages;
mod request;
