//! Who draws on token budgets, how much is needed, and who refuses: the words of [`super::accounts`].

use std::sync::Arc;

use super::BudgetRefusal;
use crate::model::name::Name;

/// How many tokens an attempt may need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Need {
    /// The prompt's.
    pub prompt: u64,
    /// The answer's.
    pub output: OutputBound,
}

/// The most tokens of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputBound {
    /// The request says so.
    Told(u64),
    /// Nobody said: what is taken for it, but never more than the smallest budget leaves beside the prompt, so that a small one does not
    /// refuse every call for the sake of a guess.
    Assumed(u64),
}

/// Who draws.
#[derive(Debug, Clone, Copy)]
pub struct Drawer<'a> {
    /// The provider of the target.
    pub provider: &'a Name,
    /// The feature, as the caller names it.
    pub feature: Option<&'a str>,
    /// The tenant, as the caller names it.
    pub tenant: Option<&'a str>,
}

/// Whose budget.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum AccountId {
    /// A provider's.
    Provider(Name),
    /// A vendor's own one of a target (`provider/model`), by its word: none of ours.
    Target(Arc<str>),
    /// A feature's, over all tenants.
    Feature(Name),
    /// A tenant's, over all features.
    Tenant(Arc<str>),
    /// A tenant's in one feature.
    Cell(Name, Arc<str>),
}

impl std::fmt::Display for AccountId {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Provider(name) => write!(formatter, "provider:{name}"),
            Self::Target(name) => write!(formatter, "target:{name}"),
            Self::Feature(name) => write!(formatter, "feature:{name}"),
            Self::Tenant(name) => write!(formatter, "tenant:{name}"),
            Self::Cell(feature, tenant) => write!(formatter, "cell:{feature}/{tenant}"),
        }
    }
}

/// No tokens, and from whom.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{account}: {refusal}")]
pub struct NoTokens {
    /// Whose budget refuses.
    pub account: AccountId,
    /// Why.
    pub refusal: BudgetRefusal,
}

/// What one budget shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// Whose.
    pub account: AccountId,
    /// The cap.
    pub limit: u64,
    /// Tokens of the last minute, open reservations included.
    pub used: u64,
    /// Open reservations.
    pub reserved: u64,
}
