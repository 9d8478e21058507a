//! Adapters that reach agents over HTTP.

mod captured;
pub mod client;
#[cfg(test)]
pub(crate) mod cuts;
mod data_url;
pub mod error_body;
pub mod error_code;
#[cfg(test)]
pub(crate) mod fake_server;
mod hiding;
pub mod http_agent;
mod http_client;
pub mod inward;
pub mod json_pointer;
mod kept_connection;
mod mask;
pub mod ndjson;
pub mod ollama;
pub mod openai;
pub mod outgoing;
pub mod pass_on;
mod question;
pub mod reading;
mod recording;
pub mod secret;
#[cfg(test)]
pub(crate) mod shared_cases;
pub mod sse;
pub mod stream;
pub mod tap;
pub mod template;
#[cfg(test)]
pub(crate) mod test_attempt;
pub mod usage;
mod vendor_budget;
pub mod webhook;
pub mod wire;
