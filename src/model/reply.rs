//! What a backend gives back for one attempt: an answer with its usage, or a failure with everything that was seen of it.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{cost::Cost, facts::Ending};

/// With what tokens were counted that nobody told; the rougher is the greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CountedBy {
    /// A vocabulary of the model's family.
    Vocabulary,
    /// The letters of the text: right to about a third.
    Letters,
}

impl CountedBy {
    /// The name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Vocabulary => "vocabulary",
            Self::Letters => "letters",
        }
    }
}

/// No attempt is believed to have used more tokens than this on either side: more than any model can, and little enough to be added up.
pub const SIDE_TOKENS_MAX: u64 = 1_000_000_000;

/// Tokens of one attempt, call or run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens of the prompt.
    #[serde(default)]
    pub prompt_tokens: u64,
    /// Those of them that the server had in its cache.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cached_tokens: u64,
    /// Tokens of the answer.
    #[serde(default)]
    pub output_tokens: u64,
    /// True where the server told nothing and the numbers were counted by us.
    #[serde(default)]
    pub estimated: bool,
    /// With what they were counted, where they were; the rougher way where there were two.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counted_by: Option<CountedBy>,
    /// What they cost; `None` where no price is known, which is not the same as nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde hands in a reference")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl Usage {
    /// The sum; estimated if either was.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            prompt_tokens: self.prompt_tokens.saturating_add(other.prompt_tokens),
            cached_tokens: self.cached_tokens.saturating_add(other.cached_tokens),
            output_tokens: self.output_tokens.saturating_add(other.output_tokens),
            estimated: self.estimated || other.estimated,
            counted_by: self.counted_by.max(other.counted_by),
            cost: Cost::sum(self.cost, other.cost),
        }
    }

    /// The same with no number beyond `tokens`: what a server tells may be nonsense.
    #[must_use]
    pub fn at_most(self, tokens: u64) -> Self {
        Self {
            prompt_tokens: self.prompt_tokens.min(tokens),
            cached_tokens: self.cached_tokens.min(tokens),
            output_tokens: self.output_tokens.min(tokens),
            ..self
        }
    }
}

/// A good answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Reply {
    /// The agent's output, of the shape that it promises.
    pub output: Value,
    /// Tokens used; `None` for work without a model.
    pub usage: Option<Usage>,
    /// Why the model stopped, as the server said it (`stop`, `length`, ...); `unknown` where a stream ended without saying.
    pub finish_reason: Option<String>,
    /// HTTP status, where there was one.
    pub status: Option<u16>,
}

impl Reply {
    /// An answer of work that no model did.
    pub fn of(output: Value) -> Self {
        Self { output, usage: None, finish_reason: None, status: None }
    }
}

/// A failed attempt: how it ended and what the other side said.
#[derive(Debug, Clone, PartialEq)]
pub struct AttemptFailure {
    /// How it ended: the only part that the verdict looks at.
    pub ending: Ending,
    /// For developers; never holds a key.
    pub message: String,
    /// A text for a screen that the agent sent, if it did.
    pub user_message: Option<String>,
    /// The agent's own code, if it sent one.
    pub upstream_code: Option<String>,
    /// HTTP status as received, also where an error came inside a 200 and named one.
    pub status: Option<u16>,
    /// How long the other side asks us to stay away.
    pub retry_after: Option<Duration>,
    /// The other side's word on trying again now (`x-should-retry`), beside the envelope's on whether a later call can succeed.
    pub should_retry: Option<bool>,
    /// Tokens that the failed attempt is known to have used.
    pub usage: Option<Usage>,
}

impl AttemptFailure {
    /// A failure without anything said by the other side.
    pub fn new(ending: Ending, message: impl Into<String>) -> Self {
        Self {
            ending,
            message: message.into(),
            user_message: None,
            upstream_code: None,
            status: None,
            retry_after: None,
            should_retry: None,
            usage: None,
        }
    }
}
