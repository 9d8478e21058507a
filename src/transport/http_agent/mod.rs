//! `http` agents: services of the user's own, over the contract or mapped to it.

pub mod backend;
pub mod health;
pub mod mapping;
pub mod reading;
pub mod request;
pub mod starting;
