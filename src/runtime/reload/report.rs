//! What a reload tells of what it did: a plain value.

use crate::model::name::Name;

/// What a reload did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReloadReport {
    /// Agents that were not there before.
    pub added: Vec<Name>,
    /// Agents that are gone: not found by new calls, those under way end.
    pub removed: Vec<Name>,
    /// Agents that have other settings or targets.
    pub changed: Vec<Name>,
    /// Settings that hold from the next start on only.
    pub needs_restart: Vec<&'static str>,
}
