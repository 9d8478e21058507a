//! Who may use the service: keys, the caller of a request, signed tokens.

pub mod asker;
pub mod caller;
pub mod keys;
mod page;
pub mod random;
pub mod signature;
pub mod watch_token;
