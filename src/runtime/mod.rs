//! Actors and the ports they reach the world through.

pub mod ports;
pub mod settings;
