//! One account: a token budget, what it counts, and which of several in a row of one name it is. It counts no tokens and reads no clock.

use super::{BudgetRefusal, ReservationId, TokenBudget};
use crate::{
    model::clock::Timestamp,
    policy::compartment::settings::{CountedTokens, Rates},
};

#[derive(Debug, Clone)]
pub(super) struct Account {
    pub(super) budget: TokenBudget,
    counted: CountedTokens,
    /// Tells it from one of the same name that was there before: a reload took that away, or made it count something else.
    life: u64,
}

/// An amount that an account issued.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "what is never settled counts as used in full"]
pub(super) struct Issued {
    life: u64,
    reservation: ReservationId,
}

impl Issued {
    pub(super) const fn tokens(&self) -> u64 {
        self.reservation.tokens()
    }
}

impl Account {
    /// One that begins now; `None` where there is no cap.
    pub(super) fn of(rates: Rates, life: u64) -> Option<Self> {
        let budget = TokenBudget::new(rates.tokens_per_minute?);
        Some(Self { budget, counted: rates.tokens, life })
    }

    /// Takes an amount, or nothing.
    pub(super) fn reserve(&mut self, amount: u64, now: Timestamp) -> Result<Issued, BudgetRefusal> {
        let reservation = self.budget.reserve(amount, now)?;
        Ok(Issued { life: self.life, reservation })
    }

    /// Puts the real use in place of what it issued. What an earlier account of its name issued is gone with that one.
    pub(super) fn settle(&mut self, issued: Issued, used: u64, now: Timestamp) {
        if issued.life == self.life {
            self.budget.settle(issued.reservation, used, now);
        }
    }

    /// What it counts of so many tokens.
    pub(super) fn amount(&self, prompt: u64, output: u64) -> u64 {
        match self.counted {
            CountedTokens::Both => prompt.saturating_add(output),
            CountedTokens::Input => prompt,
            CountedTokens::Output => output,
        }
    }

    /// The longest answer to such a prompt that fits it at all.
    pub(super) fn output_max(&self, prompt: u64) -> u64 {
        match self.counted {
            CountedTokens::Both => self.budget.limit().saturating_sub(prompt),
            CountedTokens::Output => self.budget.limit(),
            CountedTokens::Input => u64::MAX,
        }
    }
}

/// An account by other settings, with what it holds.
pub(super) fn renewed(old: Option<Account>, rates: Rates, life: u64) -> Option<Account> {
    let limit = rates.tokens_per_minute?;
    match old {
        // Amounts of another kind cannot be compared: it begins anew.
        Some(mut account) if account.counted == rates.tokens => {
            account.budget.resize(limit);
            Some(account)
        }
        _ => Account::of(rates, life),
    }
}
