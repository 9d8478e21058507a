//! What vendors say is left of their own budgets, for providers that have none of ours: while a word is fresh, calls are held to it. It
//! makes nobody wait longer than a minute, whatever date it names, and nothing of it is left afterwards.

use std::collections::HashMap;

use super::{
    BudgetRefusal, NARROWED_MAX,
    draw::{Need, OutputBound},
};
use crate::model::{clock::Timestamp, name::Name};

/// The latest words, by provider.
#[derive(Debug, Clone, Default)]
pub struct ToldBudgets {
    words: HashMap<Name, Word>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Word {
    left: u64,
    until: Timestamp,
}

impl ToldBudgets {
    /// A vendor says what is left, and when that is whole again. Its latest word holds.
    pub fn hear(&mut self, provider: &Name, remaining: u64, until: Timestamp, now: Timestamp) {
        self.words.retain(|_, word| word.until > now);
        let until = until.min(now.after(NARROWED_MAX));
        if until > now {
            self.words.insert(provider.clone(), Word { left: remaining, until });
        } else {
            self.words.remove(provider);
        }
    }

    /// Whether a word holds for this provider.
    pub fn concerns(&self, provider: &Name, now: Timestamp) -> bool {
        self.word(provider, now).is_some()
    }

    /// Whether any word holds.
    pub fn is_empty(&self, now: Timestamp) -> bool {
        self.words.values().all(|word| word.until <= now)
    }

    /// Whether so much is left; takes nothing.
    pub fn look(&self, provider: &Name, need: Need, now: Timestamp) -> Result<(), BudgetRefusal> {
        match self.word(provider, now) {
            Some(word) if word.amount(need) > word.left => {
                Err(BudgetRefusal::Exhausted { retry_after: word.until.since(now) })
            }
            _ => Ok(()),
        }
    }

    /// Takes so much of what is left. What is not used comes back with the vendor's next word.
    pub fn take(&mut self, provider: &Name, need: Need) {
        if let Some(word) = self.words.get_mut(provider) {
            word.left = word.left.saturating_sub(word.amount(need));
        }
    }

    /// Providers that have a budget of ours now are not held to what was said. Those that are gone may come back within the minute.
    pub fn keep(&mut self, is_kept: impl Fn(&Name) -> bool) {
        self.words.retain(|provider, _| is_kept(provider));
    }

    fn word(&self, provider: &Name, now: Timestamp) -> Option<&Word> {
        self.words.get(provider).filter(|word| word.until > now)
    }
}

impl Word {
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
    use std::time::Duration;

    use super::*;

    fn name(text: &str) -> Name {
        Name::try_new(text).unwrap()
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
            budgets.hear(&name("far"), left, s(until), s(0));
            let want =
                wait.map_or(Ok(()), |wait| Err(BudgetRefusal::Exhausted { retry_after: Duration::from_secs(wait) }));
            assert_eq!(budgets.look(&name("far"), need, s(at)), want, "{what}");
            assert_eq!(budgets.look(&name("near"), need, s(at)), Ok(()), "{what}: another provider");
        }
    }

    #[test]
    fn what_is_taken_is_gone_until_the_next_word() {
        let mut budgets = ToldBudgets::default();
        budgets.hear(&name("far"), 300, s(20), s(0));
        budgets.take(&name("far"), told(100, 150));
        assert!(budgets.look(&name("far"), told(0, 51), s(1)).is_err());
        assert!(budgets.look(&name("far"), told(0, 50), s(1)).is_ok());
        budgets.hear(&name("far"), 400, s(20), s(2));
        assert!(budgets.look(&name("far"), told(0, 400), s(2)).is_ok());
        budgets.take(&name("far"), assumed(0));
        assert!(budgets.look(&name("far"), told(0, 1), s(2)).is_err(), "an answer of any length may take all");
        assert!(budgets.concerns(&name("far"), s(19)) && !budgets.is_empty(s(19)));
        assert!(!budgets.concerns(&name("far"), s(20)) && budgets.is_empty(s(20)));
        budgets.keep(|provider| provider.as_str() != "far");
        assert!(budgets.words.is_empty());
    }
}
