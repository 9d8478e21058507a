//! Connections that come in, what each may take, how they end. Takes any router and knows none of the service's routes or state.
//!
//! Reading order: the bounds (`settings`), the door (`server`), one connection (`connection`), what a request's body may do
//! (`request_body`), how an answer goes out (`answer_body`), and how a request that cannot even be read is answered (`refusing_io`,
//! `refusal`).

mod activity;
mod answer_body;
mod connection;
mod places;
mod refusal;
mod refusing_io;
mod request_body;
pub mod server;
pub mod settings;
mod talk;
mod timed_io;

pub use places::Seat;
pub use request_body::BodyBytesMax;

#[cfg(test)]
mod tests;
