//! The loader as a whole, by topic.

mod agents;
mod chance;
mod given;
mod in_force;
mod kinds;
mod layers;
mod mistakes;
mod page;
mod rich;
mod shares;
mod slips;
mod targets;
mod together;

pub(super) use given::Given;
