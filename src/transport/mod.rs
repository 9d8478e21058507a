//! Adapters that reach agents over HTTP.

pub mod error_body;
pub mod error_code;
pub mod json_pointer;
#[cfg(test)]
mod shared_cases;
pub mod sse;
