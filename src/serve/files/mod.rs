//! Files over HTTP: taken in as they are sent, given out to their tenant and to agents, named by id everywhere else.

pub mod backend;
pub mod failure;
pub mod form;
pub mod form_pieces;
pub mod input;
pub mod routes;
