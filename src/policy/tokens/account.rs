//! One token budget with what it counts of a call's tokens, and the shelf on which all of them lie. A place on the shelf is a number, so that
//! the way of a call looks names up once; a place that was given to another is told from the one it was. An account that a configuration takes
//! away rests until its minute is over: if it comes back before, it is what it was. Else nothing is looked up by name.

use std::collections::{HashMap, VecDeque};

use super::{TokenBudget, WINDOW, draw::AccountId};
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

/// Whose account it is, and what it counts: amounts of another kind cannot be compared.
type Kind = (AccountId, CountedTokens);

/// All accounts.
#[derive(Debug, Clone, Default)]
pub(super) struct Shelf {
    places: Vec<Place>,
    free: Vec<u32>,
    resting: HashMap<Kind, AccountRef>,
    /// When those that rest hold nothing any more, in the order of time.
    rested: VecDeque<(Timestamp, AccountRef)>,
}

impl Shelf {
    /// Lays an account down: the one that rests here, with what it holds, else a new one. `None` where these rates have no budget.
    pub(super) fn add(&mut self, rates: Rates, id: impl FnOnce() -> AccountId) -> Option<AccountRef> {
        let account = Account::of(rates)?;
        let id = id();
        if !self.resting.is_empty()
            && let Some(at) = self.resting.remove(&(id.clone(), rates.tokens))
            && let Some((rested, _)) = self.get_mut(at)
        {
            rested.budget.resize(account.budget.limit());
            return Some(at);
        }
        let place = if let Some(place) = self.free.pop() {
            place
        } else {
            let place = u32::try_from(self.places.len()).ok()?;
            self.places.push(Place::default());
            place
        };
        let found = self.places.get_mut(place as usize)?;
        found.lies_here = Some((account, id));
        Some(AccountRef { place, turn: found.turn })
    }

    /// An account by other rates, with what it holds; a new one where there was none, and none where there is no budget any more.
    pub(super) fn renew(
        &mut self,
        old: Option<AccountRef>,
        rates: Rates,
        now: Timestamp,
        id: impl FnOnce() -> AccountId,
    ) -> Option<AccountRef> {
        let Some(at) = old else { return self.add(rates, id) };
        match (rates.tokens_per_minute, self.get_mut(at)) {
            (Some(limit), Some((account, _))) if account.counted == rates.tokens => {
                account.budget.resize(limit);
                Some(at)
            }
            _ => {
                self.rest(at, now);
                self.add(rates, id)
            }
        }
    }

    /// Puts an account away that is not configured any more: what is reserved of it is settled as ever, and nobody finds it by its name
    /// unless it comes back within the minute. Nothing more is ever reserved of it meanwhile, so that it holds nothing afterwards.
    pub(super) fn rest(&mut self, at: AccountRef, now: Timestamp) {
        let Some((account, id)) = self.get_mut(at) else { return };
        if account.budget.is_idle(now) {
            return self.remove(at);
        }
        let kind = (id.clone(), account.counted);
        if let Some(before) = self.resting.insert(kind, at) {
            self.remove(before);
        }
        self.rested.push_back((now.after(WINDOW), at));
    }

    /// Forgets those that rest and hold nothing any more.
    pub(super) fn forget_rested(&mut self, now: Timestamp) {
        while let Some((_, at)) = self.rested.pop_front_if(|(until, _)| *until <= now) {
            let Some((account, id)) = self.get_mut(at) else { continue };
            let kind = (id.clone(), account.counted);
            // One that came back lies where it was.
            if self.resting.get(&kind) == Some(&at) && self.is_over(at, now) {
                self.resting.remove(&kind);
                self.remove(at);
            }
        }
    }

    /// Whether an account that rests holds nothing. One that came back and went again rests for longer.
    fn is_over(&mut self, at: AccountRef, now: Timestamp) -> bool {
        self.get_mut(at).is_none_or(|(account, _)| account.budget.is_idle(now))
    }

    /// How many accounts lie here, those that rest included.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.places.len() - self.free.len()
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
        let now = Timestamp::from_millis(1_000);
        assert_eq!(shelf.renew(Some(first), rates(5, CountedTokens::Both), now, id("it")), Some(first));
        assert_eq!(shelf.get_mut(first).unwrap().0.budget.limit(), 5);
        let other = shelf.renew(Some(first), rates(5, CountedTokens::Input), now, id("it")).unwrap();
        assert!(other != first && shelf.get_mut(first).is_none(), "it held nothing");
        assert_eq!(shelf.renew(Some(other), Rates::default(), now, id("it")), None);
        assert!(shelf.get_mut(other).is_none());
        assert_eq!(shelf.len(), 0);
    }

    #[test]
    fn an_account_that_holds_something_rests_for_its_minute() {
        let at = |seconds: u64| Timestamp::from_millis(seconds * 1_000);
        let mut shelf = Shelf::default();
        let both = rates(100, CountedTokens::Both);
        let first = shelf.add(both, id("it")).unwrap();
        let held = shelf.get_mut(first).unwrap().0.budget.reserve(70, at(0)).unwrap();
        assert_eq!(shelf.renew(Some(first), Rates::default(), at(10), id("it")), None);
        // What is under way is settled where it was taken.
        shelf.get_mut(first).unwrap().0.budget.settle(held, 60, at(15));
        // Another kind meanwhile is another account; gone as well, it has taken nothing.
        let other = shelf.add(rates(100, CountedTokens::Output), id("it")).unwrap();
        shelf.rest(other, at(20));
        let again = shelf.add(rates(200, CountedTokens::Both), id("it")).unwrap();
        assert_eq!(again, first);
        let budget = &mut shelf.get_mut(again).unwrap().0.budget;
        assert_eq!((budget.limit(), budget.used(at(20))), (200, 60));
        // Since it came back it is not forgotten at the end of its rest ...
        let _ = budget.reserve(5, at(69)).unwrap();
        shelf.forget_rested(at(70));
        assert_eq!((shelf.len(), shelf.get_mut(first).unwrap().0.budget.used(at(70))), (1, 5));
        // ... nor while it rests again, before its own minute is over.
        shelf.rest(first, at(80));
        shelf.forget_rested(at(128));
        assert_eq!(shelf.len(), 1);
        shelf.forget_rested(at(140));
        assert_eq!((shelf.len(), shelf.resting.len(), shelf.rested.len()), (0, 0, 0));
        let new = shelf.add(both, id("it")).unwrap();
        assert_eq!(shelf.get_mut(new).unwrap().0.budget.used(at(140)), 0);
    }
}
