//! How the service answers: errors as envelopes, bodies within their bounds, and what every answer carries.

pub mod body;
pub mod dress;
pub mod failure;
pub mod large;
pub mod outgoing;
pub mod query;
pub mod sse;
pub mod told;
pub mod trace;
