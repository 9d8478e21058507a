//! Calls that were put off, over HTTP.

pub mod routes;
