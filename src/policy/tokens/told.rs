//! What vendors say is left of their own budgets, of the model and key that they said it of: while a word is fresh, calls are held to it
//! beside whatever budgets of ours there are. It makes nobody wait longer than a minute, whatever date it names, and nothing of it is left
//! afterwards.

use std::{collections::HashMap, sync::Arc, time::Duration};

use super::{
    BudgetRefusal, WINDOW,
    draw::{Need, OutputBound},
};
use crate::model::clock::Timestamp;

/// What a vendor says holds for so long at most: then it is asked again, whatever date it named.
pub const TOLD_MAX: Duration = WINDOW;

/// How much is left of something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Left {
    /// What is left.
    pub remaining: u64,
    /// From now until all of it is back.
    pub reset_in: Duration,
}

/// What a vendor said with its last answer of what it still allows. It speaks of the model that the answer was of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VendorBudget {
    /// Of tokens.
    pub tokens: Option<Left>,
    /// Of requests.
    pub requests: Option<Left>,
}

/// The latest words, by target.
#[derive(Debug, Clone, Default)]
pub struct ToldBudgets {
    words: HashMap<Arc<str>, Word>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Word {
    tokens: Option<Rest>,
    requests: Option<Rest>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Rest {
    left: u64,
    until: Timestamp,
}

impl ToldBudgets {
    /// A vendor says what is left, and when that is whole again. Its latest word of each holds.
    pub fn hear(&mut self, target: &Arc<str>, said: VendorBudget, now: Timestamp) {
        self.words.retain(|_, word| word.is_fresh(now));
        let word = self.words.entry(Arc::clone(target)).or_default();
        for (rest, said) in [(&mut word.tokens, said.tokens), (&mut word.requests, said.requests)] {
            let Some(Left { remaining, reset_in }) = said else { continue };
            let until = now.after(reset_in.min(TOLD_MAX));
            *rest = (until > now).then_some(Rest { left: remaining, until });
        }
        if !word.is_fresh(now) {
            self.words.remove(target);
        }
    }

    /// Whether a word holds for this target.
    pub fn concerns(&self, target: &str, now: Timestamp) -> bool {
        self.words.get(target).is_some_and(|word| word.is_fresh(now))
    }

    /// Whether any word holds.
    pub fn is_empty(&self, now: Timestamp) -> bool {
        !self.words.values().any(|word| word.is_fresh(now))
    }

    /// Whether one more request, and so many tokens, are left; takes nothing.
    pub fn look(&self, target: &str, need: Need, now: Timestamp) -> Result<(), BudgetRefusal> {
        let Some(word) = self.words.get(target) else { return Ok(()) };
        let tokens = word.tokens.filter(|rest| rest.until > now && rest.amount(need) > rest.left);
        let requests = word.requests.filter(|rest| rest.until > now && rest.left == 0);
        match [tokens, requests].iter().flatten().map(|rest| rest.until).max() {
            Some(until) => Err(BudgetRefusal::Exhausted { retry_after: until.since(now) }),
            None => Ok(()),
        }
    }

    /// Takes a request and so many tokens of what is left. What is not used comes back with the vendor's next word.
    pub fn take(&mut self, target: &str, need: Need) {
        let Some(word) = self.words.get_mut(target) else { return };
        if let Some(rest) = &mut word.tokens {
            rest.left = rest.left.saturating_sub(rest.amount(need));
        }
        if let Some(rest) = &mut word.requests {
            rest.left = rest.left.saturating_sub(1);
        }
    }
}

impl Word {
    fn is_fresh(&self, now: Timestamp) -> bool {
        [self.tokens, self.requests].iter().flatten().any(|rest| rest.until > now)
    }
}

impl Rest {
    /// What is asked of it. An answer whose length nobody bounds is taken for no more than is left, and for one token at least.
    fn amount(&self, need: Need) -> u64 {
        let output = match need.output {
            OutputBound::Told(output) => output,
            OutputBound::Assumed(output) => output.min(self.left.saturating_sub(need.prompt)).max(1),
        };
        need.prompt.saturating_add(output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Arc<str> {
        text.into()
    }

    fn left(remaining: u64, until: u64) -> Left {
        Left { remaining, reset_in: Duration::from_secs(until) }
    }

    fn tokens(remaining: u64, until: u64) -> VendorBudget {
        VendorBudget { tokens: Some(left(remaining, until)), requests: None }
    }

    fn s(at: u64) -> Timestamp {
        Timestamp::from_millis(at * 1_000)
    }

    fn told(prompt: u64, output: u64) -> Need {
        Need { prompt, output: OutputBound::Told(output) }
    }

    fn assumed(prompt: u64) -> Need {
        Need { prompt, output: OutputBound::Assumed(1_024) }
    }

    const YEAR: u64 = 365 * 24 * 3_600;

    #[test]
    fn calls_are_held_to_a_fresh_word() {
        for (what, (left, until), need, at, wait) in [
            ("enough", (300, 20), told(100, 200), 0, None),
            ("too little", (299, 20), told(100, 200), 0, Some(20)),
            ("later", (299, 20), told(100, 200), 13, Some(7)),
            ("whole again", (299, 20), told(100, 200), 20, None),
            ("nothing left", (0, 20), told(1, 0), 0, Some(20)),
            ("nothing needed", (0, 20), told(0, 0), 0, None),
            ("an answer of any length", (300, 20), assumed(299), 0, None),
            ("a prompt that fills it", (300, 20), assumed(300), 0, Some(20)),
            ("nothing for a year", (0, YEAR), told(1, 0), 0, Some(60)),
            ("nothing for a year, a minute later", (0, YEAR), told(1, 0), 60, None),
            ("a reset that has passed", (0, 0), told(1, 0), 0, None),
            ("more than there can be", (u64::MAX, YEAR), told(u64::MAX, u64::MAX), 0, None),
        ] {
            let mut budgets = ToldBudgets::default();
            budgets.hear(&of("far/big"), tokens(left, until), s(0));
            let want =
                wait.map_or(Ok(()), |wait| Err(BudgetRefusal::Exhausted { retry_after: Duration::from_secs(wait) }));
            assert_eq!(budgets.look("far/big", need, s(at)), want, "{what}");
            assert_eq!(budgets.look("far/small", need, s(at)), Ok(()), "{what}: another model");
        }
    }

    #[test]
    fn what_is_taken_is_gone_until_the_next_word() {
        let mut budgets = ToldBudgets::default();
        budgets.hear(&of("far"), tokens(300, 20), s(0));
        budgets.take("far", told(100, 150));
        assert!(budgets.look("far", told(0, 51), s(1)).is_err());
        assert!(budgets.look("far", told(0, 50), s(1)).is_ok());
        budgets.hear(&of("far"), tokens(400, 18), s(2));
        assert!(budgets.look("far", told(0, 400), s(2)).is_ok());
        budgets.take("far", assumed(0));
        assert!(budgets.look("far", told(0, 1), s(2)).is_err(), "an answer of any length may take all");
        assert!(budgets.concerns("far", s(19)) && !budgets.is_empty(s(19)));
        assert!(!budgets.concerns("far", s(20)) && budgets.is_empty(s(20)));
        budgets.hear(&of("near"), tokens(1, 9), s(21));
        assert_eq!(budgets.words.len(), 1, "what is old is forgotten");
        budgets.hear(&of("near"), tokens(1, 0), s(22));
        assert!(budgets.words.is_empty(), "a reset that has passed takes the word back");
    }

    #[test]
    fn requests_are_counted_beside_tokens() {
        let mut budgets = ToldBudgets::default();
        let far = of("far");
        let wait = |seconds| Err(BudgetRefusal::Exhausted { retry_after: Duration::from_secs(seconds) });
        budgets.hear(&far, VendorBudget { tokens: Some(left(1_000, 10)), requests: Some(left(3, 50)) }, s(0));
        for _ in 0..3 {
            assert_eq!(budgets.look("far", told(10, 10), s(0)), Ok(()));
            budgets.take("far", told(10, 10));
        }
        assert_eq!(budgets.look("far", told(10, 10), s(0)), wait(50));
        // A word of the one says nothing of the other.
        budgets.hear(&far, tokens(0, 60), s(1));
        assert_eq!(budgets.look("far", told(10, 10), s(1)), wait(60), "the longer of both");
        budgets.hear(&far, VendorBudget { tokens: None, requests: Some(left(1, 5)) }, s(2));
        assert_eq!(budgets.look("far", told(0, 0), s(2)), Ok(()));
        assert_eq!(budgets.look("far", told(1, 0), s(2)), wait(59));
        assert_eq!(budgets.look("far", told(1, 0), s(61)), Ok(()));
        assert!(budgets.is_empty(s(61)));
    }
}
