//! What only Ollama is told of a model: how much context it is loaded with, how long it stays, and its own word for the longest answer. Read
//! once an entry's place is known, for elsewhere it means nothing.

use super::{
    account::Account,
    deployment::{Deployment, LEFT_OUT, taken, tokens},
};
use crate::{
    cli::import::{
        finding::Outcome,
        scalar::{BareUnit, duration, text, whole},
        toml_text::{quoted, span},
        yaml::{Entry, Node, Value},
    },
    model::duration,
    settings::ollama::{NUM_CTX_MAX, NUM_CTX_MIN},
};

/// The keys, in the order in which they are read: context is held against the longest answer.
const KEYS: [&str; 3] = ["num_predict", "num_ctx", "keep_alive"];

/// What an entry says for its agent.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct OfOllama {
    pub(super) num_ctx: Option<u64>,
    /// As it is written in TOML.
    pub(super) keep_alive: Option<String>,
}

/// True if this key is one of these.
pub(super) fn is_key(key: &str) -> bool {
    KEYS.contains(&key)
}

/// Takes these keys of the parameters at `path`, if their entry has become a deployment.
pub(super) fn take(path: &str, entries: &[Entry], read: Option<&mut Deployment>, account: &mut Account) {
    let Some(read) = read else {
        for entry in entries {
            account.note(path, entry, Outcome::NotTaken, LEFT_OUT);
        }
        return;
    };
    if read.place.kind != "ollama" {
        for entry in entries {
            account.note(path, entry, Outcome::NotSupported, "only Ollama is told this");
        }
        return;
    }
    for entry in KEYS.iter().flat_map(|key| entries.iter().filter(move |entry| entry.key == *key)) {
        match entry.key.as_str() {
            "num_predict" if read.max_output_tokens.is_some() => {
                account.note(path, entry, Outcome::NotTaken, "max_tokens says it");
            }
            "num_predict" => read.max_output_tokens = taken(path, entry, account, tokens, "max_output_tokens"),
            "num_ctx" => {
                let answer = read.max_output_tokens;
                let fits = |node: &Node| context(node).and_then(|context| with_room(context, answer));
                read.of_ollama.num_ctx = taken(path, entry, account, fits, "num_ctx of the agent");
            }
            _ => read.of_ollama.keep_alive = taken(path, entry, account, stay, "keep_alive of the agent"),
        }
    }
}

fn context(node: &Node) -> Result<u64, String> {
    let (min, max) = (u64::from(NUM_CTX_MIN), u64::from(NUM_CTX_MAX));
    whole(node).and_then(|tokens| {
        if (min..=max).contains(&tokens) { Ok(tokens) } else { Err(format!("must be from {min} to {max}")) }
    })
}

fn with_room(context: u64, answer: Option<u64>) -> Result<u64, String> {
    match answer {
        Some(answer) if answer >= context => {
            Err(format!("leaves a prompt no room beside an answer of max_output_tokens = {answer}"))
        }
        _ => Ok(context),
    }
}

/// How long a model stays: seconds, or a duration of one unit or of several; less than 0 is for ever.
fn stay(node: &Node) -> Result<String, String> {
    let said = text(node)?;
    let (is_negative, amount) = said.strip_prefix('-').map_or((false, said.as_str()), |amount| (true, amount));
    let plain = Node { value: Value::Text(amount.to_owned()), line: node.line };
    let time = match duration(&plain, BareUnit::Seconds) {
        // Ollama reads what Go does: `1h30m`.
        Err(rule) => duration::parse(amount).map_err(|_| rule)?,
        Ok(time) => time,
    };
    Ok(if is_negative && !time.is_zero() { quoted("forever") } else { span(time) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_long_a_model_stays() {
        for (said, want) in [
            ("10m", Ok("\"10m\"")),
            ("300", Ok("\"5m\"")),
            ("1h30m", Ok("\"1h30m\"")),
            ("0", Ok("\"0s\"")),
            ("-0", Ok("\"0s\"")),
            ("-1", Ok("\"forever\"")),
            ("-1m", Ok("\"forever\"")),
            ("--1", Err("must not be negative")),
            ("always", Err("is no duration")),
            ("", Err("is no duration")),
        ] {
            let node = Node { value: Value::Text(said.to_owned()), line: 1 };
            assert_eq!(stay(&node).as_deref().map_err(String::as_str), want, "{said}");
        }
    }
}
