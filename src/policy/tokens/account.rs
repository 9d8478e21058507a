//! One token budget with what it counts of a call's tokens, and the shelf on which all of them lie. A place on the shelf is a number, so that
//! the way of a call looks names up once; a place that was given to another is told from the one it was. It looks nothing up by name.

use super::{TokenBudget, draw::AccountId};
use crate::{
    model::clock::Timestamp,
    policy::compartment::settings::{CountedTokens, Rates},
};

/// A budget, and what it counts.
#[derive(Debug, Clone)]
pub(super) struct Account {
    pub(super) budget: TokenBudget,
    counted: CountedTokens,
}

impl Account {
    fn of(rates: Rates) -> Option<Self> {
        let budget = TokenBudget::new(rates.tokens_per_minute?);
        Some(Self { budget, counted: rates.tokens })
    }

    /// What it counts of so many tokens.
    pub(super) fn amount(&self, prompt: u64, output: u64) -> u64 {
        match self.counted {
            CountedTokens::Both => prompt.saturating_add(output),
            CountedTokens::Input => prompt,
            CountedTokens::Output => output,
        }
    }

    /// The longest answer to such a prompt that it has room for now.
    pub(super) fn output_max(&mut self, prompt: u64, now: Timestamp) -> u64 {
        let left = self.budget.limit().saturating_sub(self.budget.used(now));
        match self.counted {
            CountedTokens::Both => left.saturating_sub(prompt),
            CountedTokens::Output => left,
            CountedTokens::Input => u64::MAX,
        }
    }
}

/// Where an account lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AccountRef {
    place: u32,
    /// How often the place was given away before.
    turn: u32,
}

#[derive(Debug, Clone, Default)]
struct Place {
    turn: u32,
    lies_here: Option<(Account, AccountId)>,
}

/// All accounts.
#[derive(Debug, Clone, Default)]
pub(super) struct Shelf {
    places: Vec<Place>,
    free: Vec<u32>,
}

impl Shelf {
    /// Lays a new account down; `None` where these rates have no budget.
    pub(super) fn add(&mut self, rates: Rates, id: impl FnOnce() -> AccountId) -> Option<AccountRef> {
        let account = Account::of(rates)?;
        let place = if let Some(place) = self.free.pop() {
            place
        } else {
            let place = u32::try_from(self.places.len()).ok()?;
            self.places.push(Place::default());
            place
        };
        let found = self.places.get_mut(place as usize)?;
        found.lies_here = Some((account, id()));
        Some(AccountRef { place, turn: found.turn })
    }

    /// An account by other rates, with what it holds; a new one where there was none, and none where there is no budget any more.
    pub(super) fn renew(
        &mut self,
        old: Option<AccountRef>,
        rates: Rates,
        id: impl FnOnce() -> AccountId,
    ) -> Option<AccountRef> {
        let Some(at) = old else { return self.add(rates, id) };
        match (rates.tokens_per_minute, self.get_mut(at)) {
            // Amounts of another kind cannot be compared: those begin anew.
            (Some(limit), Some((account, _))) if account.counted == rates.tokens => {
                account.budget.resize(limit);
                Some(at)
            }
            _ => {
                self.remove(at);
                self.add(rates, id)
            }
        }
    }

    /// Takes an account away. Who held its place finds nothing there from now on.
    pub(super) fn remove(&mut self, at: AccountRef) {
        if let Some(place) = self.places.get_mut(at.place as usize).filter(|place| place.turn == at.turn) {
            place.lies_here = None;
            place.turn = place.turn.wrapping_add(1);
            self.free.push(at.place);
        }
    }

    /// The account, if it is still there, with whose it is.
    pub(super) fn get_mut(&mut self, at: AccountRef) -> Option<(&mut Account, &AccountId)> {
        let place = self.places.get_mut(at.place as usize).filter(|place| place.turn == at.turn)?;
        place.lies_here.as_mut().map(|(account, id)| (account, &*id))
    }
}

#[cfg(test)]
mod tests {
    //! Places that are given to another.
    use super::*;
    use crate::model::name::Name;

    fn rates(tokens: u64, counted: CountedTokens) -> Rates {
        Rates { tokens_per_minute: Some(tokens), tokens: counted, ..Rates::default() }
    }

    fn id(text: &str) -> impl FnOnce() -> AccountId {
        let name = Name::try_new(text).unwrap();
        move || AccountId::Feature(name)
    }

    #[test]
    fn a_place_that_was_given_to_another_is_not_the_one_it_was() {
        let mut shelf = Shelf::default();
        assert_eq!(shelf.add(Rates::default(), id("none")), None, "no budget, no account");
        let first = shelf.add(rates(1, CountedTokens::Both), id("first")).unwrap();
        shelf.remove(first);
        shelf.remove(first);
        let second = shelf.add(rates(2, CountedTokens::Both), id("second")).unwrap();
        let third = shelf.add(rates(3, CountedTokens::Both), id("third")).unwrap();
        assert_eq!(
            (second.place, third.place),
            (first.place, 1),
            "a place is free once, however often it is given back"
        );
        assert!(shelf.get_mut(first).is_none());
        assert_eq!(shelf.get_mut(second).unwrap().0.budget.limit(), 2);
        assert_eq!(shelf.get_mut(third).unwrap().1.to_string(), "feature:third");
    }

    #[test]
    fn a_renewed_account_keeps_its_place_unless_it_counts_something_else() {
        let mut shelf = Shelf::default();
        let first = shelf.add(rates(1, CountedTokens::Both), id("it")).unwrap();
        assert_eq!(shelf.renew(Some(first), rates(5, CountedTokens::Both), id("it")), Some(first));
        assert_eq!(shelf.get_mut(first).unwrap().0.budget.limit(), 5);
        let other = shelf.renew(Some(first), rates(5, CountedTokens::Input), id("it")).unwrap();
        assert!(other != first && shelf.get_mut(first).is_none());
        assert_eq!(shelf.renew(Some(other), Rates::default(), id("it")), None);
        assert!(shelf.get_mut(other).is_none());
    }
}
