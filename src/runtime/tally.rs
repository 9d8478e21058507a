//! The tokens of one attempt, counted by us for the case that nobody tells them: the prompt's as they were reserved, the answer's by the
//! text that has come so far, also where the attempt is cut. It charges nobody; whoever settles the attempt does.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use super::token_count::{COUNTED_BYTES_MAX, TokenCounter, as_count, scale_up};
use crate::model::reply::Usage;

/// How an answer is wanted, and how it comes: that decides what is known of one that does not come to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerForm {
    /// All at once. A server may go on with it though nobody listens any more, and bills it: what was made until then nobody can know.
    Whole,
    /// Piece by piece; where it is wanted so, a whole one is understood too. A server stops when its listener leaves: what was made is what came.
    Stream,
}

/// What is known of an attempt that ended without numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Known {
    /// Nobody said how it went.
    #[default]
    Nothing,
    /// Its request never left.
    NotSent,
    /// Its request left, and the answer was to come like this.
    Sent(AnswerForm),
}

/// What an attempt's tokens are counted with, and what was heard so far. Shared by the attempt and whoever looks when it is over.
#[derive(Debug, Default)]
pub struct Tally {
    counter: TokenCounter,
    prompt: OnceLock<u64>,
    said: Mutex<Said>,
}

#[derive(Debug, Default)]
struct Said {
    /// The beginning of the answer, which a vocabulary counts if it comes to that; what follows is taken to be like it.
    beginning: String,
    of_beginning: Letters,
    of_all: Letters,
    /// Output that is no text.
    beside: u64,
    /// How the answer was asked for, or comes.
    form: Option<AnswerForm>,
    known: Known,
}

#[derive(Debug, Clone, Copy, Default)]
struct Letters {
    ascii: u64,
    other: u64,
}

impl Letters {
    fn add(&mut self, text: &str) {
        let ascii = as_count(text.bytes().filter(u8::is_ascii).count());
        self.ascii += ascii;
        self.other += as_count(text.chars().count()) - ascii;
    }
}

impl Tally {
    /// A tally of an attempt whose prompt was counted before it was reserved for.
    pub fn reserved(counter: TokenCounter, prompt: u64) -> Self {
        Self { counter, prompt: OnceLock::from(prompt), said: Mutex::default() }
    }

    /// What it counts with.
    pub fn counter(&self) -> TokenCounter {
        self.counter
    }

    /// The prompt's tokens: as they were reserved, else by the first estimate that somebody brings.
    pub fn prompt_or(&self, estimate: impl FnOnce() -> u64) -> u64 {
        *self.prompt.get_or_init(estimate)
    }

    /// The model put out this text: of its answer, its thoughts, the arguments of a tool.
    pub fn heard(&self, text: &str) {
        let mut said = self.said();
        said.of_all.add(text);
        if self.counter == TokenCounter::Letters {
            return;
        }
        let room = COUNTED_BYTES_MAX.saturating_sub(said.beginning.len());
        let kept = text.get(..text.floor_char_boundary(room.min(text.len()))).unwrap_or_default();
        said.beginning.push_str(kept);
        said.of_beginning.add(kept);
    }

    /// The model put out something that is no text, of so many tokens.
    pub fn heard_beside(&self, tokens: u64) {
        let mut said = self.said();
        said.beside = said.beside.saturating_add(tokens);
    }

    /// The attempt begins with work of our own: nothing has left until [`Tally::left`] says so. An adapter that never says it is one of
    /// which nothing is known.
    pub fn prepares(&self) {
        self.said().known = Known::NotSent;
    }

    /// The request is made, and asks for an answer of this form; it has not left.
    pub fn asks(&self, form: AnswerForm) {
        let mut said = self.said();
        (said.form, said.known) = (Some(form), Known::NotSent);
    }

    /// From now on the request may have reached the other side.
    pub fn left(&self) {
        let mut said = self.said();
        said.known = said.form.map_or(Known::Nothing, Known::Sent);
    }

    /// The answer begins, and is of this form, whatever was asked for.
    pub fn comes(&self, form: AnswerForm) {
        let mut said = self.said();
        (said.form, said.known) = (Some(form), Known::Sent(form));
    }

    /// What is known of the attempt.
    pub(crate) fn known(&self) -> Known {
        self.said().known
    }

    fn said(&self) -> MutexGuard<'_, Said> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The tokens of what was heard.
    pub fn output(&self) -> u64 {
        let said = self.said();
        let roughly = |letters: Letters| TokenCounter::of_letters(letters.ascii, letters.other);
        let text = match self.counter {
            TokenCounter::Letters => roughly(said.of_all),
            TokenCounter::Vocabulary(_) if said.beginning.is_empty() => 0,
            TokenCounter::Vocabulary(vocabulary) => {
                let counted = vocabulary.count(&said.beginning);
                scale_up(counted, roughly(said.of_beginning), roughly(said.of_all))
            }
        };
        text.saturating_add(said.beside)
    }

    /// All of it, for an attempt whose answer came in so many pieces: each is one token at least.
    pub fn estimate(&self, prompt: impl FnOnce() -> u64, pieces: u64) -> Usage {
        Usage {
            prompt_tokens: self.prompt_or(prompt),
            output_tokens: self.output().max(pieces),
            estimated: true,
            counted_by: Some(self.counter.counted_by()),
            ..Usage::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{model::reply::CountedBy, runtime::token_count::Vocabulary};

    const O200K: TokenCounter = TokenCounter::Vocabulary(Vocabulary::O200k);

    #[test]
    fn what_was_heard_is_counted_with_what_is_there() {
        for (counter, pieces, want) in [
            (TokenCounter::Letters, &["안녕", "하세요", ", ", "사진 ", "초안"][..], 6),
            (O200K, &["안녕", "하세요", ", ", "사진 ", "초안"], 6),
            (TokenCounter::Letters, &["Say hello ", "in five words."], 6),
            (O200K, &["Say hello ", "in five words."], 6),
            (TokenCounter::Letters, &[], 0),
            (O200K, &[], 0),
            // By pieces, where there are more of them than the text has tokens.
            (O200K, &["a", "a", "a", "a", "a"], 5),
        ] {
            let tally = Tally::reserved(counter, 1_200);
            for piece in pieces {
                tally.heard(piece);
            }
            let usage = tally.estimate(|| 7, pieces.len() as u64);
            assert_eq!((usage.prompt_tokens, usage.output_tokens, usage.estimated), (1_200, want, true), "{pieces:?}");
            let by = if counter == O200K { CountedBy::Vocabulary } else { CountedBy::Letters };
            assert_eq!(usage.counted_by, Some(by));
        }
    }

    #[test]
    fn a_prompt_is_as_it_was_reserved_or_first_estimated() {
        let tally = Tally::default();
        assert_eq!((tally.prompt_or(|| 5), tally.prompt_or(|| 9)), (5, 5));
        assert_eq!(Tally::reserved(TokenCounter::Letters, 3).prompt_or(|| 9), 3);
        tally.heard_beside(u64::MAX);
        tally.heard("more");
        assert_eq!(tally.output(), u64::MAX);
    }

    #[test]
    fn what_left_and_how_it_comes_back() {
        let tally = Tally::default();
        assert_eq!(tally.known(), Known::Nothing);
        tally.left();
        assert_eq!(tally.known(), Known::Nothing, "nobody said in which form");
        tally.prepares();
        assert_eq!(tally.known(), Known::NotSent);
        tally.asks(AnswerForm::Stream);
        assert_eq!(tally.known(), Known::NotSent);
        tally.left();
        assert_eq!(tally.known(), Known::Sent(AnswerForm::Stream));
        tally.comes(AnswerForm::Whole);
        assert_eq!(tally.known(), Known::Sent(AnswerForm::Whole));
    }

    #[test]
    fn of_a_long_answer_the_beginning_is_kept_and_scaled() {
        let tally = Tally::reserved(O200K, 0);
        let line = "썰물이 빠지자 배들은 모래 위에 누워 물이 다시 들어오기를 기다렸다. ";
        for _ in 0..2_000 {
            tally.heard(line);
        }
        assert!(tally.said().beginning.len() <= COUNTED_BYTES_MAX);
        let (counted, exact) = (tally.output(), Vocabulary::O200k.count(&line.repeat(100)) * 20);
        assert!(counted.abs_diff(exact) * 50 <= exact, "{counted} for {exact}");
    }
}
