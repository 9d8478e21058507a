//! The circuit breaker: a pure state machine over outcomes that is handed the time.

pub mod change;
mod fate;
pub mod machine;
pub mod reconfigure;
pub mod settings;
pub mod state;
mod streak;
mod trials;
pub mod window;

#[cfg(test)]
mod tests;
