//! Calls that are made later: what is kept of them and where (`store`), how they are put off (`put_off`), who makes them when their time
//! has come (`worker`), and who is told of their end (`push`).

pub mod settings;
pub mod store;
