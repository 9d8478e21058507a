//! The journal in an embedded database: runs, their files, usage, dead letters, captures, and what operators set.
//!
//! Reading order: what it is opened with, the journal as others hold it, the writer and its work, what runs look like in the file, what
//! is asked of it, what goes.

pub mod settings;

pub mod health;
#[allow(clippy::module_inception, reason = "the journal as others hold it is the noun of this file")]
pub mod journal;

mod fault;
mod lock;
mod readers;
mod schema;
mod work;
mod writer;

mod give_up;
mod number;
mod pack;
mod restore;
mod runs;
mod shut_callers;
mod slot;
mod written;

pub mod capture_writer;
pub mod captures;
pub mod dead_letters;
pub mod deferred;
pub mod files;
pub mod ledger;
pub mod operator_modes;
pub mod query;
pub mod row_cursor;
pub mod usage;

mod maintenance;
pub mod remove;

#[cfg(test)]
mod tests;
