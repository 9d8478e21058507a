//! Tests of the plan: a small world in virtual time performs its actions, agents answer by script.

mod flow;
mod instead;
mod map;
mod property;
mod refusal;
mod restart;
mod revise;
mod world;
