//! The gateway's routes as a client sees them, in front of a server in the test's hand. By topic.

mod answers;
mod budgets;
mod charges;
mod keys;
mod lines;
mod names;
mod services;
mod streams;
mod support;
