//! Other settings for a runtime that runs: what lives on, what is made anew, how what is gone runs dry.

pub mod apply;
pub(crate) mod before;
pub mod gone;
pub mod report;
