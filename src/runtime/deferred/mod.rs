//! Calls that are made later: what is kept of them and where (`store`), the queue with its rules (`queue`), who makes them when their
//! time has come (`worker`), what people see of them (`view`), and who is told of their end (`push`) and
//! how (`telling`).

pub mod push;
pub mod settings;
pub mod store;
pub mod view;

pub(crate) mod queue;
mod telling;
pub(crate) mod worker;
