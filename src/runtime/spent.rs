//! What an attempt used: by the server's word, else by our own count of what was sent and of what came back until then, marked so. An
//! answer without numbers is never free, and neither is a stream that was cut; what never left is. A whole answer that never came may have
//! been made all the same: it counts as reserved. It reserves and settles nothing.

use std::sync::Arc;

use metrics::Label;
use serde_json::Value;

use super::{
    core::AgentCore,
    metric,
    ports::{Asked, AttemptRequest, Progress, TokenEstimate},
    shielded::shielded,
    tally::{AnswerForm, Known},
    token_count::TokenCounter,
};
use crate::model::{
    facts::{Ending, TimeoutKind},
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
    #[cfg(feature = "serve")]
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

/// What an attempt used that asked for something; `None` where nothing was used. `reserved` are the prompt and the longest answer.
pub(crate) fn spent(
    agent: &AgentCore,
    result: &Result<Reply, AttemptFailure>,
    progress: &Progress,
    reserved: (impl FnOnce() -> u64, impl FnOnce() -> u64),
) -> Option<Usage> {
    let (prompt, output_max) = reserved;
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
        Err(failure) => match unheard(&failure.ending, progress) {
            Unheard::All => return None,
            Unheard::Nothing => progress.tally().estimate(prompt, progress.pieces()),
            Unheard::Unknown => {
                let told = progress.tally().estimate(prompt, progress.pieces());
                Usage { output_tokens: told.output_tokens.max(output_max()), ..told }
            }
        },
    };
    if usage.estimated {
        count_guess(agent, Guess::of(result));
    }
    Some(usage)
}

/// What of the work of an attempt without an answer nobody has heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unheard {
    /// There was none.
    All,
    /// What was made is what came.
    Nothing,
    /// Any part of the answer may have been made.
    Unknown,
}

fn unheard(ending: &Ending, progress: &Progress) -> Unheard {
    let of_streams =
        matches!(ending, Ending::StreamCut | Ending::Timeout { timeout: TimeoutKind::FirstToken | TimeoutKind::Stall });
    match progress.tally().known() {
        Known::NotSent => Unheard::All,
        Known::Sent(AnswerForm::Stream) => Unheard::Nothing,
        // A whole answer, and it says that there is no work in it.
        _ if *ending == Ending::NoDraft => Unheard::Nothing,
        Known::Sent(AnswerForm::Whole) => Unheard::Unknown,
        // An adapter that says nothing of itself is known by what it does.
        Known::Nothing if of_streams || progress.pieces() > 0 => Unheard::Nothing,
        Known::Nothing => Unheard::Unknown,
    }
}

/// The same where neither a budget nor a price asked for the size of the request beforehand: of work that no model does nothing is known,
/// and nothing guessed. An answer whose longest nobody tells is taken for `output_assumed`.
pub(crate) fn spent_unasked(
    agent: &AgentCore,
    output_assumed: impl FnOnce() -> u64,
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
    let prompt = || {
        let relayed = request.relay.as_ref().map(|relay| relay.body.as_str());
        relayed.map_or_else(|| letters_of(&request.input), |body| TokenCounter::Letters.count(body))
    };
    let output_max = || {
        let relay = request.relay.as_ref().map(|relay| (relay.kind, Arc::clone(&relay.body)));
        let asked = Asked { input: Arc::clone(&request.input), relay };
        shielded(|| agent.backend.output_max(&asked)).flatten().unwrap_or_else(output_assumed)
    };
    spent(agent, result, progress, (prompt, output_max))
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
