//! What an attempt used: by the server's word, else by our own count of what was sent and of what came back until then, marked so. An
//! answer without numbers is never free, and neither is a stream that was cut; what never left is. It reserves and settles nothing.

use metrics::Label;
use serde_json::Value;

use super::{
    core::AgentCore,
    metric,
    ports::{Asked, AttemptRequest, Progress, TokenEstimate},
    token_count::TokenCounter,
};
use crate::model::{
    facts::Ending,
    reply::{AttemptFailure, Reply, SIDE_TOKENS_MAX, Usage},
};

/// A text inside an input is looked for so deep.
const INPUT_DEPTH_MAX: usize = 32;

/// Why an attempt's tokens are our own count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Guess {
    /// The answer came to its end and told nothing.
    NoUsage,
    /// The attempt broke off: a cut stream, a timeout, a reply that was none.
    Cut,
    /// The caller left.
    Cancelled,
    /// The attempt ended where nobody could look: it counts as reserved.
    Lost,
}

impl Guess {
    /// Every reason, in the order of the documentation.
    pub(crate) const ALL: [Self; 4] = [Self::NoUsage, Self::Cut, Self::Cancelled, Self::Lost];

    /// Its label.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::NoUsage => "no_usage",
            Self::Cut => "cut",
            Self::Cancelled => "cancelled",
            Self::Lost => "lost",
        }
    }

    fn of(result: &Result<Reply, AttemptFailure>) -> Self {
        match result {
            Ok(_) => Self::NoUsage,
            Err(AttemptFailure { ending: Ending::Cancelled { .. }, .. }) => Self::Cancelled,
            Err(_) => Self::Cut,
        }
    }
}

/// Counts a charge by our own count.
pub(crate) fn count_guess(agent: &AgentCore, guess: Guess) {
    let name = agent.settings.name.as_str().to_owned();
    let labels = vec![Label::new("agent", name), Label::from_static_parts("reason", guess.as_str())];
    metric::count(metric::TOKENS_GUESSED, labels, 1);
}

/// What an attempt used that asked for something; `None` where nothing was used.
pub(crate) fn spent(
    agent: &AgentCore,
    result: &Result<Reply, AttemptFailure>,
    progress: &Progress,
    prompt: impl FnOnce() -> u64,
) -> Option<Usage> {
    let usage = match result {
        Ok(Reply { usage: Some(usage), .. }) | Err(AttemptFailure { usage: Some(usage), .. }) => {
            usage.at_most(SIDE_TOKENS_MAX)
        }
        Ok(reply) => {
            let told = progress.tally().estimate(prompt, progress.pieces());
            // What came at once was heard by nobody.
            let whole = progress.tally().counter().count(&text_of(&reply.output));
            Usage { output_tokens: told.output_tokens.max(whole), ..told }
        }
        Err(failure) if is_unpaid(&failure.ending) => return None,
        Err(_) => progress.tally().estimate(prompt, progress.pieces()),
    };
    if usage.estimated {
        count_guess(agent, Guess::of(result));
    }
    Some(usage)
}

/// The same where neither a budget nor a price asked for the size of the request beforehand: of work that no model does nothing is known,
/// and nothing guessed.
pub(crate) fn spent_unasked(
    agent: &AgentCore,
    request: &AttemptRequest,
    result: &Result<Reply, AttemptFailure>,
    progress: &Progress,
) -> Option<Usage> {
    let told = match result {
        Ok(reply) => reply.usage,
        Err(failure) => failure.usage,
    };
    if told.is_none() && agent.settings.model.is_none() {
        return None;
    }
    spent(agent, result, progress, || {
        let relayed = request.relay.as_ref().map(|relay| relay.body.as_str());
        relayed.map_or_else(|| letters_of(&request.input), |body| TokenCounter::Letters.count(body))
    })
}

/// An answer with an error status is no work of a model, and neither is what never left.
pub(crate) fn is_unpaid(ending: &Ending) -> bool {
    matches!(ending, Ending::Status { .. } | Ending::OwnRefusal | Ending::Loading | Ending::Internal)
        || !ending.connected()
}

/// By the letters of what is asked, for a backend that cannot tell.
pub(crate) fn rough_estimate(asked: Option<&Asked>) -> TokenEstimate {
    let prompt = match asked {
        None => 0,
        Some(Asked { relay: Some((_, body)), .. }) => TokenCounter::Letters.count(body.as_str()),
        Some(Asked { input, relay: None }) => letters_of(input),
    };
    TokenEstimate { prompt, output_max: None, counter: TokenCounter::Letters }
}

fn letters_of(input: &Value) -> u64 {
    TokenCounter::Letters.count(&text_of(input))
}

/// All texts inside a value.
fn text_of(value: &Value) -> String {
    fn gather(value: &Value, depth: usize, text: &mut String) {
        match value {
            Value::String(part) => {
                text.push_str(part);
                text.push(' ');
            }
            Value::Array(items) if depth > 0 => {
                for item in items {
                    gather(item, depth - 1, text);
                }
            }
            Value::Object(members) if depth > 0 => {
                members.values().for_each(|member| gather(member, depth - 1, text));
            }
            _ => {}
        }
    }
    let mut text = String::new();
    gather(value, INPUT_DEPTH_MAX, &mut text);
    text
}
