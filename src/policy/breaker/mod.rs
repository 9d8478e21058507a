//! The circuit breaker: a pure state machine over outcomes that is handed the time.

pub mod settings;
