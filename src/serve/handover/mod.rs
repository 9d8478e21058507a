//! Handing the listening socket from an old process to a new one on the same host, so that nobody is refused in between.
//!
//! The old one offers (`offer`) and hears how the new one fares (`successor`), the new one takes (`take`), and both speak a few bytes
//! (`message`).

mod message;
pub mod offer;
pub mod successor;
pub mod take;

#[cfg(test)]
mod tests;
